"""How well chains mixed: R̂, effective sample sizes, chains that are stuck, or sit in different modes.

References
----------
Vehtari, Gelman, Simpson, Carpenter, Bürkner (2021), Rank-normalization, folding, and localization: an improved R̂,
Bayesian Analysis 16. Stephens (2000), Dealing with label switching in mixture models, JRSS B 62.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from scipy import special
from scipy.optimize import linear_sum_assignment

from posterase.draws.draws import Draws
from posterase.draws.objections import Objection

MOST_RHAT = 1.02
"""R̂ above this: chains disagree. The field's 1.01 is for one number; the worst of many parameters is above it by
chance alone."""

FEWEST_IN_HALF, ENOUGH_IN_HALF = 10, 25
"""Halves of a few chains that are shorter than the first are not compared; those shorter than the second say so little
that chance may explain any R̂."""

MOST_BY_CHANCE = 1.1
"""Halves that are long enough have a larger R̂ for other reasons than chance."""

MANY_CHAINS, FEWEST_DRAWS = 20, 4
"""From so many chains on, of at least so many draws, chains are asked whether they remember where they began."""

MOST_REMEMBERED = 0.99
"""The largest share of a variance that chains are said to remember: R̂ is then 10."""

FALSE_ALARMS = 0.001
"""The level, over all parameters, of the tests that call an R̂ chance."""

RANKED_AT_ONCE = 4_000_000
"""Numbers that are ranked at once, which bounds the memory that it needs."""

APART = 3.0
"""Chains whose means differ by more than so many standard deviations within a chain sit in different modes."""

MIX = "sample again, with a sampler or a parametrisation that moves between the modes."
RELABEL = "order or relabel the components (pe.ordered)."

COMPARED_UP_TO = 2000
"""Past so many components nobody looks whether they are another chain's in another order: it takes their square."""


def mixing(draws: Draws) -> tuple[dict[str, float], dict[str, float]]:
    """R̂ (rank normalised) and bulk ESS, the worst element of each parameter; elements that never change count for none.

    A Cholesky factor has such elements: zeros, and a one.
    """
    from arviz_stats.base import array_stats  # here, since it takes a second to import

    rhat, ess = {}, {}
    for name, every in draws.columns().items():
        values = every[..., np.ptp(every, axis=(0, 1)) > 0]
        if every.shape[-1] and not values.shape[-1]:
            values = every[..., :1]  # nothing of it ever changes: R̂ is not a number, which says so
        rhat[name] = float(np.max(array_stats.rhat(values, chain_axis=0, draw_axis=1)))
        ess[name] = float(np.min(array_stats.ess(values, chain_axis=0, draw_axis=1)))
    return rhat, ess


class ChainAgreement(NamedTuple):
    """How far the chains of a parameter disagree, next to how far chains of one posterior may."""

    rhat: Float[np.ndarray, " element"]
    """Rank-normalised R̂ of its values, or of their distances to the median, whichever is larger."""
    by_chance: Float[np.ndarray, " element"]
    """The largest R̂ that chains of one posterior have by chance, at the level `FALSE_ALARMS` over all parameters."""

    def worst_above(self, limit: float) -> float:
        """The largest R̂ above `limit` that chance does not explain; 0 where there is none."""
        above = self.rhat > np.maximum(self.by_chance, limit)
        return float(self.rhat[above].max(initial=0.0))


