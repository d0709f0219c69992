"""Reweight holds nothing of size rows × draws, and its cost does not depend on the rows that are kept.

Peak memory is the process's own, so each size runs in a process of its own: the data first, then one erasure. Linux
only, since it is read from /proc.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import posterase as pe
from benchmarks.harness import Ratio, once

DRAWS, REMOVED, PARAMETERS = 4000, 100, 20
LARGE, SMALL = 1_000_000, 10_000


def status(field: str) -> float:
    """Megabytes of memory held now (`VmRSS`), or at most since the last reset (`VmHWM`)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def measure(rows: int) -> dict[str, float]:
    """Megabytes that an erasure takes beyond the data, and seconds of the second one."""
    from benchmarks.reweight import logistic

    model = logistic(rows, PARAMETERS)
    draws = pe.Draws(np.random.default_rng(1).normal(0, rows**-0.5, (4, DRAWS // 4, PARAMETERS)))
    warm_up = logistic(1000, PARAMETERS)
    pe.Reweight()(
        0, warm_up, draws, warm_up.change(remove=np.arange(REMOVED))
    )  # what compiling takes is not the data's
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    change = model.change(remove=np.arange(REMOVED))
    pe.Reweight()(0, model, draws, change)
    taken = status("VmHWM") - before
    seconds = [once(lambda: pe.Reweight()(0, model, draws, change).draws) for _ in range(5)]
    return {"megabytes": taken, "seconds": float(np.median(seconds))}


def run() -> Iterator[str | Ratio]:
    found = {}
    for rows in (LARGE, SMALL):
        code = f"import json; from benchmarks.memory import measure; print(json.dumps(measure({rows})))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        found[rows] = json.loads(done.stdout)
    large, small = (found[rows]["megabytes"] for rows in (LARGE, SMALL))
    product = LARGE * DRAWS * 8 / 2**20
    yield (
        f"Reweight, {LARGE:,} rows, {DRAWS:,} draws, {REMOVED} removed: {large:.0f} MB above the data (rows × draws "
        f"would be {product:,.0f} MB); {SMALL:,} rows: {small:.0f} MB"
    )
    yield Ratio(f"Reweight, {LARGE:,} rows / {SMALL:,} rows", found[LARGE]["seconds"], found[SMALL]["seconds"])
