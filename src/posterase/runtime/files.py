"""Files that appear whole or not at all, and folders of the user."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from posterase.errors import OutputError


def cache_folder() -> Path:
    """The user's cache: `~/.cache/posterase`, or in `XDG_CACHE_HOME`, on Linux. `pooch.os_cache` has the same."""
    return platformdirs.user_cache_path("posterase", appauthor=False)


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
def written_whole(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """Yield a path beside the target to write to; it replaces the target on success and is deleted on failure.

    A private file can be read and written by its owner alone (mode 0600) from the moment it is created.
    """
    target = Path(path)
    check_writable(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=f".part{target.suffix}")
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        if not private:  # mkstemp creates files that only their owner can read
            umask = os.umask(0)
            os.umask(umask)
            beside.chmod(0o666 & ~umask)
        beside.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"the disk is full: {target.name!r} was not written.", "make room for it.") from error
        raise
    finally:
        beside.unlink(missing_ok=True)
