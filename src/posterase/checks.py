"""Checks of what a user passes in: each ends in silence or in an error from `posterase.errors`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from posterase.errors import (
    ArrayError,
    DataError,
    DensityShapeError,
    DuplicateRowsError,
    EmptyRemovalError,
    InvalidOptionError,
    InvalidTransformError,
    InvalidTypeError,
    LikelihoodShapeError,
    NoDensityError,
    NonFiniteDataError,
    NotFactorisedError,
    NothingKeptError,
    OutsideSupportError,
    RowsAlreadyRemovedError,
    RowsError,
    RowsOutOfRangeError,
)
from posterase.precision import as_jax
from posterase.transforms import Ordered, Simplex, Transform

T = TypeVar("T")

# --- data


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
        raise DataError(f"data has {n_rows} row(s).", "a removal needs at least two rows, to keep one.")
    return n_rows


def _is_list(node: Any) -> bool:
    """A plain list of numbers is an array, not a tree of single numbers."""
    return isinstance(node, list) and bool(node) and all(isinstance(value, (int, float, np.number)) for value in node)


def transforms_of(transforms: Mapping[str, Transform] | None) -> dict[str, Transform]:
    """`transforms` as a dict of transforms by parameter name."""
    if transforms is not None and not isinstance(transforms, Mapping):
        raise InvalidTransformError(
            f"transforms is a {type(transforms).__name__}.", "pass a dict by parameter name: {'sigma': pe.positive}."
        )
    for name, transform in (transforms or {}).items():
        if not isinstance(transform, Transform):
            raise InvalidTransformError(
                f"transforms[{name!r}] is {transform!r}, which is not a transform.",
                "use pe.positive, pe.unit_interval, pe.interval(low, high), pe.ordered, pe.simplex, or your own "
                "subclass of pe.Transform.",
            )
    return dict(transforms or {})


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
            raise NonFiniteDataError(
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


# --- rows of a request


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
        raise RowsOutOfRangeError(
            f"row {outside[0]} does not exist ({outside.size} such).", f"row ids go from 0 to {n_rows - 1}."
        )
    ids, counts = np.unique(given, return_counts=True)
    if (counts > 1).any():
        twice = ids[counts > 1]
        raise DuplicateRowsError(
            f"row {twice[0]} is given {counts[counts > 1][0]} times ({twice.size} such).",
            "name each row once (numpy.unique(rows) does it).",
        )
    gone = given[~present[given]]
    if gone.size:
        raise RowsAlreadyRemovedError(
            f"row {gone[0]} was removed before ({gone.size} such).", "leave out rows that are gone: see model.row_ids."
        )
    if given.size == np.count_nonzero(present):
        raise NothingKeptError(
            f"all {given.size} rows are to be removed.", "what is left is the prior: sample it instead of erasing."
        )
    return given.astype(np.int64)


# --- what the model's functions return, by shape alone


def returns_scalar(name: str, function: Callable[..., Any], *args: PyTree) -> None:
    """The function returns one real number."""
    shape = _traced(name, function, *args)
    if shape.shape != () or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise DensityShapeError(
            f"{name} returns an array of {shape.dtype} with shape {shape.shape}.",
            "it must return one real number; sum over the parameter's elements (jnp.sum).",
        )


def returns_rows(function: Callable[..., Any], params: PyTree, data: PyTree, rows: int) -> None:
    """The log-likelihood returns one real number a row, for any number of rows."""
    shape = _traced(f"log_likelihood (on {rows} rows)", function, params, data)
    if shape.shape == ():
        raise LikelihoodShapeError(
            "log_likelihood returns a single number.",
            "return one value a row, without summing; if rows are not independent, use pe.MaskedModel.",
        )
    if shape.shape != (rows,) or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise LikelihoodShapeError(
            f"log_likelihood returns an array of {shape.dtype} with shape {shape.shape} for {rows} rows.",
            f"it must return real numbers of shape ({rows},): one a row, summed over all other axes.",
        )


def _traced(name: str, function: Callable[..., Any], *args: PyTree) -> jax.ShapeDtypeStruct:
    try:
        shape = jax.eval_shape(function, *args)
    except Exception as error:
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", args)
        raise DensityShapeError(
            f"{name} cannot be called on {', '.join(map(str, shapes))}: {type(error).__name__}: {error}",
            "write it in jax.numpy, for the parameters of one draw, for any number of rows, and use nothing of the "
            "data but the argument.",
        ) from error
    if not hasattr(shape, "shape"):
        raise DensityShapeError(f"{name} returns {shape!r}.", "return an array.")
    return shape


_found: dict[Hashable, Any] = {}
REMEMBERED = 256
"""How many kinds of model are remembered to have passed their checks."""


def once(kind: Hashable, check: Callable[[], T]) -> T:
    """What a check finds that depends on `kind` alone. One that passed is not run again: tracing takes milliseconds."""
    if kind not in _found:
        found = check()
        while len(_found) >= REMEMBERED:
            del _found[next(iter(_found))]
        _found[kind] = found
    return _found[kind]


# --- draws against the model


def in_support(name: str, values: Float[np.ndarray, "chain draw ..."], transform: Transform) -> None:
    """All draws of a parameter lie inside its transform's support."""
    if isinstance(transform, (Ordered, Simplex)) and (values.ndim < 3 or values.shape[-1] < 2):
        raise OutsideSupportError(
            f"{name} must be {transform.describe()}, and has the shape {values.shape[2:]}.",
            "such a parameter is a vector of at least two elements.",
        )
    bad = first_bad(~transform.contains(values))
    if bad is not None:
        chain, draw = bad[:2]
        raise OutsideSupportError(
            f"{name} must be {transform.describe()}, and is {values[chain, draw]} in chain {chain}, draw {draw}.",
            "give draws on the parameter's own scale (not its log), and check that the transform is the right one.",
        )


