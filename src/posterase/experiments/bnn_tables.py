"""Tables and checks of the networks' experiment, from what `posterase.experiments.bnn_results` found.

A table is a `Grid` of plain text first; Markdown, LaTeX and the terminal's table are three renderings of it. Beside
our figures stand the paper's (Tables 1 to 3, `paper_tables.json`): Retrain, Origin, IS (which is fine-tuning: further
steps on the kept rows) and Ours (here: the paper's method). What it does not have are the floor (Retrain with another
seed), the sampler's steps of its method alone, importance sampling, corrected continuation, and our method, which
rewinds.

What nobody measured is called so and never printed as a number; the paper prints 0.00 there.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from posterase.experiments.bnn import PAPER
from posterase.experiments.bnn_results import SETS
from posterase.experiments.grids import Grid, flat, number, rich_table
from posterase.numerics.weights import Estimate

Result = dict[str, Any]
"""Of one block, as `bnn_results.results` gives it or JSON has it."""
NOT_MEASURED = "not measured"

NAMES = {
    "retrain": "Retrain",
    "retrain 2": "floor: Retrain, another seed",
    "origin": "Origin: nothing done",
    "fine-tuning": "fine-tuning (the paper's IS)",
    "paper": "the paper's method (Ours there)",
    "steps alone": "its sampler's steps alone",
    "importance sampling": "importance sampling",
    "corrected": "corrected continuation",
    "rewound": "ours: rewound continuation",
}
SHORT = {
    "retrain": "Retrain",
    "retrain 2": "floor",
    "origin": "Origin",
    "fine-tuning": "fine-tuning",
    "paper": "paper's method",
    "steps alone": "its steps alone",
    "importance sampling": "importance s.",
    "corrected": "corrected",
    "rewound": "ours (rewound)",
}
"""For a terminal."""
IN_THE_PAPER = {"retrain": "retrain", "origin": "origin", "fine-tuning": "is", "paper": "ours"}
PRINTED = {"retrain": "Retrain", "origin": "Origin", "is": "IS", "ours": "Ours"}
FLOOR, OURS = "retrain 2", "rewound"
OTHER_START = "Retrain, another start"

HALF_A_DIGIT = 0.005
"""Half a unit of the last digit that the paper prints; it prints two, everywhere."""
MOST_EXCESS = (0.03, 0.06)
"""What our method may be farther from Retrain than the floor is, on removed rows: smaller and larger change."""
AIMED_AT = ("fashion-mnist", "cifar10")
"""The paper's data sets, for which these aims were set."""
ONE_POINT, MOST_SHARE = 1.0, 5.0
"""In percent: what errors and MIA may be off by, however small Retrain's spread; the most of a retraining's cost."""


class Metric(NamedTuple):
    """A column: its key in our results, in the paper's copy, and how it is printed."""

    key: str
    printed: str | None
    title: str
    digits: int = 2
    scale: float = 1.0


ERRORS = tuple(Metric(f"error_{each}", f"error_{each}", f"error on\n{each}\nrows, %") for each in SETS)
MIA = Metric("mia", "mia", "MIA, %")
EPSILONS = (
    Metric("epsilon_as_run", "epsilon_knn_1e3", "ε̂ ×10³,\nas run", scale=1e-3),
    Metric("epsilon", None, "ε̂ ×10³,\nequal steps", scale=1e-3),
)
DIFFERENCES = tuple(
    Metric(f"difference_{each}", f"prediction_difference_{each}", f"difference on\n{each} rows", 3) for each in SETS
)
METRICS = (*ERRORS, MIA, *EPSILONS, *DIFFERENCES)


# --- numbers


class Spread(NamedTuple):
    """Mean and standard deviation over repeats."""

    mean: float
    sd: float | None
    """None: of a single repeat."""
    failed: int = 0
    """Repeats without a finite value; mean and sd are none then."""
    repeats: int = 5

    def text(self, digits: int = 2) -> str:
        """For people."""
        if self.failed:
            return f"not finite in {self.failed} of {self.repeats} chains"
        return number(self.mean, digits) + (f" ± {number(self.sd, digits)}" if self.sd is not None else "")


def spread(values: Sequence[float | None] | None, scale: float = 1.0) -> Spread | None:
    """Of one value a chain; None where there are no values."""
    if not values:
        return None
    array = scale * np.array(values, float)
    failed = int(np.sum(~np.isfinite(array)))
    if failed:
        return Spread(math.nan, math.nan, failed, len(array))
    sd = float(array.std(ddof=1)) if len(array) > 1 else None
    return Spread(float(array.mean()), sd, 0, len(array))


