"""Labels of groups where the data only number them: `firm_idx` with coordinates {"firm": ["IBM", …]}.

Rows can then be named by the label, `rows={"firm": "IBM"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Shaped

from posterase.data.conditions import Column
from posterase.draws.inference_groups import SAMPLE_DIMS

NUMBERED = re.compile(r"^(idx|index)_|_?(idx|index|ind|id|ids|code|codes|number|num|no|ix|i)$")
"""What names of numbered groups have more than names of groups: `firm_idx` for `firm`."""

PLURALS = (("ies", "y"), ("sses", "ss"), ("s", ""))
SINGULAR = ("ss", "us", "is")


class GroupLabels(NamedTuple):
    """Labels of every row's group."""

    columns: dict[str, Column]
    """By names that no other column has."""
    of_numbers: dict[str, Column]
    """By the name of the column that has the groups' numbers."""


def find_group_labels(
    columns: Mapping[str, Column], groups: Iterable[xr.Dataset], row_dims: Iterable[str], first: int
) -> GroupLabels:
    """Find the labels of groups that columns of rows number.

    A column numbers the groups of an axis if its name is the name of the axis, up to what `NUMBERED` and plurals add,
    or ends in it (`home_team_idx` for `team`). `first` is the number of the first group.
    """
    labels = _labelled_axes(groups, {*row_dims, *SAMPLE_DIMS})
    found: dict[str, Column] = {}
    of_numbers: dict[str, Column] = {}
    for name, values in columns.items():
        stem = stem_of(name.split(".")[-1])
        for dim, index in labels.items():
            if stem != stem_of(dim) and not stem.endswith(f"_{stem_of(dim)}"):
                continue
            own = _of_rows(values, index, first)
            if own is None:
                continue
            of_numbers[name] = own
            names = {stem, dim} if stem == stem_of(dim) else {stem}
            # Two columns that number the same groups differently leave the name of the axis to neither.
            for each in names - set(columns):
                if each in found and not np.array_equal(found[each], own):
                    found[each] = np.full(len(own), None, object)
                else:
                    found[each] = own
    clear = {name: values for name, values in found.items() if not all(each is None for each in values)}
    return GroupLabels(clear, of_numbers)


def stem_of(name: str) -> str:
    """The name of a group, without what says that it is numbered, in the singular."""
    bare = NUMBERED.sub("", name.lower()) or name.lower()
    for plural, singular in PLURALS if not bare.endswith(SINGULAR) else ():
        if bare.endswith(plural) and len(bare) > len(plural) + 1:
            return bare.removesuffix(plural) + singular
    return bare


def _labelled_axes(groups: Iterable[xr.Dataset], others: set[str]) -> dict[str, pd.Index]:
    """Axes that have labels, but for those of rows and draws."""
    found: dict[str, pd.Index] = {}
    for group in groups:
        for name in (str(dim) for dim in group.dims if str(dim) not in others and dim in group.coords):
            index = pd.Index(group[name].values)
            if index.is_unique and not index.equals(pd.RangeIndex(len(index))):
                found.setdefault(name, index)
    return found


def _of_rows(values: Column, labels: pd.Index, first: int) -> Shaped[np.ndarray, " rows"] | None:
    """The label of every row's group, where a column numbers the groups; None where it does not, or might not."""
    if values.dtype.kind not in "iuf" or not len(values) or not (values == np.round(values)).all():
        return None
    places = values.astype(np.int64) - first
    if places.min() < 0 or places.max() >= len(labels):
        return None
    if labels.dtype.kind in "iuf" and np.isin(values, labels).all():
        return None  # numbers that are labels themselves, or places: nobody knows which
    return labels.to_numpy()[places]
