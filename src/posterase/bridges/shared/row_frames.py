"""Data frames that describe the rows of a model: people, counties and dates that the model itself never reads.

    model, draws = pe.from_numpyro(mcmc, frame=df)
    pe.erase(model, draws, rows='firm == "IBM" and date >= "2024-03-01"')

The columns are in the table of rows, in memory, where conditions find them. They are blanked out with the rows that are
removed, and enter no file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Shaped

from posterase.data.conditions import Column
from posterase.data.row_source import is_streamed
from posterase.data.selection import Block, RowTable, table_of
from posterase.draws.draws import Draws
from posterase.draws.inference_groups import Container
from posterase.errors import AmbiguousRowsError, DataChangedError, DataError, InvalidTypeError
from posterase.model.factorised import Model

UNNAMED_INDEX = "index"
"""The column of an index that has no name."""

PASS = "pass a DataFrame, or a dict of columns, with one row per row of the model: frame=df"


@dataclasses.dataclass(frozen=True, eq=False)
class RowFrame:
    """The columns of a data frame."""

    dim: str | None
    """The axis that it was given for. None: its length decides."""
    columns: dict[str, Column]
    index: str | None
    """The column that labels the rows, where the frame has an index of its own."""
    size: int


def read_frames(frame: Any) -> tuple[RowFrame, ...]:
    """Read the data frames that a user gave, before any other work is done.

    Parameters
    ----------
    frame
        A DataFrame of pandas or polars; a dict of columns; or a dict of either, by the name of the axis of rows. None:
        there are no frames.
    """
    if frame is None:
        return ()
    if isinstance(frame, Mapping) and frame and all(_is_frame(each) for each in frame.values()):
        return tuple(_read(each, str(dim)) for dim, each in frame.items())
    if isinstance(frame, pd.Series):
        frame = frame.to_frame()
    if not _is_frame(frame):
        raise InvalidTypeError(f"frame is a {type(frame).__name__}.", f"{PASS}.")
    return (_read(frame, None),)


def with_frames(table: RowTable, frames: Iterable[RowFrame]) -> RowTable:
    """Add the columns of data frames to the blocks of rows that they describe."""
    blocks = list(table.blocks)
    for frame in frames:
        number = _described(blocks, frame)
        block = blocks[number]
        if block.frame:
            raise AmbiguousRowsError(
                f"two frames describe the rows of {block.dim!r}.", "join them, and pass one frame per axis of rows."
            )
        _check_order(block, frame)
        blocks[number] = dataclasses.replace(block, frame=frame.columns, frame_index=frame.index)
    return dataclasses.replace(table, blocks=tuple(blocks))


def describe_rows(draws: Draws, frames: Sequence[RowFrame]) -> Draws:
    """Draws whose rows are also known by the columns of data frames."""
    if not frames:
        return draws
    assert draws.container is not None
    return draws.inside(dataclasses.replace(draws.container, table=with_frames(draws.container.table, frames)))


def describe_plain_rows(
    model: Model, draws: Draws, frames: Sequence[RowFrame], preprocessing: str | None = None
) -> Draws:
    """Draws of a plain model, whose rows are known by its data and by the columns of a data frame."""
    if not frames and preprocessing is None:
        return draws
    if is_streamed(model.data) and frames:
        raise InvalidTypeError("frame describes the rows of a stream.", "add its columns to the stream.")
    table = table_of(model.data, model.present)
    container = Container(
        table=with_frames(table, frames),
        row_dims={},
        groups={},
        companions=xr.Dataset(),
        fitted=draws.params,
        present=np.ones(table.n_rows, bool),
        preprocessing=preprocessing,
    )
    return draws.inside(container)


def _described(blocks: list[Block], frame: RowFrame) -> int:
    """The number of the block whose rows a frame describes."""
    known = ", ".join(f"{block.size} along {block.dim!r}" for block in blocks)
    if frame.dim is not None:
        named = [i for i, block in enumerate(blocks) if frame.dim == block.dim or frame.dim in block.variables]
        if not named:
            raise AmbiguousRowsError(
                f"frame names the axis {frame.dim!r}, which is not an axis of rows.", f"the rows are {known}."
            )
        if blocks[named[0]].size != frame.size:
            raise _wrong_length(frame, known)
        return named[0]
    fitting = [i for i, block in enumerate(blocks) if block.size == frame.size]
    if not fitting:
        raise _wrong_length(frame, known)
    if len(fitting) > 1:
        dims = " and ".join(repr(blocks[i].dim) for i in fitting)
        raise AmbiguousRowsError(
            f"frame has {frame.size} rows, as many as {dims} have.",
            f"say which axis it describes: frame={{{blocks[fitting[0]].dim!r}: df}}.",
        )
    return fitting[0]


def _wrong_length(frame: RowFrame, known: str) -> DataError:
    return DataError(
        f"frame has {frame.size} rows; the model has {known}.",
        "pass the frame that the data of the fit were made from, in the same order, without the rows that were dropped "
        "before the fit.",
    )


def _check_order(block: Block, frame: RowFrame) -> None:
    """A column of the model's data under the same name is in the same order."""
    for name, values in frame.columns.items():
        own = block.columns.get(name)
        if own is None or own.dtype.kind not in "fiu" or values.dtype.kind not in "fiu":
            continue
        ours, theirs = (each.astype(np.float32) for each in (own, values))
        if not np.array_equal(ours, theirs) and np.array_equal(np.sort(ours), np.sort(theirs)):
            raise DataChangedError(
                f"the column {name!r} of frame holds the values of the model's {name!r} in another order.",
                "pass the frame with its rows in the order of the fit: do not sort it in between.",
            )


