"""Timing two things in turn, so that a busy machine slows both alike; and writing what was found."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from posterase.runtime.files import written_whole


class Ratio(NamedTuple):
    """Two things side by side, median seconds unless said otherwise, and how many times the second the first is."""

    what: str
    first: float
    second: float
    unit: str = " s"

    def __str__(self) -> str:
        first, second = (f"{value:.3g}{self.unit}" for value in (self.first, self.second))
        return f"{self.what}: {first} / {second} = {self.first / self.second:.3g}"


def once(run: Callable[[], Any]) -> float:
    """Seconds of one run, to the last array."""
    start = time.perf_counter()
    jax.block_until_ready(jax.tree.leaves(run()))
    return time.perf_counter() - start


def compare(what: str, first: Callable[[], Any], second: Callable[[], Any], repeats: int = 7) -> Ratio:
    """Run both in turn after one warm-up each; report medians."""
    once(first), once(second)
    times = np.array([(once(first), once(second)) for _ in range(repeats)])
    first_s, second_s = map(float, np.median(times, axis=0))
    return Ratio(what, first_s, second_s)


def write_whole(target: Path, text: str) -> None:
    """A page or JSON, whole or not at all."""
    with written_whole(target) as beside:
        beside.write_text(text)
