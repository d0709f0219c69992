"""Refit: sample the kept posterior anew. Always exact, as the chains converge; the most expensive method.

**Warm start.** Chains start at draws that are near the kept posterior: those of the full posterior, or those that other
methods have moved, picked at random. The covariance of these draws is the metric, so that only the step size is left to
adapt (`posterase.sampling.warm_nuts`). Where the chains then disagree or diverge, they are run once more with a full
warm-up that takes nothing from the draws but where it starts: a bad metric costs time, and nothing else. Where
transitions diverge, smaller steps are tried first.

By NUTS where all rows fit a step, by the model's own sampler where it has one (Stan), or by the SG-MCMC recipe that
made the draws, its step sizes rescaled by N/N′ as the sum over rows has shrunk.
"""

from __future__ import annotations

import dataclasses
import time
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from posterase.draws.draws import Draws
from posterase.draws.objections import Objection
from posterase.methods.base import Method, MethodResult, Problem
from posterase.methods.diagnostics import Diagnostics
from posterase.model.base import AbstractModel, OwnSample
from posterase.numerics.cost import (
    REFIT_WARMUP,
    WARM_WARMUP,
    Cost,
    expected_refit_gradients,
    refit_chains,
    refit_length,
)
from posterase.numerics.densities import constrained
from posterase.numerics.failures import numerical_failure
from posterase.runtime.checks import check_int
from posterase.sampling.mixing import MOST_RHAT, mixing
from posterase.sampling.nuts import nuts
from posterase.sampling.sample import sample, start_chains
from posterase.sampling.sampler import Sampler, check_sampler
from posterase.sampling.warm_nuts import warm_nuts
from posterase.sampling.warm_nuts import warm_start as coordinates_of

MOST_RUNS = 3

STEPS, SMALL_STEPS = 0.8, 0.95
"""The acceptance rate that step sizes are adapted to; and where transitions have diverged."""


@dataclasses.dataclass(frozen=True)
class RefitDetails:
    """How well the chains mixed."""

    rhat: dict[str, float]
    """R̂, rank normalised, the worst element of each parameter."""
    ess: dict[str, float]
    """Bulk effective sample size, the worst element of each parameter."""
    divergences: int
    """Transitions of NUTS whose energy went wrong."""
    chains: int
    warmup: int
    """Steps of each chain before the first draw."""
    before: tuple[str, ...] = ()
    """What was wrong with earlier runs, where this is not the first."""

    @property
    def brief(self) -> str:
        """The figures that matter most."""
        return f"R̂ {max(self.rhat.values()):.3f}, ESS {min(self.ess.values()):.0f}"

    def __str__(self) -> str:
        before = f"; run again, since {', then '.join(self.before)}" if self.before else ""
        chains = f"{self.chains} chains, {self.warmup} steps of warm-up"
        return f"{chains}: {self.brief}, {self.divergences} divergences{before}"


class Chains(NamedTuple):
    """What a sampler returned."""

    draws: Draws
    rhat: dict[str, float]
    ess: dict[str, float]
    divergences: int
    cost: Cost


