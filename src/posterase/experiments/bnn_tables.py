"""Tables, checks and the page of the networks' experiment, from what `posterase.experiments.bnn_results` found.

A table is a `Grid` of plain text first; Markdown, LaTeX and the terminal's table are three renderings of it. Beside
our figures stand the paper's (Tables 1 to 3, `paper_tables.json`): Retrain, Origin, IS (which is fine-tuning: further
steps on the kept rows) and Ours (here: the paper's method). What it does not have are the floor (Retrain with another
seed), the sampler's steps of its method alone, importance sampling, and our method, the corrected continuation.

What nobody measured is called so and never printed as a number; the paper prints 0.00 there.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from posterase.experiments.bnn import PAPER, TITLES
from posterase.numerics.weights import Estimate, pareto_k_threshold

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
    "corrected": "ours: corrected continuation",
}
IN_THE_PAPER = {"retrain": "retrain", "origin": "origin", "fine-tuning": "is", "paper": "ours"}
PRINTED = {"retrain": "Retrain", "origin": "Origin", "is": "IS", "ours": "Ours"}
FLOOR, OURS = "retrain 2", "corrected"

HALF_A_DIGIT = 0.005
"""Half a unit of the last digit that the paper prints; it prints two, everywhere."""
MOST_EXCESS = (0.03, 0.06)
"""What our method may be farther from Retrain than the floor is, on removed rows: smaller and larger removal."""
ONE_POINT, MOST_SHARE = 1.0, 5.0
"""In percent: what errors and MIA may be off by, however small Retrain's spread; the most of a retraining's cost."""


class Metric(NamedTuple):
    """A column: its key in our results, in the paper's copy, and how it is printed."""

    key: str
    printed: str | None
    title: str
    digits: int = 2
    scale: float = 1.0


SETS = ("kept", "removed", "test")
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
    """Mean of the differences chain by chain, and its standard error: a jackknife over chains."""
    differences = np.array(values, float) - np.array(floor, float)
    n = len(differences)
    if n < 2:
        return Estimate(float(differences.mean()), math.nan)
    without = (differences.sum() - differences) / (n - 1)
    error = np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2))
    return Estimate(float(differences.mean()), float(error))


def number(value: float, digits: int) -> str:
    """With a true minus, and no negative zero."""
    return f"{value:z.{digits}f}".replace("-", "−")


def _text(value: Spread | Estimate | None, digits: int = 2) -> str:
    if value is None:
        return NOT_MEASURED
    if isinstance(value, Spread):
        return value.text(digits)
    if not math.isfinite(value.value):
        return "not finite"
    error = f" ± {number(value.error, digits)}" if math.isfinite(value.error) else ""
    return number(value.value, digits) + error


def _range(values: Iterable[float | None], digits: int = 2, unit: str = "") -> str:
    """The least to the largest of those that are known."""
    known = [each for each in values if each is not None and math.isfinite(each)]
    if not known:
        return NOT_MEASURED
    low, high = number(min(known), digits), number(max(known), digits)
    return (low if low == high else f"{low} to {high}") + unit


# --- looking things up


def name_of(result: Result) -> str:
    """The block's name, for files."""
    settings = result["settings"]
    return f"{settings['dataset']}-{settings['sampler']}-{settings['removed']}"


def values_of(result: Result, method: str, key: str) -> list[float | None] | None:
    """One value a chain of a method, or None."""
    return result["methods"].get(method, {}).get(key) or None


def note_of(result: Result, method: str, key: str) -> Any:
    """What a method noted, or None."""
    return result["methods"].get(method, {}).get("notes", {}).get(key)


def floor_of(result: Result, key: str) -> list[float | None] | None:
    """The same between two retrainings."""
    if key.startswith("difference_"):
        return (result.get("floor") or {}).get(key.removeprefix("difference_")) or None
    return values_of(result, FLOOR, key)


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


