"""Policy: what an erased posterior must show to be accepted; and the verdict."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from posterase.assess.bounds import total_variation
from posterase.checks import is_a
from posterase.erasers.evidence import Evidence
from posterase.erasers.refit import MOST_RHAT
from posterase.errors import InvalidOptionError
from posterase.numerics.weights import Estimate

Kind = Literal["measured", "moved", "refitted", "matched empirically", "refused"]
"""How an acceptance was come by: ε was measured; moves and their diagnostics passed, ε was not measured; chains of a
refit agree; a network behaves as refits do."""


FINEST_EPSILON = 1e-4
"""ε is not printed finer than this."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """Thresholds that a rung must pass, and what may be done to pass them.

    Examples
    --------
    >>> import posterase as pe
    >>> pe.Policy(epsilon=0.01, refit=True).ess
    400.0
    """

    pareto_k: float | None = None
    """The largest k̂. None: min(1 − 1/log₁₀(draws), 0.7), as its authors advise."""
    ess: float = 400.0
    """The fewest effective draws for mean and variance of any parameter (Vehtari et al. 2021 advise 400)."""
    epsilon: float = 0.05
    """The largest ε, in nats, of a returned draw, where it is measured."""
    need_epsilon: bool = False
    """Whether draws whose ε is not measured are refused too."""
    residual: float = 0.05
    """The largest share that a linear solver may leave."""
    rhat: float = MOST_RHAT
    """The largest R̂ of a refit."""
    refit: bool = False
    """Whether a refit may be started where nothing else passes."""
    budget: float = 1.0
    """How much repeated erasures of one posterior may add up to, as Σ min(1, √(ε/2)), before a refit is demanded. KL
    does not add up over erasures; total variation, which √(ε/2) bounds, does. An ε that was not measured counts 1."""
    prediction_excess: float = 0.1
    """For networks: how far predictions may differ from a refit's beyond what two refits differ, as a share of that."""
    error_gap: float = 0.02
    """For networks: how far errors on kept, removed and test rows may be from the refits', beyond their spread."""
    attack_gap: float = 0.05
    """For networks: the same for the accuracy of the membership attack on removed rows."""
    loss_gap: float = 0.05
    """For networks: how far the mean loss on kept rows may be from the refits', as a share of it."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("refit", "need_epsilon"):
                is_a(value, bool, field.name, "use True or False.")
            elif not (field.name == "pareto_k" and value is None):
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if not number or not value >= 0:
                    raise InvalidOptionError(f"Policy: {field.name} is {value!r}.", "use a number, not negative.")

    def objections(self, evidence: Evidence) -> list[Objection]:
        """Why this evidence is not enough; nothing where it is."""
        found = []
        if evidence.flaw:
            found.append(Objection(evidence.flaw, evidence.advice))
        if evidence.pareto_k is not None and evidence.threshold is not None:
            limit = evidence.threshold if self.pareto_k is None else self.pareto_k
            if evidence.pareto_k == float("inf"):
                found.append(Objection("k̂ cannot be estimated from these draws", "use more draws."))
            elif not evidence.pareto_k <= limit:
                found.append(Objection(f"k̂ {evidence.pareto_k:.2f} above {limit:.2f}", "use more draws."))
        if evidence.residual is not None and not evidence.residual <= self.residual:
            found.append(Objection(f"the solver left {evidence.residual:.0%}", "use another solver, or more steps."))
        if evidence.rhat is not None and not evidence.rhat <= self.rhat:
            found.append(Objection(f"R̂ {evidence.rhat:.3f} above {self.rhat:g}", "use more draws or a longer warm-up."))
        if not evidence.least_ess >= self.ess:
            worst = min(evidence.ess, key=lambda name: evidence.ess[name])
            found.append(
                Objection(f"{evidence.least_ess:.0f} effective draws of {worst}, below {self.ess:g}", "use more draws.")
            )
        if evidence.epsilon is not None and not found and not evidence.epsilon.value <= self.epsilon:
            found.append(Objection(f"{epsilon_text(evidence.epsilon)} above {self.epsilon:g}", "use more draws."))
        if self.need_epsilon and evidence.epsilon is None and evidence.rhat is None:
            found.append(Objection("ε not measured, which the policy needs", "remove fewer rows at a time."))
        return found

    def spends(self, evidence: Evidence) -> float:
        """What accepting this adds to the budget: min(1, √(ε/2)); nothing for a refit."""
        if evidence.rhat is not None:
            return 0.0
        if evidence.epsilon is None:
            return 1.0
        return total_variation([evidence.epsilon.value])


@dataclasses.dataclass(frozen=True)
class Objection:
    """A reason not to accept, and what to do about it."""

    reason: str
    advice: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Accepted, and by which rung with which figures; or refused, why, and what to do."""

    accepted: bool
    kind: Kind
    rung: str
    """The rung that was accepted; empty where none was."""
    reason: str
    advice: str = ""
    pareto_k: float | None = None
    ess: float | None = None
    epsilon: Estimate | None = None
    """KL in nats from the law of a returned draw to the kept posterior. None: not measured."""
    notes: tuple[str, ...] = ()
    """What else a reader should know."""

    def __str__(self) -> str:
        lines = [f"accepted by {self.rung}: {self.reason}" if self.accepted else f"refused: {self.reason}"]
        lines += [f"  Note: {note}." for note in self.notes]
        if self.advice:
            lines.append(f"  What to do: {self.advice}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text."""
        return {
            "accepted": self.accepted,
            "kind": self.kind,
            "rung": self.rung or None,
            "reason": self.reason,
            "advice": self.advice or None,
            "pareto_k": plain(self.pareto_k),
            "ess": plain(self.ess),
            "epsilon": plain(self.epsilon),
            "notes": list(self.notes),
        }


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
