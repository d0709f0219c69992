"""Which rows: ids, masks, labels, groups and conditions, as people write them, turned into row ids.

Rows are numbered through all observed variables. Variables that share an axis share its rows; another axis is another
*block*, whose rows are numbered on from the block before. What is known about the rows of a block (labels, groups,
covariates) are its columns, and a condition on a column selects the rows of every block that has it: a person with
rows in several observed variables is selected in all of them.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Bool, Int, PyTree, Shaped

from posterase.errors import EmptyRemovalError, RowsError
from posterase.parameters import parameter_names

ROW = "row"
"""What the axis of rows is called where it has no name of its own."""

FARTHEST_LAG = 60
"""How many rows back a column is looked for in another one."""

Column = Shaped[np.ndarray, " rows"]


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """An axis of rows."""

    dim: str
    size: int
    variables: tuple[str, ...] = ()
    """The observed variables along it."""
    columns: dict[str, Column] = dataclasses.field(default_factory=dict)
    """What is known about its rows, by name; labels of the axis itself under the name of the axis."""


@dataclasses.dataclass(frozen=True, eq=False)
class RowTable:
    """All rows of a model, block after block."""

    blocks: tuple[Block, ...]

    @property
    def n_rows(self) -> int:
        """How many there are, removed ones included."""
        return sum(block.size for block in self.blocks)

    def placed(self) -> Iterator[tuple[Block, slice]]:
        """Every block, and where its rows are among all rows."""
        start = 0
        for block in self.blocks:
            yield block, slice(start, start + block.size)
            start += block.size

    @property
    def names(self) -> list[str]:
        """Names that a condition can use."""
        return list(dict.fromkeys(name for block in self.blocks for name in block.columns))

    def select(self, rows: Any) -> Any:
        """Row ids of a selection; plain ids and masks over all rows are returned as they are, to be checked later."""
        if isinstance(rows, str):
            return self._where(_parsed(rows), rows)
        if isinstance(rows, Mapping):
            return self._of_mapping(rows)
        if isinstance(rows, xr.DataArray):
            return self._of_array(rows)
        if isinstance(rows, jax.Array):
            return rows
        values = np.asarray(rows)
        if values.ndim == 1 and values.dtype.kind in "OUSM" and len(values):
            return self._of_labels(values)
        if values.dtype.kind == "b" and values.ndim == 1 and len(values) != self.n_rows:
            return self._of_mask(values)
        return values

    def without(self, present: Bool[np.ndarray, " rows"]) -> RowTable:
        """The same with what is known about absent rows blanked out."""
        return RowTable(
            tuple(
                dataclasses.replace(
                    block, columns={name: blanked(values, present[at]) for name, values in block.columns.items()}
                )
                for block, at in self.placed()
            )
        )

    # --- the ways to select

    def _of_mapping(self, rows: Mapping[Any, Any]) -> Int[np.ndarray, " removed"]:
        if not rows:
            raise EmptyRemovalError("rows is an empty dict.", "name a column: rows={'county': 'ANOKA'}.")
        variables = [name for block in self.blocks for name in block.variables]
        if all(key in self.names and key not in variables for key in rows):
            shown = " and ".join(f"{key} == {value!r}" for key, value in rows.items())

            def holds(column: Callable[[str], Column]) -> Any:
                return np.logical_and.reduce([_matches(column(key), value) for key, value in rows.items()])

            return self._where(holds, shown)
        found = []
        for key, part in rows.items():
            placed = [(block, at) for block, at in self.placed() if key == block.dim or key in block.variables]
            if not placed:
                raise _unknown(str(key), [*self.names, *variables])
            block, at = placed[0]
            ids = np.asarray(part)
            if ids.dtype.kind == "b" and ids.shape != (block.size,):
                raise RowsError(f"the mask for {key!r} has the shape {ids.shape}.", f"{key!r} has {block.size} rows.")
            ids = np.flatnonzero(ids) if ids.dtype.kind == "b" else ids
            if ids.dtype.kind not in "iu" or (ids.size and not 0 <= ids.min() <= ids.max() < block.size):
                raise RowsError(f"{part!r} are no rows of {key!r}.", f"give a mask, or ids from 0 to {block.size - 1}.")
            found.append(at.start + ids)
        return np.unique(np.concatenate(found))

    def _of_array(self, rows: xr.DataArray) -> Any:
        values = rows.values
        if values.ndim != 1 or values.dtype.kind != "b":
            return self.select(values) if values.ndim == 1 else values
        for block, at in self.placed():
            if rows.dims[0] == block.dim and len(values) == block.size:
                return at.start + np.flatnonzero(values)
        return self.select(values)

    def _of_mask(self, values: Bool[np.ndarray, " some"]) -> Any:
        fitting = [at for block, at in self.placed() if block.size == len(values)]
        if len(self.blocks) > 1 and len(fitting) == 1:
            return fitting[0].start + np.flatnonzero(values)
        if len(self.blocks) > 1:
            sizes = ", ".join(f"{block.dim!r} {block.size}" for block in self.blocks)
            raise RowsError(
                f"the mask has {len(values)} entries; the rows are {sizes}.",
                "say which rows it is for: rows={'name': mask}.",
            )
        return values

    def _of_labels(self, values: Shaped[np.ndarray, " some"]) -> Int[np.ndarray, " removed"]:
        labelled = [block for block in self.blocks if block.dim in block.columns]
        if not labelled:
            raise RowsError(
                f"rows are given by labels ({values[0]!r}), and have none.",
                f"give ids or a mask, or a condition on {', '.join(self.names) or 'a column'}.",
            )
        known = np.concatenate([block.columns[block.dim].astype(object) for block in labelled])
        for value in values:
            if not (known == value).any():
                raise _no_row(f"the label {str(value)!r}", str(value), known)
        return np.concatenate(
            [
                at.start + np.flatnonzero(np.isin(block.columns[block.dim].astype(object), values.astype(object)))
                for block, at in self.placed()
                if block.dim in block.columns
            ]
        )

    def _where(self, holds: Callable[[Callable[[str], Column]], Any], shown: str) -> Int[np.ndarray, " removed"]:
        """Rows where a condition holds, in every block that has all the columns it asks for."""
        found, asked = [], False
        for block, at in self.placed():
            try:
                mask = np.asarray(holds(_column_of(block)))
            except _NotHere:
                continue
            if mask.shape != (block.size,) or mask.dtype.kind != "b":
                raise RowsError(f"{shown!r} is no condition on rows.", "compare a column: 'county == \"ANOKA\"'.")
            asked = True
            found.append(at.start + np.flatnonzero(mask))
        if not asked:
            raise _unknown_in(holds, self.names)
        ids = np.concatenate(found)
        if not ids.size:
            raise self._nothing(holds, shown)
        return ids

    def _nothing(self, holds: Callable[[Callable[[str], Column]], Any], shown: str) -> EmptyRemovalError:
        for name in _names_in(holds):
            for block in self.blocks:
                values = block.columns.get(name)
                if values is not None and values.dtype.kind in "OU":
                    return _no_row(shown, shown.split("==")[-1].strip(" '\""), values)
        return EmptyRemovalError(f"no row has {shown}.", "check the value, and whether it is text or a number.")


def table_of(data: PyTree, n_rows: int) -> RowTable:
    """The rows of a model's data, its named one-dimensional arrays as columns."""
    named = zip(parameter_names(data), jax.tree.leaves(data), strict=True)
    return RowTable(
        (Block(ROW, n_rows, columns={name: np.asarray(leaf) for name, leaf in named if leaf.shape == (n_rows,)}),)
    )


