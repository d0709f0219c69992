"""Which rows: ids, masks, labels, groups and conditions, as people write them, turned into row ids.

Rows are numbered through all observed variables. Variables that share an axis share its rows; another axis is another
*block*, whose rows are numbered on from the block before. What is known about the rows of a block (labels, groups,
covariates) are its columns, and a condition on a column selects the rows of every block that has it: a person with
rows in several observed variables is selected in all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Int, PyTree, Shaped

from posterase.data.conditions import Column, Condition, among, as_name, matching, parsed
from posterase.data.parameters import parameter_names
from posterase.data.streams import Stream
from posterase.errors import EmptyRemovalError, RowsError
from posterase.runtime.text import did_you_mean, written

ROW = "row"
"""What the axis of rows is called where it has no name of its own."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """An axis of rows."""

    dim: str
    size: int
    variables: tuple[str, ...] = ()
    """The observed variables along it."""
    columns: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    """What is known about its rows, by name; labels of the axis itself under the name of the axis."""
    group_labels: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    """Labels of every row's group, by the name of a column that numbers the groups."""
    frame: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    """Columns of the user's own data frame, which come before those of the model's data."""
    frame_index: str | None = None
    """The column of the frame that labels the rows."""
    first: int = 0
    """The position of the first row, if this is a part of a block."""

    def column(self, name: str) -> Column | None:
        """A column by its name, or by the last part of it where only one has it: `person` for `data.person`."""
        for columns in (self.frame, self.columns):
            if name in columns:
                return columns[name]
        ending = [values for full, values in self.columns.items() if full.endswith(f".{name}")]
        if len(ending) == 1:
            return ending[0]
        # Python reads a name in a condition in its normal form, whatever form the column's name has.
        same = [full for full in (*self.frame, *self.columns) if full != name and as_name(full) == as_name(name)]
        return self.column(same[0]) if len(same) == 1 else None

    def column_or_positions(self, name: str) -> Column | None:
        """A column by its name. An axis without a coordinate counts its rows from zero, as xarray does."""
        column = self.column(name)
        return np.arange(self.first, self.first + self.size) if column is None and name == self.dim else column

    def compared_with(self, name: str, value: Any) -> Column:
        """The column that a value is compared with: labels of groups where it is text and the column has numbers."""
        column = self.column_or_positions(name)
        assert column is not None
        if name in self.group_labels and name not in self.frame and _is_text(value):
            return self.group_labels[name]
        return column

    def cut(self) -> Iterator[tuple[int, Block]]:
        """The block in parts whose columns are read at once, and where each begins: here, all of it."""
        yield 0, self

    def around(self, row: int) -> tuple[int, Block]:
        """A part with this row and its neighbours, and where it begins: here, all of it."""
        return 0, self

    @property
    def labels(self) -> Column | None:
        """Labels of the rows themselves."""
        own = self.columns.get(self.dim)
        return own if own is not None or self.frame_index is None else self.frame[self.frame_index]


