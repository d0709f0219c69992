"""The container that draws came in, so that they go out in the same one, without the removed rows.

A DataTree of a fit holds more than draws: observed and constant data, log-likelihoods, predictions, sampler statistics,
attributes. Much of it speaks of single rows, or was computed from all of them. After a change

- what has an axis of rows (data, coordinates, log-likelihoods, predictions, parameters of single rows) is cut to the
  kept rows; an axis of groups (persons, counties) to the groups that have rows left;
- what the model computes from its parameters is computed again, with the kept rows;
- what belongs to draws that have moved since (log-likelihoods, predictions) is computed again at the moved draws where
  the model can, and dropped where it cannot;
- everything else but the prior is dropped: log densities and sampler statistics saw all rows, and of attributes and
  numbers without an axis nobody knows what they hold.

The rule is that what is not known to be free of the removed rows does not come out. `told` says what was done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import xarray as xr
from jaxtyping import Bool, Int, PyTree

from posterase.data.selection import RowTable, blanked
from posterase.draws.io import PIECE_ELEMENTS, select_draws
from posterase.draws.notes import Note

SAMPLE_DIMS = ("chain", "draw")

LIBRARY_ATTRS = ("inference_library", "inference_library_version")
"""Attributes that are kept; others may hold anything."""

FINGERPRINT = "data_fingerprint"
"""The attribute of `posterior` that tells which data the draws belong to."""

OF_ROWS = ("observed_data", "constant_data", "prior_predictive", "prior")
"""Groups that do not depend on the draws of the posterior: cut to the kept rows."""

OF_DRAWS = ("log_likelihood", "posterior_predictive")
"""Groups that belong to the draws: cut to the kept rows, and computed again or dropped where the draws moved."""

UNNAMED = re.compile(r"_dim_\d+$")
"""How ArviZ names an axis that nobody has named."""


@runtime_checkable
class Computes(Protocol):
    """A model that computes variables of ArviZ's groups."""

    def computed(self, group: str, params: PyTree, names: Sequence[str]) -> Mapping[str, Any]:
        """Variables of a group at parameters `(chain, draw, …)`; entries of absent rows are cut out afterwards."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Grouping:
    """An axis of groups, and which of them every row of a block belongs to."""

    block: int
    member: Int[np.ndarray, " rows"]
    """The number of every row's group; −1 for rows that are gone."""
    had: Bool[np.ndarray, " groups"]
    """Groups that had rows to begin with."""

    @classmethod
    def of(cls, block: int, member: Int[np.ndarray, " rows"], size: int) -> Grouping:
        """From the group of every row, of this many."""
        return cls(block, member, np.isin(np.arange(size), member))

    def left(self, present: Bool[np.ndarray, " rows"]) -> Bool[np.ndarray, " groups"]:
        """Groups that stay: those with rows left, and those that never had any."""
        return ~self.had | np.isin(np.arange(len(self.had)), self.member[present])

    def without(self, present: Bool[np.ndarray, " rows"]) -> Grouping:
        """The same, with the groups of absent rows forgotten."""
        return Grouping(self.block, np.where(present, self.member, -1), self.had)


