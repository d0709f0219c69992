"""Importance weights: smoothing, how far they can be trusted, and what they say of divergences.

Everything here takes and returns *log-weights*, log w = log target − log proposal, natural logarithms up to a constant:
larger means more weight. This file owns the sign: `arviz_stats` wants log-likelihoods and negates them, and is called
here only.

**ε from weights.** Draws of q with weights w = p/q (up to a constant) give

    KL(q ‖ p) = log E_q w − E_q log w                                    the draws as they are (`divergence`)

and, once they carry Pareto smoothed weights W̃ (which sum to one), the law of one draw picked by them has about

    KL = Σ W̃ᵢ log(n W̃ᵢ / wᵢ) + ½(1/ESS − 1/n),    w with mean one        (`weighted_divergence`)

The first term is what smoothing changed; the second, log Z − E log Ẑ to second order, what a finite number of draws
leaves. Both are biased low where the tail was not seen, so they mean something only where k̂ passes. With draws of p as
well, the Jeffreys divergence needs no normaliser and has no such bias (`jeffreys`).

References
----------
Vehtari, Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling, JMLR 25(72).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from posterase.draws.draws import Draws
from posterase.errors import InvalidOptionError

FEWEST_FOR_EFFICIENCY = 4
"""Chains shorter than this say nothing about their autocorrelation."""


FLAT = 1.25
"""Where no weight exceeds the mean by more than this factor there is no tail: k̂, the shape of whatever small excess
there is, would speak of a wrinkle, and is any number, however good the weights are."""

BLOCKS_A_CHAIN, LONG_BLOCKS_A_CHAIN, LONG_NOISE = 25, 5, 1.5
"""Chains are cut into about so many blocks, to estimate the Monte Carlo error of averages over them; and into few long
ones, against autocorrelation that outlasts the short ones. An error from few blocks is noisy: it counts divided by the
last number."""

PIECE, FEWEST_PIECES, ENOUGH_CHAINS = 5.0, 8, 4
"""Pieces of chains that are taken for independent: so many times as long as a chain remembers; so many at least, all
chains together, unless there are enough chains to take each as a whole."""

FEWEST_LONG_BLOCKS = 10
"""Over all chains together: a single chain is cut into as many."""

FEWEST_GROUPS, MOST_EFFICIENT = 5, 3.0
"""Fewer effective groups than this say nothing of an error; chains are not taken for more efficient than this."""

ESS_ELEMENTS = 2**16
"""So many numbers of draws are looked at at once for their effective sizes, which takes some ten arrays of as many:
they fit a processor's cache, and take less than half the time that all at once take."""


class Estimate(NamedTuple):
    """A number and its Monte Carlo standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.2g} ± {self.error:.1g}"


class Smoothed(NamedTuple):
    """Pareto smoothed weights and their diagnostics."""

    log_weights: Float[np.ndarray, "chain draw"]
    """Normalised: the weights sum to one."""
    pareto_k: float
    """Shape k̂ of the tail of the raw weights; above `threshold` they are not to be trusted. Infinite where it cannot
    be estimated (too few draws, a tail of equal values); zero where the weights are as good as equal (`FLAT`)."""
    threshold: float
    """min(1 − 1/log₁₀(draws), 0.7)."""
    ess: float
    """Effective sample size: 1/Σw², times the chains' own relative efficiency."""


def smooth(log_weights: Float[np.ndarray, "chain draw"]) -> Smoothed:
    """Pareto smoothed importance weights from raw log-weights."""
    raw = np.asarray(log_weights, np.float64)
    efficiency = relative_efficiency(raw)
    smoothed, pareto_k = _pareto_smooth(raw, efficiency)
    smoothed = smoothed - log_sum_exp(smoothed)
    with np.errstate(over="ignore"):
        ess = float(np.exp(-log_sum_exp(2 * smoothed)) * efficiency)
    return Smoothed(
        log_weights=smoothed,
        pareto_k=pareto_k,
        threshold=pareto_k_threshold(raw.size),
        ess=ess,
    )


