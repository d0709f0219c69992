"""What `erase` returns: draws, verdict, and what came of every method that was tried."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import xarray as xr
from jaxtyping import Array, Key

from posterase.draws.draws import Draws
from posterase.draws.objections import Objection
from posterase.draws.origins import ORIGINS
from posterase.errors import RefusedError
from posterase.ladder.output import Output
from posterase.ladder.policy import Policy
from posterase.ladder.verdict import Verdict, plain, rounded, rounded_up
from posterase.methods.base import MethodResult
from posterase.methods.diagnostics import Diagnostics
from posterase.model.base import AbstractModel
from posterase.numerics.cost import Cost
from posterase.numerics.weights import Estimate
from posterase.runtime import sharding
from posterase.runtime.progress import approximate
from posterase.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_COST = Cost()


class Expected(NamedTuple):
    """What a refit is expected to take."""

    gradients: float
    seconds: float
    """Without compilation."""

    def __str__(self) -> str:
        return approximate(self.seconds)


@dataclasses.dataclass(frozen=True)
class MethodOutcome:
    """A method that was tried."""

    name: str
    erased: MethodResult | None
    """None where the method ended in an error."""
    objections: list[Objection]
    """Why it was not accepted; empty where it was."""
    seconds: float
    output: Output | None = None
    """The draws that may leave memory, where it was accepted."""
    moves: Cost = NO_COST
    """What the moves of its output took, whether or not they were accepted."""
    jeffreys: Estimate | None = None
    """KL both ways between the method's draws, before their weights, and the refit's; where refit draws were given."""
    expected: Expected | None = None
    """What a refit was expected to take before it started."""
    steps: float = 0.0
    """Of a trajectory of length π/2, where the moves of its output have measured it."""
    moved: Draws | None = None
    """Draws that were moved and did not pass, for a refit to start from; dropped from what `erase` returns."""

    @property
    def ess(self) -> dict[str, float]:
        """Effective draws of each parameter: of the draws that are returned, or of those that were tried."""
        if self.output is not None:
            return self.output.ess
        return {} if self.diagnostics is None else self.diagnostics.ess

    @property
    def cost(self) -> Cost:
        """Of the method and of the moves of its output."""
        return self.moves if self.diagnostics is None else self.moves.plus(self.diagnostics.cost)

    def at_home(self) -> MethodOutcome:
        """The same, its draws as plain arrays that no mesh of devices holds."""
        output = self.output and dataclasses.replace(self.output, draws=sharding.home(self.output.draws))
        return dataclasses.replace(self, erased=self.erased and self.erased.at_home(), output=output)

    @property
    def diagnostics(self) -> Diagnostics | None:
        """What the method showed."""
        return None if self.erased is None else self.erased.diagnostics

    def to_dict(self) -> dict[str, Any]:
        """For certificates, reports and logs: without figures."""
        found: dict[str, Any] = {
            "name": self.name,
            "passed": not self.objections,
            "objections": [objection.public for objection in self.objections],
        }
        return found if self.expected is None else {**found, "expected_seconds": rough(self.expected.seconds)}

    def diagnostics_dict(self) -> dict[str, Any]:
        """All figures. They contain information about the removed rows."""
        shown = self.diagnostics
        figures: dict[str, Any] = {}
        if shown is not None:
            names = "pareto_k", "threshold", "epsilon", "before_weights", "residual", "rhat", "log_evidence_ratio"
            figures = {name: plain(getattr(shown, name)) for name in names}
            figures["ess"] = {name: plain(value) for name, value in self.ess.items()}
            figures["gradients"], figures["densities"] = plain(shown.cost.gradients), plain(shown.cost.densities)
            figures["sequential"] = shown.cost.sequential
            figures |= _on_the_way(self.erased)
        return {
            "name": self.name,
            "passed": not self.objections,
            "objections": [objection.reason for objection in self.objections],
            **figures,
            "jeffreys": plain(self.jeffreys),
            "correlation": None if self.output is None else plain(self.output.correlation),
            "output_gradients": None if self.output is None else plain(self.moves.gradients),
            "expected": None if self.expected is None else self.expected._asdict(),
            "seconds": self.seconds,
        }


@dataclasses.dataclass(frozen=True)
class Result:
    """What `erase` returns: draws, verdict, and how they came about."""

    verdict: Verdict
    outcomes: list[MethodOutcome]
    model: AbstractModel
    """The model of the kept rows, ready for the next request: rows keep their ids."""
    before: Draws
    """The draws that went in."""
    refits: list[Draws]
    """Refit draws that were given to compare with."""
    n_removed: int
    policy: Policy
    spent: float
    """What all erasures of this posterior since it was fitted add up to, in total variation."""
    next_key: Key[Array, ""]
    """For the next request, whose random numbers must be others than this one's."""
    demanded_ess: float
    """The fewest effective draws that the policy accepted for these draws."""
    again: Callable[..., Result] = dataclasses.field(repr=False, compare=False)
    """`erase`, for the next request."""

    @property
    def draws(self) -> Draws:
        """Equally weighted draws of the kept posterior, which have forgotten the draws that went in.

        `verdict.draws` says how they were made. Where the verdict is a refusal there are none: `RefusedError`.
        """
        output = self._accepted().output
        assert output is not None
        return output.draws

    @property
    def weighted_draws(self) -> Draws:
        """What the accepted method returned, with its weights where it has any: for memory only.

        Warning: a weight is a function of the removed rows, and one least-squares fit to the weights gives the rows
        back. Do not write them, or copies made by resampling, to any file; `draws` and `to_arviz()` are for that.
        """
        erased = self._accepted().erased
        assert erased is not None
        return erased.draws

    def to_arviz(self) -> xr.DataTree:
        """The draws in the container that they came in, without the removed rows."""
        return self.draws.to_arviz()

    def _accepted(self) -> MethodOutcome:
        if not self.verdict.accepted:
            raise RefusedError(
                f"the erasure was refused: {self.verdict.reason}",
                f"{self.verdict.advice} What each method made is in result.outcomes, at your own risk.",
            )
        return self.outcomes[-1]

    @property
    def diagnostics(self) -> Diagnostics | None:
        """What the method showed that the draws are of."""
        return self.outcomes[-1].diagnostics if self.outcomes else None

    @property
    def jeffreys(self) -> Estimate | None:
        """From the refits that were given, of that method's draws before their weights."""
        return self.outcomes[-1].jeffreys if self.outcomes else None

    @property
    def seconds(self) -> float:
        """What the request took, methods that did not pass included."""
        return sum((outcome.seconds for outcome in self.outcomes), 0.0)

    def erase(self, rows: Any, **options: Any) -> Result:
        """The next request: from these draws, this model, under this policy, with what is left of the budget."""
        own = {"policy": self.policy, "spent": self.spent}
        if options.get("random_seed") is None:
            own["random_seed"] = self.next_key
        return self.again(self.model, self.draws, rows, **{**own, **options})

    def __str__(self) -> str:
        if not self.outcomes:
            return f"{self._rows}: {self.verdict}"
        header = ("method", "k̂", "ESS", "ε", "Jeffreys", "evaluations", "seconds", "")
        lines = [header] + [_line(outcome) for outcome in self.outcomes]
        if not self.refits:
            lines = [line[:4] + line[5:] for line in lines]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
        table = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[-1]]) for line in lines
        ]
        return "\n".join([f"{self._rows}: {self.verdict}", "", *(line.rstrip() for line in table)])

    @property
    def _rows(self) -> str:
        return f"{self.n_removed} row{'s' if self.n_removed != 1 else ''} of {self.model.n_rows + self.n_removed}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The public text."""
        first, *rest = map(html.escape, self.public_text().splitlines())
        items = "".join(f"<li>{line.strip()}</li>" for line in rest)
        figures = "Figures: <code>print(result)</code>. They contain information about the removed rows."
        return f"<p><strong>{first}</strong></p><ul>{items}<li>{figures}</li></ul>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows it also saves, as text too: so neither has figures, which the repr has."""
        return {"text/plain": self.public_text(), "text/html": self._repr_html_()}

    def plot(self) -> Figure:
        """What moved and by how much: the parameters that moved most, every method's k̂ and ESS. Needs matplotlib."""
        from posterase.plotting.figures import draw_erasure

        return draw_erasure(self)

    def public_text(self) -> str:
        """The verdict for terminals and logs: without anything that varies with the values of the removed rows."""
        lines = [f"{self._rows}: {self.verdict.public()}"]
        lines += [f"  Draws: {ORIGINS[self.verdict.draws]}"] if self.verdict.draws else []
        lines += (
            [f"  Budget: {rounded_up(self.spent):g} of {self.policy.budget:g} spent."] if self.verdict.accepted else []
        )
        lines += [f"  Note: {note}." for note in self.verdict.notes]
        lines += [f"  What to do: {self.verdict.advice}"] if self.verdict.advice else []
        lines += [f"  Read more: {self.verdict.page}"] if self.verdict.page else []
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON for certificates, reports and logs.

        No draws, data or row ids. Of the figures nothing that varies with the values of the removed rows, but for the
        method, the margin's class, the time and the budget, which are rounded.
        """
        returned = self.draws if self.verdict.accepted else None
        return {
            "posterase": __version__,
            "removed_rows": self.n_removed,
            "kept_rows": self.model.n_rows,
            "verdict": self.verdict.to_dict(),
            "methods": [outcome.to_dict() for outcome in self.outcomes],
            "returned": None if returned is None else {"chains": returned.n_chains, "draws": returned.n_draws},
            "policy": {name: plain(value) for name, value in dataclasses.asdict(self.policy).items()},
            "spent": rounded_up(self.spent),
            "seconds": float(f"{self.seconds:.2g}"),
        }

    def diagnostics_dict(self) -> dict[str, Any]:
        """Plain JSON with every method's figures. It contains information about the removed rows: keep it private."""
        return {
            "contains": "information about the removed rows",
            "posterase": __version__,
            "removed_rows": self.n_removed,
            "kept_rows": self.model.n_rows,
            "chains": self.before.n_chains,
            "draws": self.before.n_draws,
            "verdict": self.verdict.diagnostics_dict(),
            "demanded_ess": plain(self.demanded_ess),
            "methods": [outcome.diagnostics_dict() for outcome in self.outcomes],
            "policy": {name: plain(value) for name, value in dataclasses.asdict(self.policy).items()},
            "spent": plain(self.spent),
        }


