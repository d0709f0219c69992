"""Progress that is passed on, and timed on its way."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

Report = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and how much there is."""


class Clock:
    """Passes reports on, and remembers when they came."""

    def __init__(self, report: Callable[[int, int], None]):
        self.report = report
        self.times: list[tuple[int, float]] = []
        self.begun = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        self.times.append((done, time.perf_counter()))
        self.report(done, total)

    def seconds(self) -> float:
        """Median seconds of one unit of work; the first piece, which may compile, does not count unless alone."""
        times = self.times if len(self.times) > 1 else [(0, self.begun), *self.times]
        pieces = zip(times[1:], times[:-1], strict=True)
        return float(np.median([(now - then) / (done - before) for (done, now), (before, then) in pieces]))


def named(report: Report, title: str) -> Callable[[int, int], None]:
    """The reports of one stage, under its title."""
    return lambda done, total: report(title, done, total)