@dataclasses.dataclass(frozen=True, eq=False)
class RowTable:
    """All rows of a model, block after block."""

    blocks: tuple[Block, ...]
    absent: frozenset[int] = frozenset()
    """Rows that were removed before: no condition selects them again."""

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
        return list(dict.fromkeys(name for block in self.blocks for name in (*block.frame, *block.columns)))

    def without(self, present: Bool[np.ndarray, " rows"]) -> RowTable:
        """The same with what is known about absent rows blanked out."""

        def without(columns: Mapping[str, Column], at: slice) -> dict[str, Column]:
            return {name: blanked(values, present[at]) for name, values in columns.items()}

        blocks = tuple(
            dataclasses.replace(
                block,
                columns=without(block.columns, at),
                group_labels=without(block.group_labels, at),
                frame=without(block.frame, at),
            )
            for block, at in self.placed()
        )
        return RowTable(blocks, frozenset(np.flatnonzero(~present).tolist()))

    def select(self, rows: Any) -> Any:
        """Row ids of a selection; ids and masks over all rows are returned as they are, to be checked later."""
        if isinstance(rows, str):
            return self._where(parsed(rows))
        if isinstance(rows, Mapping):
            return self._of_mapping(rows)
        if isinstance(rows, xr.DataArray) and rows.ndim == 1:
            return self._of_labelled(rows.values, str(rows.dims[0]), dict(rows.indexes).get(rows.dims[0]))
        if isinstance(rows, pd.Series):
            return self._of_labelled(_array(rows), None, rows.index)
        values = _array(rows)
        if values.ndim == 1 and values.dtype.kind == "b":
            return self._of_mask(values)
        if values.ndim == 1 and values.dtype.kind in "OUSM" and len(values):
            return self._of_labels(values)
        if values.ndim == 1 and values.dtype.kind in "iu":
            self._check_numbers(values)
        return values

    def having(self, name: str, value: str) -> list[int]:
        """Rows that are there and whose column of this name is written like this."""
        found: list[int] = []
        for block, at in self.placed():
            column = block.column(name)
            if column is not None:
                same = np.array([written(each) == value for each in column.tolist()], bool)
                found += (at.start + np.flatnonzero(same)).tolist()
        return [row for row in found if row not in self.absent]

    def having_any(self, name: str, values: Sequence[str]) -> list[int]:
        """Rows of all these values, none of which may be without any."""
        if all(block.column(name) is None for block in self.blocks):
            raise _unknown(name, self.names)
        found: set[int] = set()
        for value in values:
            rows = self.having(name, value)
            if not rows:
                raise _no_row(f"the {name} {value!r}")
            found.update(rows)
        return sorted(found)

    # --- the ways to select

    def _where(self, condition: Condition) -> Int[np.ndarray, " removed"]:
        """Rows where a condition holds, in every block that has all the columns it asks for."""
        found, asked = [], False
        for start, block in ((at.start + first, part) for each, at in self.placed() for first, part in each.cut()):
            if any(block.column_or_positions(name) is None for name in condition.names):
                continue
            asked = True
            mask = condition.holds(block.compared_with)
            found.append(start + np.flatnonzero(mask))
        if not asked:
            raise self._unknown_in(condition)
        ids = np.concatenate(found)
        ids = ids[~np.isin(ids, list(self.absent))]
        if not ids.size:
            raise _no_row(condition.shown)
        return ids

    def _of_mapping(self, rows: Mapping[Any, Any]) -> Int[np.ndarray, " removed"]:
        if not rows:
            raise EmptyRemovalError("rows is an empty dict.", "name a column: rows={'county': 'ANOKA'}.")
        ids = [self._part(str(key), value) for key, value in rows.items()]
        parts = [each for each in ids if each is not None]
        if not parts:
            return self._where(matching({str(key): _plain(value) for key, value in rows.items()}))
        if len(parts) < len(ids):
            raise RowsError(
                "rows mixes masks or ids of variables with values of columns.",
                "make one mask of it, or write a condition as text.",
            )
        return np.unique(np.concatenate(parts))

    def _part(self, key: str, value: Any) -> Int[np.ndarray, " removed"] | None:
        """Rows of one block, given as a mask, or as ids under the name of an observed variable; else None."""
        named = [(b, at) for b, at in self.placed() if key == b.dim or key in b.variables or b.column(key) is not None]
        if not named:
            raise _unknown(key, [*self.names, *(name for block in self.blocks for name in block.variables)])
        given = None if isinstance(value, (str, bytes)) else _array(value)
        if given is not None and given.ndim == 1 and given.dtype.kind == "b":
            fitting = [at for block, at in named if block.size == len(given)]
            if len(fitting) != 1:
                sizes = " or ".join(str(block.size) for block, _ in named)
                raise RowsError(f"the mask for {key!r} has {len(given)} entries.", f"{key!r} has {sizes} rows.")
            return fitting[0].start + np.flatnonzero(given)
        block, at = next(((b, at) for b, at in named if key in b.variables), named[0])
        if key not in block.variables and block.column(key) is not None:
            return None
        if (
            given is None
            or given.dtype.kind not in "iu"
            or (given.size and not 0 <= given.min() <= given.max() < block.size)
        ):
            raise RowsError(f"{value!r} are no rows of {key!r}.", f"give a mask, or ids from 0 to {block.size - 1}.")
        return at.start + given.ravel()

    def _of_labelled(self, values: Shaped[np.ndarray, " some"], dim: str | None, index: pd.Index | None) -> Any:
        """A mask that has labels of its own: aligned with the rows' labels where they are the same ones."""
        if values.dtype.kind != "b":
            return self.select(values)
        blocks = [(b, at) for b, at in self.placed() if b.size == len(values) and dim in (None, b.dim)]
        if len(blocks) == 1 and index is not None and index.is_unique:
            block, at = blocks[0]
            labels = None if block.labels is None else pd.Index(block.labels)
            if labels is not None and not index.equals(labels) and len(index.intersection(labels)) == len(index):
                return at.start + np.flatnonzero(values[index.get_indexer(labels)])
        if dim is not None and len(blocks) == 1:
            return blocks[0][1].start + np.flatnonzero(values)
        return self._of_mask(values)

    def _of_mask(self, values: Bool[np.ndarray, " some"]) -> Any:
        if len(values) == self.n_rows:
            return values
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
        labelled = [(block.labels, at) for block, at in self.placed() if block.labels is not None]
        if not labelled:
            raise RowsError(
                f"rows are given by labels ({str(values[0])!r}), and have none.",
                f"give ids or a mask, or a condition on {', '.join(self.names) or 'a column'}.",
            )
        found = []
        for value in values.tolist() if values.dtype.kind != "M" else list(values):
            ids = np.concatenate([at.start + np.flatnonzero(among(labels, [value])) for labels, at in labelled])
            if not ids.size:
                raise _no_row(f"the label {str(value)!r}")
            found.append(ids)
        return np.unique(np.concatenate(found))

    def _check_numbers(self, values: Int[np.ndarray, " some"]) -> None:
        """Refuse numbers where the rows' own labels are other numbers: which of the two is meant?"""
        for block, at in self.placed():
            labels = block.labels
            if labels is None or labels.dtype.kind not in "iu":
                continue
            here = np.array([at.start + i not in self.absent for i in range(block.size)])
            if not np.array_equal(labels[here], np.arange(block.size)[here]):
                first = values[0] if len(values) else 0
                column = block.dim if block.dim in block.columns else block.frame_index
                raise RowsError(
                    f"rows are numbers ({first}, …), and the rows of {block.dim!r} are labelled by other numbers.",
                    f"say which is meant: '{column} == {first}' for the label, or a mask for places.",
                )

    # --- what to say

    def _unknown_in(self, condition: Condition) -> RowsError:
        missing = [n for n in condition.names if all(b.column_or_positions(n) is None for b in self.blocks)]
        if missing:
            return _unknown(missing[0], self.names)
        asked = ", ".join(condition.names)
        return RowsError(f"no observed variable has all of {asked}.", "select its rows by one of them.")


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedBlock(Block):
    """Rows of a stream: conditions read the columns that they ask for, a block of the stream after the other."""

    stream: Stream | None = None

    @classmethod
    def of(cls, stream: Stream) -> StreamedBlock:
        """All rows of a stream."""
        return cls(ROW, stream.n_rows, columns=StreamedColumns(stream, 0, stream.n_rows), stream=stream)

    def cut(self) -> Iterator[tuple[int, Block]]:
        assert self.stream is not None
        for start in range(0, self.size, self.stream.block_rows):
            yield start, self._part(start, start + self.stream.block_rows)

    def around(self, row: int) -> tuple[int, Block]:
        start = max(0, row - NEIGHBOURS)
        return start, self._part(start, row + NEIGHBOURS)

    def _part(self, start: int, stop: int) -> Block:
        assert self.stream is not None
        stop = min(stop, self.size)
        return Block(self.dim, stop - start, columns=StreamedColumns(self.stream, start, stop), first=start)


