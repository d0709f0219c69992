"""Policy: what an erased posterior must show to be accepted; and the verdict."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any, Literal

from posterase.draws.notes import Note
from posterase.draws.objections import Objection
from posterase.draws.origins import Origin
from posterase.errors import InvalidOptionError
from posterase.methods.base import Erased
from posterase.numerics.weights import Estimate, total_variation
from posterase.runtime.checks import check_type
from posterase.runtime.text import did_you_mean
from posterase.sampling.mixing import MOST_RHAT

Kind = Literal["measured", "moved", "refitted", "matched empirically", "refused"]
"""What an acceptance rests on: ε was measured; diagnostics passed without it; chains of a refit agree; a network
behaves as refits do."""

Margin = Literal["wide", "narrow"]
"""How far the diagnostics of an accepted result are from their limits: wide where each has at least a factor of two."""

ENOUGH_ESS = 400.0

BUDGET_STEP = 0.05
"""What is published of a budget is rounded up to a multiple of this."""


MOST_COUNTED = 100
"""More requests than so many are not counted."""

FINEST_EPSILON = 1e-4
"""ε is not printed finer than this."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """Thresholds that a rung must pass, and what may be done to pass them.

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

    def margin(self, erased: Erased) -> Margin:
        """How far the diagnostics that passed are from their limits."""
        evidence = erased.evidence
        limit = evidence.threshold if self.pareto_k is None else self.pareto_k
        wide = evidence.least_ess >= 2 * self.least_ess
        if evidence.pareto_k is not None and limit is not None:
            wide &= evidence.pareto_k <= limit / 2
        if evidence.epsilon is not None:
            wide &= evidence.epsilon.value <= self.epsilon / 2
        if evidence.residual is not None:
            wide &= evidence.residual <= self.residual / 2
        if evidence.rhat is not None:
            wide &= evidence.rhat - 1 <= (self.rhat - 1) / 2
        return "wide" if wide else "narrow"

    def objections(self, erased: Erased) -> list[Objection]:
        """Why what a method measured is not enough; nothing where it is.

        Examples
        --------
        >>> import numpy as np, posterase as pe
        >>> model = pe.Model(lambda p: 0.0, lambda p, y: -0.5 * (y - p["m"]) ** 2, np.zeros(100))
        >>> draws = pe.Draws({"m": np.random.default_rng(0).normal(0, 0.1, size=(4, 500))})
        >>> pe.Policy().objections(pe.Reweight()(0, model, draws, model.removal([3])))
        []
        """
        evidence = erased.evidence
        found = [] if evidence.flaw is None else [evidence.flaw]
        if evidence.pareto_k is not None and evidence.threshold is not None:
            limit = evidence.threshold if self.pareto_k is None else self.pareto_k
            if evidence.pareto_k == float("inf"):
                found.append(Objection("pareto_k", "k̂ cannot be estimated from these draws", "use more draws."))
            elif not evidence.pareto_k <= limit:
                reason = f"k̂ {evidence.pareto_k:.2f} above {limit:.2f}"
                found.append(Objection("pareto_k", reason, "use more draws."))
        if evidence.residual is not None and not evidence.residual <= self.residual:
            reason = f"the solver left {evidence.residual:.0%}"
            found.append(Objection("residual", reason, "use another solver, or more steps."))
        if evidence.rhat is not None and not evidence.rhat <= self.rhat:
            reason = f"R̂ {evidence.rhat:.3f} above {self.rhat:g}"
            found.append(Objection("rhat", reason, "use more draws or a longer warm-up."))
        elif evidence.rhat is None and erased.samples_anew:
            found.append(Objection("rhat not measured", "R̂ of the new chains was not measured", "measure it."))
        found += self.too_few(evidence.ess)
        if evidence.epsilon is not None and not found and not evidence.epsilon.value <= self.epsilon:
            reason = f"{epsilon_text(evidence.epsilon)} above {self.epsilon:g}"
            found.append(Objection("epsilon", reason, "use more draws."))
        if self.need_epsilon and evidence.epsilon is None and not erased.samples_anew:
            reason = "ε not measured, which the policy needs"
            found.append(Objection("epsilon not measured", reason, "remove fewer rows at a time."))
        return found

    def brief(self, erased: Erased) -> str:
        """One line for a table: "passed, k̂ 0.31" or "not passed: k̂ 0.93 above 0.70"."""
        found = self.objections(erased)
        return f"not passed: {found[0].reason}" if found else f"passed, {erased.diagnostics.brief}"

    def too_few(self, ess: Mapping[str, float]) -> list[Objection]:
        """Whether some parameter has too few effective draws."""
        worst = min(ess, key=lambda name: ess[name])
        if ess[worst] >= self.least_ess:
            return []
        reason = f"{ess[worst]:.0f} effective draws of {worst}, below {self.least_ess:.4g}"
        return [Objection("ess", reason, "use more draws.")]

    def spends(self, erased: Erased, missed: float | None = None) -> float:
        """What accepting this adds to the budget, in total variation; nothing for a refit.

        The smaller of min(1, √(ε/2)), where ε was measured, with its error added, and of what verification may have
        missed: the distance of two Gaussians whose means are `missed` standard deviations apart, 2Φ(missed/2) − 1.
        """
        if erased.samples_anew:
            return 0.0
        epsilon = erased.evidence.epsilon
        if epsilon is None:
            measured = 1.0
        else:  # a small ε from few draws is mostly noise
            error = epsilon.error if epsilon.error >= 0 else 0.0
            measured = total_variation([max(epsilon.value + error, FINEST_EPSILON)])
        return measured if missed is None else min(measured, math.erf(missed / math.sqrt(8)))


