"""How far the moments of draws are from those of other draws, next to what chance explains.

Errors are root mean squares over all numbers of a draw: of means, in standard deviations of the target; of logarithms
of standard deviations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posterase.draws import Draws
from posterase.numerics.weights import parameter_ess


class MomentErrors(NamedTuple):
    """Errors of means and spreads."""

    mean: float
    """Of means, in the target's standard deviations."""
    chance: float
    """What the error of means is expected to be by chance, from the effective draws on both sides."""
    log_sd: float
    """Of log standard deviations."""


def moment_errors(draws: Draws, target: Draws) -> MomentErrors:
    """The errors of (weighted) draws against those of a target, a refit say."""
    values, wanted = draws.matrix(), target.matrix()
    weights, base = (np.asarray(each.weights, float).ravel() for each in (draws, target))
    mean, exact = weights @ values, base @ wanted
    sd, exact_sd = np.sqrt(weights @ (values - mean) ** 2), np.sqrt(base @ (wanted - exact) ** 2)
    own, others = (np.mean([1 / value for value in parameter_ess(each).values()]) for each in (draws, target))
    return MomentErrors(
        mean=float(np.sqrt(np.mean(((mean - exact) / exact_sd) ** 2))),
        chance=float(np.sqrt(own + others)),
        log_sd=float(np.sqrt(np.mean(np.log(sd / exact_sd) ** 2))),
    )
