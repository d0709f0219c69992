"""Figures of the experiments. They need matplotlib, from the extra `plots`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from posterase.experiments.bnn import TITLES
from posterase.experiments.bnn_tables import OURS, Result, note_of
from posterase.experiments.clouds import Cloud, Clouds, Grid
from posterase.experiments.diabetes import TERMS, Request, columns
from posterase.experiments.gmm import Outcome
from posterase.experiments.one_person import OnePerson
from posterase.plotting.figures import BLACK, GREEN, GREY, SKY, VERMILION, density, new_figure
from posterase.plotting.figures import STYLES as BEFORE_AND_AFTER
from posterase.runtime.files import written_whole

# Okabe and Ito's colours, which colour-blind readers tell apart.
STYLES: dict[str, dict[str, Any]] = {
    "before: nothing erased": {"color": "#999999", "lw": 2.2, "label": "before"},
    "Reweight": {"color": "#56B4E9", "lw": 1.8, "ls": (0, (4, 2)), "label": "Reweight"},
    "InfluenceShift": {"color": "#D55E00", "lw": 1.8, "label": "InfluenceShift"},
    "floor: exact draws": {"color": "black", "lw": 1.4, "ls": ":", "label": "exact"},
}


def draw_diabetes(requests: list[Request], target: Path) -> Path:
    """What a group's removal moved most: densities before, after each method, and exact."""
    request = requests[-1]
    before, exact = request.outcomes[0], request.exact
    moved = np.abs(columns(before.draws).mean(axis=0) - exact.mean()) / exact.sd()
    most = np.argsort(-moved)[:6]
    names = [f"β, {term}" for term in TERMS] + ["σ"]
    figure = new_figure(9.6, 5.2)
    axes = figure.subplots(2, 3)
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
    with written_whole(target) as beside:
        figure.savefig(beside, dpi=130, metadata={"Software": None})
    return target


def draw_one_person(seen: OnePerson, target: Path) -> Path:
    """The coefficients that one person moved most: before, after the erasure, and of a new fit."""
    samples = {"before": columns(seen.before), "after": columns(seen.result.draws), "refit": columns(seen.refit)}
    styles = {
        "before": {**BEFORE_AND_AFTER["before"], "label": "before: all 442 patients"},
        "after": {**BEFORE_AND_AFTER["after"], "label": "after erasing one"},
        "refit": {**BEFORE_AND_AFTER["refit"], "label": "refit on the other 441"},
    }
    figure = new_figure(9.6, 2.9)
    axes = figure.subplots(1, len(seen.moved_most))
    for axis, at in zip(axes, seen.moved_most, strict=True):
        low, high = np.quantile(np.concatenate([each[:, at] for each in samples.values()]), [0.001, 0.999])
        grid = np.linspace(low, high, 200)
        for name, values in samples.items():
            n = len(values)
            axis.plot(grid, density(values[:, at], np.full(n, 1 / n), grid), **styles[name])
        axis.set_title(f"β, {seen.names[at]}" if at < len(seen.names) - 1 else "σ", fontsize=10)
        axis.set_yticks([])
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right", "left"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"A regression forgets one patient: accepted by {seen.result.verdict.method}", fontsize=12)
    with written_whole(target) as beside:
        figure.savefig(beside, dpi=130, metadata={"Software": None})
    return target


SHARES = (0.99, 0.9, 0.5)
"""Of the kept posterior inside its contours."""
POINT, LARGEST_POINT = 6.0, 120.0
"""Areas of a draw, in points: of one that counts as much as the mean, and at most."""
CLOUD_DRAWS, PATHS = 800, 14
"""How many draws of a cloud are drawn, and how many with the way that they came."""
MOVED = ("InfluenceShift", "Transport")
"""Methods whose draws each come from one draw before."""


def draw_methods(seen: Clouds, target: Path) -> Path:
    """The same cloud of draws before, and after each method, on the contours of the kept posterior."""
    figure = new_figure(9.6, 7.2)
    before, *_ = seen.clouds
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, cloud in zip(axes.ravel(), seen.clouds, strict=False):
        _draw_cloud(axis, cloud, before, seen.kept)
    inside = seen.kept.points[seen.kept.mass.ravel() > seen.kept.level(0.999)]
    places = np.concatenate([inside, before.draws.matrix()])
    axes[0, 0].set(xlim=_padded(places[:, 0]), ylim=_padded(places[:, 1]))
    figure.supxlabel("intercept", fontsize=10)
    figure.supylabel("slope", fontsize=10)
    rows = f"{seen.n_removed} of {seen.n_rows} rows"
    figure.suptitle(f"Forgetting {rows}. Blue: the draws. Black: the kept posterior (50, 90, 99 %)", fontsize=11)
    with written_whole(target) as beside:
        figure.savefig(beside, dpi=130, metadata={"Software": None})
    return target


