"""What a measured ε still says after more has been done to the draws.

Of a law q with KL(q ‖ kept) = ε, in nats:

- a move that leaves the kept posterior exactly invariant, tuned beforehand or on other draws than those it moves,
  raises neither KL(· ‖ kept) nor the Jeffreys divergence J;
- resampling by raw weights kept/q cannot raise KL(· ‖ kept) of one draw; of J nothing such is known. By smoothed
  weights W̃ it is at most E Σ W̃ᵢ log(n W̃ᵢ/wᵢ), w with mean one;
- along a path with a schedule fixed beforehand, KL ≤ log Z − E log Ẑ;
- moves at another target (λ < 1), unadjusted ones (SGLD, SGHMC) and moves tuned on the draws that they move have none
  of this: the bound is lost, and stays lost;
- over several erasures KL does not add up; total variation does: Σ min(1, √(ε/2)).

All of it speaks of the law of *one* draw: n independent draws carry nε.

    bounds = measured(kl=Estimate(0.02, 0.003)).resampled("raw").moved(invariant=True, tuned_on="other draws")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from posterase.errors import DrawsShapeError, InvalidOptionError
from posterase.numerics.weights import Estimate, base_of, smooth, weighted_divergence
from posterase.runtime.checks import check_finite

TUNED_ON = ("nothing", "other draws", "the moved draws")
WEIGHTS = ("raw", "smoothed")


class Bounds(NamedTuple):
    """What is known of the law of one draw, and why no more is."""

    kl: Estimate | None
    """KL to the kept posterior is at most this; None: no bound."""
    jeffreys: Estimate | None
    """The same of KL both ways."""
    lost: tuple[str, ...] = ()
    """Which step took which bound away."""

    def moved(self, *, invariant: bool, tuned_on: str) -> Bounds:
        """After MCMC moves.

        `invariant`: whether they leave the kept posterior exactly invariant: Metropolis-adjusted, at λ = 1, with the
        whole density. `tuned_on`: what step sizes and scales were chosen on.
        """
        if tuned_on not in TUNED_ON:
            raise InvalidOptionError(f"tuned_on is {tuned_on!r}.", 'use "nothing", "other draws" or "the moved draws".')
        if invariant and tuned_on != "the moved draws":
            return self
        why = (
            "moves tuned on the draws that they move"
            if invariant
            else "moves that do not leave the kept posterior invariant"
        )
        return self._without(kl=why, jeffreys=why)

    def resampled(self, weights: str, changed: Estimate | None = None) -> Bounds:
        """After resampling by weights kept/q.

        Smoothed weights are other weights than kept/q: their bound is `smoothing_bound`, to be given as `changed`.
        """
        if weights not in WEIGHTS:
            raise InvalidOptionError(f"weights is {weights!r}.", 'use "raw" or "smoothed".')
        after = self._without(jeffreys="resampling")
        if weights == "raw":
            return after
        if changed is None:
            return after._without(kl="resampling by smoothed weights")
        return after._replace(kl=changed)

    def _without(self, *, kl: str = "", jeffreys: str = "") -> Bounds:
        lost = list(self.lost)
        if kl and self.kl is not None:
            lost.append(f"KL: {kl}")
        if jeffreys and self.jeffreys is not None:
            lost.append(f"Jeffreys: {jeffreys}")
        return Bounds(None if kl else self.kl, None if jeffreys else self.jeffreys, tuple(lost))

    def __str__(self) -> str:
        parts = [
            f"{name} {'no bound' if value is None else f'≲ {value}'}"
            for name, value in (("KL", self.kl), ("Jeffreys", self.jeffreys))
        ]
        return ", ".join(parts) + (f" (lost by {'; '.join(self.lost)})" if self.lost else "")


def measured(kl: Estimate | None = None, jeffreys: Estimate | None = None) -> Bounds:
    """What was measured of draws: J bounds KL, where only J is known."""
    return Bounds(jeffreys if kl is None else kl, jeffreys)


def smoothing_bound(log_weights: ArrayLike | Sequence[Any]) -> Estimate | None:
    """E Σ W̃ᵢ log(n W̃ᵢ/wᵢ) from raw log-weights kept/q of draws of q, `(chain, draw)`; None where k̂ does not pass."""
    log_weights = np.asarray(check_finite("log_weights", log_weights, "chain draw"), np.float64)
    if log_weights.size < 2:
        raise DrawsShapeError(f"there are {log_weights.size} log-weights.", "give some hundred.")
    smoothed = smooth(log_weights)
    if not smoothed.pareto_k <= smoothed.threshold:
        return None
    return weighted_divergence(log_weights, base_of(log_weights.shape), smoothed)


def path_bound(log_estimates: ArrayLike | Sequence[Any], log_evidence: float | None = None) -> Estimate:
    """log Z − E log Ẑ: what bounds KL of the draws at the end of a path whose schedule was fixed beforehand.

    `log_estimates` are log Ẑ of independent runs of such a path, Ẑ the product of its mean weights, unbiased for the
    ratio Z of the kept to the full evidence; `log_evidence` is log Z where it is known, else it is estimated as the log
    of the mean of Ẑ, which is low where the runs are few. `Rejuvenate` chooses its schedule on the way: not for it.
    """
    log_estimates = np.asarray(check_finite("log_estimates", log_estimates, "runs"), np.float64)
    n = len(log_estimates)
    if n < 2:
        raise DrawsShapeError(f"there are {n} runs.", "give log Ẑ of two independent runs or more.")
    mean = log_estimates.mean()
    if log_evidence is not None:
        error = float(log_estimates.std(ddof=1) / np.sqrt(n))
        if log_evidence < mean - 4 * error:
            raise InvalidOptionError(
                f"log_evidence is {log_evidence:.6g}, and the runs' mean is {mean:.6g}: Ẑ cannot be unbiased.",
                "check both, and their signs.",
            )
        return Estimate(float(log_evidence - mean), error)
    ratios = np.exp(log_estimates - log_estimates.max())
    influence = ratios / ratios.mean() - log_estimates
    value = log_estimates.max() + np.log(ratios.mean()) - mean
    return Estimate(float(value), float(influence.std(ddof=1) / np.sqrt(n)))
