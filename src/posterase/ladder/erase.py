"""erase(): climb from the cheapest method to the exact one, stop at the first that passes, and tell the whole story.

    result = pe.erase(model, draws, rows=[3, 17, 42], random_seed=0)

The ladder is `Reweight`, `Transport` and `Refit`, from a warm start; without a refit, `Rejuvenate` is the last. Each
rung's diagnostics are held against the policy; the first that passes is accepted, and nothing after it is run. Where
none passes the verdict is a refusal that says why and what to do, and there are no draws to take by mistake.
`Policy(refit=False)` ends the ladder before the refit, and `Policy(refit_seconds=…)` where it would take longer.

**Verification.** Weights can only see where the draws are. Returned draws have therefore been moved along the kept
posterior, and do not drift (`posterase.ladder.output`).

**Budget.** Each erasure takes its input draws as exact. Their errors add up in total variation: `result.spent` carries
the sum of √(ε/2), or of what verification may have missed where that is less, on to the next erasure of the same
posterior (`result.erase(rows)`). Past the policy's budget a refit is demanded.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Key

from posterase.data.leakage import lagged
from posterase.data.selection import table_of
from posterase.data.streams import raises_read_errors
from posterase.draws.draws import Draws
from posterase.draws.notes import Note
from posterase.draws.objections import Cause, Objection
from posterase.draws.origins import ORIGINS
from posterase.errors import DrawsShapeError, InvalidOptionError, NothingKeptError, RefusedError, RepeatedDrawsError
from posterase.ladder.output import MOST_PARAMETERS, Attempt, Output, Request, is_network, make_output
from posterase.ladder.policy import (
    ENOUGH_ESS,
    Policy,
    Verdict,
    epsilon_text,
    plain,
    rounded,
    rounded_up,
)
from posterase.methods.base import Erased, Eraser
from posterase.methods.diagnostics import Evidence
from posterase.methods.refit import Refit, Start
from posterase.methods.rejuvenate import Rejuvenate
from posterase.methods.reweight import Reweight
from posterase.methods.transport import Transport
from posterase.model.base import AbstractModel
from posterase.model.densities import LogDensity, RemovedLogLikelihood
from posterase.model.removal import Removal
from posterase.model.stored import GIVE_THE_MODEL, StoredLikelihoods
from posterase.numerics.cost import (
    IMBALANCE,
    Cost,
    expected_refit_gradients,
    least_refit_gradients,
    refit_chains,
)
from posterase.numerics.densities import unconstrained
from posterase.numerics.failures import numerical_failure, raises_own_errors
from posterase.numerics.input_checks import check_draws, compute_scores
from posterase.numerics.kernels import lower_kernels
from posterase.numerics.propriety import Tails, check_informed, flat_tails, informed_draws
from posterase.numerics.timing import time_gradient
from posterase.numerics.weights import Estimate, base_weights, first_half, independent_groups, parameter_ess
from posterase.runtime import sharding
from posterase.runtime.checks import check_type, once
from posterase.runtime.compilation_cache import compile_in_background, programs_kept
from posterase.runtime.garbage import rare_collections
from posterase.runtime.optional import import_in_background
from posterase.runtime.prng import fresh_key, key_from, numbered
from posterase.runtime.progress import approximate, shown
from posterase.sampling.effective_draws import effective_draws
from posterase.sampling.mixing import ChainAgreement, chain_agreement, different_modes, mixing, stuck_chains
from posterase.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTED_RHAT = 1.01
"""An R̂ of the draws that went in above this is noted (Vehtari et al. 2021)."""

MOST_INPUT_RHAT = 1.05
"""Draws with an R̂ above this are not draws of any posterior, unless there are so few that chance explains it."""

FEWEST_DRAWS = 20

MOST_ESS_SHARE = 0.25
"""Where more effective draws are asked for, as a share of all, too few of them do not speak against a metric."""

MOST_EFFICIENCY = 2.0
"""A draw of NUTS is worth no more than so many independent ones."""

NO_COST = Cost()

MENDED: frozenset[Cause] = frozenset({"divergences", "rhat", "ess"})
"""What moves can mend in chains that ran on the kept rows."""

NOT_COVERED: frozenset[Cause] = frozenset({"drift", "not verified"})
"""How it shows in moved draws that they miss a part of the target."""

OUTPUT = 2**31 - 1
"""What a method's key is folded with for the moves of its output."""

ALLOW = "allow a refit: policy=pe.Policy(refit=True)."
ADD = "add pe.Refit() to rungs."
UNIDENTIFIED = (
    "the identity of the rows was not checked: the draws came without the data of the fit, and other rows in their "
    "order would not show"
)
FEW = f"the draws that went in have fewer than {ENOUGH_ESS:.0f} effective draws of some parameter"
DISAGREE = f"R̂ of the draws that went in is above {NOTED_RHAT} for some parameter"
SAMPLE_AGAIN = "keep the chains that moved, or sample again from other starting points."

