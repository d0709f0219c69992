"""Chains as vectors while they run: one array a chain, not one for every parameter.

A step then touches a few arrays, however many parameters the model names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from posterase.numerics.curvature import ravel_draws
from posterase.sampling.sampler import Sampler, State, map_extra

Unravel = Callable[[Any], PyTree]
"""Parameters as a model has them, from those of a running chain."""


def as_vectors(thetas: PyTree) -> tuple[PyTree, Unravel]:
    """Trees of leaves `(chain, …)` as vectors, and the way back for one chain.

    Parameters of different precision stay the tree they are.
    """
    if len({leaf.dtype for leaf in jax.tree.leaves(thetas)}) > 1:
        return thetas, lambda theta: theta
    unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], thetas))[1]
    return ravel_draws(thetas), unravel


def running(sampler: Sampler, state: State) -> tuple[State, Unravel]:
    """Chains as they run, and the way back for one chain's parameters."""
    theta, unravel = as_vectors(state.theta)
    if theta is state.theta:
        return state, unravel
    return _converted(ravel_draws, sampler, state), unravel


def standing(sampler: Sampler, state: State, unravel: Unravel) -> State:
    """Chains as they are kept: the way back, for all of them."""
    return _converted(jax.vmap(unravel), sampler, state)


def _converted(convert: Callable[[PyTree], PyTree], sampler: Sampler, state: State) -> State:
    """A state whose parameters, and everything shaped like them, are converted."""
    return state._replace(
        theta=convert(state.theta),
        extra=map_extra(convert, sampler, state.theta, state.extra),
        momentum=None if state.momentum is None else convert(state.momentum),
    )


def of_vector(density: Callable[[PyTree], Float[Array, ""]], unravel: Unravel) -> Callable[[Any], Float[Array, ""]]:
    """A density as a function of what runs."""
    return lambda theta: density(unravel(theta))
