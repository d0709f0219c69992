"""How far the moments of draws are from those of other draws, next to what chance explains.

Errors are root mean squares over all numbers of a draw: of means, in standard deviations of the target; of logarithms
of standard deviations. Their p-values are of the worst single number, held against its own Monte Carlo error: an error
of one number among a thousand is not diluted by the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtr

from posterase.data.parameters import element_names
from posterase.draws.draws import Draws
from posterase.errors import DrawsShapeError
from posterase.metrics.samples import Sample, sampled
from posterase.numerics.weights import variance_of_mean


class MomentErrors(NamedTuple):
    """Errors of means and spreads."""

    mean: float
    """Of means, in the target's standard deviations."""
    mean_chance: float
    """What the error of means is expected to be by chance, from the effective draws on both sides."""
    log_sd: float
    """Of log standard deviations."""
    log_sd_chance: float
    """What that is expected to be by chance."""
    mean_p_value: float
    """The chance of so large an error of the worst mean, Bonferroni corrected."""
    log_sd_p_value: float
    """The same of the worst standard deviation."""


class _Moments(NamedTuple):
    mean: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"]
    mean_error: Float[np.ndarray, " k"]
    log_sd_error: Float[np.ndarray, " k"]


def moment_errors(draws: Draws, target: Draws) -> MomentErrors:
    """The errors of (weighted) draws against those of a target, a refit say. Numbers that never change are left out."""
    return moment_errors_of(sampled(draws), sampled(target))


def moment_errors_of(draws: Sample, target: Sample) -> MomentErrors:
    """The same of draws of which it is known what they are worth."""
    known = _constant(draws, target)
    own, other = (_moments(each, ~known) for each in (draws, target))
    shift = (own.mean - other.mean) / other.sd
    stretch = np.log(own.sd / other.sd)
    shift_error = np.hypot(own.mean_error, other.mean_error) / other.sd
    stretch_error = np.hypot(own.log_sd_error, other.log_sd_error)
    return MomentErrors(
        mean=_root_mean_square(shift),
        mean_chance=_root_mean_square(shift_error),
        log_sd=_root_mean_square(stretch),
        log_sd_chance=_root_mean_square(stretch_error),
        mean_p_value=_worst(shift / shift_error, min(draws.freedom, target.freedom)),
        log_sd_p_value=_worst(stretch / stretch_error, min(draws.freedom, target.freedom)),
    )


def _constant(draws: Sample, target: Sample) -> Bool[np.ndarray, " elements"]:
    """Which numbers never change, in either; refused where they do in one only, or differ, or there are no others."""
    values, wanted = draws.values, target.values
    if draws.draws.names != target.draws.names or values.shape[1] != wanted.shape[1]:
        raise DrawsShapeError("the draws have other parameters than the target.", "compare draws of the same model.")
    if len(values) < 2 or len(wanted) < 2:
        raise DrawsShapeError(
            f"there are {len(values)} and {len(wanted)} draws.", "a spread needs some hundred of each."
        )
    still = [np.ptp(each, axis=0) == 0 for each in (values, wanted)]
    odd = np.flatnonzero((still[0] != still[1]) | (still[0] & still[1] & (values[0] != wanted[0])))
    if odd.size:
        name = element_names(draws.draws.params)[odd[0]]
        which = "the draws" if still[0][odd[0]] else "the target"
        raise DrawsShapeError(f"{name} never changes in {which}.", "its spread says nothing: has a chain stood still?")
    if still[0].all():
        raise DrawsShapeError("nothing changes in the draws.", "has every chain stood still?")
    return still[0]


def _moments(sample: Sample, counted: Bool[np.ndarray, " elements"]) -> _Moments:
    values, weights = sample.values[:, counted], sample.base.ravel()
    mean = weights @ values
    squares = (values - mean) ** 2
    variance = weights @ squares
    least = np.finfo(float).tiny
    mean_error, variance_error = (
        np.sqrt(np.maximum(variance_of_mean(each, weights, sample.groups), least)) for each in (values, squares)
    )
    return _Moments(mean, np.sqrt(variance), mean_error, variance_error / (2 * variance))  # d log sd = d var / (2 var)


def _root_mean_square(values: Float[np.ndarray, " k"]) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _worst(scores: Float[np.ndarray, " k"], freedom: float) -> float:
    return float(min(1.0, 2 * stdtr(freedom, -np.abs(scores).max()) * len(scores)))