TOO_EXPENSIVE = Objection("cost", "not tried, since a refit costs less", "")

Selection = ArrayLike | Sequence[Any] | Mapping[str, Any] | str | Removal
"""Rows as people name them: `erase` says how."""

RUNGS: tuple[Eraser, ...] = (Reweight(), Transport(), Rejuvenate())
"""The ladder, but for the refit."""


class Expected(NamedTuple):
    """What a refit is expected to take."""

    gradients: float
    seconds: float
    """Without compilation."""

    def __str__(self) -> str:
        return approximate(self.seconds)


@dataclasses.dataclass(frozen=True)
class Rung:
    """A rung that was tried."""

    name: str
    erased: Erased | None
    """None where the rung ended in an error."""
    objections: list[Objection]
    """Why it was not accepted; empty where it was."""
    seconds: float
    output: Output | None = None
    """The draws that may leave memory, where it was accepted."""
    moves: Cost = NO_COST
    """What the moves of its output took, whether or not they were accepted."""
    jeffreys: Estimate | None = None
    """KL both ways between the rung's draws, before their weights, and the refit's; where refit draws were given."""
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
        return {} if self.evidence is None else self.evidence.ess

    @property
    def cost(self) -> Cost:
        """Of the method and of the moves of its output."""
        return self.moves if self.evidence is None else self.moves.plus(self.evidence.cost)

    def at_home(self) -> Rung:
        """The same, its draws as plain arrays that no mesh of devices holds."""
        output = self.output and dataclasses.replace(self.output, draws=sharding.home(self.output.draws))
        return dataclasses.replace(self, erased=self.erased and self.erased.at_home(), output=output)

    @property
    def evidence(self) -> Evidence | None:
        """What the rung showed."""
        return None if self.erased is None else self.erased.evidence

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
        shown = self.evidence
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
    """What all erasures of this posterior since it was fitted add up to, in total variation."""
    next_key: Key[Array, ""]
    """For the next request, whose random numbers must be others than this one's."""
    demanded_ess: float
    """The fewest effective draws that the policy accepted for these draws."""

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

    def _accepted(self) -> Rung:
        if not self.verdict.accepted:
            raise RefusedError(
                f"the erasure was refused: {self.verdict.reason}",
                f"{self.verdict.advice} What each rung made is in result.rungs, at your own risk.",
            )
        return self.rungs[-1]

    @property
    def evidence(self) -> Evidence | None:
        """What the rung showed that the draws are of."""
        return self.rungs[-1].evidence if self.rungs else None

    @property
    def jeffreys(self) -> Estimate | None:
        """From the refits that were given, of that rung's draws before their weights."""
        return self.rungs[-1].jeffreys if self.rungs else None

    @property
    def seconds(self) -> float:
        """What the request took, rungs that did not pass included."""
        return sum((rung.seconds for rung in self.rungs), 0.0)

    def erase(self, rows: Selection, **options: Any) -> Erasure:
        """The next request: from these draws, this model, under this policy, with what is left of the budget."""
        own = {"policy": self.policy, "spent": self.spent}
        if options.get("key") is None and options.get("random_seed") is None:
            own["random_seed"] = self.next_key
        return erase(self.model, self.draws, rows, **{**own, **options})

    def __str__(self) -> str:
        if not self.rungs:
            return f"{self._rows}: {self.verdict}"
        header = ("rung", "k̂", "ESS", "ε", "Jeffreys", "evaluations", "seconds", "")
        lines = [header] + [_line(rung) for rung in self.rungs]
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
        """What moved and by how much: the parameters that moved most, every rung's k̂ and ESS. Needs matplotlib."""
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
            "methods": [rung.to_dict() for rung in self.rungs],
            "returned": None if returned is None else {"chains": returned.n_chains, "draws": returned.n_draws},
            "policy": {name: plain(value) for name, value in dataclasses.asdict(self.policy).items()},
            "spent": rounded_up(self.spent),
            "seconds": float(f"{self.seconds:.2g}"),
        }

    def diagnostics_dict(self) -> dict[str, Any]:
        """Plain JSON with every rung's figures. It contains information about the removed rows: keep it from others."""
        return {
            "contains": "information about the removed rows",
            "posterase": __version__,
            "removed_rows": self.n_removed,
            "kept_rows": self.model.n_rows,
            "chains": self.before.n_chains,
            "draws": self.before.n_draws,
            "verdict": self.verdict.diagnostics_dict(),
            "demanded_ess": plain(self.demanded_ess),
            "rungs": [rung.diagnostics_dict() for rung in self.rungs],
            "policy": {name: plain(value) for name, value in dataclasses.asdict(self.policy).items()},
            "spent": plain(self.spent),
        }


