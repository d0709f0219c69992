"""Progress bars of the command line."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

BAR = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())


def shown_on(console: Console) -> Progress:
    """Bars on a terminal; nothing where nobody looks."""
    return Progress(*BAR, console=console, transient=True, disable=not console.is_terminal)


def bars(progress: Progress, prefix: str) -> Callable[[str, int, int], None]:
    """A bar for each stage that reports."""
    tasks: dict[str, TaskID] = {}

    def report(title: str, done: int, total: int) -> None:
        if title not in tasks:
            tasks[title] = progress.add_task(prefix + title, total=total)
        progress.update(tasks[title], completed=done)

    return report
