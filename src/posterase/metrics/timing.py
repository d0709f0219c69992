"""Time a request: what an erasure costs once all is compiled, and the first time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from posterase.runtime.checks import check_int


class Timed(NamedTuple):
    """Seconds of something that was run several times."""

    result: Any
    """What the last run returned."""
    seconds: float
    """The median, without the first run."""
    first: float
    """The first run, which compiles."""
    spread: float
    """Between quartiles, without the first run."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:.3g} s a request (quartiles {self.spread:.1g} s apart; {self.first:.3g} s the first time)"
        )


def timed(run: Callable[[], Any], repeats: int = 3) -> Timed:
    """Run a request once, then `repeats` times more, each to its last array."""
    check_int("repeats", repeats, 1)
    seconds: list[float] = []
    result: Any = None
    for _ in range(repeats + 1):
        start = time.perf_counter()
        result = run()
        draws = getattr(result, "draws", result)
        jax.block_until_ready(getattr(draws, "params", draws))
        seconds.append(time.perf_counter() - start)
    low, middle, high = np.quantile(seconds[1:], [0.25, 0.5, 0.75])
    return Timed(result, float(middle), seconds[0], float(high - low))
