"""erase(): climb from the cheapest method to the exact one, stop at the first that passes, and tell the whole story.

    result = pe.erase(model, draws, rows=[3, 17, 42], key=0)

The ladder is `Reweight`, `Transport`, `Rejuvenate` and, where the policy allows it, `Refit`. Each rung's diagnostics
are held against the policy; the first that passes is accepted, and nothing after it is run. Where none passes the
verdict is a refusal that says why and what to do, and there are no draws to take by mistake.

**Budget.** Each erasure takes its input draws as exact. Their errors add up in total variation, of which √(ε/2) is a
bound: `result.spent` carries Σ min(1, √(ε/2)) on to the next erasure of the same posterior (`result.erase(rows)`). Past
the policy's budget a refit is demanded.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Key

from posterase.checks import is_a, once
from posterase.draws import Draws
from posterase.erasers.eraser import Erased, Eraser
from posterase.erasers.evidence import Evidence
from posterase.erasers.refit import Refit
from posterase.erasers.rejuvenate import Rejuvenate
from posterase.erasers.reweight import Reweight
from posterase.erasers.transport import Transport, TransportDiagnostics
from posterase.errors import InvalidOptionError, NonFiniteResultError, RefusedError
from posterase.keys import as_key
from posterase.model import AbstractModel, Removal
from posterase.numerics.weights import Estimate, base_weights, jeffreys, parameter_ess
from posterase.policy import Objection, Policy, Verdict, epsilon_text, plain
from posterase.progress import shown
from posterase.sampling.mixing import different_modes
from posterase.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNGS: tuple[Eraser, ...] = (Reweight(), Transport(), Rejuvenate())
"""The ladder, but for the refit."""


@dataclasses.dataclass(frozen=True)
class Rung:
    """A rung that was tried."""

    name: str
    erased: Erased | None
    """None where the rung ended in an error."""
    objections: list[Objection]
    """Why it was not accepted; empty where it was."""
    seconds: float
    jeffreys: Estimate | None = None
    """KL both ways between the rung's draws, before their weights, and the refit's; where refit draws were given."""

    @property
    def evidence(self) -> Evidence | None:
        """What the rung showed."""
        return None if self.erased is None else self.erased.evidence

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text."""
        shown = self.evidence
        figures: dict[str, Any] = {}
        if shown is not None:
            names = "pareto_k", "threshold", "epsilon", "before_weights", "residual", "rhat", "log_evidence_ratio"
            figures = {name: plain(getattr(shown, name)) for name in names}
            figures["ess"] = {name: plain(value) for name, value in shown.ess.items()}
            figures["gradients"], figures["densities"] = plain(shown.cost.gradients), plain(shown.cost.densities)
            figures["sequential"] = shown.cost.sequential
        return {
            "name": self.name,
            "passed": not self.objections,
            "objections": [objection.reason for objection in self.objections],
            **figures,
            "jeffreys": plain(self.jeffreys),
            "seconds": self.seconds,
        }


