"""Objections: what speaks against a result. A cause for programs, a sentence for people, and what to do."""

from __future__ import annotations

import dataclasses
from typing import Literal

Cause = Literal[
    "pareto_k",
    "ess",
    "epsilon",
    "epsilon not measured",
    "residual",
    "rhat",
    "rhat not measured",
    "divergences",
    "saddle",
    "path",
    "moves",
    "stuck",
    "not measured",
    "diagnostics",
    "budget",
    "improper",
    "distant mass",
    "error",
    "chains",
    "modes",
    "labels",
    "no output",
    "drift",
    "not verified",
    "cost",
    "time",
]
"""What speaks against a result."""

PUBLIC_CAUSES: dict[Cause, str] = {
    "pareto_k": "k̂ is above its limit",
    "ess": "there are too few effective draws",
    "epsilon": "ε is above its limit",
    "epsilon not measured": "ε was not measured, which the policy needs",
    "residual": "the linear solver's residual is above its limit",
    "rhat": "R̂ is above its limit",
    "rhat not measured": "R̂ of the new chains was not measured",
    "divergences": "transitions of the sampler diverged",
    "saddle": "the curvature is negative along some direction",
    "path": "the path to the kept posterior was given up",
    "moves": "the method's moves did not mix",
    "stuck": "some chain could not move",
    "not measured": "how near the draws come to the kept posterior was not measured",
    "diagnostics": "the method's own diagnostics did not pass",
    "budget": "the budget of repeated erasures is used up, or this one would exceed it",
    "improper": "the kept posterior may be improper",
    "distant mass": "the kept posterior has mass far from the draws",
    "error": "the method ended in an error",
    "chains": "the chains that went in disagree",
    "modes": "the chains that went in are in different modes",
    "labels": "the components are numbered differently in different chains (label switching)",
    "no output": "the draws could not be made independent of the old ones",
    "drift": "moved along the kept posterior, the draws drift: they were not draws of it",
    "not verified": "the draws could not be verified against the kept posterior",
    "cost": "not tried, or given up, since a refit costs less",
    "time": "a refit is estimated to take longer than the policy allows",
}
"""The same in words that do not depend on the values of the removed rows."""


PAGE = "docs/when-not-to-trust.md"

SECTIONS: dict[Cause, str] = {
    "pareto_k": "weights-that-rest-on-a-few-draws",
    "ess": "too-few-effective-draws",
    "epsilon": "weights-that-rest-on-a-few-draws",
    "epsilon not measured": "weights-that-rest-on-a-few-draws",
    "residual": "a-method-that-did-not-finish",
    "rhat": "a-refit-whose-chains-disagree",
    "rhat not measured": "a-refit-whose-chains-disagree",
    "divergences": "a-refit-whose-chains-disagree",
    "saddle": "a-method-that-did-not-finish",
    "path": "a-method-that-did-not-finish",
    "moves": "a-method-that-did-not-finish",
    "stuck": "a-method-that-did-not-finish",
    "not measured": "networks",
    "diagnostics": "a-method-that-did-not-finish",
    "budget": "one-erasure-after-the-other",
    "improper": "nothing-is-left",
    "distant mass": "mass-far-from-the-draws",
    "error": "a-method-that-did-not-finish",
    "chains": "label-switching-and-modes",
    "modes": "label-switching-and-modes",
    "labels": "label-switching-and-modes",
    "no output": "draws-that-drift",
    "drift": "draws-that-drift",
    "not verified": "draws-that-drift",
    "cost": "a-method-that-did-not-finish",
    "time": "a-method-that-did-not-finish",
}
"""The section of the page that explains a cause."""


@dataclasses.dataclass(frozen=True)
class Objection:
    """A reason not to accept, and what to do about it."""

    cause: Cause
    reason: str
    """With figures: for people who may know the removed rows."""
    advice: str

    @property
    def public(self) -> str:
        """The reason without anything that varies with the values of the removed rows."""
        return PUBLIC_CAUSES[self.cause]

    @property
    def page(self) -> str:
        """Where the cause is explained."""
        return f"{PAGE}#{SECTIONS[self.cause]}"
