"""Figures of the experiments. They need matplotlib, from the extra `plots`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float

from posterase.experiments.diabetes import TERMS, Request, columns
from posterase.experiments.gmm import Outcome
from posterase.extras import need
from posterase.plotting import density

# Okabe and Ito's colours, which colour-blind readers tell apart.
STYLES: dict[str, dict[str, Any]] = {
    "before: nothing erased": {"color": "#999999", "lw": 2.2, "label": "before"},
    "Reweight": {"color": "#56B4E9", "lw": 1.8, "ls": (0, (4, 2)), "label": "Reweight"},
    "InfluenceShift": {"color": "#D55E00", "lw": 1.8, "label": "InfluenceShift"},
    "floor: exact draws": {"color": "black", "lw": 1.4, "ls": ":", "label": "exact"},
}


def pyplot() -> ModuleType:
    """matplotlib.pyplot without a screen."""
    need("matplotlib", "a figure", "plots")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw_diabetes(requests: list[Request], target: Path) -> Path:
    """What a group's removal moved most: densities before, after each eraser, and exact."""
    plt = pyplot()
    request = requests[-1]
    before, exact = request.outcomes[0], request.exact
    moved = np.abs(columns(before.draws).mean(axis=0) - exact.mean()) / exact.sd()
    most = np.argsort(-moved)[:6]
    names = [f"β, {term}" for term in TERMS] + ["σ"]
    figure, axes = plt.subplots(2, 3, figsize=(9.6, 5.2), layout="constrained")
    for axis, at in zip(axes.ravel(), most, strict=True):
        values = {outcome.method: columns(outcome.draws)[:, at] for outcome in request.outcomes}
        low, high = np.quantile(np.concatenate(list(values.values())), [0.001, 0.999])
        grid = np.linspace(low, high, 200)
        for outcome in request.outcomes:
            if outcome.method in STYLES:
                weights = np.asarray(outcome.draws.weights, float).ravel()
                axis.plot(grid, density(values[outcome.method], weights, grid), **STYLES[outcome.method])
        axis.set_title(names[at], fontsize=10)
        axis.set_yticks([])
        axis.spines[["top", "right", "left"]].set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"A regression forgets {request.title} ({len(request.rows)} of 442)", fontsize=12)
    figure.savefig(target, dpi=130)
    plt.close(figure)
    return target


CLUSTERS = ["#56B4E9", "#009E73", "#999999", "#F0E442"]
"""Sky blue, green, grey and yellow: the last two lose points, as in the paper."""

PANELS = {"original": "black", "processed": "#0033CC", "target": "#CC0000"}


def draw_gmm(outcomes: list[Outcome], target: Path) -> Path:
    """The paper's Figure 1, a row for each sampler: data and draws of three posteriors, and the time of a request."""
    plt = pyplot()
    rows = len(outcomes)
    figure, axes = plt.subplots(rows, 4, figsize=(12.4, 3.2 * rows + 0.4), layout="constrained", squeeze=False)
    for outcome, line in zip(outcomes, axes, strict=True):
        points = outcome.points
        kept = np.ones(len(points.z), bool)
        kept[points.removed] = False
        for axis, (name, colour) in zip(line, PANELS.items(), strict=False):
            shown = np.ones_like(kept) if name == "original" else kept
            shades = [CLUSTERS[k] for k in points.cluster[shown]]
            axis.scatter(*points.z[shown].T, s=5, c=shades, alpha=0.55, linewidths=0)
            draws = np.asarray(outcome.draws[name].params).reshape(-1, 2)
            axis.scatter(*draws.T, s=9, c=colour, linewidths=0)
            axis.set(xlim=_padded(points.z[:, 0]), ylim=_padded(points.z[:, 1]), xticks=[], yticks=[])
            axis.set_title(f"{outcome.settings.sampler.upper()}: {name}", fontsize=10)
        _draw_times(line[-1], outcome)
    figure.savefig(target, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return target


def _draw_times(axis: Any, outcome: Outcome) -> None:
    names, seconds = list(outcome.seconds), list(outcome.seconds.values())
    axis.bar(names, seconds, color=[PANELS["target"], PANELS["processed"]], width=0.6)
    axis.set_yscale("log")
    axis.set_title(f"seconds to answer a request ({seconds[0] / seconds[1]:.0f} times)", fontsize=10)
    axis.bar_label(axis.containers[0], [f"{value:.2g} s" for value in seconds], padding=2, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylim(min(seconds) / 3, max(seconds) * 3)


def _padded(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return low - 0.05 * (high - low), high + 0.05 * (high - low)