# For help() and editors, which would show what `__new__` takes.
_parameters = list(inspect.signature(Policy.__init__).parameters.values())[1:]
Policy.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Accepted, and by which rung with which figures; or refused, why, and what to do.

    `reason` has figures, which are functions of the removed rows; `public()` and `to_dict()` have none.
    """

    accepted: bool
    kind: Kind
    rung: str
    """The rung that was accepted; empty where none was."""
    reason: str
    advice: str = ""
    page: str = ""
    """Where the cause of a refusal is explained."""
    pareto_k: float | None = None
    ess: float | None = None
    epsilon: Estimate | None = None
    """KL in nats from the law of a returned draw to the kept posterior. None: not measured."""
    notes: tuple[Note, ...] = ()
    """What else a reader should know."""
    missed: float | None = None
    """The largest error, in posterior standard deviations, that the verification of the draws against the kept
    posterior may have missed. None: the draws were not verified."""
    margin: Margin | None = None
    """How far the diagnostics of an accepted result are from their limits."""
    draws: Origin | None = None
    """What happened to the draws that are returned."""
    verified: bool | None = None
    """Whether the returned draws were moved along the kept posterior and tested not to drift. None: there are no draws,
    or they are compared with something else: chains of a refit with each other, networks with refits."""
    spends: float | None = None
    """What this acceptance added to the budget of repeated erasures, in total variation."""
    left: float | None = None
    """What is left of the budget."""
    public_reason: str = ""
    """The reason without figures."""

    def public(self) -> str:
        """One line without anything that varies with the values of the removed rows, but for the margin's class."""
        return f"accepted by {self.rung}: {self.public_reason}" if self.accepted else f"refused: {self.public_reason}"

    def __str__(self) -> str:
        lines = [f"accepted by {self.rung}: {self.reason}" if self.accepted else f"refused: {self.reason}"]
        lines += [f"  Note: {note}." for note in self.notes]
        lines += [f"  Budget: {self._budget}."] if self.left is not None else []
        if self.advice:
            lines.append(f"  What to do: {self.advice}")
        if self.page:
            lines.append(f"  Read more: {self.page}")
        return "\n".join(lines)

    @property
    def _budget(self) -> str:
        """What is left for later requests, and what they will need."""
        assert self.left is not None
        if not self.spends:
            return f"nothing spent, {self.left:.2g} left"
        more = int(self.left / self.spends)
        count = f"{more}" if more <= MOST_COUNTED else f"more than {MOST_COUNTED}"
        enough = f"enough for {count} more like it" if more else "another like it will need a refit"
        return f"{self.spends:.2g} spent by this request, {self.left:.2g} left, {enough}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows and saves: no figures, which `print(verdict)` shows."""
        return {"text/plain": self.public()}

    def to_dict(self) -> dict[str, Any]:
        """For certificates, reports and logs: nothing that varies with the values of the removed rows but `margin`."""
        return {
            "accepted": self.accepted,
            "kind": self.kind,
            "method": self.rung or None,
            "margin": self.margin,
            "draws": self.draws,
            "verified": self.verified,
            "reason": self.public_reason,
            "advice": self.advice or None,
            "notes": [note.to_dict() for note in self.notes],
        }

    def diagnostics_dict(self) -> dict[str, Any]:
        """All figures. They contain information about the removed rows."""
        return {
            "accepted": self.accepted,
            "kind": self.kind,
            "rung": self.rung or None,
            "reason": self.reason,
            "advice": self.advice or None,
            "pareto_k": plain(self.pareto_k),
            "ess": plain(self.ess),
            "epsilon": plain(self.epsilon),
            "missed": plain(self.missed),
            "spends": plain(self.spends),
            "left": plain(self.left),
            "notes": [note.to_dict() for note in self.notes],
            "margin": self.margin,
            "draws": self.draws,
            "verified": self.verified,
        }


def rounded_up(spent: float) -> float:
    """A budget as it is published: up to the next multiple of `BUDGET_STEP`, free of rounding noise."""
    return round(math.ceil(round(spent / BUDGET_STEP, 6)) * BUDGET_STEP, 2)


def epsilon_text(epsilon: Estimate | None) -> str:
    """`ε ≈ 0.004 ± 0.001`, never an inequality; or that it was not measured."""
    return "ε not measured" if epsilon is None else f"ε ≈ {rounded(epsilon)}"


def rounded(epsilon: Estimate) -> str:
    """An ε to four decimals at the finest: what it says below that is the weights' own, and not to be believed."""
    fine = epsilon.value < 10 * FINEST_EPSILON or epsilon.error < FINEST_EPSILON
    if not fine or not epsilon.error >= 0:
        return str(epsilon)
    return f"{epsilon.value:.4f} ± {max(epsilon.error, FINEST_EPSILON):.4f}"


def plain(value: Any) -> Any:
    """A figure as JSON knows it: NaN and infinity are null."""
    if isinstance(value, Estimate):
        return {"value": plain(value.value), "error": plain(value.error)}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value
    number = float(value)
    return number if -float("inf") < number < float("inf") else None
