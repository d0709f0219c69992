"""Columns that are another one some rows back, scaled or shifted: `prev = (y[t − 1] − 1) / 2`.

Of three rows in a row the ratio (v₃ − v₁) / (v₂ − v₁) is the same for every column a v + b with a ≠ 0. So ratios are
compared at a few places, for all columns and lags at once, and the map is fitted only where several of them agree. A
column must hold enough values for this not to be chance. A column that is so related to itself (a trend, a season), or
is a map of the other one in the same row, says nothing of its past.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

MOST_ROWS = 2048
"""A map is looked for among so many rows."""

PLACES, AGREEING, RATIO_RTOL = 12, 3, 1e-3
"""Ratios are compared at so many places; at least so many agree, up to this error, where a map is fitted."""

LEAST_VALUES = 12
"""A map relates at least so many different values."""

PRECISION = 1e-6
"""How far a map may be from the column, as a share of its largest value: it may have been through float32."""


class AffineLag(NamedTuple):
    """`before`, so many rows later, is slope · `now` + intercept."""

    now: str
    before: str
    lag: int
    slope: float
    intercept: float
    tolerance: float

    def holds(self, now: Float[np.ndarray, " rows"], before: Float[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
        """Where a value is the other one's, of rows that belong together."""
        return np.abs(self.slope * now + self.intercept - before) <= self.tolerance


def find_affine_lags(
    columns: Mapping[str, Float[np.ndarray, " rows"]], observed: Sequence[str], farthest: int
) -> list[AffineLag]:
    """Columns that are an observed one some rows back, up to scale and shift.

    Parameters
    ----------
    columns
        Numbers of the same rows.
    observed
        Columns whose values are looked for in the others.
    farthest
        The largest lag.
    """
    known = {name: values for name, values in columns.items() if _is_rich(values)}
    size = len(next(iter(known.values()), ()))
    farthest = min(farthest, size // 2)
    nows = [name for name in observed if name in known]
    if not nows or len(known) < 2 or size - farthest - 2 < PLACES:
        return []
    names = list(known)
    ratios = _ratios(np.stack([known[name] for name in names]))
    places = np.linspace(0, size - farthest - 3, PLACES).astype(int)
    later = ratios[:, places[:, None] + np.arange(1, farthest + 1)]  # column, place, lag
    found = []
    for now in nows:
        at = ratios[names.index(now), places]
        agree = np.abs(later - at[:, None]) <= RATIO_RTOL * (1 + np.abs(at[:, None]))
        for column, lag in np.argwhere(agree.sum(axis=1) >= AGREEING):
            before = names[column]
            if before != now and (each := _between(now, before, int(lag) + 1, known)) is not None:
                found.append(each)
    return found


def _is_rich(values: Float[np.ndarray, " rows"]) -> bool:
    return len(np.unique(values[np.isfinite(values)])) >= LEAST_VALUES


def _ratios(values: Float[np.ndarray, "columns rows"]) -> Float[np.ndarray, "columns places"]:
    step, two = values[:, 1:-1] - values[:, :-2], values[:, 2:] - values[:, :-2]
    return np.divide(two, step, out=np.full_like(two, np.nan), where=step != 0)


def _between(now: str, before: str, lag: int, columns: Mapping[str, Float[np.ndarray, " rows"]]) -> AffineLag | None:
    """The map between two columns at a lag, if it is one, and if it is not there at any time."""
    values, held = columns[now], columns[before]
    found = _fitted(values[:-lag], held[lag:])
    if found is None or _fitted(values, held) is not None or _fitted(values[:-lag], values[lag:]) is not None:
        return None
    return AffineLag(now, before, lag, *found)


def _fitted(values: Float[np.ndarray, " rows"], held: Float[np.ndarray, " rows"]) -> tuple[float, float, float] | None:
    """Slope, intercept and tolerance of a map that most rows follow: medians do not see the ends of panels."""
    step, held_step = np.diff(values), np.diff(held)
    moving = np.isfinite(step + held_step) & (step != 0)  # rows that were removed before are not numbers
    if not moving.any():
        return None
    slope = float(np.median(held_step[moving] / step[moving]))
    known = np.isfinite(values + held)
    values, held = values[known], held[known]
    intercept = float(np.median(held - slope * values))
    tolerance = PRECISION * float(np.abs(held).max())
    if abs(slope) * np.ptp(values) <= tolerance:
        return None
    follows = np.abs(slope * values + intercept - held) <= tolerance
    share = max(_least_share(values), _least_share(held))
    enough = share < 1 and follows.mean() > share and len(np.unique(held[follows])) >= LEAST_VALUES
    return (slope, intercept, tolerance) if enough else None


def _least_share(values: Float[np.ndarray, " rows"]) -> float:
    """More rows than this follow a map that is not chance: half of them, or three times as many as values repeat."""
    _, counts = np.unique(values, return_counts=True)
    return max(0.5, 3 * float(((counts / counts.sum()) ** 2).sum()))