def _methods(result: Result) -> list[str]:
    """Those that were run, in the tables' order."""
    again = [name for name in result["methods"] if name.startswith("retrain ") and name not in NAMES]
    return [name for name in NAMES if name in result["methods"]] + again


def _label(method: str) -> str:
    return NAMES.get(method, f"Retrain, seed {method.removeprefix('retrain ')}")


def _flat(title: str) -> str:
    return title.replace("\n", " ")


# --- one form for all tables


class Grid(NamedTuple):
    """A table as plain text; a line break in a column's title is one."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def markdown(grid: Grid) -> str:
    """For the documentation."""
    lines = [grid.columns, ("---",) + ("---:",) * (len(grid.columns) - 1), *grid.rows]
    table = ["| " + " | ".join(_flat(cell).replace("|", r"\|") for cell in line) + " |" for line in lines]
    return "\n".join([f"**{grid.title}**", "", *table, *(["", grid.note] if grid.note else [])])


TEX = {
    "ε̂": r"$\hat\varepsilon$",
    "k̂": r"$\hat k$",
    "×10³": r"$\times 10^3$",
    "‖f − f′‖₁": r"$\|f - f'\|_1$",
    **{each: "\\" + each for each in "%&_#"},
    **{"±": r"$\pm$", "−": "$-$", "≤": r"$\le$", "×": r"$\times$", "↳": r"$\hookrightarrow$"},
}


def latex(grid: Grid) -> str:
    """A booktabs table; its note ends the caption."""
    longest_first = "|".join(map(re.escape, sorted(TEX, key=len, reverse=True)))

    def escaped(text: str) -> str:
        return re.sub(longest_first, lambda found: TEX[found[0]], text)

    def head(title: str) -> str:
        lines = [escaped(line) for line in title.split("\n")]
        return lines[0] if len(lines) == 1 else r"\shortstack[r]{" + r" \\ ".join(lines) + "}"

    caption = escaped(f"{grid.title}. {grid.note}".strip())
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\scriptsize",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(grid.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(head, grid.columns)) + r" \\",
            r"\midrule",
            *(" & ".join(map(escaped, row)) + r" \\" for row in grid.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def rich_table(grid: Grid) -> Table:
    """For a terminal."""
    table = Table(title=grid.title, title_justify="left", title_style="bold", caption=grid.note, caption_justify="left")
    for at, title in enumerate(grid.columns):
        table.add_column(title, justify="right" if at else "left")
    for row in grid.rows:
        table.add_row(*row)
    return table


# --- the paper's tables, and how far everything is from Retrain


def errors_grid(result: Result) -> Grid:
    """The paper's Table 1 (CIFAR-10) or 2 (Fashion-MNIST); ε̂ has its floor in its column's title."""
    floors = [spread(floor_of(result, metric.key), metric.scale) for metric in EPSILONS]
    under = [f"{metric.title};\nfloor {_mean_text(floor)}" for metric, floor in zip(EPSILONS, floors, strict=True)]
    columns = ("method", *(metric.title for metric in ERRORS), MIA.title, *under)
    note = (
        f"Mean ± standard deviation over {result['settings']['chains']} chains. MIA is to be Retrain's, not low. "
        f"Against the paper: {matches(result).summary}."
    )
    return _beside_the_papers(result, f"{result['title']}: errors", columns, (*ERRORS, MIA, *EPSILONS), note)


def differences_grid(result: Result) -> Grid:
    """The paper's Table 3: how far predictions are from those of a retrained network."""
    columns = ("method", *(metric.title for metric in DIFFERENCES))
    note = "Mean over rows of ‖f − f′‖₁ against retrained networks; the floor is what two of those differ by."
    grid = _beside_the_papers(result, f"{result['title']}: prediction differences", columns, DIFFERENCES, note)
    return grid._replace(rows=[row for row in grid.rows if row[0] != NAMES["retrain"]])


