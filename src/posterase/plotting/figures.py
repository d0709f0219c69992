"""Pictures of what an erasure did. They need matplotlib, from the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from posterase.data.parameters import element_names
from posterase.draws.draws import Draws
from posterase.runtime.optional import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from posterase.ladder.result import Result

# Okabe and Ito's colours, which colour-blind readers tell apart.
GREY, SKY, VERMILION, GREEN, BLACK = "#999999", "#56B4E9", "#D55E00", "#009E73", "black"
SHOWN = 6
"""How many parameters are drawn: those that moved most."""
FEWEST_BARS = 3
"""Room for so many bars, that a single one is not a wall."""


def new_figure(width: float, height: float) -> Figure:
    """A figure that no window or backend is needed for."""
    need("matplotlib", "a figure", "plots")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def density(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], grid: Float[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """A weighted Gaussian kernel density, with Silverman's bandwidth for the effective number of draws."""
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    bandwidth = 1.06 * sd * (1 / np.sum(weights**2)) ** -0.2
    if not bandwidth > 0:
        return np.zeros_like(grid)
    scaled = (grid[:, None] - values) / bandwidth
    return np.exp(-0.5 * scaled**2) @ weights / (bandwidth * np.sqrt(2 * np.pi))


class Sample(NamedTuple):
    """Draws with a name, as numbers."""

    label: str
    values: Float[np.ndarray, "n elements"]
    weights: Float[np.ndarray, " n"]
    names: tuple[str, ...] = ()
    """Of the elements."""

    @classmethod
    def of(cls, label: str, draws: Draws) -> Sample:
        """One row a draw."""
        weights = np.asarray(draws.weights, np.float64).ravel()
        return cls(label, draws.matrix(), weights, tuple(element_names(draws.params)))

    @property
    def mean(self) -> Float[np.ndarray, " elements"]:
        """Of every element."""
        return self.weights @ self.values

    @property
    def sd(self) -> Float[np.ndarray, " elements"]:
        """Of every element."""
        return np.sqrt(self.weights @ (self.values - self.mean) ** 2)


def samples_of(result: Result) -> list[Sample]:
    """The draws before, after, and of refits that were given."""
    found = [Sample.of("before", result.before)]
    tried = result.outcomes[-1].erased if result.outcomes else None
    if result.verdict.accepted:
        found.append(Sample.of("after", result.draws))
    elif tried is not None:
        found.append(Sample.of("after (refused)", tried.draws))
    return found + [Sample.of("refit", refit) for refit in result.refits]


def moved_most(samples: Sequence[Sample], shown: int = SHOWN) -> dict[int, float]:
    """The elements that moved most from before to after, and by how many standard deviations; to refits, else."""
    before = samples[0]
    after = next((each for each in samples[1:] if each.label != "refit"), samples[-1])
    moved = np.abs(after.mean - before.mean) / np.where(before.sd > 0, before.sd, 1)
    return {int(at): float(moved[at]) for at in np.argsort(-moved)[:shown]}


def points_of(samples: Sequence[Sample], at: int) -> Float[np.ndarray, " points"]:
    """Where to draw the densities of an element."""
    low, high = np.quantile(np.concatenate([each.values[:, at] for each in samples]), [0.001, 0.999])
    return np.linspace(low, high, 200)


STYLES: dict[str, dict[str, Any]] = {
    "before": {"color": GREY, "lw": 2.2},
    "after": {"color": VERMILION, "lw": 1.8},
    "after (refused)": {"color": VERMILION, "lw": 1.8},
    "refit": {"color": BLACK, "lw": 1.2, "ls": ":"},
}


