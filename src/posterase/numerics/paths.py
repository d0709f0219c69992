"""The path from where draws are to where they should be, and how long a step along it may be.

    log p_λ = (1 − λ) start + λ kept,        λ: 0 → 1

`start` is the density that the draws have: that of all rows, full, for untouched draws, so that log p_λ = kept −
(1 − λ) log_ratio; full(T⁻¹θ) − log |det A| for draws moved by an affine map T. The weights of a step from λ to λ′ are
(λ′ − λ)(kept − start), at the draws of p_λ.

The paper's Appendix A walks the same path with τ = −λ; its shift is one Euler step from one end to the other.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.transport_maps import AffineMap
from posterase.numerics.weights import log_sum_exp

BISECTIONS = 50


class Path(eqx.Module):
    """log p_λ as a function of raveled unconstrained parameters."""

    model: AbstractModel
    kept: AbstractModel
    change: Change
    moved_by: AffineMap | None
    """The map that the draws were moved by; None: untouched draws."""
    at: Float[Array, ""]
    """λ."""
    like: PyTree
    ended: bool = eqx.field(static=True)
    """Whether λ is 1: then the start need not be evaluated."""

    def __call__(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        unravel = ravel_pytree(self.like)[1]
        kept = LogDensity(self.kept)(unravel(theta))
        if self.ended:
            return kept
        if self.moved_by is None:
            return kept - (1 - self.at) * LogRatio(self.model, self.change)(unravel(theta))
        back = jnp.asarray(self.moved_by.inverse(theta[None])[0], theta.dtype)
        return self.at * kept + (1 - self.at) * LogDensity(self.model)(unravel(back))

    @property
    def elements(self) -> int:
        """How many numbers of data one evaluation holds in memory."""
        return LogDensity(self.model).elements


def next_step(
    log_ratios: Float[np.ndarray, " n"], log_weights: Float[np.ndarray, " n"], at: float, share: float
) -> float:
    """The farthest λ′ at which the weights keep this share of the effective draws that there are at λ; at most 1.

    `log_ratios` is kept − start at draws of p_λ, `log_weights` what these draws weigh already.
    """

    def effective(to: float) -> float:
        values = log_weights + np.where(np.isfinite(log_weights), (to - at) * log_ratios, 0)
        return float(np.exp(2 * log_sum_exp(values) - log_sum_exp(2 * values)))

    wanted = share * effective(at)
    if effective(1.0) >= wanted:
        return 1.0
    low, high = at, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= wanted else (low, middle)
    return low
