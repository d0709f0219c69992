"""Variables that are exactly linear in others, with numbers that may be data: they do not come out after an erasure.

A draw of `mu_cm = mu + y.mean()` beside `mu` gives the mean of all rows, and with the kept rows the removed one. A
program does not say where such a number is from, so only numbers that are plainly the model's own are let through:
small fractions. Columns are taken one by one, v in terms of a basis B of those before it (the constant 1 is the first),

    v = B c,

by Gram–Schmidt, B = Q R and c = R⁻¹ Qᵀ v. A column that is not in the span of B joins it. All relations
between the variables that are left then follow from relations with simple numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from posterase.data.selection import RowTable
from posterase.draws.inference_groups import SAMPLE_DIMS

EXACT = 1e-3
"""The share of a column's standard deviation that others leave unexplained where it was computed from them."""

SIX_DIGITS = 4e-6
"""The same as a share of its largest value: CmdStan writes six digits, which rounds by 3e-6 of it."""

CURVED = 0.5
"""The median of what is left shrinks by this factor, given squares, where a function is nearly linear: log σ in σ."""

LARGEST, LARGEST_CONSTANT = 12, 2
"""The largest numerator and denominator of coefficients that are the model's own (differences, means of groups), and
of its constants (1 − x)."""

STANDARD_ERRORS, ROUNDING_UNITS = 6, 8
"""How far an estimated number may be from a fraction: so many standard errors, and units of rounding."""

AS_GOOD = 2.0
"""With fractions for the estimated numbers, what is left may grow by this factor."""

ALIKE = 1e-4
"""How near a number comes to a summary of the data that it is taken for."""

MOST_COLUMNS = 300
"""Beyond this many numbers per draw, columns are compared with those before them, and later ones not with them."""

MOST_DRAWS = 4 * MOST_COLUMNS
"""Of more draws so many are looked at: exact relations hold at all of them."""


class Summaries(NamedTuple):
    """Numbers that are from the data although they look like fractions: the mean of a binary covariate, say."""

    means: Float[np.ndarray, " columns"]
    sums: Float[np.ndarray, " columns"]

    @classmethod
    def of(cls, table: RowTable) -> Summaries:
        """Of the columns that are known, where they vary."""
        numbers = [
            np.asarray(values, np.float64)
            for block in table.blocks
            for values in block.columns.values()
            if values.dtype.kind in "fiub" and len(values)
        ]
        varying = [each for each in numbers if np.isfinite(each).all() and np.ptp(each) > 0]
        return cls(np.array([each.mean() for each in varying]), np.array([each.sum() for each in varying]))