@rare_collections()
@programs_kept()
@raises_read_errors
@raises_own_errors
def erase(
    model: AbstractModel,
    draws: Draws,
    rows: Selection,
    *,
    random_seed: Key[Array, ""] | int | None = None,
    key: Key[Array, ""] | int | None = None,
    policy: Policy | None = None,
    rungs: Sequence[Eraser] | None = None,
    refits: Draws | Sequence[Draws] | None = None,
    spent: float = 0.0,
    progress: bool | None = None,
    mesh: Mesh | None = None,
) -> Erasure:
    """Erase rows from the draws of a model's posterior.

    Parameters
    ----------
    model
        The model that the draws were sampled from.
    draws
        Draws of its posterior.
    rows
        Row ids; a mask (numpy, pandas or xarray); labels; a group, `{"county": "ANOKA"}`; or a condition as text,
        `'county == "ANOKA" and floor > 0'`. Names are those of the data's one-dimensional arrays and coordinates.
    random_seed
        A seed or a jax key: the same one gives the same draws. None: fresh entropy from the operating system. Moves are
        reversible for whoever knows their random numbers, so pass one only where the draws are not handed out.
    key
        Another name of `random_seed`.
    policy
        What a result must show, whether a refit may be started, the budget of repeated erasures.
    rungs
        Erasers to climb, cheapest first. None: `Reweight`, `Transport`, and `Refit`. Where the policy forbids a refit,
        `Rejuvenate` in its place, unless gradients come from another program (Stan): it costs about what a refit costs.
    refits
        Draws of the kept posterior to compare with, where they are at hand: each rung's Jeffreys divergence from them.
    spent
        What earlier erasures of this posterior have spent; `result.erase(rows)` fills it in.
    progress
        Whether to show progress. None: on a terminal.
    mesh
        Devices to spread chains and rows over: `pe.mesh(chains=2, rows=4)`. None: one device.

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
    check_type(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
    check_type(draws, Draws, "draws", "wrap them: pe.Draws({'name': array}).")
    policy = Policy() if policy is None else policy
    check_type(policy, Policy, "policy", "use pe.Policy(…).")
    typed = key_from(random_seed, key)
    if typed is None:
        typed = fresh_key() if mesh is None else sharding.agree_on_key(fresh_key())
    removal, went_along = _removal(model, draws, rows)
    compared = [refits] if isinstance(refits, Draws) else list(refits or [])
    for each in compared:
        check_type(each, Draws, "refits", "pass draws of the kept posterior: pe.Draws, or a list of them.")
        model.check(each)
    if draws.n_chains * draws.n_draws < FEWEST_DRAWS:
        raise DrawsShapeError(
            f"there are {draws.n_chains * draws.n_draws} draws.",
            f"an erasure needs at least {FEWEST_DRAWS}, preferably a few hundred: sample more.",
        )
    if draws.n_distinct == 1:
        raise RepeatedDrawsError("all draws are the same.", "pass draws of the posterior: the sampler never moved.")
    if not spent >= 0:
        raise InvalidOptionError(f"spent is {spent!r}.", "use result.spent of the erasure before.")
    climbed = _ladder(rungs, policy, model, draws)
    next_key = numbered(typed, len(climbed))  # those before it are for the rungs
    kept = model.without(removal)
    agreement = chain_agreement(draws)
    doubts = _doubts(draws, agreement, policy, spent)
    if not isinstance(model, StoredLikelihoods):
        model.check(draws)  # each time, and first: it keeps programs that hold rows out of the compilation cache
        thetas, like = unconstrained(model, draws)
        small = thetas.shape[1] <= MOST_PARAMETERS and not model.gradients_are_dear
        if mesh is None and small and not doubts and not all(each.samples_anew for each in climbed):
            half = int(np.bincount(first_half(draws.n_chains, draws.n_draws)).max())
            for program in lower_kernels(LogDensity(kept), like, thetas, half):
                compile_in_background(program)
        import_in_background("arviz_stats.base")
        _check_additivity(model, draws, removal)
        full = LogDensity(model)
        scores = compute_scores(full, thetas, like, draws.n_chains, informed_draws(thetas))
        check_informed(LogDensity(kept), RemovedLogLikelihood(model, removal), thetas, like, scores)
        if not doubts:  # chains that disagree have a cause of their own
            groups = independent_groups(draws, min(effective_draws(draws).values()), draws.first_places())
            check_draws(full, thetas, like, scores, draws.n_chains, groups)
    came = draws.container
    draws = draws.without(removal.row_ids, kept)
    if doubts:
        climbed = [eraser for eraser in climbed if eraser.samples_anew]
    had = effective_draws(draws) if draws.log_weights is None else parameter_ess(draws)
    own = policy.for_draws(had, can_move=not isinstance(model, StoredLikelihoods))
    tried: list[Rung] = []
    with sharding.over(mesh), shown("erasing", len(climbed), progress) as report:
        spread = model.spread()
        climb = _Climb(
            spread, kept if spread is model else spread.without(removal), draws, removal, own, compared, spent
        )
        ends_in_refit = bool(climbed) and climbed[-1].samples_anew
        for number, eraser in enumerate(climbed):
            if not eraser.samples_anew and exceeds_cost_of_refit(tried, draws, is_warm=ends_in_refit):
                if TOO_EXPENSIVE not in tried[-1].objections:
                    tried.append(Rung(type(eraser).__name__, None, [TOO_EXPENSIVE], 0.0))
                continue
            own_key, show = numbered(typed, number), functools.partial(_show, report, eraser, number)
            if isinstance(eraser, Refit):
                tried.append(climb.refit(own_key, eraser, tried, doubts, show))
            else:
                show("")
                before = next((rung for rung in reversed(tried) if TOO_EXPENSIVE not in rung.objections), None)
                tried.append(climb.take(own_key, eraser, before))
            if not tried[-1].objections:
                break
    tried = [
        dataclasses.replace(rung, erased=rung.erased and rung.erased.without_full_model(), moved=None) for rung in tried
    ]
    if mesh is not None:
        tried = [rung.at_home() for rung in tried]
    way_out = _way_out(model, policy, climbed)
    weaknesses = _weaknesses(draws, had, agreement)
    if came is None and not isinstance(model, StoredLikelihoods):
        weaknesses = (*weaknesses, UNIDENTIFIED)
    verdict = _verdict(tried, had, own, doubts, weaknesses, way_out)
    if verdict.accepted:
        verdict = dataclasses.replace(verdict, notes=(*went_along, *verdict.notes))
    output = tried[-1].output if tried and verdict.accepted else None
    if came is not None and output is not None:
        assert output.draws.container is not None
        told = output.draws.container.told(came, output.draws.params)
        verdict = dataclasses.replace(verdict, notes=(*verdict.notes, *told))
        settled = dataclasses.replace(output, draws=output.draws.settled())
        tried[-1] = dataclasses.replace(tried[-1], output=settled)
    last = tried[-1].erased if tried else None
    after = spent
    if verdict.accepted and last is not None:
        spends = policy.spends(last, verdict.missed)
        after = 0.0 if last.samples_anew else spent + spends
        verdict = dataclasses.replace(verdict, spends=spends, left=max(policy.budget - after, 0.0))
    model = kept if output is None or not isinstance(kept, StoredLikelihoods) else output.model
    return Erasure(verdict, tried, model, draws, compared, removal.n_rows, policy, after, next_key, own.least_ess)


def _way_out(model: AbstractModel, policy: Policy, methods: Sequence[Eraser]) -> str:
    """What is left to do after a refusal."""
    if isinstance(model, StoredLikelihoods):
        return GIVE_THE_MODEL
    if not policy.refit:
        return ALLOW
    return "" if any(each.samples_anew for each in methods) else ADD


def expect_refit(model: AbstractModel, draws: Draws, steps: float = 0.0) -> Expected:
    """What a refit would take, from the time of this model's gradient on this machine.

    `steps` are those of a trajectory of length π/2, where moves of the draws have measured them.
    """
    chains = refit_chains(draws.n_chains, draws.n_draws)
    thetas, like = unconstrained(model, draws)
    seconds = time_gradient(LogDensity(model), thetas[:chains], like).together
    gradients = expected_refit_gradients(draws.n_chains, draws.n_draws, thetas.shape[1], steps)
    return Expected(gradients, IMBALANCE * gradients / chains * seconds)


def planned(model: AbstractModel, draws: Draws, policy: Policy) -> tuple[list[Eraser], list[Objection]]:
    """The methods that `erase` would try, in order; and what speaks against anything but a refit."""
    doubts = _doubts(draws, chain_agreement(draws), policy, 0.0)
    methods = _ladder(None, policy, model, draws)
    return [each for each in methods if not doubts or each.samples_anew], doubts


def _removal(model: AbstractModel, draws: Draws, rows: Selection) -> tuple[Removal, tuple[Note, ...]]:
    """The rows that were meant, with those that hold their values as covariates; and what to note of the latter.

    In a regression on lagged values, the row after a removed one has a covariate that is gone. It is dropped, as it is
    from a table with a missing value. Its own value stays a covariate of the row after it, so this ends there.
    """
    table = table_of(model.data, model.present) if draws.container is None else draws.container.table
    removal = model.removal(rows.row_ids if isinstance(rows, Removal) else table.select(rows))
    holding = lagged(table, removal.row_ids)
    along = len(holding.rows)
    if not along:
        return removal, ()
    said = (
        f"{along} more row{'s' if along > 1 else ''} dropped, since covariates held removed values ({holding.how}); "
        "their own observed values stay covariates of later rows, unless these rows are named too"
    )
    everything = np.union1d(removal.row_ids, holding.rows)
    if len(everything) == model.n_rows:
        raise NothingKeptError(
            f"{removal.n_rows} rows were named, and the other {along} hold removed values ({holding.how}).",
            "remove fewer rows; or leave the columns that hold other rows' values out of the model.",
        )
    return model.removal(everything), (Note("rows", said),)


def _check_additivity(model: AbstractModel, draws: Draws, removal: Removal) -> None:
    """Once for each kind of model: whether rows look at each other is a property of its functions."""
    if model.checked_each_time:
        model.check_additivity(draws, removal, samples=1)
        return
    leaves, structure = jax.tree.flatten(model)
    kind = ("additive", structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
    once(kind, lambda: model.check_additivity(draws, removal, samples=1))


def _doubts(draws: Draws, agreement: dict[str, ChainAgreement], policy: Policy, spent: float) -> list[Objection]:
    """What speaks against anything that is made of these draws: only a refit is left then."""
    found = []
    rhat = {name: each.worst_above(MOST_INPUT_RHAT) for name, each in agreement.items()}
    worst = max(rhat, key=lambda name: rhat[name], default="")
    if worst and rhat[worst]:
        if stuck := stuck_chains(draws):
            found.append(Objection("chains", stuck, SAMPLE_AGAIN))
        elif modes := different_modes(draws):
            found.append(modes)
        else:
            said = f"the chains that went in disagree (R̂ {rhat[worst]:.2f} of {worst})"
            found.append(Objection("chains", said, "run them on."))
    if spent >= policy.budget:
        said = f"earlier erasures have used up the budget of {policy.budget:g}: a refit is demanded"
        found.append(Objection("budget", said, ""))
    return found


def _weaknesses(draws: Draws, had: Mapping[str, float], agreement: dict[str, ChainAgreement]) -> tuple[str, ...]:
    """What to note about the draws that went in: no method makes them better."""
    few = [FEW] if min(had.values()) < ENOUGH_ESS else []
    n, distinct = draws.n_chains * draws.n_draws, draws.n_distinct
    if distinct < n and min(had.values()) == distinct:  # a chain that rejects proposals has fewer effective draws
        few.append(f"of the {n:,} draws that went in only {distinct:,} are distinct: the others are copies")
    if draws.n_chains > 1 and not agreement:
        few.append("whether the chains that went in agree was not checked: they are too short")
    apart = any(each.rhat.max(initial=0.0) > NOTED_RHAT for each in agreement.values())
    return (*few, *([DISAGREE] if apart else []))


def _ladder(rungs: Sequence[Eraser] | None, policy: Policy, model: AbstractModel, draws: Draws) -> list[Eraser]:
    if rungs is None:
        can_refit = policy.refit and not is_network(draws)
        chosen = [each for each in RUNGS if not (each.takes_many_gradients and (can_refit or model.gradients_are_dear))]
        if can_refit:
            chosen.append(Refit())
        if isinstance(model, StoredLikelihoods):
            chosen = [eraser for eraser in chosen if not eraser.needs_density]
    else:
        chosen = list(rungs)
        for eraser in chosen:
            check_type(eraser, Eraser, "rungs", "pass erasers: [pe.Reweight(), pe.Transport()].")
        if not chosen:
            raise InvalidOptionError("rungs is empty.", "name at least one eraser, or leave it out.")
        if not policy.refit and any(eraser.samples_anew for eraser in chosen):
            raise InvalidOptionError(
                "rungs holds a refit, which the policy does not allow.", "leave refit=False out of the policy."
            )
    return chosen


def exceeds_cost_of_refit(tried: list[Rung], draws: Draws, *, is_warm: bool = False) -> bool:
    """Whether the methods that were not accepted have taken more evaluations than a refit."""
    steps = max((rung.steps for rung in tried), default=0.0)
    refit = least_refit_gradients(draws.n_chains, draws.n_draws, steps, is_warm=is_warm)
    return sum(rung.cost.evaluations for rung in tried) > refit


def _show(report: Callable[[str, int], None], eraser: Eraser, number: int, what: str) -> None:
    report(f"{type(eraser).__name__}, {what}" if what else type(eraser).__name__, number)


class _TooLong(Exception):
    """A refit is estimated to take so many seconds, more than a limit."""


class _Climb(NamedTuple):
    """What every rung of one erasure is given, and held against."""

    model: AbstractModel
    kept: AbstractModel
    draws: Draws
    removal: Removal
    policy: Policy
    refits: list[Draws]
    spent: float

    def take(self, key: Key[Array, ""], eraser: Eraser, before: Rung | None) -> Rung:
        """Run a rung and judge it."""
        made = None if before is None else before.erased
        return self._judged(
            eraser,
            lambda: eraser(key, self.model, self.draws, self.removal, before=made),
            lambda erased: self._judge(key, eraser, erased),
        )

    def refit(
        self,
        key: Key[Array, ""],
        eraser: Refit,
        tried: list[Rung],
        doubts: list[Objection],
        show: Callable[[str], None],
    ) -> Rung:
        """Refit from the nearest draws that there are, unless it is expected to take too long."""
        n = self.draws.n_chains * self.draws.n_draws
        if self.policy.least_ess > MOST_EFFICIENCY * n:
            said = f"it returns {n} draws, as went in, and {self.policy.least_ess:.4g} effective ones are asked for"
            return Rung("Refit", None, [Objection("ess", said, "draw more.")], 0.0)
        limit, started = self.policy.refit_seconds, time.perf_counter()
        expected = None if eraser.sampler is not None else self.expected(tried)
        if expected is not None:
            if limit is not None and expected.seconds > limit:
                return Rung("Refit", None, [too_long(expected.seconds, limit)], 0.0, expected=expected)
            show(str(expected))

        def report(what: str, left: float) -> None:
            seconds = time.perf_counter() - started + left
            if limit is not None and seconds > limit:
                raise _TooLong(seconds, limit)
            show(f"{what}, {approximate(left)} left")

        nearest = _nearest(tried, self.draws)
        if not tried:  # doubts led straight here: weights cost next to nothing
            nearest = self._weighted(key)
        attempts: list[tuple[Erased, Rung]] = []

        def objection(erased: Erased) -> str:
            attempts.append((erased, self._judge(numbered(key, len(attempts)), eraser, erased, nearest)))
            # Another metric does not give many more effective draws than there are.
            ignored = "ess" if self.policy.least_ess > n * MOST_ESS_SHARE else ""
            return next((each.reason for each in attempts[-1][1].objections if each.cause != ignored), "")

        def judge(erased: Erased) -> Rung:
            if not attempts:  # a recipe of SG-MCMC
                return self._judge(key, eraser, erased)
            moves = functools.reduce(Cost.plus, (rung.moves for _, rung in attempts))
            return dataclasses.replace(attempts[-1][1], moves=moves)

        apart = any(doubt.cause in ("chains", "modes", "labels") for doubt in doubts)
        start = Start(nearest, not apart, objection, report)
        rung = self._judged(eraser, lambda: eraser.refit(key, self.model, self.draws, self.removal, start), judge)
        return dataclasses.replace(rung, expected=expected)

    def _weighted(self, key: Key[Array, ""]) -> Draws:
        """The draws with weights of the kept posterior, where these can be computed."""
        try:
            return Reweight()(key, self.model, self.draws, self.removal).draws
        except Exception as error:
            if numerical_failure(error) is None:
                raise
            return self.draws

    def expected(self, tried: list[Rung]) -> Expected | None:
        """What a refit would take; None where the gradient cannot be evaluated."""
        try:
            return expect_refit(self.kept, self.draws, max((rung.steps for rung in tried), default=0.0))
        except Exception as error:
            if numerical_failure(error) is None:
                raise
            return None

    def _judged(self, eraser: Eraser, run: Callable[[], Erased], judge: Callable[[Erased], Rung]) -> Rung:
        """Run a method and judge what it returns; what fails in it speaks against it."""
        started = time.perf_counter()
        name, erased = type(eraser).__name__, None
        try:
            erased = run()
            found = judge(erased)
        except _TooLong as error:
            found = Rung(name, None, [too_long(*error.args)], 0.0)
        except Exception as error:
            failed = numerical_failure(error)
            if failed is None:
                raise
            found = Rung(name, erased, [Objection("error", failed.problem, failed.advice)], 0.0)
        return dataclasses.replace(found, seconds=time.perf_counter() - started)

    def _judge(self, key: Key[Array, ""], eraser: Eraser, erased: Erased, near: Draws | None = None) -> Rung:
        """What a method returned, made into output, or what speaks against it.

        Chains that ran on the kept rows and diverged, disagree or remember too much are moved, which may mend them and
        tells whether it did.
        """
        objections = self.policy.objections(erased)
        must_move = eraser.samples_anew and bool(objections) and {each.cause for each in objections} <= MENDED
        if objections and not must_move:
            return self._rung(eraser, erased, objections)
        tails = self._tails(erased.draws)
        if tails.flat:
            return self._rung(eraser, erased, [_improper(tails.flat)])
        made = self._output(key, eraser, erased, must_move, near)
        if isinstance(made.result, Objection):
            if tails.distant and made.result.cause in NOT_COVERED:  # the cause of it
                objections = [_distant(tails.distant)]
            return self._rung(eraser, erased, objections or [made.result], made)
        output, evidence = made.result, erased.evidence
        if eraser.samples_anew and output.is_verified:
            evidence = dataclasses.replace(evidence, rhat=_worst_rhat(output.draws), flaw=None, ess=output.ess)
        if output.is_repaired:  # weights did not know of what the moves have mended
            evidence = dataclasses.replace(evidence, epsilon=None)
        erased = dataclasses.replace(erased, evidence=evidence)
        objections = self.policy.objections(erased)
        if not eraser.samples_anew:
            objections = (
                self.policy.too_few(output.ess)
                or objections
                or self._too_much(self.policy.spends(erased, output.missed))
            )
        if tails.distant and not objections and (distant := self._tails(output.draws).distant):
            objections = [_distant(distant)]
        return self._rung(eraser, erased, objections, made)

    def _rung(self, eraser: Eraser, erased: Erased, objections: list[Objection], made: Attempt | None = None) -> Rung:
        output = made.result if made is not None and isinstance(made.result, Output) else None
        return Rung(
            name=type(eraser).__name__,
            erased=erased,
            objections=objections,
            seconds=0.0,
            output=None if objections else output,
            moves=Cost() if made is None else made.cost,
            jeffreys=_jeffreys(erased, self.refits),
            steps=0.0 if made is None or made.pace is None else made.pace.steps,
            moved=output.draws if output is not None else None if made is None else made.moved,
        )

    def _too_much(self, more: float) -> list[Objection]:
        """Whether this erasure would exceed the budget of repeated erasures. A budget used up is found earlier."""
        if self.spent + more <= self.policy.budget:
            return []
        said = (
            f"earlier erasures have left {self.policy.budget - self.spent:.2g} of a budget of {self.policy.budget:g}, "
            f"and this one would spend {more:.2g}: a refit is demanded"
        )
        return [Objection("budget", said, "")]

    def _output(
        self, key: Key[Array, ""], eraser: Eraser, erased: Erased, must_move: bool, near: Draws | None
    ) -> Attempt:
        """Draws that may leave memory, or what speaks against them."""
        request = Request(self.model, self.kept, self.removal, self.policy, self.draws, near)
        return make_output(numbered(key, OUTPUT), eraser, erased, request, must_move=must_move)

    def _tails(self, draws: Draws) -> Tails:
        """Where the kept density does not fall off around draws."""
        if isinstance(self.kept, StoredLikelihoods):
            return Tails([], [])
        thetas, like = unconstrained(self.kept, draws)
        return flat_tails(LogDensity(self.kept), thetas, base_weights(draws).ravel(), like)


def _nearest(tried: list[Rung], draws: Draws) -> Draws:
    """The draws that are nearest to the kept posterior: those that were moved last, if any; else the last method's."""
    moved = [rung.moved for rung in tried if rung.moved is not None]
    made = [rung.erased.draws for rung in tried if rung.erased is not None]
    return [draws, *made, *moved][-1]


