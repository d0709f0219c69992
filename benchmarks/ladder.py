"""The ladder against NUTS refits, on the same machine and in the same run: errors, evaluations, seconds.

Target: three refits pooled. Floor: a fourth refit against them, which no method can beat but by luck. Errors are root
mean squares over parameters: of means in posterior standard deviations, of log standard deviations. Seconds are of the
second run, with everything compiled, and for `erase` of the whole climb, rungs that did not pass included.

On a CPU seconds are saved less than evaluations are: weights are evaluated in float64, where a density costs about
what a gradient costs NUTS in float32, and `Transport` needs two for every draw, however few gradients NUTS needs for
one. What a GPU waits for is the column of sequential steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import posterase as pe
from benchmarks.harness import write_whole
from benchmarks.problems import PROBLEMS, Problem
from posterase.assess import moment_errors, timed, two_sample
from posterase.experiments.machine import machine

WARMUP, DRAWS = 1000, 1000
ERASERS: dict[str, pe.Eraser] = {
    "Reweight": pe.Reweight(),
    "InfluenceShift": pe.InfluenceShift(samples=100),
    "Transport": pe.Transport(),
    "Rejuvenate": pe.Rejuvenate(),
}
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
    says: str


def measured(draws: pe.Draws, target: pe.Draws) -> tuple[float, float, float, float]:
    """Error of means, what it is expected to be, error of log standard deviations, two-sample accuracy."""
    found = moment_errors(draws, target)
    return found.mean, found.mean_chance, found.log_sd, two_sample(0, draws, target).accuracy


def compare(problem: Problem) -> Iterator[Row]:
    model = problem.model
    draws = pe.nuts(0, model, problem.initial, DRAWS, warmup=WARMUP).draws
    for request, rows in problem.requests.items():
        removal = model.removal(rows)
        kept = model.without(removal)
        refits = [pe.nuts(seed, kept, problem.initial, DRAWS, warmup=WARMUP) for seed in (1, 2, 3)]
        target = pe.Draws(
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *(refit.draws.params for refit in refits))
        )
        last, seconds, *_ = timed(lambda: pe.nuts(4, kept, problem.initial, DRAWS, warmup=WARMUP), repeats=1)  # noqa: B023
        found = last.diagnostics
        cost = found.gradients + found.warmup_gradients, found.sequential
        says = f"R̂ {max(found.rhat.values()):.3f}"
        yield Row(problem.name, request, "NUTS refit (floor)", *measured(last.draws, target), *cost, seconds, says)
        yield Row(problem.name, request, "untouched", *measured(draws, target), 0, 0, 0.0, "")
        for name, eraser in ERASERS.items():
            try:
                erased, seconds, *_ = timed(lambda: eraser(0, model, draws, removal))  # noqa: B023
            except pe.errors.NonFiniteResultError as error:
                nan = float("nan")
                yield Row(problem.name, request, name, nan, nan, nan, nan, 0, 0, 0.0, error.problem)
                continue
            spent = erased.evidence.cost
            figures = spent.evaluations, spent.sequential, seconds, pe.Policy(ess=0.0).brief(erased)
            yield Row(problem.name, request, name, *measured(erased.draws, target), *figures)
        result, seconds, *_ = timed(lambda: pe.erase(model, draws, rows, policy=pe.Policy(refit=True)))  # noqa: B023
        costs = [rung.cost for rung in result.rungs]
        figures = sum(c.evaluations for c in costs), sum(c.sequential for c in costs), seconds, str(result.verdict)
        yield Row(problem.name, request, "**erase**", *measured(result.draws, target), *figures)


HEAD = (
    "| posterior | removed | method | error of means (by chance) | of log sd | two-sample | evaluations | sequential "
    "| seconds | times faster | says |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row, refit: Row) -> str:
    faster = f"{refit.seconds / row.seconds:.3g}" if row.seconds else ""
    return (
        f"| {row.problem} | {row.request} | {row.method} | {row.mean_error:.3f} ({row.spread:.3f}) "
        f"| {row.sd_error:.3f} | {row.accuracy:.3f} | {row.evaluations:,.0f} | {row.sequential:,} "
        f"| {row.seconds:.3g} | {faster} | {row.says.splitlines()[0] if row.says else ''} |"
    )


def summary(rows: list[Row]) -> str:
    refits = {row[:2]: row for row in rows if row.method.startswith("NUTS")}
    erased = [row for row in rows if row.method == "**erase**"]
    faster = [refits[row[:2]].seconds / row.seconds for row in erased]
    fewer = [refits[row[:2]].evaluations / row.evaluations for row in erased]
    waits = [refits[row[:2]].sequential / row.sequential for row in erased]
    light = [
        f"{ratio:.0f}"
        for row, ratio in zip(erased, fewer, strict=True)
        if "by Reweight" in row.says or "by Transport" in row.says
    ]
    floors = [row for row in erased if row.mean_error > max(refits[row[:2]].mean_error, 2 * row.spread)]
    named = ", ".join(f"{row.problem}, {row.request}" for row in floors) or "none"
    seconds = f"{np.median(faster):.0f} times faster in the median ({min(faster):.1f} to {max(faster):.0f})"
    evaluations = f"{np.median(fewer):.0f} times fewer evaluations ({min(fewer):.0f} to {max(fewer):.0f})"
    return (
        f"`erase` against a refit, over {len(erased)} requests: {seconds}, {evaluations}, {np.median(waits):.0f} times "
        f"fewer sequential steps. Where `Reweight` or `Transport` was accepted, evaluations were fewer by "
        f"{', '.join(light)}. Accepted and farther from the target than the refit and than twice what chance explains: "
        f"{named}."
    )


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
    write_whole(TARGET, "\n".join([intro, summary(rows), "", *lines]) + "\n")
    yield summary(rows)
