"""Compiled programs are kept, so that the next process does not compile them again.

jax can write what XLA compiled to a folder, its compilation cache. posterase switches this on inside its own calls and
nowhere else: what you compile outside of them may hold data.

No program in the folder holds rows. Rows, draws and numbers are arguments of our programs. An array that a model's
function takes from elsewhere, a closure or a module's globals, is a constant of the compiled program, and would stay in
the folder after its rows were erased. So functions are traced before they are compiled (`posterase.runtime.closures`),
and if they use such an array, the cache is suspended until the call returns: nothing is written and nothing is read.
What this does not see: single numbers (a mean of the rows, written into a function), arrays in methods and samplers of
your own, and what other threads compile in the meantime.

The folder is `posterase/programs` in the user's cache. `POSTERASE_COMPILATION_CACHE` names another one, or is `off`. An
existing JAX cache folder, set by `JAX_COMPILATION_CACHE_DIR` or `jax.config`, is respected, with all other options of
jax's cache; it is suspended in the same way. A folder that cannot be used is ignored: programs are compiled as usual,
and `posterase doctor` says why.

jax bounds the folder by itself only with a lock, and looks at every file whenever it writes one. Here the folder is
tidied once a day: the programs that were not used for longest go, until `MOST_BYTES` are left, and with them files that
a stopped process left half written, which jax would stumble over for ever. Processes need no lock: one that meets a
file that another is still writing compiles the program itself.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from posterase.errors import OutputError
from posterase.runtime.files import cache_folder, make_folder

VARIABLE = "POSTERASE_COMPILATION_CACHE"
ENABLED, FOLDER = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
THRESHOLD = "jax_persistent_cache_min_compile_time_secs"
MOST_BYTES = 256 * 2**20
BETWEEN_TIDYING = 24 * 3600.0
"""Seconds."""
STILL_WRITTEN = 60.0
"""Seconds for which a file may be half written by a process that is alive."""

JAX_THRESHOLD = 1.0
"""jax keeps a program that took so many seconds to compile, unless it is told otherwise. Ours are many and small, and
one is read in a tenth of the time that it takes to compile: all are kept."""

_lock = threading.RLock()
_inside = 0
"""How many blocks are open, in all threads."""
_before: dict[str, Any] = {}
"""jax's options as they are outside of our calls, where we changed them."""
_ready: set[Path] = set()
_threads: list[threading.Thread] = []
"""Those that compile in the background."""


class Programs(NamedTuple):
    """Where programs are kept."""

    folder: Path | None
    """None: nowhere."""
    said: str
    """Who chose it, or why there is none."""
    ours: bool
    """Whether jax does it on our behalf; if not, its user has chosen."""

    def held(self) -> tuple[int, int]:
        """How many programs are there, and their bytes."""
        files = [] if self.folder is None or not self.folder.is_dir() else _entries(self.folder)
        return len(files), sum(size for _, _, size in files)


def programs() -> Programs:
    """Where programs are kept, as environment and jax are now. Nothing is made or changed."""
    import jax

    if not getattr(jax.config, ENABLED):
        return Programs(None, "jax_enable_compilation_cache is off", False)
    chosen = getattr(jax.config, FOLDER)
    if chosen and FOLDER not in _before:
        return Programs(Path(chosen), f"as {FOLDER} says", False)
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return Programs(None, "JAX_COMPILATION_CACHE_DIR is empty", False)
    named = os.environ.get(VARIABLE, "")
    if named.lower() == "off":
        return Programs(None, f"{VARIABLE} is off", False)
    if named:
        try:
            return Programs(Path(named).expanduser().absolute(), f"as {VARIABLE} says", True)
        except RuntimeError:
            return Programs(None, f"{VARIABLE} is {named!r}, and there is no such user", True)
    folder = default_folder()
    if folder.is_dir() and not _only_ours(folder):
        return Programs(None, f"others can write to {folder}, and could put programs there for you to run", True)
    return Programs(folder, f"{VARIABLE}=off switches it off", True)


def default_folder() -> Path:
    """Where programs are kept unless somebody says otherwise."""
    return cache_folder() / "programs"


