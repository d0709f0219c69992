"""The climb: run a method, judge what it returns, make output of it; the refit at last, from the nearest draws."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Array, Key

from posterase.draws.draws import Draws
from posterase.draws.objections import Cause, Objection
from posterase.ladder.output import Attempt, Output, Request, make_output
from posterase.ladder.policy import Policy
from posterase.ladder.result import Expected, MethodOutcome
from posterase.methods.base import Method, MethodResult, Problem, run_method
from posterase.methods.reweight import Reweight
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity
from posterase.numerics.cost import IMBALANCE, Cost, least_refit_gradients, refit_chains
from posterase.numerics.densities import unconstrained
from posterase.numerics.failures import numerical_failure
from posterase.numerics.propriety import Tails, flat_tails
from posterase.numerics.timing import time_gradient
from posterase.numerics.weights import Estimate, base_weights
from posterase.runtime.prng import numbered
from posterase.runtime.progress import approximate
from posterase.sampling.mixing import mixing

MOST_ESS_SHARE = 0.25
"""Where more effective draws are asked for, as a share of all, too few of them do not speak against a metric."""

MOST_EFFICIENCY = 2.0
"""A draw of NUTS is worth no more than so many independent ones."""

MENDED: frozenset[Cause] = frozenset({"divergences", "rhat", "ess"})
"""What moves can mend in chains that ran on the kept rows."""

NOT_COVERED: frozenset[Cause] = frozenset({"drift", "not verified"})
"""How it shows in moved draws that they miss a part of the target."""

OUTPUT = 2**31 - 1
"""What a method's key is folded with for the moves of its output."""

TOO_EXPENSIVE = Objection("cost", "not tried, since a refit costs less", "")


def expect_refit(method: Method, model: AbstractModel, draws: Draws, steps: float = 0.0) -> Expected | None:
    """What a refit would take, from the time of this model's gradient on this machine; None where it does not say.

    `steps` are those of a trajectory of length π/2, where moves of the draws have measured them.
    """
    chains = refit_chains(draws.n_chains, draws.n_draws)
    thetas, like = unconstrained(model, draws)
    gradients = method.expected_gradients(draws, thetas.shape[1], steps)
    if gradients is None:
        return None
    seconds = time_gradient(LogDensity(model), thetas[:chains], like).together
    return Expected(gradients, IMBALANCE * gradients / chains * seconds)


def exceeds_cost_of_refit(tried: list[MethodOutcome], draws: Draws, *, is_warm: bool = False) -> bool:
    """Whether the methods that were not accepted have taken more evaluations than a refit."""
    steps = max((outcome.steps for outcome in tried), default=0.0)
    refit = least_refit_gradients(draws.n_chains, draws.n_draws, steps, is_warm=is_warm)
    return sum(outcome.cost.evaluations for outcome in tried) > refit


class _TooLong(Exception):
    """A refit is estimated to take so many seconds, more than a limit."""


