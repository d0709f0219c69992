"""What columns of data tell of how they were made: standardised with all rows, or a series some rows back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from posterase.data.affine_lags import MOST_ROWS, AffineLag, find_affine_lags
from posterase.data.selection import Block, RowTable

FARTHEST_LAG = 60
"""How many rows back a column is looked for in another one."""

LEAST_SHARE, TIMES_CHANCE = 0.5, 3.0
"""The share of equal entries that makes a column a lagged other one, and how far above chance it must be."""


AT_ONCE = 2**20
"""About how many rows are compared at once."""


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


class Holding(NamedTuple):
    """Kept rows that hold observed values of removed ones, as the next row of a series does as a covariate."""

    rows: Int[np.ndarray, " kept"]
    how: str
    """Which columns hold which, in words."""


def lagged(table: RowTable, ids: Int[np.ndarray, " removed"]) -> Holding:
    """The kept rows that hold observed values of these rows in lagged columns."""
    rows: list[Int[np.ndarray, " some"]] = [np.zeros(0, np.int64)]
    how: list[str] = []
    for whole, place in table.placed():
        inside = ids[(ids >= place.start) & (ids < place.stop)] - place.start
        if not inside.size:
            continue
        begin, block = whole.around(int(inside.min()))
        inside = inside[(inside >= begin) & (inside < begin + block.size)] - begin
        start = place.start + begin
        for before, what, holding in _lagged_in(block, inside):
            rows.append(start + holding)
            how.append(f"{before} is {what}")
    return Holding(np.unique(np.concatenate(rows)), "; ".join(dict.fromkeys(how)))


def _lagged_in(block: Block, inside: Int[np.ndarray, " removed"]) -> Iterator[tuple[str, str, Any]]:
    """Columns of a block that hold others of rows before: their names, what they hold, and the rows that hold it."""
    exact: set[tuple[str, str]] = set()
    numeric = {name: values for name, values in block.columns.items() if values.dtype.kind in "fiu"}
    later = _later(inside, block.size)
    groups = _together(later)
    for now in _observed(block):
        if now not in numeric:
            continue
        needed: float | None = None
        for before, held in numeric.items():
            # Whole columns are looked at only where some kept row does hold a removed one's value.
            if before == now or not any(_equal(numeric[now], held, *group) for group in groups):
                continue
            needed = _telling(_numbers(numeric[now])) if needed is None else needed
            lag = _lag(_numbers(numeric[now]), _numbers(held), needed)
            holding = _holds(numeric[now], held, later[lag], lag) + lag if lag else inside[:0]
            if holding.size:
                exact.add((now, before))
                yield before, f"{now} of {_rows(lag)} before", holding
    for found in _affine_lags(block, numeric, inside) if any(map(len, later.values())) else ():
        if (found.now, found.before) in exact:
            continue
        rows = later[found.lag]
        own, held = _numbers(numeric[found.now][rows]), _numbers(numeric[found.before][rows + found.lag])
        holding = rows[found.holds(own, held)] + found.lag
        if holding.size:
            yield found.before, f"{found.now} of {_rows(found.lag)} before, scaled or shifted", holding


def _rows(number: int) -> str:
    return f"{number} row{'s' if number > 1 else ''}"


def _affine_lags(
    block: Block, numeric: dict[str, Shaped[np.ndarray, " rows"]], inside: Int[np.ndarray, " removed"]
) -> list[AffineLag]:
    """Maps between columns, among the rows around the first removed one."""
    first = int(np.clip(inside.min() - MOST_ROWS // 2, 0, max(block.size - MOST_ROWS, 0)))
    near = {name: _numbers(values[first : first + MOST_ROWS]) for name, values in numeric.items()}
    return find_affine_lags(near, _observed(block), FARTHEST_LAG)


def _later(inside: Int[np.ndarray, " removed"], size: int) -> dict[int, Int[np.ndarray, " _"]]:
    """For each number of rows back, the removed rows that have a kept one so many rows later."""
    removed = np.zeros(size + FARTHEST_LAG, bool)
    removed[inside] = removed[size:] = True
    return {lag: inside[~removed[inside + lag]] for lag in range(1, FARTHEST_LAG + 1)}


def _together(later: dict[int, Int[np.ndarray, " _"]]) -> list[tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]]:
    """These rows, and those so many rows later, in few arrays: there are many pairs of columns to compare at them."""
    groups = []
    ends = np.cumsum([len(rows) for rows in later.values()]) // AT_ONCE
    for end in np.unique(ends):
        among = [lag for lag, own in zip(later, ends, strict=True) if own == end]
        groups.append(
            (np.concatenate([later[lag] for lag in among]), np.concatenate([later[lag] + lag for lag in among]))
        )
    return groups


def _equal(
    values: Shaped[np.ndarray, " rows"],
    held: Shaped[np.ndarray, " rows"],
    rows: Int[np.ndarray, " some"],
    places: Int[np.ndarray, " some"],
) -> bool:
    """Whether a value of these rows is held at the place that belongs to it."""
    return bool((_numbers(held[places]) == _numbers(values[rows])).any())


def _holds(
    values: Shaped[np.ndarray, " rows"], held: Shaped[np.ndarray, " rows"], rows: Int[np.ndarray, " some"], lag: int
) -> Int[np.ndarray, " _"]:
    """Those of these rows whose value the row so many rows later holds."""
    return rows[_numbers(held[rows + lag]) == _numbers(values[rows])]


def _observed(block: Block) -> list[str]:
    """The columns that are observed values; where that is not known, all."""
    return [name for name in block.variables if name in block.columns] or list(block.columns)


def _numbers(values: Shaped[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    return values.astype(np.float64)


def _telling(values: Float[np.ndarray, " rows"]) -> float:
    """The share of equal entries above which a column repeats this one; 1 where that may be chance or a grid."""
    _, counts = np.unique(values, return_counts=True)
    chance = float(((counts / counts.sum()) ** 2).sum())
    steps = np.diff(values)
    if len(values) < 4 or np.allclose(steps, steps[0]):
        return 1.0
    return min(max(LEAST_SHARE, TIMES_CHANCE * chance), 1.0)


def _lag(values: Float[np.ndarray, " rows"], held: Float[np.ndarray, " rows"], needed: float) -> int:
    """How many rows later `held` repeats `values`, in more than the needed share of rows; 0 where it does not."""
    if needed == 1:
        return 0
    for lag in range(1, min(FARTHEST_LAG, len(values) // 2) + 1):
        if np.mean(held[lag:] == values[:-lag]) > needed:
            return lag
    return 0
