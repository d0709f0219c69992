"""The verdict: accepted by which method, or refused, why, and what to do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from posterase.draws.notes import Note
from posterase.draws.origins import Origin
from posterase.numerics.weights import Estimate

Kind = Literal["measured", "moved", "refitted", "matched empirically", "refused"]
"""What an acceptance rests on: ε was measured; diagnostics passed without it; chains of a refit agree; a network
behaves as refits do."""

Margin = Literal["wide", "narrow"]
"""How far the diagnostics of an accepted result are from their limits: wide where each has at least a factor of two."""

BUDGET_STEP = 0.05
"""What is published of a budget is rounded up to a multiple of this."""

MOST_COUNTED = 100
"""More requests than so many are not counted."""

FINEST_EPSILON = 1e-4
"""ε is not printed finer than this."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Accepted, and by which method with which figures; or refused, why, and what to do.

    `reason` has figures, which are functions of the removed rows; `public()` and `to_dict()` have none.
    """

    accepted: bool
    kind: Kind
    method: str
    """The method that was accepted; empty where none was."""
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
        return f"accepted by {self.method}: {self.public_reason}" if self.accepted else f"refused: {self.public_reason}"

    def __str__(self) -> str:
        lines = [f"accepted by {self.method}: {self.reason}" if self.accepted else f"refused: {self.reason}"]
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
            "method": self.method or None,
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
            "method": self.method or None,
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
