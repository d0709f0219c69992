"""Importance weights: smoothing, and how far they can be trusted.

Everything here takes and returns *log-weights*, log w, natural logarithms up to a constant: larger means more weight.
This file owns the sign: `arviz_stats` wants log-likelihoods and negates them, and is called here only.

References
----------
Vehtari, Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling, JMLR 25(72).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

FEWEST_FOR_EFFICIENCY = 4
"""Chains shorter than this say nothing about their autocorrelation."""


class Smoothed(NamedTuple):
    """Pareto smoothed weights and their diagnostics."""

    log_weights: Float[np.ndarray, "chain draw"]
    """Normalised: the weights sum to one."""
    pareto_k: float
    """Shape k̂ of the tail of the raw weights; above `threshold` they are not to be trusted. Infinite where it cannot
    be estimated (too few draws, a tail of equal values); zero where all weights are equal."""
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
    return Smoothed(
        log_weights=smoothed,
        pareto_k=pareto_k,
        threshold=pareto_k_threshold(raw.size),
        ess=float(np.exp(-log_sum_exp(2 * smoothed)) * efficiency),
    )


def log_sum_exp(values: Float[np.ndarray, "..."]) -> float:
    """log Σ exp over all values."""
    return float(np.logaddexp.reduce(values, axis=None))


def _pareto_smooth(
    raw: Float[np.ndarray, "chain draw"], efficiency: float
) -> tuple[Float[np.ndarray, "chain draw"], float]:
    counted = np.isfinite(raw)  # draws of weight zero stay at zero and say nothing of the tail
    if np.ptp(raw[counted]) == 0:
        return raw, 0.0
    try:
        with np.errstate(all="ignore"):  # ties in the tail divide by zero there; what comes of it is checked below
            values, pareto_k = _array_stats().psislw(
                -raw[counted], r_eff=efficiency, axis=-1
            )  # psislw negates its input
    except ValueError:  # fewer than five values in the tail, or equal ones: nothing to fit a Pareto to
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