@dataclasses.dataclass(frozen=True, eq=False)
class Container:
    """Everything but the draws' values."""

    table: RowTable
    row_dims: dict[str, int]
    """The names that axes of rows go by, and the number of their block."""
    groups: dict[str, xr.Dataset]
    """All groups but the posterior."""
    companions: xr.Dataset
    """Variables of the posterior that are no parameters."""
    fitted: PyTree
    """The draws that the groups belong to. None: groups and companions have no values until they are written."""
    present: Bool[np.ndarray, " rows"]
    """Rows that have not been removed."""
    parameter_dims: frozenset[str] = frozenset()
    """Names of axes of the parameters: what has no other axis speaks of no row."""
    unknown_dims: frozenset[str] = frozenset()
    """Axes that may be rows of one block or of another: what has them does not come out."""
    group_dims: dict[str, Grouping] = dataclasses.field(default_factory=dict)
    """Axes of groups of rows: persons, counties. A group none of whose rows is left is cut out like a row."""
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: Computes | None = None
    """The model of the present rows, where there is one that computes variables anew."""
    computable: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    """The variables that it computes, by group."""
    preprocessing: str | None = None
    """What was computed from all rows before the fit, in words; None where nobody said."""
    suspected: str = ""
    """What looks like such preprocessing."""
    remarks: tuple[str, ...] = ()
    """What else a verdict must say."""

    # --- after a change

    def without(self, ids: Int[np.ndarray, " removed"], kept: Any) -> Container:
        """The container of the kept rows. Nothing of the removed rows is left in it."""
        present = self.present.copy()
        present[ids] = False
        if (present == self.present).all():
            return self
        left = self._masks(present, among=self.present)
        groups = {name: self._cleaned(name, group, left) for name, group in self.groups.items()}
        companions = self.companions.drop_vars(
            [
                name
                for name, values in self.companions.data_vars.items()
                if self.unknown_dims & set(values.dims) or not self._stays(name)
            ]
        )
        forgotten = {d: each.without(self._of_block(present, each.block)) for d, each in self.group_dims.items()}
        return dataclasses.replace(
            self,
            table=self.table.without(present),
            groups={name: group for name, group in groups.items() if group.data_vars},
            companions=_bare(_only(companions, left)),
            attrs={name: value for name, value in self.attrs.items() if name in LIBRARY_ATTRS},
            present=present,
            group_dims=forgotten,
            model=None if self.model is None else kept,
        )

    def at_draws(self, places: Int[np.ndarray, "chain draw"], params: PyTree) -> Container:
        """The container of some of its draws, at these places with chains laid end to end.

        What belongs to single draws is selected with them. `params` are the selected draws, which must not have moved.
        """
        chain, draw = (
            xr.Variable(SAMPLE_DIMS, each)
            for each in np.unravel_index(places, jax.tree.leaves(self.fitted)[0].shape[:2])
        )

        def select(group: xr.Dataset) -> xr.Dataset:
            if not set(SAMPLE_DIMS) <= set(group.dims):
                return group
            bare = group.drop_vars([name for name, each in group.coords.items() if set(each.dims) & set(SAMPLE_DIMS)])
            numbers = {dim: np.arange(size) for dim, size in zip(SAMPLE_DIMS, places.shape, strict=True)}
            picked = {name: _at(values.variable, chain, draw) for name, values in bare.data_vars.items()}
            return xr.Dataset(picked, coords=bare.coords, attrs=bare.attrs).assign_coords(numbers)

        groups = {name: select(group) if name in OF_DRAWS else group for name, group in self.groups.items()}
        return dataclasses.replace(self, groups=groups, companions=select(self.companions), fitted=params)

    def _stays(self, name: Hashable) -> bool:
        """Whether a companion may stay once rows are removed: the model computes it again, or there is no model."""
        return self.model is None or name in self.computable.get("posterior", ())

    def settled(self, params: PyTree) -> Container:
        """The container of new draws: nothing of the draws before is left in it, values of no variable either."""
        if not self.moved(params):
            return self
        blank = {name: self._blank(name, group) for name, group in self.groups.items() if name in OF_DRAWS}
        others = {name: group for name, group in self.groups.items() if name not in OF_DRAWS}
        return dataclasses.replace(
            self,
            groups=others | {name: group for name, group in blank.items() if group.data_vars},
            companions=self._blank("posterior", self.companions),
            fitted=None,
        )

    def _blank(self, name: str, group: xr.Dataset) -> xr.Dataset:
        """The variables of a group that the model computes, without their values."""
        blank = {
            variable: (values.dims, np.broadcast_to(np.float32(np.nan), values.shape))
            for variable, values in group.data_vars.items()
            if variable in self.computable.get(name, ())
        }
        return xr.Dataset(blank, coords=_without_sample_coords(group) if blank else {})

    def relabelled(self, coords: xr.Dataset, dims: Iterable[str]) -> xr.Dataset:
        """Coordinates along these axes, bare of all else, with the labels of what was removed blanked out.

        Of draws and chains only the numbers stay: another coordinate along them may be a function of the removed rows.
        """
        if self.present.all():
            return coords
        masks = self._masks(self.present)
        kept = {}
        for name, values in coords.coords.items():
            if set(values.dims) & set(SAMPLE_DIMS) and name not in SAMPLE_DIMS:
                continue
            if values.ndim and set(map(str, values.dims)) <= {*SAMPLE_DIMS, *dims}:
                blank = values.values
                for axis, dim in enumerate(values.dims):
                    if str(dim) in masks:
                        blank = np.moveaxis(blanked(np.moveaxis(blank, axis, 0), masks[str(dim)]), 0, axis)
                kept[name] = (values.dims, blank)
        return xr.Dataset(coords=kept)

    # --- out again

    def fill(self, params: PyTree, posterior: xr.Dataset, stats: xr.Dataset | None) -> xr.DataTree:
        """A tree of these draws and of what else may come out with them."""
        moved, whole = self.moved(params), self.present.all()
        filled = _only(posterior, self._masks(self.present))
        companions = self._companions(params, moved)
        filled = filled.assign({name: values.variable for name, values in companions.data_vars.items()})
        filled = filled.assign_coords({n: c.variable for n, c in companions.coords.items() if n not in filled.coords})
        filled = filled.assign_attrs(self.attrs | posterior.attrs)
        if self.fingerprint:
            filled.attrs[FINGERPRINT] = self.fingerprint
        groups = {"posterior": filled}
        for name, group in self.groups.items():
            if name in OF_ROWS or (not moved and whole) or (not moved and name in OF_DRAWS):
                groups[name] = group
            elif name in OF_DRAWS:
                groups[name] = self._computed(name, group, params).assign_coords(
                    {dim: filled[dim] for dim in SAMPLE_DIMS if dim in filled.coords}
                )
        if stats is not None:
            before = groups.get("sample_stats")
            groups["sample_stats"] = stats if before is None else before.assign(stats.data_vars)
        return xr.DataTree.from_dict({name: group for name, group in groups.items() if len(group.data_vars)})

    def moved(self, params: PyTree) -> bool:
        """Whether these are other draws than those that the groups belong to."""
        if self.fitted is None:
            return True
        ours, theirs = jax.tree.leaves(params), jax.tree.leaves(self.fitted)
        return not all(a is b or np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))

    @property
    def fingerprint(self) -> str:
        """A digest of the observed data, where they are there."""
        observed = self.groups.get("observed_data")
        if observed is None:
            return ""
        return fingerprint({str(name): values.values for name, values in observed.data_vars.items()})

    def told(self, before: Container, params: PyTree) -> tuple[Note, ...]:
        """What was done to the container since `before`, and what is to be known of it, in words for a verdict."""
        moved = self.moved(params)
        out = {name: self._coming_out(name, group, moved) for name, group in self.groups.items()}
        out = {name: variables for name, variables in out.items() if variables}
        lost = set(map(str, before.companions.data_vars)) - self._coming_out("posterior", self.companions, moved)
        gone = [f"{name} of the posterior" for name in before.companions.data_vars if name in lost]
        gone += [name for name in before.groups if name not in out]
        for name, variables in out.items():
            gone += [f"{each} of {name}" for each in before.groups[name].data_vars if each not in variables]
        said = []
        cut = [name for name in out if any(dim in self.row_dims for dim in before.groups[name].dims)]
        if cut:
            said.append(f"cut to the kept rows: {', '.join(cut)}")
        anew = [name for name in out if moved and name in OF_DRAWS]
        if anew:
            said.append(f"computed again at the moved draws: {', '.join(anew)}")
        for dim in self.group_dims:
            emptied = int(before._masks(before.present)[dim].sum() - self._masks(self.present)[dim].sum())
            if emptied:
                said.append(f"cut out, since none of its rows is left: {emptied} of {dim}")
        if gone:
            said.append(f"dropped, since they saw the removed rows or may have: {', '.join(gone)}")
        return (
            *(Note("container", text) for text in said),
            *(Note("model", text) for text in self.remarks),
            *(Note("preprocessing", text) for text in self._preprocessing()),
        )

    def _preprocessing(self) -> tuple[str, ...]:
        if self.preprocessing is None:
            looks = f"{self.suspected}; " if self.suspected else ""
            asked = "if means, scales or categories were computed from all rows before the fit, they still hold the"
            return (f"{looks}{asked} removed ones: say what was (preprocessing='…'), or preprocessing='none'",)
        if self.preprocessing.strip().lower() == "none":
            return (f"{self.suspected}, though preprocessing is said to be none",) if self.suspected else ()
        return (f"not erased: preprocessing that used all rows, the removed ones too: {self.preprocessing}",)

    # --- pieces

    def _of_block(self, rows: Bool[np.ndarray, " rows"], block: int) -> Bool[np.ndarray, " some"]:
        return rows[[at for _, at in self.table.placed()][block]]

    def _masks(
        self, present: Bool[np.ndarray, " rows"], among: Bool[np.ndarray, " rows"] | None = None
    ) -> dict[str, Bool[np.ndarray, " some"]]:
        """What stays, by the name of its axis: of all, or of what an axis was cut to before."""

        def by_axis(rows: Bool[np.ndarray, " rows"]) -> dict[str, Bool[np.ndarray, " some"]]:
            groups = {dim: each.left(self._of_block(rows, each.block)) for dim, each in self.group_dims.items()}
            return {dim: self._of_block(rows, block) for dim, block in self.row_dims.items()} | groups

        masks = by_axis(present)
        return masks if among is None else {dim: masks[dim][before] for dim, before in by_axis(among).items()}

    def _cleaned(self, name: str, group: xr.Dataset, left: Mapping[str, Bool[np.ndarray, " some"]]) -> xr.Dataset:
        """What of a group is known to be free of the removed rows."""
        if name not in OF_ROWS + OF_DRAWS:
            return xr.Dataset()
        harmless = set() if name in OF_DRAWS else {*self.parameter_dims, *self.group_dims}
        if name not in ("observed_data", "constant_data"):
            harmless |= set(SAMPLE_DIMS)
        stay = [
            variable
            for variable, values in group.data_vars.items()
            if not self.unknown_dims & set(values.dims)
            and (any(dim in self.row_dims for dim in values.dims) or (values.ndim and set(values.dims) <= harmless))
        ]
        return _bare(_only(group[stay], left))

    def _coming_out(self, name: str, group: xr.Dataset, moved: bool) -> set[str]:
        """The variables of a group that come out with draws that have moved, or have not."""
        every = set(map(str, group.data_vars))
        if name in OF_ROWS or (name in OF_DRAWS and not moved):
            return every
        if name == "posterior" and self.model is None:
            # What has an axis of rows is cut to the kept ones; everything else may be a sum over all of them.
            return set() if moved else {str(n) for n, v in group.data_vars.items() if set(v.dims) & set(self.row_dims)}
        return every & self.computable.get(name, frozenset())

    def _companions(self, params: PyTree, moved: bool) -> xr.Dataset:
        if not self.companions.data_vars or not (moved or not self.present.all()):
            return self.companions
        if self.model is None:
            return self.companions[sorted(self._coming_out("posterior", self.companions, moved))]
        return self._computed("posterior", self.companions, params)

    def _computed(self, name: str, group: xr.Dataset, params: PyTree) -> xr.Dataset:
        """A group, as the model computes it at these parameters, cut to the kept rows."""
        wanted = [str(each) for each in group.data_vars if each in self.computable.get(name, ())]
        if not wanted or self.model is None:
            return xr.Dataset()
        values = self.model.computed(name, params, wanted)
        made = xr.Dataset({each: (group[each].dims, np.asarray(values[each])) for each in wanted})
        return _only(made, self._masks(self.present)).assign_coords(_without_sample_coords(group))


