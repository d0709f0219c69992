"""Timing two things in turn, so that a busy machine slows both alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Ratio(NamedTuple):
    """Median seconds of two things, and how many times longer the first takes."""

    what: str
    first: float
    second: float

    def __str__(self) -> str:
        return f"{self.what}: {self.first:.3g} s / {self.second:.3g} s = {self.first / self.second:.3g}"


def once(run: Callable[[], Any]) -> float:
    """Seconds of one run, to the last array."""
    start = time.perf_counter()
    jax.block_until_ready(jax.tree.leaves(run()))
    return time.perf_counter() - start


def compare(what: str, first: Callable[[], Any], second: Callable[[], Any], repeats: int = 7) -> Ratio:
    """Run both in turn after one warm-up each; report medians."""
    once(first), once(second)
    times = np.array([(once(first), once(second)) for _ in range(repeats)])
    return Ratio(what, *map(float, np.median(times, axis=0)))
