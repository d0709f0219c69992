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

COMPONENTS = 400

NEIGHBOURS, NEIGHBOURS_PER_DIMENSION = 20, 10
"""How many of the nearest draws a component's covariance is of."""

LEAST_SHARE = 1e-6
"""Of the variance of all draws: no component is narrower in any direction, lest rounding makes it singular."""


class LocalMixture(NamedTuple):
    """A mixture of Gaussians with equal probabilities."""

    centres: Float[np.ndarray, "k d"]
    roots: Float[np.ndarray, "k d d"]
    """Cholesky factors of the covariances."""

    def draw(self, random: np.random.Generator, count: int) -> Float[np.ndarray, "count d"]:
        """Independent draws."""
        which = random.integers(len(self.centres), size=count)
        noise = random.standard_normal((count, self.centres.shape[1]))
        return self.centres[which] + np.einsum("nij,nj->ni", self.roots[which], noise)

    def log_density(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """log q, up to a constant."""
        inverses = np.linalg.inv(self.roots)
        standard = inverses @ points.T - (inverses @ self.centres[..., None])
        log_widths = np.log(np.diagonal(self.roots, axis1=1, axis2=2)).sum(axis=1)
        exponents = -0.5 * (standard**2).sum(axis=1) - log_widths[:, None]
        highest = exponents.max(axis=0)
        return highest + np.log(np.exp(exponents - highest).sum(axis=0))


def fit_local_mixture(random: np.random.Generator, draws: Float[np.ndarray, "n d"]) -> LocalMixture | None:
    """Fit a local mixture to draws; None where there are too few different ones.

    Parameters
    ----------
    random
        Picks the centres.
    draws
        Copies count once.
    """
    draws = np.unique(draws[np.isfinite(draws).all(axis=1)], axis=0)
    n, d = draws.shape
    neighbours = NEIGHBOURS + NEIGHBOURS_PER_DIMENSION * d
    if n < 2 * neighbours:
        return None
    centres = draws[random.choice(n, min(COMPONENTS, n), replace=False)]
    distances = (centres**2).sum(axis=1)[:, None] - 2 * centres @ draws.T + (draws**2).sum(axis=1)
    nearest = draws[np.argpartition(distances, neighbours, axis=1)[:, :neighbours]]
    centred = nearest - nearest.mean(axis=1, keepdims=True)
    covariances = np.swapaxes(centred, 1, 2) @ centred / neighbours
    covariances += LEAST_SHARE * np.diag(np.maximum(draws.var(axis=0), math.ulp(1.0)))
    return LocalMixture(centres, np.linalg.cholesky(covariances))
