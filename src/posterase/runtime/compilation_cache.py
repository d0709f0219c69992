"""Write compiled programs to disk, so that the next process does not compile them again.

JAX can write what XLA compiled to a folder, its persistent compilation cache. `enable_compilation_cache` switches it on
for the process: the command line does so when it starts, everybody else may. Library calls change no option of JAX.

No program in the folder holds rows. Rows, draws and numbers are arguments of our programs. But an array that a function
takes from elsewhere, a closure or a module's globals, is a constant of its compiled program, and would stay in the
folder after its rows were erased. Therefore:

- Programs are written only by posterase's own calls, inside a `compilation_scope`. What users compile themselves may
  hold data, and is not written.
- A model's functions are traced before they are compiled (`posterase.runtime.closures`). If they use arrays of their
  own, `suspend_cache` ends writing in this thread until its outermost scope ends.

This does not see single numbers (a mean of the rows, written into a function) and arrays in methods and samplers of
your own.

Both rules need options of JAX that differ between threads: those outside of a scope write nothing, whatever the others
do. `_apply` sets them.

The folder is `posterase/programs` in the user's cache. `POSTERASE_COMPILATION_CACHE` names another one, or is `off`. An
existing JAX cache folder, set by `JAX_COMPILATION_CACHE_DIR` or `jax.config`, is respected, with all other options of
JAX's cache; only `suspend_cache` applies to it. A folder that cannot be used is ignored: programs are compiled as
usual, and `posterase doctor` says why.

JAX bounds the folder by itself only with a lock, and looks at every file whenever it writes one. Here the folder is
tidied once a day: the programs that were not used for longest are removed until `MOST_BYTES` are left, and with them
files that a stopped process left half written, which JAX would stumble over for ever. Processes need no lock: one that
meets a file that another is still writing compiles the program itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from posterase.errors import InvalidOptionError, OutputError
from posterase.runtime.files import cache_folder, make_folder

VARIABLE = "POSTERASE_COMPILATION_CACHE"
ENABLED, FOLDER = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
THRESHOLD = "jax_persistent_cache_min_compile_time_secs"
XLA_CACHES = "jax_persistent_cache_enable_xla_caches"
MOST_BYTES = 256 * 2**20
BETWEEN_TIDYING = 24 * 3600.0
"""Seconds."""
STILL_WRITTEN = 60.0
"""Seconds for which a file may be half written by a process that is alive."""

JAX_DEFAULTS: dict[str, Any] = {
    ENABLED: True,
    FOLDER: None,
    THRESHOLD: 1.0,
    XLA_CACHES: "xla_gpu_per_fusion_autotune_cache_dir",
}


class Writing(NamedTuple):
    """Which compiled programs JAX writes to its cache."""

    min_seconds: float
    """Those that took at least this long to compile."""
    xla_caches: str | None
    """Caches of XLA's own in the same folder, for GPUs."""


NOTHING = Writing(math.inf, "")

ALL_PROGRAMS = 0.0
"""Our programs are many and small, and one is read in a tenth of the time that it takes to compile. JAX's own threshold
of a second would write the largest alone."""


class _Thread(threading.local):
    """The scope that a thread is in."""

    overrides: contextlib.ExitStack | None = None
    """JAX's options of this thread, until the scope ends; None outside of a scope."""
    is_suspended = False

    def __init__(self) -> None:
        self.background: list[threading.Thread] = []
        """Threads that compile for this one."""


_thread = _Thread()
_lock = threading.Lock()
_enabled: tuple[Path, Writing] | None = None
"""The folder that `enable_compilation_cache` chose, and what scopes write to it."""


class CacheLocation(NamedTuple):
    """The folder that compiled programs are written to."""

    folder: Path | None
    """None: nothing is written."""
    reason: str
    """Who chose it, or why there is none."""
    is_ours: bool
    """Whether posterase chose it; if not, JAX's options did."""

    def measure(self) -> tuple[int, int]:
        """Count the programs in the folder, and their bytes."""
        files = [] if self.folder is None or not self.folder.is_dir() else _list_programs(self.folder)
        return len(files), sum(size for _, _, size in files)


# --- switching it on