def paired(values: Sequence[float | None], floor: Sequence[float | None]) -> Estimate:
    """Mean of the differences chain by chain, and its standard error: what a jackknife over chains gives of a mean."""
    differences = np.array(values, float) - np.array(floor, float)
    n = len(differences)
    if n < 2:
        return Estimate(float(differences.mean()), math.nan)
    return Estimate(float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(n)))


def text_of(value: Spread | Estimate | None, digits: int = 2) -> str:
    """For people."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, Spread):
        return value.text(digits)
    if not math.isfinite(value.value):
        return "not finite"
    error = f" ± {number(value.error, digits)}" if math.isfinite(value.error) else ""
    return number(value.value, digits) + error


def mean_text(value: Spread | None) -> str:
    """Without the spread."""
    return text_of(value._replace(sd=None) if value else None)


def range_of(values: Iterable[float | None], digits: int = 2, unit: str = "") -> str:
    """The least to the largest of those that are known."""
    known = [each for each in values if each is not None and math.isfinite(each)]
    if not known:
        return NOT_MEASURED
    low, high = number(min(known), digits), number(max(known), digits)
    return (low if low == high else f"{low} to {high}") + unit


# --- looking things up


def name_of(result: Result) -> str:
    """The block's name, for files."""
    return str(result["name"])


def values_of(result: Result, method: str, key: str) -> list[float | None] | None:
    """One value a chain of a method, or None."""
    return result["methods"].get(method, {}).get(key) or None


def note_of(result: Result, method: str, key: str) -> Any:
    """What a method noted, or None."""
    return result["methods"].get(method, {}).get("notes", {}).get(key)


def floor_of(result: Result, key: str) -> list[float | None] | None:
    """The same between two retrainings."""
    return (result.get("floor") or {}).get(key) or values_of(result, FLOOR, key)


def over(result: Result, method: str, metric: Metric, other: list[float | None] | None) -> Estimate | None:
    """A method's value minus another's, chain by chain."""
    own = values_of(result, method, metric.key)
    if own is None or other is None or len(own) != len(other):
        return None
    found = paired(own, other)
    return Estimate(metric.scale * found.value, metric.scale * found.error)


@functools.cache
def papers_figures() -> dict[tuple[str, str, int, str], dict[str, Spread | None]]:
    """The paper's Tables 1 to 3; None is what it did not measure."""
    text = (resources.files("posterase.experiments") / "paper_tables.json").read_text(encoding="utf-8")
    found = {}
    for row in json.loads(text)["rows"]:
        figures = {key: value and Spread(value["mean"], value["sd"]) for key, value in row.items() if "_" in key}
        figures["mia"] = Spread(row["mia"]["mean"], row["mia"]["sd"])
        found[row["dataset"], row["sampler"], row["removed"], row["method"]] = figures
    return found


def printed(result: Result, method: str) -> dict[str, Spread | None]:
    """The paper's figures of a method; empty where it has none, or the block is not of the paper's size."""
    settings = result["settings"]
    if method not in IN_THE_PAPER or settings.get("rows") is not None:
        return {}
    key = settings["dataset"], settings["sampler"], settings["removed"], IN_THE_PAPER[method]
    return papers_figures().get(key, {})


def methods_of(result: Result) -> list[str]:
    """Those that were run, in the tables' order."""
    again = [name for name in result["methods"] if name.startswith("retrain ") and name not in NAMES]
    return [name for name in NAMES if name in result["methods"]] + again


def label_of(method: str) -> str:
    """A method's name in the tables."""
    return NAMES.get(method, f"Retrain, number {method.removeprefix('retrain ')}")


# --- the paper's tables, and how far everything is from Retrain


def errors_grid(result: Result, *, epsilon: bool = True) -> Grid:
    """The paper's Table 1 (CIFAR-10) or 2 (Fashion-MNIST); ε̂ has its floor in its column's title."""
    floors = [spread(floor_of(result, metric.key), metric.scale) for metric in EPSILONS]
    under = [f"{metric.title};\nfloor {mean_text(floor)}" for metric, floor in zip(EPSILONS, floors, strict=True)]
    metrics = (*ERRORS, MIA, *(EPSILONS if epsilon else ()))
    columns = ("method", *(metric.title for metric in (*ERRORS, MIA)), *(under if epsilon else ()))
    note = (
        f"Mean ± standard deviation over {result['settings']['chains']} chains. MIA is to be Retrain's, not low. "
        f"Against the paper: {matches(result).summary}."
    )
    return _beside_the_papers(result, f"{result['title']}: errors", columns, metrics, note)


