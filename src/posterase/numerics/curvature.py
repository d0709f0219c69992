"""Curvature of a log density, averaged over draws, as a linear operator.

    H = −E ∇² log p(θ),    H v = −E (d/dt) ∇ log p(θ + t v) at t = 0      (forward over reverse: no d × d array)

H is symmetric, and positive definite near a mode; far from one, and in a network, it need not be.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from posterase.numerics.densities import Density, batch_size, expectation, held
from posterase.runtime import sharding
from posterase.runtime.fast_compilation import quick_jit
from posterase.runtime.precision import as_jax, cast_floats, in_float64

REVERSE = 4
"""What a gradient holds in memory, as a multiple of what the density holds."""


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

        def product(theta: Array, density: Density, like: PyTree, vector: Array) -> Float[Array, " d"]:
            return -jax.jvp(lambda at: gradient(density, at, like), (theta,), (vector,))[1]

        shared = self.density, self.like, vector
        return expectation(product, self.thetas, self.weights, self.density.elements, shared)

    def dense(self) -> Float[Array, "d d"]:
        """H as a matrix, for d small enough; symmetrised, since rounding is not."""

        def hessian(theta: Array, density: Density, like: PyTree) -> Float[Array, "d d"]:
            return -jax.jacfwd(lambda at: gradient(density, at, like))(theta)

        elements = self.density.elements * self.size
        matrix = expectation(hessian, self.thetas, self.weights, elements, (self.density, self.like))
        return (matrix + matrix.T) / 2


def gradient(density: Density, theta: Float[Array, " d"], like: PyTree) -> Float[Array, " d"]:
    """∇ of a log density at raveled unconstrained parameters."""
    unravel = ravel_pytree(like)[1]
    return jax.grad(lambda vector: density(unravel(vector)))(theta)


def gradient_at(theta: Float[Array, " d"], density: Density, like: PyTree) -> Float[Array, " d"]:
    """The same with the draw first, as what maps over draws calls it."""
    return gradient(density, theta, like)


def mean_gradient(
    density: Density, thetas: Float[Array, "n d"], weights: Float[Array, " n"], like: PyTree
) -> Float[Array, " d"]:
    """E∇ of a log density over weighted draws."""
    return expectation(gradient_at, thetas, weights, density.elements, (density, like))


def ravel_draws(thetas: PyTree) -> Float[Array, "n d"]:
    """Trees of leaves `(n, …)` as one row of numbers a draw."""
    return jax.vmap(lambda theta: ravel_pytree(theta)[0])(thetas)


def unravel_draws(thetas: Float[Array, "n d"], like: PyTree) -> PyTree:
    """One row of numbers a draw as trees of leaves `(n, …)`."""
    return jax.vmap(ravel_pytree(like)[1])(thetas)


def gradients(density: Density, points: Float[np.ndarray, "m d"], like: PyTree) -> Float[np.ndarray, "m d"]:
    """∇ at raveled parameters, in float64 where it can be had."""
    return values_and_gradients(density, points, like)[1]


def values_and_gradients(
    density: Density, points: Float[np.ndarray, "m d"], like: PyTree
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m d"]]:
    """The log density and its gradient at raveled parameters, in float64 where they can be had."""

    def run(wide: bool) -> tuple[Array, Array]:
        own = cast_floats(like, jnp.float64) if wide else like
        return _mapped_gradient(density, as_jax(points, jnp.result_type(*jax.tree.leaves(own))), own)

    values, slopes = in_float64(run, "the model's density")[0]
    return np.asarray(values, np.float64), np.asarray(slopes, np.float64)


@quick_jit(elements=lambda density, *rest: density.elements)
def _mapped_gradient(
    density: Density, points: Float[Array, "m d"], like: PyTree
) -> tuple[Float[Array, " m"], Float[Array, "m d"]]:
    shared = density, like
    size = batch_size(held(value_and_gradient_at, points[0], REVERSE * density.elements, shared), len(points))
    return sharding.map_draws(value_and_gradient_at, points, size, shared)


def value_and_gradient_at(
    theta: Float[Array, " d"], density: Density, like: PyTree
) -> tuple[Float[Array, ""], Float[Array, " d"]]:
    """A log density and its gradient."""
    return jax.value_and_grad(lambda at: density(ravel_pytree(like)[1](at)))(theta)