def without_functions_of_data(
    names: Sequence[str], posterior: xr.Dataset, summaries: Summaries, parameters: Sequence[str] = ()
) -> list[str]:
    """Leave out variables that are exactly linear in others, with coefficients or constants that may be data.

    brms reports `b_Intercept` = Intercept − Σ mean(x) · b: whoever knows all three knows the means of the covariates of
    all rows. Without one of the three nobody does. The last one is left out.

    Parameters
    ----------
    names
        The variables to choose from, in order.
    posterior
        Their draws.
    summaries
        Of the data that are known.
    parameters
        Variables that stay, and come first.
    """
    n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    posterior = posterior.isel(draw=slice(None, None, max(1, n_draws // MOST_DRAWS)))
    relations = Relations(posterior.sizes["chain"] * posterior.sizes["draw"], summaries)
    for name in parameters:
        relations.has_data_in(*_columns(posterior[name]))
    return [name for name in names if not relations.has_data_in(*_columns(posterior[name]))]


def _columns(values: xr.DataArray) -> tuple[Float[np.ndarray, "n k"], float]:
    """The numbers of every draw, and the unit of rounding that they were stored with."""
    array = values.transpose(*SAMPLE_DIMS, ...).values
    unit = float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0
    return array.reshape(array.shape[0] * array.shape[1], -1).astype(np.float64), unit


class Relations:
    """A basis of the columns so far."""

    def __init__(self, n_draws: int, summaries: Summaries):
        self.summaries = summaries
        most = max(1, min(MOST_COLUMNS, n_draws // 4))
        self.basis = np.ones((most, n_draws))
        """Columns as rows, which are contiguous."""
        self.orthonormal = np.full((most, n_draws), n_draws**-0.5)
        self.sizes = np.ones(most)
        self.inverse = np.zeros((most, most))
        """R⁻¹."""
        self.inverse[0, 0] = n_draws**-0.5
        self.count = 1

    def has_data_in(self, columns: Float[np.ndarray, "n k"], unit: float) -> bool:
        """Whether a variable depends on others with numbers that may be data. If it does not, its columns join."""
        if not np.isfinite(columns).all():
            return False
        before = self.count
        is_few = before + columns.shape[1] <= len(self.basis)
        for column in columns.T:
            rest, along = self._projected(column)
            left = np.sqrt(np.mean(rest**2))
            if left > EXACT * column.std() + SIX_DIGITS * np.abs(column).max():
                if is_few:
                    self._join(column, rest, along)
            elif not self._is_simple(column, rest, along, unit):
                self.count = before
                return True
        return False

    def _projected(self, column: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " k"]]:
        """What the basis leaves of a column, and its part along every direction of Q."""
        directions = self.orthonormal[: self.count]
        rest, along = column, np.zeros(self.count)
        for _ in range(2):  # the first time leaves what it rounds
            found = directions @ rest
            rest, along = rest - found @ directions, along + found
        return rest, along

    def _join(
        self, column: Float[np.ndarray, " n"], rest: Float[np.ndarray, " n"], along: Float[np.ndarray, " k"]
    ) -> None:
        k, norm = self.count, np.linalg.norm(rest)
        self.basis[k], self.orthonormal[k], self.sizes[k] = column, rest / norm, np.abs(column).max()
        self.inverse[:k, k], self.inverse[k, k] = -self.inverse[:k, :k] @ along / norm, 1 / norm
        self.count += 1

    def _is_simple(
        self,
        column: Float[np.ndarray, " n"],
        rest: Float[np.ndarray, " n"],
        along: Float[np.ndarray, " k"],
        unit: float,
    ) -> bool:
        """Whether a column is small fractions of the basis; or not linear in it, but nearly."""
        inverse, sizes = self.inverse[: self.count, : self.count], self.sizes[: self.count]
        found = inverse @ along
        # Rounding averages out over draws, but for what it makes of a number itself (1/3 in float32).
        left = np.sqrt(np.mean(rest**2))
        computed = np.finfo(np.float64).eps * np.linalg.norm(column)
        rounding = ROUNDING_UNITS * unit * max(np.abs(column).max(), (np.abs(found) * sizes).max())
        error = (STANDARD_ERRORS * left + ROUNDING_UNITS * computed) * np.linalg.norm(inverse, axis=1)
        error += (AS_GOOD * left + rounding) / sizes
        used = np.abs(found) > error
        simple = np.zeros(len(found))
        for i in np.flatnonzero(used):
            near = self._constants(found[i]) if i == 0 else self._coefficients(found[i], int(used[1:].sum()))
            simple[i] = next((each for each in near if abs(each - found[i]) <= error[i]), np.nan)
        if np.isfinite(simple).all():
            apart = column - simple @ self.basis[: self.count]
            if np.sqrt(np.mean(apart**2)) <= AS_GOOD * left + rounding:
                return True
        used[0] = False
        return bool(used.any()) and _is_curved(rest, np.column_stack([*self.basis[: self.count][used], column]))

    def _coefficients(self, number: float, shares: int) -> list[float]:
        """Simple numbers near a coefficient: a fraction, a power of ten (units), and a share of so many columns.

        The last are in means of many columns, and in distances from them.
        """
        near = [_fraction(number, LARGEST), float(np.copysign(10.0 ** np.round(np.log10(abs(number))), number))]
        near += [round(number * shares) / shares] if abs(number) < 1 else []
        return [each for each in near if not _is_among(each, self.summaries.means)]

    def _constants(self, number: float) -> list[float]:
        near = _fraction(number, LARGEST_CONSTANT)
        return [] if _is_among(near, np.concatenate(self.summaries)) else [near]


def _fraction(number: float, largest: int) -> float:
    """The nearest fraction with a numerator and a denominator up to the largest."""
    nearest = Fraction(float(number)).limit_denominator(largest)
    return float(nearest) if abs(nearest.numerator) <= largest else np.nan


def _is_among(number: float, known: Float[np.ndarray, " m"]) -> bool:
    """Whether a number is a known one, up to the sign; but for 1, which may be anything."""
    return bool(abs(number) != 1 and np.isclose(abs(number), np.abs(known), rtol=ALIKE, atol=0).any())


def _is_curved(rest: Float[np.ndarray, " n"], columns: Float[np.ndarray, "n k"]) -> bool:
    """Whether squares of columns explain what straight lines leave."""
    spread = columns.std(axis=0)
    centred = (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1)
    design = np.column_stack([np.ones(len(rest)), centred**2])
    unexplained = rest - design @ np.linalg.lstsq(design, rest, rcond=None)[0]
    return bool(np.median(np.abs(unexplained)) < CURVED * np.median(np.abs(rest)))
