"""erase(): climb from the cheapest method to the exact one, stop at the first that passes, and tell the whole story.

    result = pe.erase(model, draws, rows=[3, 17, 42], random_seed=0)

The ladder is `Reweight`, `Transport` and `Refit`, from a warm start; without a refit, `Rejuvenate` is the last. Each
method's diagnostics are held against the policy; the first that passes is accepted, and nothing after it is run. Where
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Key

from posterase.data.leakage import lagged
from posterase.data.selection import table_of
from posterase.draws.draws import Draws
from posterase.draws.notes import Note
from posterase.draws.objections import Objection
from posterase.errors import DifferentModelError, DrawsShapeError, InvalidOptionError, NothingKeptError
from posterase.ladder.climb import TOO_EXPENSIVE, Climb, exceeds_cost_of_refit
from posterase.ladder.output import MOST_PARAMETERS, is_network
from posterase.ladder.policy import ENOUGH_ESS, Policy
from posterase.ladder.reasons import ADD, ALLOW, make_verdict
from posterase.ladder.result import MethodOutcome, Result
from posterase.methods.base import Method
from posterase.methods.refit import Refit
from posterase.methods.registry import find_method
from posterase.methods.rejuvenate import Rejuvenate
from posterase.methods.reweight import Reweight
from posterase.methods.transport import Transport
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity, LogRatio
from posterase.model.stored import GIVE_THE_MODEL
from posterase.numerics.densities import unconstrained
from posterase.numerics.failures import entry_point
from posterase.numerics.input_checks import check_draws, compute_scores
from posterase.numerics.kernels import lower_kernels
from posterase.numerics.propriety import check_informed, informed_draws
from posterase.numerics.weights import first_half, independent_groups, parameter_ess
from posterase.runtime import sharding
from posterase.runtime.checks import check_type, once
from posterase.runtime.compilation_cache import compile_in_background
from posterase.runtime.optional import import_in_background
from posterase.runtime.prng import as_key, fresh_key, numbered
from posterase.runtime.progress import shown
from posterase.sampling.effective_draws import effective_draws
from posterase.sampling.mixing import ChainAgreement, chain_agreement, different_modes, stuck_chains

NOTED_RHAT = 1.01
"""An R̂ of the draws that went in above this is noted (Vehtari et al. 2021)."""

MOST_INPUT_RHAT = 1.05
"""Draws with an R̂ above this are not draws of any posterior, unless there are so few that chance explains it."""

FEWEST_DRAWS = 20

UNIDENTIFIED = (
    "the identity of the rows was not checked: the draws came without the data of the fit, and other rows in their "
    "order would not show"
)

FEW = f"the draws that went in have fewer than {ENOUGH_ESS:.0f} effective draws of some parameter"

DISAGREE = f"R̂ of the draws that went in is above {NOTED_RHAT} for some parameter"

SAMPLE_AGAIN = "keep the chains that moved, or sample again from other starting points."

Selection = ArrayLike | Sequence[Any] | Mapping[str, Any] | str | Change
"""Rows as people name them: `erase` says how."""

LADDER: tuple[Method, ...] = (Reweight(), Transport(), Rejuvenate())
"""The ladder, but for the refit."""


@entry_point(converts_failures=True)
def erase(
    model: AbstractModel,
    draws: Draws,
    rows: Selection,
    *,
    random_seed: Key[Array, ""] | int | None = None,
    policy: Policy | None = None,
    methods: Sequence[Method | str] | None = None,
    refits: Draws | Sequence[Draws] | None = None,
    spent: float = 0.0,
    progress: bool | None = None,
    mesh: Mesh | None = None,
) -> Result:
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
    policy
        What a result must show, whether a refit may be started, the budget of repeated erasures.
    methods
        Methods to climb, cheapest first. None: `Reweight`, `Transport`, and `Refit`. Where the policy forbids a refit,
        `Rejuvenate` in its place, unless gradients come from another program (Stan): it costs about what a refit costs.
    refits
        Draws of the kept posterior to compare with, where they are at hand: each method's Jeffreys divergence from
        them.
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
    >>> result.verdict.method
    'Reweight'
    """
    check_type(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
    check_type(draws, Draws, "draws", "wrap them: pe.Draws({'name': array}).")
    policy = Policy() if policy is None else policy
    check_type(policy, Policy, "policy", "use pe.Policy(…).")
    typed = None if random_seed is None else as_key(random_seed, "random_seed")
    if typed is None:
        typed = fresh_key() if mesh is None else sharding.agree_on_key(fresh_key())
    change, went_along = _change(model, draws, rows)
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
        raise DifferentModelError("all draws are the same.", "pass draws of the posterior: the sampler never moved.")
    if not spent >= 0:
        raise InvalidOptionError(f"spent is {spent!r}.", "use result.spent of the erasure before.")
    climbed = _ladder(methods, policy, model, draws)
    next_key = numbered(typed, len(climbed))  # those before it are for the methods
    kept = model.without(change)
    agreement = chain_agreement(draws)
    doubts = _doubts(draws, agreement, policy, spent)
    if model.has_density:
        model.check(draws)  # each time, and first: it keeps programs that hold rows out of the compilation cache
        thetas, like = unconstrained(model, draws)
        small = thetas.shape[1] <= MOST_PARAMETERS and not model.gradients_are_expensive
        if mesh is None and small and not doubts and not all(each.samples_anew for each in climbed):
            half = int(np.bincount(first_half(draws.n_chains, draws.n_draws)).max())
            for program in lower_kernels(LogDensity(kept), like, thetas, half):
                compile_in_background(program)
        import_in_background("arviz_stats.base")
        _check_additivity(model, draws, change)
        full = LogDensity(model)
        scores = compute_scores(full, thetas, like, draws.n_chains, informed_draws(thetas))
        check_informed(LogDensity(kept), LogRatio(model, change), thetas, like, scores)
        if not doubts:  # chains that disagree have a cause of their own
            groups = independent_groups(draws, min(effective_draws(draws).values()), draws.first_places())
            check_draws(full, thetas, like, scores, draws.n_chains, groups)
    came = draws.container
    draws = draws.without(change.row_ids, kept)
    if doubts:
        climbed = [method for method in climbed if method.samples_anew]
    had = effective_draws(draws) if draws.log_weights is None else parameter_ess(draws)
    own = policy.for_draws(had, can_move=model.has_density)
    tried: list[MethodOutcome] = []
    with sharding.over(mesh), shown("erasing", len(climbed), progress) as report:
        spread = model.spread()
        climb = Climb(spread, kept if spread is model else spread.without(change), draws, change, own, compared, spent)
        ends_in_refit = bool(climbed) and climbed[-1].samples_anew
        for number, method in enumerate(climbed):
            if not method.samples_anew and exceeds_cost_of_refit(tried, draws, is_warm=ends_in_refit):
                if TOO_EXPENSIVE not in tried[-1].objections:
                    tried.append(MethodOutcome(type(method).__name__, None, [TOO_EXPENSIVE], 0.0))
                continue
            own_key, show = numbered(typed, number), functools.partial(_show, report, method, number)
            tried.append(climb.take(own_key, method, tried, doubts, show))
            if not tried[-1].objections:
                break
    tried = [
        dataclasses.replace(outcome, erased=outcome.erased and outcome.erased.without_source(), moved=None)
        for outcome in tried
    ]
    if mesh is not None:
        tried = [outcome.at_home() for outcome in tried]
    way_out = _way_out(model, policy, climbed)
    weaknesses = _weaknesses(draws, had, agreement)
    if came is None and model.has_density:
        weaknesses = (*weaknesses, UNIDENTIFIED)
    verdict = make_verdict(tried, had, own, doubts, weaknesses, way_out)
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
    model = kept if output is None or kept.has_density else output.model
    return Result(verdict, tried, model, draws, compared, change.n_rows, policy, after, next_key, own.least_ess, erase)


def _way_out(model: AbstractModel, policy: Policy, methods: Sequence[Method]) -> str:
    """What is left to do after a refusal."""
    if not model.has_density:
        return GIVE_THE_MODEL
    if not policy.refit:
        return ALLOW
    return "" if any(each.samples_anew for each in methods) else ADD


def planned(
    model: AbstractModel, draws: Draws, policy: Policy, methods: Sequence[Method | str] | None = None
) -> tuple[list[Method], list[Objection]]:
    """The methods that `erase` would try, in order; and what speaks against anything but a refit."""
    doubts = _doubts(draws, chain_agreement(draws), policy, 0.0)
    climbed = _ladder(methods, policy, model, draws)
    return [each for each in climbed if not doubts or each.samples_anew], doubts


def _change(model: AbstractModel, draws: Draws, rows: Selection) -> tuple[Change, tuple[Note, ...]]:
    """The rows that were meant, with those that hold their values as covariates; and what to note of the latter.

    In a regression on lagged values, the row after a removed one has a covariate that is gone. It is dropped, as it is
    from a table with a missing value. Its own value stays a covariate of the row after it, so this ends there.
    """
    table = table_of(model.data, model.present) if draws.container is None else draws.container.table
    change = model.change(remove=rows.row_ids if isinstance(rows, Change) else table.select(rows))
    holding = lagged(table, change.row_ids)
    along = len(holding.rows)
    if not along:
        return change, ()
    said = (
        f"{along} more row{'s' if along > 1 else ''} dropped, since covariates held removed values ({holding.how}); "
        "their own observed values stay covariates of later rows, unless these rows are named too"
    )
    everything = np.union1d(change.row_ids, holding.rows)
    if len(everything) == model.n_rows:
        raise NothingKeptError(
            f"{change.n_rows} rows were named, and the other {along} hold removed values ({holding.how}).",
            "remove fewer rows; or leave the columns that hold other rows' values out of the model.",
        )
    return model.change(remove=everything), (Note("rows", said),)


def _check_additivity(model: AbstractModel, draws: Draws, change: Change) -> None:
    """Once for each kind of model: whether rows look at each other is a property of its functions."""
    if model.check_every_change:
        model.check_additivity(draws, change, samples=1)
        return
    leaves, structure = jax.tree.flatten(model)
    kind = ("additive", structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
    once(kind, lambda: model.check_additivity(draws, change, samples=1))


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


def _ladder(methods: Sequence[Method | str] | None, policy: Policy, model: AbstractModel, draws: Draws) -> list[Method]:
    if methods is None:
        can_refit = policy.refit and not is_network(draws)
        chosen = [
            each for each in LADDER if not (each.takes_many_gradients and (can_refit or model.gradients_are_expensive))
        ]
        if can_refit:
            chosen.append(Refit())
        if not model.has_density:
            chosen = [method for method in chosen if not method.needs_density]
    else:
        given = [methods] if isinstance(methods, (str, Method)) else methods
        chosen = [find_method(each) if isinstance(each, str) else each for each in given]
        for method in chosen:
            check_type(method, Method, "methods", "pass methods: [pe.Reweight(), pe.Transport()].")
            method.check(model)
        if not chosen:
            raise InvalidOptionError("methods is empty.", "name at least one method, or leave it out.")
        if not policy.refit and any(method.samples_anew for method in chosen):
            raise InvalidOptionError(
                "methods holds a refit, which the policy does not allow.", "leave refit=False out of the policy."
            )
    return chosen


def _show(report: Callable[[str, int], None], method: Method, number: int, what: str) -> None:
    report(f"{type(method).__name__}, {what}" if what else type(method).__name__, number)