def too_long(seconds: float, limit: float) -> Objection:
    """A refit that would take longer than the policy allows."""
    said = f"estimated to take {approximate(seconds)}, longer than refit_seconds={limit:g} of the policy"
    return Objection("time", said, "allow it: policy=pe.Policy(refit_seconds=None).")


def rough(seconds: float) -> float:
    """An estimated time as it is published."""
    return float(f"{seconds:.1g}")


def _improper(flat: Sequence[str]) -> Objection:
    said = f"the kept density does not fall off along {', '.join(flat)}: it may have no posterior"
    return Objection("improper", said, "give these parameters a proper prior.")


def _distant(along: Sequence[str]) -> Objection:
    said = f"far from the draws, along {', '.join(along)}, the kept density is as high as among them"
    advice = "start chains there too: it may be a second mode, or a prior wider than the draws."
    return Objection("distant mass", said, advice)


def _worst_rhat(draws: Draws) -> float:
    """The worst R̂ of any parameter; not a number for one chain."""
    return max(mixing(draws)[0].values())


def _jeffreys(erased: Erased, refits: list[Draws]) -> Estimate | None:
    """Of the rung's draws as they are moved, before weights."""
    log_weights_at, moved = erased.evidence.log_weights_at, erased.evidence.moved
    if not refits:
        return None
    from posterase.metrics.divergence import moved_jeffreys  # imports scipy.stats, which takes a second

    return (
        None if not refits or log_weights_at is None or moved is None else moved_jeffreys(log_weights_at, moved, refits)
    )


