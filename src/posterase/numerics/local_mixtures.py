r"""Local mixtures: a density in few dimensions that follows draws wherever they are, along bends and thin arms too.

    q(θ) = 1/k Σᵢ N(θ; cᵢ, Σᵢ)

The centres cᵢ are some of the draws, and Σᵢ is the covariance of the draws nearest to cᵢ, so that components are narrow
where the draws are. Proposals from q lead from anywhere to anywhere in one step. Moves of one step size do not get into
an arm that is much narrower than the rest, nor out of it.

References
----------
Terrell, Scott (1992), Variable kernel density estimation, Annals of Statistics 20. Givens, Raftery (1996), Local
adaptive importance sampling for multivariate densities, JASA 91.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MOST_DIMENSIONS = 8
"""In more dimensions the nearest draws are no longer near."""

COMPONENTS = 200

MOST_POINTS = 4000
"""Draws that a mixture is fitted to."""

NEIGHBOURS, NEIGHBOURS_PER_DIMENSION = 20, 10
"""How many of the nearest draws a component's covariance is of."""

LEAST_SHARE = 1e-6
"""Of the variance of all draws: no component is narrower in any direction, lest rounding makes it singular."""

AT_ONCE = 10_000
"""Points at which the density is evaluated at once, which bounds the memory needed."""


class LocalMixture(NamedTuple):
    """A mixture of Gaussians with equal probabilities."""

    centres: Float[np.ndarray, "k d"]
    roots: Float[np.ndarray, "k d d"]
    """Cholesky factors of the covariances."""
    coefficients: Float[np.ndarray, "features k"]
    """The log density of each component is linear in squares, products and values of coordinates, and a constant."""

    @classmethod
    def of(cls, centres: Float[np.ndarray, "k d"], covariances: Float[np.ndarray, "k d d"]) -> LocalMixture:
        """From the means and covariances of the components."""
        roots, precisions = np.linalg.cholesky(covariances), np.linalg.inv(covariances)
        slopes = np.einsum("kij,kj->ki", precisions, centres)
        constants = -0.5 * (slopes * centres).sum(axis=1) - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        quadratic = -0.5 * precisions.reshape(len(centres), -1)
        return cls(centres, roots, np.concatenate([quadratic, slopes, constants[:, None]], axis=1).T)

    def draw(self, random: np.random.Generator, count: int) -> Float[np.ndarray, "count d"]:
        """Independent draws."""
        which = random.integers(len(self.centres), size=count)
        noise = random.standard_normal((count, self.centres.shape[1]))
        return self.centres[which] + np.einsum("nij,nj->ni", self.roots[which], noise)

    def log_density(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """log q, up to a constant."""
        parts = np.array_split(points, -(-len(points) // AT_ONCE) or 1)
        return np.concatenate([self._log_density(part) for part in parts])

    def _log_density(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        products = (points[:, :, None] * points[:, None]).reshape(len(points), points.shape[1] ** 2)
        exponents = np.concatenate([products, points, np.ones((len(points), 1))], axis=1) @ self.coefficients
        highest = exponents.max(axis=1, initial=-np.inf)
        return highest + np.log(np.exp(exponents - highest[:, None]).sum(axis=1))


def fit_local_mixture(random: np.random.Generator, draws: Float[np.ndarray, "n d"]) -> LocalMixture | None:
    """Fit a local mixture to draws; None where there are too few different ones.

    Parameters
    ----------
    random
        Picks the centres.
    draws
        In coordinates in which their variances are about one. Copies count once.
    """
    draws = draws[np.isfinite(draws).all(axis=1)]
    draws = np.unique(draws[random.permutation(len(draws))[:MOST_POINTS]], axis=0)
    n, d = draws.shape
    neighbours = NEIGHBOURS + NEIGHBOURS_PER_DIMENSION * d
    if n < 2 * neighbours:
        return None
    low, high = np.quantile(draws, [0.25, 0.75], axis=0)
    near = draws / np.where(high > low, high - low, 1.0)  # of their bulk: outliers would hide it
    chosen = random.choice(n, min(COMPONENTS, n), replace=False)
    distances = (near**2).sum(axis=1) - 2 * near[chosen] @ near.T
    nearest = draws[np.argpartition(distances, neighbours, axis=1)[:, :neighbours]]
    centred = nearest - nearest.mean(axis=1, keepdims=True)
    covariances = np.swapaxes(centred, 1, 2) @ centred / neighbours
    covariances += LEAST_SHARE * np.diag(np.maximum(draws.var(axis=0), math.ulp(1.0)))
    try:
        return LocalMixture.of(draws[chosen], covariances)
    except np.linalg.LinAlgError:  # parameters that determine each other
        return None