@contextlib.contextmanager
def programs_kept() -> Iterator[None]:
    """What is compiled in here is kept for the next process; what was kept is not compiled. Also a decorator."""
    _enter()
    try:
        yield
    finally:
        wait_for_background()
        _leave()


def compile_in_background(lowered: Any) -> None:
    """Compile a program in a thread while others run: XLA does not hold Python's global lock.

    Programs are traced before, in the caller's thread, since a model's functions may not be thread-safe (NumPyro's
    handlers are not). Calls that come later find them compiled. To be called inside `programs_kept`, which waits for
    the thread before it gives jax its own compilation cache back.
    """
    thread = threading.Thread(target=_compile, args=(lowered, list(_threads)), daemon=True)
    _threads.append(thread)
    thread.start()


def wait_for_background() -> None:
    """Wait until everything is compiled."""
    with contextlib.suppress(IndexError):  # another thread may take the last one
        while True:
            _threads.pop().join()


def _compile(lowered: Any, before: list[threading.Thread]) -> None:
    for each in before:  # one at a time, which leaves the other cores to programs that are waited for
        each.join()
    with contextlib.suppress(Exception):  # the call that needs the program raises it where it can be caught
        lowered.compile()


def suspend_cache() -> None:
    """Neither write programs nor read them, until the outermost `programs_kept` block ends. Outside of one: nothing.

    For programs that hold data. Blocks in other threads do without the cache, too, until all have ended.
    """
    with _lock:
        if _inside:
            _set(ENABLED, False)


def _enter() -> None:
    import jax

    global _inside
    with _lock:
        if not _inside:
            found = programs()
            if found.ours and found.folder is not None and _prepared(found.folder):
                _set(FOLDER, str(found.folder))
                if getattr(jax.config, THRESHOLD) == JAX_THRESHOLD:
                    _set(THRESHOLD, 0.0)
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            for name, value in list(_before.items()):
                _set(name, value)
            _before.clear()


def _set(name: str, value: Any) -> None:
    """Set one of jax's options for the time of the block."""
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    before = getattr(jax.config, name)
    if before != value:
        _before.setdefault(name, before)
        jax.config.update(name, value)
        reset_cache()  # jax looks at its options once, and then goes on as they were


def _prepared(folder: Path) -> bool:
    """Whether the folder can be used; looked at once a process."""
    if folder in _ready:
        return True
    if obstacle(folder):
        return False
    _tidied(folder)
    # A disk that fills up, or a file that another process is writing: no concern of somebody who never asked for this.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    _ready.add(folder)
    return True


def obstacle(folder: Path) -> str:
    """Why the folder, made where it was not there, takes no files; nothing where it does."""
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        make_folder(folder)
    except OutputError as error:
        return error.problem
    except OSError as error:
        return f"the folder {str(folder)!r} cannot be made: {error.strerror}."
    return ""


def _only_ours(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _entries(folder: Path) -> list[tuple[float, Path, int]]:
    """When a program was last used, where it is, and its size."""
    found = []
    for path in folder.glob("*-cache"):
        try:
            at = path.stat()
        except FileNotFoundError:  # another process tidies
            continue
        found.append((max(at.st_atime, at.st_mtime), path, at.st_size))
    return found


def _tidied(folder: Path) -> None:
    """Remove what is broken or was not used for longest; once a day, whatever the number of processes."""
    stamp = folder / ".tidied"
    try:
        before = stamp.stat().st_mtime if stamp.exists() else 0.0
        if time.time() - before < BETWEEN_TIDYING:
            return
        stamp.touch()
    except OSError:  # a disk without room
        return
    total = 0
    for used, path, size in sorted(_entries(folder), reverse=True):
        total += size
        if total > MOST_BYTES or (used >= before and _broken(path)):
            path.unlink(missing_ok=True)
            total -= size


def _broken(path: Path) -> bool:
    """Whether a file ends too early. (One that is compressed otherwise than by zlib is left alone.)"""
    try:
        written = path.stat().st_mtime
        content = path.read_bytes()
        if content[:1] in (b"", b"x"):
            zlib.decompress(content)
    except FileNotFoundError:
        return False
    except zlib.error:
        return time.time() - written > STILL_WRITTEN
    return False
