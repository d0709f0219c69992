"""Reweight: keep the draws, change their weights.

    log w(θ) = log p(θ | S_new) − log p(θ | S) + constant = log_ratio(θ)

Only the removed rows are evaluated, so the cost does not depend on how many are kept. The weights are Pareto smoothed,
and k̂, the shape of their tail, says whether they can be trusted: up to min(1 − 1/log₁₀(draws), 0.7). Exact as the
number of draws grows, where k̂ is small.

References
----------
Gelfand, Dey, Chang (1992), Model determination using predictive distributions.
Vehtari, Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling, JMLR 25(72).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from jaxtyping import Float

from posterase.draws.draws import Draws
from posterase.errors import NonFiniteResultError
from posterase.methods.base import Method, MethodResult, Problem
from posterase.methods.diagnostics import WeightDetails, weigh, weight_diagnostics, weight_figures
from posterase.model.densities import LogRatio
from posterase.numerics.cost import Cost
from posterase.numerics.densities import evaluate
from posterase.numerics.weights import base_weights, parameter_ess, smooth


class Reweight(Method):
    """Importance weights log_ratio(θ), Pareto smoothed.

    The weights are a function of the removed rows at every draw: keep them in memory. `pe.erase` returns equally
    weighted draws instead.
    """

    needs_density: ClassVar[bool] = False

    def run(self, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
        _, model, draws, change = problem.parts

        def log_ratio_at(given: Draws) -> Float[np.ndarray, "chain draw"]:
            if not model.has_density:
                return model.stored_log_ratio(given, change)
            return evaluate(LogRatio(model, change), given)

        log_weights = log_ratio_at(draws)
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
        details = WeightDetails(**weight_figures(weighed))
        diagnostics = weight_diagnostics(
            weighed,
            parameter_ess(weighted),
            Cost(densities=raw.size * change.n_rows / model.n_rows, sequential=1),
            log_weights_at=None if not model.has_density else log_ratio_at,
            moved=draws,
        )
        return MethodResult(weighted, details, diagnostics)
