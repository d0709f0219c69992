"""Reweight looks at removed rows only: its cost must not grow with the rows that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

import posterase as pe
from benchmarks.harness import Ratio, compare, once

PARAMETERS, DRAWS, REMOVED = 20, 1000, 100


def logistic(rows: int, parameters: int = PARAMETERS) -> pe.Model:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, parameters)).astype(np.float32)
    y = (rng.uniform(size=rows) < 0.5).astype(np.float32)
    return pe.Model(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, data: data["y"] * (data["x"] @ p) - jnp.logaddexp(0, data["x"] @ p),
        {"x": x, "y": y},
    )


def draws_of(model: pe.Model, parameters: int = PARAMETERS) -> pe.Draws:
    return pe.Draws(np.random.default_rng(1).normal(0, model.n_rows**-0.5, (1, DRAWS, parameters)))


def request(model: pe.Model, draws: pe.Draws, method: pe.Method, size: int = REMOVED) -> Callable[[], Any]:
    change = model.change(remove=np.arange(size))
    return lambda: method(0, model, draws, change).draws


def run() -> Iterator[Ratio]:
    small, large = logistic(10_000), logistic(1_000_000)
    small_draws, large_draws = draws_of(small), draws_of(large)
    yield compare(
        "Reweight, 100 rows removed of 1,000,000 / of 10,000",
        request(large, large_draws, pe.Reweight()),
        request(small, small_draws, pe.Reweight()),
    )
    fresh = logistic(10_000)
    first = once(request(fresh, small_draws, pe.Reweight(), 70))
    warm = once(request(fresh, small_draws, pe.Reweight(), 90))
    yield Ratio("Reweight, first request (compiles) / next one of the same bucket", first, warm)