def enable_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Write what posterase compiles to disk, so that later processes do not compile it again.

    Call it once, when the process starts; the command line does. A new process then has its first answer two to five
    times sooner. Programs that hold data are not written: those that you compile yourself, and those of models whose
    functions use arrays other than their arguments.

    Parameters
    ----------
    folder
        Where to write. Default: the folder that the environment variable `POSTERASE_COMPILATION_CACHE` names, else
        `posterase/programs` in the user's cache. If the variable is `off`, nothing is written. An existing JAX cache
        folder is respected.

    Returns
    -------
    The folder; None if nothing is written (`posterase doctor` says why).

    Examples
    --------
    >>> import posterase as pe
    >>> folder = pe.enable_compilation_cache()
    """
    global _enabled
    with _lock:
        location = find_cache(folder)
        if location.folder is None:
            return None
        if not location.is_ours:
            if folder is not None and Path(folder).expanduser().absolute() != location.folder:
                raise InvalidOptionError(
                    f"folder is {os.fspath(folder)!r}, but {FOLDER} is {str(location.folder)!r} already.",
                    "Pass no folder, or unset JAX's.",
                )
            return location.folder
        if problem := folder_problem(location.folder):
            if folder is not None:
                raise OutputError(problem, "choose another folder.")
            return None
        if _enabled is None or _enabled[0] != location.folder:
            _tidy(location.folder)
            # A full disk, or a file that another process is writing: programs are compiled as usual.
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
            _enabled = location.folder, _writing_in_scopes() if _enabled is None else _enabled[1]
        _set_option(FOLDER, str(location.folder))
        _set_option(THRESHOLD, NOTHING.min_seconds)  # outside of scopes
        _set_option(XLA_CACHES, NOTHING.xla_caches)
        return location.folder


def find_cache(folder: str | os.PathLike[str] | None = None) -> CacheLocation:
    """Find the folder that `enable_compilation_cache` uses. Nothing is created or changed."""
    if not _option(ENABLED):
        return CacheLocation(None, f"{ENABLED} is off", False)
    ours = _choose_folder(folder)
    chosen = _option(FOLDER)
    # A folder of ours may be JAX's already: of this process, or of the one that started it and set its environment.
    if chosen and Path(chosen) not in (ours.folder, _enabled and _enabled[0]):
        return CacheLocation(Path(chosen), f"as {FOLDER} says", False)
    if not chosen and FOLDER.upper() in os.environ:
        return CacheLocation(None, f"{FOLDER.upper()} is empty", False)
    return ours


def default_folder() -> Path:
    """Return the folder that programs are written to by default."""
    return cache_folder() / "programs"


def _choose_folder(folder: str | os.PathLike[str] | None) -> CacheLocation:
    """The folder by our own rules, whatever JAX's options are."""
    variable = os.environ.get(VARIABLE, "")
    if variable.lower() == "off":
        return CacheLocation(None, f"{VARIABLE} is off", False)
    if folder is not None:
        return CacheLocation(Path(folder).expanduser().absolute(), "as your program says", True)
    if variable:
        try:
            return CacheLocation(Path(variable).expanduser().absolute(), f"as {VARIABLE} says", True)
        except RuntimeError:
            return CacheLocation(None, f"{VARIABLE} is {variable!r}, and there is no such user", True)
    try:
        default = default_folder()
        if default.is_dir() and not _is_private(default):
            return CacheLocation(
                None, f"others can write to {default}, and could put programs there for you to run", True
            )
    except (RuntimeError, OSError) as error:  # no home folder, or one that cannot be entered
        return CacheLocation(None, f"the user's cache folder cannot be used: {error}", True)
    return CacheLocation(default, f"{VARIABLE}=off switches it off", True)


def _writing_in_scopes() -> Writing:
    """What our calls write: all programs, unless JAX's options differ from its defaults."""
    threshold = _option(THRESHOLD)
    if threshold == NOTHING.min_seconds:  # the environment is that of the process that started this one
        return Writing(ALL_PROGRAMS, JAX_DEFAULTS[XLA_CACHES])
    return Writing(ALL_PROGRAMS if threshold == JAX_DEFAULTS[THRESHOLD] else threshold, _option(XLA_CACHES))


def _option(name: str) -> Any:
    """An option of JAX; it is not imported for that, since the command line has to start fast."""
    if "jax" in sys.modules:
        return getattr(sys.modules["jax"].config, name)
    value, default = os.environ.get(name.upper()), JAX_DEFAULTS[name]
    if value is None:
        return default
    if name == ENABLED:
        return value.lower() not in ("n", "no", "f", "false", "off", "0")
    if name == THRESHOLD:
        try:
            return float(value)
        except ValueError:  # JAX raises an error when it is imported
            return default
    return value


