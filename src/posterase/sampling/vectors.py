"""Chains as vectors while they run: one array a chain, not one for every parameter.

A step then touches a few arrays whatever the model's parameters are called: on a GPU, where a small network's step is
mostly the starting of kernels, that halves its time. Every number is the same as with the tree, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from posterase.sampling.sampler import State

Unravel = Callable[[Any], PyTree]
"""Parameters as a model has them, from those of a running chain."""


def as_vectors(state: State) -> tuple[State, Unravel]:
    """Chains as vectors, and the way back. Parameters of different precision stay the tree they are."""
    leaves = jax.tree.leaves(state.theta)
    if len({leaf.dtype for leaf in leaves}) > 1:
        return state, lambda theta: theta
    unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], state.theta))[1]
    return state._replace(theta=_raveled(state.theta), velocity=_raveled(state.velocity)), unravel


def as_trees(state: State, unravel: Unravel) -> State:
    """The way back, for all chains."""
    return state._replace(theta=jax.vmap(unravel)(state.theta), velocity=jax.vmap(unravel)(state.velocity))


def of_vector(density: Callable[[PyTree], Float[Array, ""]], unravel: Unravel) -> Callable[[Any], Float[Array, ""]]:
    """A density as a function of what runs."""
    return lambda theta: density(unravel(theta))


def _raveled(tree: PyTree) -> Float[Array, "chain d"]:
    return jax.vmap(lambda one: ravel_pytree(one)[0])(tree)
