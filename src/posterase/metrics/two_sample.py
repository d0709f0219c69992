"""Classifier two-sample test: can a classifier tell erased draws from a refit's?

A logistic regression is trained on half of both samples and scored on the other half, then the other way round. Its
features are the parameters, their squares, and squares along random directions, so that it sees means, spreads and
correlations; of more than 256 parameters, as many random combinations of them. Where both samples have one law its
accuracy on n independent draws of each is ½ with standard error ½/√(2n). Draws of a chain, and draws with weights, are
not independent: `two_sample` thins both sets to as many draws as are effective for the worst parameter of either.

References
----------
Lopez-Paz & Oquab (2017), Revisiting classifier two-sample tests, ICLR.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.special import ndtr

from posterase.draws.draws import Draws, systematic
from posterase.errors import DrawsShapeError
from posterase.numerics.failures import entry_point
from posterase.numerics.weights import parameter_ess
from posterase.runtime.prng import as_key

DIRECTIONS = 32
"""Random directions along which squares are looked at."""

RIDGE = 1.0
"""Prior precision of the classifier's coefficients, on standardised features."""

MOST_COLUMNS = 256
"""More parameters than this are looked at along as many random directions: the classifier solves for its weights."""

NEWTON_STEPS = 12
FEWEST = 20


class TwoSample(NamedTuple):
    """How well a classifier tells two samples apart."""

    accuracy: float
    """On draws that it was not trained on: ½ where it cannot."""
    error: float
    """Standard error of the accuracy under the null."""
    p_value: float
    """The chance of such an accuracy, or a better one, where both samples have one law."""

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.3f} ± {self.error:.3f} (p = {self.p_value:.2g})"


@entry_point
def two_sample(key: Key[Array, ""] | int, one: Draws, other: Draws) -> TwoSample:
    """Tell two sets of draws of the same parameters apart, thinned to the effective draws that there are."""
    if one.names != other.names:
        raise DrawsShapeError(
            f"the draws have other parameters: {', '.join(one.names)} and {', '.join(other.names)}.",
            "compare draws of the same model.",
        )
    first, second, run = jax.random.split(as_key(key), 3)
    columns = [draws.matrix() for draws in (one, other)]
    if columns[0].shape[1] != columns[1].shape[1]:
        raise DrawsShapeError(
            f"the draws have {columns[0].shape[1]} and {columns[1].shape[1]} numbers each.",
            "compare draws of the same model.",
        )
    effective = min(min(parameter_ess(draws).values()) for draws in (one, other))
    samples = []
    for draws, values, k in ((one, columns[0], first), (other, columns[1], second)):
        size = max(min(len(values), int(effective)), min(len(values), FEWEST))
        places = systematic(k, draws.weights.ravel(), size)  # evenly spaced where weights are equal
        samples.append(values[np.asarray(places)])
    return tell_apart(run, *samples)


def tell_apart(key: Key[Array, ""] | int, one: Float[np.ndarray, "n d"], other: Float[np.ndarray, "m e"]) -> TwoSample:
    """The test on two arrays, one row a draw; the larger is cut to the size of the smaller at random."""
    if one.shape[1:] != other.shape[1:] or not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise DrawsShapeError(
            f"the draws are {one.shape} and {other.shape}, or not all numbers.", "give draws of the same model, finite."
        )
    n = min(len(one), len(other)) // 2 * 2
    if n < FEWEST:
        raise DrawsShapeError(f"there are {n} draws to compare.", f"a classifier needs {FEWEST} of each at least.")
    keys = jax.random.split(as_key(key), 3)
    rows = [
        np.asarray(sample, np.float64)[np.asarray(jax.random.permutation(k, len(sample))[:n])]
        for sample, k in zip((one, other), keys, strict=False)
    ]
    pooled = np.concatenate(rows)
    spread = pooled.std(axis=0)
    pooled = (pooled - pooled.mean(axis=0)) / np.where(spread > 0, spread, 1)
    project, direct = jax.random.split(keys[2])
    if pooled.shape[1] > MOST_COLUMNS:
        mixed = np.asarray(jax.random.normal(project, (pooled.shape[1], MOST_COLUMNS)), np.float64)
        pooled = pooled @ (mixed / np.linalg.norm(mixed, axis=0))
    directions = np.asarray(jax.random.normal(direct, (pooled.shape[1], DIRECTIONS)))
    features = np.concatenate(
        [pooled, pooled**2, (pooled @ (directions / np.linalg.norm(directions, axis=0))) ** 2], axis=1
    )
    deviation = features.std(axis=0)
    features = (features - features.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    features = np.column_stack([np.ones(len(features)), features]).reshape(2, 2, n // 2, -1)
    labels = np.broadcast_to(np.array([0.0, 1.0])[:, None, None], (2, 2, n // 2))
    halves = np.swapaxes(features, 0, 1).reshape(2, n, -1), np.swapaxes(labels, 0, 1).reshape(2, n)
    accuracy = float(_accuracy(*(jnp.asarray(each) for each in halves)))
    error = 0.5 / np.sqrt(2 * n)
    return TwoSample(accuracy, float(error), float(ndtr((0.5 - accuracy) / error)))


@jax.jit
def _accuracy(features: Float[Array, "2 n k"], labels: Float[Array, "2 n"]) -> Float[Array, ""]:
    """Trained on one half and scored on the other, both ways."""

    def train(x: Float[Array, "n k"], y: Float[Array, " n"]) -> Float[Array, " k"]:
        def newton(coefficients: Float[Array, " k"], _: None) -> tuple[Float[Array, " k"], None]:
            p = jax.nn.sigmoid(x @ coefficients)
            curvature = (x * (p * (1 - p) + 1e-3)[:, None]).T @ x + RIDGE * jnp.eye(x.shape[1], dtype=x.dtype)
            return coefficients + jnp.linalg.solve(curvature, x.T @ (y - p) - RIDGE * coefficients), None

        return jax.lax.scan(newton, jnp.zeros(x.shape[1], x.dtype), length=NEWTON_STEPS)[0]

    fitted = jax.vmap(train)(features, labels)
    scores = jnp.einsum("fnk,fk->fn", features, fitted[::-1])
    return jnp.mean((scores > 0) == (labels > 0.5))
