"""Densities over many draws: evaluated and averaged in batches, so that nothing of size rows × draws is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, jaxprs_in_params
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from posterase.draws.draws import Draws
from posterase.errors import ModelError
from posterase.model.base import AbstractModel
from posterase.model.densities import LogDensity, LogRatio
from posterase.model.masked import MaskedModel
from posterase.runtime import sharding
from posterase.runtime.fast_compilation import quick_jit
from posterase.runtime.precision import as_jax, cast_floats, in_float64

BATCH_ELEMENTS = 2**22
"""About how many numbers of data, over all draws of a batch, are in memory at once on a CPU."""

DEVICE_BATCH_ELEMENTS = 2**28
"""The same on other devices, which wait for every batch: 64 draws side by side where rows fill a block."""

MOST_SIDE_BY_SIDE = 256
"""Draws a batch on a CPU, however small. More are no faster there; and XLA's CPU threads lock up, now and then, where a
loop holds large batches of small matrix factorisations (jax 0.10: 2,500 Cholesky factors of 11 × 11 in `Rejuvenate`,
waiting for ever; 256 at a time never did)."""

ON_HOST = 2**22
"""Up to so many numbers, draws are raveled on the host on their way to a density."""

MARK = 7919
"""A number of draws that no other axis is likely to have: a prime."""

Density = LogDensity | LogRatio


def batch_size(elements: int, n: int) -> int:
    """How many draws to evaluate side by side when each of them holds this many numbers."""
    on_cpu = jax.default_backend() == "cpu"
    most, held = (MOST_SIDE_BY_SIDE, BATCH_ELEMENTS) if on_cpu else (n, DEVICE_BATCH_ELEMENTS)
    return max(1, min(n, most, held // max(1, elements)))


def held(function: Callable[..., PyTree], at: PyTree, least: int, shared: tuple[PyTree, ...] = ()) -> int:
    """How many numbers the largest array has that one evaluation makes of a draw, and `least` at least.

    For `batch_size`, as this is what is held once for every draw of a batch. The data are not all: a gradient has as
    many numbers as parameters, a layer of a network a row of data for every unit. Found by tracing `function(draw,
    *shared)` over `MARK` draws, which computes nothing: what depends on the draw has a multiple of so many numbers.
    """
    draws = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((MARK, *leaf.shape), leaf.dtype), at)
    jaxpr = jax.make_jaxpr(jax.vmap(lambda draw: function(draw, *shared)))(draws).jaxpr
    return max([least, *(size // MARK for size in _sizes(jaxpr) if size % MARK == 0)])


def _sizes(jaxpr: Jaxpr) -> Iterator[int]:
    """How many numbers each array of a program has, those of its loops included."""
    for equation in jaxpr.eqns:
        yield from (var.aval.size for var in equation.outvars if hasattr(var.aval, "size"))
        for inner in jaxprs_in_params(equation.params):
            yield from _sizes(inner)


def evaluate(density: Density, draws: Draws) -> Float[np.ndarray, "chain draw"]:
    """Evaluate the density at every draw, in float64 whatever the precision of draws and data.

    Only up to a constant, but the same constant for all draws.
    """
    if sum(leaf.size for leaf in jax.tree.leaves(draws.params)) <= ON_HOST and jax.default_backend() == "cpu":
        values = evaluate_at(density, *unconstrained(density.model, draws))  # a program that output is evaluated by
    else:
        flat = draws.flat()
        values = _precise(density, lambda wide: _evaluate(density, flat, wide))
    return values.reshape(draws.n_chains, draws.n_draws)


def evaluate_at(density: Density, thetas: Float[np.ndarray, "n d"], like: PyTree) -> Float[np.ndarray, " n"]:
    """The same at raveled unconstrained parameters, whose structure is that of `like`."""
    return _precise(density, lambda wide: _evaluate_at(density, as_jax(thetas), like, wide))


def over_draws(function: Callable[[PyTree], PyTree], draws: Draws, elements: int) -> PyTree:
    """A function of one draw's parameters at every draw, in float64: leaves shaped `(chain, draw, …)`.

    `elements` is how many numbers one evaluation holds. A module compiles once; a plain function, whenever it is new.
    """
    flat = draws.flat()
    values, _ = in_float64(lambda wide: _over_draws(function, flat, elements, wide), "the model")
    shape = draws.n_chains, draws.n_draws
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(*shape, *leaf.shape[1:]), values)


def unconstrained(model: AbstractModel, draws: Draws) -> tuple[Float[np.ndarray, "n d"], PyTree]:
    """All draws as raveled unconstrained parameters, in float64; and those of one draw, for the structure."""
    (thetas, first), _ = in_float64(lambda wide: _unconstrain(model, draws.params, wide), "the model's transforms")
    widths = jax.tree.leaves(jax.tree.map(lambda leaf: leaf.dtype, draws.params))
    leaves, structure = jax.tree.flatten(first)  # transforms keep a tree's structure, not its shapes
    like = [np.zeros(leaf.shape, width) for leaf, width in zip(leaves, widths, strict=True)]
    return np.asarray(thetas, np.float64), jax.tree.unflatten(structure, like)


def constrained(
    model: AbstractModel,
    thetas: Float[np.ndarray, "n d"],
    like: PyTree,
    draws: Draws,
    shape: tuple[int, int] | None = None,
) -> PyTree:
    """Raveled unconstrained parameters on their own scale, in the precision of `draws`.

    `shape` is the number of chains and of draws per chain. None: those of `draws`.
    """
    count, sample = len(thetas), (draws.n_chains, draws.n_draws) if shape is None else shape
    # As many as there are draws, where there are fewer: one shape is compiled.
    filled = np.pad(thetas, ((0, max(draws.n_chains * draws.n_draws - count, 0)), (0, 0)), mode="edge")
    params, _ = in_float64(lambda wide: _constrain(model, as_jax(filled), like, wide), "the model's transforms")

    def finished(new: Array, old: Array) -> Array:
        with np.errstate(over="ignore"):  # a map that leads out of float32: what is infinite then is refused as draws
            narrow = np.asarray(new, old.dtype)[:count]
        return as_jax(narrow.reshape(*sample, *old.shape[2:]))

    return jax.tree.map(finished, params, draws.params)


def _precise(density: Density, run: Callable[[bool], Array]) -> Float[np.ndarray, "..."]:
    values, wide = in_float64(run, "the model's density")
    if not wide and isinstance(density.model, MaskedModel):
        raise ModelError(
            "log_joint cannot be called on float64 parameters, and float32 is too coarse for weights: they would be "
            "the difference of two large float32 sums.",
            "write log_joint so that it takes the precision of its arguments, with jax arrays for constants.",
        )
    return np.asarray(values, np.float64)


@quick_jit(elements=lambda density, *rest: density.elements)
def _evaluate(density: Density, params: PyTree, wide: bool) -> Float[Array, " n"]:
    def at(one: PyTree, density: Density) -> Float[Array, ""]:
        return density(density.model.unconstrain(cast_floats(one, jnp.float64) if wide else one))

    n = jax.tree.leaves(params)[0].shape[0]
    size = batch_size(held(at, _first(params), density.elements, (density,)), n)
    return sharding.map_draws(at, params, size, (density,))


@quick_jit(elements=lambda density, *rest: density.elements)
def _evaluate_at(density: Density, thetas: Float[Array, "n d"], like: PyTree, wide: bool) -> Float[Array, " n"]:
    unravel = _unravel(like, wide)

    def at(theta: Array, density: Density) -> Float[Array, ""]:
        return density(unravel(theta))

    size = batch_size(held(at, thetas[0], density.elements, (density,)), len(thetas))
    return sharding.map_draws(at, thetas, size, (density,))


@quick_jit()
def _over_draws(function: Callable[[PyTree], PyTree], params: PyTree, elements: int, wide: bool) -> PyTree:
    n = jax.tree.leaves(params)[0].shape[0]

    def at(one: PyTree, function: Callable[[PyTree], PyTree]) -> PyTree:
        return function(cast_floats(one, jnp.float64) if wide else one)

    size = batch_size(held(at, _first(params), elements, (function,)), n)
    return sharding.map_draws(at, params, size, (function,))


def _first(params: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], params)


@quick_jit()
def _unconstrain(model: AbstractModel, params: PyTree, wide: bool) -> tuple[Float[Array, "n d"], PyTree]:
    def at(one: PyTree) -> PyTree:
        return model.unconstrain(cast_floats(one, jnp.float64) if wide else one)

    thetas = jax.vmap(at)(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), params))
    return jax.vmap(lambda theta: ravel_pytree(theta)[0])(thetas), jax.tree.map(lambda leaf: leaf[0], thetas)


@quick_jit()
def _constrain(model: AbstractModel, thetas: Float[Array, "n d"], like: PyTree, wide: bool) -> PyTree:
    unravel = _unravel(like, wide)
    return jax.vmap(lambda theta: model.constrain(unravel(theta)))(thetas)


def _unravel(like: PyTree, wide: bool) -> Callable[[Array], PyTree]:
    flat, unravel = ravel_pytree(cast_floats(like, jnp.float64) if wide else like)
    return lambda theta: unravel(theta.astype(flat.dtype))


def expectation(
    function: Callable[..., Array],
    thetas: Float[Array, "n d"],
    weights: Float[Array, " n"],
    elements: int,
    shared: tuple[PyTree, ...] = (),
) -> Array:
    """Σ wᵢ f(θᵢ, *shared), a batch of draws at a time; `elements`: how many numbers of data one evaluation holds."""
    n, parts = len(thetas), sharding.shards(sharding.CHAINS)
    size = batch_size(held(function, thetas[0], elements, shared), -(-n // parts))
    index = jnp.arange(-(-n // (size * parts)) * size * parts)
    padded = jnp.where(index < n, weights[index % n], 0).reshape(-1, size)  # the padding repeats draws, with weight 0

    zero = jax.eval_shape(function, thetas[0], *shared)

    def total(batches: tuple[Array, Array], thetas: Array, *shared: PyTree) -> Array:
        def add(total: Array, batch: tuple[Array, Array]) -> tuple[Array, None]:
            at, weight = batch
            values = jax.vmap(lambda theta: function(theta, *shared))(thetas[at])
            return total + jnp.tensordot(weight, values, axes=1), None

        return jax.lax.scan(add, jnp.zeros(zero.shape, zero.dtype), batches)[0]

    return sharding.sum_parts(total, ((index % n).reshape(-1, size), padded), (thetas, *shared))
