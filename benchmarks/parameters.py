"""Memory grows as the parameters do, not as their square; and what preconditioning saves conjugate gradients.

One hidden layer, whose width makes 10 to 1,000,000 parameters (`benchmarks/wide.py` has the network, and how its
posterior is drawn from), 64 rows of which 4 are removed, 32 draws; gradients and curvatures over 4 of them. From
10,000 parameters on every figure is taken in a process of its own: the input first, then a run that compiles, then the
one that counts. Memory is the peak of that run above what was held before it, the process's own. On a GPU it is the
device's, whose peak cannot be set back: there making the input, and the run that compiles, count too. Seconds are of
that one run, whatever else the machine did, and tell orders of magnitude only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

import posterase as pe
from benchmarks.harness import once, write_whole
from benchmarks.memory import status
from posterase.experiments.machine import machine
from posterase.runtime.files import written_whole

SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000)
"""9 W + 1 each, for a width W."""
DRAWS, SAMPLES, DENSE_UP_TO, APART_FROM = 32, 4, 2000, 10_000
METHODS: dict[str, pe.Method] = {
    "Reweight": pe.Reweight(),
    "InfluenceShift": pe.InfluenceShift(solver=pe.CG(), samples=SAMPLES),
    "Transport": pe.Transport(samples=SAMPLES),
}
PRECONDITIONERS: dict[str, pe.NoPreconditioner | pe.DiagonalPreconditioner | pe.NystromPreconditioner] = {
    "none": pe.NoPreconditioner(),
    "diagonal": pe.DiagonalPreconditioner(),
    "Nyström, 16": pe.NystromPreconditioner(rank=16),
}
DOCS = Path(__file__).parent.parent / "docs"


def erased(parameters: int, name: str) -> dict[str, float]:
    """Seconds of a second run, megabytes at most above what was held before it."""
    from benchmarks.wide import make

    problem = make(parameters, DRAWS)
    change = problem.model.change(remove=problem.rows)

    def run() -> pe.Draws:
        return METHODS[name](0, problem.model, problem.draws, change).draws

    once(run)
    gc.collect()
    before = held_before()
    seconds = once(run)
    return {"seconds": seconds, "megabytes": peak() - before}


def held_before() -> float:
    """Megabytes held now; the peak is counted from here on."""
    stats = jax.devices()[0].memory_stats()
    if stats:
        return float(stats["bytes_in_use"]) / 2**20
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed goes back, and is counted where it is taken again
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak() -> float:
    stats = jax.devices()[0].memory_stats()
    return float(stats["peak_bytes_in_use"]) / 2**20 if stats else status("VmHWM")


def iterations(parameters: int) -> dict[str, Any]:
    """Of conjugate gradients with each preconditioner; and what the compiled programs set aside."""
    from benchmarks.wide import make, programs

    problem = make(parameters, DRAWS)
    change = problem.model.change(remove=problem.rows)
    found = {}
    for name, preconditioner in PRECONDITIONERS.items():
        method = pe.InfluenceShift(solver=pe.CG(preconditioner=preconditioner), samples=SAMPLES, weigh=False)
        solved = method(0, problem.model, problem.draws, change).details.solved
        found[name] = {"iterations": int(solved.iterations), "products": int(solved.products)}
    return {"solvers": found, "temporary": programs(problem, SAMPLES)}


def everything(parameters: int) -> dict[str, Any]:
    return iterations(parameters) | {name: erased(parameters, name) for name in METHODS}


def apart(call: str) -> Any:
    """What a call of this module returns, made in a process of its own."""
    code = f"import json; from benchmarks import parameters; print(json.dumps(parameters.{call}))"
    own = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own)
    return json.loads(done.stdout.splitlines()[-1])


def per_number(size: int, megabytes: float) -> float:
    return megabytes * 2**20 / (size * DRAWS)


def tables(found: dict[int, dict[str, Any]]) -> Iterator[str]:
    yield "## Methods\n\n| parameters | " + " | ".join(f"{name}: seconds | MB | B" for name in METHODS) + " |"
    yield "|---|" + "---|" * 3 * len(METHODS)
    for size, all_of in found.items():
        cells = []
        for name in METHODS:
            one = all_of[name]
            each = per_number(size, one["megabytes"])
            memory = f"{one['megabytes']:,.0f} | {each:.0f}" if size >= APART_FROM else "|"
            cells.append(f"{one['seconds']:{'.2g' if one['seconds'] < 10 else '.0f'}} | {memory}")
        yield f"| {size:,} | " + " | ".join(cells) + " |"
    yield (
        f"\nB: bytes for each number of the draws, which have 4 themselves; below {APART_FROM:,} parameters the "
        "interpreter's own come and go by more.\n"
    )
    yield "## Compiled programs\n\nBytes set aside for each parameter, by XLA's own memory analysis.\n"
    names = list(next(iter(found.values()))["temporary"])
    yield "| parameters | " + " | ".join(names) + " | a matrix of parameters × parameters |"
    yield "|---|" + "---|" * (len(names) + 1)
    for size, all_of in found.items():
        cells = [f"{all_of['temporary'][name] / size:,.0f}" for name in names]
        yield f"| {size:,} | " + " | ".join(cells) + f" | {4 * size:,} |"
    yield (
        f"\nPast {DENSE_UP_TO:,} parameters none of them holds such a matrix: each sets aside less than one takes.\n\n"
        "## Conjugate gradients\n\nSteps to a residual of 1e-5, and in brackets all products H v, with those that a "
        "preconditioner and the last check of the residual take.\n"
    )
    yield "| parameters | " + " | ".join(PRECONDITIONERS) + " |"
    yield "|---|" + "---|" * len(PRECONDITIONERS)
    for size, all_of in found.items():
        cells = [f"{one['iterations']} ({one['products']})" for one in all_of["solvers"].values()]
        yield f"| {size:,} | " + " | ".join(cells) + " |"


def checked(found: dict[int, dict[str, Any]]) -> None:
    for size, all_of in found.items():
        if size > DENSE_UP_TO:
            most = max(all_of["temporary"].values())
            assert most < 4 * size**2, f"{size:,} parameters: a program sets aside {most:,} bytes"


def draw(found: dict[int, dict[str, Any]], target: Path) -> None:
    from posterase.plotting.figures import BLACK, GREEN, GREY, SKY, VERMILION, new_figure

    figure = new_figure(9.6, 3.8)
    memory, steps = figure.subplots(1, 2)
    sizes = list(found)
    large = [size for size in sizes if size >= APART_FROM]
    for name, colour, mark in zip(METHODS, (SKY, VERMILION, GREEN), "os^", strict=True):
        values = [found[size][name]["megabytes"] for size in large]
        memory.plot(large, values, color=colour, marker=mark, ms=4, label=name)
    memory.plot(large, [size * DRAWS * 4 / 2**20 for size in large], color=GREY, ls=":", label="the draws themselves")
    square = [size for size in sizes if 1000 <= size <= 100_000]
    memory.plot(square, [size**2 * 4 / 2**20 for size in square], color=BLACK, ls="--", lw=1, label="a d × d matrix")
    memory.set(xscale="log", yscale="log", xlabel="parameters d", ylabel="MB above the input")
    for (name, colour), mark in zip(
        zip(PRECONDITIONERS, (GREY, VERMILION, SKY), strict=True), ("o", "s", "^"), strict=True
    ):
        counts = [found[size]["solvers"][name]["iterations"] for size in sizes]
        steps.plot(sizes, counts, color=colour, marker=mark, ms=4, label=name)
    steps.set(xscale="log", xlabel="parameters d", ylabel="steps of conjugate gradients", ylim=(0, None))
    memory.legend(fontsize=8, frameon=False)
    steps.legend(fontsize=8, frameon=False, title="preconditioner", title_fontsize=8)
    for axis in (memory, steps):
        axis.spines[["top", "right"]].set_visible(False)
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as beside:
        figure.savefig(beside)


def run(sizes: Sequence[int] = ()) -> Iterator[str]:
    platform = jax.default_backend()
    stem = "parameters" if platform == "cpu" else f"parameters-{platform}"
    found: dict[int, dict[str, Any]] = {}
    for size in sizes or SIZES:
        if size < APART_FROM:
            found[size] = apart(f"everything({size})")
        else:
            found[size] = apart(f"iterations({size})") | {name: apart(f"erased({size}, {name!r})") for name in METHODS}
        yield f"{size:,} parameters: " + ", ".join(
            f"{name} {found[size][name]['seconds']:.2g} s, {found[size][name]['megabytes']:.0f} MB" for name in METHODS
        )
    checked(found)
    yield from write(found, stem)


def write(found: dict[int, dict[str, Any]], stem: str) -> list[str]:
    """The page, its figure and its numbers; the lines of the page's tables."""
    lines = list(tables(found))
    draw(found, DOCS / "figures" / f"{stem}.svg")
    title = "Parameters" if stem == "parameters" else "Parameters, on a GPU"
    text = (
        f"# {title}\n\nFrom `python -m benchmarks parameters`: {machine()}.\n\n{__doc__}\n"
        f"![Memory and steps of conjugate gradients against parameters](../figures/{stem}.svg)\n\n"
    )
    write_whole(DOCS / "results" / f"{stem}.md", text + "\n".join(lines) + "\n")
    write_whole(DOCS / "results" / f"{stem}.json", json.dumps({"machine": machine(), "sizes": found}, indent=1) + "\n")
    return lines