def differences_grid(result: Result) -> Grid:
    """The paper's Table 3: how far predictions are from those of a retrained network."""
    columns = ("method", *(metric.title for metric in DIFFERENCES))
    note = "Mean over rows of ‖f − f′‖₁ against retrained networks; the floor is what two of those differ by."
    grid = _beside_the_papers(result, f"{result['title']}: prediction differences", columns, DIFFERENCES, note)
    rows = [row for row in grid.rows if row[0] != NAMES["retrain"]]
    if apart := result.get("other_starts"):
        cells = (text_of(spread(apart[each.key]), each.digits) for each in DIFFERENCES)
        rows.insert(next((at + 1 for at, row in enumerate(rows) if row[0] == NAMES[FLOOR]), 0), (OTHER_START, *cells))
    return grid._replace(rows=rows)


def _beside_the_papers(
    result: Result, title: str, columns: tuple[str, ...], metrics: Sequence[Metric], note: str
) -> Grid:
    rows = []
    for method in methods_of(result):
        own = (spread(values_of(result, method, each.key), each.scale) for each in metrics)
        if method == FLOOR:
            own = (spread(floor_of(result, each.key), each.scale) for each in metrics)
        rows.append(
            (label_of(method), *(text_of(value, each.digits) for value, each in zip(own, metrics, strict=True)))
        )
        figures = printed(result, method)
        if any(each.printed in figures for each in metrics):
            theirs = (figures.get(each.printed) if each.printed else None for each in metrics)
            rows.append((f"↳ printed: {PRINTED[IN_THE_PAPER[method]]}", *(text_of(value) for value in theirs)))
    return Grid(title, columns, rows, note)


def distances_grid(result: Result) -> Grid:
    """How far errors and MIA are from Retrain's, whichever way."""
    metrics = (*ERRORS, MIA)
    rows = []
    for method in methods_of(result):
        if method != "retrain":
            found = [over(result, method, each, values_of(result, "retrain", each.key)) for each in metrics]
            sizes = [each and Estimate(abs(each.value), each.error) for each in found]
            rows.append((label_of(method), *(text_of(size) for size in sizes)))
    columns = ("method", *(each.title for each in metrics))
    note = "± standard error, paired over chains."
    return Grid(f"{result['title']}: distance from Retrain, in points", columns, rows, note)


def excess_grid(result: Result) -> Grid:
    """Prediction differences and ε̂ minus their floors."""
    metrics = (*DIFFERENCES, *EPSILONS)
    rows = [
        (
            label_of(method),
            *(text_of(over(result, method, each, floor_of(result, each.key)), each.digits) for each in metrics),
        )
        for method in methods_of(result)
        if not method.startswith("retrain")
    ]
    note = "± standard error, paired over chains. Zero is what a retrained network would have."
    return Grid(
        f"{result['title']}: what is left above the floor", ("method", *(each.title for each in metrics)), rows, note
    )


def block_grids(result: Result) -> list[Grid]:
    """Every table of a block."""
    return [errors_grid(result), differences_grid(result), distances_grid(result), excess_grid(result)]


def rich_tables(result: Result) -> list[Table]:
    """The two that a terminal has room for, under short names; the files have the others."""
    short = {NAMES[method]: name for method, name in SHORT.items()}
    grids = [errors_grid(result, epsilon=False), differences_grid(result)]
    return [
        rich_table(grid._replace(rows=[(short.get(row[0], row[0]), *row[1:]) for row in grid.rows])) for grid in grids
    ]


# --- do our figures match the paper's?


class Match(NamedTuple):
    """One figure that the paper prints, and ours."""

    block: str
    method: str
    metric: Metric
    ours: Spread | None
    paper: Spread
    allowed: float
    agrees: bool


class Matches(NamedTuple):
    """Of one block or of several."""

    compared: list[Match]
    unmeasured: list[Match]
    """Those that the paper prints and we did not measure."""

    @property
    def missed(self) -> list[Match]:
        """Those that do not match."""
        return [each for each in self.compared if not each.agrees]

    @property
    def summary(self) -> str:
        """In one line."""
        if not self.compared and not self.unmeasured:
            return "it prints no figures for this"
        said = f"{len(self.compared) - len(self.missed)} of {len(self.compared)} figures match"
        return said + (f", {len(self.unmeasured)} not measured here" if self.unmeasured else "")