def _verdict(
    tried: list[Rung],
    had: Mapping[str, float],
    policy: Policy,
    doubts: list[Objection],
    weaknesses: tuple[str, ...],
    way_out: str,
) -> Verdict:
    if not tried:
        advice = _advised([doubt.advice for doubt in doubts], way_out)
        public = "; ".join(doubt.public for doubt in doubts)
        reason, page = "; ".join(doubt.reason for doubt in doubts), doubts[0].page
        return Verdict(False, "refused", "", reason, advice, page, public_reason=public)
    about_input = tuple(doubt.public for doubt in doubts)
    last = tried[-1]
    shown = last.evidence
    if last.objections or last.erased is None or shown is None:
        return _refusal(tried, had, policy, doubts, way_out)
    if last.erased.samples_anew:
        kind = "refitted"
        figures = [] if shown.rhat is None else [f"R̂ {shown.rhat:.3f}"]
    else:
        kind = "moved" if shown.epsilon is None else "measured"
        figures = [] if shown.pareto_k is None else [f"k̂ {shown.pareto_k:.2f}"]
        figures.append(epsilon_text(shown.epsilon))
    assert last.output is not None
    margin, ess = policy.margin(last.erased), min(last.output.ess.values())
    figures.append(f"ESS {ess:.0f}")
    missed = last.output.missed
    if missed is not None:
        figures.append(f"verified up to {max(missed, 0.01):.2f} sd")
    verified = " and the draws do not drift along the kept posterior" if last.output.is_verified else ""
    if last.jeffreys is not None:
        figures.append(f"Jeffreys from the refits, before weights, ≈ {last.jeffreys}")
    return Verdict(
        True,
        kind,  # type: ignore[arg-type]
        last.name,
        ", ".join(figures),
        pareto_k=shown.pareto_k,
        ess=ess,
        epsilon=shown.epsilon,
        notes=(*last.output.notes, *(Note("input", text) for text in (*about_input, *weaknesses))),
        missed=missed,
        margin=margin,
        draws=last.output.origin,
        verified=last.output.is_verified,
        public_reason=f"the diagnostics passed with a {margin} margin{verified}",
    )


