"""Curvature of a log density, averaged over draws, as a linear operator.

    H = −E ∇² log p(θ),    H v = −E (d/dt) ∇ log p(θ + t v) at t = 0      (forward over reverse: no d × d array)

H is symmetric, and positive definite near a mode; far from one, and in a network, it need not be.
"""

from __future__ import annotations

import equinox as eqx
import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from posterase.numerics.densities import Density, expectation


class Curvature(eqx.Module):
    """−E ∇² of a log density over weighted draws, on raveled unconstrained parameters."""

    density: Density
    thetas: Float[Array, "n d"]
    weights: Float[Array, " n"]
    like: PyTree
    """Parameters of one draw, for the structure."""

    @property
    def size(self) -> int:
        """d, the number of unconstrained parameters."""
        return self.thetas.shape[1]

    def mv(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        """H v."""

        def product(theta: Float[Array, " d"]) -> Float[Array, " d"]:
            return -jax.jvp(self._gradient, (theta,), (vector,))[1]

        return expectation(product, self.thetas, self.weights, self.density.elements)

    def dense(self) -> Float[Array, "d d"]:
        """H as a matrix, for d small enough; symmetrised, since rounding is not."""

        def hessian(theta: Float[Array, " d"]) -> Float[Array, "d d"]:
            return -jax.jacfwd(self._gradient)(theta)

        matrix = expectation(hessian, self.thetas, self.weights, self.density.elements * self.size)
        return (matrix + matrix.T) / 2

    def _gradient(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        return gradient(self.density, theta, self.like)


def gradient(density: Density, theta: Float[Array, " d"], like: PyTree) -> Float[Array, " d"]:
    """∇ of a log density at raveled unconstrained parameters."""
    unravel = ravel_pytree(like)[1]
    return jax.grad(lambda vector: density(unravel(vector)))(theta)


def ravel_draws(thetas: PyTree) -> Float[Array, "n d"]:
    """Trees of leaves `(n, …)` as one row of numbers a draw."""
    return jax.vmap(lambda theta: ravel_pytree(theta)[0])(thetas)


def unravel_draws(thetas: Float[Array, "n d"], like: PyTree) -> PyTree:
    """One row of numbers a draw as trees of leaves `(n, …)`."""
    return jax.vmap(ravel_pytree(like)[1])(thetas)
