"""What `python -m benchmarks networks --json FILE` measured, as a table with what was wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from posterase.errors import InputFileError
from posterase.experiments.grids import Grid

Speeds = dict[str, Any]
"""`machine`, and `ratios`: what was compared, and seconds of the first and the second."""

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


def read_speeds(folder: Path) -> list[Speeds]:
    """Of every `speed*.json` in a folder."""
    found = []
    for path in sorted(folder.glob("speed*.json")):
        try:
            speeds = json.loads(path.read_text(encoding="utf-8"))
            found.append({"machine": speeds["machine"], "ratios": list(speeds["ratios"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            again = f"python -m benchmarks networks --json {path}"
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
