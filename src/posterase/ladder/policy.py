"""Policy: what an erased posterior must show to be accepted."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any

from posterase.draws.objections import Objection
from posterase.errors import InvalidOptionError
from posterase.ladder.verdict import FINEST_EPSILON, Margin, epsilon_text
from posterase.methods.base import MethodResult
from posterase.numerics.weights import total_variation
from posterase.runtime.checks import check_type
from posterase.runtime.text import did_you_mean
from posterase.sampling.mixing import MOST_RHAT

ENOUGH_ESS = 400.0


@dataclasses.dataclass(frozen=True)
class Policy:
    """Thresholds that a method must pass, and what may be done to pass them.

    Examples
    --------
    >>> import posterase as pe
    >>> pe.Policy(epsilon=0.01, ess=1000.0).epsilon
    0.01
    """

    pareto_k: float | None = None
    """The largest k̂. None: min(1 − 1/log₁₀(draws), 0.7), as its authors advise."""
    ess: float | None = None
    """The fewest effective draws for mean and variance of any parameter. None: 400, as Vehtari et al. (2021) advise, or
    a quarter of what the draws that went in have, where that is less, so that Monte Carlo errors at most double. With
    stored log-likelihoods alone, a quarter of that."""
    epsilon: float = 0.05
    """The largest ε, in nats, of a returned draw, where it is measured."""
    need_epsilon: bool = False
    """Whether draws whose ε is not measured are refused too."""
    residual: float = 0.05
    """The largest share that a linear solver may leave."""
    rhat: float = MOST_RHAT
    """The largest R̂ of a refit."""
    refit: bool = True
    """Whether a refit is started where nothing else passes."""
    refit_seconds: float | None = None
    """No refit is started, or gone on with after its warm-up, that is estimated to take longer. None: no limit."""
    budget: float = 1.0
    """How much repeated erasures of one posterior may add up to, in total variation, before a refit is demanded. KL
    does not add up over erasures; total variation does. An erasure spends √(ε/2), or what verification may have missed
    where that is less."""
    prediction_excess: float = 0.1
    """For networks: how far predictions may differ from a refit's beyond what two refits differ, as a share of that."""
    error_gap: float = 0.02
    """For networks: how far errors on kept, removed and test rows may be from the refits', beyond their spread."""
    attack_gap: float = 0.05
    """For networks: the same for the accuracy of the membership attack on removed rows."""
    loss_gap: float = 0.05
    """For networks: how far the mean loss on kept rows may be from the refits', as a share of it."""

    def __new__(cls, *values: Any, **entries: Any) -> Policy:
        names = [field.name for field in dataclasses.fields(cls)]
        if values:
            raise InvalidOptionError("Policy: its entries are passed by name.", "write pe.Policy(epsilon=0.01).")
        for name in entries:
            if name not in names:
                meant = did_you_mean(name, names, f"use {', '.join(names)}.")
                raise InvalidOptionError(f"a policy has no {name!r}.", meant)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("refit", "need_epsilon"):
                check_type(value, bool, field.name, "use True or False.")
            elif not (field.name in ("pareto_k", "ess", "refit_seconds") and value is None):
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if not number or not value >= 0:
                    raise InvalidOptionError(f"Policy: {field.name} is {value!r}.", "use a number, not negative.")

    def for_draws(self, ess: Mapping[str, float], *, can_move: bool) -> Policy:
        """The same with the demand for effective draws as a number, given those of the draws that go in.

        Where draws cannot be moved, what comes out is a subset of them, and there is nothing better to climb to: a
        quarter of the default demand will do.
        """
        demand = min(ENOUGH_ESS, min(ess.values()) / 4)
        return self if self.ess is not None else dataclasses.replace(self, ess=demand if can_move else demand / 4)

    @property
    def least_ess(self) -> float:
        """The fewest effective draws, where nothing is known of the draws that go in."""
        return ENOUGH_ESS if self.ess is None else self.ess

    def margin(self, erased: MethodResult) -> Margin:
        """How far the diagnostics that passed are from their limits."""
        diagnostics = erased.diagnostics
        limit = diagnostics.threshold if self.pareto_k is None else self.pareto_k
        wide = diagnostics.least_ess >= 2 * self.least_ess
        if diagnostics.pareto_k is not None and limit is not None:
            wide &= diagnostics.pareto_k <= limit / 2
        if diagnostics.epsilon is not None:
            wide &= diagnostics.epsilon.value <= self.epsilon / 2
        if diagnostics.residual is not None:
            wide &= diagnostics.residual <= self.residual / 2
        if diagnostics.rhat is not None:
            wide &= diagnostics.rhat - 1 <= (self.rhat - 1) / 2
        return "wide" if wide else "narrow"

    def objections(self, erased: MethodResult) -> list[Objection]:
        """Why what a method measured is not enough; nothing where it is.

        Examples
        --------
        >>> import numpy as np, posterase as pe
        >>> model = pe.Model(lambda p: 0.0, lambda p, y: -0.5 * (y - p["m"]) ** 2, np.zeros(100))
        >>> draws = pe.Draws({"m": np.random.default_rng(0).normal(0, 0.1, size=(4, 500))})
        >>> pe.Policy().objections(pe.Reweight()(0, model, draws, model.change(remove=[3])))
        []
        """
        diagnostics = erased.diagnostics
        found = [] if diagnostics.flaw is None else [diagnostics.flaw]
        if diagnostics.pareto_k is not None and diagnostics.threshold is not None:
            limit = diagnostics.threshold if self.pareto_k is None else self.pareto_k
            if diagnostics.pareto_k == float("inf"):
                found.append(Objection("pareto_k", "k̂ cannot be estimated from these draws", "use more draws."))
            elif not diagnostics.pareto_k <= limit:
                reason = f"k̂ {diagnostics.pareto_k:.2f} above {limit:.2f}"
                found.append(Objection("pareto_k", reason, "use more draws."))
        if diagnostics.residual is not None and not diagnostics.residual <= self.residual:
            reason = f"the solver left {diagnostics.residual:.0%}"
            found.append(Objection("residual", reason, "use another solver, or more steps."))
        if diagnostics.rhat is not None and not diagnostics.rhat <= self.rhat:
            reason = f"R̂ {diagnostics.rhat:.3f} above {self.rhat:g}"
            found.append(Objection("rhat", reason, "use more draws or a longer warm-up."))
        elif diagnostics.rhat is None and erased.samples_anew:
            found.append(Objection("rhat not measured", "R̂ of the new chains was not measured", "measure it."))
        found += self.too_few(diagnostics.ess)
        if diagnostics.epsilon is not None and not found and not diagnostics.epsilon.value <= self.epsilon:
            reason = f"{epsilon_text(diagnostics.epsilon)} above {self.epsilon:g}"
            found.append(Objection("epsilon", reason, "use more draws."))
        if self.need_epsilon and diagnostics.epsilon is None and not erased.samples_anew:
            reason = "ε not measured, which the policy needs"
            found.append(Objection("epsilon not measured", reason, "remove fewer rows at a time."))
        return found

    def brief(self, erased: MethodResult) -> str:
        """One line for a table: "passed, k̂ 0.31" or "not passed: k̂ 0.93 above 0.70"."""
        found = self.objections(erased)
        return f"not passed: {found[0].reason}" if found else f"passed, {erased.details.brief}"

    def too_few(self, ess: Mapping[str, float]) -> list[Objection]:
        """Whether some parameter has too few effective draws."""
        worst = min(ess, key=lambda name: ess[name])
        if ess[worst] >= self.least_ess:
            return []
        reason = f"{ess[worst]:.0f} effective draws of {worst}, below {self.least_ess:.4g}"
        return [Objection("ess", reason, "use more draws.")]

    def spends(self, erased: MethodResult, missed: float | None = None) -> float:
        """What accepting this adds to the budget, in total variation; nothing for a refit.

        The smaller of min(1, √(ε/2)), where ε was measured, with its error added, and of what verification may have
        missed: the distance of two Gaussians whose means are `missed` standard deviations apart, 2Φ(missed/2) − 1.
        """
        if erased.samples_anew:
            return 0.0
        epsilon = erased.diagnostics.epsilon
        if epsilon is None:
            measured = 1.0
        else:  # a small ε from few draws is mostly noise
            error = epsilon.error if epsilon.error >= 0 else 0.0
            measured = total_variation([max(epsilon.value + error, FINEST_EPSILON)])
        return measured if missed is None else min(measured, math.erf(missed / math.sqrt(8)))


# For help() and editors, which would show what `__new__` takes.
_parameters = list(inspect.signature(Policy.__init__).parameters.values())[1:]

Policy.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]