def _beside_the_papers(
    result: Result, title: str, columns: tuple[str, ...], metrics: Sequence[Metric], note: str
) -> Grid:
    rows = []
    for method in _methods(result):
        own = (spread(values_of(result, method, each.key), each.scale) for each in metrics)
        if method == FLOOR:
            own = (spread(floor_of(result, each.key), each.scale) for each in metrics)
        rows.append((_label(method), *(_text(value, each.digits) for value, each in zip(own, metrics, strict=True))))
        figures = printed(result, method)
        if any(each.printed in figures for each in metrics):
            theirs = (figures.get(each.printed) if each.printed else None for each in metrics)
            rows.append((f"↳ printed: {PRINTED[IN_THE_PAPER[method]]}", *(_text(value) for value in theirs)))
    return Grid(title, columns, rows, note)


def distances_grid(result: Result) -> Grid:
    """How far errors and MIA are from Retrain's, whichever way."""
    metrics = (*ERRORS, MIA)
    rows = []
    for method in _methods(result):
        if method != "retrain":
            found = [over(result, method, each, values_of(result, "retrain", each.key)) for each in metrics]
            sizes = [each and Estimate(abs(each.value), each.error) for each in found]
            rows.append((_label(method), *(_text(size) for size in sizes)))
    columns = ("method", *(each.title for each in metrics))
    note = "± standard error, paired over chains."
    return Grid(f"{result['title']}: distance from Retrain, in points", columns, rows, note)


