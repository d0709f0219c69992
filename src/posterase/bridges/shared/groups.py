"""Groups of ArviZ: files opened, axes of rows named, and draws put beside their data in a container."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Int, Shaped

from posterase.bridges.shared.derived_variables import find_summaries
from posterase.bridges.shared.group_labels import find_group_labels
from posterase.bridges.shared.row_frames import describe_rows, read_frames
from posterase.data.leakage import looks_standardised
from posterase.data.selection import Block, RowTable, columns_of
from posterase.draws.draws import Draws, groups_of
from posterase.draws.inference_groups import SAMPLE_DIMS, Container, Grouping
from posterase.draws.io import read_tree
from posterase.errors import AmbiguousRowsError, DifferentModelError, InputFileError, InvalidTypeError

DATA_GROUPS = ("constant_data", "observed_data")


def opened(source: Any) -> dict[str, xr.Dataset]:
    """The groups of a file or a tree, with a posterior among them."""
    if isinstance(source, (str, os.PathLike)):
        source = read_tree(source)
    groups = {name: _plain_indexes(group) for name, group in groups_of(source).items()}
    if not groups and not isinstance(source, xr.DataTree):
        raise InvalidTypeError(
            f"source is a {type(source).__name__}.", "pass a netCDF file, a zarr folder, a DataTree or InferenceData."
        )
    if "posterior" not in groups and "warmup_posterior" in groups:
        raise DifferentModelError(
            "there are draws from the warm-up only (warmup_posterior).", "sample on: warm-up draws are no posterior."
        )
    require_group(groups, "posterior", "pass the file that holds the posterior draws.")
    return groups


def _plain_indexes(group: xr.Dataset) -> xr.Dataset:
    """Labels of several levels as plain coordinates: an index remembers levels that are gone."""
    several = [name for name, index in group.indexes.items() if isinstance(index, pd.MultiIndex)]
    own = [name for name in several if name in group.dims]
    return group.reset_index(own).drop_vars(own, errors="ignore") if own else group


def check_sampled(groups: Mapping[str, xr.Dataset]) -> None:
    """Refuse draws that a sampler says are from its warm-up."""
    tune = groups.get("sample_stats", xr.Dataset()).get("tune")
    if tune is not None and bool(tune.any()):
        raise DifferentModelError(
            f"{int(tune.sum())} of the draws are from the warm-up (sample_stats.tune).",
            "leave them out: idata.sel(draw=slice(tuning_steps, None)).",
        )


class Axes(NamedTuple):
    """What the axes of a tree are."""

    rows: dict[str, int]
    """Names that axes of rows go by, and their block."""
    unknown: frozenset[str]
    """Axes as long as several blocks: nobody knows whose rows."""
    guessed: tuple[str, ...]
    """Axes that were taken for rows by their length alone."""


def axes_of(
    named: Mapping[str, int],
    blocks: Sequence[tuple[str, int]],
    groups: Mapping[str, xr.Dataset],
    parameters: frozenset[str],
) -> Axes:
    """Axes of rows by name, and all others that have as many entries, but for those known to be of parameters.

    Programs do not always name axes (CmdStan calls the same rows `log_lik_dim_0`, `y_dim_0` and `mu_dim_0`), and people
    name one axis twice. What is as long as the rows is taken for them: rather cut than leaked.
    """
    rows, unknown, guessed = dict(named), set(), []
    for group in groups.values():
        for dim, size in group.sizes.items():
            if str(dim) in rows or str(dim) in parameters or dim in SAMPLE_DIMS:
                continue
            fitting = [i for i, (_, n) in enumerate(blocks) if n == size]
            if len(fitting) == 1:
                rows[str(dim)] = fitting[0]
                guessed.append(str(dim))
            elif fitting:
                unknown.add(str(dim))
    return Axes(rows, frozenset(unknown), tuple(guessed))


def labelled(blocks: Sequence[Block], axes: Axes, groups: Mapping[str, xr.Dataset], first: int = 0) -> RowTable:
    """The table of rows, with coordinates and data of rows as columns.

    Groups of rows that the data only number have their labels from coordinates; `first` is the first group's number.
    """
    columns: list[dict[str, Shaped[np.ndarray, " rows"]]] = [dict(block.columns) for block in blocks]
    for group_name in (*DATA_GROUPS, "log_likelihood", "posterior"):
        group = groups.get(group_name, xr.Dataset())
        known = dict(group.coords.items()) | (dict(group.data_vars.items()) if group_name in DATA_GROUPS else {})
        for name, values in known.items():
            block = axes.rows.get(str(values.dims[0])) if 0 < values.ndim <= 2 else None
            if block is not None and values.shape[0] == blocks[block].size:
                own = blocks[block].dim if name in axes.rows else str(name)
                columns[block] = columns_of(own, values.values) | columns[block]
    named = [find_group_labels(found, groups.values(), axes.rows, first) for found in columns]
    return RowTable(
        tuple(
            dataclasses.replace(block, columns=found | labels.columns, group_labels=labels.of_numbers)
            for block, found, labels in zip(blocks, columns, named, strict=True)
        )
    )


def groupings(table: RowTable, axes: Axes, groups: Mapping[str, xr.Dataset], first: int = 0) -> dict[str, Grouping]:
    """Axes of groups that a column of the rows names: by labels of the axis, or by name and number (`county_idx`).

    `first` is the number of the first group: 1, where the program counts from one.
    """
    found: dict[str, Grouping] = {}
    for group_name in ("posterior", *DATA_GROUPS):
        group = groups.get(group_name, xr.Dataset())
        for dim in (str(each) for each in group.dims if str(each) not in axes.rows and each not in SAMPLE_DIMS):
            labels = pd.Index(group[dim].values) if dim in group.coords else pd.RangeIndex(group.sizes[dim])
            for number, block in enumerate(table.blocks):
                for name, values in block.columns.items():
                    last = name.split(".")[-1]
                    member = _member(values, labels, dim in last or last in dim, first)  # county, county_idx
                    if member is not None:
                        found.setdefault(dim, Grouping.of(number, member, len(labels)))
    return found


def _member(
    values: Shaped[np.ndarray, " rows"], labels: pd.Index, named: bool, first: int
) -> Int[np.ndarray, " rows"] | None:
    """The number of every row's group, where a column holds labels of the axis, or has its name and numbers it."""
    if values.dtype.kind in "OU" and labels.is_unique and len(labels) > 1:
        member = labels.get_indexer(pd.Index(values))
        return member.astype(np.int64) if (member >= 0).all() else None
    whole = values.dtype.kind in "iu" or (values.dtype.kind == "f" and bool((values == np.round(values)).all()))
    if not named or not whole or not len(values):
        return None
    if first and (labels.dtype.kind not in "iu" or labels.equals(pd.RangeIndex(len(labels)))):
        values = values - first  # places: labels are text, or nobody gave them
    elif labels.dtype.kind in "iu" and labels.is_unique:
        member = labels.get_indexer(pd.Index(values.astype(np.int64)))
        if (member >= 0).all():
            return member.astype(np.int64)
    fits = values.min() >= 0 and values.max() < len(labels)
    return values.astype(np.int64) if fits else None