def same_likelihoods(
    rows: Int[np.ndarray, " rows"],
    together: Float[np.ndarray, " rows"],
    alone: Float[np.ndarray, " rows"],
    what: str,
) -> None:
    """The likelihoods of rows do not depend on which other rows they are evaluated with.

    Infinite values are compared too, and NaN: whether draws may have them, other checks decide.
    """
    finite = np.where(np.isfinite(together), together, 0)
    tolerance = 1e4 * np.finfo(together.dtype).eps * (1 + np.abs(finite))
    bad = first_bad(~np.isclose(together, alone, rtol=0, atol=tolerance, equal_nan=True))
    if bad is not None:
        at = bad[0]
        raise NotFactorisedError(
            f"the log-likelihood of row {rows[at]} is {together[at]:.6g} among all rows and {alone[at]:.6g} among "
            f"the {what} rows alone: full − kept is not removed.",
            "a row's value may depend on its own row of data only. Move what is computed from all rows (means, "
            "neighbours, counts) out of the function, or use pe.MaskedModel.",
        )


def has_density(value: float, what: str) -> None:
    """A log density at a draw is a number."""
    if not np.isfinite(value):
        raise NoDensityError(
            f"the {what} is infinite or NaN at every draw that was looked at.",
            "pass the model and the data of the fit, and draws on the parameters' own scale. Draws of the posterior "
            "have a finite log density: check log_prior and log_likelihood there.",
        )


def same_sums(difference: float, removed: float, tolerance: float) -> None:
    """Full − kept is removed, up to rounding."""
    has_density(difference, "log density of all rows, or of the kept rows,")
    has_density(removed, "log-likelihood of the removed rows")
    if not abs(difference - removed) <= tolerance:
        raise NotFactorisedError(
            f"full − kept is {difference:.9g} where removed is {removed:.9g}.",
            "a row's value may depend on its own row of data only. Move what is computed from several rows (means, "
            "neighbours, groups) out of the function, or use pe.MaskedModel.",
        )


def numbers(name: str, values: Any, axes: str) -> Any:
    """An array of finite real numbers with these axes, `"models examples"`, from whatever holds them."""
    try:
        array = values if isinstance(values, jax.Array) else np.asarray(values)
        array = array if array.dtype.kind == "f" else np.asarray(array, np.float64)
    except (TypeError, ValueError) as error:
        raise ArrayError(f"{name} holds no numbers.", f"pass an array with the axes ({axes}).") from error
    if array.ndim != len(axes.split()):
        raise ArrayError(f"{name} is an array of shape {array.shape}.", f"its axes are ({axes.replace(' ', ', ')}).")
    if not bool((jnp if isinstance(array, jax.Array) else np).isfinite(array).all()):
        raise ArrayError(f"{name} holds NaN or infinity.", "leave out what has no value, or cut it off.")
    return array


def is_a(value: object, kind: Any, name: str, advice: str) -> None:
    """The value is of this kind."""
    if not isinstance(value, kind):
        raise InvalidTypeError(f"{name} is {value!r} ({type(value).__name__}).", advice)


def whole_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """The value is a whole number within bounds."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= int(value) <= (most if most is not None else int(value)):  # type: ignore[call-overload]
        upto = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidOptionError(f"{name} is {value!r}.", f"use a whole number, {upto}.")


def first_bad(bad: Bool[np.ndarray, "..."] | Bool[Array, "..."]) -> tuple[int, ...] | None:
    """The first position that is bad, or None."""
    if not bool(bad.any()):
        return None
    return tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))


def path_of(path: tuple[Any, ...]) -> str:
    """What a leaf of the data is called in an error."""
    return "data" + jax.tree_util.keystr(path)
