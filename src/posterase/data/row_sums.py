"""Sums over rows, block by block, and their derivatives in one pass.

    Σ term(θ, rows of b) over blocks b

**One pass for a gradient.** Reverse mode would go over all blocks forwards, and then backwards once more, computing
every block anew. But a sum needs no way back: value and gradient of every block are added up together, and the gradient
is kept until it is asked for. The same holds for products with second derivatives, which differentiate that pass
forwards. (The rule is one for reverse mode. Up to jax 0.11 one for forward mode forgets the rules of the functions
within, so that softplus has no curvature at 0. The price: `jax.jvp` takes a sum of several blocks only through a
gradient.)
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from posterase.runtime import sharding

Term = Callable[[PyTree, PyTree, Bool[Array, " rows"]], Float[Array, ""]]
"""term(θ, some rows, which of them count) → one number."""


Summand = Callable[..., PyTree]
"""What is added up: summand(some rows, which of them count, *shared) → a tree of arrays."""


class AbstractRows(eqx.Module):
    """Rows that can be gone over, of which some count."""

    @abc.abstractmethod
    def added_up(self, summand: Summand, *shared: PyTree) -> PyTree:
        """Σ summand(rows of a block, which of them count, *shared) over all blocks."""


class Blocks(AbstractRows):
    """Rows in memory, so many at a time. The last block reaches back over rows that were in the one before."""

    data: PyTree
    counted: Bool[Array, " rows"]
    size: int = eqx.field(static=True)

    def added_up(self, summand: Summand, *shared: PyTree) -> PyTree:
        total, size = self.counted.shape[0], min(self.counted.shape[0], self.size)

        def block(start: Int[Array, ""]) -> PyTree:
            first = jnp.minimum(start, total - size)
            rows, counted = jax.tree.map(
                lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size), (self.data, self.counted)
            )
            return summand(rows, counted & (first + jnp.arange(size) >= start), *shared)

        return add_up(block, jnp.arange(0, total, size))


class Spread(AbstractRows):
    """The same on the devices of a mesh, each with as many of the rows. Every device adds up its own, and they talk
    to each other once.
    """

    blocks: Blocks

    def added_up(self, summand: Summand, *shared: PyTree) -> PyTree:
        return sharding.sum_over_row_shards(lambda own, *shared: own.added_up(summand, *shared), self.blocks, shared)


def _value(rows: PyTree, counted: Bool[Array, " rows"], params: PyTree, term: Term) -> Float[Array, ""]:
    return term(params, rows, counted)


def _value_and_slope(rows: PyTree, counted: Bool[Array, " rows"], params: PyTree, term: Term) -> PyTree:
    return jax.value_and_grad(lambda at: term(at, rows, counted))(params)


def _plainly(params: PyTree, term: Term, rows: AbstractRows) -> Float[Array, ""]:
    return rows.added_up(_value, params, term)


@eqx.filter_custom_vjp
def _sum_rows(vjp_arg: tuple[PyTree, Term, AbstractRows]) -> Float[Array, ""]:
    return _plainly(*vjp_arg)


@_sum_rows.def_fwd  # type: ignore[untyped-decorator]
def _sum_rows_fwd(perturbed: Any, vjp_arg: Any) -> tuple[Float[Array, ""], PyTree]:
    if any(jax.tree.leaves(perturbed[1:])):  # data, or numbers of the term's own, are differentiated too
        return _plainly(*vjp_arg), None
    params, term, rows = vjp_arg
    return rows.added_up(_value_and_slope, params, term)


@_sum_rows.def_bwd  # type: ignore[untyped-decorator]
def _sum_rows_bwd(slopes: PyTree, along: Float[Array, ""], perturbed: Any, vjp_arg: Any) -> PyTree:
    if slopes is None:
        moving, still = eqx.partition(vjp_arg, perturbed)
        return eqx.filter_vjp(lambda moving: _plainly(*eqx.combine(moving, still)), moving)[1](along)[0]
    scaled = jax.tree.map(lambda slope: along.astype(slope.dtype) * slope, slopes)
    return scaled, *jax.tree.map(lambda _: None, vjp_arg[1:])


def sum_rows(params: PyTree, term: Term, rows: AbstractRows) -> Float[Array, ""]:
    """Σ term(params, …) over the blocks of rows."""
    return _sum_rows((params, term, rows))


def add_up(each: Callable[[Int[Array, ""]], PyTree], places: Int[Array, " n"]) -> PyTree:
    """Σ each(place) over places, one after the other."""
    if len(places) == 1:
        return each(places[0])
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(each, places[0]))
    # checkpoint: where this is differentiated backwards, blocks are computed again, not kept.
    add = jax.checkpoint(lambda sums, at: (jax.tree.map(jnp.add, sums, each(at)), None))
    return jax.lax.scan(add, zero, places)[0]
