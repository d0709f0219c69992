"""The record in a web server's hands: in threads, few at a time, with keys that may change meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from posterase.errors import KeyFileError
from posterase.record.ledger.keyring import load_keys
from posterase.record.opening import open_record
from posterase.record.record import Record

T = TypeVar("T")

READERS, WRITERS, EXPORTS = 8, 1, 2
"""Threads; and exports, which hold a connection each for as long as their readers take. Writers wait for each other in
the database anyway, where they would keep readers from their turn."""


class Keeper:
    """The record of a URL, with the keys of a folder."""

    def __init__(self, url: str, folder: Path):
        self.folder = folder
        self._record = open_record(url, folder, actor="the service")
        self._reading, self._writing, self._verifying = map(CapacityLimiter, (READERS, WRITERS, 1))
        self.exporting = CapacityLimiter(EXPORTS)

    @property
    def record(self) -> Record:
        """As it is now."""
        return self._record

    async def read(self, ask: Callable[[Record], T]) -> T:
        """Ask the record something."""
        return await to_thread.run_sync(ask, self._record, limiter=self._reading)

    async def write(self, actor: str, change: Callable[[Record], T]) -> T:
        """Change it, in somebody's name."""
        return await to_thread.run_sync(functools.partial(self._changed, actor, change), limiter=self._writing)

    async def with_fresh_keys(self) -> Record:
        """The record, for what it signs outside of a change."""
        await to_thread.run_sync(self._with_keys, Record.check_keys, limiter=self._reading)
        return self._record

    async def verify(self, ask: Callable[[Record], T]) -> T:
        """Ask something that takes long, with the keys as they are now: one at a time."""
        await self.with_fresh_keys()
        return await to_thread.run_sync(ask, self._record, limiter=self._verifying)

    def close(self) -> None:
        """Give connections back."""
        self._record.close()

    def _changed(self, actor: str, change: Callable[[Record], T]) -> T:
        return self._with_keys(lambda record: change(record.acting_as(actor)))

    def _with_keys(self, do: Callable[[Record], T]) -> T:
        """Where the keys were changed since, with the new ones."""
        try:
            return do(self._record)
        except KeyFileError:
            self._record.keys = load_keys(self.folder)
            return do(self._record)
