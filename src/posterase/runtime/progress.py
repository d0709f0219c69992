"""Progress on the terminal, for work of more than two seconds; nothing where nobody looks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PATIENCE = 2.0
"""Seconds before anything is shown."""


_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def told_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Have progress told to a function, where there is no terminal to show it on."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def shown(title: str, total: int, wanted: bool | None = None) -> Iterator[Callable[[str, int], None]]:
    """A bar that appears after two seconds; the function given back takes what is being done, and how far it is.

    `wanted`: True or False; None, on a terminal only. Where somebody listens, they are told instead.
    """
    listener = _listener.get()
    if listener is not None:
        yield lambda what, done: listener(f"{title}, {done + 1} of {total}: {what}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if wanted is False or (wanted is None and not console.is_terminal):
        yield lambda _what, _done: None
        return
    left = TextColumn("at most"), TimeRemainingColumn(), TextColumn("left")
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), *left
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(title, total=total)
    timer = threading.Timer(PATIENCE, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda what, done: progress.update(task, description=f"{title}: {what}", completed=done)
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


def approximate(seconds: float) -> str:
    """An estimated time, to two digits."""
    if seconds < 0.1:
        return "less than 0.1 s"
    for unit, size in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"about {float(f'{seconds / size:.2g}'):g} {unit}"
    return f"about {float(f'{seconds:.2g}'):g} s"