def make_container(
    groups: Mapping[str, xr.Dataset],
    names: Sequence[str],
    table: RowTable,
    axes: Axes,
    preprocessing: str | None,
    *,
    model: Any = None,
    computable: Mapping[str, frozenset[str]] = types.MappingProxyType({}),
    remarks: tuple[str, ...] = (),
    first_group: int = 0,
) -> Container:
    """What draws of these parameters came in."""
    posterior = groups["posterior"]
    own = {str(dim) for name in names for dim in posterior[name].dims} - set(axes.rows) - {*SAMPLE_DIMS}
    of_groups = groupings(table, axes, groups, first_group)
    rows = frozenset(axes.rows)
    summaries = {name: find_summaries(groups[name], rows, of_groups) for name in DATA_GROUPS if name in groups}
    groups = {name: group.drop_vars(summaries.get(name, ())) for name, group in groups.items()}
    if any(summaries.values()):
        said = ", ".join(f"{each} of {name}" for name, found in summaries.items() for each in found)
        remarks += (f"left out, since it was computed from all rows: {said}",)
    if axes.guessed:
        remarks += (f"taken for rows by their length: the axes {', '.join(axes.guessed)}",)
    whole = sorted(dim for dim in own - set(of_groups) if _is_labelled(dim, groups))
    if whole:
        remarks += (f"axes that are no rows keep all their labels and data: {', '.join(whole)}",)
    return Container(
        table=table,
        row_dims=dict(axes.rows),
        groups={name: group for name, group in groups.items() if name != "posterior"},
        companions=posterior.drop_vars([name for name in posterior.data_vars if name in names]),
        fitted=None,
        present=np.ones(table.n_rows, bool),
        parameter_dims=frozenset(own),
        unknown_dims=axes.unknown,
        group_dims=of_groups,
        attrs=dict(posterior.attrs),
        model=model,
        computable=dict(computable),
        preprocessing=preprocessing,
        suspected=looks_standardised(table),
        remarks=remarks,
    )


