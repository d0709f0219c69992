"""The container that draws came in, so that they go out in the same one, without the removed rows.

A DataTree of a fit holds more than draws: observed and constant data, log-likelihoods, predictions, sampler statistics,
attributes. Much of it speaks of single rows, or was computed from all of them. After a removal

- what has an axis of rows (data, coordinates, log-likelihoods, predictions, parameters of single rows) is cut to the
  kept rows;
- what the model computes from its parameters is computed again, with the kept rows;
- what belongs to draws that have moved since (log-likelihoods, predictions) is dropped;
- everything else but the prior is dropped: log densities and sampler statistics saw all rows, and of attributes and
  numbers without an axis nobody knows what they hold.

The rule is that what is not known to be free of the removed rows does not come out. `told` says what was done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Bool, Int, PyTree

from posterase.rows import RowTable, blanked

SAMPLE_DIMS = ("chain", "draw")

LIBRARY_ATTRS = ("inference_library", "inference_library_version")
"""Attributes that are kept; others may hold anything."""

FINGERPRINT = "data_fingerprint"
"""The attribute of `posterior` that tells which data the draws belong to."""

OF_ROWS = ("observed_data", "constant_data", "prior_predictive", "prior")
"""Groups that do not depend on the draws of the posterior: cut to the kept rows."""

OF_DRAWS = ("log_likelihood", "posterior_predictive")
"""Groups that belong to the draws: cut to the kept rows, and dropped where the draws moved."""

UNNAMED = re.compile(r"_dim_\d+$")
"""How ArviZ names an axis that nobody has named."""

Computed = Callable[[Any, PyTree], Mapping[str, Any]]
"""What a model computes from its parameters: of a model and parameters `(chain, draw, …)`."""


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
    """The draws that the groups belong to."""
    present: Bool[np.ndarray, " rows"]
    """Rows that have not been removed."""
    parameter_dims: frozenset[str] = frozenset()
    """Names of axes of the parameters: what has no other axis speaks of no row."""
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: Any = None
    """The model of the present rows, where there is one, to compute the companions anew."""
    computed: Computed | None = None
    preprocessing: str | None = None
    """What was computed from all rows before the fit, in words; None where nobody said."""
    suspected: str = ""
    """What looks like such preprocessing."""
    remarks: tuple[str, ...] = ()
    """What else a verdict must say."""

    # --- after a removal

    def without(self, ids: Int[np.ndarray, " removed"], kept: Any) -> Container:
        """The container of the kept rows. Nothing of the removed rows is left in it."""
        present = self.present.copy()
        present[ids] = False
        if (present == self.present).all():
            return self
        left = self._masks(present, among=self.present)
        groups = {name: self._cleaned(name, group, left) for name, group in self.groups.items()}
        return dataclasses.replace(
            self,
            table=self.table.without(present),
            groups={name: group for name, group in groups.items() if group.data_vars},
            companions=_bare(_only(self.companions, left)),
            attrs={name: value for name, value in self.attrs.items() if name in LIBRARY_ATTRS},
            present=present,
            model=None if self.model is None else kept,
        )

    def relabelled(self, coords: xr.Dataset) -> xr.Dataset:
        """Coordinates of all rows with the labels of removed ones blanked out."""
        masks = self._masks(self.present)
        changed = {}
        for name, values in coords.coords.items():
            for axis, dim in enumerate(values.dims):
                if str(dim) in masks:
                    rows_first = blanked(np.moveaxis(values.values, axis, 0), masks[str(dim)])
                    changed[name] = (values.dims, np.moveaxis(rows_first, 0, axis))
        single = [name for name, values in coords.coords.items() if values.ndim == 0 and not self.present.all()]
        return coords.assign_coords(changed).drop_vars(single)

    # --- out again

    def fill(self, params: PyTree, posterior: xr.Dataset, stats: xr.Dataset | None) -> xr.DataTree:
        """A tree of these draws and of what else may come out with them."""
        moved, whole = self.moved(params), bool(self.present.all())
        filled = _only(posterior, self._masks(self.present))
        companions = self._companions(params, moved)
        filled = filled.assign({name: values.variable for name, values in companions.data_vars.items()})
        filled = filled.assign_coords({n: c.variable for n, c in companions.coords.items() if n not in filled.coords})
        filled = filled.assign_attrs(self.attrs | posterior.attrs)
        if self.fingerprint:
            filled.attrs[FINGERPRINT] = self.fingerprint
        groups = {"posterior": filled}
        groups |= {
            name: group for name, group in self.groups.items() if name in OF_ROWS or (not moved and _known(name, whole))
        }
        if stats is not None:
            before = groups.get("sample_stats")
            groups["sample_stats"] = stats if before is None else before.assign(stats.data_vars)
        return xr.DataTree.from_dict(groups)

    def moved(self, params: PyTree) -> bool:
        """Whether these are other draws than those that the groups belong to."""
        ours, theirs = jax.tree.leaves(params), jax.tree.leaves(self.fitted)
        return not all(a is b or np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))

    @property
    def fingerprint(self) -> str:
        """A digest of the observed data, where they are there."""
        observed = self.groups.get("observed_data")
        if observed is None:
            return ""
        return fingerprint({str(name): values.values for name, values in observed.data_vars.items()})

    def told(self, before: Container, params: PyTree) -> tuple[str, ...]:
        """What was done to the container since `before`, and what is to be known of it, in words for a verdict."""
        moved = self.moved(params)
        out = [name for name in self.groups if name in OF_ROWS or not moved]
        gone = [f"{name} of the posterior" for name in self.companions.data_vars if moved and self.computed is None]
        gone += [name for name in before.groups if name not in out]
        for name in out:
            lost = [each for each in before.groups[name].data_vars if each not in self.groups[name].data_vars]
            gone += [f"{each} of {name}" for each in lost]
        said = []
        cut = [name for name in out if any(dim in self.row_dims for dim in before.groups[name].dims)]
        if cut:
            said.append(f"cut to the kept rows: {', '.join(cut)}")
        if gone:
            said.append(f"dropped, since they saw the removed rows or may have: {', '.join(gone)}")
        return (*said, *self.remarks, *self._preprocessing())

    def _preprocessing(self) -> tuple[str, ...]:
        if self.preprocessing is None:
            looks = f"{self.suspected}; " if self.suspected else ""
            asked = "if means, scales or categories were computed from all rows before the fit, they still hold the"
            return (f"{looks}{asked} removed ones: say what was (preprocessing='…'), or preprocessing='none'",)
        if self.preprocessing.strip().lower() == "none":
            return (f"{self.suspected}, though preprocessing is said to be none",) if self.suspected else ()
        return (f"not erased: preprocessing that used all rows, the removed ones too: {self.preprocessing}",)

    # --- pieces

    def _masks(
        self, present: Bool[np.ndarray, " rows"], among: Bool[np.ndarray, " rows"] | None = None
    ) -> dict[str, Bool[np.ndarray, " some"]]:
        """Which rows stay, by the name of their axis: of all rows, or of those among which an axis was cut before."""
        places = [at for _, at in self.table.placed()]
        among = np.ones_like(present) if among is None else among
        return {dim: present[places[block]][among[places[block]]] for dim, block in self.row_dims.items()}

    def _cleaned(self, name: str, group: xr.Dataset, left: Mapping[str, Bool[np.ndarray, " some"]]) -> xr.Dataset:
        """What of a group is known to be free of the removed rows."""
        if not _known(name, whole=False):
            return xr.Dataset()
        harmless = {*self.parameter_dims, *SAMPLE_DIMS} if name not in OF_DRAWS else set()
        stay = [
            variable
            for variable, values in group.data_vars.items()
            if any(dim in self.row_dims for dim in values.dims) or (values.ndim and set(values.dims) <= harmless)
        ]
        return _bare(_only(group[stay], left))

    def _companions(self, params: PyTree, moved: bool) -> xr.Dataset:
        if not self.companions.data_vars or not (moved or not self.present.all()):
            return self.companions
        if self.computed is None:
            return xr.Dataset() if moved else self.companions
        values = self.computed(self.model, params)
        made = {name: (self.companions[name].dims, np.asarray(values[str(name)])) for name in self.companions.data_vars}
        return _only(xr.Dataset(made), self._masks(self.present)).assign_coords(self.companions.coords)


def fingerprint(values: Mapping[str, Any]) -> str:
    """A digest of named arrays, of their values in float32: libraries store data in one precision or the other."""
    digest = hashlib.sha256()
    for name in sorted(values):
        array = np.asarray(values[name])
        numeric = array.dtype.kind in "fiub"
        content = array.astype("<f4").tobytes() if numeric else "\0".join(map(str, array.ravel())).encode()
        digest.update(f"{name}{array.shape}".encode() + content)
    return digest.hexdigest()


def looks_standardised(table: RowTable) -> str:
    """Which columns have mean 0 and standard deviation 1, or mean 0 alone: computed from all rows, it seems."""
    found = []
    for block in table.blocks:
        for name, values in block.columns.items():
            if values.dtype.kind != "f" or block.size < 10 or not np.isfinite(values).all():
                continue
            wide = values.astype(np.float64)
            spread = wide.std()
            if spread == 0 or abs(wide.mean()) > 1e-5 * spread:
                continue
            unit = min(abs(spread - 1), abs(wide.std(ddof=1) - 1)) < 1e-5
            found.append(f"{name} looks {'standardised' if unit else 'centred'} with all rows")
    return "; ".join(found)


def _known(group: str, whole: bool) -> bool:
    """Whether a group may come out: any group before the first removal."""
    return whole or group in OF_ROWS or group in OF_DRAWS


def _only(group: xr.Dataset, masks: Mapping[str, Bool[np.ndarray, " some"]]) -> xr.Dataset:
    """The rows where the masks hold, along their axes."""
    return group.isel({dim: np.flatnonzero(mask) for dim, mask in masks.items() if dim in group.dims})


def _bare(group: xr.Dataset) -> xr.Dataset:
    """Without attributes, encodings and single numbers, but for the names of libraries."""
    bare = group.drop_attrs(deep=True).drop_encoding()
    bare = bare.drop_vars([name for name, values in bare.coords.items() if values.ndim == 0])
    return bare.assign_attrs({name: group.attrs[name] for name in LIBRARY_ATTRS if name in group.attrs})