def _set_option(name: str, value: Any) -> None:
    """Set an option of JAX for the process; one that has not imported JAX does so by the environment."""
    if _option(name) == value:
        return
    if "jax" not in sys.modules:
        os.environ[name.upper()] = str(value)
        return
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    jax.config.update(name, value)
    reset_cache()  # JAX reads the folder once


# --- inside our calls


@contextlib.contextmanager
def compilation_scope() -> Iterator[None]:
    """Write what this thread compiles in here, if the cache is enabled. Also a decorator.

    At its end it waits for programs that compile in the background. Scopes nest: the outermost one of a thread counts.
    """
    if _thread.overrides is not None:
        yield
        return
    with contextlib.ExitStack() as overrides:
        _thread.overrides, _thread.is_suspended = overrides, False
        if _enabled is not None:
            overrides.enter_context(_apply(_enabled[1]))
        try:
            yield
        finally:
            wait_for_background()
            _thread.overrides = None


def suspend_cache() -> None:
    """Write nothing more in this thread until its outermost scope ends. Outside of a scope: do nothing.

    For programs that hold data.
    """
    import jax

    if _thread.overrides is None or _thread.is_suspended:
        return
    _thread.is_suspended = True
    if getattr(jax.config, ENABLED) and getattr(jax.config, FOLDER):
        _thread.overrides.enter_context(_apply(NOTHING))


def is_suspended() -> bool:
    """Whether `suspend_cache` was called in the scope that this thread is in."""
    return _thread.overrides is not None and _thread.is_suspended


@contextlib.contextmanager
def _apply(writing: Writing) -> Iterator[None]:
    """Set which programs JAX writes, in this thread only.

    JAX's options are global to the process, except inside these context managers, which it has for its own use: there
    is no public way to keep one thread's programs off the disk. `test_jax_has_options_of_single_threads` fails if they
    change. (Its switch `enable_compilation_cache` would not do: JAX reads it once a process.)
    """
    from jax._src import config

    with (
        config.persistent_cache_min_compile_time_secs(writing.min_seconds),
        config.persistent_cache_enable_xla_caches(writing.xla_caches),
    ):
        yield


def compile_in_background(lowered: Any) -> None:
    """Compile a program in a thread while others run: XLA does not hold Python's global lock.

    Programs are traced before, in the caller's thread, since a model's functions may not be thread-safe (NumPyro's
    handlers are not). Calls that come later find them compiled. Call it inside a `compilation_scope`, which waits for
    the thread; a suspension of the cache applies to it.
    """
    writing = NOTHING if is_suspended() else _enabled and _enabled[1]
    before = list(_thread.background)
    thread = threading.Thread(target=_compile, args=(lowered, writing, before), daemon=True)
    _thread.background.append(thread)
    thread.start()


def wait_for_background() -> None:
    """Wait until everything that this thread compiles in the background is compiled."""
    while _thread.background:
        _thread.background.pop().join()


def _compile(lowered: Any, writing: Writing | None, before: list[threading.Thread]) -> None:
    for each in before:  # one at a time, which leaves the other cores to programs that are waited for
        each.join()
    with contextlib.ExitStack() as stack:
        if writing is not None:
            stack.enter_context(_apply(writing))
        with contextlib.suppress(Exception):  # the call that needs the program raises it where it can be caught
            lowered.compile()


# --- the folder


def folder_problem(folder: Path) -> str:
    """Create the folder if necessary; say why it takes no files, or return an empty string."""
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


def _is_private(folder: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _list_programs(folder: Path) -> list[tuple[float, Path, int]]:
    """When a program was last used, where it is, and its size."""
    programs = []
    for path in folder.glob("*-cache"):
        try:
            at = path.stat()
        except FileNotFoundError:  # another process tidies
            continue
        programs.append((max(at.st_atime, at.st_mtime), path, at.st_size))
    return programs


def _tidy(folder: Path) -> None:
    """Remove files that are broken or were not used for longest; once a day, whatever the number of processes."""
    stamp = folder / ".tidied"
    try:
        before = stamp.stat().st_mtime if stamp.exists() else 0.0
        if time.time() - before < BETWEEN_TIDYING:
            return
        stamp.touch()
    except OSError:  # a disk without room
        return
    total = 0
    for used, path, size in sorted(_list_programs(folder), reverse=True):
        total += size
        if total > MOST_BYTES or (used >= before and _is_broken(path)):
            path.unlink(missing_ok=True)
            total -= size


def _is_broken(path: Path) -> bool:
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