def with_groups(
    draws: Draws,
    groups: Mapping[str, xr.Dataset],
    row_dim: str,
    *,
    preprocessing: str | None = None,
    remarks: tuple[str, ...] = (),
    frame: Any = None,
) -> Draws:
    """Draws beside the data that they came with, so that these are cut with them: for bridges of one axis of rows.

    Parameters
    ----------
    draws
        Draws of a model whose rows are those of the groups.
    groups
        Groups by ArviZ's schema: `observed_data`, `constant_data`, …
    row_dim
        The name of their axis of rows.
    preprocessing
        What was computed from all rows before the fit, in words, or "none".
    remarks
        What every verdict on these draws must say.
    frame
        What else is known about the rows, as for `pe.from_numpyro`.
    """
    frames = read_frames(frame)
    posterior = draws.to_arviz(include_weights=True)["posterior"].to_dataset()
    every = {**groups, "posterior": posterior}
    size = next((group.sizes[row_dim] for group in groups.values() if row_dim in group.sizes), None)
    if size is None:
        raise AmbiguousRowsError(f"no group has an axis {row_dim!r}.", "name the axis that the rows are along.")
    own = frozenset(str(dim) for dim in posterior.dims)
    axes = axes_of({row_dim: 0}, [(row_dim, size)], every, own)
    observed = tuple(map(str, groups.get("observed_data", xr.Dataset()).data_vars))
    table = labelled([Block(row_dim, size, observed)], axes, every)
    inside = draws.inside(make_container(every, draws.names, table, axes, preprocessing, remarks=remarks))
    return describe_rows(inside, frames)


def _is_labelled(dim: str, groups: Mapping[str, xr.Dataset]) -> bool:
    """Whether an axis has labels other than numbers from 0, or data of its own."""
    for name, group in groups.items():
        if dim in group.coords and group[dim].dtype.kind not in "iu":
            return True
        if name in DATA_GROUPS and dim in group.dims:
            return True
    return False


def sampled(groups: Mapping[str, xr.Dataset]) -> xr.DataTree:
    """Draws and their weights."""
    return xr.DataTree.from_dict({name: groups[name] for name in ("posterior", "sample_stats") if name in groups})


def require_group(groups: Mapping[str, xr.Dataset], name: str, advice: str) -> None:
    """Raise an error where the tree has no such group."""
    if name not in groups:
        raise InputFileError(f"there is no group {name!r}; there are {', '.join(groups) or 'none'}.", advice)
