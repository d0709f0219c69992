"""Figures of the experiments. They need matplotlib, from the extra `plots`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float

from posterase.errors import MissingExtraError
from posterase.experiments.diabetes import TERMS, Request, columns

# Okabe and Ito's colours, which colour-blind readers tell apart.
STYLES: dict[str, dict[str, Any]] = {
    "before: nothing erased": {"color": "#999999", "lw": 2.2, "label": "before"},
    "Reweight": {"color": "#56B4E9", "lw": 1.8, "ls": (0, (4, 2)), "label": "Reweight"},
    "InfluenceShift": {"color": "#D55E00", "lw": 1.8, "label": "InfluenceShift"},
    "floor: exact draws": {"color": "black", "lw": 1.4, "ls": ":", "label": "exact"},
}


def pyplot() -> ModuleType:
    """matplotlib.pyplot without a screen."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError(
            "figures need matplotlib, which is not installed.", "pip install 'posterase[plots]'"
        ) from error
    return plt


def density(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], grid: Float[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """A weighted Gaussian kernel density, with Silverman's bandwidth for the effective number of draws."""
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    bandwidth = 1.06 * sd * (1 / np.sum(weights**2)) ** -0.2
    scaled = (grid[:, None] - values) / bandwidth
    return np.exp(-0.5 * scaled**2) @ weights / (bandwidth * np.sqrt(2 * np.pi))


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
