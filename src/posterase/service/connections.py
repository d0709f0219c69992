"""Connections that say nothing: a deadline for the head of a request, and how many there may be at once."""

from __future__ import annotations

import asyncio
import collections

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 10.0
"""From when a connection is made, or begins to ask again, to the end of the request's head."""
MOST, MOST_OF_ONE = 800, 256
"""Connections of everybody, and of one address."""

_of: collections.Counter[str] = collections.Counter()
"""Connections of each address."""


class Connection(H11Protocol):
    """uvicorn's, which waits for a request's head for ever."""

    _deadline: asyncio.TimerHandle | None = None
    _counted = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, unless there are too many."""
        super().connection_made(transport)
        self._counted = self.client[0] if self.client else "unknown"
        _of[self._counted] += 1
        alone = not self.config.proxy_headers  # behind a proxy all have its address
        if _of.total() > MOST or (alone and _of[self._counted] > MOST_OF_ONE):
            transport.close()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._wait_no_longer()
        _of[self._counted] -= 1
        if not _of[self._counted]:
            del _of[self._counted]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request: its head must be whole in time."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_longer()
        elif self._deadline is None:
            self._wait()

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(PATIENCE_S, self.transport.close)

    def _wait_no_longer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
