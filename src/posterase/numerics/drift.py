r"""Drift: do draws change in law when they are moved by a kernel that leaves the target invariant?

Draws of the target do not, whatever its shape. Draws that miss an edge, a tail, a bend or a growing support do. For
draws θᵢ, moved to θᵢ′, and a function h of one draw, the paired differences h(θᵢ′) − h(θᵢ) have mean zero over the
target. The functions are, for every parameter and for the log density, with u the rank of a value among all values
before and after the moves:

    Φ⁻¹(u)                     location
    Φ⁻¹ of the rank of |u − ½|   spread (folded ranks)
    u < 0.05, u > 0.95         tails; also at 0.01 and 0.99
    u < q                      with the q that moves pass slowest: parts of a target that they hardly go between
    x, (x − mean)²             mean and variance, with values far out cut off

**Test.** Differences are summed over pieces of chains that hardly depend on each other, and divided by the root of
their sum of squares: T = Σ_b S_b / √Σ_b S_b². A reversible kernel makes (θ, θ′) and (θ′, θ) alike at its target, so
that the S_b are symmetric about zero, and Student's t of them has at most about the tails that it has for Gaussian sums
(Efron 1969). The largest |t| is held against the quantile of the level divided by the number of functions.

**Power.** A kernel of which h is an eigenfunction with eigenvalue ρ, the correlation between h(θ) and h(θ′), leaves a
share ρ of an error in E h and shows a share 1 − ρ of it as drift. With z the limit of the test and s the standard error
of a mean difference, an error that stays in the moved draws without being detected is thus at most about

    ρ / (1 − ρ) · z · s.

The largest over all functions but the far tails, in standard deviations of h, is what the moves can have missed. It can
be trusted as far as ρ can be: a mode that no draw ever visited does not show in it (`posterase.numerics.modes`).

References
----------
Efron (1969), Student's t-test under symmetry conditions, JASA 64. Cook, Gelman, Rubin (2006), Validation of software
for Bayesian models using posterior quantiles, JCGS 15.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special

TAIL, FAR_TAIL = 0.05, 0.01
CHOSEN_FROM = 10
"""The slowest level counts as so many functions: it is chosen from many, of which those near each other are nearly one.
"""

CUT_OFF = 8.0
"""Values further than so many interquartile ranges from the median are cut off before their mean is taken."""

MOST_REMEMBERED = 0.999
"""A correlation above this is taken for this one: nothing has moved to speak of."""

FUNCTIONS = (
    *("location", "spread", "lower tail", "upper tail", "slowest level", "mean", "variance"),
    *("far lower tail", "far upper tail"),
)
JUDGED = 7
"""What may have been missed is computed for the first seven: of so few draws far out little is known."""

DOUBTS = 0.1
"""How often draws of the target are doubtful, which costs moves and no mistake."""

COLUMNS_AT_ONCE = 2**22
"""About how many numbers are ranked at once."""


class Drift(NamedTuple):
    """What moves changed in the law of draws."""

    column: int
    """Of the function with the largest |t|."""
    function: str
    statistic: float
    """Its t."""
    limit: float
    doubt: float
    """A smaller limit, above which it is better to look again."""
    missed: float
    """The largest error, in standard deviations, that may be left in the moved draws without having been detected."""
    missed_column: int
    """Of the function that this is of."""

    @property
    def is_detected(self) -> bool:
        """Whether the draws were not draws of the target."""
        return abs(self.statistic) > self.limit

    @property
    def is_doubtful(self) -> bool:
        """Whether it is better to look again."""
        return abs(self.statistic) > self.doubt


def find_drift(
    before: Float[np.ndarray, "n k"],
    after: Float[np.ndarray, "n k"],
    groups: Int[np.ndarray, " n"],
    false_alarms: float,
) -> Drift:
    """Test whether draws drift, and estimate what the test could have missed.

    Parameters
    ----------
    before, after
        Values of the same draws before and after the moves: parameters and the log density.
    groups
        Draws of one group may depend on each other.
    false_alarms
        How often draws of the target are said to drift.
    """
    before, after = bounded(before, after)
    n = len(before)
    moving = np.flatnonzero((np.ptp(before, axis=0) > 0) | (np.ptp(after, axis=0) > 0))
    pieces = len(np.unique(groups))
    tests = (len(FUNCTIONS) - 1 + CHOSEN_FROM) * max(len(moving), 1)
    limit, doubt = (
        float(-special.stdtrit(max(pieces - 1, 1), level / (2 * tests))) for level in (false_alarms, DOUBTS)
    )
    worst = Drift(0, FUNCTIONS[0], 0.0, limit, min(doubt, limit), 0.0, 0)
    for part in np.array_split(moving, max(1, n * len(moving) // COLUMNS_AT_ONCE)):
        values = _functions(before[:, part], after[:, part])  # (function, 2, n, column)
        difference = values[:, 1] - values[:, 0]
        sums = _sum_by_group(difference, groups)
        scale = np.sqrt(((sums - sums.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) * pieces / max(pieces - 1, 1))
        statistic = np.where(scale > 0, difference.sum(axis=1) / np.where(scale > 0, scale, 1), 0.0)
        missed = _missed(values[:JUDGED], scale[:JUDGED] / n, limit)
        at, column = np.unravel_index(np.abs(statistic).argmax(), statistic.shape) if statistic.size else (0, 0)
        if statistic.size and abs(statistic[at, column]) > abs(worst.statistic):
            found = float(statistic[at, column])
            worst = worst._replace(column=int(part[column]), function=FUNCTIONS[at], statistic=found)
        largest = missed.max(axis=0)
        if largest.size and largest.max() > worst.missed:
            worst = worst._replace(missed=float(largest.max()), missed_column=int(part[largest.argmax()]))
    return worst


def bounded(
    before: Float[np.ndarray, "n k"], after: Float[np.ndarray, "n k"]
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "n k"]]:
    """Values with those that are infinite put beyond all that are finite; NaN is −∞.

    log p(S′ | θ) is −∞ where the removed rows have no mass.
    """
    both = np.concatenate([before, after])
    finite = np.isfinite(both)
    if finite.all():
        return before, after
    low, high = (np.where(finite, both, fill) for fill in (np.inf, -np.inf))
    lowest, highest = low.min(axis=0), high.max(axis=0)
    known = np.isfinite(lowest)
    lowest, highest = np.where(known, lowest, 0.0), np.where(known, highest, 0.0)
    beyond = 1.0 + highest - lowest
    both = np.where(finite, both, np.where(both == np.inf, highest + beyond, lowest - beyond))
    return both[: len(before)], both[len(before) :]


def _functions(before: Float[np.ndarray, "n k"], after: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "f 2 n k"]:
    """The values of all functions at the draws before and after their moves."""
    n = len(before)
    both = np.concatenate([before, after])
    u = _ranks(both)
    folded = _ranks(np.abs(u - 0.5))
    low, middle, high = np.quantile(both, [0.25, 0.5, 0.75], axis=0)
    reach = CUT_OFF * np.where(high > low, high - low, 1.0)
    cut = np.clip(both - middle, -reach, reach)
    parts = [u < TAIL, u > 1 - TAIL, u < _slowest_levels(u[:n], u[n:])]
    moments = [cut, (cut - cut.mean(axis=0)) ** 2]
    functions = np.stack([special.ndtri(u), special.ndtri(folded), *parts, *moments, u < FAR_TAIL, u > 1 - FAR_TAIL])
    return functions.reshape(len(FUNCTIONS), 2, n, -1)


def _slowest_levels(before: Float[np.ndarray, "n k"], after: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " k"]:
    """For each column of ranks, the level that the fewest draws pass, relative to moves that forget everything."""
    n = len(before)
    levels = np.linspace(TAIL, 1 - TAIL, n)[:, None]
    below = [_counts_below(each, levels) / n for each in (before, after, np.maximum(before, after))]
    p, q, both = below
    with np.errstate(divide="ignore", invalid="ignore"):
        remembered = (both - p * q) / np.sqrt(p * (1 - p) * q * (1 - q))
    return levels[np.nan_to_num(remembered, nan=-1.0).argmax(axis=0), 0]


def _counts_below(u: Float[np.ndarray, "n k"], levels: Float[np.ndarray, "n 1"]) -> Int[np.ndarray, "n k"]:
    """How many numbers of each column are below each level."""
    return np.stack([np.searchsorted(column, levels[:, 0]) for column in np.sort(u, axis=0).T], axis=1)


def _ranks(values: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "m k"]:
    """Ranks in each column, as shares strictly between 0 and 1; equal values share their mean rank."""
    return (np.apply_along_axis(_mean_ranks, 0, values) - 0.5) / len(values)


def _mean_ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Ranks from 1, the mean of them where values are equal. (Importing scipy.stats for it would take a second.)"""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _sum_by_group(values: Float[np.ndarray, "f n k"], groups: Int[np.ndarray, " n"]) -> Float[np.ndarray, "f b k"]:
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=groups[order[0]] - 1))
    return np.add.reduceat(values[:, order], starts, axis=1)


def _missed(values: Float[np.ndarray, "f 2 n k"], error: Float[np.ndarray, "f k"], limit: float) -> np.ndarray:
    """ρ/(1 − ρ) · z · s for every function, in its standard deviations."""
    centred = values - values.mean(axis=(1, 2), keepdims=True)
    variance = (centred**2).mean(axis=(1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = (centred[:, 0] * centred[:, 1]).mean(axis=1) / variance
        kept = np.clip(np.where(variance > 0, correlation, 0.0), 0.0, MOST_REMEMBERED)
        return np.where(variance > 0, kept / (1 - kept) * limit * error / np.sqrt(variance), 0.0)