class Climb(NamedTuple):
    """What every method of one erasure is given, and held against."""

    model: AbstractModel
    kept: AbstractModel
    draws: Draws
    change: Change
    policy: Policy
    refits: list[Draws]
    spent: float

    def take(
        self,
        key: Key[Array, ""],
        method: Method,
        tried: list[MethodOutcome],
        doubts: list[Objection],
        show: Callable[[str], None],
    ) -> MethodOutcome:
        """Run a method and judge what it returns."""
        problem = Problem(key, self.model, self.draws, self.change)
        last = next((outcome for outcome in reversed(tried) if TOO_EXPENSIVE not in outcome.objections), None)
        warm_start = None if last is None else last.erased
        if method.samples_anew:
            return self._sample_anew(problem, warm_start, method, tried, doubts, show)
        show("")
        return self._judged(
            method, lambda: run_method(method, problem, warm_start), lambda erased: self._judge(key, method, erased)
        )

    def _sample_anew(
        self,
        problem: Problem,
        warm_start: MethodResult | None,
        method: Method,
        tried: list[MethodOutcome],
        doubts: list[Objection],
        show: Callable[[str], None],
    ) -> MethodOutcome:
        """Refit from the nearest draws that there are, unless it is expected to take too long."""
        key, n = problem.key, self.draws.n_chains * self.draws.n_draws
        name = type(method).__name__
        if self.policy.least_ess > MOST_EFFICIENCY * n:
            said = f"it returns {n} draws, as went in, and {self.policy.least_ess:.4g} effective ones are asked for"
            return MethodOutcome(name, None, [Objection("ess", said, "draw more.")], 0.0)
        limit, started = self.policy.refit_seconds, time.perf_counter()
        expected = self.expected(method, tried)
        if expected is not None:
            if limit is not None and expected.seconds > limit:
                return MethodOutcome(name, None, [too_long(expected.seconds, limit)], 0.0, expected=expected)
            show(str(expected))

        def report(what: str, left: float) -> None:
            seconds = time.perf_counter() - started + left
            if limit is not None and seconds > limit:
                raise _TooLong(seconds, limit)
            show(f"{what}, {approximate(left)} left")

        nearest = _nearest(tried, self.draws)
        if not tried:  # doubts led straight here: weights cost next to nothing
            nearest = self._weighted(key)
        attempts: list[MethodOutcome] = []

        def objection(erased: MethodResult) -> str:
            attempts.append(self._judge(numbered(key, len(attempts)), method, erased, nearest))
            # Another metric does not give many more effective draws than there are.
            ignored = "ess" if self.policy.least_ess > n * MOST_ESS_SHARE else ""
            return next((each.reason for each in attempts[-1].objections if each.cause != ignored), "")

        def judge(erased: MethodResult) -> MethodOutcome:
            if not attempts:  # it has not asked
                return self._judge(key, method, erased)
            moves = functools.reduce(Cost.plus, (outcome.moves for outcome in attempts))
            return dataclasses.replace(attempts[-1], moves=moves)

        apart = any(doubt.cause in ("chains", "modes", "labels") for doubt in doubts)
        asked = problem.replace(near=nearest, is_trusted=not apart, objection=objection, report=report)
        return dataclasses.replace(
            self._judged(method, lambda: run_method(method, asked, warm_start), judge), expected=expected
        )

    def _weighted(self, key: Key[Array, ""]) -> Draws:
        """The draws with weights of the kept posterior, where these can be computed."""
        try:
            return run_method(Reweight(), Problem(key, self.model, self.draws, self.change)).draws
        except Exception as error:
            if numerical_failure(error) is None:
                raise
            return self.draws

    def expected(self, method: Method, tried: list[MethodOutcome]) -> Expected | None:
        """What a refit would take; None where nothing is known, or the gradient cannot be evaluated."""
        steps = max((outcome.steps for outcome in tried), default=0.0)
        try:
            return expect_refit(method, self.kept, self.draws, steps)
        except Exception as error:
            if numerical_failure(error) is None:
                raise
            return None

    def _judged(
        self, method: Method, run: Callable[[], MethodResult], judge: Callable[[MethodResult], MethodOutcome]
    ) -> MethodOutcome:
        """Run a method and judge what it returns; what fails in it speaks against it."""
        started = time.perf_counter()
        name, erased = type(method).__name__, None
        try:
            erased = run()
            found = judge(erased)
        except _TooLong as error:
            found = MethodOutcome(name, None, [too_long(*error.args)], 0.0)
        except Exception as error:
            failed = numerical_failure(error)
            if failed is None:
                raise
            found = MethodOutcome(name, erased, [Objection("error", failed.problem, failed.advice)], 0.0)
        return dataclasses.replace(found, seconds=time.perf_counter() - started)

    def _judge(
        self, key: Key[Array, ""], method: Method, erased: MethodResult, near: Draws | None = None
    ) -> MethodOutcome:
        """What a method returned, made into output, or what speaks against it.

        Chains that ran on the kept rows and diverged, disagree or remember too much are moved, which may mend them and
        tells whether it did.
        """
        objections = self.policy.objections(erased)
        must_move = method.samples_anew and bool(objections) and {each.cause for each in objections} <= MENDED
        if objections and not must_move:
            return self._outcome(method, erased, objections)
        tails = self._tails(erased.draws)
        if tails.flat:
            return self._outcome(method, erased, [_improper(tails.flat)])
        made = self._output(key, method, erased, must_move, near)
        if isinstance(made.result, Objection):
            if tails.distant and made.result.cause in NOT_COVERED:  # the cause of it
                objections = [_distant(tails.distant)]
            return self._outcome(method, erased, objections or [made.result], made)
        output, diagnostics = made.result, erased.diagnostics
        if method.samples_anew and output.is_verified:
            diagnostics = dataclasses.replace(diagnostics, rhat=_worst_rhat(output.draws), flaw=None, ess=output.ess)
        if output.is_repaired:  # weights did not know of what the moves have mended
            diagnostics = dataclasses.replace(diagnostics, epsilon=None)
        erased = dataclasses.replace(erased, diagnostics=diagnostics)
        objections = self.policy.objections(erased)
        if not method.samples_anew:
            objections = (
                self.policy.too_few(output.ess)
                or objections
                or self._too_much(self.policy.spends(erased, output.missed))
            )
        if tails.distant and not objections and (distant := self._tails(output.draws).distant):
            objections = [_distant(distant)]
        return self._outcome(method, erased, objections, made)

    def _outcome(
        self, method: Method, erased: MethodResult, objections: list[Objection], made: Attempt | None = None
    ) -> MethodOutcome:
        output = made.result if made is not None and isinstance(made.result, Output) else None
        return MethodOutcome(
            name=type(method).__name__,
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
        self, key: Key[Array, ""], method: Method, erased: MethodResult, must_move: bool, near: Draws | None
    ) -> Attempt:
        """Draws that may leave memory, or what speaks against them."""
        request = Request(self.model, self.kept, self.change, self.policy, self.draws, near)
        return make_output(numbered(key, OUTPUT), method, erased, request, must_move=must_move)

    def _tails(self, draws: Draws) -> Tails:
        """Where the kept density does not fall off around draws."""
        if not self.kept.has_density:
            return Tails([], [])
        thetas, like = unconstrained(self.kept, draws)
        return flat_tails(LogDensity(self.kept), thetas, base_weights(draws).ravel(), like)


def _nearest(tried: list[MethodOutcome], draws: Draws) -> Draws:
    """The draws that are nearest to the kept posterior: those that were moved last, if any; else the last method's."""
    moved = [outcome.moved for outcome in tried if outcome.moved is not None]
    made = [outcome.erased.draws for outcome in tried if outcome.erased is not None]
    return [draws, *made, *moved][-1]


def too_long(seconds: float, limit: float) -> Objection:
    """A refit that would take longer than the policy allows."""
    said = f"estimated to take {approximate(seconds)}, longer than refit_seconds={limit:g} of the policy"
    return Objection("time", said, "allow it: policy=pe.Policy(refit_seconds=None).")


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


def _jeffreys(erased: MethodResult, refits: list[Draws]) -> Estimate | None:
    """Of the method's draws as they are moved, before weights."""
    log_weights_at, moved = erased.diagnostics.log_weights_at, erased.diagnostics.moved
    if not refits or log_weights_at is None or moved is None:
        return None
    from posterase.metrics.divergence import moved_jeffreys  # imports scipy.stats, which takes a second

    return moved_jeffreys(log_weights_at, moved, refits)