# --- reading


def _is_frame(value: Any) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "columns") and hasattr(value, "__getitem__"))


def _read(frame: Any, dim: str | None) -> RowFrame:
    names = [str(name) for name in (frame if isinstance(frame, Mapping) else frame.columns)]
    index = _index_columns(frame.index) if isinstance(frame, pd.DataFrame) else {}
    if list(index) == [UNNAMED_INDEX] and UNNAMED_INDEX in names:
        index = {}
    twice = sorted({name for name in (*index, *names) if (*index, *names).count(name) > 1})
    if twice:
        raise DataError(
            f"frame has two columns called {twice[0]!r}{' (one is its index)' if twice[0] in index else ''}.",
            "rename one, or leave it out.",
        )
    given = frame if isinstance(frame, Mapping) else {name: frame[name] for name in frame.columns}
    columns = {**index, **{str(name): _column(str(name), values) for name, values in given.items()}}
    sizes = {name: len(values) for name, values in columns.items()}
    if not sizes:
        raise DataError("frame has no columns.", f"{PASS}.")
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
        raise DataError(f"the columns of frame have different lengths: {shown}.", f"{PASS}.")
    own = len(index) == 1 and not frame.index.equals(pd.RangeIndex(len(frame)))
    return RowFrame(dim, columns, next(iter(index)) if own else None, next(iter(sizes.values())))


def _index_columns(index: pd.Index) -> dict[str, Column]:
    """The levels of an index, by name."""
    names = [UNNAMED_INDEX if name is None and index.nlevels == 1 else name for name in index.names]
    return {
        str(name if name is not None else f"level_{i}"): _column(str(name), index.get_level_values(i))
        for i, name in enumerate(names)
    }


def _column(name: str, values: Any) -> Column:
    """The values of a column as numpy has them: missing ones are NaN, NaT or None."""
    if np.ndim(values) != 1:
        raise DataError(
            f"the column {name!r} of frame has {np.ndim(values)} axes.", "pass one value per row, as several columns."
        )
    if isinstance(values, (pd.Series, pd.Index, pd.api.extensions.ExtensionArray)):
        return _of_pandas(pd.Series(values))
    found = np.asarray(values)
    return _of_pandas(pd.Series(found)) if found.dtype.kind == "O" else found


def _of_pandas(series: pd.Series) -> Column:
    kind = series.dtype
    if isinstance(kind, pd.CategoricalDtype):
        return _of_pandas(pd.Series(series.to_numpy(dtype=object)).infer_objects())
    if isinstance(kind, pd.DatetimeTZDtype):
        return series.dt.tz_localize(None).to_numpy()  # conditions name local times
    if isinstance(kind, pd.PeriodDtype):
        return series.dt.to_timestamp().to_numpy()
    missing = series.isna().to_numpy()
    if isinstance(kind, pd.api.extensions.ExtensionDtype) and pd.api.types.is_numeric_dtype(kind):
        return _of_nullable(series, missing)
    if kind != np.dtype(object) and not pd.api.types.is_string_dtype(kind):
        return series.to_numpy()
    inferred = pd.api.types.infer_dtype(series, skipna=True)
    if inferred in ("date", "datetime", "datetime64") and not any(getattr(v, "tzinfo", None) for v in series):
        return pd.to_datetime(series).to_numpy()
    values = series.to_numpy(dtype=object).copy()
    values[missing] = None
    return values


def _of_nullable(series: pd.Series, missing: Bool[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
    """Numbers or truth values with a mask of missing ones."""
    if not missing.any():
        return series.to_numpy(dtype=series.dtype.numpy_dtype)
    if pd.api.types.is_bool_dtype(series.dtype):
        values = series.to_numpy(dtype=object, na_value=None)
        return np.asarray(values)
    return series.to_numpy(dtype=np.float64, na_value=np.nan)
