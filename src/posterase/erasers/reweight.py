"""Reweight: keep the draws, change their weights.

    log w(θ) = log p(θ | S − S′) − log p(θ | S) + constant = −removed(θ)

Only the removed rows are evaluated, so the cost does not depend on how many are kept. The weights are Pareto smoothed,
and k̂, the shape of their tail, says whether they can be trusted: up to min(1 − 1/log₁₀(draws), 0.7). Exact as the
number of draws grows, where k̂ is small.

References
----------
Gelfand, Dey, Chang (1992), Model determination using predictive distributions.
Vehtari, Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling, JMLR 25(72).
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import numpy as np
from jaxtyping import Array, Int, Key

from posterase.draws import Draws
from posterase.erasers.eraser import Erased, Eraser, Result
from posterase.erasers.evidence import Evidence, weigh
from posterase.errors import NonFiniteResultError
from posterase.model import AbstractModel, Removal, RemovedLogLikelihood
from posterase.numerics.cost import Cost
from posterase.numerics.densities import evaluate
from posterase.numerics.weights import Estimate, base_weights, parameter_ess, smooth


@dataclasses.dataclass(frozen=True)
class ReweightDiagnostics:
    """How far the weights can be trusted."""

    pareto_k: float
    """k̂ of the raw weights: below the threshold the weighted draws are as good as `ess` independent ones."""
    threshold: float
    """The largest k̂ to trust with this many draws."""
    ess: float
    """Effective number of draws after reweighting."""
    n_draws: int
    """Number of draws, all chains together."""
    epsilon: Estimate | None
    """KL to the kept posterior of a returned (weighted) draw; None, not measured, where k̂ does not pass."""
    before_weights: Estimate | None
    """KL to the kept posterior of the untouched draws."""
    log_evidence_ratio: Estimate
    """log p(S) − log p(S − S′), where the likelihood is normalised."""
    ancestors: Int[np.ndarray, "chain draw"] | None
    """Where draws were resampled: which draw, chains laid end to end, each one came from."""

    @property
    def brief(self) -> str:
        """The one figure that matters most."""
        return f"k̂ {self.pareto_k:.2f}"

    def __str__(self) -> str:
        return f"k̂ {self.pareto_k:.2f} (trusted up to {self.threshold:.2f}), ESS {self.ess:.0f} of {self.n_draws}"


class Reweight(Eraser):
    """Importance weights −removed(θ), Pareto smoothed.

    Parameters
    ----------
    resample
        Whether to resample the draws to equal weights. By default they stay as they are and carry the weights.
    """

    resample: bool = eqx.field(default=False, static=True)

    def _erase(self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal) -> Erased:
        log_weights = -evaluate(RemovedLogLikelihood(model, removal), draws)
        raw = log_weights
        if draws.log_weights is not None:
            raw = raw + np.asarray(draws.log_weights, np.float64)
        if np.isnan(raw).any() or not (raw < np.inf).all() or not np.isfinite(raw).any():
            raise NonFiniteResultError(
                "the log-likelihood of the removed rows is NaN or −infinity at some draws.",
                "draws of the full posterior cannot contradict its rows: check log_likelihood, and that draws and "
                "data belong together.",
            )
        smoothed = smooth(raw)
        weighed = weigh(log_weights, base_weights(draws), smoothed)
        weighted = draws.replace(draws.params, smoothed.log_weights)
        ancestors = weighted.ancestors(key) if self.resample else None
        diagnostics = ReweightDiagnostics(
            pareto_k=smoothed.pareto_k,
            threshold=smoothed.threshold,
            ess=smoothed.ess,
            n_draws=raw.size,
            epsilon=weighed.epsilon,
            before_weights=weighed.before_weights,
            log_evidence_ratio=weighed.log_evidence_ratio,
            ancestors=None if ancestors is None else np.asarray(ancestors),
        )
        evidence = Evidence(
            ess=parameter_ess(weighted),
            cost=Cost(densities=raw.size * removal.n_rows / model.n_rows, sequential=1),
            pareto_k=smoothed.pareto_k,
            threshold=smoothed.threshold,
            epsilon=weighed.epsilon,
            before_weights=weighed.before_weights,
            log_evidence_ratio=weighed.log_evidence_ratio,
            weighted=True,
            resembles=lambda other: -evaluate(RemovedLogLikelihood(model, removal), other),
        )
        returned = weighted if ancestors is None else weighted.take(ancestors)
        return Erased(returned, _judge(diagnostics), diagnostics, evidence)


def _judge(diagnostics: ReweightDiagnostics) -> Result:
    if diagnostics.pareto_k <= diagnostics.threshold:
        return Result(True, f"importance weights can be trusted (k̂ {diagnostics.pareto_k:.2f}).")
    if not np.isfinite(diagnostics.pareto_k):
        return Result(False, "k̂ cannot be estimated from these draws.", "draw more: some hundred at least.")
    return Result(
        False,
        f"the weights rest on a few draws (k̂ {diagnostics.pareto_k:.2f}, above {diagnostics.threshold:.2f}).",
        "move the draws (Transport), remove fewer rows, or refit.",
    )
