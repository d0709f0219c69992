"""How far draws are from the kept posterior, in nats, from densities and never from distances between draws.

With refit draws, in any dimension: the Jeffreys divergence, which needs no normaliser. Without them: KL from the raw
weights of the draws, where k̂ passes. The estimators are in `posterase.numerics.weights`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from posterase.draws.draws import Draws
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogRatio
from posterase.numerics.densities import evaluate
from posterase.numerics.failures import entry_point
from posterase.numerics.weights import Estimate, base_weights, jeffreys, log_of, smooth, standard_error
from posterase.numerics.weights import divergence as kl


@entry_point
def divergence(model: AbstractModel, draws: Draws, change: Change, refit: Draws | None = None) -> Estimate | None:
    """How far the full posterior is from the kept one: what an erasure has to bridge.

    With `refit`, draws of the kept posterior: Jeffreys, E_S[removed] − E_kept[removed]. Without: KL(p_S ‖ p_kept) from
    weights, or None, not measured, where their k̂ does not pass.
    """
    log_ratio = LogRatio(model, change)
    model.check(draws)
    log_weights, base = evaluate(log_ratio, draws), base_weights(draws)
    if refit is not None:
        model.check(refit)
        return jeffreys(log_weights, base, evaluate(log_ratio, refit), base_weights(refit))
    smoothed = smooth(log_weights + log_of(base))
    return kl(log_weights, base) if smoothed.pareto_k <= smoothed.threshold else None


def moved_jeffreys(
    log_weights_at: Callable[[Draws], Float[np.ndarray, "chain draw"]], moved: Draws, refits: Sequence[Draws]
) -> Estimate:
    """Jeffreys between moved draws, whose density is known, and refits; the mean over these.

    `log_weights_at(draws)` → log kept − log density of the moved draws, up to one constant, at any draws.
    """
    own, base = log_weights_at(moved), base_weights(moved)
    there = [(log_weights_at(refit), base_weights(refit)) for refit in refits]
    value = np.mean([(weights * values).sum() for values, weights in there]) - (base * own).sum()
    # The refits' errors average out; that of the moved draws, which all comparisons share, does not.
    averaged = np.sqrt(sum(standard_error(*each) ** 2 for each in there)) / len(there)
    return Estimate(float(value), float(np.hypot(standard_error(own, base), averaged)))
