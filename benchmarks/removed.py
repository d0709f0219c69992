"""Cost against the number of removed rows: 1 to 10 % of 100,000, logistic regression, 20 parameters, 1,000 draws.

Seconds are of the second run, all compiled. `Reweight` evaluates removed rows only, padded to a power of two, so its
cost should follow them once they outweigh what does not depend on them; the other methods pass over all rows anyway.
What is accepted is another matter: the table says what each method's own diagnostics say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.harness import Ratio
from benchmarks.scaling import LADDER, Curve, Point, apart, growth, measured, problem

ROWS, PARAMETERS, CHAINS, DRAWS = 100_000, 20, 4, 250
SIZES = (1, 10, 100, 1_000, 10_000)


def measure(removed: int) -> Iterator[Point]:
    """Every method."""
    model, draws, _ = problem(ROWS, PARAMETERS, CHAINS, DRAWS)
    change = model.change(remove=np.arange(removed))
    for name, method in LADDER.items():
        yield measured(removed, name, lambda: method(0, model, draws, change))  # noqa: B023


def told(points: Sequence[Point]) -> list[str]:
    """What the figures say."""
    grown = {name: growth(points, name, lambda point: point.seconds) for name in LADDER}
    first, last, _ = grown["Reweight"]
    times = ", ".join(f"{name} × {ratio:.3g}" for name, (_, _, ratio) in grown.items())
    passed = {
        name: max((p.size for p in points if p.method == name and p.says.startswith("passed")), default=0)
        for name in LADDER
    }
    most = ", ".join(f"{name} {size:,}" for name, size in passed.items())
    return [
        f"From {first.size:,} to {last.size:,} removed rows (× {last.size / first.size:.0f}) seconds grow: {times}.",
        f"The most removed rows at which a method's own diagnostics passed: {most}.",
    ]


def run(sizes: Sequence[int] = ()) -> Iterator[str | Ratio]:
    chosen = sorted(sizes or SIZES)
    command = " ".join(["python -m benchmarks removed", *(["--sizes", *map(str, chosen)] if sizes else [])])
    curve = Curve("removed", "Removed rows", __doc__, "removed rows", command)
    points: list[Point] = []
    for removed in chosen:
        found = apart("removed", removed=removed)
        points += found
        curve.write(points, told(points))
        yield from (f"{point.size:,} removed, {point.method}: {point.seconds:.3g} s, {point.says}" for point in found)
    for name in LADDER:
        small, large, _ = growth(points, name, lambda point: point.seconds)
        yield Ratio(f"{name}, {large.size:,} removed / {small.size:,} removed", large.seconds, small.seconds)