def divergence(log_weights: Float[np.ndarray, "chain draw"], base: Float[np.ndarray, "chain draw"]) -> Estimate:
    """KL(q ‖ p) in nats from draws of q and their raw log-weights log p − log q.

    `base` are the weights of the draws themselves, summing to one: equal, unless the draws came weighted.
    """
    counted = base > 0
    if not np.isfinite(log_weights[counted]).all():
        return Estimate(float("inf"), float("nan"))  # q puts mass where p has none
    raw = np.where(counted, log_weights, 0)
    raw = raw - raw[counted].max()
    mean = float((base * np.exp(raw)).sum())
    # To first order the estimate is an average over draws of w/mean − log w.
    influence = np.exp(raw) / mean - raw
    value = float(np.log(mean) - (base * raw).sum())
    return Estimate(max(value, 0.0), standard_error(influence, base))


def weighted_divergence(
    log_weights: Float[np.ndarray, "chain draw"], base: Float[np.ndarray, "chain draw"], smoothed: Smoothed
) -> Estimate:
    """KL in nats to the target of one draw picked by smoothed weights; raw weights and `base` as in `divergence`."""
    picked = np.exp(smoothed.log_weights)
    raw = log_weights + log_of(base)
    changed = np.where(picked > 0, smoothed.log_weights - np.where(picked > 0, raw, 0), 0)
    efficiency = smoothed.ess * (picked**2).sum()

    def estimate(p: Any, smooth_change: Any, squares: Any, raw_sum: Any, n: Any) -> Any:
        """From sums over draws: of W̃, of W̃ log(W̃/w), of W̃², of w, of 1."""
        change = smooth_change / p - np.log(p) + np.log(raw_sum)
        return np.maximum(change, 0) + 0.5 * np.maximum(squares / p**2 - 1 / n, 0) / efficiency

    top = raw.max()
    terms = np.stack([picked, picked * (changed + top), picked**2, np.exp(raw - top), np.ones_like(picked)])
    return Estimate(*_jackknife(estimate, terms.reshape(5, -1), blocks(*raw.shape)))


def jeffreys(
    at_proposal: Float[np.ndarray, "chain draw"],
    base: Float[np.ndarray, "chain draw"],
    at_target: Float[np.ndarray, "chains draws"],
    target_base: Float[np.ndarray, "chains draws"],
) -> Estimate:
    """KL(q ‖ p) + KL(p ‖ q) in nats from log-weights log p − log q at draws of q, and at draws of p.

    J = E_p[log p/q] − E_q[log p/q]: the constants in both densities cancel. `base` and `target_base` are the weights
    of either draws, summing to one.
    """
    value = float((target_base * at_target).sum() - (base * at_proposal).sum())
    errors = standard_error(at_target, target_base), standard_error(at_proposal, base)
    return Estimate(value, float(np.hypot(*errors)))


def total_variation(epsilons: Sequence[float]) -> float:
    """Bound the total variation that repeated erasures add up to: Σ min(1, √(ε/2)), at most 1."""
    if any(not each >= 0 for each in epsilons):
        raise InvalidOptionError("an ε is negative or NaN.", "give divergences in nats.")
    return float(min(1.0, sum(min(1.0, (each / 2) ** 0.5) for each in epsilons)))


def log_mean(log_weights: Float[np.ndarray, "chain draw"], base: Float[np.ndarray, "chain draw"]) -> Estimate:
    """log E w, with its standard error: the log ratio of the normalisers of target and proposal."""
    top = float(log_weights[base > 0].max())
    weights = np.exp(log_weights - top)
    mean = float((base * weights).sum())
    return Estimate(top + float(np.log(mean)), standard_error(weights, base) / mean)


def standard_error(
    values: Float[np.ndarray, "chain draw"],
    base: Float[np.ndarray, "chain draw"],
    groups: Int[np.ndarray, " n"] | None = None,
) -> float:
    """Monte Carlo standard error of Σ base · values, base summing to one, with the chains' autocorrelation in it.

    Draws of one group may depend on each other; None: neighbours in a chain do.
    """
    groups = blocks(*values.shape) if groups is None else groups
    return float(np.sqrt(variance_of_mean(values.reshape(-1, 1), base.ravel(), groups)[0]))


