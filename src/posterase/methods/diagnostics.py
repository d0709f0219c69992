"""What a method can show for its draws, in the same words for all of them, so that a policy can judge it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from posterase.draws.draws import Draws
from posterase.draws.objections import Objection
from posterase.numerics.cost import Cost
from posterase.numerics.weights import (
    Estimate,
    Smoothed,
    divergence,
    log_mean,
    weighted_divergence,
)


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """What is known of a method's draws. None: this method does not measure it."""

    ess: dict[str, float]
    """Effective number of draws for mean and variance of each parameter, its worst element: weights, autocorrelation
    and shared ancestors taken in."""
    cost: Cost
    pareto_k: float | None = None
    """k̂ of the exact importance weights."""
    threshold: float | None = None
    """The largest k̂ to trust with this many draws."""
    epsilon: Estimate | None = None
    """KL in nats from the law of a returned draw to the kept posterior; not measured where k̂ does not pass."""
    before_weights: Estimate | None = None
    """The same of the moved draws before they were weighted: an estimate from above."""
    residual: float | None = None
    """What a linear solver left, as a share."""
    rhat: float | None = None
    """The worst R̂ of chains that were run."""
    log_evidence_ratio: Estimate | None = None
    """log p(S) − log p(S − S′), where the model's prior and likelihood are normalised."""
    flaw: Objection | None = None
    """What the method alone can know to be wrong with the draws, and what no threshold of a policy expresses."""
    log_weights_at: Callable[[Draws], Float[np.ndarray, "chain draw"]] | None = None
    """Log-weights at other draws, for the Jeffreys divergence: a function of draws of the kept posterior, or None where
    the density of the method's draws is not known."""
    moved: Draws | None = None
    """The draws that this density belongs to: before weights and resampling, with the weights that they came with."""

    @property
    def least_ess(self) -> float:
        """Of the worst parameter."""
        return min(self.ess.values())


class Weighed(NamedTuple):
    """What raw weights of moved draws say."""

    smoothed: Smoothed
    epsilon: Estimate | None
    """Of the weighted draws. None where k̂ does not pass: weights that miss the tail know nothing of it."""
    before_weights: Estimate | None
    """Of the draws without these weights; None likewise."""
    log_evidence_ratio: Estimate


def weigh(
    log_weights: Float[np.ndarray, "chain draw"], base: Float[np.ndarray, "chain draw"], smoothed: Smoothed
) -> Weighed:
    """Divergences and the evidence ratio from raw log-weights log kept − log (density of the moved draws)."""
    ratio = log_mean(log_weights, base)
    passes = smoothed.pareto_k <= smoothed.threshold
    return Weighed(
        smoothed=smoothed,
        epsilon=weighted_divergence(log_weights, base, smoothed) if passes else None,
        before_weights=divergence(log_weights, base) if passes else None,
        log_evidence_ratio=Estimate(-ratio.value, ratio.error),
    )


def weight_diagnostics(
    weighed: Weighed, ess: dict[str, float], cost: Cost, *, weighted: bool = True, **rest: Any
) -> Diagnostics:
    """What weights show: of the draws that carry them, or (`weighted=False`) of the draws as they are."""
    return Diagnostics(
        ess=ess,
        cost=cost,
        pareto_k=weighed.smoothed.pareto_k,
        threshold=weighed.smoothed.threshold,
        epsilon=weighed.epsilon if weighted else weighed.before_weights,
        before_weights=weighed.before_weights,
        log_evidence_ratio=weighed.log_evidence_ratio,
        **rest,
    )


@dataclasses.dataclass(frozen=True)
class WeightDetails:
    """How far weights can be trusted, and what they say."""

    pareto_k: float
    """k̂ of the raw weights: below the threshold the weighted draws are as good as `ess` independent ones."""
    threshold: float
    """The largest k̂ to trust with this many draws."""
    ess: float
    """Effective number of draws after weighting."""
    n_draws: int
    """Number of draws, all chains together."""
    epsilon: Estimate | None
    """KL to the kept posterior of a returned (weighted) draw; None, not measured, where k̂ does not pass."""
    before_weights: Estimate | None
    """KL to the kept posterior of the draws without these weights."""
    log_evidence_ratio: Estimate
    """log p(S) − log p(S − S′), where prior and likelihood are normalised."""

    @property
    def brief(self) -> str:
        """The one figure that matters most."""
        return f"k̂ {self.pareto_k:.2f}"

    def __str__(self) -> str:
        return f"k̂ {self.pareto_k:.2f} (trusted up to {self.threshold:.2f}), ESS {self.ess:.0f} of {self.n_draws}"


def weight_figures(weighed: Weighed) -> dict[str, Any]:
    """The fields of `WeightDetails`."""
    smoothed = weighed.smoothed
    return {
        "pareto_k": smoothed.pareto_k,
        "threshold": smoothed.threshold,
        "ess": smoothed.ess,
        "n_draws": smoothed.log_weights.size,
        "epsilon": weighed.epsilon,
        "before_weights": weighed.before_weights,
        "log_evidence_ratio": weighed.log_evidence_ratio,
    }