def excess_grid(result: Result) -> Grid:
    """Prediction differences and ε̂ minus their floors."""
    metrics = (*DIFFERENCES, *EPSILONS)
    rows = [
        (
            _label(method),
            *(_text(over(result, method, each, floor_of(result, each.key)), each.digits) for each in metrics),
        )
        for method in _methods(result)
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
    """Every table of a block, for a terminal, and what our method was to reach."""
    return [rich_table(grid) for grid in (*block_grids(result), aims_grid(result))]


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
            _flat(each.metric.title),
            _text(each.ours, each.metric.digits),
            _text(each.paper),
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
        return f"{_text(self.value, self.digits)}{self.unit}", bound, "yes" if self.reached else "no"

    @property
    def text(self) -> str:
        """The same in one cell."""
        value, bound, reached = self.cells
        return NOT_MEASURED if self.reached is None else f"{value} {bound}: {reached}"


def targets(result: Result) -> list[Target]:
    """Prediction difference on removed rows over the floor, errors and MIA from Retrain's, and cost."""
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


def aims_grid(result: Result) -> Grid:
    """Value, bound and whether it is reached, for one block."""
    rows = [(_flat(each.what), *each.cells) for each in targets(result)]
    title = f"{result['title']}: what our method was to reach"
    return Grid(title, ("", "value", "bound", "reached"), rows, AIMS)


def targets_grid(results: Sequence[Result]) -> Grid:
    """Value, bound and whether it is reached, for every block."""
    each = [targets(result) for result in results]
    titles = tuple(target.what for target in each[0]) if each else ()
    rows = [
        (result["title"], *(target.text for target in found), _count(found))
        for result, found in zip(results, each, strict=True)
    ]
    return Grid("What our method was to reach", ("block", *titles, "reached"), rows, AIMS)


def _count(found: Sequence[Target]) -> str:
    return f"{sum(bool(each.reached) for each in found)} of {len(found)}"


# --- further tables of the page


def epsilon_grid(results: Sequence[Result]) -> Grid:
    """ε̂ both ways for those that say most, each beside its floor."""
    shown = {FLOOR: "floor", "origin": "Origin", "paper": "paper's method", "fine-tuning": "fine-tuning", OURS: "ours"}
    columns = tuple(f"{name},\n{way}" for name in shown.values() for way in ("as run", "equal steps"))
    rows = [
        (
            result["title"],
            *(
                _mean_text(spread(values_of(result, method, metric.key), metric.scale))
                for method in shown
                for metric in EPSILONS
            ),
        )
        for result in results
    ]
    return Grid("ε̂ ×10³, means over chains", ("block", *columns), rows)


def _mean_text(value: Spread | None) -> str:
    return _text(value._replace(sd=None) if value else None)


def ablation_grid(results: Sequence[Result]) -> Grid:
    """The paper's method without its shift: what its sampler's steps do alone."""
    error, difference = ERRORS[SETS.index("removed")], DIFFERENCES[SETS.index("removed")]
    shown = {"origin": "Origin", "steps alone": "steps alone", "paper": "paper's method"}
    columns = (
        *(f"error on removed rows:\n{name}" for name in (*shown.values(), "Retrain")),
        *(f"difference over floor:\n{name}" for name in shown.values()),
        "share of the move\nthat the steps make",
    )
    rows = []
    for result in results:
        errors = (spread(values_of(result, method, error.key)) for method in (*shown, "retrain"))
        excesses = [over(result, method, difference, floor_of(result, difference.key)) for method in shown]
        share = _share_of_move(result)
        said = NOT_MEASURED if share is None else f"{number(100 * share, 0)} %"
        cells = (*(_text(each) for each in errors), *(_text(each, difference.digits) for each in excesses), said)
        rows.append((result["title"], *cells))
    return Grid("The ablation that the paper does not have", ("block", *columns), rows)


def _share_of_move(result: Result) -> float | None:
    """Of what the paper's method takes off Origin's difference on removed rows, the part that its steps do alone."""
    key = "difference_removed"
    found = [spread(values_of(result, method, key)) for method in ("origin", "steps alone", "paper")]
    means = [each.mean for each in found if each is not None and not each.failed]
    if len(means) < 3 or means[0] <= means[2]:
        return None
    return (means[0] - means[1]) / (means[0] - means[2])


def importance_grid(results: Sequence[Result]) -> Grid:
    """Importance sampling's own diagnostics."""
    rows = []
    for result in results:
        k_hat, ess = (note_of(result, "importance sampling", key) for key in ("k_hat", "ess"))
        known = [each for each in k_hat or [] if each is not None and math.isfinite(each)]
        said = _range(known) if known or not k_hat else ""
        if k_hat and len(known) < len(k_hat):
            without = f"none that is finite in {len(k_hat) - len(known)} of {len(k_hat)} chains"
            said = f"{said}; {without}" if said else without
        drawn = f"{result['settings']['draws']:,}"
        errors = (spread(values_of(result, each, "error_removed")) for each in ("importance sampling", "retrain"))
        limit = number(pareto_k_threshold(result["settings"]["draws"]), 2)
        rows.append((result["title"], drawn, said, limit, _range(ess or [], 1), *(_text(each) for each in errors)))
    columns = (
        "block",
        "draws\na chain",
        "k̂",
        "k̂ that is\ntrusted",
        "effective\ndraws",
        "error on\nremoved rows, %",
        "Retrain's",
    )
    return Grid("Importance sampling, from the least to the largest of the chains", columns, rows)


def refusals_grid(results: Sequence[Result]) -> Grid:
    """Shifts that were refused since their series diverged, and what our method refused."""
    rows = []
    for result in results:
        refused, requests, last = (note_of(result, "paper", key) for key in ("refused_shifts", "requests", "last_term"))
        rounds, settled = (note_of(result, OURS, key) for key in ("refused_rounds", "settled"))
        chains = result["settings"]["chains"]
        of = f" of {requests * chains:,}" if requests else ""
        rows.append(
            (
                result["title"],
                NOT_MEASURED if refused is None else f"{refused:,}{of}",
                *(_significant((last or {}).get(key)) for key in ("median", "largest")),
                NOT_MEASURED if rounds is None else str(sum(rounds)),
                NOT_MEASURED if settled is None else f"{sum(settled)} of {len(settled)} chains",
            )
        )
    columns = (
        "block",
        "refused shifts\n(requests × chains)",
        "last term of the series,\nof its first: median",
        "largest",
        "ours: rounds\nrefused",
        "ours: settled\nbefore the budget's end",
    )
    return Grid("What was refused", columns, rows)


def times_grid(results: Sequence[Result]) -> Grid:
    """Seconds of a request and of the whole removal, for all chains together."""
    rows = []
    for result in results:
        seconds = {method: note_of(result, method, "seconds") for method in result["methods"]}
        whole, ours = seconds.get("retrain"), seconds.get(OURS)
        cells = [_significant(whole, " s")]
        for method in ("fine-tuning", "paper"):
            one, requests = seconds.get(method), note_of(result, method, "requests")
            cells += [_significant(one, " s"), _significant(one * requests if one and requests else None, " s")]
        share = 100 * ours / whole if ours and whole else None
        rows.append((result["title"], *cells, _significant(ours, " s"), _significant(share, " %")))
    columns = (
        "block",
        "Retrain",
        "fine-tuning,\na request",
        "all requests",
        "paper's method,\na request",
        "all requests",
        "ours, all rows\nin one request",
        "ours, of\nRetrain's time",
    )
    return Grid("Seconds, all chains side by side, compilation apart", columns, rows)


def _significant(value: float | None, unit: str = "") -> str:
    """Two digits that mean something, never with an exponent."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    digits = 0 if value == 0 else max(0, 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}{unit}"


def settings_grid(results: Sequence[Result]) -> Grid:
    """Sizes and settings."""
    rows = []
    for result in results:
        own, rows_of = result["settings"], result["rows"]
        sizes = (result["parameters"], rows_of["all"], own["removed"], own["steps"], own["noise_free_steps"])
        start = own["pretraining"] or "none"
        rest = f"{own['chains']}", f"{own['order']} terms, {own['scale']}", start, own["precision"]
        rows.append((result["title"], *(f"{each:,}" for each in sizes), *rest))
    columns = (
        "block",
        "parameters",
        "rows",
        "removed",
        "steps",
        "without noise",
        "chains",
        "Neumann series\n(terms, scale)",
        "pre-trained on",
        "precision",
    )
    return Grid("Settings", columns, rows)


def all_grids(results: Sequence[Result]) -> list[Grid]:
    """Every table of the experiment, block by block and then across them."""
    across: list[Callable[[Sequence[Result]], Grid]] = [
        matches_grid,
        targets_grid,
        epsilon_grid,
        ablation_grid,
        importance_grid,
        refusals_grid,
        times_grid,
        settings_grid,
    ]
    return [*(grid for result in results for grid in block_grids(result)), *(make(results) for make in across)]


# --- the page


def page(results: Sequence[Result], figures: str = "../figures/networks") -> str:
    """The whole page, as Markdown; `figures` is where its figures lie, seen from it."""
    datasets = " and ".join(dict.fromkeys(TITLES[result["settings"]["dataset"]] for result in results))
    limits = " or ".join(dict.fromkeys(f"{result['settings']['diverged_above']:g}" for result in results))
    parts = [
        f"# The paper's networks: {datasets}",
        *_what_was_run(results),
        "## In short",
        _in_short(all_matches(results), [each for result in results for each in targets(result)]),
        "## Block by block",
        "Each row of ours has the paper's figures below it where it prints any. What was not measured, here or by the "
        "paper, is called so; the paper prints 0.00 in its place, as for every ε̂ of Retrain. It has no ε̂ with equal "
        "steps.",
    ]
    for result in results:
        parts += [f"### {result['title']}", *map(markdown, block_grids(result))]
    parts += [
        "## Do our figures match the paper's?",
        "A figure matches where ours and the paper's are at most two joint standard deviations apart, "
        "2√(sd_ours² + sd_paper²), and half a unit of the last digit printed.",
        *_misses(results),
        "## Does our method reach what it was to reach?",
        markdown(targets_grid(results)),
        "## What ε̂ measures",
        *_about_epsilon(results),
        "## The missing ablation",
        *_about_ablation(results),
        "## Importance sampling",
        "What the paper calls importance sampling takes further steps on the kept rows. This is the real one: "
        "consecutive states of a chain, weighted by one over the likelihood of the removed rows, and one of them drawn "
        "by its weight. k̂ says how heavy the tail of the weights is, and how far they can be trusted.",
        markdown(importance_grid(results)),
        "## What was refused",
        "A request's shift is refused in a chain where the Neumann series does not converge: where its last term is "
        f"more than {limits} times its first. The chain is not moved then, and goes on with the sampler's steps only.",
        markdown(refusals_grid(results)),
        "## Time",
        *_about_time(results),
        f"![Seconds to answer a request, by method, on a logarithmic scale]({figures}/request-times.png)",
        *_case_study(results, figures),
    ]
    return "\n\n".join(parts) + "\n"


def _what_was_run(results: Sequence[Result]) -> list[str]:
    machines = dict.fromkeys(result["machine"] for result in results)
    lines = [
        "The paper's Section 5.2 and Appendix D, run from nothing: a network is pre-trained, sampled with SG-MCMC on "
        "all rows, and rows of one class are erased. Every way of erasing them is compared with networks retrained on "
        "the kept rows from the same pre-trained start; the floor is how far two of those are apart.",
        "```\n" + "\n".join(dict.fromkeys(map(_command, results))) + "\n```",
        *(f"Run on: {each}." for each in machines),
        markdown(settings_grid(results)),
    ]
    smaller = [result["title"] for result in results if not printed(result, "retrain")]
    if smaller:
        lines.append(f"Not of the paper's size, and so without its figures: {'; '.join(smaller)}.")
    return lines


def _command(result: Result) -> str:
    settings = result["settings"]
    command = f"posterase reproduce {settings['dataset']}"
    if settings["dataset"] == "digits":
        command += f" --sampler {settings['sampler']}"
    else:
        command += f" --precision {settings['precision']}"
    command += " --quick" if settings.get("rows") is not None else ""
    return command + (f" --seed {settings['seed']}" if settings["seed"] else "")


def _in_short(found: Matches, aims: Sequence[Target]) -> str:
    known = [each for each in aims if each.reached is not None]
    failed = [each for each in known if not each.reached]
    lines = [
        f"- Against the paper: {found.summary}" + ("; those that do not are listed below." if found.missed else "."),
        f"- Our method: {len(known) - len(failed)} of {len(known)} aims are reached"
        + (f", not reached: {len(failed)}" if failed else "")
        + (f", not measured: {len(aims) - len(known)}" if len(aims) > len(known) else "")
        + ".",
    ]
    return "\n".join(lines)


def _misses(results: Sequence[Result]) -> list[str]:
    found = all_matches(results)
    lines = [f"- {result['title']}: {matches(result).summary}." for result in results]
    said = ["\n".join([*lines, f"- In all: {found.summary}."])]
    return [*said, markdown(matches_grid(results))] if found.missed else said


def _means(results: Sequence[Result], method: str, metric: Metric) -> list[float | None]:
    found = (spread(values_of(result, method, metric.key), metric.scale) for result in results)
    return [each.mean if each and not each.failed else None for each in found]


def _minus(one: Sequence[float | None], other: Sequence[float | None]) -> list[float | None]:
    return [None if a is None or b is None else a - b for a, b in zip(one, other, strict=True)]


def _about_epsilon(results: Sequence[Result]) -> list[str]:
    as_run, equal = EPSILONS
    floor, origin, paper = (_means(results, method, as_run) for method in (FLOOR, "origin", "paper"))
    of_origin = [100 * f / o for f, o in zip(floor, origin, strict=True) if f is not None and o]
    nats = [1e3 * f / result["parameters"] for f, result in zip(floor, results, strict=True) if f is not None]
    by_steps = {
        method: _minus(_means(results, method, equal), _means(results, method, as_run))
        for method in ("fine-tuning", "paper")
    }
    by_method = _minus(paper, origin)
    both = [
        abs(steps) > abs(moved)
        for steps, moved in zip(by_steps["fine-tuning"], by_method, strict=True)
        if steps is not None and moved is not None
    ]
    said = [
        "The paper's ε̂ is a nearest-neighbour estimate of the KL divergence between two sets of *consecutive* states. "
        "With d parameters it is about d · log(distance between two chains ⁄ length of one step): the neighbour of a "
        "state in its own chain is the next state, one step away. The distance depends little on what was forgotten, "
        "since two chains are far apart in any case; the length of a step does depend on the step size, which falls "
        "with the number of steps taken. The paper prints 0.00 for Retrain, which was not measured there.",
        f"Two retrainings of the same rows come out at {_range(floor)} thousand nats, {_range(nats)} nats a parameter: "
        f"{_range(of_origin, 1, ' %')} of what Origin has, where nothing was erased. No forgetting can be expected to "
        "come out below that floor.",
        "“As run”, each chain goes on with the step size that it has come to. “Equal steps” changes no network: every "
        "chain only goes on from where it stands with the step sizes of the retrained ones. That alone changes ε̂ of "
        f"fine-tuning by {_range(by_steps['fine-tuning'])} thousand nats, and of the paper's method by "
        f"{_range(by_steps['paper'])}. What that method itself does, ε̂ as run minus Origin's: {_range(by_method)}.",
    ]
    if both:
        said.append(
            f"In {sum(both)} of {len(both)} blocks the step sizes move fine-tuning's ε̂ by more than the paper's method "
            "moves ε̂ from Origin's. We rank nothing by it."
        )
    return [*said, markdown(epsilon_grid(results))]


def _about_ablation(results: Sequence[Result]) -> list[str]:
    shares = [_share_of_move(result) for result in results]
    known = [100 * share for share in shares if share is not None]
    said = (
        "While the paper's method answers a request, its chain keeps sampling: one step before each product with the "
        "Hessian. Those steps see fewer of the removed rows with every request, so they forget too, and the paper does "
        "not say how much. Here they are run alone, without any shift. "
    )
    if known:
        said += (
            "Of what the paper's method takes off Origin's prediction difference on removed rows, they make "
            f"{_range(known, 0, ' %')} by themselves."
        )
    else:
        said += f"Their share of the move: {NOT_MEASURED}."
    return [said, markdown(ablation_grid(results))]


def _about_time(results: Sequence[Result]) -> list[str]:
    rows = dict.fromkeys(f"{result['settings']['request_rows']:,}" for result in results)
    return [
        f"A request of fine-tuning and of the paper's method removes {' or '.join(rows)} rows; ours removes them all "
        "in one. The figure shows the mean over the removals of a data set and sampler.",
        markdown(times_grid(results)),
    ]


def case_study_block(results: Sequence[Result]) -> Result | None:
    """The block whose images are shown: the largest removal of the first sampler that has any."""
    having = [result for result in results if note_of(result, "paper", "panels")]
    own = [result for result in having if result["settings"]["sampler"] == having[0]["settings"]["sampler"]]
    return max(own, key=lambda result: result["settings"]["removed"], default=None)


def _case_study(results: Sequence[Result], figures: str) -> list[str]:
    block = case_study_block(results)
    if block is None:
        return ["## Test images while rows are removed", f"{NOT_MEASURED.capitalize()}."]
    methods = [method for method in ("paper", OURS) if note_of(block, method, "panels")]
    return [
        "## Test images while rows are removed",
        f"{block['title']}: class probabilities of test images, mean over chains; the true class is red.",
        *(
            f"![{NAMES[each]}: class probabilities]({figures}/{name_of(block)}-case-study-{each}.png)"
            for each in methods
        ),
    ]