def effective_sizes(
    values: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"], groups: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " d"]:
    """For each column, how many independent draws would give its weighted mean as precisely: variance / error².

    Draws of one group may depend on each other: they are neighbours in a chain, or descend from the same ancestors. So
    one estimate takes in uneven weights, autocorrelation and shared ancestry. Where a handful of groups has all the
    weight, nothing can be said, and the answer is their number.
    """
    mean = weights @ values
    variance = weights @ (values - mean) ** 2
    error = variance_of_mean(values, weights, groups)
    shares = np.bincount(groups, weights=weights)
    effective_groups = 1 / (shares**2).sum()
    if effective_groups < FEWEST_GROUPS:
        return np.full(values.shape[1], effective_groups)
    most = MOST_EFFICIENT / (weights**2).sum()  # chains can be better than independent, but not by any factor
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0, np.minimum(variance / error, most), 0.0)


def parameter_ess(draws: Draws, ancestors: Int[np.ndarray, "chain draw"] | None = None) -> dict[str, float]:
    """For each parameter, the effective number of draws for the mean and the variance of its worst element.

    Neighbours in a chain may depend on each other; with `ancestors`, draws whose ancestors were neighbours do. Numbers
    that never change, as above a Cholesky factor's diagonal, are known: of them there are enough. Of the others never
    more than there are distinct draws.
    """
    sizes = element_ess(draws, ancestors).min(axis=0)
    sizes = np.where(np.isinf(sizes), sizes, np.minimum(sizes, draws.n_distinct))
    ends = np.cumsum([int(np.prod(leaf.shape[2:])) for leaf in jax.tree.leaves(draws.params)])
    parts = np.split(sizes, ends[:-1])
    return {name: float(part.min()) for name, part in zip(draws.names, parts, strict=True)}