class StreamedColumns(Mapping[str, Column]):
    """Columns of some rows of a stream, each read when it is asked for."""

    def __init__(self, stream: Stream, start: int, stop: int):
        self._stream, self._start, self._stop = stream, start, stop
        self._leaves: dict[str, tuple[int, str]] = {}
        for leaf, (name, shape) in enumerate(zip(stream.names(), jax.tree.leaves(stream.shapes(1)), strict=True)):
            self._leaves |= dict.fromkeys(columns_of(name, np.empty(shape.shape, shape.dtype)), (leaf, name))

    def __getitem__(self, column: str) -> Column:
        leaf, name = self._leaves[column]
        return columns_of(name, self._stream.part(leaf, self._start, self._stop))[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)


def table_of(data: PyTree, present: Bool[jax.Array, " rows"] | Bool[np.ndarray, " rows"]) -> RowTable:
    """The rows of a model's data, its named arrays as columns. In place of absent rows there are values of others."""
    n_rows, absent = len(present), frozenset(np.flatnonzero(~np.asarray(present)).tolist())
    if isinstance(data, Stream):
        return RowTable((StreamedBlock.of(data),), absent)
    named = zip(parameter_names(data), jax.tree.leaves(data), strict=True)
    columns: dict[str, Column] = {}
    for name, leaf in named:
        if leaf.shape[:1] == (n_rows,) and (leaf.ndim == 1 or (leaf.ndim == 2 and leaf.shape[1] <= MOST_COLUMNS)):
            columns |= columns_of(name, np.asarray(leaf))  # what has no columns stays where it is, be it on a GPU
    return RowTable((Block(ROW, n_rows, columns=columns),), absent)


