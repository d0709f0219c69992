"""How often somebody may ask: a bucket for everybody, that fills over time."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

MOST = 10_000
"""Buckets that are remembered; whoever has not asked for longest is forgotten first."""


class Rates:
    """A token bucket for every name.

    Parameters
    ----------
    rate
        How many a second, over time.
    burst
        How many at once.
    clock
        Seconds that only go forward.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic):
        self.rate, self.burst, self.clock = rate, burst, clock
        self._left: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def wait(self, name: str) -> float:
        """Take one: nothing where there is one left, else the seconds until there is."""
        now = self.clock()
        left, last = self._left.pop(name, (float(self.burst), now))
        left = min(float(self.burst), left + (now - last) * self.rate)
        taken = left >= 1
        self._left[name] = (left - 1 if taken else left, now)
        if len(self._left) > MOST:
            self._left.popitem(last=False)
        return 0.0 if taken else (1 - left) / self.rate