def _refusal(
    tried: list[Rung], had: Mapping[str, float], policy: Policy, doubts: list[Objection], way_out: str
) -> Verdict:
    """Why nothing passed, and what to do about it."""
    last = tried[-1]
    named = tried[-2:] if TOO_EXPENSIVE in last.objections else tried[-1:]
    causes = [rung.objections[0].cause for rung in tried]
    if "improper" in causes and last.objections[0].cause != "improper":  # no sampler gets along with that
        named = [tried[causes.index("improper")], *named]
    reason = "; ".join(f"{rung.name}: {rung.objections[0].reason}" for rung in named)
    worst = min(had, key=lambda name: had[name])
    public = "; ".join(f"{rung.name}: {rung.objections[0].public}" for rung in named)
    advice, page = [], named[0].objections[0].page
    if doubts:
        page = doubts[0].page
        reason = "; ".join([*(doubt.reason for doubt in doubts), reason])
        public = "; ".join([*(doubt.public for doubt in doubts), public])
        advice += [doubt.advice for doubt in doubts]
    elif had[worst] < policy.least_ess:
        few = f"{had[worst]:.0f} effective draws of {worst}, below {policy.least_ess:.4g}"
        reason = f"the draws that went in have {few}; {reason}"
        public = f"the draws that went in have too few effective ones; {public}"
        advice.append("draw more.")
    else:
        cause = named[0].objections[0]
        advice.append(cause.advice)
        page = cause.page
    return Verdict(False, "refused", "", reason, _advised(advice, way_out), page, public_reason=public)


