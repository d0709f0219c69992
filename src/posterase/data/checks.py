"""Checks of data, and of the rows that a request names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from posterase.errors import DataError, EmptyRemovalError, NothingKeptError, RowsError
from posterase.runtime.checks import first_bad
from posterase.runtime.precision import as_jax


def rows_of(data: PyTree) -> tuple[PyTree, Bool[Array, " rows"]]:
    """`data` as jax arrays, all numeric, without NaN, sharing their leading axis; and a mask: every row is present."""
    named = [(path_of(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(data, is_leaf=_is_list)]
    if not named:
        raise DataError("data holds no arrays.", "pass a tree of arrays, one row a data point: data={'y': y}.")
    arrays = [_numeric(name, leaf) for name, leaf in named]
    n_rows = row_count({name: len(array) for (name, _), array in zip(named, arrays, strict=True)})
    tree = jax.tree.unflatten(jax.tree.structure(data, is_leaf=_is_list), [_as_rows(array) for array in arrays])
    return tree, as_jax(np.ones(n_rows, bool))


def _as_rows(array: np.ndarray | Array) -> Array:
    return array if isinstance(array, jax.Array) else as_jax(array)


def row_count(lengths: Mapping[str, int]) -> int:
    """How many rows arrays of these names and lengths have: all the same, at least two."""
    first, n_rows = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != n_rows:
            raise DataError(
                f"{first} has {n_rows} rows and {name} has {length}.",
                "the leading axis of every array in data must be the rows; what is not data belongs in the functions.",
            )
    if n_rows < 2:
        raise DataError(f"data has {n_rows} row(s).", "an erasure needs at least two rows, to keep one.")
    return n_rows


def _is_list(node: Any) -> bool:
    """A plain list of numbers is an array, not a tree of single numbers."""
    return isinstance(node, list) and bool(node) and all(isinstance(value, (int, float, np.number)) for value in node)


def _numeric(name: str, leaf: Any) -> np.ndarray | Array:
    if isinstance(leaf, np.ma.MaskedArray):
        raise DataError(
            f"{name} is a masked array, whose mask would be lost.",
            "fill it, and pass the mask as another array of data if the likelihood must know.",
        )
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    check_kind(name, array.dtype, array.ndim)
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    check_values(name, array, jax.dtypes.canonicalize_dtype(array.dtype))
    return array


def check_kind(name: str, dtype: Any, ndim: int) -> None:
    """Real numbers, with an axis of rows."""
    real = any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
    if not real:
        raise DataError(
            f"{name} is of type {dtype}, not real numbers.",
            "encode text, dates and complex numbers as real numbers before making the model.",
        )
    if ndim == 0:
        raise DataError(
            f"{name} is a single number, not an array with a row axis.",
            "data holds rows only; put constants into the functions (a closure or functools.partial).",
        )


def check_values(
    name: str, array: np.ndarray | Array, dtype: Any, row_ids: Sequence[int] | np.ndarray | None = None
) -> None:
    """No NaN among these rows (all, without ids), and no number that `dtype`, which jax makes of them, cannot hold."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        bad = first_bad(np.isnan(np.asarray(array)) if isinstance(array, np.ndarray) else jnp.isnan(array))
        if bad is not None:
            raise DataError(
                f"{name} is NaN at {[bad[0] if row_ids is None else int(row_ids[bad[0]]), *bad[1:]]}.",
                "drop or fill these values, and mark them in another array of data if the likelihood must know.",
            )
        if isinstance(array, np.ndarray) and array.size and array.dtype != dtype:
            limit = float(jnp.finfo(dtype).max)
            if np.any(np.isfinite(array) & (np.abs(array) > limit)):
                raise DataError(
                    f"{name} holds numbers beyond {limit:.0e}, which jax would make infinite.",
                    "rescale them, or switch on 64-bit numbers in jax first.",
                )
    elif isinstance(array, np.ndarray) and array.size and jnp.issubdtype(array.dtype, jnp.integer):
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise DataError(
                f"{name} holds whole numbers beyond {limits.dtype}, which jax would wrap round.",
                "recode them (as 0, 1, 2, …), or switch on 64-bit numbers in jax first.",
            )


def row_ids(rows: Any, present: Bool[np.ndarray, " rows"]) -> Int[np.ndarray, " removed"]:
    """Row ids of a request, from ids or a mask: unique, in range, present, some but not all of them."""
    n_rows = len(present)
    try:
        given = np.asarray(rows)
    except ValueError as error:
        raise RowsError(
            f"rows cannot be read as a list: {error}.", "pass a flat list of row ids, or a mask."
        ) from error
    if given.ndim != 1:
        raise RowsError(
            f"rows has {given.ndim} dimensions.", f"pass a list of row ids, or a mask of {n_rows} true/false values."
        )
    if given.dtype == bool:
        if len(given) != n_rows:
            raise RowsError(
                f"rows is a mask of {len(given)} values for {n_rows} rows.", "a mask needs one value for every row."
            )
        given = np.flatnonzero(given)
    if given.size == 0:
        raise EmptyRemovalError("rows is empty: there is nothing to remove.", "name at least one row.")
    if not np.issubdtype(given.dtype, np.integer):
        raise RowsError(
            f"rows is of type {given.dtype}.", f"row ids are whole numbers from 0 to {n_rows - 1}, or use a mask."
        )
    outside = given[(given < 0) | (given >= n_rows)]
    if outside.size:
        raise RowsError(
            f"row {outside[0]} does not exist ({outside.size} such).", f"row ids go from 0 to {n_rows - 1}."
        )
    ids, counts = np.unique(given, return_counts=True)
    if (counts > 1).any():
        twice = ids[counts > 1]
        raise RowsError(
            f"row {twice[0]} is given {counts[counts > 1][0]} times ({twice.size} such).",
            "name each row once (numpy.unique(rows) does it).",
        )
    gone = given[~present[given]]
    if gone.size:
        raise RowsError(
            f"row {gone[0]} was removed before ({gone.size} such).", "leave out rows that are gone: see model.row_ids."
        )
    if given.size == np.count_nonzero(present):
        raise NothingKeptError(
            f"all {given.size} rows are to be removed.", "what is left is the prior: sample it instead of erasing."
        )
    return given.astype(np.int64)


def path_of(path: tuple[Any, ...]) -> str:
    """What a leaf of the data is called in an error."""
    return "data" + jax.tree_util.keystr(path)
