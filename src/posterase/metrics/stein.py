"""Kernel Stein discrepancy: how far draws are from the kept posterior, with no refit to compare with.

With scores s(θ) = ∇ log kept(θ), the inverse multiquadric k = (c² + ‖x − y‖²)^(−½) and r = x − y,

    u(x, y) = k s(x)·s(y) + k³ (s(x) − s(y))·r + d k³ − 3 ‖r‖² k⁵

has mean zero over pairs of draws of the kept posterior, and a positive one over pairs of any other law. The mean over
pairs of different draws is KSD², which can come out below zero by chance. Its p-value is that of a wild bootstrap whose
signs are shared by neighbours in a chain, so that autocorrelation is in it.

**What it does not see**: how much weight separated modes have. Scores say where a mode is and how wide, not how much of
the posterior it holds. Compare with refits where there are several modes.

References
----------
Gorham & Mackey (2017), Measuring sample quality with kernels, ICML. Chwialkowski, Strathmann, Gretton (2016), A kernel
test of goodness of fit, ICML.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key

from posterase.errors import DrawsShapeError
from posterase.numerics.weights import Estimate
from posterase.runtime.checks import check_finite
from posterase.runtime.prng import as_key
from posterase.runtime.sharding import map_draws

BLIND = "it does not see how much weight separated modes have"

REPEATS, COUNTED = 1000, 10
"""Bootstrap samples; and how many of them must lie beyond a value for their share to be a p-value."""

DRAWS_A_PARAMETER, LEAST_VARIANCE = 5, 1e-8
"""So many draws for each parameter are needed to know correlations; no direction has less than this share."""

ROWS_AT_ONCE = 256
FOR_THE_MEDIAN = 500
"""Draws from whose distances the median is taken."""


class Stein(NamedTuple):
    """KSD² and whether chance explains it."""

    squared: Estimate
    """Mean of the Stein kernel over pairs of draws, zero for draws of the target; its error."""
    p_value: float
    """The chance of such a value, or a larger one, for draws of the target."""
    scale: float
    """c of the kernel."""

    def __str__(self) -> str:
        return f"KSD² {self.squared} (p = {self.p_value:.2g}); {BLIND}"


class Whitened(NamedTuple):
    """Coordinates in which draws have unit spread; without correlations too, where there are draws enough to know them.

    A kernel that knows one distance sees little of a posterior that is a thousand times longer one way than another.
    """

    spread: Float[np.ndarray, " d"]
    root: Float[np.ndarray, "d d"] | None
    """Of the correlations: θ = spread · root u. None: θ = spread · u."""

    @classmethod
    def of(cls, thetas: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]) -> Whitened:
        """Of weighted draws."""
        mean = weights @ thetas
        spread = np.sqrt(weights @ (thetas - mean) ** 2)
        spread = np.where(spread > 0, spread, 1.0)
        if len(thetas) <= DRAWS_A_PARAMETER * thetas.shape[1]:
            return cls(spread, None)
        centred = (thetas - mean) / spread
        values, vectors = np.linalg.eigh((centred.T * weights) @ centred)
        return cls(spread, vectors * np.sqrt(np.maximum(values, LEAST_VARIANCE)))

    def points(self, thetas: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Draws in these coordinates."""
        scaled = thetas / self.spread
        return scaled if self.root is None else scaled @ np.linalg.inv(self.root).T

    def scores(self, gradients: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Gradients with respect to θ as gradients with respect to these coordinates."""
        scaled = gradients * self.spread
        return scaled if self.root is None else scaled @ self.root


def kernel_stein(
    key: Key[Array, ""] | int,
    points: ArrayLike | Sequence[Any],
    scores: ArrayLike | Sequence[Any],
    *,
    weights: Float[np.ndarray, " k"] | None = None,
    groups: Int[np.ndarray, " n"] | None = None,
    scale: float | None = None,
) -> Stein:
    """KSD² of (weighted) draws, given the gradients of the target's log density at them.

    Parameters
    ----------
    key
        A seed or a jax key, for the bootstrap.
    points, scores
        Unconstrained draws, and ∇ log density of the target there. Bring the coordinates to like scales first.
    weights
        Of the draws, summing to one; None: equal.
    groups
        Draws of one group may depend on each other; None: all independent.
    scale
        c of the kernel. None: the median distance between draws.
    """
    points, scores = (
        np.asarray(check_finite(name, each, "draws parameters"), np.float64)
        for name, each in (("points", points), ("scores", scores))
    )
    n = len(points)
    if n < 3:
        raise DrawsShapeError(f"there are {n} draws.", "the discrepancy is a mean over pairs: give some hundred.")
    if points.shape != scores.shape:
        raise DrawsShapeError(f"there are draws {points.shape} and scores {scores.shape}.", "give one score a number.")
    share = np.full(n, 1 / n) if weights is None else np.asarray(weights, np.float64)
    if share.shape != (n,) or not (share >= 0).all() or abs(share.sum() - 1) > 1e-6:
        raise DrawsShapeError("weights are no weights.", "give one a draw, not negative, summing to one.")
    if share.max() > 0.5:
        raise DrawsShapeError(
            f"one draw has {share.max():.0%} of all weight.", "there are no pairs to average over: use more draws."
        )
    if scale is None:
        scale = median_distance(points)
    if not scale > 0:
        raise DrawsShapeError("all draws are equal.", "a sampler that stands still has no distances.")
    found = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    signs = np.asarray(jax.random.rademacher(as_key(key), (int(found.max()) + 1, REPEATS)), np.float64)[found]
    with jax.enable_x64(True):
        sums, diagonal, bootstrap = (
            np.asarray(each, np.float64) for each in _stein(*map(jnp.asarray, (points, scores, share, signs)), scale)
        )
    pairs = 1 - np.sum(share**2)
    own = share**2 * diagonal
    value = (share @ sums - own.sum()) / pairs
    null = (bootstrap - own.sum()) / pairs
    # Left out one group at a time, to first order: twice its share of the sum over pairs.
    by_group = np.bincount(found, weights=2 * (share * sums - own) / pairs - 2 * share * value)
    count = len(by_group)
    jackknife = np.sum((by_group - by_group.mean()) ** 2) * count / max(count - 1, 1)
    # It has twice what the noise of pairs adds; where that is all there is, as under the null, the bootstrap has it.
    error = float(np.sqrt(max(jackknife - null.var(), null.var())))
    return Stein(Estimate(float(value), error), _tail(null, float(value)), float(scale))


def median_distance(points: Float[np.ndarray, "n d"]) -> float:
    """Between some of the draws, evenly spaced."""
    some = points[np.linspace(0, len(points) - 1, min(len(points), FOR_THE_MEDIAN)).astype(int)]
    squares = np.sum(some**2, axis=1)
    distances = squares[:, None] + squares - 2 * some @ some.T
    return float(np.sqrt(max(np.median(distances[np.triu_indices(len(some), 1)]), 0)))


def _tail(null: Float[np.ndarray, " b"], value: float) -> float:
    """The share of the bootstrap at least as large; where too few are, the tail of a Pearson III with its moments."""
    beyond = int(np.sum(null >= value))
    if beyond >= COUNTED:
        return (1 + beyond) / (1 + len(null))
    centre, spread = null.mean(), null.std()
    if not spread > 0:
        return 1.0
    asymmetry = np.mean(((null - centre) / spread) ** 3)
    from scipy.stats import pearson3  # takes a second to import

    return float(min(pearson3.sf((value - centre) / spread, max(asymmetry, 0.0)), COUNTED / len(null)))


@jax.jit
def _stein(
    points: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
    signs: Float[Array, "n b"],
    scale: Float[Array, ""] | float,
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " b"]]:
    """Σⱼ wⱼ u(i, j) for every i; u(i, i); Σᵢⱼ wᵢ wⱼ εᵢ εⱼ u(i, j) for every set of signs. A block of rows at a time."""
    n, d = points.shape
    centred = points - weights @ points
    squares, inner = jnp.sum(centred**2, axis=1), jnp.sum(scores * centred, axis=1)
    shared = centred, scores, weights, signs, squares, inner, scale

    def block(rows: Int[Array, " b"], *shared: Any) -> tuple[Array, Array, Array]:
        centred, scores, weights, signs, squares, inner, scale = shared
        x, s = centred[rows], scores[rows]
        distances = jnp.maximum(squares[rows][:, None] + squares - 2 * x @ centred.T, 0)
        distances = jnp.where(rows[:, None] == jnp.arange(n), 0, distances)
        kernel = (scale**2 + distances) ** -0.5
        along = inner[rows][:, None] - s @ centred.T - x @ scores.T + inner
        u = kernel * (s @ scores.T) + kernel**3 * (along + d) - 3 * distances * kernel**5
        signed = u @ (weights[:, None] * signs)
        counted = (weights[rows][:, None] * signs[rows] * signed).sum(axis=0)
        return u @ weights, u[jnp.arange(len(rows)), rows], counted

    size = min(n, ROWS_AT_ONCE)
    full = n // size * size
    sums, diagonal, counted = map_draws(block, jnp.arange(full).reshape(-1, size), shared=shared)
    last = block(jnp.arange(full, n), *shared)
    return (
        jnp.concatenate([sums.ravel(), last[0]]),
        jnp.concatenate([diagonal.ravel(), last[1]]),
        counted.sum(axis=0) + last[2],
    )
