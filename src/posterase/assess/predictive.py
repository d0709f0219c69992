"""What a classifier predicts: class probabilities over draws, errors, and how far two sets of draws differ in them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from posterase.draws import Draws
from posterase.errors import InvalidOptionError

MOST_DRAWS = 50
"""Draws are thinned to at most so many before they predict."""


def predict(
    predictor: Callable[[PyTree, PyTree], Float[Array, "rows classes"]], draws: Draws, x: PyTree
) -> Float[np.ndarray, "draws rows classes"]:
    """Class probabilities of every row, from `predictor(params, x)`, at evenly spaced draws."""
    draws = draws if draws.log_weights is None else draws.resample(0)
    n = draws.n_chains * draws.n_draws
    places = np.linspace(0, n - 1, min(n, MOST_DRAWS)).astype(int)
    chosen = jax.tree.map(lambda leaf: leaf[places], draws.flat())
    out = np.asarray(jax.lax.map(lambda params: predictor(params, x), chosen), np.float64)
    if out.ndim != 3 or not np.isfinite(out).all() or (out < 0).any() or np.abs(out.sum(axis=-1) - 1).max() > 1e-3:
        raise InvalidOptionError(
            f"predict returns an array of shape {out.shape[1:]} that are not probabilities.",
            "return one row of class probabilities, summing to one, for each row of x (jax.nn.softmax).",
        )
    return out


def error_rate(probabilities: Float[np.ndarray, "draws rows classes"], labels: Int[np.ndarray, " rows"]) -> float:
    """The share of rows that a draw puts into the wrong class, averaged over draws."""
    return float(np.mean(probabilities.argmax(axis=-1) != labels))


def mean_loss(probabilities: Float[np.ndarray, "draws rows classes"], labels: Int[np.ndarray, " rows"]) -> float:
    """Mean −log probability of the true class, over rows and draws."""
    true = probabilities[:, np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(true, np.finfo(float).tiny)).mean())


def prediction_difference(
    one: Float[np.ndarray, "draws rows classes"], other: Float[np.ndarray, "others rows classes"]
) -> float:
    """E ‖f_θ(x) − f_θ′(x)‖₁ over pairs of draws, one of each, and over rows (Section 5.2 of the paper)."""

    def against(probabilities: Float[Array, "rows classes"]) -> Float[Array, ""]:
        return jnp.abs(probabilities - jnp.asarray(other)).sum(axis=-1).mean()

    return float(jax.lax.map(against, jnp.asarray(one)).mean())
