"""Time to the first answer from a new process, without the compilation cache and with it.

A logistic regression with 500 rows and 10 parameters, 4 chains of 500 draws, 20 rows removed. Each line is the first
call of one process: from the call to the last array, imports apart. "Without" compiles everything, "filling" calls
`pe.enable_compilation_cache()` with an empty folder and writes what it compiles, "with" reads all of it. The three run
in turn, in processes of their own; of three such rounds the least seconds count, since a busy machine slows single
runs. The draws must agree to the bit. `posterase demo`, whose command line enables the cache, is timed as a whole
process, imports, figure and all. `REPEATS=1 python -m benchmarks compilation` gives a quick impression.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Ratio, write_whole
from posterase.experiments.machine import machine
from posterase.runtime.compilation_cache import VARIABLE

REPEATS = int(os.environ.get("REPEATS", "3"))
CALLS = ("Reweight", "InfluenceShift", "Transport", "Rejuvenate", "Refit", "nuts", "erase")
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
COMPILED = "/jax/core/compile/backend_compile_duration"
PARTS = {
    "tracing": "/jax/core/compile/jaxpr_trace_duration",
    "lowering": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "compiling": COMPILED,
}


def first_answer(call: str) -> dict[str, Any]:
    """Run in a new process: the first call, what it consisted of, and the second."""
    started = time.perf_counter()
    import jax
    import jax.numpy as jnp

    import posterase as pe

    _ = pe.erase
    pe.enable_compilation_cache()
    imports = time.perf_counter() - started
    seconds: dict[str, float] = collections.defaultdict(float)
    events: collections.Counter[str] = collections.Counter()

    def spent(event: str, duration_secs: float, **kwargs: str | int) -> None:
        seconds[event] += duration_secs
        events[event] += 1

    jax.monitoring.register_event_duration_secs_listener(spent)
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 10))
    y = rng.random(500) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, 10)))
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, data: data["y"] * (data["x"] @ p) - jnp.logaddexp(0, data["x"] @ p),
        {"x": x.astype(np.float32), "y": y.astype(np.float32)},
    )
    draws = pe.Draws((np.linspace(-1, 1, 10) + 0.12 * rng.normal(size=(4, 500, 10))).astype(np.float32))
    rows = np.arange(20)

    def answer() -> Any:
        if call == "erase":
            return pe.erase(model, draws, rows, policy=pe.Policy(refit=True)).draws.params
        if call == "nuts":
            return pe.nuts(0, model, np.zeros((4, 10), np.float32), 200, warmup=200).draws.params
        return getattr(pe, call)()(0, model, draws, model.change(remove=rows)).draws.params

    began = time.perf_counter()
    first = jax.block_until_ready(answer())
    between = time.perf_counter()
    found = {
        "imports": imports,
        "first": between - began,
        "programs": events[COMPILED],
        "read": events["/jax/compilation_cache/cache_hits"],
        "written": events["/jax/compilation_cache/cache_misses"],
        **{name: float(seconds[event]) for name, event in PARTS.items()},
        "draws": hashlib.sha256(np.asarray(first).tobytes()).hexdigest(),
    }
    jax.block_until_ready(answer())
    return {**found, "second": time.perf_counter() - between}


def in_a_process(call: str, folder: str) -> dict[str, Any]:
    own = {**os.environ, VARIABLE: folder}
    command = [sys.executable, "-m", "benchmarks.compilation", call]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def demo(folder: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "posterase.cli.main", "demo", "--quiet", "--out", out]
        began = time.perf_counter()
        subprocess.run(command, env={**os.environ, VARIABLE: folder}, capture_output=True, check=True)
        seconds = time.perf_counter() - began
        kept = json.loads((Path(out) / "gmm.json").read_text())
    return {"first": seconds, "draws": json.dumps(_without_times(kept))}


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_times(each) for name, each in value.items() if name != "seconds"}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def measured(call: str) -> dict[str, dict[str, Any]]:
    """The run with the least seconds, of repeats that each begin with an empty folder."""
    runs: dict[str, list[dict[str, Any]]] = {"without": [], "filling": [], "with": []}
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            for name, cache in (("without", "off"), ("filling", folder), ("with", folder)):
                runs[name].append(demo(cache) if call == "posterase demo" else in_a_process(call, cache))
            if call != "posterase demo":
                assert runs["with"][-1]["written"] == 0, f"{call}: the second process compiled something"
    assert len({run["draws"] for each in runs.values() for run in each}) == 1, f"{call}: the draws differ"
    return {name: min(each, key=lambda run: run["first"]) for name, each in runs.items()}


def line(call: str, found: dict[str, dict[str, Any]]) -> str:
    without, filling, kept = (found[name] for name in ("without", "filling", "with"))
    times = f"{without['first']:.2f} | {filling['first']:.2f} | {kept['first']:.2f}"
    ratio = f"**{without['first'] / kept['first']:.1f}**"
    if call == "posterase demo":
        return f"| {call} | | {times} | {ratio} | | |"
    parts = ", ".join(f"{without[part]:.2f}" for part in PARTS)
    left = ", ".join(f"{kept[part]:.2f}" for part in PARTS)
    return f"| {call} | {without['programs']} | {times} | {ratio} | {parts} | {left} |"


HEAD = (
    "| first call | programs | without | filling | with | without / with | tracing, lowering, compiling: without "
    "| with |\n|---|---|---|---|---|---|---|---|"
)


def run() -> Iterator[Ratio]:
    lines, figures = [HEAD], {}
    for call in (*CALLS, "posterase demo"):
        figures[call] = found = measured(call)
        lines.append(line(call, found))
        name = f"{call}, first answer, without / with the compilation cache"
        yield Ratio(name, found["without"]["first"], found["with"]["first"])
    imports = np.median([figures[call]["without"]["imports"] for call in CALLS])
    second = ", ".join(f"{call} {figures[call]['without']['second']:.2g} s" for call in CALLS)
    others = f"Imports take {imports:.1f} s more, with and without. A second call, everything compiled: {second}."
    intro = f"# Time to the first answer\n\nFrom `python -m benchmarks compilation`: {machine()}.\n\n{__doc__}"
    write_whole(RESULTS / "compilation.md", "\n".join([intro, others, "", *lines]) + "\n")
    kept = {"machine": machine(), "repeats": REPEATS, "calls": figures}
    write_whole(RESULTS / "compilation.json", json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    print(json.dumps(first_answer(sys.argv[1])))
