"""A refit from a warm start against a cold one, on the same kept posteriors: gradients per effective draw.

Warm: chains start from `Transport`'s weighted draws, with their covariance as the metric, and adapt only the step size.
Cold: from the same draws, with a warm-up of 500 steps that adapts a diagonal metric and the step size. Gradients are
all that a refit takes, warm-up included, and a second run where the first did not pass; effective draws are ArviZ's
bulk ESS of the worst parameter. Seeds differ in everything that is random after the draws of all rows. The error of a
ratio is from its logarithms over seeds, as a standard error of their mean. "From the draws of all rows": warm refits
that start from the draws that went in, as where nothing else was tried.

posteriordb's posteriors are computed in float64, as in [real posteriors](posteriors.md).

"Per step": gradients of a warm refit per step of a chain, and as a multiple of d¼, with d parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import posterase as pe
from benchmarks.harness import write_whole
from benchmarks.problems import PROBLEMS
from posterase.experiments.machine import machine
from posterase.experiments.posteriors import POSTERIORS, arguments, reference_draws
from posterase.methods.base import Problem, run_method
from posterase.numerics.cost import refit_transitions

SEEDS, CHAINS, DRAWS = 4, 4, 1000
FOLDER = Path(__file__).parent.parent / "tests" / "posteriordb"
TARGET = Path(__file__).parent.parent / "docs" / "results" / "warm-refit.md"
WANTED = 0.6
"""A warm refit may take this share of a cold one's gradients per effective draw."""


class Request(NamedTuple):
    """A model, draws of its posterior, and rows to remove."""

    name: str
    removed: str
    model: Any
    draws: pe.Draws
    rows: Any
    is_wide: bool = False
    """Whether it is computed in float64."""


class Row(NamedTuple):
    """What refits took, an entry per seed."""

    request: Request
    parameters: int
    warm: list[float]
    """Gradients per effective draw."""
    cold: list[float]
    unmoved: list[float]
    """The same of warm refits from the draws of all rows."""
    steps: float
    """Gradients of a warm refit per step of a chain."""
    again: int
    """Warm refits that were run again, of all."""
    rhat: float
    """The worst of warm refits."""


def requests() -> Iterator[Request]:
    for make in PROBLEMS:
        problem = make()
        draws = pe.nuts(0, problem.model, problem.initial, DRAWS, warmup=1000).draws
        for told, rows in list(problem.requests.items())[-2:]:
            yield Request(problem.name, told, problem.model, draws, rows)
    for posterior in POSTERIORS:
        if not posterior.data:
            continue  # the hierarchy, which is among the problems
        data = arguments(posterior, FOLDER)
        with jax.enable_x64(True):
            given = reference_draws(posterior, FOLDER)
            model, some = pe.from_numpyro(posterior.model, draws=given, shared=posterior.shared, **data)
            initial = jax.tree.map(lambda leaf: leaf[:CHAINS, 0], some.params)
            draws = pe.nuts(0, model, initial, DRAWS, warmup=1000, target_acceptance=0.95).draws
        fifth = np.random.default_rng(0).permutation(model.n_rows)[: max(1, model.n_rows // 5)]
        for told, rows in [(posterior.told, posterior.group(data)), ("a fifth at random", np.sort(fifth))]:
            yield Request(posterior.name.split("-")[0], told, model, draws, rows, True)


def measure(request: Request) -> Row:
    model, draws = request.model, request.draws
    change = model.change(remove=request.rows)
    found: dict[str, list[float]] = {"warm": [], "cold": [], "unmoved": []}
    steps, again, rhat = [], 0, 1.0
    for seed in range(SEEDS):
        key = jax.random.key(seed)
        moved = pe.Transport()(key, model, draws, change).draws
        for name, method, start in [
            ("warm", pe.Refit(), moved),
            ("cold", pe.Refit(warm=0), moved),
            ("unmoved", pe.Refit(), draws),
        ]:
            made = run_method(method, Problem(key, model, draws, change, near=start))
            found[name].append(made.diagnostics.cost.gradients / min(made.diagnostics.ess.values()))
            if name == "warm":
                steps.append(made.diagnostics.cost.gradients / refit_transitions(CHAINS, draws.n_draws, is_warm=True))
                again += bool(made.details.before)
                rhat = max(rhat, *made.details.rhat.values())
    parameters = sum(int(np.prod(leaf.shape[2:])) for leaf in jax.tree.leaves(draws.params))
    return Row(request, parameters, **found, steps=float(np.mean(steps)), again=again, rhat=rhat)


def ratio(one: list[float], other: list[float]) -> tuple[float, float]:
    """Geometric mean of ratios, and its standard error."""
    logs = np.log(one) - np.log(other)
    mean = float(np.exp(logs.mean()))
    return mean, mean * float(logs.std(ddof=1) / np.sqrt(len(logs)))


HEAD = (
    "| posterior | removed | parameters | warm | cold | warm / cold | from the draws of all rows / cold | per step "
    "| R̂ | run again |\n|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    warm, cold = (float(np.mean(each)) for each in (row.warm, row.cold))
    ratios = [ratio(each, row.cold) for each in (row.warm, row.unmoved)]
    shown = " | ".join(f"{value:.2f} ± {error:.2f}" for value, error in ratios)
    per_step = f"{row.steps:.1f} = {row.steps / row.parameters**0.25:.1f} d¼"
    return (
        f"| {row.request.name} | {row.request.removed} | {row.parameters} | {warm:.1f} | {cold:.1f} | {shown} "
        f"| {per_step} | {row.rhat:.3f} | {row.again} of {SEEDS} |"
    )


def summary(rows: list[Row]) -> str:
    values = [ratio(row.warm, row.cold)[0] for row in rows]
    unmoved = [ratio(row.unmoved, row.cold)[0] for row in rows]
    met = sum(value <= WANTED for value in values)
    growth = [row.steps / row.parameters**0.25 for row in rows]
    return (
        f"A warm refit takes {np.median(values):.2f} of a cold one's gradients per effective draw in the median over "
        f"{len(rows)} requests ({min(values):.2f} to {max(values):.2f}); at most {WANTED} at {met} of them. From the "
        f"draws of all rows: {np.median(unmoved):.2f} ({min(unmoved):.2f} to {max(unmoved):.2f}). Gradients per step: "
        f"{np.median(growth):.1f} d¼ in the median ({min(growth):.1f} to {max(growth):.1f})."
    )


def run() -> Iterator[str]:
    rows: list[Row] = []
    lines = [HEAD]
    yield HEAD
    for request in requests():
        try:
            with jax.enable_x64(request.is_wide):
                rows.append(measure(request))
        except pe.errors.ImproperPosteriorError:
            continue  # the group has a parameter of its own, with a flat prior
        lines.append(line(rows[-1]))
        write_page(rows, lines)  # as far as the run has come
        yield lines[-1]
        jax.clear_caches()
    yield summary(rows)


def write_page(rows: list[Row], lines: list[str]) -> None:
    intro = f"# Warm refits\n\nFrom `python -m benchmarks warm_refit`: {machine()}.\n\n{__doc__}"
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    write_whole(TARGET, "\n".join([intro, summary(rows), "", *lines]) + "\n")