def element_ess(
    draws: Draws, ancestors: Int[np.ndarray, "chain draw"] | None = None
) -> Float[np.ndarray, "2 elements"]:
    """The same for every number of a draw: for its mean, and for its variance."""
    places = np.arange(draws.n_chains * draws.n_draws) if ancestors is None else ancestors.ravel()
    share = base_weights(draws).ravel()
    shape = draws.n_chains, draws.n_draws
    long_blocks = max(LONG_BLOCKS_A_CHAIN, -(-FEWEST_LONG_BLOCKS // draws.n_chains))
    groups = blocks(*shape)[places], blocks(*shape, long_blocks)[places]
    found, known = [], []
    for values in draws.column_blocks(max(1, ESS_ELEMENTS // len(places))):
        both = np.concatenate([values, (values - share @ values) ** 2], axis=1)
        short, long = (effective_sizes(both, share, each) for each in groups)
        found.append(np.minimum(short, LONG_NOISE * long).reshape(2, -1))
        known.append(np.ptp(values, axis=0) == 0)
    sizes, never_change = np.concatenate(found, axis=1), np.concatenate(known)
    return sizes if never_change.all() else np.where(never_change, np.inf, sizes)


def independent_groups(
    draws: Draws, effective: float, ancestors: Int[np.ndarray, "chain draw"] | None = None
) -> Int[np.ndarray, " n"]:
    """For each draw, chains laid end to end, a group that hardly depends on the others: a long piece of its chain.

    `effective` is how many draws are, of the worst number: pieces are several times as long as a chain remembers. With
    `ancestors`, draws whose ancestors were in one piece are a group.
    """
    chains, length = draws.n_chains, draws.n_draws
    memory = chains * length / max(effective, 1.0)
    fewest = 1 if chains >= ENOUGH_CHAINS else -(-FEWEST_PIECES // chains)
    pieces = int(np.clip(length / (PIECE * memory), min(fewest, length), BLOCKS_A_CHAIN))
    groups = blocks(chains, length, pieces)
    return groups if ancestors is None else groups[ancestors.ravel()]


def first_half(chains: int, draws: int) -> Bool[np.ndarray, " n"]:
    """Which draws, chains laid end to end, are in the first of two halves: every second block of every chain."""
    return blocks(chains, draws) % 2 == 0


def blocks(chains: int, draws: int, a_chain: int = BLOCKS_A_CHAIN) -> Int[np.ndarray, " n"]:
    """For each draw, chains laid end to end, the block of neighbours in its chain that it belongs to."""
    size = max(1, draws // a_chain)
    block = np.minimum(np.arange(draws) // size, max(draws // size, 1) - 1)
    return (block + (block[-1] + 1) * np.arange(chains)[:, None]).ravel()


def variance_of_mean(
    values: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"], groups: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " d"]:
    """Squared standard error of each column's weighted mean, from sums of weighted deviations over groups."""
    deviations = weights[:, None] * (values - weights @ values)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=groups[order[0]] - 1))
    sums = np.add.reduceat(deviations[order], starts, axis=0)
    k = len(starts)
    return (sums**2).sum(axis=0) * (k / max(k - 1, 1))


def _jackknife(
    estimate: Callable[..., Any], terms: Float[np.ndarray, "k n"], groups: Int[np.ndarray, " n"]
) -> tuple[float, float]:
    """A function of sums over draws, and its standard error from leaving out one group at a time."""
    sums = np.stack([np.bincount(groups, weights=term) for term in terms])
    total = sums.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # where one group has all the weight
        left_out = estimate(*(total[:, None] - sums))
    k = sums.shape[1]
    spread = ((left_out - left_out.mean()) ** 2).sum() * (k - 1) / k
    return float(estimate(*total)), float(np.sqrt(spread))


def base_weights(draws: Draws) -> Float[np.ndarray, "chain draw"]:
    """The weights that draws came with, in float64, summing to one."""
    if draws.log_weights is None:
        return base_of((draws.n_chains, draws.n_draws))
    raw = np.asarray(draws.log_weights, np.float64)
    weights = np.exp(raw - raw.max())
    return weights / weights.sum()


def base_of(shape: tuple[int, ...]) -> Float[np.ndarray, "chain draw"]:
    """Equal weights that sum to one."""
    return np.full(shape, 1 / np.prod(shape))


def log_of(weights: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Their logarithm; −inf for weight zero."""
    with np.errstate(divide="ignore"):
        return np.log(weights)


def log_sum_exp(values: Float[np.ndarray, "..."]) -> float:
    """log Σ exp over all values."""
    return float(np.logaddexp.reduce(values, axis=None))


def _pareto_smooth(
    raw: Float[np.ndarray, "chain draw"], efficiency: float
) -> tuple[Float[np.ndarray, "chain draw"], float]:
    counted = np.isfinite(raw)  # draws of weight zero stay at zero and say nothing of the tail
    if raw[counted].max() - (log_sum_exp(raw[counted]) - np.log(counted.sum())) <= np.log(FLAT):
        return raw, 0.0
    try:
        with np.errstate(all="ignore"):  # ties in the tail divide by zero there; what comes of it is checked below
            values, pareto_k = _array_stats().psislw(
                -raw[counted], r_eff=efficiency, axis=-1
            )  # psislw negates its input
    except (ValueError, IndexError):  # fewer than five values in the tail, or equal ones: nothing to fit a Pareto to
        return raw, float("inf")
    if not (np.isfinite(pareto_k) and np.isfinite(values).all()):
        return raw, float("inf")
    smoothed = np.full_like(raw, -np.inf)
    smoothed[counted] = values
    return smoothed, float(pareto_k)


def pareto_k_threshold(n_draws: int) -> float:
    """The largest k̂ at which this many draws give a usable estimate; negative for ten draws or fewer."""
    return float(min(1 - 1 / np.log10(max(n_draws, 2)), 0.7))


def relative_efficiency(log_weights: Float[np.ndarray, "chain draw"]) -> float:
    """Effective over nominal number of draws for the mean weight, from the chains' autocorrelation; at most 1."""
    chains, draws = log_weights.shape
    weights = np.exp(log_weights - log_weights.max())
    if draws < FEWEST_FOR_EFFICIENCY or np.ptp(weights) == 0:
        return 1.0
    ess = float(_array_stats().ess(weights, chain_axis=-2, draw_axis=-1, method="mean"))
    return float(np.clip(ess / (chains * draws), 1 / (chains * draws), 1.0)) if np.isfinite(ess) else 1.0


def _array_stats() -> Any:
    from arviz_stats.base import array_stats  # here, since it takes a second to import

    return array_stats