def _draw_cloud(axis: Any, cloud: Cloud, before: Cloud, kept: Grid) -> None:
    values, weights = cloud.draws.matrix(), np.asarray(cloud.draws.weights, float).ravel()
    shown = np.linspace(0, len(values) - 1, CLOUD_DRAWS).astype(int)
    areas = np.minimum(POINT * weights[shown] * len(weights), LARGEST_POINT)
    axis.scatter(*values[shown].T, s=areas, color=SKY, alpha=0.75, linewidths=0, label=cloud.name)
    levels = [kept.level(share) for share in SHARES]
    axis.contour(kept.intercept, kept.slope, kept.mass, levels, colors=BLACK, linewidths=(0.7, 1.0, 1.4))
    if cloud.name in MOVED:
        some = shown[:: len(shown) // PATHS]
        for start, end in zip(before.draws.matrix()[some], values[some], strict=True):
            axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": VERMILION, "lw": 0.9})
    errors = f"means off by {cloud.mean_error:.2f} sd, spreads by {cloud.spread_error:.2f}"
    lines = [cloud.does, errors, cloud.says]
    axis.set_title("\n".join(lines), fontsize=8.5)
    axis.text(0.03, 0.98, cloud.name, transform=axis.transAxes, va="top", fontsize=11, fontweight="bold")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


CLUSTERS = ["#56B4E9", "#009E73", "#999999", "#F0E442"]
"""Sky blue, green, grey and yellow: the last two lose points, as in the paper."""

PANELS = {"original": "black", "processed": "#0033CC", "target": "#CC0000"}


def draw_gmm(outcomes: list[Outcome], target: Path) -> Path:
    """The paper's Figure 1, a row for each sampler: data and draws of three posteriors, and the time of a request."""
    rows = len(outcomes)
    figure = new_figure(12.4, 3.2 * rows + 0.4)
    axes = figure.subplots(rows, 4, squeeze=False)
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
    with written_whole(target) as beside:
        figure.savefig(beside, dpi=130, metadata={"Software": None})
    return target


def _draw_times(axis: Any, outcome: Outcome) -> None:
    """A retraining, a request, and all requests: in small pieces, erasing can cost more than retraining once."""
    every = outcome.requests * outcome.seconds["a request"]
    bars = {**outcome.seconds, f"{outcome.requests} requests": every}
    names, seconds = list(bars), list(bars.values())
    axis.bar(names, seconds, color=[PANELS["target"], PANELS["processed"], PANELS["processed"]], width=0.6)
    axis.set_yscale("log")
    axis.tick_params(labelsize=9)
    axis.set_title(
        f"seconds: a request 1/{seconds[0] / seconds[1]:.0f} of a retraining,\n"
        f"{outcome.requests} requests {every / seconds[0]:.1f} retrainings",
        fontsize=10,
    )
    axis.bar_label(axis.containers[0], [f"{value:.2g} s" for value in seconds], padding=2, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylim(min(seconds) / 3, max(seconds) * 3)


def _padded(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


# --- the networks


TIMED = {
    "retrain": ("retrain", GREY),
    "fine-tuning": ("fine-tuning (the paper's IS)", SKY),
    "paper": ("the paper's method", VERMILION),
    OURS: ("ours: all rows in one request", GREEN),
}
TRUE, OTHER = "#CC0000", "#A9B8C6"
"""Red and a light grey blue, which differ in lightness as well."""
CASES = {"paper": "the paper's method", OURS: "ours, the rewound continuation"}


def draw_request_times(results: list[Result], target: Path) -> list[Path]:
    """The paper's Figures 2 and 4: seconds to answer a request, a group of bars for each data set and sampler."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        settings = result["settings"]
        groups.setdefault(f"{TITLES[settings['dataset']]}\n{settings['sampler'].upper()}", []).append(result)
    figure = new_figure(max(6.0, 2.4 + 1.75 * len(groups)), 3.7)
    axis = figure.subplots()
    width, known = 0.8 / len(TIMED), []
    for place, (method, (label, colour)) in enumerate(TIMED.items()):
        for at, blocks in enumerate(groups.values()):
            found = [seconds for block in blocks if (seconds := note_of(block, method, "seconds"))]
            x = at + (place - (len(TIMED) - 1) / 2) * width
            if not found:
                axis.text(x, 0.02, "not measured", rotation=90, ha="center", fontsize=7, transform=_across(axis))
                continue
            value = float(np.mean(found))
            known.append(value)
            bar = axis.bar(x, value, 0.92 * width, color=colour)
            axis.bar_label(bar, [_seconds(value)], padding=2, fontsize=7)
        axis.bar(0, np.nan, color=colour, label=label)
    axis.set_yscale("log")
    if known:
        axis.set_ylim(min(known) / 4, max(known) * 2.5)
    axis.set_xticks(range(len(groups)), list(groups))
    axis.set_xlim(-0.55, len(groups) - 0.45)
    axis.set_ylabel("seconds to answer a request")
    axis.tick_params(axis="x", length=0)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2 if len(groups) < 4 else 4, frameon=False, fontsize=9)
    return _save(figure, target)


def _across(axis: Any) -> Any:
    return axis.get_xaxis_transform()


def _seconds(value: float) -> str:
    """Two digits, without an exponent."""
    digits = max(0, 1 - int(np.floor(np.log10(value))))
    return f"{value:,.{digits}f} s"


def draw_case_study(
    result: Result,
    images: UInt8[np.ndarray, "images height width channels"],
    target: Path,
    *,
    method: str = "paper",
) -> list[Path]:
    """The paper's Figure 3: test images, and their class probabilities as rows are removed; the true class is red.

    True classes are `case_study_labels` of the result; where there are none, nothing is red.
    """
    true = result.get("case_study_labels")
    panels = np.array(note_of(result, method, "panels"), float)  # (images, panels, classes)
    gone = note_of(result, method, "panel_removed")
    classes = result["classes"]
    height = 0.155 * len(classes) + 0.3
    figure = new_figure(9.6, height * len(images) + 0.75)
    ratios = [1.0] + [1.25] * panels.shape[1]
    axes = figure.subplots(len(images), 1 + panels.shape[1], squeeze=False, width_ratios=ratios)
    for row, (image, line) in enumerate(zip(images, axes, strict=True)):
        truth = None if true is None else true[row]
        line[0].imshow(image.squeeze(), cmap="gray_r", interpolation="nearest")
        line[0].set_axis_off()
        if truth is not None:
            line[0].set_title(classes[truth], color=TRUE, fontsize=9)
        for panel, axis in enumerate(line[1:]):
            _draw_probabilities(
                axis, panels[row, panel], classes, truth, names=panel == 0, ticks=row == len(images) - 1
            )
            if row == 0:
                axis.set_title(f"{gone[panel]:,} removed" if gone[panel] else "before", fontsize=9)
    figure.supxlabel("mean class probability", fontsize=9)
    figure.suptitle(f"{result['title']}: {CASES[method]}", fontsize=11)
    return _save(figure, target)


def _draw_probabilities(
    axis: Any,
    values: Float[np.ndarray, " classes"],
    classes: list[str],
    true: int | None,
    *,
    names: bool,
    ticks: bool,
) -> None:
    colours = [TRUE if at == true else OTHER for at in range(len(classes))]
    axis.barh(range(len(classes)), values, color=colours, height=0.78)
    axis.set_yticks(range(len(classes)), classes if names else [], fontsize=7.5)
    axis.set_ylim(len(classes) - 0.5, -0.5)
    axis.set_xlim(0, 1.12)
    axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"] if ticks else [], fontsize=7.5)
    axis.grid(axis="x", color="#E5E5E5", lw=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(length=0)
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.spines["left"].set_color("#BBBBBB")
    if names and true is not None:
        axis.get_yticklabels()[true].set(color=TRUE, fontweight="bold")


def _save(figure: Any, target: Path) -> list[Path]:
    """As PNG and SVG, the same bytes every time."""
    import matplotlib

    paths = [target.with_name(f"{target.name}.{kind}") for kind in ("png", "svg")]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis in figure.axes:  # the layout's last digits vary from run to run, and ids are made from all of them
        axis.set_position([round(each, 5) for each in axis.get_position(original=True).bounds])
    with matplotlib.rc_context({"svg.hashsalt": "posterase"}):
        for path, metadata in zip(paths, ({"Software": None}, {"Date": None}), strict=True):
            with written_whole(path) as beside:
                figure.savefig(beside, dpi=160, metadata=metadata)
    return paths
