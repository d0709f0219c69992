"""Densities over many draws: evaluated and averaged in batches, so that nothing of size rows × draws is held."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from posterase.draws import Draws
from posterase.errors import PrecisionError
from posterase.model import LogDensity, MaskedModel, RemovedLogLikelihood
from posterase.precision import cast_floats, in_float64

BATCH_ELEMENTS = 2**22
"""About how many numbers of data, over all draws of a batch, are in memory at once."""

Density = LogDensity | RemovedLogLikelihood


def batch_size(elements: int, n: int) -> int:
    """How many draws to evaluate side by side when each of them holds this many numbers."""
    return max(1, min(n, BATCH_ELEMENTS // max(1, elements)))


def evaluate(density: Density, draws: Draws) -> Float[np.ndarray, "chain draw"]:
    """The density at every draw, in float64 whatever the precision of draws and data (`posterase.precision` says why).

    Only up to a constant, but the same constant for all draws.
    """
    flat = draws.flat()
    values, wide = in_float64(lambda wide: _evaluate(density, flat, wide), "the model's density")
    if not wide and isinstance(density.model, MaskedModel):
        raise PrecisionError(
            "log_density cannot be called on float64 parameters, and float32 is too coarse for weights: they would be "
            "the difference of two large float32 sums.",
            "write log_density so that it takes the precision of its arguments, with jax arrays for constants.",
        )
    return np.asarray(values, np.float64).reshape(draws.n_chains, draws.n_draws)


@eqx.filter_jit
def _evaluate(density: Density, params: PyTree, wide: bool) -> Float[Array, " n"]:
    def at(one: PyTree) -> Float[Array, ""]:
        return density(density.model.unconstrain(cast_floats(one, jnp.float64) if wide else one))

    n = jax.tree.leaves(params)[0].shape[0]
    return jax.lax.map(at, params, batch_size=batch_size(density.elements, n))


def expectation(
    function: Callable[[Float[Array, " d"]], Array],
    thetas: Float[Array, "n d"],
    weights: Float[Array, " n"],
    elements: int,
) -> Array:
    """Σ wᵢ f(θᵢ), a batch of draws at a time; `elements` is how many numbers one evaluation of f holds."""
    n = len(thetas)
    size = batch_size(elements, n)
    index = jnp.arange(-(-n // size) * size)
    padded = jnp.where(index < n, weights[index % n], 0).reshape(-1, size)  # the padding repeats draws, with weight 0

    def add(total: Array, batch: tuple[Array, Array]) -> tuple[Array, None]:
        at, weight = batch
        return total + jnp.tensordot(weight, jax.vmap(function)(thetas[at]), axes=1), None

    zero = jax.eval_shape(function, thetas[0])
    batches = ((index % n).reshape(-1, size), padded)
    return jax.lax.scan(add, jnp.zeros(zero.shape, zero.dtype), batches)[0]
