"""Where rows are: arrays in memory, or a stream of blocks from files. Models ask a row source and need not know which.

`row_source` is the one place that tells them apart: a third kind implements `RowSource` and is added there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Int, PyTree

from posterase.data.checks import rows_of
from posterase.data.streams import Stream


@runtime_checkable
class RowSource(Protocol):
    """Rows of a model's data."""

    is_streamed: ClassVar[bool]
    """Whether rows are read in blocks, so that not all of them are at hand at once."""

    def shapes(self, rows: int) -> PyTree:
        """Return the shapes of so many rows."""

    def take(self, ids: Int[ArrayLike, " some"]) -> PyTree:
        """Return rows by their ids, also in compiled code."""

    def without(self, left: Bool[Array, " rows"]) -> PyTree:
        """Return the data with a copy of a row that is left in the place of every other row."""

    def blocks(self) -> Iterable[PyTree]:
        """Yield all rows, block after block."""


@dataclasses.dataclass(frozen=True)
class RowsInMemory:
    """Arrays whose leading axis is the rows."""

    is_streamed: ClassVar[bool] = False
    data: PyTree

    def shapes(self, rows: int) -> PyTree:
        """See `RowSource`."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), self.data)

    def take(self, ids: Int[ArrayLike, " some"]) -> PyTree:
        """See `RowSource`."""
        return _take(self.data, ids)

    def without(self, left: Bool[Array, " rows"]) -> PyTree:
        """See `RowSource`. Every absent row is overwritten, since an earlier filler may be among the rows that go."""
        return _overwrite(self.data, left)

    def blocks(self) -> Iterable[PyTree]:
        """See `RowSource`."""
        return [self.data]


def row_source(data: PyTree) -> RowSource:
    """Return the row source of a model's data."""
    return data if isinstance(data, Stream) else RowsInMemory(data)


def is_streamed(data: PyTree) -> bool:
    """Whether a model's data are read in blocks."""
    return row_source(data).is_streamed


def data_of(data: PyTree) -> tuple[PyTree, Bool[Array, " rows"]]:
    """Check a model's data, and return them with a mask: every row is present."""
    return (data, data.left) if is_streamed(data) else rows_of(data)


@jax.jit
def _take(data: PyTree, ids: Int[ArrayLike, " some"]) -> PyTree:
    """Compiled as a whole: each operation alone would be a program."""
    return jax.tree.map(lambda leaf: leaf[ids], data)


@eqx.filter_jit
def _overwrite(data: PyTree, left: Bool[Array, " rows"]) -> PyTree:
    kept = jnp.argmax(left)
    return jax.tree.map(lambda leaf: jnp.where(left.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, leaf[kept]), data)
