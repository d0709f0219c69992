"""What a Stan program computes of the variables that came with its draws.

Transformed parameters and generated quantities (`log_lik`, `y_rep`) are computed again at moved draws, by the program
with the kept data, and go where they were: in the posterior, or in ArviZ's groups of log-likelihoods and predictions,
where they may have other names.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from jaxtyping import Float

from posterase.bridges.stan_model import Computed
from posterase.bridges.stan_programs import StanPosterior, by_name, is_odd
from posterase.container import OF_DRAWS, SAMPLE_DIMS
from posterase.errors import DataChangedError

RTOL, ATOL = 5e-3, 2e-2
"""How far a stored value may be from the one computed now: CmdStan writes six digits, also of the parameters."""


def find_computed(
    posterior: StanPosterior,
    fewer: StanPosterior,
    groups: Mapping[str, xr.Dataset],
    theta: Float[np.ndarray, " d"],
    size: int,
) -> dict[str, dict[str, Computed]]:
    """The variables that the program computes, by group and by the name they have there.

    Parameters
    ----------
    posterior, fewer
        The program with all rows, and with one row less: an axis that is shorter there is the axis of rows.
    groups
        What came with the draws.
    theta
        The first draw, unconstrained.
    size
        How many rows there are.
    """
    axes = _row_axes(posterior, fewer, size)
    values = _values(posterior, theta)
    given = {group: _shapes(groups[group]) for group in ("posterior", *OF_DRAWS) if group in groups}
    found = {
        group: {
            name: Computed(name, axes[name])
            for name, shape in shapes.items()
            if name in axes and shape == posterior.shapes[name]
        }
        for group, shapes in given.items()
    }
    missing = [name for name in given.get("log_likelihood", ()) if name not in found["log_likelihood"]]
    if missing:
        found["log_likelihood"] |= _by_value(values, axes, groups["log_likelihood"][missing])
    for group, variables in found.items():
        for name, each in variables.items():
            if each.row_axis is not None and each.name in values:
                _check_stored(name, group, values[each.name], _first(groups[group], name))
    return found


def _row_axes(posterior: StanPosterior, fewer: StanPosterior, size: int) -> dict[str, int | None]:
    """What the program computes from its parameters, with the axis of rows, if any.

    Variables that change their shape with the rows in another way are left out.
    """
    odd = any(map(is_odd, posterior.elements("everything")))  # numbers that have no place among the others
    names = posterior.names("transformed" if odd else "everything")[len(posterior.names("parameters")) :]
    found: dict[str, int | None] = {}
    for name in names:
        whole, less = posterior.shapes[name], fewer.shapes.get(name)
        if whole == less:
            found[name] = None
        elif less is not None and len(less) == len(whole):
            changed = [axis for axis, (before, after) in enumerate(zip(whole, less, strict=True)) if before != after]
            if len(changed) == 1 and (whole[changed[0]], less[changed[0]]) == (size, size - 1):
                found[name] = changed[0]
    return found


def _shapes(group: xr.Dataset) -> dict[str, tuple[int, ...]]:
    """Of variables of draws, without the axes of chains and draws."""
    return {
        str(name): values.transpose(*SAMPLE_DIMS, ...).shape[len(SAMPLE_DIMS) :]
        for name, values in group.data_vars.items()
        if set(SAMPLE_DIMS) <= set(values.dims)
    }


def _first(group: xr.Dataset, name: str) -> Float[np.ndarray, "..."]:
    """The first draw of a variable."""
    return group[name].transpose(*SAMPLE_DIMS, ...).values[0, 0].astype(np.float64)


def _values(posterior: StanPosterior, theta: Float[np.ndarray, " d"]) -> dict[str, Float[np.ndarray, "..."]]:
    """What the program computes at a draw, but for what is random there."""
    kind = "transformed" if any(map(is_odd, posterior.elements("everything"))) else "everything"
    shapes = {name: posterior.shapes[name] for name in posterior.names(kind)}
    one, other = (by_name(posterior.constrain(theta[None], kind, seed)[0], shapes) for seed in (1, 2))
    return {name: each for name, each in one.items() if np.array_equal(each, other[name], equal_nan=True)}


def _by_value(
    values: Mapping[str, Float[np.ndarray, "..."]], axes: Mapping[str, int | None], stored: xr.Dataset
) -> dict[str, Computed]:
    """Log-likelihoods under the name of the observed variable, as ArviZ stores them: told by their values."""
    found = {}
    for name, shape in _shapes(stored).items():
        first = _first(stored, name)
        same = [each for each in axes if each in values and values[each].shape == shape and _agree(values[each], first)]
        if len(same) == 1:
            found[name] = Computed(same[0], axes[same[0]])
    return found


def _agree(now: Float[np.ndarray, "..."], before: Float[np.ndarray, "..."]) -> bool:
    return np.allclose(now, before, rtol=RTOL, atol=ATOL, equal_nan=True)


def _check_stored(name: str, group: str, now: Float[np.ndarray, "..."], before: Float[np.ndarray, "..."]) -> None:
    """What was stored for the rows is what the program computes: this sees rows in another order, which sums do not."""
    if not _agree(now, before):
        apart = int((~np.isclose(now, before, rtol=RTOL, atol=ATOL, equal_nan=True)).sum())
        raise DataChangedError(
            f"{name!r} of the {group.replace('_', ' ')} is not what the program computes with these data: {apart} of "
            f"{now.size} values differ.",
            "pass the program and the data of the fit, rows in the same order.",
        )
