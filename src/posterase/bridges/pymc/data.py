"""The data of a fit in a PyMC model whose `pm.Data` were changed since, by `pm.set_data` for predictions say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Shaped
from pytensor.compile.sharedvalue import SharedVariable

from posterase.bridges.pymc.model import IN_PYTHON
from posterase.bridges.shared.assembly import same
from posterase.errors import DataChangedError


@contextlib.contextmanager
def data_of_the_fit(model: Any, groups: Mapping[str, xr.Dataset]) -> Iterator[tuple[str, ...]]:
    """Set `pm.Data` to what is stored with the draws, for as long as the context lasts; yields remarks.

    PyMC stores data in `constant_data`, and those that are observed in `observed_data`. What is not stored stays.
    """
    changed = {each: value for each, value in _stored(model, groups).items() if not same(value, each.get_value())}
    sizes = {
        model.dim_lengths[dim]: size
        for each, value in changed.items()
        for dim, size in zip(model.named_vars_to_dims.get(each.name) or (), value.shape, strict=False)
        if dim is not None and isinstance(model.dim_lengths.get(dim), SharedVariable)
    }
    before = {each: each.get_value() for each in (*changed, *sizes)}
    names = ", ".join(each.name for each in changed)
    try:
        for each, value in changed.items():
            each.set_value(value.astype(each.type.dtype))
        for each, size in sizes.items():
            each.set_value(np.asarray(size, each.type.dtype))
        _check_observed(model, groups)
        yield (f"the data of the fit were used, as stored with the draws; the model holds others of {names}",) * bool(
            changed
        )
    finally:
        for each, value in before.items():
            each.set_value(value)


def _stored(model: Any, groups: Mapping[str, xr.Dataset]) -> dict[Any, Shaped[np.ndarray, "..."]]:
    """The stored values of the model's data."""
    constants, observed = (groups.get(name, xr.Dataset()) for name in ("constant_data", "observed_data"))
    data = {each for each in model.data_vars if isinstance(each, SharedVariable)}
    found = {each: constants[each.name].values for each in data if each.name in constants}
    for variable in dict.fromkeys(model.observed_RVs):
        value = model.rvs_to_values[variable]
        if value in data and variable.name in observed:
            found[value] = observed[variable.name].values
    return {each: value for each, value in found.items() if value.ndim == each.type.ndim}


def _check_observed(model: Any, groups: Mapping[str, xr.Dataset]) -> None:
    """Refuse data that do not fit each other: some were changed since the fit, and are not stored with the draws."""
    observed = groups.get("observed_data", xr.Dataset())
    for variable in dict.fromkeys(model.observed_RVs):
        value = model.rvs_to_values[variable]
        held: Any = value.get_value() if isinstance(value, SharedVariable) else getattr(value, "data", None)
        now = np.shape(held)
        fitted = observed[variable.name].shape if variable.name in observed else now
        for shape in (now, _shape_by_covariates(variable)):
            if shape and fitted and shape != fitted:
                raise DataChangedError(
                    f"the data in the model are not those of the fit: they make the shape of {variable.name!r} "
                    f"{shape}, and it was {fitted}.",
                    "set them back before you pass the model: with model: pm.set_data({'x': x_of_the_fit}, "
                    "coords={…}); or build the model again from the data of the fit.",
                )


def _shape_by_covariates(variable: Any) -> tuple[int, ...] | None:
    """The shape that a variable has by what it is computed from; None: PyMC cannot say."""
    try:
        return tuple(int(size) for size in variable.shape.eval(mode=IN_PYTHON))
    except Exception:  # whatever PyTensor raises for shapes that do not fit, or for a density that cannot be drawn from
        return None
