"""Cost a draw against the number of draws and chains: logistic regression, 2,000 rows, 10 parameters, 10 rows removed.

Methods get one chain of so many draws, from 100 on (the tail of fewer weights cannot be fitted), and (*many chains*)
chains of ten draws each; the draws of `Rejuvenate` are its particles. SGLD runs as many chains as the size says, ten
draws each, ten steps a draw, mini-batches of 100 rows. Seconds are of the second run, all compiled, over all
draws that came out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import posterase as pe
from benchmarks.harness import Ratio, once
from benchmarks.scaling import LADDER, MANY_CHAINS, Curve, Point, apart, growth, measured, problem

ROWS, PARAMETERS, REMOVED, BATCH = 2_000, 10, 10, 100
A_CHAIN, THIN = 10, 10
SIZES = (1, 10, 100, 1_000, 10_000)
FEWEST = 100
"""Draws that an erasure needs."""
SGLD = "SGLD, so many chains"


def measure(size: int) -> Iterator[Point]:
    """Every method at so many draws, in one chain and in many; SGLD with so many chains."""
    if size >= FEWEST:
        for chains, kind in ((1, ""), (size // A_CHAIN, f", {MANY_CHAINS}")):
            model, draws, _ = problem(ROWS, PARAMETERS, chains, size // chains)
            change = model.change(remove=np.arange(REMOVED))
            for name, method in LADDER.items():
                yield measured(size, name + kind, lambda: method(0, model, draws, change))  # noqa: B023
    model, draws, _ = problem(ROWS, PARAMETERS, 1, FEWEST)
    sampler = pe.SGLD(pe.PolynomialSteps(0.1 / ROWS), batch=BATCH)
    initial = np.broadcast_to(np.asarray(draws.params)[0, 0], (size, PARAMETERS))
    state = pe.start_chains(0, model, sampler, initial)

    def run() -> object:
        return pe.sample(model, sampler, state, A_CHAIN, thin=THIN).draws.params

    run()
    steps = size * A_CHAIN * THIN
    yield Point(size, SGLD, once(run), None, steps * BATCH / ROWS, None, A_CHAIN * THIN)


def units(point: Point) -> float:
    """How many draws came out."""
    return point.size * (A_CHAIN if point.method == SGLD else 1)


def told(points: Sequence[Point]) -> list[str]:
    """What the figures say."""
    lines = []
    for name in dict.fromkeys(point.method for point in points):
        small, large, ratio = growth(points, name, lambda point: point.seconds / units(point))
        lines.append(f"{name}: a draw of {large.size:,} takes × {ratio:.3g} what one of {small.size:,} takes.")
    return lines


def run(sizes: Sequence[int] = ()) -> Iterator[str | Ratio]:
    chosen = sorted(sizes or SIZES)
    command = " ".join(["python -m benchmarks draws", *(["--sizes", *map(str, chosen)] if sizes else [])])
    curve = Curve("draws", "Draws and chains", __doc__, "draws, or chains", command, a_unit="draw", units=units)
    points: list[Point] = []
    for size in chosen:
        found = apart("draws", size=size)
        points += found
        curve.write(points, told(points))
        yield from (f"{p.size:,}, {p.method}: {p.seconds / units(p):.3g} s a draw {p.says}" for p in found)
    for name in dict.fromkeys(point.method for point in points):
        small, large, _ = growth(points, name, lambda point: point.seconds)
        what = f"{name}, a draw of {small.size:,} / of {large.size:,}"
        yield Ratio(what, small.seconds / units(small), large.seconds / units(large))
