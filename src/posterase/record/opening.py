"""Opening a record with the keys of a folder, whatever state a change of keys was left in."""

from __future__ import annotations

from pathlib import Path

from posterase.errors import KeyFileError
from posterase.record.ledger.keyring import load_keys, promote_staged, staged_keys
from posterase.record.record import Record


def open_record(url: str, folder: Path, *, actor: str | None = None) -> Record:
    """Open the record at a URL, or begin it."""
    own = load_keys(folder)
    try:
        return Record.open(url, own, actor=actor)
    except KeyFileError:
        # A change of keys was cut off after the ledger had heard of it, or another process has just ended one.
        changed = staged_keys(folder, own) or load_keys(folder)
        if changed.public == own.public:
            raise
        record = Record.open(url, changed, actor=actor)
        promote_staged(folder, changed)
        return record
