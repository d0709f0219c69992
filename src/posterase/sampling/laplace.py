"""One draw of a small model's posterior of any of its rows, as a function that jax can batch.

The mode by Newton's method, a draw of the Gaussian that fits there, and Metropolis-adjusted Langevin steps, scaled by
that Gaussian, for what is not Gaussian. It holds matrices of parameters × parameters, and is for models of a few dozen
of them: hundreds of such refits run side by side where a chain each would take minutes.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.model.base import AbstractModel, with_rows
from posterase.runtime.checks import check_int
from posterase.runtime.precision import widest_float

SHORTER = (1.0, 0.5, 0.2, 0.05, 0.0)
"""Shares of a Newton step that are tried; the best is taken."""

LEAST_CURVATURE = 1e-6
"""As a share of the largest diagonal element: a pivot that is smaller, or negative, is taken for this."""


class LaplaceFit(eqx.Module):
    """`sampler(key, present)` → one draw of the posterior of the rows where the mask is true.

    Parameters
    ----------
    model
        The model, whose own removed rows stay removed.
    params
        Parameters of one draw, where Newton's method starts.
    newton_steps
        How many steps to the mode.
    langevin_steps
        How many Metropolis-adjusted steps from the Gaussian draw.
    """

    model: AbstractModel
    start: Float[Array, " d"]
    like: PyTree
    newton_steps: int = eqx.field(static=True)
    langevin_steps: int = eqx.field(static=True)

    def __init__(self, model: AbstractModel, params: PyTree, *, newton_steps: int = 15, langevin_steps: int = 30):
        check_int("newton_steps", newton_steps, 1)
        check_int("langevin_steps", langevin_steps, 0)
        self.model = model
        self.like = model.unconstrain(jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), widest_float()), params))
        self.start = ravel_pytree(self.like)[0]
        self.newton_steps, self.langevin_steps = newton_steps, langevin_steps

    def log_density(self, theta: Float[Array, " d"], present: Bool[Array, " rows"]) -> Float[Array, ""]:
        """log prior plus log-likelihood of the rows of the mask, at raveled unconstrained parameters."""
        rows = with_rows(self.model, self.model.data, present & self.model.present)
        return rows.log_density(ravel_pytree(self.like)[1](theta))

    def inverse_root(self, theta: Float[Array, " d"], present: Bool[Array, " rows"]) -> Float[Array, "d d"]:
        """R with R Rᵀ = H⁻¹, H = −∇² log density."""
        return inverse_root(-jax.hessian(self.log_density)(theta, present))

    def newton_step(self, theta: Float[Array, " d"], present: Bool[Array, " rows"]) -> Float[Array, " d"]:
        """H⁻¹ ∇ log density: what Newton's method adds."""
        root = self.inverse_root(theta, present)
        return root @ (root.T @ jax.grad(self.log_density)(theta, present))

    def mode(self, present: Bool[Array, " rows"]) -> Float[Array, " d"]:
        """Where the density of these rows is highest, from the starting point uphill."""

        def advance(theta: Float[Array, " d"], _: None) -> tuple[Float[Array, " d"], None]:
            step = self.newton_step(theta, present)
            tried = theta + jnp.asarray(SHORTER, theta.dtype)[:, None] * step
            heights = jax.vmap(lambda at: self.log_density(at, present))(tried)
            return tried[jnp.argmax(jnp.where(jnp.isfinite(heights), heights, -jnp.inf))], None

        return jax.lax.scan(advance, self.start, length=self.newton_steps)[0]

    def __call__(self, key: Key[Array, ""], present: Bool[Array, " rows"]) -> PyTree:
        """Parameters of one draw, on their own scale."""
        first, later = jax.random.split(key)
        mode = self.mode(present)
        root = self.inverse_root(mode, present)
        step = 1.65 * mode.shape[0] ** (-1 / 6)

        def slope(theta: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
            """The density, and half a Langevin step in the coordinates of the Gaussian."""
            height, gradient = jax.value_and_grad(self.log_density)(theta, present)
            return height, 0.5 * step**2 * (root.T @ gradient)

        def move(state: tuple[Array, Array, Array], key: Key[Array, ""]) -> tuple[tuple[Array, Array, Array], None]:
            theta, height, drift = state
            noise_key, coin = jax.random.split(key)
            noise = step * jax.random.normal(noise_key, theta.shape, theta.dtype)
            proposed = theta + root @ (drift + noise)
            new_height, new_drift = slope(proposed)
            back = -(drift + noise) - new_drift
            log_ratio = new_height - height + (noise @ noise - back @ back) / (2 * step**2)
            accepted = jnp.log(jax.random.uniform(coin, (), theta.dtype)) < log_ratio
            return jax.tree.map(
                lambda new, old: jnp.where(accepted, new, old), (proposed, new_height, new_drift), state
            ), None

        theta = mode + root @ jax.random.normal(first, mode.shape, mode.dtype)
        (theta, _, _), _ = jax.lax.scan(move, (theta, *slope(theta)), jax.random.split(later, self.langevin_steps))
        return self.model.constrain(ravel_pytree(self.like)[1](theta))


def inverse_root(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """R with R Rᵀ the inverse of a positive definite matrix, by elimination, in plain array operations.

    No call of LAPACK: XLA's CPU threads lock up on batches of those inside loops (jax 0.10: 64 eigenvalue problems of
    31 × 31 in a `lax.map`, waiting for ever), and a GPU runs them one after the other.
    """
    d = len(matrix)
    least = LEAST_CURVATURE * jnp.maximum(jnp.abs(jnp.diag(matrix)).max(), jnp.finfo(matrix.dtype).tiny)

    def eliminate(k: Int[Array, ""] | int, both: Float[Array, "d 2*d"]) -> Float[Array, "d 2*d"]:
        pivot = jnp.maximum(both[k, k], least)
        factors = jnp.where(jnp.arange(d) > k, both[:, k] / pivot, 0)
        return both - factors[:, None] * both[k]

    # [H | I] → [D Mᵀ⁻¹ | M] with M H Mᵀ = D diagonal, so that H⁻¹ = Mᵀ D⁻¹ M.
    both = jax.lax.fori_loop(0, d, eliminate, jnp.concatenate([matrix, jnp.eye(d, dtype=matrix.dtype)], axis=1))
    return both[:, d:].T / jnp.sqrt(jnp.maximum(jnp.diag(both), least))
