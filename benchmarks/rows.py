"""Cost against the number of rows: logistic regression, 50 parameters, 4 chains of 250 draws, 100 rows removed.

Seconds are of the second run, all compiled; megabytes, on a CPU, are the most that it held beyond data and draws, each
size in a process of its own. Gradients and densities count passes over all rows, one for each draw: what sees removed
rows only counts by its share. A refit is NUTS, 4 chains of 250 draws after a warm-up of 500. What is expected to take
more than a minute is not run: its time grows linearly with the rows, which is an extrapolation, and is called one. The
draws that go in are those of a Gaussian at the mode, with importance weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np

import posterase as pe
from benchmarks.harness import Ratio, once
from benchmarks.scaling import LADDER, Curve, Point, apart, growth, measured, problem, rounded

PARAMETERS, CHAINS, DRAWS, REMOVED, WARMUP = 50, 4, 250, 100, 500
AFFORDABLE = 60.0
"""Seconds that a method may be expected to take; it is run twice."""

REFIT = "NUTS refit"


def default_sizes() -> tuple[int, ...]:
    """What takes some minutes on two cores; a GPU has time for all."""
    return (10_000, 30_000, 100_000) if jax.default_backend() == "cpu" else (10_000, 100_000, 1_000_000, 10_000_000)


def measure(rows: int, methods: Sequence[str]) -> Iterator[Point]:
    """These methods, and a refit if it is among them."""
    model, draws, pareto_k = problem(rows, PARAMETERS, CHAINS, DRAWS)
    change = model.change(remove=np.arange(REMOVED))
    for name in LADDER:
        if name not in methods:
            continue
        point = measured(rows, name, lambda: LADDER[name](0, model, draws, change))  # noqa: B023
        yield point._replace(says=f"{point.says}; draws that went in: k̂ {pareto_k:.2f}")
    if REFIT in methods:
        kept, starts = model.without(change), draws.params[:, 0]
        found: list[pe.NutsSampled] = []

        def run() -> object:
            found.append(pe.nuts(len(found), kept, starts, DRAWS, warmup=WARMUP))
            return found[-1].draws.params

        run()
        seconds, told = once(run), found[-1].diagnostics
        count = float(told.gradients + told.warmup_gradients)
        yield Point(rows, REFIT, seconds, None, count, None, told.sequential, str(told))


def told(points: Sequence[Point]) -> list[str]:
    """What the figures say."""
    grown = {name: growth(points, name, lambda point: point.seconds) for name in LADDER}
    first, last, _ = grown["Reweight"]
    times = ", ".join(
        f"{name} × {ratio:.3g}{'' if end.size == last.size else f' to {end.size:,}'}"
        for name, (_, end, ratio) in grown.items()
    )
    lines = [f"From {first.size:,} to {last.size:,} rows (× {last.size / first.size:.0f}) seconds grow: {times}."]
    n = CHAINS * DRAWS
    moved = grown["Transport"][1]
    lines.append(
        f"`Transport` passed over the data {(moved.densities or 0) / n:.3g} times a draw for densities and "
        f"{(moved.gradients or 0) / n:.3g} times for gradients with {moved.size:,} rows; one look at the weights of "
        "its map is one density a draw."
    )
    refit = next((p for p in points if p.method == REFIT and p.size == last.size), None)
    if refit is not None:
        run = [p for p in points if p.size == last.size and p.method in LADDER and not p.extrapolated]
        at = {p.method: refit.seconds / p.seconds for p in run}
        said = ", ".join(f"{name} {rounded(ratio)}" for name, ratio in at.items())
        which = "an extrapolated refit" if refit.extrapolated else "a refit"
        lines.append(f"Times faster than {which} at {last.size:,} rows: {said}.")
    return lines


def run(sizes: Sequence[int] = ()) -> Iterator[str | Ratio]:
    chosen = sorted(sizes or default_sizes())
    command = " ".join(["python -m benchmarks rows", *(["--sizes", *map(str, chosen)] if sizes else [])])
    curve = Curve("rows", "Rows", __doc__, "rows", command)
    points: list[Point] = []
    last: dict[str, Point] = {}
    for rows in chosen:
        expected = {name: last[name].seconds * rows / last[name].size if last else 0.0 for name in (*LADDER, REFIT)}
        found = apart("rows", rows=rows, methods=[name for name in expected if expected[name] < AFFORDABLE])
        last |= {point.method: point for point in found}
        for name, seconds in expected.items():
            if last[name].size != rows:
                said = f"linear in the rows, from {last[name].size:,}"
                found.append(Point(rows, name, seconds, says=said, extrapolated=True))
        points += found
        curve.write(points, told(points))
        yield from (f"{point.size:,} rows, {point.method}: {point.seconds:.3g} s, {point.says}" for point in found)
    for name in LADDER:
        small, large, _ = growth(points, name, lambda point: point.seconds)
        yield Ratio(f"{name}, {large.size:,} rows / {small.size:,} rows", large.seconds, small.seconds)
