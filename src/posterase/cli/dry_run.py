"""`posterase erase --dry-run`: rows that would go, methods that would be tried, and about how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from posterase.draws.draws import Draws
from posterase.ladder.climb import expect_refit
from posterase.ladder.erase import planned
from posterase.ladder.policy import Policy
from posterase.methods.base import Method
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity
from posterase.numerics.cost import Cost
from posterase.numerics.densities import unconstrained
from posterase.numerics.timing import time_gradient
from posterase.projects.builders import Fit
from posterase.runtime.progress import approximate

SHOWN = 10
"""Row ids that are printed."""

TOGETHER = 64
"""Draws whose gradients are timed at once."""

WAITS = 2.5
"""Gradients that wait for each other take so many times what they take together. Measured: 2.5 on a hierarchy."""

MACHINERY = 0.6
"""Seconds that the methods' own part of a program takes to compile, however simple the model. Measured on two cores."""

STORED_PER_ROW_AND_DRAW = 2e-9
"""Seconds to read a stored log-likelihood and add it up."""


class Needs(NamedTuple):
    """What a method needs, per draw and d¼, the growth of Hamiltonian trajectories with the number d of parameters."""

    gradients: float
    programs: float
    """Compiled programs that hold the model's gradient, about."""


NEEDS = {
    "Reweight": Needs(0.0, 0.0),
    "Transport": Needs(0.5, 2.5),
    "Rejuvenate": Needs(4.0, 7.0),
    "Refit": Needs(0.0, 4.0),
}
"""Of each method; the gradients of a refit are those that `erase` expects. Measured: linear regression (3 parameters,
60 rows) and a hierarchy (89 parameters, 919 rows)."""

OUTPUT = Needs(1.5, 5.0)
"""Of moving the draws of an accepted method that does not sample anew. (Per draw that went in: fewer are moved.)"""


class Forecast(NamedTuple):
    """A method that would be tried, and the seconds that it would take if it is accepted."""

    method: str
    evaluations: float
    """Gradients of the model, each of all rows."""
    first: float
    """Seconds where its programs have to be compiled."""
    again: float
    """Seconds where they are compiled."""

    def __str__(self) -> str:
        again = approximate(self.again)
        if self.first == self.again:
            return f"{self.method}: {again}"
        return f"{self.method}: {approximate(self.first)} for the first time, {again} once its programs are compiled"


class DryRun(NamedTuple):
    """What a request would do."""

    removed: list[int]
    n_rows: int
    forecasts: list[Forecast]
    doubts: list[str]
    """Why only a refit is left, if it is."""

    def lines(self) -> list[str]:
        """For people."""
        some = ", ".join(map(str, self.removed[:SHOWN])) + (", …" if len(self.removed) > SHOWN else "")
        rows = "1 row" if len(self.removed) == 1 else f"{len(self.removed)} rows"
        lines = [f"{rows} of {self.n_rows} would be erased: {some}."]
        if self.doubts:
            lines.append(f"Only a refit could be accepted: {'; '.join(self.doubts)}.")
        if not self.forecasts:
            return [*lines, "No method would be tried. To allow a refit: --policy refit=true."]
        lines.append("Methods, in order; the first that passes ends the request:")
        return [*lines, *(f"  {each}" for each in self.forecasts), ESTIMATED]

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        methods = [each._asdict() for each in self.forecasts]
        return {"removed_rows": self.removed, "rows": self.n_rows, "doubts": self.doubts, "methods": methods}


ESTIMATED = (
    "Estimated from the measured time of this model's gradient, times the evaluations that each method needed on other "
    "models; it may be off by a factor of three. Each method includes the moves of its draws. Nothing was written."
)


def dry_run(fit: Fit, rows: Any, policy: Policy, chosen: Sequence[str] | None = None) -> DryRun:
    """Forecast what an erasure of these rows would do, by the `chosen` methods or the ladder."""
    change = fit.model.change(remove=rows)
    methods, doubts = planned(fit.model, fit.draws, policy, chosen)
    forecasts = _forecast(fit.model, fit.draws, change, methods)
    kept = fit.model.n_rows
    return DryRun([int(row) for row in change.row_ids], kept, forecasts, [doubt.reason for doubt in doubts])


def _forecast(model: AbstractModel, draws: Draws, change: Change, methods: Sequence[Method]) -> list[Forecast]:
    """The cost of each method: evaluations that it needed elsewhere, times the time of this model's gradient."""
    n = draws.n_chains * draws.n_draws
    if not model.has_density:
        seconds = STORED_PER_ROW_AND_DRAW * n * change.n_rows
        return [Forecast(type(each).__name__, 0.0, seconds, seconds) for each in methods]
    thetas, like = unconstrained(model, draws)
    timed = time_gradient(LogDensity(model), thetas[:TOGETHER], like)
    share = change.n_rows / model.n_rows
    growth = n * thetas.shape[1] ** 0.25
    found = []
    for method in methods:
        needs = NEEDS.get(type(method).__name__, NEEDS["Refit"])
        if method.samples_anew:
            moves = Needs(0.0, 0.0)
            expected = expect_refit(method, model, draws)
            cost = Cost(gradients=0.0 if expected is None else expected.gradients)
            again = 0.0 if expected is None else expected.seconds
        else:
            moves = OUTPUT
            weights = n * (share + 2 * (needs.gradients > 0))
            cost = Cost(gradients=(needs.gradients + moves.gradients) * growth, densities=weights)
            again = WAITS * cost.evaluations * timed.each
        first = again + (needs.programs + moves.programs) * (timed.compiling + MACHINERY)
        found.append(Forecast(type(method).__name__, round(cost.evaluations), first, again))
    return found
