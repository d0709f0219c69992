"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posterase.errors import OutputError


def make_folder(folder: Path) -> Path:
    """The folder, made where it was not there, and checked to take files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the folder {str(folder)!r} cannot be made: {error.strerror}.", "choose another.") from error
    check_writable(folder / "posterase")
    return folder


def check_writable(target: Path) -> None:
    """Refuse a file that could not be written, before the work that would fill it."""
    folder = target.parent
    if not folder.is_dir():
        raise OutputError(f"there is no folder {str(folder)!r} to write {target.name!r} in.", "make the folder first.")
    if target.is_dir():
        raise OutputError(f"{str(target)!r} is a folder.", "name a file.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"the folder {str(folder)!r} cannot be written to: {error.strerror}.", "choose another one."
        ) from error


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside the target to write to; it takes the target's place when all went well, and vanishes if not."""
    target = Path(path)
    check_writable(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=f".part{target.suffix}")
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner can read
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
