"""Erasures from posteriors that are known exactly: what was accepted, what was refused, and what was wrong.

From every family's exact posterior come independent draws; rows are removed; what `erase` returns is held against the
exact posterior of the kept rows, and so is an independent refit by NUTS.

*Wrong, strictly*: some parameter's mean is off by more than 4.5 standard errors and more than 0.15 standard deviations,
or its standard deviation by more than 4.5 standard errors and more than 15 %. *Loosely*: any mean, standard deviation,
or probability of lying below the exact 5, 25, 50, 75 or 95 % quantile is off by more than 4.5 standard errors.
Standard errors are those of independent draws from the exact posterior, as many as the effective sample size. Where
moments may not exist, only the probabilities are compared; the strict limits are then what the same shifts and
stretches change them by in a Gaussian. *Needlessly refused*: the input draws were sound, and the posterior exists.

Some input draws are spoiled on purpose: shifted, stretched, repeated, or from stuck chains. The right answer is then a
refusal or a right result, as a refit gives.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from arviz_stats.base import array_stats
from jaxtyping import Float

from posterase.draws.draws import Draws
from posterase.errors import PosteraseError
from posterase.experiments.grids import Grid
from posterase.experiments.trust.exact import PROBABILITIES, Exact, Marginal
from posterase.experiments.trust.families import Data, Family, families
from posterase.ladder.erase import erase
from posterase.ladder.policy import Policy
from posterase.ladder.result import Result
from posterase.runtime.compilation_cache import enable_compilation_cache
from posterase.sampling.nuts import nuts

CHAINS, DRAWS = 4, 1000
WARMUP = 500
"""Of the refits that are compared with."""

FEWEST_OF_A_CHAIN = 50
"""Shorter chains are laid end to end before their effective draws are counted."""

STANDARD_ERRORS, MEAN_SHIFT, SPREAD_RATIO = 4.5, 0.15, 1.15

PROBABILITY_SHIFTS = np.array([0.022, 0.05, 0.06, 0.05, 0.022])
"""At `PROBABILITIES`: what a shift by 0.15 standard deviations, or a stretch by 15 %, makes of a Gaussian."""

SPOILED: dict[str, Callable[[np.random.Generator, dict[str, np.ndarray]], dict[str, np.ndarray]]] = {
    "shifted by 1 sd": lambda random, drawn: {k: x + x.std((0, 1)) for k, x in drawn.items()},
    "1.5 times the spread": lambda random, drawn: {k: _stretched(x, 1.5) for k, x in drawn.items()},
    "1/1.5 of the spread": lambda random, drawn: {k: _stretched(x, 1 / 1.5) for k, x in drawn.items()},
    "100 stuck chains of 40": lambda random, drawn: {k: _stuck(x, 100) for k, x in drawn.items()},
    "1,000 stuck chains of 4": lambda random, drawn: {k: _stuck(x, 1000) for k, x in drawn.items()},
    "250 draws, repeated": lambda random, drawn: {k: _repeated(random, x) for k, x in drawn.items()},
}
"""What is done to draws that a verdict should not trust."""

SPOILED_FAMILIES = "linear regression", "Poisson regression", "uneven spread"


def _stretched(x: Float[np.ndarray, "chain draw ..."], by: float) -> Float[np.ndarray, "chain draw ..."]:
    middle = x.mean((0, 1))
    return middle + by * (x - middle)


def _stuck(x: Float[np.ndarray, "chain draw ..."], chains: int) -> Float[np.ndarray, "chain draw ..."]:
    """Each chain around a draw of its own, with half of the spread."""
    flat = x.reshape(chains, -1, *x.shape[2:])
    return flat[:, :1] + 0.5 * (flat - flat.mean((0, 1)))


def _repeated(random: np.random.Generator, x: Float[np.ndarray, "chain draw ..."]) -> Float[np.ndarray, "..."]:
    flat = x.reshape(-1, *x.shape[2:])
    return flat[np.random.default_rng(0).integers(250, size=len(flat))].reshape(x.shape)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One erasure, and what came of it."""

    family: str
    change: str
    seed: int
    n_removed: int
    spoiled: bool
    method: str
    """That was accepted; empty where the verdict is a refusal."""
    reason: str
    """Of the verdict."""
    strict: str
    """What is strictly wrong with the draws; empty where nothing is."""
    loose: str
    seconds: float
    evaluations: float
    ess: float
    refit_strict: str
    refit_loose: str
    refit_seconds: float
    refit_evaluations: float
    refit_ess: float

    @classmethod
    def from_dict(cls, values: Any) -> Outcome:
        """From plain JSON."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)


class Wrong:
    """What is wrong with draws of a posterior that is known."""

    def __init__(self, draws: Draws, exact: list[Marginal], has_moments: bool):
        self.strict: list[str] = []
        self.loose: list[str] = []
        for marginal in exact:
            index: Any = (..., *marginal.at)
            values = np.asarray(draws.params[marginal.name], np.float64)[index]
            label = f"{marginal.name}{list(marginal.at) if marginal.at else ''}"
            if has_moments:
                self._moments(label, values, marginal)
            self._probabilities(label, values, marginal, strictly=not has_moments)

    def _moments(self, label: str, x: Float[np.ndarray, "chain draw"], exact: Marginal) -> None:
        shift, log_ratio = (x.mean() - exact.mean) / exact.sd, np.log(x.std(ddof=1) / exact.sd)
        if not abs(shift) <= STANDARD_ERRORS / np.sqrt(_ess(x)):
            self._note(f"{label}: mean off by {shift:+.2f} sd", abs(shift) > MEAN_SHIFT)
        if not abs(log_ratio) <= STANDARD_ERRORS * np.sqrt((exact.kurtosis - 1) / 4 / _ess((x - x.mean()) ** 2)):
            much = abs(log_ratio) > np.log(SPREAD_RATIO)
            self._note(f"{label}: {np.exp(log_ratio):.2f} times the standard deviation", much)

    def _probabilities(self, label: str, x: Float[np.ndarray, "chain draw"], exact: Marginal, strictly: bool) -> None:
        for p, quantile, much in zip(PROBABILITIES, exact.quantiles, PROBABILITY_SHIFTS, strict=True):
            below = (x < quantile).astype(float)
            off = below.mean() - p
            if abs(off) > STANDARD_ERRORS * np.sqrt(p * (1 - p) / _ess(below)):
                said = f"{label}: {below.mean():.3f} below the {p:.0%} quantile"
                self._note(said, strictly and abs(off) > much)

    def _note(self, said: str, is_strict: bool) -> None:
        self.loose.append(said)
        if is_strict:
            self.strict.append(said)


def run_family(
    family: Family,
    seeds: Sequence[int],
    policy: Policy,
    *,
    refits: bool = True,
    changes: Sequence[str] | None = None,
    methods: Sequence[str] = (),
) -> Iterator[Outcome]:
    """Erase from posteriors of some data sets of a family: all removals and spoiled draws, or those that are named.

    `methods` are names of registered methods to climb. Default: the ladder of `erase`.
    """
    options = {"policy": policy, "methods": methods or None}
    for seed in seeds:
        random = np.random.default_rng([seed, *family.name.encode()])
        data = family.make(random)
        everything = np.ones(len(data["y"]), bool)
        source = family.posterior(data, everything)
        for change, choose in family.changes.items():
            if changes is not None and change not in changes:
                continue
            yield _outcome(random, family, data, source, change, choose(random, data), seed, options, None, refits)
        if family.name in SPOILED_FAMILIES:
            for spoiled in SPOILED if changes is None else [each for each in SPOILED if each in changes]:
                rows = family.changes["one row"](random, data)
                yield _outcome(random, family, data, source, spoiled, rows, seed, options, spoiled, refits=False)


def _outcome(
    random: np.random.Generator,
    family: Family,
    data: Data,
    source: Exact,
    change: str,
    rows: np.ndarray,
    seed: int,
    options: dict[str, Any],
    spoiled: str | None,
    refits: bool,
) -> Outcome:
    kept = np.ones(len(data["y"]), bool)
    kept[rows] = False
    exact = family.posterior(data, kept).marginals()
    drawn = {
        name: np.asarray(each, np.float32).reshape(CHAINS, DRAWS, *each.shape[1:])
        for name, each in source.sample(random, CHAINS * DRAWS).items()
    }
    if spoiled is not None:
        drawn = SPOILED[spoiled](random, drawn)
    model, draws = family.model(data), Draws(drawn)
    own_seed = int(random.integers(2**31))
    started = time.perf_counter()
    try:
        result: Result | None = erase(model, draws, rows, random_seed=own_seed, **options)
        reason = str(result.verdict) if result is not None else ""
    except PosteraseError as error:
        result, reason = None, f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - started
    accepted = result is not None and result.verdict.accepted
    wrong = Wrong(result.draws, exact, family.has_moments) if accepted and result is not None else None
    taken = sum(outcome.cost.evaluations for outcome in result.outcomes) if result is not None else 0.0
    refit = _refit(random, family, model, draws, rows, exact) if refits else ("", "", 0.0, 0.0, 0.0)
    return Outcome(
        family=family.name,
        change=change,
        seed=seed,
        n_removed=len(rows),
        spoiled=spoiled is not None,
        method=result.verdict.method if accepted and result is not None else "",
        reason=reason,
        strict="; ".join(wrong.strict) if wrong else "",
        loose="; ".join(wrong.loose) if wrong else "",
        seconds=seconds,
        evaluations=float(taken),
        ess=float(result.verdict.ess or 0) if accepted and result is not None else 0.0,
        refit_strict=refit[0],
        refit_loose=refit[1],
        refit_seconds=refit[2],
        refit_evaluations=refit[3],
        refit_ess=refit[4],
    )


def _refit(
    random: np.random.Generator, family: Family, model: Any, draws: Draws, rows: np.ndarray, exact: list[Marginal]
) -> tuple[str, str, float, float, float]:
    """A cold refit, from draws that the request came with: what is wrong with it, its seconds, evaluations and ESS."""
    kept = model.without(model.change(remove=rows))
    places = random.integers(DRAWS, size=CHAINS)
    initial = {name: np.asarray(each)[np.arange(CHAINS), places] for name, each in draws.params.items()}
    started = time.perf_counter()
    try:
        sampled = nuts(int(random.integers(2**31)), kept, initial, DRAWS, warmup=WARMUP)
    except PosteraseError as error:
        said = f"{type(error).__name__}: {error}"
        return said, said, time.perf_counter() - started, 0.0, 0.0
    seconds = time.perf_counter() - started
    wrong, found = Wrong(sampled.draws, exact, family.has_moments), sampled.diagnostics
    gradients = float(found.gradients + found.warmup_gradients)
    return "; ".join(wrong.strict), "; ".join(wrong.loose), seconds, gradients, min(found.ess.values())


def _ess(x: Float[np.ndarray, "chain draw"]) -> float:
    """Effective draws for the mean of these numbers: at most as many as there are."""
    if x.shape[1] < FEWEST_OF_A_CHAIN:
        x = x.reshape(CHAINS, -1)
    found = float(array_stats.ess(x, method="mean")) if np.ptp(x) > 0 else np.nan
    return min(found, x.size) if found > 0 else x.size


SEEDS_AT_ONCE = 3
"""Of a family in one process: programs are compiled once for them."""


def run(
    seeds: Sequence[int],
    names: Sequence[str] = (),
    *,
    jobs: int = 1,
    refits: bool = True,
    methods: Sequence[str] = (),
    done: Sequence[Outcome] = (),
    report: Callable[[str, int, int], None] = lambda what, done, total: None,
    keep: Callable[[list[Outcome]], None] = lambda outcomes: None,
) -> list[Outcome]:
    """Everything, in so many processes side by side, each on a core of its own.

    Parameters
    ----------
    seeds
        Of the data sets of each family.
    names
        Of families; all of them, if none are named.
    jobs
        Processes.
    refits
        Whether each erasure is held beside a refit.
    methods
        Names of registered methods to climb. Default: the ladder of `erase`.
    done
        Outcomes of a run that was cut: what they are of is not run again.
    report, keep
        Called on the way, with what is done so far.
    """
    had = {(each.family, each.seed) for each in done}
    outcomes, tasks = list(done), []
    for family in families():
        if not names or family.name in names:
            left = [seed for seed in seeds if (family.name, seed) not in had]
            tasks += [(family.name, left[at : at + SEEDS_AT_ONCE]) for at in range(0, len(left), SEEDS_AT_ONCE)]
    pool = concurrent.futures.ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), _settle, max_tasks_per_child=1
    )
    with pool:
        running = {pool.submit(_run, name, some, refits, methods): name for name, some in tasks}
        for number, future in enumerate(concurrent.futures.as_completed(running)):
            outcomes += future.result()
            report(running[future], number + 1, len(tasks))
            keep(outcomes)
    order = {family.name: number for number, family in enumerate(families())}
    return sorted(outcomes, key=lambda each: (order[each.family], each.seed))


def _settle() -> None:
    """Prepare a process: one core, so that seconds of an erasure and of a refit can be compared; one shared cache."""
    enable_compilation_cache()
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


def _run(name: str, seeds: Sequence[int], refits: bool, methods: Sequence[str]) -> list[Outcome]:
    family = next(each for each in families() if each.name == name)
    return list(run_family(family, seeds, Policy(), refits=refits, methods=methods))


METHODS = "Reweight", "Transport", "Rejuvenate", "Refit"


def tables(outcomes: Sequence[Outcome]) -> list[Grid]:
    """By family, and by what was removed."""
    methods = [*METHODS, *sorted({each.method for each in outcomes if each.method} - set(METHODS))]
    columns = (
        *("", "erasures", *methods, "refused", "wrong, strictly", "wrong, loosely", "needlessly refused"),
        *("refit: strictly", "refit: loosely", "seconds, of a refit's"),
    )
    names = [family.name for family in families()]
    sound = [each for each in outcomes if not each.spoiled]
    spoiled = [each for each in outcomes if each.spoiled]
    by_family = [_row(name, [each for each in sound if each.family == name], methods) for name in names]
    changes = dict.fromkeys(each.change for each in sound)
    by_removal = [_row(name, [each for each in sound if each.change == name], methods) for name in changes]
    faults = dict.fromkeys(each.change for each in spoiled)
    by_fault = [_row(name, [each for each in spoiled if each.change == name], methods) for name in faults]
    return [
        Grid("By family", columns, [row for row in by_family if row[1] != "0"] + [_row("all", sound, methods)]),
        Grid("By what is removed", columns, by_removal),
        Grid("Draws spoiled on purpose, one row removed", columns, by_fault),
    ]


def _row(name: str, some: Sequence[Outcome], methods: Sequence[str]) -> tuple[str, ...]:
    refits = [each for each in some if each.refit_seconds]
    ratios = [each.seconds / each.refit_seconds for each in refits]
    counts = [
        *(sum(each.method == method for each in some) for method in methods),
        sum(not each.method for each in some),
        sum(bool(each.strict) for each in some),
        sum(bool(each.loose) for each in some),
        sum(not each.method and not each.spoiled for each in some),
    ]
    of_refits = [sum(bool(each.refit_strict) for each in refits), sum(bool(each.refit_loose) for each in refits)]
    compared = (*map(str, of_refits), f"{np.median(ratios):.2f}") if refits else ("–", "–", "–")
    return name, str(len(some)), *map(str, counts), *compared


def summary(outcomes: Sequence[Outcome]) -> str:
    """What matters most, in a few sentences."""
    sound = [each for each in outcomes if not each.spoiled]
    refits = [each for each in sound if each.refit_seconds]
    accepted = [each for each in sound if each.method]
    cheap = [each for each in refits if each.method and each.method != "Refit" and each.refit_ess]

    def share(some: Sequence[bool], of: Sequence[Any]) -> str:
        return f"{sum(some)} of {len(of)} ({sum(some) / max(len(of), 1):.1%})"

    lines = [
        f"{len(sound)} erasures, families: {len({each.family for each in sound})}. Accepted: {len(accepted)}. "
        f"Wrong, strictly: {share([bool(each.strict) for each in accepted], accepted)}; "
        f"loosely: {share([bool(each.loose) for each in accepted], accepted)}. "
        f"Needlessly refused: {share([not each.method for each in sound], sound)}."
    ]
    if refits:
        lines.append(
            f"Independent refits of the same cases: wrong, strictly, "
            f"{share([bool(each.refit_strict) for each in refits], refits)}; "
            f"loosely, {share([bool(each.refit_loose) for each in refits], refits)}."
        )
    if cheap:
        evaluations = [
            (each.refit_evaluations / each.refit_ess) / (each.evaluations / each.ess) for each in cheap if each.ess
        ]
        seconds = [(each.refit_seconds / each.refit_ess) / (each.seconds / each.ess) for each in cheap if each.ess]
        lines.append(
            f"Where a method before the refit was accepted, an effective draw took {np.median(evaluations):.1f} times "
            f"fewer evaluations than a cold refit's in the median, and {np.median(seconds):.1f} times less time."
        )
    spoiled = [each for each in outcomes if each.spoiled]
    if spoiled:
        wrong = sum(bool(each.strict) for each in spoiled)
        refused = sum(not each.method for each in spoiled)
        refitted = sum(each.method == "Refit" for each in spoiled)
        lines.append(
            f"Of {len(spoiled)} requests with spoiled draws {refused} were refused and {refitted} refitted; "
            f"{wrong} answers were wrong."
        )
    return "\n\n".join(lines)


def wrong_ones(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each erasure that was strictly wrong, or needlessly refused."""
    lines = []
    for each in outcomes:
        where = f"{each.family}, {each.change} ({each.n_removed} rows), seed {each.seed}"
        if each.strict:
            lines.append(f"{where}: {each.method} wrong: {each.strict}")
        elif not each.method and not each.spoiled:
            lines.append(f"{where}: {each.reason.splitlines()[0]}")
    return lines
