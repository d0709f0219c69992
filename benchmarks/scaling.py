"""What the benchmarks of scale share: the problem, measuring in a process of its own, and the page of a curve.

The problem is a logistic regression with as many rows, parameters and draws as asked for. Its draws are of the Gaussian
at the mode, with Pareto smoothed importance weights that make them draws of the posterior (k̂ says how well): at these
sizes it is the erasure that is timed, and a long run of NUTS would take longer than everything else together.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import posterase as pe
from benchmarks.harness import once, write_whole
from benchmarks.memory import status
from posterase.experiments.machine import machine
from posterase.model.densities import LogDensity
from posterase.numerics.curvature import Curvature, gradients
from posterase.numerics.densities import evaluate_at
from posterase.numerics.weights import smooth
from posterase.runtime.files import written_whole

DOCS = Path(__file__).parent.parent / "docs"
NEWTON_STEPS = 8
LADDER: dict[str, pe.Method] = {
    "Reweight": pe.Reweight(),
    "Transport": pe.Transport(),
    "Rejuvenate": pe.Rejuvenate(),
}
MANY_CHAINS = "many chains"
COLOURS = {"Reweight": "#0072b2", "Transport": "#009e73", "Rejuvenate": "#d55e00", "NUTS refit": "#555555"}


class Point(NamedTuple):
    """One method at one size."""

    size: int
    method: str
    seconds: float
    megabytes: float | None = None
    """The most it held beyond data and draws."""
    gradients: float | None = None
    densities: float | None = None
    sequential: int | None = None
    says: str = ""
    extrapolated: bool = False


class Problem(NamedTuple):
    """A model and draws of its posterior."""

    model: pe.Model
    draws: pe.Draws
    pareto_k: float


# --- the problem


def logistic(rows: int, parameters: int) -> pe.Model:
    """Made on the device that it stays on."""
    for_x, for_truth, for_y = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(for_x, (rows, parameters)) / np.sqrt(parameters)
    truth = jax.random.normal(for_truth, (parameters,))
    y = jax.random.bernoulli(for_y, jax.nn.sigmoid(x @ truth)).astype(x.dtype)
    return pe.Model(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, data: data["y"] * (data["x"] @ p) - jnp.logaddexp(0, data["x"] @ p),
        {"x": x, "y": y},
    )


def problem(rows: int, parameters: int, chains: int, draws: int) -> Problem:
    """The posterior of a logistic regression, by its mode, its curvature there, and importance weights."""
    model = logistic(rows, parameters)
    density, like = LogDensity(model), np.zeros(parameters, np.float32)
    mode = np.zeros(parameters)
    for _ in range(NEWTON_STEPS):
        precision = _curvature(density, jnp.asarray(mode, jnp.float32))
        mode = mode + np.linalg.solve(precision, gradients(density, mode[None], like)[0])
    noise = np.random.default_rng(1).normal(size=(chains * draws, parameters))
    thetas = mode + np.linalg.solve(np.linalg.cholesky(precision).T, noise.T).T
    thetas = thetas.astype(np.float32).astype(np.float64)  # as they will be stored
    back = (thetas - mode) @ np.linalg.cholesky(precision)
    raw = evaluate_at(density, thetas, like) + 0.5 * (back**2).sum(axis=1)
    smoothed = smooth(raw.reshape(chains, draws))
    shaped = thetas.reshape(chains, draws, parameters).astype(np.float32)
    return Problem(model, pe.Draws(shaped, smoothed.log_weights), smoothed.pareto_k)


def _curvature(density: LogDensity, theta: Any) -> Any:
    one = jnp.ones(1, theta.dtype)
    return np.asarray(_dense(Curvature(density, theta[None], one, theta)), np.float64)


_dense = jax.jit(lambda curvature: curvature.dense())


# --- measuring


class Memory:
    """The most memory that the process held since this was made, beyond what it held then, in megabytes; on a CPU.

    A GPU's own peak cannot be set back, so that making the problem would count: there it is None.
    """

    def __init__(self) -> None:
        gc.collect()
        self.on_cpu = jax.default_backend() == "cpu"
        if self.on_cpu:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            self.before = status("VmRSS")

    def peak(self) -> float | None:
        return max(0.0, status("VmHWM") - self.before) if self.on_cpu else None


def measured(size: int, name: str, run: Callable[[], Any]) -> Point:
    """The second run of a method, all compiled."""
    run()
    memory = Memory()
    erased: list[Any] = []

    def again() -> Any:
        erased.append(run())
        return erased[0].draws.params

    seconds, peak = once(again), memory.peak()
    cost, says = erased[0].diagnostics.cost, pe.Policy(ess=0.0).brief(erased[0])
    return Point(size, name, seconds, peak, float(cost.gradients), float(cost.densities), cost.sequential, says)


def apart(module: str, **arguments: Any) -> list[Point]:
    """What `module.measure(**arguments)` yields, from a process of its own, so that no other's memory is counted."""
    code = (
        f"import json; from benchmarks.{module} import measure\n"
        f"for point in measure(**{arguments!r}): print(json.dumps(point._asdict()), flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    if done.returncode:
        raise RuntimeError(f"measuring {module} with {arguments} ended with {done.returncode}: see above.")
    return [Point(**json.loads(line)) for line in done.stdout.splitlines()]


# --- the page of a curve


class Curve(NamedTuple):
    """A benchmark's page."""

    name: str
    title: str
    doc: str | None
    axis: str
    command: str
    a_unit: str = ""
    """Where seconds are shown for one of these."""
    units: Callable[[Point], float] = lambda point: 1.0
    """How many of them a point is."""

    @property
    def stem(self) -> str:
        backend = jax.default_backend()
        return self.name if backend == "cpu" else f"{self.name}-{backend}"

    def write(self, points: Sequence[Point], told: Sequence[str]) -> None:
        """Table, figures and plot of what has been measured so far."""
        (DOCS / "results").mkdir(parents=True, exist_ok=True)
        (DOCS / "figures").mkdir(parents=True, exist_ok=True)
        kept = {"machine": machine(), "command": self.command, "points": [point._asdict() for point in points]}
        write_whole(DOCS / "results" / f"{self.stem}.json", json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        text = [
            f"# {self.title}{'' if jax.default_backend() == 'cpu' else ', on a GPU'}\n",
            f"From `{self.command}`: {machine()}.\n",
            f"{self.doc}",
            *(f"- {line}" for line in told),
            "",
            f"![{self.title}](../figures/{self.stem}.svg)\n",
            *self.table(points),
        ]
        write_whole(DOCS / "results" / f"{self.stem}.md", "\n".join(text) + "\n")
        self.plot(points)

    def table(self, points: Sequence[Point]) -> list[str]:
        refits = {point.size: point for point in points if point.method == "NUTS refit"}
        names = [self.axis, "method", f"seconds a {self.a_unit}" if self.a_unit else "seconds", "against the smallest"]
        names += ["times faster than a refit"] if refits else []
        held = any(point.megabytes is not None for point in points)
        names += [*(["MB"] if held else []), "gradients", "densities", "sequential", "says"]
        lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
        for point in points:
            first = min((p for p in points if p.method == point.method), key=lambda p: p.size)
            refit = refits.get(point.size)
            faster = rounded(refit.seconds / point.seconds) if refit is not None and refit is not point else ""
            counts = [*([point.megabytes] if held else []), point.gradients, point.densities, point.sequential]
            cells = [
                f"{point.size:,}",
                point.method + (" (extrapolated)" if point.extrapolated else ""),
                f"{self.value(point):.3g}",
                f"× {self.value(point) / self.value(first):.3g}",
                *([faster] if refits else []),
                *("" if count is None else f"{count:,.0f}" for count in counts),
                point.says,
            ]
            lines.append(f"| {' | '.join(cells)} |")
        return lines

    def value(self, point: Point) -> float:
        return point.seconds / self.units(point)

    def plot(self, points: Sequence[Point]) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        mpl.rcParams["svg.hashsalt"] = self.stem
        measured_memory = any(point.megabytes is not None for point in points)
        figure = Figure(figsize=(9 if measured_memory else 5, 4), layout="constrained")
        axes = figure.subplots(1, 2 if measured_memory else 1, squeeze=False)[0]
        of_seconds = f"seconds a {self.a_unit}" if self.a_unit else "seconds"
        self._lines(axes[0], points, self.value, of_seconds)
        if measured_memory:
            held = [point for point in points if point.megabytes is not None]
            self._lines(axes[1], held, lambda point: max(point.megabytes or 0.0, 1.0), "MB beyond the data, at most")
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )
        with written_whole(DOCS / "figures" / f"{self.stem}.svg") as beside:
            figure.savefig(beside, metadata={"Date": None})

    def _lines(self, axis: Any, points: Sequence[Point], value: Callable[[Point], float], label: str) -> None:
        for method in dict.fromkeys(point.method for point in points):
            own = sorted((point for point in points if point.method == method), key=lambda point: point.size)
            base, _, kind = method.partition(", ")
            colour, style = COLOURS.get(base, "#cc79a7"), "--" if kind == MANY_CHAINS else "-"
            axis.plot([p.size for p in own], list(map(value, own)), color=colour, ls=style, lw=1.2, zorder=1)
            for extrapolated in (False, True):
                some = [p for p in own if p.extrapolated is extrapolated]
                if some:
                    face = "white" if extrapolated or kind == MANY_CHAINS else colour
                    named = f"{method}, extrapolated" if extrapolated else method
                    at = [p.size for p in some], list(map(value, some))
                    axis.scatter(*at, s=22, color=face, edgecolor=colour, label=named, zorder=2)
        axis.set(xscale="log", yscale="log", xlabel=self.axis, ylabel=label)
        axis.grid(color="#dddddd", lw=0.5)
        axis.spines[["top", "right"]].set_visible(False)


def rounded(value: float) -> str:
    """To three digits, without powers of ten."""
    return f"{float(f'{value:.3g}'):,g}"


def growth(points: Sequence[Point], method: str, value: Callable[[Point], float]) -> tuple[Point, Point, float]:
    """The smallest and the largest measured point of a method, and how many times the first's value the last's is."""
    own = sorted((p for p in points if p.method == method and not p.extrapolated), key=lambda point: point.size)
    return own[0], own[-1], value(own[-1]) / value(own[0])