def _without_sample_coords(group: xr.Dataset) -> dict[Hashable, xr.DataArray]:
    """Coordinates along neither chains nor draws."""
    return {name: each for name, each in group.coords.items() if not set(each.dims) & set(SAMPLE_DIMS)}


def _at(values: xr.Variable, chain: xr.Variable, draw: xr.Variable) -> xr.Variable:
    """Values at these chains and draws; those without both axes as they are."""
    if values.dims[:2] == SAMPLE_DIMS and values.size > PIECE_ELEMENTS:
        return select_draws(values, chain.values, draw.values)
    return values.isel(chain=chain, draw=draw) if set(SAMPLE_DIMS) <= set(values.dims) else values


def fingerprint(values: Mapping[str, Any]) -> str:
    """A digest of named arrays, of their values in float32: libraries store data in one precision or the other."""
    digest = hashlib.sha256()
    for name in sorted(values):
        array = np.asarray(values[name])
        numeric = array.dtype.kind in "fiub"
        content = array.astype("<f4").tobytes() if numeric else "\0".join(map(str, array.ravel())).encode()
        digest.update(f"{name}{array.shape}".encode() + content)
    return digest.hexdigest()


def _only(group: xr.Dataset, masks: Mapping[str, Bool[np.ndarray, " some"]]) -> xr.Dataset:
    """The rows where the masks hold, along their axes."""
    return group.isel({dim: np.flatnonzero(mask) for dim, mask in masks.items() if dim in group.dims})


def _bare(group: xr.Dataset) -> xr.Dataset:
    """Without attributes, encodings, and labels of nothing, but for the names of libraries."""
    bare = group.drop_attrs(deep=True).drop_encoding()
    used = {dim for values in bare.data_vars.values() for dim in values.dims}
    bare = bare.drop_vars([n for n, each in bare.coords.items() if each.ndim == 0 or not set(each.dims) <= used])
    return bare.assign_attrs({name: group.attrs[name] for name in LIBRARY_ATTRS if name in group.attrs})