def draw_erasure(result: Result) -> Figure:
    """Densities of the parameters that moved most; below, what every method's diagnostics said."""
    samples = samples_of(result)
    names, most = samples[0].names, moved_most(samples)
    per_row = min(3 if len(most) > 4 else 2, len(most))
    rows = -(-len(most) // per_row)
    figure = new_figure(3.2 * max(per_row, 2), 2.1 * rows + 2.6)
    grid = figure.add_gridspec(rows + 1, 2 * per_row, height_ratios=[1.0] * rows + [1.1])
    for place, (at, moved) in enumerate(most.items()):
        row, column = divmod(place, per_row)
        axis = figure.add_subplot(grid[row, 2 * column : 2 * column + 2])
        points, drawn = points_of(samples, at), set()
        for each in samples:
            label = f"_{each.label}" if each.label in drawn else each.label
            drawn.add(each.label)
            axis.plot(points, density(each.values[:, at], each.weights, points), label=label, **STYLES[each.label])
        axis.set_title(f"{names[at]}: {moved:.2g} sd", fontsize=9)
        axis.set_yticks([])
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right", "left"]].set_visible(False)
        if place == 0:
            axis.legend(frameon=False, fontsize=8)
    _draw_k(figure.add_subplot(grid[rows, :per_row]), result)
    _draw_ess(figure.add_subplot(grid[rows, per_row:]), result)
    said = f"accepted by {result.verdict.method}" if result.verdict.accepted else "refused"
    figure.suptitle(f"{result.n_removed} row{'s' if result.n_removed != 1 else ''} erased: {said}", fontsize=11)
    return figure


def _draw_k(axis: Any, result: Result) -> None:
    """k̂ of every method that has one, and the threshold."""
    known = [
        outcome
        for outcome in result.outcomes
        if outcome.diagnostics is not None and outcome.diagnostics.pareto_k is not None
    ]
    shown = [(outcome, outcome.diagnostics) for outcome in known]
    values = [min(max(float(e.pareto_k or 0), 0), 2.0) for _, e in shown if e is not None]
    colours = [SKY if outcome.objections else GREEN for outcome, _ in shown]
    bars = axis.barh(range(len(shown)), values, color=colours, height=0.5)
    axis.bar_label(bars, [f"{e.pareto_k:.2f}" for _, e in shown if e is not None], padding=3, fontsize=8)
    axis.set_yticks(range(len(shown)), [outcome.name for outcome, _ in shown], fontsize=8)
    axis.set_ylim(max(len(shown), FEWEST_BARS) - 0.5, -0.5)
    if shown and shown[0][1] is not None:
        limit = result.policy.pareto_k if result.policy.pareto_k is not None else shown[0][1].threshold
        axis.axvline(limit, color=BLACK, lw=1, ls="--")
    axis.set_xlim(0, max([*values, 1.0]) * 1.15)
    axis.set_title("k̂ of the weights\n(trusted left of the line)", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_ess(axis: Any, result: Result) -> None:
    """Effective draws: along the path of the last method where it walked one, else of every method."""
    stages = getattr(getattr(result.outcomes[-1].erased, "details", None), "stages", None) if result.outcomes else None
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    if stages and len(stages) > 1:
        axis.plot(
            [0, *(stage.to for stage in stages)], [np.nan, *(stage.ess for stage in stages)], "o-", color=GREEN, ms=4
        )
        axis.set(xlabel="λ along the path", xlim=(0, 1.03))
        axis.set_ylim(bottom=0)
        axis.set_title("effective draws at every stage of the path", fontsize=9)
        return
    known = [(outcome, outcome.diagnostics) for outcome in result.outcomes if outcome.diagnostics is not None]
    axis.bar(
        [outcome.name for outcome, _ in known],
        [min(outcome.ess.values()) for outcome, _ in known],
        color=[SKY if outcome.objections else GREEN for outcome, _ in known],
        width=0.5,
    )
    axis.set_xlim(-0.5, max(len(known), FEWEST_BARS) - 0.5)
    axis.axhline(result.demanded_ess, color=BLACK, lw=1, ls="--")
    axis.set_title("effective draws, worst parameter\n(wanted above the line)", fontsize=9)
