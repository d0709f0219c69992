"""Where a record and its keys are: options that many commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import platformdirs
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
    """The default folder of keys, apart from projects, so that nobody shares them by mistake."""
    return platformdirs.user_config_path("posterase", appauthor=False) / "keys"
