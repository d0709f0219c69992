"""Matrix work in fewer digits: what it saves, and how wrong it makes a gradient. Figures of docs/results/profile.md.

An error of a gradient counts in units of the draws' standard deviations: where |error| × sd is near 1, a step along it
goes astray by about the width of the posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posterase as pe
from benchmarks.harness import Ratio, compare
from benchmarks.scaling import problem
from posterase.model.densities import LogDensity

PARAMETERS, DRAWS, CHAINS, REMOVED = 50, 64, 4, 100
ALL_DIGITS, FEWER = "float32", ("default", "bfloat16")


@jax.jit
def gradients(density: LogDensity, thetas: Any) -> Any:
    return jax.vmap(jax.grad(density))(thetas)


def within(precision: str, run: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with jax.default_matmul_precision(precision):
            return run()

    return call


def run() -> Iterator[Ratio]:
    rows = 100_000 if jax.default_backend() == "cpu" else 4_000_000
    model, draws, _ = problem(rows, PARAMETERS, CHAINS, 250)
    density, thetas = LogDensity(model), draws.flat()[:DRAWS]
    with jax.enable_x64(True):
        exact = np.asarray(gradients(density, jnp.asarray(thetas, jnp.float64)))
    sd, change = np.asarray(draws.flat()).std(axis=0), model.change(remove=np.arange(REMOVED))

    def error(precision: str) -> float:
        found = np.asarray(within(precision, lambda: gradients(density, thetas))(), np.float64)
        return float(np.abs((found - exact) * sd).max())

    def rejuvenated() -> Any:
        return pe.Rejuvenate()(0, model, draws, change).draws.params

    for fewer in FEWER:
        both = f"all digits / {fewer}"
        yield compare(
            f"{DRAWS} gradients over {rows:,} rows, {both}",
            within(ALL_DIGITS, lambda: gradients(density, thetas)),
            within(fewer, lambda: gradients(density, thetas)),
        )
        yield Ratio(f"Error of them × sd, {both}", error(ALL_DIGITS), error(fewer), unit="")
        yield compare(
            f"Rejuvenate of {REMOVED} of them, {both}",
            within(ALL_DIGITS, rejuvenated),
            within(fewer, rejuvenated),
            repeats=3,
        )