def rough(seconds: float) -> float:
    """An estimated time as it is published."""
    return float(f"{seconds:.1g}")


def _on_the_way(erased: MethodResult | None) -> dict[str, Any]:
    """What is known of how draws got where they are: the stages of a path, the divergences of a refit."""
    made: Any = None if erased is None else erased.details
    found: dict[str, Any] = {}
    if hasattr(made, "stages"):
        stages = [each._asdict() for each in made.stages]
        found["path"] = [{name: plain(value) for name, value in stage.items()} for stage in stages]
    if hasattr(made, "divergences"):
        found["divergences"] = int(made.divergences)
    return found


def _line(outcome: MethodOutcome) -> tuple[str, ...]:
    shown = outcome.diagnostics
    said = "accepted" if not outcome.objections else outcome.objections[0].reason
    seconds = f"{outcome.seconds:.2f}"
    if shown is None:
        return outcome.name, "", "", "", "", "", seconds, said
    return (
        outcome.name,
        "–" if shown.pareto_k is None else f"{shown.pareto_k:.2f}",
        f"{min(outcome.ess.values()):.0f}",
        "not measured" if shown.epsilon is None else rounded(shown.epsilon),
        "" if outcome.jeffreys is None else str(outcome.jeffreys),
        f"{outcome.cost.evaluations:.0f}",
        seconds,
        said,
    )