NEIGHBOURS = 1000
"""How many rows of a stream are looked at on either side of one."""

MOST_COLUMNS = 32
"""How many columns of a matrix are looked at one by one."""


def columns_of(name: str, values: Shaped[np.ndarray, "rows ..."]) -> dict[str, Column]:
    """An array of rows as columns: itself, or those of a matrix."""
    if values.ndim == 1:
        return {name: values}
    if values.ndim == 2 and values.shape[1] <= MOST_COLUMNS:
        return {f"{name}[{i}]": values[:, i] for i in range(values.shape[1])}
    return {}


def blanked(
    values: Shaped[np.ndarray, "rows ..."], present: Bool[np.ndarray, " rows"]
) -> Shaped[np.ndarray, "rows ..."]:
    """The values with those of absent rows overwritten by one that says nothing."""
    if present.all():
        return values
    empty: Any = {"f": np.nan, "c": np.nan, "i": -1, "u": 0, "b": False, "U": "", "S": b""}.get(values.dtype.kind)
    if values.dtype.kind in "mM":
        empty = np.array("NaT", values.dtype)
    out = values.copy()
    out[~present] = empty
    return out


def _array(rows: Any) -> Shaped[np.ndarray, "..."]:
    """Whatever holds rows as an array; masks with missing values are refused."""
    try:
        values = np.asarray(rows)
    except ValueError as error:
        raise RowsError(f"rows is {rows!r}.", "give row ids, a mask, labels, or a condition.") from error
    if (
        values.dtype.kind == "O"
        and values.size
        and all(v is pd.NA or v is None or isinstance(v, bool) for v in values.flat)
    ):
        if any(not isinstance(value, bool) for value in values.flat):
            raise RowsError("the mask has missing values.", "fill them: mask.fillna(False).")
        return values.astype(bool)
    return values


def _is_text(value: Any) -> bool:
    """Whether a value, or every one of several, is text."""
    if isinstance(value, (list, tuple, set)):
        return bool(value) and all(isinstance(each, str) for each in value)
    return isinstance(value, str)


def _plain(value: Any) -> Any:
    """Several values as a list."""
    return value if isinstance(value, (str, bytes)) or np.ndim(value) == 0 else list(_array(value).ravel())


def _unknown(name: str, names: list[str]) -> RowsError:
    known = f"Known are {', '.join(map(repr, names))}." if names else "Nothing is known of the rows but their ids."
    advice = f"{did_you_mean(name, names)} {known}".strip()
    return RowsError(f"rows names {name!r}, which the rows do not have.", advice)


def _no_row(shown: str) -> EmptyRemovalError:
    """No row is like that. Other rows' values are not suggested: they are other persons'."""
    return EmptyRemovalError(
        f"no row has {shown}.",
        "check the spelling, whether it is text or a number, and whether the rows were removed before.",
    )
