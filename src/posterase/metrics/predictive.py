"""What a classifier predicts: class probabilities over draws, errors, and how far two sets of draws differ in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from posterase.draws.draws import Draws
from posterase.errors import InvalidOptionError
from posterase.numerics.weights import Estimate
from posterase.runtime.checks import check_finite
from posterase.runtime.sharding import map_draws

FEWEST_PREDICTED, MOST_PREDICTED, MOST_PAIRS = 50, 500, 2**27
"""Draws are thinned before they predict, to numbers between these: as many as keep all pairs of them, over all rows, at
about the last."""

SUMS_TO_ONE = 1e-3
"""Probabilities in float32 may miss one by so much."""


def predict(
    predictor: Callable[[PyTree, PyTree], Float[Array, "rows outputs"]], draws: Draws, x: PyTree
) -> Float[np.ndarray, "draws rows outputs"]:
    """Class probabilities of every row, from `predictor(params, x)`, at evenly spaced draws."""
    draws = draws.resample(0)
    n = draws.n_chains * draws.n_draws
    places = np.linspace(0, n - 1, min(n, most_predicted(len(jax.tree.leaves(x)[0])))).astype(int)
    return check_probabilities(outputs(predictor, jax.tree.map(lambda leaf: leaf[places], draws.flat()), x))


def most_predicted(rows: int) -> int:
    """At how many draws to predict so many rows."""
    return int(np.clip(np.sqrt(MOST_PAIRS / max(rows, 1)), FEWEST_PREDICTED, MOST_PREDICTED))


def outputs(
    predictor: Callable[[PyTree, PyTree], Float[Array, "rows outputs"]], params: PyTree, x: PyTree
) -> Float[np.ndarray, "draws rows outputs"]:
    """What `predictor(params, x)` says of every row, for leaves shaped `(draws, …)`: probabilities or other numbers."""
    out = np.asarray(_outputs(predictor, params, x), np.float64)
    if out.ndim == 2:
        out = out[:, :, None]
    if out.ndim != 3 or not np.isfinite(out).all():
        raise InvalidOptionError(
            f"predictor returns an array of shape {out.shape[1:]}, or numbers that are not finite.",
            "return one row of numbers for each row of x.",
        )
    return out


def check_probabilities(
    probabilities: Float[np.ndarray, "draws rows classes"],
) -> Float[np.ndarray, "draws rows classes"]:
    """The same; refused where they are not probabilities of classes."""
    if (probabilities < 0).any() or np.abs(probabilities.sum(axis=-1) - 1).max() > SUMS_TO_ONE:
        raise InvalidOptionError(
            "predictor returns rows that are not probabilities: they are negative, or do not sum to one.",
            "return one row of class probabilities, summing to one, for each row of x (jax.nn.softmax).",
        )
    return probabilities


@eqx.filter_jit
def _outputs(predictor: Callable[[PyTree, PyTree], Array], params: PyTree, x: PyTree) -> Array:
    return map_draws(lambda one, predictor, x: predictor(one, x), params, shared=(predictor, x))


def error_rate(probabilities: Float[np.ndarray, "draws rows classes"], labels: Int[np.ndarray, " labels"]) -> float:
    """The share of rows that a draw puts into the wrong class, averaged over draws."""
    if probabilities.shape[1] != len(labels) or 0 in probabilities.shape:
        raise InvalidOptionError(
            f"there are {len(labels)} labels, and predictions of shape {probabilities.shape}.",
            "give (draws, rows, classes), and one label a row.",
        )
    return float(np.mean(probabilities.argmax(axis=-1) != labels))


def mean_loss(probabilities: Float[np.ndarray, "draws rows classes"], labels: Int[np.ndarray, " rows"]) -> float:
    """Mean −log probability of the true class, over rows and draws."""
    true = probabilities[:, np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(true, np.finfo(float).tiny)).mean())


def prediction_difference(one: ArrayLike | Sequence[Any], other: ArrayLike | Sequence[Any]) -> Estimate:
    """E ‖f_θ(x) − f_θ′(x)‖₁ over pairs of draws, one of each, and over rows (Section 5.2 of the paper).

    Predictions are shaped `(draws, rows, outputs)`. The error takes draws for independent; the mean over rows is over
    these very rows.
    """
    f, g = (check_finite(name, each, "draws rows outputs") for name, each in (("one", one), ("other", other)))
    if f.shape[1:] != g.shape[1:] or 0 in f.shape or 0 in g.shape:
        raise InvalidOptionError(
            f"predictions have the shapes {f.shape} and {g.shape}.", "give (draws, rows, outputs) of the same rows."
        )
    pairs = np.asarray(_differences(jnp.asarray(f), jnp.asarray(g)), np.float64)
    return Estimate(float(pairs.mean()), float(np.hypot(_error(pairs.mean(1)), _error(pairs.mean(0)))))


def mean_of(values: Float[np.ndarray, " n"]) -> Estimate:
    """The mean of independent numbers, with its standard error."""
    return Estimate(float(values.mean()), _error(values))


def _error(values: Float[np.ndarray, " n"]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


@jax.jit
def _differences(one: Float[Array, "n rows outputs"], other: Float[Array, "m rows outputs"]) -> Float[Array, "n m"]:
    """For every pair of draws, the mean over rows."""
    against = jax.vmap(lambda a, b: jnp.abs(a - b).sum(axis=-1).mean(), in_axes=(None, 0))
    return map_draws(against, one, shared=(other,))
