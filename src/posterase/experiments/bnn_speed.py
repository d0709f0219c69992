"""What `python -m benchmarks networks` and `first_step` measured (`--json FILE`), as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from posterase.errors import InputFileError
from posterase.experiments.grids import Grid

Speeds = dict[str, Any]
"""`machine`, and `ratios`: what was compared, and seconds of the first and the second."""

MEASURED = ("speed", "first-step")
"""How names of the files of benchmarks begin, in a folder of results."""

ON_A_GPU = {
    "LeNet: a request, 64 terms, PyTorch": 25.0,
    "CIFAR network: a request, 64 terms, PyTorch": 12.0,
    "LeNet: a step of SGLD, PyTorch": 20.0,
    "CIFAR network: a step of SGLD, PyTorch": 8.0,
}
"""At least so many times faster than PyTorch, which takes one operation after the other."""
CHAINS, MOST_OF_CHAINS = "5 chains / one", 3.0
ON_A_CPU = ("LeNet: a gradient, PyTorch", "LeNet: a Hessian-vector product, PyTorch")
WITHIN = 1.25
"""Of PyTorch's time, on a CPU."""


def read_speeds(folder: Path, beginning: str = "speed") -> list[Speeds]:
    """Of every file in a folder whose name begins so."""
    found = []
    for path in sorted(folder.glob(f"{beginning}*.json")):
        try:
            speeds = json.loads(path.read_text(encoding="utf-8"))
            found.append({"machine": speeds["machine"], "ratios": list(speeds["ratios"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            name = "networks" if beginning == "speed" else "first_step"
            again = f"python -m benchmarks {name} --json {path}"
            raise InputFileError(
                f"{str(path)!r} does not hold a benchmark: {error}.", f"write it again: {again}"
            ) from error
    return found


def speed_grid(speeds: Speeds) -> Grid:
    """Every ratio, and what was wanted of it."""
    on_gpu = "gpu" in speeds["machine"]
    rows = []
    for each in speeds["ratios"]:
        first, second = float(each["first"]), float(each["second"])
        wanted, met = _wanted(each["what"], first / second, on_gpu)
        rows.append((each["what"], _time(first), _time(second), f"{first / second:.3g}", wanted, met))
    columns = ("first / second", "first", "second", "ratio", "wanted", "reached")
    return Grid(speeds["machine"], columns, rows)


def first_step_grid(found: Speeds) -> Grid:
    """Differences of predictions on removed rows, over the floor, without and with the first step."""
    rows = []
    for each in found["ratios"]:
        title, compared = each["what"].split(": ", 1)
        budget, step = compared.split(", alone / after ")
        rows.append((title, budget, step, f"{each['first']:.3f}", f"{each['second']:.3f}"))
    columns = ("block", "budget", "first step, and steps after it", "without it", "with it")
    return Grid(f"Difference on removed rows, over the floor: {found['machine']}", columns, rows)


def _wanted(what: str, ratio: float, on_gpu: bool) -> tuple[str, str]:
    if on_gpu:
        for beginning, least in ON_A_GPU.items():
            if what.startswith(beginning):
                return f"at least {least:g}", _said(ratio >= least)
        if CHAINS in what:
            return f"below {MOST_OF_CHAINS:g}", _said(ratio < MOST_OF_CHAINS)
    elif what.startswith(ON_A_CPU):
        return f"at least {1 / WITHIN:.2g}", _said(ratio >= 1 / WITHIN)
    return "", ""


def _said(reached: bool) -> str:
    return "yes" if reached else "no"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
