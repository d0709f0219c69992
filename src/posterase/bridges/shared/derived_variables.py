"""Variables that programs compute from all rows: log densities, centred intercepts, means of covariates.

Beside what is known of the kept rows they give those of the removed ones, so they do not come out after an erasure. A
file does not say what its variables are; they are told by their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from posterase.draws.inference_groups import SAMPLE_DIMS, Grouping

SUMS_OF_LIKELIHOODS = re.compile(
    r"(lp|ll|target|energy|deviance|potential(_energy)?|elpd.*|log_?p|log_?(lik|post|prob|dens|joint|target).*)_*",
    re.IGNORECASE,
)
"""Names of variables that programs compute from the log-likelihoods of all rows."""

PROPORTIONAL, EXPLAINED, MORE_THAN_BEFORE = 1e-3, 0.02, 5.0
"""A variable is a sum of log-likelihoods if their total leaves less than the first share of its variance; or if it
leaves, with functions of the parameters, less than the second, and the parameters alone so many times more."""

RIDGE = 1e-9
"""Keeps the normal equations solvable where parameters are collinear."""


def without_sums_of_likelihoods(
    names: list[str], posterior: xr.Dataset, total: Float[np.ndarray, "chain draw"]
) -> list[str]:
    """Leave out variables that follow the log-likelihood of all rows: a deviance, a log density.

    With the log-likelihoods of the kept rows, which are written, they give those of the removed rows. A log density is
    the log-likelihood plus a function of the parameters, for which there are powers and logarithms of the others.
    """
    every = {
        name: posterior[name].transpose(*SAMPLE_DIMS, ...).values.reshape(total.size, -1).astype(np.float64)
        for name in names
        if not SUMS_OF_LIKELIHOODS.fullmatch(name)
    }
    target = _standardised(total.reshape(-1, 1))
    if not np.isfinite(target).all() or not np.any(target):
        return list(every)
    left = {name: each for name, each in every.items() if not _is_proportional(each, target)}
    columns = np.concatenate([np.zeros((total.size, 0)), *left.values()], axis=1)[:, : total.size // 20]
    owner = np.repeat(list(left), [each.shape[1] for each in left.values()])[: columns.shape[1]]
    with np.errstate(divide="ignore"):
        logs = np.nan_to_num(np.log(np.abs(columns)), neginf=0.0)
    functions = _standardised(np.concatenate([columns, columns**2, logs, logs**2], axis=1))
    products = functions.T @ functions / total.size + RIDGE * np.eye(functions.shape[1])
    kept = []
    for name, values in left.items():
        if values.shape[1] > 1:
            kept.append(name)
            continue
        others = np.flatnonzero(np.tile(owner != name, 4))
        pair = np.concatenate([_standardised(values), target], axis=1)
        shared = (functions.T @ pair / total.size)[others]
        unexplained = pair.T @ pair / total.size - shared.T @ np.linalg.solve(products[np.ix_(others, others)], shared)
        if not _follows(unexplained):
            kept.append(name)
    return kept


def _standardised(columns: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    """With mean zero and variance one; zero where nothing varies."""
    spread = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, np.inf)


def _is_proportional(values: Float[np.ndarray, "n k"], target: Float[np.ndarray, "n 1"]) -> bool:
    """Whether a variable is a multiple of the log-likelihood, plus a constant."""
    return values.shape[1] == 1 and float((_standardised(values) * target).mean() ** 2) > 1 - PROPORTIONAL


def _follows(unexplained: Float[np.ndarray, "2 2"]) -> bool:
    """Whether a variable is a function of others plus a multiple of the log-likelihood.

    From the covariance of the two that the others leave unexplained: of the variable's share, both² / rest is the
    log-likelihood's.
    """
    (alone, both), (_, rest) = unexplained
    if rest < PROPORTIONAL:  # the others explain the log-likelihood, too
        return False
    beside = alone - both**2 / rest
    return bool(beside < EXPLAINED and alone > max(MORE_THAN_BEFORE * beside, PROPORTIONAL))


# --- summaries of rows among the data

ROUNDING = 1e-5
"""How far a summary may be from what it is of: data may have been through float32."""

SUMMARIES: tuple[Callable[..., Any], ...] = (np.mean, np.sum, np.std, np.var, np.median, np.min, np.max)


def find_summaries(group: xr.Dataset, row_dims: frozenset[str], grouped: Mapping[str, Grouping]) -> list[str]:
    """Names of variables without an axis of rows that are a summary of one that has it: means of columns, say.

    Parameters
    ----------
    group
        Observed or constant data.
    row_dims
        Axes of rows.
    grouped
        Axes of groups of rows, over which a summary may be taken as well.
    """
    of_rows: list[Shaped[np.ndarray, "rows ..."]] = []
    others: dict[str, xr.DataArray] = {}
    for name, values in group.data_vars.items():
        if values.dtype.kind not in "fiub" or values.size == 0:
            continue
        axes = [i for i, dim in enumerate(values.dims) if str(dim) in row_dims]
        if len(axes) == 1:
            of_rows.append(np.moveaxis(values.values, axes[0], 0).astype(np.float64))
        elif not axes and values.ndim:
            others[str(name)] = values
    if not others:
        return []
    over_all = [each for rows in of_rows for each in _summaries(rows)]
    found = []
    for name, values in others.items():
        known = list(over_all)
        if values.ndim == 1 and str(values.dims[0]) in grouped:
            known += _by_group(of_rows, grouped[str(values.dims[0])])
        if any(_equal(values.values.astype(np.float64), each) for each in known):
            found.append(name)
    return found


def _summaries(rows: Float[np.ndarray, "rows ..."]) -> Iterator[Float[np.ndarray, "..."]]:
    """Summaries over all rows, where rows differ."""
    if rows.ndim > 1 and len(rows) > 1 and np.ptp(rows, axis=0).any():
        yield from (summarise(rows, axis=0) for summarise in SUMMARIES)
        yield rows.std(axis=0, ddof=1)


def _by_group(
    of_rows: Sequence[Float[np.ndarray, "rows ..."]], grouping: Grouping
) -> list[Float[np.ndarray, " groups"]]:
    """Summaries over the rows of each group: their number, and means of what differs within groups."""
    member, size = grouping.member, len(grouping.had)
    counts = np.asarray(np.bincount(member, minlength=size), np.float64)
    found: list[Any] = [counts]
    columns = [each for rows in of_rows if len(rows) == len(member) for each in rows.reshape(len(rows), -1).T]
    for rows in columns:
        sums = np.bincount(member, rows, size)
        means = np.divide(sums, counts, out=np.zeros(size), where=counts > 0)
        if not np.allclose(rows, means[member], rtol=ROUNDING):
            found += [sums, means]
    return found


def _equal(one: Float[np.ndarray, "..."], other: Float[np.ndarray, "..."]) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=ROUNDING, atol=0, equal_nan=True)