def chain_agreement(draws: Draws) -> dict[str, ChainAgreement]:
    """How far the chains of every element of each parameter disagree, and what chance explains.

    *A few chains*: rank-normalised split R̂, the same as `arviz.rhat`. R̂² − 1 is about the variance of the halves' means
    in units of that within halves. With n_e effective draws in each of m halves it is χ²(m − 1) / ((m − 1) n_e) by
    chance alone: for n_e = 20 and four chains, one parameter in forty is above 1.05. The halves' Monte Carlo errors,
    from batch means, give the R̂ that an F-test calls chance.

    *Many chains*, as of an ensemble sampler, may be shorter than they remember, and split R̂ is then large though they
    are draws of the posterior. Stuck chains differ from slow ones in that they never forget. With c_k the covariance
    over chains of the means of two quarters that are k apart, what would be left of it after chains twice as long is
    extrapolated as c = c₃ (c₃/c₁)², and R̂² = σ²/(σ² − c): the variance of all draws over that around each chain's
    own centre. Chance: the test of the correlation of the first and the last quarter. A drift that all chains share
    shows in the difference δ of the means of their halves: c = δ²/4.

    Nothing, where chains are too short for either.
    """
    half = draws.n_draws // 2
    many = draws.n_chains >= MANY_CHAINS
    if draws.n_draws < FEWEST_DRAWS if many else half < FEWEST_IN_HALF:
        return {}
    columns = draws.columns()
    elements = sum(values.shape[-1] for values in columns.values())
    found = {}
    for name, values in columns.items():
        chains = values if many else np.concatenate([values[:, :half], values[:, -half:]])
        parts = np.array_split(chains.transpose(2, 0, 1), max(1, chains.size // RANKED_AT_ONCE))
        made = [_agreements(part, elements, many) for part in parts]
        rhat, by_chance = (np.concatenate(each, axis=-1) for each in zip(*made, strict=True))
        # The largest that chance does not explain, or the largest.
        larger = np.where(rhat > by_chance, rhat + rhat.max(), rhat).argmax(axis=0), np.arange(rhat.shape[1])
        found[name] = ChainAgreement(rhat[larger], by_chance[larger])
    return found


def _agreements(
    values: Float[np.ndarray, "element chain draw"], elements: int, many: bool
) -> tuple[Float[np.ndarray, "k element"], Float[np.ndarray, "k element"]]:
    """R̂ and what chance explains, of values and of their distances to the median."""
    flat = values.reshape(len(values), -1)  # contiguous: everything that follows goes along it
    folded = np.abs(flat - np.median(flat, axis=1, keepdims=True))
    scores = [normal_scores(each).reshape(values.shape) for each in (flat, folded)]
    tests = (_remembered, _drifting) if many else (_rhat,)
    rhat, by_chance = zip(*(test(each, elements) for each in scores for test in tests), strict=True)
    return np.stack(rhat), np.stack(by_chance)


def _remembered(
    scores: Float[np.ndarray, "element chain draw"], elements: int
) -> tuple[Float[np.ndarray, " element"], Float[np.ndarray, " element"]]:
    """R̂ of each element, from what chains will never forget, and the R̂ that chance alone may give it."""
    _, chains, length = scores.shape
    size = length // 4
    starts = 0, size, length - 2 * size, length - size
    quarters = np.stack([scores[..., start : start + size].mean(axis=-1) for start in starts])
    quarters = quarters - quarters.mean(axis=-1, keepdims=True)
    near = (quarters[1:] * quarters[:-1]).mean(axis=(0, -1))
    far = np.maximum((quarters[0] * quarters[3]).mean(axis=-1), 0)
    kept = np.where(near > 0, np.minimum(far / np.where(near > 0, near, 1), 1), 0)
    t = special.stdtrit(chains - 2, 1 - FALSE_ALARMS / (4 * elements))
    error = quarters[0].std(axis=-1) * quarters[3].std(axis=-1) * t / math.sqrt(chains - 2 + t**2)
    return _rhat_of(far * kept**2, scores), _rhat_of(error, scores)


def _drifting(
    scores: Float[np.ndarray, "element chain draw"], elements: int
) -> tuple[Float[np.ndarray, " element"], Float[np.ndarray, " element"]]:
    """R̂ of each element, from a drift that all chains share, and the R̂ that chance alone may give it."""
    _, chains, length = scores.shape
    change = scores[..., -(length // 2) :].mean(axis=-1) - scores[..., : length // 2].mean(axis=-1)
    t = special.stdtrit(chains - 1, 1 - FALSE_ALARMS / (4 * elements))
    error = t * change.std(axis=-1, ddof=1) / math.sqrt(chains)
    return _rhat_of(change.mean(axis=-1) ** 2 / 4, scores), _rhat_of(error**2 / 4, scores)


def _rhat_of(
    between: Float[np.ndarray, " element"], scores: Float[np.ndarray, "element chain draw"]
) -> Float[np.ndarray, " element"]:
    """√(variance / variance within chains), given the variance between them; one where nothing ever changes."""
    total = scores.var(axis=(1, 2))
    share = np.minimum(between / np.where(total > 0, total, 1), MOST_REMEMBERED)
    return np.where(total > 0, 1 / np.sqrt(1 - share), 1.0)


def _rhat(
    scores: Float[np.ndarray, "element half draw"], elements: int
) -> tuple[Float[np.ndarray, " element"], Float[np.ndarray, " element"]]:
    """R̂ of each element, and the R̂ that chance alone may give it; one and one where nothing ever changes."""
    _, halves, length = scores.shape
    batches = math.isqrt(length)
    means = scores[..., : length // batches * batches].reshape(*scores.shape[:2], batches, -1).mean(axis=-1)
    error = (means.var(axis=-1, ddof=1) / batches).mean(axis=-1)  # squared, of a half's mean
    apart = error * special.fdtri(halves - 1, halves * (batches - 1), 1 - FALSE_ALARMS / (2 * elements))
    within = scores.var(axis=-1, ddof=1).mean(axis=-1)
    between = scores.mean(axis=-1).var(axis=-1, ddof=1)
    changes = within > 0
    rhat, by_chance = (
        np.sqrt((length - 1) / length + each / np.where(changes, within, 1.0)) for each in (between, apart)
    )
    if length >= ENOUGH_IN_HALF:
        by_chance = np.minimum(by_chance, MOST_BY_CHANCE)
    return np.where(changes, rhat, 1.0), np.where(changes, by_chance, 1.0)


def normal_scores(values: Float[np.ndarray, "element n"]) -> Float[np.ndarray, "element n"]:
    """Φ⁻¹ of the ranks within each row; equal values share their mean rank."""
    n = values.shape[1]
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, 1)
    begins = np.ones(values.shape, bool)  # of runs of equal values
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=begins[:, 1:])
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=values.size)
    ranks = starts % n + (lengths + 1) / 2
    scores = np.empty(values.shape)
    shared = special.ndtri((ranks - 3 / 8) / (n + 1 / 4))
    np.put_along_axis(scores, order, np.repeat(shared, lengths).reshape(values.shape), 1)
    return scores


def stuck_chains(draws: Draws) -> str:
    """What to say where chains never moved, while others did; else nothing.

    NUTS leaves such chains where all proposals diverge, from a starting point far out say.
    """
    moved = np.zeros(draws.n_chains, bool)
    for leaf in jax.tree.leaves(draws.params):
        values = np.asarray(leaf)
        moved |= (values != values[:, :1]).reshape(draws.n_chains, -1).any(axis=1)
    stuck = ", ".join(map(str, np.flatnonzero(~moved)))
    if not stuck or not moved.any():
        return ""
    chains = f"chain {stuck}" if (~moved).sum() == 1 else f"each of the chains {stuck}"
    return f"the draws of {chains} are all the same: the sampler was stuck"


def different_modes(draws: Draws) -> Objection | None:
    """Chains that sit in different modes, or number the same components differently (label switching); else None.

    Labels are switched where a parameter's elements in one chain are those of another chain in another order.
    """
    if draws.n_chains < 2 or draws.n_draws < 2 * FEWEST_IN_HALF:
        return None
    apart = None
    for name, leaf in zip(draws.names, jax.tree.leaves(draws.params), strict=True):
        values = np.asarray(leaf, np.float64)
        values = values.reshape(*values.shape[:2], values.shape[2] if values.ndim > 2 else 1, -1)
        means = values.mean(axis=1)
        # Some numbers never change: those above a Cholesky factor's diagonal.
        spread = np.sqrt(values.var(axis=1).mean(axis=0)) + 1e-12 * (1 + np.abs(means).max(axis=0))
        for chain in range(1, draws.n_chains):
            gap = np.abs((means[chain] - means[0]) / spread)
            if gap.max(initial=0) < APART:
                continue
            apart = apart or Objection("modes", f"chains 0 and {chain} sit in different modes of {name}", MIX)
            if len(gap) > COMPARED_UP_TO:
                continue
            distance = _distances(means[chain], means[0], spread)
            here = float(np.sqrt(np.mean(gap**2)))
            rows, order = linear_sum_assignment(distance)
            best = float(np.sqrt(distance[rows, order].mean()))
            if best < min(here / 3, APART):
                shown = ", ".join(map(str, order))
                return Objection(
                    "labels",
                    f"the components of {name} are numbered differently in different chains (label switching): those "
                    f"of chain {chain} are chain 0's in the order {shown}",
                    RELABEL,
                )
    return apart


def _distances(
    one: Float[np.ndarray, "k rest"], other: Float[np.ndarray, "k rest"], spread: Float[np.ndarray, "k rest"]
) -> Float[np.ndarray, "k k"]:
    """Mean squared distance, in standard deviations, of every element from every other."""
    return np.stack([(((each - other) / spread) ** 2).mean(axis=-1) for each in one])
