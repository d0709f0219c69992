"""What a Stan program computes of the variables that came with its draws.

Transformed parameters and generated quantities (`log_lik`, `y_rep`) are computed again at moved draws, by the program
with the kept data, and go where they were: in the posterior, or in ArviZ's groups of log-likelihoods and predictions,
where they may have other names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from posterase.bridges.stan.model import Computed
from posterase.bridges.stan.programs import StanPosterior, by_name, is_odd
from posterase.draws.inference_groups import OF_DRAWS, SAMPLE_DIMS
from posterase.errors import DataChangedError, StanProgramError

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


class Dependent(NamedTuple):
    """Variables of the posterior that the program computes from several rows."""

    ordered: frozenset[str]
    """These change with the order of the rows: they read certain rows (`y[5]`), and with fewer rows read others."""
    of_rows: frozenset[str]
    """These change with the rows in any other way: they are computed again from the kept ones."""


def find_dependent(
    posterior: StanPosterior,
    with_rows: Callable[[Int[np.ndarray, " some"]], StanPosterior],
    computed: Mapping[str, Computed],
    theta: Float[np.ndarray, " d"],
    size: int,
) -> Dependent:
    """Find variables that change with the rows, by calling the program with others in their place.

    Parameters
    ----------
    posterior
        The program with all rows.
    with_rows
        The program with rows by their places, in this order.
    computed
        The variables of the posterior that it computes.
    theta
        A draw, unconstrained.
    size
        How many rows there are.
    """
    whole = _values(posterior, theta)
    names = [each for each in computed.values() if each.name in whole]
    order = np.random.default_rng(0).permutation(size)
    every = np.arange(size)
    orders = [np.roll(every, 1), np.roll(every[::-1], 1), order]
    ordered: set[str] = set()
    of_rows: set[str] = set()
    for places in (*orders, every[::2], every[1::2]):
        try:
            other = _values(with_rows(places), theta)
        except StanProgramError:  # it wants its rows sorted, say, or in a number that these are not
            continue
        for name, axis in names:
            expected = whole[name] if axis is None else np.take(whole[name], places, axis=axis)
            now = other.get(name)
            same = now is not None and now.shape == expected.shape
            if not (same and np.allclose(now, expected, rtol=1e-6, equal_nan=True)):  # type: ignore[arg-type]
                (ordered if len(places) == size else of_rows).add(name)
    own = [frozenset(n for n, each in computed.items() if each.name in found) for found in (ordered, of_rows)]
    return Dependent(*own)


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
