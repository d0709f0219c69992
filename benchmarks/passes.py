"""What a pass over the data costs, and how many a request makes beside its method, for docs/results/profile.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import posterase as pe
import posterase.model.base
from benchmarks.harness import Ratio, compare
from benchmarks.reweight import draws_of, logistic
from posterase.data.leakage import lagged
from posterase.data.row_sums import _plainly, sum_rows
from posterase.data.selection import table_of
from posterase.model.densities import LogDensity
from posterase.numerics.densities import evaluate_at
from posterase.sampling.sample import _put, _room

ROWS, PARAMETERS, DRAWS, REMOVED = 100_000, 50, 256, 100


def density_of(elements: int) -> Any:
    """A density of all rows at many draws, by blocks of so many numbers."""
    model, usual = logistic(ROWS, PARAMETERS), posterase.model.factorised.CUT_ELEMENTS
    thetas, like = np.random.default_rng(0).normal(0, 0.1, (DRAWS, PARAMETERS)), np.zeros(PARAMETERS, np.float32)

    def run() -> Any:
        posterase.model.factorised.CUT_ELEMENTS = (
            elements  # read where a program is traced, which is once for each model
        )
        try:
            return evaluate_at(LogDensity(model), thetas, like)
        finally:
            posterase.model.factorised.CUT_ELEMENTS = usual

    return run


def gradients_by(summed: Any) -> Any:
    """Values and gradients over all rows at some draws, the blocks' sum differentiated as `summed` is."""
    model = logistic(ROWS, PARAMETERS)
    thetas = jnp.asarray(np.random.default_rng(0).normal(0, 0.1, (16, PARAMETERS)), jnp.float32)

    @jax.jit
    def gradients(density: LogDensity, at: Any) -> Any:
        with mock.patch("posterase.model.factorised.sum_rows", summed):  # while the program is traced, which is once
            return jax.vmap(jax.value_and_grad(density))(at)

    return lambda: gradients(LogDensity(model), thetas)


def megabytes(program: Any, *args: Any) -> float:
    """What a compiled program's arguments and results take."""
    stats = program.lower(*args).compile().memory_analysis()
    return float(stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes) / 1e6


def held_by_draws() -> Ratio:
    """What the draws of a run in 20 pieces take: joined at the end, and put into one room as they come."""
    piece = jnp.zeros((4, 50, 1000), jnp.float32)
    joined = megabytes(jax.jit(lambda pieces: jnp.concatenate(pieces, axis=1)), [piece] * 20)
    placed = megabytes(_put, _room(piece, 1000), piece, 0)
    return Ratio("1,000 draws of 4 chains in 20 pieces, joined at the end / put in place", joined, placed, unit=" MB")


def run() -> Iterator[Ratio]:
    yield held_by_draws()
    yield compare(
        f"Values and gradients over {ROWS:,} rows at 16 draws, forwards and backwards / in one pass",
        gradients_by(_plainly),
        gradients_by(sum_rows),
        repeats=15,
    )
    what = f"A density of {ROWS:,} rows at {DRAWS} draws, by blocks of 2^20 numbers / of 2^18"
    yield compare(what, density_of(2**20), density_of(2**18), repeats=5)
    model = logistic(ROWS, PARAMETERS)
    draws, change = draws_of(model, PARAMETERS), model.change(remove=np.arange(REMOVED))
    yield compare(
        f"erase of {REMOVED} rows of {ROWS:,}, accepted by Reweight / Reweight alone",
        lambda: pe.erase(model, draws, change).draws.params,
        lambda: pe.Reweight()(0, model, draws, change).draws.params,
        repeats=5,
    )
    table = table_of({"x": np.random.default_rng(0).normal(size=(ROWS, 16))}, np.ones(ROWS, bool))
    yield compare(
        f"Looking for a series in 16 columns of {ROWS:,} rows / Reweight of the same rows",
        lambda: lagged(table, np.arange(REMOVED)),
        lambda: pe.Reweight()(0, model, draws, change).draws.params,
        repeats=3,
    )