def matches(result: Result) -> Matches:
    """Every figure that the paper prints against ours: apart by two joint standard deviations at most, and rounding."""
    found = Matches([], [])
    for method in IN_THE_PAPER:
        for metric in METRICS:
            paper = printed(result, method).get(metric.printed or "")
            if paper is None:
                continue
            ours = spread(values_of(result, method, metric.key), metric.scale)
            allowed = 2 * math.hypot(paper.sd or 0.0, (ours and ours.sd) or 0.0) + HALF_A_DIGIT
            agrees = ours is not None and abs(ours.mean - paper.mean) <= allowed + 1e-9
            where = found.compared if ours else found.unmeasured
            where.append(Match(result["title"], method, metric, ours, paper, allowed, agrees))
    return found


def all_matches(results: Sequence[Result]) -> Matches:
    """Of several blocks together."""
    each = [matches(result) for result in results]
    return Matches([one for of in each for one in of.compared], [one for of in each for one in of.unmeasured])


def matches_grid(results: Sequence[Result]) -> Grid:
    """The figures that do not match, with both values."""
    rows = [
        (
            each.block,
            NAMES[each.method],
            flat(each.metric.title),
            text_of(each.ours, each.metric.digits),
            text_of(each.paper),
            number(each.allowed, each.metric.digits) if math.isfinite(each.allowed) else "any",
        )
        for each in all_matches(results).missed
    ]
    columns = ("block", "method", "figure", "ours", "the paper's", "allowed apart")
    return Grid("Figures that do not match", columns, rows, f"In all: {all_matches(results).summary}.")


# --- what our method was to reach


class Target(NamedTuple):
    """One of the aims set for our method on a block."""

    what: str
    value: Estimate | None
    bound: float | None
    digits: int = 2
    unit: str = ""

    @property
    def reached(self) -> bool | None:
        """None: not measured."""
        return None if self.value is None or self.bound is None else self.value.value <= self.bound + 1e-9

    @property
    def cells(self) -> tuple[str, str, str]:
        """Value, bound, and whether it is reached."""
        if self.reached is None or self.bound is None:
            return (NOT_MEASURED,) * 3
        bound = f"≤ {number(self.bound, self.digits)}{self.unit}"
        return f"{text_of(self.value, self.digits)}{self.unit}", bound, "yes" if self.reached else "no"

    @property
    def text(self) -> str:
        """The same in one cell."""
        value, bound, reached = self.cells
        return NOT_MEASURED if self.reached is None else f"{value} {bound}: {reached}"


def targets(result: Result) -> list[Target]:
    """Prediction difference on removed rows over the floor, errors and MIA from Retrain's, and cost."""
    if result["settings"]["dataset"] not in AIMED_AT:
        return []
    removed = DIFFERENCES[SETS.index("removed")]
    excess = over(result, OURS, removed, floor_of(result, removed.key))
    found = [Target("difference on\nremoved rows\nover the floor", excess, MOST_EXCESS[_is_larger(result)], 3)]
    for metric in (*ERRORS, MIA):
        wanted = values_of(result, "retrain", metric.key)
        apart, spread_wanted = over(result, OURS, metric, wanted), spread(wanted)
        sd = spread_wanted.sd if spread_wanted else None
        bound = max(ONE_POINT, sd or 0.0) if spread_wanted else None
        found.append(Target(metric.title, apart and Estimate(abs(apart.value), apart.error), bound))
    share = note_of(result, OURS, "share_of_retraining")
    cost = None if share is None else Estimate(100 * share, math.nan)
    return [*found, Target("gradients, of\na retraining's", cost, MOST_SHARE, 2, " %")]


def _is_larger(result: Result) -> bool:
    """Whether the removal is the larger of the data set's two."""
    settings = result["settings"]
    small, large = PAPER[settings["dataset"]][1]
    tenth = 10 if settings.get("rows") is not None else 1
    return bool(2 * tenth * settings["removed"] > small + large)


AIMS = "Errors and MIA: distance from Retrain's, in points; within one standard deviation of it, or one point."


def targets_grid(results: Sequence[Result]) -> Grid:
    """Value, bound and whether it is reached, for every block."""
    each = [targets(result) for result in results]
    titles = tuple(target.what for target in each[0]) if each else ()
    rows = [
        (result["title"], *(target.text for target in found), count_of(found))
        for result, found in zip(results, each, strict=True)
    ]
    return Grid("What our method was to reach", ("block", *titles, "reached"), rows, AIMS)


def count_of(found: Sequence[Target]) -> str:
    """How many were reached."""
    return f"{sum(bool(each.reached) for each in found)} of {len(found)}"