def _advised(advice: list[str], way_out: str) -> str:
    """Sentences of what to do, and at last what is always left to do."""
    given = [each for each in advice if each]
    if way_out:
        given.append(f"or {way_out}" if given and way_out in (ALLOW, ADD) else way_out)
    return " ".join(each[0].upper() + each[1:] for each in given)


def _on_the_way(erased: Erased | None) -> dict[str, Any]:
    """What is known of how draws got where they are: the stages of a path, the divergences of a refit."""
    made: Any = None if erased is None else erased.diagnostics
    found: dict[str, Any] = {}
    if hasattr(made, "stages"):
        stages = [each._asdict() for each in made.stages]
        found["path"] = [{name: plain(value) for name, value in stage.items()} for stage in stages]
    if hasattr(made, "divergences"):
        found["divergences"] = int(made.divergences)
    return found


def _line(rung: Rung) -> tuple[str, ...]:
    shown = rung.evidence
    said = "accepted" if not rung.objections else rung.objections[0].reason
    seconds = f"{rung.seconds:.2f}"
    if shown is None:
        return rung.name, "", "", "", "", "", seconds, said
    return (
        rung.name,
        "–" if shown.pareto_k is None else f"{shown.pareto_k:.2f}",
        f"{min(rung.ess.values()):.0f}",
        "not measured" if shown.epsilon is None else rounded(shown.epsilon),
        "" if rung.jeffreys is None else str(rung.jeffreys),
        f"{rung.cost.evaluations:.0f}",
        seconds,
        said,
    )
