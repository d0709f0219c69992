"""What a pass over the data costs, and how many a request makes beside its rung: figures of docs/results/profile.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import posterase as pe
import posterase.model
from benchmarks.harness import Ratio, compare
from benchmarks.reweight import draws_of, logistic
from posterase.columns import lagged
from posterase.model import LogDensity
from posterase.numerics.densities import evaluate_at
from posterase.rows import table_of

ROWS, PARAMETERS, DRAWS, REMOVED = 100_000, 50, 256, 100


def density_of(elements: int) -> Any:
    """A density of all rows at many draws, by blocks of so many numbers."""
    model, usual = logistic(ROWS, PARAMETERS), posterase.model.CUT_ELEMENTS
    thetas, like = np.random.default_rng(0).normal(0, 0.1, (DRAWS, PARAMETERS)), np.zeros(PARAMETERS, np.float32)

    def run() -> Any:
        posterase.model.CUT_ELEMENTS = elements  # read where a program is traced, which is once for each model
        try:
            return evaluate_at(LogDensity(model), thetas, like)
        finally:
            posterase.model.CUT_ELEMENTS = usual

    return run


def run() -> Iterator[Ratio]:
    if hasattr(posterase.model, "CUT_ELEMENTS"):
        what = f"A density of {ROWS:,} rows at {DRAWS} draws, by blocks of 2^20 numbers / of 2^18"
        yield compare(what, density_of(2**20), density_of(2**18), repeats=5)
    model = logistic(ROWS, PARAMETERS)
    draws, removal = draws_of(model, PARAMETERS), model.removal(np.arange(REMOVED))
    yield compare(
        f"erase of {REMOVED} rows of {ROWS:,}, accepted by Reweight / Reweight alone",
        lambda: pe.erase(model, draws, removal).draws.params,
        lambda: pe.Reweight()(0, model, draws, removal).draws.params,
        repeats=5,
    )
    table = table_of({"x": np.random.default_rng(0).normal(size=(ROWS, 16))}, ROWS)
    yield compare(
        f"Looking for a series in 16 columns of {ROWS:,} rows / Reweight of the same rows",
        lambda: lagged(table, np.arange(REMOVED)),
        lambda: pe.Reweight()(0, model, draws, removal).draws.params,
        repeats=3,
    )
