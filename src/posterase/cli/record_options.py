"""Where a record and its keys are: options that many commands have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_RECORD = "posterase-record.db"

RecordUrl = Annotated[
    str, typer.Option("--record", envvar="POSTERASE_RECORD", help="A SQLite file, or postgresql://user@host/database.")
]
KeysFolder = Annotated[
    Path | None,
    typer.Option("--keys", envvar="POSTERASE_KEYS", help="The folder of keys. Default: ~/.config/posterase/keys."),
]


def keys_folder() -> Path:
    """Keys are kept apart from projects, so that nobody shares them by mistake."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path.home() / ".config") / "posterase" / "keys"
