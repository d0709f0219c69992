"""One erasure, and one run of many chains, over 1, 2, 4 and 8 devices, and over two processes.

A device is one thread of a CPU here (`--xla_force_host_platform_device_count`, with XLA's own threads switched off), so
that as many devices as there are cores are that much more of a machine; those beyond it only share them. Every figure
is of a process of its own (or of two), the second run, all compiled; what takes minutes is given up. Efficiency is the
seconds of one device over those of n, divided by n, or by the cores where these are fewer.

What does not get faster with devices is what runs on the host (smoothing weights, fitting maps, effective draws), what
every device does for itself, and what they wait for each other for: of T(n) = a + b/n the share a/(a + b), fitted to
as many devices as there are cores.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import Ratio, once, write_whole
from posterase.experiments.machine import machine
from posterase.runtime.sharding import COORDINATOR, PROCESS, PROCESSES

ROWS, PARAMETERS, DRAWS, CHAINS, REMOVED, STEPS = 200_000, 20, 1000, 64, 100, 400
COUNTS = (1, 2, 4, 8)
REPEATS = 3
PATIENCE = 200.0
"""Seconds after which a mesh is given up, and has no figures."""
RESULTS = Path(__file__).parent.parent / "docs" / "results"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


class Point(NamedTuple):
    """One mesh."""

    chains: int
    rows: int
    processes: int
    transport: float
    """Seconds of `Transport`."""
    sgld: float
    """Seconds of SGLD chains that see all rows."""

    @property
    def devices(self) -> int:
        return self.chains * self.rows


def measure(chains: int, rows: int) -> tuple[float, float]:
    """Seconds of an erasure, and of a run of chains, over a mesh; in the process that this is called in."""
    import posterase as pe
    from benchmarks.scaling import logistic

    pe.join_processes()
    model = logistic(ROWS, PARAMETERS)
    rng = np.random.default_rng(1)
    draws = pe.Draws(rng.normal(0, 4 * ROWS**-0.5, (4, DRAWS // 4, PARAMETERS)).astype(np.float32))
    change = model.change(remove=np.arange(REMOVED))
    sampler = pe.SGLD(pe.PolynomialSteps(1e-7, 1.0, 0.55))
    mesh = pe.mesh(chains=chains, rows=rows)
    state = pe.start_chains(0, model, sampler, rng.normal(0, 0.01, (CHAINS, PARAMETERS)).astype(np.float32))
    transport = pe.Transport(refinements=0, split=False)
    runs = [
        lambda: transport(0, model, draws, change, mesh=mesh).draws.params,
        lambda: pe.sample(model, sampler, state, 1, thin=STEPS, mesh=mesh).draws.params,
    ]
    for run in runs:
        once(run)
    transported, sampled = (float(np.median([once(run) for _ in range(REPEATS)])) for run in runs)
    return transported, sampled


def started(chains: int, rows: int, processes: int) -> Point:
    """The same from processes of their own."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    code = f"import json; from benchmarks.devices import measure; print(json.dumps(measure({chains}, {rows})))"
    flags = f"--xla_force_host_platform_device_count={chains * rows // processes} {ONE_THREAD}"
    own = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    several = {COORDINATOR: address, PROCESSES: str(processes)} if processes > 1 else {}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=own | several | ({PROCESS: str(i)} if several else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE)[0] for process in running]
    except subprocess.TimeoutExpired:
        for process in running:
            process.kill()
        return Point(chains, rows, processes, float("nan"), float("nan"))
    if any(process.returncode for process in running):
        raise RuntimeError(f"{chains} × {rows} on {processes} process(es) failed: see above.")
    return Point(chains, rows, processes, *json.loads(said[0].splitlines()[-1]))


def meshes() -> Iterator[tuple[int, int, int]]:
    """Chains, rows, processes."""
    yield 1, 1, 1
    for count in COUNTS[1:]:
        yield from ((count, 1, 1), (1, count, 1))
    yield from ((2, 1, 2), (1, 2, 2))


def run() -> Iterator[str | Ratio]:
    points: list[Point] = []
    for mesh in meshes():
        points.append(started(*mesh))
        one, last = points[0], points[-1]
        write(points)
        if last is not one:
            yield Ratio(f"Transport, one device / {named(last)}", one.transport, last.transport)
            yield Ratio(f"{CHAINS} chains of SGLD, one device / {named(last)}", one.sgld, last.sgld)
    yield from told(points)


def named(point: Point) -> str:
    where = f" on {point.processes} processes" if point.processes > 1 else ""
    return f"{point.chains} × {point.rows}{where}"


def cores() -> int:
    return len(os.sched_getaffinity(0))


def efficiency(one: float, many: float, devices: int) -> float:
    return one / many / min(devices, cores())


def serial_share(points: list[Point], along: str, what: str) -> float:
    """a/(a + b) of T(n) = a + b/n, from as many devices as there are cores."""
    used = [p for p in points if p.processes == 1 and getattr(p, along) == p.devices <= cores()]
    inverse = np.array([1 / p.devices for p in used])
    slope, constant = np.polyfit(inverse, [getattr(p, what) for p in used], 1)
    return float(np.clip(constant / (constant + slope), 0, 1))


def told(points: list[Point]) -> Iterator[str]:
    """What the figures say, in words."""
    for what, name in (("transport", "`Transport`"), ("sgld", "SGLD")):
        parts = [f"{serial_share(points, along, what):.0%} along {along}" for along in ("chains", "rows")]
        yield f"What does not get faster with devices, of {name}: {' and '.join(parts)}."


def write(points: list[Point]) -> None:
    """The page and the figures so far."""
    kept = {"machine": machine(), "cores": cores(), "points": [point._asdict() for point in points]}
    one = points[0]
    lines = [
        "# Many devices\n",
        f"From `python -m benchmarks devices`: {machine()} · {cores()} cores.\n",
        f"{__doc__}",
        f"Logistic regression, {ROWS:,} rows, {PARAMETERS} parameters; `Transport` of {DRAWS:,} draws, {REMOVED} rows "
        f"removed; {CHAINS} chains of SGLD that see all rows, {STEPS} steps.\n",
        *([f"{line}\n" for line in told(points)] if len(points) == len(list(meshes())) else []),
        "| chains × rows | Transport, seconds | times one device | efficiency | SGLD, seconds | times one device | "
        "efficiency |\n|---|---|---|---|---|---|---|",
    ]
    for point in points:
        cells = [named(point)]
        for what in ("transport", "sgld"):
            alone, seconds = getattr(one, what), getattr(point, what)
            share = f"{efficiency(alone, seconds, point.devices):.0%}"
            if not np.isfinite(seconds):
                cells += ["given up", "", ""]
                continue
            cells += [f"{seconds:.3g}", f"{alone / seconds:.2f}", share if point.devices <= cores() else f"({share})"]
        lines.append(f"| {' | '.join(cells)} |")
    if any(point.devices > cores() for point in points):
        lines.append("\nIn brackets: more devices than cores.")
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, text in (("devices.md", "\n".join(lines) + "\n"), ("devices.json", json.dumps(kept, indent=1) + "\n")):
        write_whole(RESULTS / name, text)
