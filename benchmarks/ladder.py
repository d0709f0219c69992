"""The ladder against NUTS refits, on the same machine and in the same run: errors, evaluations, seconds.

Target: three refits pooled. Floor: a fourth refit against them, which no method can beat but by luck. Errors are root
mean squares over parameters: of means in posterior standard deviations, of log standard deviations. ESS is the bulk ESS
of the worst parameter, by ArviZ's formula. Everything is compiled; seconds are medians. Those of `erase` include the
checks of the input, methods that did not pass, moves and verification. "Warm refit" is `pe.Refit()` from the draws that
went in.

Per effective draw: evaluations (or seconds) per effective draw of a cold refit, divided by the same of `erase`.

On a CPU fewer seconds are saved than evaluations. `erase` has a fixed cost in Python and numpy, 0.05 to 0.1 s for the
input checks, effective sample sizes, the test for drift and the calls of compiled programs, which is as long as tens of
thousands of gradients of a small model. Weights are evaluated in float64, where a density costs about what a gradient
costs NUTS in float32. A GPU waits for the column of sequential steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import posterase as pe
from benchmarks.harness import write_whole
from benchmarks.problems import PROBLEMS, Problem
from posterase.experiments.machine import machine
from posterase.metrics import moment_errors, timed, two_sample
from posterase.sampling.mixing import mixing

WARMUP, DRAWS = 1000, 1000
WARM = "warm refit"
METHODS: dict[str, pe.Method] = {
    "Reweight": pe.Reweight(),
    "InfluenceShift": pe.InfluenceShift(samples=100),
    "Transport": pe.Transport(),
    "Rejuvenate": pe.Rejuvenate(),
    WARM: pe.Refit(),
}
REPEATS = 5
"""Of `erase`, each with its own seed."""
ENOUGH = 8.0
"""An effective draw should cost so many times less than a cold refit's."""
MOST_MOVES = 0.25
"""Moves and verification should cost at most this share of a warm refit."""
TARGET = Path(__file__).parent.parent / "docs" / "results" / "ladder.md"


class Row(NamedTuple):
    """One method on one request."""

    problem: str
    request: str
    method: str
    mean_error: float
    spread: float
    """What the error of means is expected to be by chance, from the effective draws on both sides."""
    sd_error: float
    accuracy: float
    evaluations: float
    sequential: int
    seconds: float
    ess: float
    says: str
    moves: float = 0.0
    """Evaluations that moves and verification took."""


def measured(draws: pe.Draws, target: pe.Draws) -> tuple[float, float, float, float]:
    """Error of means, what it is expected to be, error of log standard deviations, two-sample accuracy."""
    found = moment_errors(draws, target)
    return found.mean, found.mean_chance, found.log_sd, two_sample(0, draws, target).accuracy


def compare(problem: Problem) -> Iterator[Row]:
    model = problem.model
    draws = pe.nuts(0, model, problem.initial, DRAWS, warmup=WARMUP).draws
    for request, rows in problem.requests.items():
        change = model.change(remove=rows)
        kept = model.without(change)
        refits = [pe.nuts(seed, kept, problem.initial, DRAWS, warmup=WARMUP) for seed in (1, 2, 3)]
        target = pe.Draws(
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *(refit.draws.params for refit in refits))
        )
        last, seconds, *_ = timed(lambda: pe.nuts(4, kept, problem.initial, DRAWS, warmup=WARMUP), repeats=1)  # noqa: B023
        found = last.diagnostics
        cost = found.gradients + found.warmup_gradients, found.sequential
        errors, says = measured(last.draws, target), f"R̂ {max(found.rhat.values()):.3f}"
        ess = min(found.ess.values())
        yield Row(problem.name, request, "NUTS refit (floor)", *errors, *cost, seconds, ess, says)
        yield Row(problem.name, request, "untouched", *measured(draws, target), 0, 0, 0.0, least_ess(draws), "")
        for name, method in METHODS.items():
            try:
                erased, seconds, *_ = timed(lambda: method(0, model, draws, change))  # noqa: B023
            except pe.errors.NonFiniteResultError as error:
                nan = float("nan")
                yield Row(problem.name, request, name, nan, nan, nan, nan, 0, 0, 0.0, nan, error.problem)
                continue
            spent = erased.diagnostics.cost
            says = pe.Policy(ess=0.0).brief(erased)
            cost, ess = (spent.evaluations, spent.sequential), min(erased.diagnostics.ess.values())
            yield Row(problem.name, request, name, *measured(erased.draws, target), *cost, seconds, ess, says)
        yield erased_by_ladder(problem, request, draws, target)


