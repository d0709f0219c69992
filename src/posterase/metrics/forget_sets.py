"""Rows to forget, as the field chooses them for a hard test: at random, the most influential, a coherent subgroup.

A random handful hardly moves a posterior, and forgetting it proves little. How far the posterior moves without row z is
about half the variance of its log-likelihood over the draws,

    KL(p_S ‖ p_{S−z}) ≈ ½ Var_S[log p(z | θ)],

and rows that resemble each other move it the same way.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from posterase.data.row_source import is_streamed
from posterase.draws.draws import Draws
from posterase.errors import UnsupportedModelError
from posterase.model.base import AbstractModel
from posterase.model.stored import needs_density
from posterase.numerics.failures import entry_point
from posterase.numerics.weights import base_weights
from posterase.runtime.checks import check_int, check_type
from posterase.runtime.precision import cast_floats, in_float64
from posterase.runtime.prng import as_key

MOST_DRAWS = 500
"""Draws are thinned to at most so many."""

COLUMNS_AT_ONCE = 256


class ForgetSets(NamedTuple):
    """Row ids of three sets of one size."""

    random: Int[np.ndarray, " size"]
    influential: Int[np.ndarray, " size"]
    """Those whose log-likelihood varies most over the posterior."""
    coherent: Int[np.ndarray, " size"]
    """A row picked at random, and those nearest to it in the data, each column in its standard deviations."""


@entry_point
def forget_sets(key: Key[Array, ""] | int, model: AbstractModel, draws: Draws, size: int) -> ForgetSets:
    """Three sets of `size` rows of the model; draws are of its posterior."""
    check_type(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
    if not model.has_density:
        raise needs_density("the likelihood of rows one by one")
    model.check(draws)
    check_int("size", size, 1, model.n_rows - 1)
    pick, centre = jax.random.split(as_key(key))
    ids = model.row_ids
    middle = int(jax.random.randint(centre, (), 0, len(ids)))
    near = np.argsort(_distances(model, ids, middle), kind="stable")
    moved = row_influence(model, draws)
    return ForgetSets(
        random=np.sort(ids[np.asarray(jax.random.permutation(pick, len(ids)))[:size]]),
        influential=np.sort(ids[np.argsort(-moved, kind="stable")[:size]]),
        coherent=np.sort(ids[near[:size]]),
    )


@entry_point
def row_influence(model: AbstractModel, draws: Draws) -> Float[np.ndarray, " present"]:
    """½ Var over draws of the log-likelihood of every present row: about the KL that removing it alone makes."""
    model.check(draws)
    flat = draws.flat()
    weights = base_weights(draws).ravel()
    n = len(weights)
    places = np.linspace(0, n - 1, min(n, MOST_DRAWS)).astype(int)
    some = jax.tree.map(lambda leaf: leaf[places], flat)
    share = weights[places] / weights[places].sum()
    ids = jnp.asarray(model.row_ids)
    variance, _ = in_float64(lambda wide: _variance(model, some, jnp.asarray(share), ids, wide), "the model")
    return 0.5 * np.maximum(np.asarray(variance, np.float64), 0)


@eqx.filter_jit
def _variance(
    model: AbstractModel, params: PyTree, weights: Float[Array, " n"], ids: Int[Array, " rows"], wide: bool
) -> Float[Array, " rows"]:
    """Over draws, one at a time: nothing of size rows × draws is held."""

    def at(one: PyTree) -> Float[Array, " rows"]:
        return model.log_rows(cast_floats(one, jnp.float64) if wide else one, ids)

    pivot = at(jax.tree.map(lambda leaf: leaf[0], params))  # so that squares do not cancel

    def add(sums: tuple[Array, Array], draw: tuple[Array, PyTree]) -> tuple[tuple[Array, Array], None]:
        weight, one = draw
        values = at(one) - pivot
        return (sums[0] + weight * values, sums[1] + weight * values**2), None

    zero = jnp.zeros_like(pivot)
    (mean, square), _ = jax.lax.scan(add, (zero, zero), (weights, params))
    return square - mean**2


def _distances(
    model: AbstractModel, ids: Int[np.ndarray, " rows"], centre: Int[np.ndarray, ""] | int
) -> Float[np.ndarray, " rows"]:
    """Squared distance of every row from one of them, each column in its standard deviations, some at a time."""
    if is_streamed(model.data):
        raise UnsupportedModelError(
            "the model's data are a stream, whose rows are not all at hand to be compared with each other.",
            "choose a subgroup yourself: a site, a county, a class.",
        )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(model.data)]
    tabular = [leaf for leaf in leaves if leaf.dtype.kind in "biuf" and leaf.shape[:1] == model.present.shape]
    if not tabular:
        raise UnsupportedModelError(
            "no array of the model's data has all of its rows, so that none can be said to be near each other.",
            "choose a subgroup yourself: a site, a county, a class.",
        )
    total = np.zeros(len(ids))
    for leaf in tabular:
        columns = leaf.reshape(len(leaf), -1)
        for start in range(0, columns.shape[1], COLUMNS_AT_ONCE):
            some = columns[ids, start : start + COLUMNS_AT_ONCE].astype(np.float64)
            spread = some.std(axis=0)
            total += (((some - some[centre]) / np.where(spread > 0, spread, np.inf)) ** 2).sum(axis=1)
    return total