def blanked(values: Shaped[np.ndarray, " rows"], present: Bool[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
    """The values with those of absent rows overwritten by one that says nothing."""
    if present.all():
        return values
    empty: Any = {"f": np.nan, "c": np.nan, "i": -1, "u": 0, "b": False, "U": "", "S": b""}.get(values.dtype.kind)
    if values.dtype.kind in "mM":
        empty = np.array("NaT", values.dtype)
    out = values.copy()
    out[~present] = empty
    return out


def lagged(table: RowTable, ids: Int[np.ndarray, " removed"]) -> str:
    """What to say where a kept row holds a removed row's value: a column that is another one, some rows back.

    A time series whose model is given the value before as a covariate is like this.
    """
    for block, at in table.placed():
        numeric = {name: values for name, values in block.columns.items() if _is_measured(values)}
        inside = ids[(ids >= at.start) & (ids < at.stop)] - at.start
        for before, held in numeric.items():
            for now, values in numeric.items():
                lag = _lag(values, held) if now != before else 0
                if not lag:
                    continue
                holding = np.setdiff1d(inside + lag, inside)
                holding = holding[holding < block.size]
                if holding.size:
                    return (
                        f"{before} is {now} of {lag} row{'s' if lag > 1 else ''} before: row {at.start + holding[0]}, "
                        f"which is kept, holds {now} of row {at.start + holding[0] - lag}, which is removed"
                    )
    return ""


def _is_measured(values: Column) -> bool:
    """Real numbers, most of them different: that a few categories repeat some rows on means nothing."""
    return values.dtype.kind == "f" and len(np.unique(values)) > max(5, len(values) // 10)


def _lag(values: Shaped[np.ndarray, " rows"], held: Shaped[np.ndarray, " rows"]) -> int:
    """How many rows later `held` repeats `values`; 0 where it does not."""
    for lag in range(1, min(FARTHEST_LAG, len(values) // 2) + 1):
        if held[lag] == values[0] and np.array_equal(held[lag:], values[:-lag]):
            return lag
    return 0


# --- conditions


class _NotHere(Exception):
    """A block lacks a column that the condition asks for."""


def _column_of(block: Block) -> Callable[[str], Column]:
    def column(name: str) -> Column:
        if name not in block.columns:
            raise _NotHere(name)
        return block.columns[name]

    return column


def _names_in(holds: Callable[[Callable[[str], Column]], Any]) -> list[str]:
    """The columns that a condition asks for, by running it on columns that match nothing."""
    asked: list[str] = []

    def column(name: str) -> Column:
        asked.append(name)
        return np.zeros(0)

    holds(column)
    return asked


def _unknown_in(holds: Callable[[Callable[[str], Column]], Any], names: list[str]) -> RowsError:
    asked = _names_in(holds)
    missing = [name for name in asked if name not in names]
    if missing:
        return _unknown(missing[0], names)
    return RowsError(f"no observed variable has all of {', '.join(asked)}.", "select its rows by one of them.")


def _unknown(name: str, names: list[str]) -> RowsError:
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    known = f"Known are {', '.join(map(repr, names))}." if names else "Nothing is known of the rows but their ids."
    return RowsError(f"rows names {name!r}, which the rows do not have.", f"{meant}{known}")


def _no_row(shown: str, value: str, known: Column) -> EmptyRemovalError:
    near = difflib.get_close_matches(value, [str(label) for label in np.unique(known.astype(str))], n=1)
    meant = f"did you mean {near[0]!r}?" if near else "check the spelling."
    return EmptyRemovalError(f"no row has {shown}.", meant)


def _matches(values: Column, wanted: Any) -> Bool[np.ndarray, " rows"]:
    """Rows whose value is the one wanted, or among those wanted."""
    options = list(wanted) if isinstance(wanted, (list, tuple, set, frozenset, np.ndarray)) else [wanted]
    return np.any([_compared(operator.eq, values, option) for option in options], axis=0)


def _compared(compare: Callable[[Any, Any], Any], values: Any, other: Any) -> Any:
    """A comparison in which text and numbers are different, not an error."""
    try:
        found = compare(values, other)
    except TypeError as error:
        raise RowsError(f"rows cannot be compared with {other!r}: {error}.", "compare text with text.") from error
    if np.shape(found) != np.shape(values):
        found = np.full(np.shape(values), compare is operator.ne)
    return np.asarray(found, bool)


COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _parsed(text: str) -> Callable[[Callable[[str], Column]], Any]:
    """A condition such as `county == "ANOKA" and floor > 0`. Only comparisons: nothing in it is ever executed."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise _unreadable(text) from error
    _check_condition(tree, text)
    return lambda column: _holds(tree, column)


def _unreadable(text: str) -> RowsError:
    return RowsError(
        f"{text!r} is not a condition on rows.",
        "compare columns with values, text in quotes: 'county == \"ANOKA\" and floor > 0', 'person in [3, 17]'.",
    )


def _check_condition(node: ast.expr, text: str) -> None:
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                _check_condition(part, text)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
            _check_condition(left, text)
            _check_condition(right, text)
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=part):
            _check_condition(part, text)
        case ast.Compare(left=ast.Name(), ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            _literal(right, text)
        case ast.Compare(left=ast.Name(), ops=[ast.In() | ast.NotIn()], comparators=[right]):
            if not isinstance(_literal(right, text), (list, tuple, set)):
                raise _unreadable(text)
        case _:
            raise _unreadable(text)


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise _unreadable(text) from error


def _holds(node: ast.expr, column: Callable[[str], Column]) -> Any:
    match node:
        case ast.BoolOp(op=op, values=parts):
            combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return combine.reduce([_holds(part, column) for part in parts])
        case ast.BinOp(left=left, op=op, right=right):
            combine = np.logical_and if isinstance(op, ast.BitAnd) else np.logical_or
            return combine(_holds(left, column), _holds(right, column))
        case ast.UnaryOp(operand=part):
            return ~_holds(part, column)
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[right]):
            wanted = ast.literal_eval(right)
            if isinstance(op, (ast.In, ast.NotIn)):
                found = _matches(column(name), wanted)
                return ~found if isinstance(op, ast.NotIn) else found
            return _compared(COMPARISONS[type(op)], column(name), wanted)
    raise AssertionError("checked before")