def erased_by_ladder(problem: Problem, request: str, draws: pe.Draws, target: pe.Draws) -> Row:
    """What `erase` returns; cost and effective draws are medians over seeds."""
    runs = []
    for seed in range(REPEATS + 1):  # the first one compiles
        started = time.perf_counter()
        result = pe.erase(problem.model, draws, problem.requests[request], random_seed=seed)
        seconds = time.perf_counter() - started
        costs = [outcome.cost for outcome in result.outcomes]
        spent = sum(each.evaluations for each in costs), sum(each.sequential for each in costs)
        moves = sum(outcome.moves.evaluations for outcome in result.outcomes)
        runs.append((*spent, seconds, least_ess(result.draws), moves))
    evaluations, sequential, seconds, ess, moves = map(float, np.median(runs[1:], axis=0))
    cost, errors = (evaluations, int(sequential)), measured(result.draws, target)
    return Row(problem.name, request, "**erase**", *errors, *cost, seconds, ess, str(result.verdict), moves)


def least_ess(draws: pe.Draws) -> float:
    """Bulk ESS of the worst parameter."""
    return min(mixing(draws)[1].values())


HEAD = (
    "| posterior | removed | method | error of means (by chance) | of log sd | two-sample | evaluations | sequential "
    "| seconds | times faster | ESS | says |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row, refit: Row) -> str:
    faster = f"{refit.seconds / row.seconds:.3g}" if row.seconds else ""
    return (
        f"| {row.problem} | {row.request} | {row.method} | {row.mean_error:.3f} ({row.spread:.3f}) "
        f"| {row.sd_error:.3f} | {row.accuracy:.3f} | {row.evaluations:,.0f} | {row.sequential:,} "
        f"| {row.seconds:.3g} | {faster} | {row.ess:.0f} | {row.says.splitlines()[0] if row.says else ''} |"
    )


def summary(rows: list[Row]) -> str:
    refits = {row[:2]: row for row in rows if row.method.startswith("NUTS")}
    warm = {row[:2]: row for row in rows if row.method == WARM}
    erased = [row for row in rows if row.method == "**erase**"]
    cheap = [row for row in erased if "accepted by" in row.says and "by Refit" not in row.says]
    floors = [row for row in erased if row.mean_error > max(refits[row[:2]].mean_error, 2 * row.spread)]
    named = ", ".join(f"{row.problem}, {row.request}" for row in floors) or "none"
    lines = [f"{len(erased)} requests, {len(cheap)} of them accepted by a method before the refit. Of these:", ""]
    for what, of in (("evaluations", "evaluations"), ("seconds", "seconds")):
        ratios = [(getattr(refits[row[:2]], of) / refits[row[:2]].ess) / (getattr(row, of) / row.ess) for row in cheap]
        lines.append(
            f"- per effective draw, {what}: {np.median(ratios):.1f} times cheaper than a cold refit in the median "
            f"(wanted: {ENOUGH:g}; {', '.join(f'{ratio:.1f}' for ratio in ratios)})"
        )
    for what, of in (("evaluations", "evaluations"), ("seconds", "seconds")):
        ratios = [getattr(refits[row[:2]], of) / getattr(row, of) for row in cheap]
        lines.append(
            f"- per request, {what}: {np.median(ratios):.1f} times cheaper than a cold refit in the median "
            f"({min(ratios):.1f} to {max(ratios):.1f})"
        )
    shares = [row.moves / warm[row[:2]].evaluations for row in cheap]
    lines.append(
        f"- moves and verification: {np.median(shares):.2f} of a warm refit's evaluations in the median "
        f"(wanted: {MOST_MOVES:g} at the most; {', '.join(f'{share:.2f}' for share in shares)})"
    )
    waits = [refits[row[:2]].sequential / row.sequential for row in cheap]
    lines.append(f"- sequential steps: {np.median(waits):.0f} times fewer in the median")
    lines += ["", f"Farther from the target than the refit and than twice what chance explains: {named}."]
    return "\n".join(lines)


def run() -> Iterator[str]:
    rows: list[Row] = []
    lines = [HEAD]
    yield HEAD
    for make in PROBLEMS:
        refit: Row | None = None
        for row in compare(make()):
            refit = row if row.method.startswith("NUTS") else refit
            assert refit is not None
            rows.append(row)
            lines.append(line(row, refit))
            yield lines[-1]
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    intro = f"# The ladder against refits\n\nFrom `python -m benchmarks ladder`: {machine()}.\n\n{__doc__}"
    write_whole(TARGET, "\n".join([intro, "", summary(rows), "", *lines]) + "\n")
    yield summary(rows)
