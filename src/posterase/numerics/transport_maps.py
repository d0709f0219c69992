"""Affine maps θ ↦ m′ + A(θ − m) of draws, how they start, and how weights refine them.

**Start.** With P and P′ the curvatures of the full and of the kept posterior, P⁻¹ = LLᵀ and M = (LᵀP′L)⁻¹,

    A = L M^½ L⁻¹,        m′ = m − P′⁻¹ E∇removed                        (exact for a Gaussian)

so that A takes covariance P⁻¹ to P′⁻¹ and moves no draw farther than it must. Where d × d matrices are too large, P is
diagonal and P − P′, the curvature of the removed rows, is replaced by its largest eigenvalues.

**Refinement** (moment matching; Paananen, Piironen, Bürkner, Vehtari 2021, Implicitly adaptive importance sampling,
Statistics and Computing 31). The weighted mean and covariance of the moved draws are what their plain ones should be:
the map is followed by the affine map that makes them so. Both are noisy, so they are shrunk: in units of the moved
draws' spread a mean shift s over d dimensions by |s|²/(|s|² + d/ESS), a covariance towards what it was by
ESS/(ESS + d).

All of it in float64 on the host: it is linear algebra of the size of the draws, not of the data.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

MATRICES_UP_TO = 500
"""Parameters up to which curvatures and covariances are matrices."""

LARGEST_LOSS = 1 - 1e-8
"""A direction that seems to lose more than this share of its curvature keeps the rest: it would be rounding."""

Matrix = Any
Vector = Any
Rows = Any
"""Arrays (d, d), (d,) and (n, d): numpy's in the fit, jax's inside compiled code; with one more axis for two maps."""


class AffineMap(eqx.Module):
    """θ ↦ target + A(θ − centre), for rows of draws."""

    centre: eqx.AbstractVar[Vector]
    target: eqx.AbstractVar[Vector]
    log_det: eqx.AbstractVar[Any]
    """log |det A|, a number."""

    @abc.abstractmethod
    def linear(self, rows: Rows) -> Rows:
        """A applied to each row."""

    @abc.abstractmethod
    def inverse_linear(self, rows: Rows) -> Rows:
        """A⁻¹ applied to each row."""

    def forward(self, rows: Rows) -> Rows:
        """Rows moved."""
        return self.target + self.linear(rows - self.centre)

    def inverse(self, rows: Rows) -> Rows:
        """Rows moved back."""
        return self.centre + self.inverse_linear(rows - self.target)


class DenseMap(AffineMap):
    """A as a matrix, and its inverse."""

    centre: Vector
    target: Vector
    matrix: Matrix
    inverse_matrix: Matrix
    log_det: Any

    def linear(self, rows: Rows) -> Rows:
        return rows @ self.matrix.T

    def inverse_linear(self, rows: Rows) -> Rows:
        return rows @ self.inverse_matrix.T


class LowRankMap(AffineMap):
    """A = diag(after) (I + U diag(gains) Uᵀ) diag(before)⁻¹, the columns of U orthonormal."""

    centre: Vector
    target: Vector
    before: Vector
    after: Vector
    basis: Matrix
    gains: Vector
    log_det: Any

    def linear(self, rows: Rows) -> Rows:
        white = rows / self.before
        return (white + (white @ self.basis * self.gains) @ self.basis.T) * self.after

    def inverse_linear(self, rows: Rows) -> Rows:
        white = rows / self.after
        return (white - (white @ self.basis * (self.gains / (1 + self.gains))) @ self.basis.T) * self.before


def moments(rows: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]) -> tuple[Vector, Matrix]:
    """Weighted mean and covariance; raises `LinAlgError` where all weight is on one row."""
    mean = weights @ rows
    centred = rows - mean
    left = 1 - (weights**2).sum()
    if not left > np.finfo(float).eps:
        raise np.linalg.LinAlgError("one row has all the weight")
    return mean, (centred * weights[:, None]).T @ centred / left


def curvature_map(centre: Vector, target: Vector, full: Matrix, kept: Matrix) -> DenseMap:
    """The map that takes covariance full⁻¹ to kept⁻¹; raises `LinAlgError` where `full` is not positive definite."""
    unroot = np.linalg.cholesky(full).T  # L⁻¹
    root = np.linalg.inv(unroot)
    left, vectors = np.linalg.eigh(root.T @ kept @ root)
    stretch = 1 / np.sqrt(np.maximum(left, 1 - LARGEST_LOSS))
    return DenseMap(
        centre=centre,
        target=target,
        matrix=root @ (vectors * stretch) @ vectors.T @ unroot,
        inverse_matrix=root @ (vectors / stretch) @ vectors.T @ unroot,
        log_det=float(np.log(stretch).sum()),
    )


def low_rank_map(
    mean: Vector, scales: Vector, shift: Vector, losses: Float[np.ndarray, " r"], basis: Float[np.ndarray, "d r"]
) -> LowRankMap:
    """The map where matrices are too large: a shift, and the removed rows' largest curvatures, in such units."""
    gains = 1 / np.sqrt(1 - np.minimum(losses, LARGEST_LOSS)) - 1
    return LowRankMap(
        centre=mean,
        target=mean + shift,
        before=scales,
        after=scales,
        basis=basis,
        gains=gains,
        log_det=float(np.log1p(gains).sum()),
    )


def matched(
    current: AffineMap,
    moved: Float[np.ndarray, "n d"],
    base: Float[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    ess: float,
) -> AffineMap:
    """`current` followed by the map that gives the moved draws their weighted mean and (co)variance, shrunk."""
    d = moved.shape[1]
    trust = ess / (ess + d)
    if isinstance(current, LowRankMap):
        mean, variance = base @ moved, base @ (moved - base @ moved) ** 2
        wanted_mean = weights @ moved
        wanted = weights @ (moved - wanted_mean) ** 2
        step = (wanted_mean - mean) / np.sqrt(variance)
        ratio = np.sqrt(trust * wanted / variance + 1 - trust)
        # The new map sends the draws' mean to the new target: what was at `mean` lands there.
        target = mean + np.sqrt(variance) * _shrunk(step, ess) + ratio * (current.target - mean)
        after, log_det = ratio * current.after, float(current.log_det + np.log(ratio).sum())
        return eqx.tree_at(lambda one: (one.target, one.after, one.log_det), current, (target, after, log_det))
    assert isinstance(current, DenseMap)
    mean, covariance = moments(moved, base)
    root = np.linalg.cholesky(covariance)
    unroot = np.linalg.inv(root)
    wanted_mean, wanted = moments((moved - mean) @ unroot.T, weights)
    values, vectors = np.linalg.eigh(trust * wanted + (1 - trust) * np.eye(d))
    stretch = np.sqrt(values)
    after = root @ (vectors * stretch) @ vectors.T @ unroot
    before = root @ (vectors / stretch) @ vectors.T @ unroot
    target = mean + root @ _shrunk(wanted_mean, ess) + after @ (current.target - mean)
    return DenseMap(
        centre=current.centre,
        target=target,
        matrix=after @ current.matrix,
        inverse_matrix=current.inverse_matrix @ before,
        log_det=float(current.log_det + np.log(stretch).sum()),
    )


def _shrunk(step: Vector, ess: float) -> Vector:
    length = float(step @ step)
    return step * (length / (length + len(step) / ess)) if length > 0 else step