@dataclasses.dataclass(frozen=True)
class Erasure:
    """What `erase` returns: draws, verdict, and how they came about."""

    verdict: Verdict
    rungs: list[Rung]
    model: AbstractModel
    """The model of the kept rows, ready for the next request: rows keep their ids."""
    before: Draws
    """The draws that went in."""
    refits: list[Draws]
    """Refit draws that were given to compare with."""
    n_removed: int
    policy: Policy
    spent: float
    """Σ min(1, √(ε/2)) over all erasures of this posterior since it was fitted."""

    @property
    def draws(self) -> Draws:
        """Draws of the kept posterior. Where the verdict is a refusal there are none: `RefusedError`."""
        if not self.verdict.accepted:
            raise RefusedError(
                f"the erasure was refused: {self.verdict.reason}",
                f"{self.verdict.advice} What each rung made is in result.rungs, at your own risk.",
            )
        erased = self.rungs[-1].erased
        assert erased is not None
        return erased.draws

    def erase(self, rows: ArrayLike | Sequence[int], **options: Any) -> Erasure:
        """The next request: from these draws, this model, under this policy, with what is left of the budget."""
        return erase(self.model, self.draws, rows, **{"policy": self.policy, "spent": self.spent, **options})

    def __str__(self) -> str:
        header = ("rung", "k̂", "ESS", "ε", "evaluations", "seconds", "")
        lines = [header] + [_line(rung) for rung in self.rungs]
        widths = [max(len(line[i]) for line in lines) for i in range(len(header) - 1)]
        table = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[-1]]) for line in lines
        ]
        rows = f"{self.n_removed} row{'s' if self.n_removed != 1 else ''} of {self.model.n_rows + self.n_removed}"
        text = [f"{rows}: {self.verdict}", "", *(line.rstrip() for line in table)]
        return "\n".join(text)

    __repr__ = __str__

    def plot(self) -> Figure:
        """What moved and by how much: the parameters that moved most, every rung's k̂ and ESS. Needs matplotlib."""
        from posterase.plotting import draw_erasure

        return draw_erasure(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the verdict, every rung's figures, the policy. No draws, no data, no row ids."""
        return {
            "posterase": __version__,
            "removed_rows": self.n_removed,
            "kept_rows": self.model.n_rows,
            "verdict": self.verdict.to_dict(),
            "rungs": [rung.to_dict() for rung in self.rungs],
            "policy": dataclasses.asdict(self.policy),
            "spent": plain(self.spent),
        }


def erase(
    model: AbstractModel,
    draws: Draws,
    rows: ArrayLike | Sequence[int] | Removal,
    *,
    key: Key[Array, ""] | int = 0,
    policy: Policy | None = None,
    rungs: Sequence[Eraser] | None = None,
    refits: Draws | Sequence[Draws] | None = None,
    spent: float = 0.0,
    progress: bool | None = None,
) -> Erasure:
    """Erase rows from the draws of a model's posterior.

    Parameters
    ----------
    model
        The model that the draws were sampled from.
    draws
        Draws of its posterior.
    rows
        Row ids, or a mask over all rows.
    key
        A seed or a jax key: the same key gives the same draws.
    policy
        What a result must show, whether a refit may be started, the budget of repeated erasures.
    rungs
        Erasers to climb, cheapest first. None: `Reweight`, `Transport`, `Rejuvenate`, and `Refit` where allowed.
    refits
        Draws of the kept posterior to compare with, where they are at hand: each rung's Jeffreys divergence from them.
    spent
        What earlier erasures of this posterior have spent; `result.erase(rows)` fills it in.
    progress
        Whether to show progress. None: on a terminal.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, posterase as pe
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=100)
    >>> model = pe.Model(
    ...     lambda p: -0.5 * p["mu"] ** 2, lambda p, data: -0.5 * (data["y"] - p["mu"]) ** 2, {"y": jnp.asarray(y)}
    ... )
    >>> draws = pe.Draws({"mu": y.sum() / 101 + rng.normal(size=(4, 500)) / np.sqrt(101)})
    >>> result = pe.erase(model, draws, rows=[3, 17, 42])
    >>> result.verdict.rung
    'Reweight'
    """
    is_a(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
    is_a(draws, Draws, "draws", "wrap them: pe.Draws({'name': array}).")
    policy = Policy() if policy is None else policy
    is_a(policy, Policy, "policy", "use pe.Policy(…).")
    typed = as_key(key)
    removal = model.removal(rows.row_ids if isinstance(rows, Removal) else rows)
    compared = [refits] if isinstance(refits, Draws) else list(refits or [])
    for each in compared:
        is_a(each, Draws, "refits", "pass draws of the kept posterior: pe.Draws, or a list of them.")
        model.check(each)
    if not spent >= 0:
        raise InvalidOptionError(f"spent is {spent!r}.", "use result.spent of the erasure before.")
    climbed = _ladder(rungs, policy, spent)
    _check_additivity(model, draws, removal)
    kept = model.without(removal)

    tried: list[Rung] = []
    with shown("erasing", len(climbed), progress) as report:
        for number, eraser in enumerate(climbed):
            report(type(eraser).__name__, number)
            tried.append(
                _try(jax.random.fold_in(typed, number), eraser, model, draws, removal, tried, policy, compared)
            )
            if not tried[-1].objections:
                break
    tried = [dataclasses.replace(rung, erased=rung.erased and rung.erased.without_full_model()) for rung in tried]
    verdict = _verdict(tried, draws, policy, spent, climbed)
    last = tried[-1].evidence if tried else None
    if not verdict.accepted or last is None:
        after = spent
    elif verdict.kind == "refitted":
        after = 0.0
    else:
        after = spent + policy.spent(last)
    return Erasure(verdict, tried, kept, draws, compared, removal.n_rows, policy, after)


def _check_additivity(model: AbstractModel, draws: Draws, removal: Removal) -> None:
    """Once for each kind of model: whether rows look at each other is a property of its functions."""
    leaves, structure = jax.tree.flatten(model)
    kind = ("additive", structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
    once(kind, lambda: model.check_additivity(draws, removal, samples=1))


def _ladder(rungs: Sequence[Eraser] | None, policy: Policy, spent: float) -> list[Eraser]:
    if rungs is None:
        chosen: list[Eraser] = [*RUNGS, *([Refit()] if policy.refit else [])]
    else:
        chosen = list(rungs)
        for eraser in chosen:
            is_a(eraser, Eraser, "rungs", "pass erasers: [pe.Reweight(), pe.Transport()].")
        if not chosen:
            raise InvalidOptionError("rungs is empty.", "name at least one eraser, or leave it out.")
        if not policy.refit and any(isinstance(eraser, Refit) for eraser in chosen):
            raise InvalidOptionError(
                "rungs holds a Refit, which the policy does not allow.", "allow it: policy=pe.Policy(refit=True)."
            )
    if spent > policy.budget:
        chosen = [eraser for eraser in chosen if isinstance(eraser, Refit)]
    return chosen


def _try(
    key: Key[Array, ""],
    eraser: Eraser,
    model: AbstractModel,
    draws: Draws,
    removal: Removal,
    tried: list[Rung],
    policy: Policy,
    refits: list[Draws],
) -> Rung:
    started = time.perf_counter()
    name = type(eraser).__name__
    try:
        erased = _run(key, eraser, model, draws, removal, tried)
    except NonFiniteResultError as error:
        return Rung(name, None, [Objection(error.problem, error.advice)], time.perf_counter() - started)
    seconds = time.perf_counter() - started
    return Rung(name, erased, policy.objections(erased.evidence), seconds, _jeffreys(erased, draws, refits))


def _run(
    key: Key[Array, ""], eraser: Eraser, model: AbstractModel, draws: Draws, removal: Removal, tried: list[Rung]
) -> Erased:
    """Run a rung; one that starts from transported draws takes those of the rung before, where they are the same."""
    before = tried[-1].erased if tried else None
    if isinstance(eraser, Rejuvenate) and eraser.start is not None and before is not None:
        found = before.diagnostics
        if isinstance(found, TransportDiagnostics) and not found.split:
            return eraser.go_on(key, model, draws, removal, found.transported)
    return eraser(key, model, draws, removal)


def _jeffreys(erased: Erased, before: Draws, refits: list[Draws]) -> Estimate | None:
    """Of the rung's draws as they are moved, before weights."""
    resembles = erased.evidence.resembles
    if not refits or resembles is None:
        return None
    at_target = np.concatenate([resembles(refit).ravel() for refit in refits])[None]
    moved = erased.draws.replace(erased.draws.params)
    return jeffreys(resembles(moved), base_weights(before), at_target)


def _verdict(tried: list[Rung], draws: Draws, policy: Policy, spent: float, climbed: list[Eraser]) -> Verdict:
    modes = different_modes(draws)
    notes = (modes,) if modes else ()
    demanded = f"earlier erasures have spent {spent:.2f} of a budget of {policy.budget:g}: a refit is demanded"
    if not climbed:
        return Verdict(False, "refused", "", demanded, "allow it: policy=pe.Policy(refit=True).", notes=notes)
    last = tried[-1]
    shown = last.evidence
    if last.objections or shown is None:
        return _refusal(tried, draws, policy, modes)
    if shown.rhat is not None:
        kind, figures = "refitted", [f"R̂ {shown.rhat:.3f}"]
    else:
        kind, figures = "measured", [] if shown.pareto_k is None else [f"k̂ {shown.pareto_k:.2f}"]
        figures.append(epsilon_text(shown.epsilon))
    figures.append(f"ESS {shown.least_ess:.0f}")
    if spent > policy.budget:
        notes = (*notes, demanded)
    return Verdict(
        True,
        kind,  # type: ignore[arg-type]
        last.name,
        ", ".join(figures),
        pareto_k=shown.pareto_k,
        ess=shown.least_ess,
        epsilon=shown.epsilon,
        notes=notes,
    )


def _refusal(tried: list[Rung], draws: Draws, policy: Policy, modes: str) -> Verdict:
    """Why nothing passed, and what to do about it."""
    last = tried[-1]
    reason = f"{last.name}: {last.objections[0].reason}"
    had = parameter_ess(draws)
    worst = min(had, key=lambda name: had[name])
    advice = []
    if modes:
        reason = f"{modes}; {reason}"
        advice.append("Order or relabel the components (pe.ordered), or keep the chains of one mode.")
    elif had[worst] < policy.ess:
        reason = (
            f"the draws that went in have {had[worst]:.0f} effective draws of {worst}, below {policy.ess:g}; {reason}"
        )
        advice.append("Draw more.")
    else:
        advice.append(last.objections[0].advice.capitalize())
    if not policy.refit:
        advice.append("Or allow a refit: policy=pe.Policy(refit=True).")
    return Verdict(False, "refused", "", reason, " ".join(advice), notes=())


def _line(rung: Rung) -> tuple[str, ...]:
    shown = rung.evidence
    said = "accepted" if not rung.objections else rung.objections[0].reason
    seconds = f"{rung.seconds:.2f}"
    if shown is None:
        return rung.name, "", "", "", "", seconds, said
    return (
        rung.name,
        "–" if shown.pareto_k is None else f"{shown.pareto_k:.2f}",
        f"{shown.least_ess:.0f}",
        "not measured" if shown.epsilon is None else str(shown.epsilon),
        f"{shown.cost.evaluations:.0f}",
        seconds,
        said,
    )