class Refit(Method):
    """Sample the kept posterior anew, from the draws at hand.

    Parameters
    ----------
    sampler
        The SG-MCMC recipe: `SGLD(…)`, `SGHMC(…)` or another, as it sampled the full posterior. None: NUTS.
    warmup
        Steps before the first draw, without a warm start.
    thin
        Steps a draw, for an SG-MCMC recipe.
    warm
        Steps before the first draw after a warm start, which takes its metric from the draws at hand. Chains that
        disagree or diverge are run again without it. 0: no warm start.
    """

    samples_anew: ClassVar[bool] = True
    sampler: Sampler | None = None
    warmup: int = eqx.field(default=REFIT_WARMUP, static=True)
    thin: int = eqx.field(default=1, static=True)
    warm: int = eqx.field(default=WARM_WARMUP, static=True)

    def expected_gradients(self, draws: Draws, parameters: int, steps: float) -> float | None:
        if self.sampler is not None:
            return None
        return expected_refit_gradients(draws.n_chains, draws.n_draws, parameters, steps)

    def __check_init__(self) -> None:
        if self.sampler is not None:
            check_sampler(self.sampler, instead=", or None for NUTS")
        check_int("warmup", self.warmup, 20)
        check_int("thin", self.thin, 1)
        check_int("warm", self.warm, 0)

    def run(self, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
        key, model = problem.key, problem.model
        near = problem.near or (problem.draws if warm_start is None else warm_start.draws)
        run = _Run(self, model, problem.target, problem, near)
        if self.sampler is not None:
            return run.erased(run.stochastic(key), self.warmup, ())
        setting, cost = Setting(bool(self.warm and problem.is_trusted), STEPS, run.length), Cost()
        before: tuple[str, ...] = ()
        while True:
            doubt, diverged, erased = run.attempt(jax.random.fold_in(key, len(before)), setting, cost, before)
            harder = setting.after(diverged=diverged)
            if erased is not None and (not doubt or harder is None or len(before) == MOST_RUNS - 1):
                return erased
            before = (*before, doubt)
            cost = cost if erased is None else erased.diagnostics.cost
            setting = harder or setting.without_metric()


class Setting(NamedTuple):
    """How chains are run."""

    is_warm: bool
    target_acceptance: float
    length: int
    """Draws of each chain."""

    def after(self, *, diverged: bool) -> Setting | None:
        """What to try where these chains did not pass: smaller steps after divergences, else a longer cold run."""
        if diverged and self.target_acceptance == STEPS:
            return self._replace(target_acceptance=SMALL_STEPS)
        return self.without_metric() if self.is_warm else None

    def without_metric(self) -> Setting:
        """A full warm-up, and longer chains: with few draws R̂ is too large by chance alone."""
        return self._replace(is_warm=False, length=2 * self.length)


class _Run(NamedTuple):
    """One request."""

    options: Refit
    model: AbstractModel
    kept: AbstractModel
    problem: Problem
    near: Draws
    """Draws near the target, with their weights."""

    @property
    def draws(self) -> Draws:
        """Those that went in."""
        return self.problem.draws

    @property
    def chains(self) -> int:
        return refit_chains(self.draws.n_chains, self.draws.n_draws)

    @property
    def length(self) -> int:
        """Draws of each chain."""
        return refit_length(self.draws.n_chains, self.draws.n_draws)

    def initial(self, key: Key[Array, ""]) -> PyTree:
        """Draws picked by their weights, one for each chain."""
        starts = self.near
        n = starts.n_chains * starts.n_draws
        places = jax.random.choice(key, n, (self.chains,), p=starts.weights.ravel())
        return jax.tree.map(lambda leaf: leaf[places], starts.flat())

    def attempt(
        self, key: Key[Array, ""], setting: Setting, cost: Cost, before: tuple[str, ...]
    ) -> tuple[str, bool, MethodResult | None]:
        """What speaks against a run, or ""; whether it diverged; and what it returned, the cost of runs before added.

        The failure of a computation is None where the draws' metric may be to blame.
        """
        try:
            made = (self.from_warm_start if setting.is_warm else self.cold)(key, setting)
        except Exception as error:
            failed = numerical_failure(error)
            if failed is None or not setting.is_warm:
                raise
            return failed.problem, False, None
        warmup = self.options.warm if setting.is_warm else self.options.warmup
        erased = self.erased(made._replace(cost=cost.plus(made.cost)), warmup, before)
        return (self.problem.objection or _doubt)(erased), made.divergences > 0, erased

    def from_warm_start(self, key: Key[Array, ""], setting: Setting) -> Chains:
        """By NUTS, in coordinates that the draws give."""
        start, warm, (_, target, length) = coordinates_of(self.kept, self.near), self.options.warm, setting
        own = self.kept.sampled(seed_of(key), self.initial(key), length, warm, start.covariance, target)
        if own is not None:
            return self._own(own)
        made = warm_nuts(key, self.kept, start, self.chains, length, warm, target, self._tell)
        flat = made.thetas.reshape(-1, made.thetas.shape[-1])
        fresh = Draws(constrained(self.kept, flat, start.like, self.draws, (self.chains, length)))
        cost = Cost(gradients=made.gradients, sequential=made.sequential)
        return Chains(fresh, *mixing(fresh), made.divergences, cost)

    def cold(self, key: Key[Array, ""], setting: Setting) -> Chains:
        """By NUTS, with a warm-up of its own."""
        pick, run = jax.random.split(key)
        initial, warmup, (_, target, length) = self.initial(pick), self.options.warmup, setting
        own = self.kept.sampled(seed_of(run), initial, length, warmup, target_acceptance=target)
        if own is not None:
            return self._own(own)
        seen: list[tuple[int, float]] = []

        def tell(done: int, total: int) -> None:
            seen.append((done, time.perf_counter()))
            if len(seen) > 1:  # the first piece comes after warm-up and compilation
                (before, then), (_, now) = seen[-2:]
                self._tell(done, total, (now - then) * (total - done) / (done - before))

        report = None if self.problem.report is None else tell
        sampled = nuts(run, self.kept, initial, length, warmup=warmup, target_acceptance=target, report=report)
        found = sampled.diagnostics
        cost = Cost(gradients=found.gradients + found.warmup_gradients, sequential=found.sequential)
        return Chains(sampled.draws, found.rhat, found.ess, found.divergences, cost)

    def stochastic(self, key: Key[Array, ""]) -> Chains:
        """By the recipe that made the draws."""
        pick, run = jax.random.split(key)
        options = self.options
        assert options.sampler is not None
        recipe = options.sampler.rescaled(self.model.n_rows / self.kept.n_rows)
        chains = start_chains(run, self.kept, recipe, self.initial(pick))
        state = sample(self.kept, recipe, chains, 1, thin=options.warmup).state
        fresh = sample(self.kept, recipe, state, self.length, thin=options.thin).draws
        steps = options.warmup + self.length * options.thin
        share = 1.0 if recipe.batch is None else recipe.batch / self.kept.n_rows
        cost = Cost(gradients=share * self.chains * steps, sequential=steps)
        return Chains(fresh, *mixing(fresh), 0, cost)

    def erased(self, made: Chains, warmup: int, before: tuple[str, ...]) -> MethodResult:
        """What a method returns."""
        details = RefitDetails(made.rhat, made.ess, made.divergences, self.chains, warmup, before)
        draws = self.draws.replace(_dealt(made.draws, self.draws))
        diagnostics = Diagnostics(
            ess=_ess(made, draws),
            cost=made.cost,
            rhat=max(made.rhat.values()),
            flaw=_diverged(made.divergences) if made.divergences else None,
        )
        return MethodResult(draws, details, diagnostics, samples_anew=True)

    def _own(self, own: OwnSample) -> Chains:
        """Draws of the model's own sampler."""
        fresh = Draws(own.params)
        cost = Cost(gradients=own.gradients, sequential=-(-own.gradients // self.chains))
        return Chains(fresh, *mixing(fresh), own.divergences, cost)

    def _tell(self, done: int, total: int, left: float) -> None:
        if self.problem.report is not None:
            self.problem.report(f"{done / total:.0%} done", left)


def _ess(made: Chains, draws: Draws) -> dict[str, float]:
    """Effective draws of those that are returned: evenly spaced draws of these chains, in chains as long as theirs."""
    if draws.n_chains * draws.n_draws == made.draws.n_chains * made.draws.n_draws:
        return made.ess
    length = draws.n_chains * draws.n_draws // made.draws.n_chains
    chains = jax.tree.map(
        lambda leaf: leaf[: made.draws.n_chains * length].reshape(made.draws.n_chains, length, *leaf.shape[1:]),
        draws.flat(),
    )
    return mixing(Draws(chains))[1]


def _doubt(erased: MethodResult) -> str:
    """What speaks against chains."""
    flaw, rhat = erased.diagnostics.flaw, erased.diagnostics.rhat
    if flaw is not None:
        return flaw.reason
    return f"R̂ was {rhat:.3f}" if rhat is not None and rhat > MOST_RHAT else ""


def _diverged(transitions: int) -> Objection:
    """Divergent transitions: regions that the chains could not enter."""
    return Objection("divergences", f"{transitions} transitions diverged", "use another parametrisation (non-centred).")


def seed_of(key: Key[Array, ""]) -> int:
    """For samplers that are not jax's."""
    return int(jax.random.randint(key, (), 1, 2**31 - 1))


def _dealt(fresh: Draws, like: Draws) -> PyTree:
    """The new draws in the shape of the old ones, chains laid end to end; evenly spaced ones, where there are more."""
    wanted = like.n_chains * like.n_draws
    places = np.linspace(0, fresh.n_chains * fresh.n_draws, wanted, endpoint=False).astype(int)

    def deal(new: Array, old: Array) -> Array:
        return jnp.asarray(new.reshape(-1, *new.shape[2:])[places], old.dtype).reshape(old.shape)

    return jax.tree.map(deal, fresh.params, like.params)
