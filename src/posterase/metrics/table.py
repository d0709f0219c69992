"""Figures with their floor, judged, as a DataTree that prints as a table."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from posterase.draws.io import read_tree
from posterase.errors import InputFileError
from posterase.numerics.weights import Estimate
from posterase.plotting.figures import BLACK, GREEN, GREY, VERMILION, new_figure
from posterase.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

FALSE_ALARMS = 0.01
"""How often chance may call a figure of draws of the kept posterior off, over all judged rows of a table together."""

AS_FAR = 0.9
"""A share of the way from the refit to the origin that counts as not gone at all."""

COLUMNS = ("origin", "erased", "refit", "floor")


class Outcome(enum.StrEnum):
    """What a metric says of the erased draws, for programs. `Judgement.text` says it for people."""

    AT_FLOOR = "at the floor"
    """It tells the untouched draws from refits, and the erased ones not."""
    OFF = "off"
    """It tells the erased draws from refits."""
    CANNOT_TELL = "cannot tell"
    """The untouched draws pass as well, or there is nothing to compare with."""
    NOT_JUDGED = "not judged"
    """It is reported, and is no evidence."""


class Judgement(NamedTuple):
    """The outcome of one metric, with its text."""

    outcome: Outcome
    text: str

    @classmethod
    def of(cls, outcome: Outcome, detail: str = "") -> Judgement:
        """The outcome, and after a colon the detail."""
        return cls(outcome, f"{outcome}: {detail}" if detail else str(outcome))


class NotMeasured(NamedTuple):
    """A metric that was left out."""

    name: str
    why: str


class Figure(NamedTuple):
    """One metric: its figures, and how likely chance makes them."""

    name: str
    origin: Estimate | None
    erased: Estimate | None
    refit: Estimate | None = None
    """For figures of one set of draws."""
    floor: Estimate | None = None
    p_origin: float | None = None
    """The chance of such a figure, were the untouched draws draws of the kept posterior."""
    p_erased: float | None = None
    null: float | None = None
    """What a figure of two sets of draws is where they have one law, where that is known."""
    why: str = ""
    """Why it cannot be judged."""
    note: str = ""
    judged: bool = True
    """Whether it is evidence for or against the erasure, or just told."""

    @property
    def target(self) -> float | None:
        """Where the erased draws' figure ought to be."""
        if self.refit is not None:
            return self.refit.value
        return self.floor.value if self.floor is not None else self.null

    def checked(self) -> Figure | NotMeasured:
        """The same; not measured where some of its figures are no numbers."""
        for column in COLUMNS:
            found: Estimate | None = getattr(self, column)
            if found is not None and not (np.isfinite(found.value) and np.isfinite(found.error)):
                return NotMeasured(self.name, f"it is infinite, or no number, at draws of the {column}")
        return self

    def sees(self, p_value: float | None, judged: int) -> bool:
        """Whether chance does not explain a figure, among so many that are judged."""
        return p_value is not None and p_value < FALSE_ALARMS / max(judged, 1)

    def judge(self, judged: int) -> Judgement:
        """Judge the erased draws by this figure, one of `judged` in the table."""
        if not self.judged:
            return Judgement(Outcome.NOT_JUDGED, "reported, not judged")
        if self.p_erased is None or self.erased is None:
            return Judgement.of(Outcome.CANNOT_TELL, self.why or "nothing to compare with")
        erased, origin = self.sees(self.p_erased, judged), self.sees(self.p_origin, judged)
        if not erased:
            if origin:
                return Judgement.of(Outcome.AT_FLOOR)
            return Judgement.of(Outcome.CANNOT_TELL, "the untouched draws pass as well")
        return Judgement.of(Outcome.OFF, self._how_far(origin))

    def _how_far(self, origin_is_off: bool) -> str:
        """How far the erased draws are from refits, as a share of the way from the untouched ones."""
        if not origin_is_off or self.erased is None or self.target is None or self.origin is None:
            return "the untouched draws pass, these do not"
        left = (self.erased.value - self.target) / (self.origin.value - self.target)
        if left < 0:
            return f"past the refits, by {-left:.0%} of the way"
        if left > 1 / AS_FAR:
            return f"{left:.1f} times as far as the untouched draws"
        return "as far as the untouched draws" if left > AS_FAR else f"{1 - left:.0%} of the way"


class Assessment(xr.DataTree):
    """What `assess` returns: groups `metrics` and `left_out`; it prints as a table."""

    __slots__ = ()

    @classmethod
    def of(cls, figures: Sequence[Figure], left_out: Mapping[str, str], about: Mapping[str, Any]) -> Assessment:
        """From figures, reasons for what was left out, and numbers about the erasure."""
        judged = sum(figure.judged and figure.p_erased is not None for figure in figures)
        columns: dict[str, Any] = {}
        for column in COLUMNS:
            found: list[Estimate | None] = [getattr(figure, column) for figure in figures]
            columns[column] = [np.nan if each is None else each.value for each in found]
            columns[f"{column}_error"] = [np.nan if each is None else each.error for each in found]
        columns["gap"] = [
            abs(figure.erased.value - figure.target)
            if figure.judged and figure.erased is not None and figure.target is not None
            else np.nan
            for figure in figures
        ]
        for which in ("target", "p_origin", "p_erased"):
            columns[which] = [np.nan if getattr(each, which) is None else getattr(each, which) for each in figures]
        judgements = [figure.judge(judged) for figure in figures]
        texts = {
            "outcome": [str(each.outcome) for each in judgements],
            "verdict": [each.text for each in judgements],
            "note": [figure.note for figure in figures],
        }
        variables = {name: ("metric", np.asarray(values, float)) for name, values in columns.items()}
        variables |= {name: ("metric", np.asarray(values, str)) for name, values in texts.items()}
        reasons = xr.Dataset({"why": ("metric", np.asarray(list(left_out.values()), str))}, {"metric": list(left_out)})
        measured = xr.Dataset(variables, {"metric": [figure.name for figure in figures]})
        measured.attrs["false_alarms"] = FALSE_ALARMS
        tree = cls.from_dict({"metrics": measured, "left_out": reasons})
        tree.attrs.update({"posterase": __version__, "floor": "between two refits", **about})
        return tree

    @classmethod
    def read(cls, path: Path) -> Assessment:
        """From a netCDF file that `to_netcdf` wrote."""
        with read_tree(path) as opened:
            tree = opened.load()
        if not {"metrics", "left_out"} <= tree.children.keys() or "outcome" not in tree["metrics"].data_vars:
            raise InputFileError(f"{str(path)!r} holds no assessment.", "give a file of posterase assess --out.")
        found = cls.from_dict({name: child.to_dataset() for name, child in tree.children.items()})
        found.attrs.update(tree.attrs)
        return found

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each metric, in words."""
        metrics = self["metrics"].to_dataset()
        return dict(zip(metrics["metric"].values.tolist(), metrics["verdict"].values.tolist(), strict=True))

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcome of each metric."""
        metrics = self["metrics"].to_dataset()
        return dict(
            zip(metrics["metric"].values.tolist(), map(Outcome, metrics["outcome"].values.tolist()), strict=True)
        )

    def with_outcome(self, *outcomes: Outcome) -> list[str]:
        """Metrics with one of these outcomes."""
        return [name for name, outcome in self.outcomes.items() if outcome in outcomes]

    @property
    def off(self) -> list[str]:
        """Metrics by which the erased draws differ from refits."""
        return self.with_outcome(Outcome.OFF)

    @property
    def at_the_floor(self) -> list[str]:
        """Metrics that see the untouched draws, and not the erased ones."""
        return self.with_outcome(Outcome.AT_FLOOR)

    @property
    def summary(self) -> str:
        """In one line."""
        unsure = len(self.with_outcome(Outcome.CANNOT_TELL))
        said = f"{len(self.at_the_floor)} at the floor, {len(self.off)} off, {unsure} cannot tell"
        rows, refits = self.attrs["removed_rows"], self.attrs["refits"]
        return (
            f"{rows} row{'s' if rows != 1 else ''} removed, {self.attrs['kept_rows']} kept, "
            f"{refits} refit{'s' if refits != 1 else ''}: {said}"
        )

    def __str__(self) -> str:
        if "metrics" not in self.children or "left_out" not in self.children:  # a part of one
            return super().__repr__()
        lines = [("metric", *COLUMNS, "verdict"), *self._lines()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS) + 1)]
        table = ["  ".join([*map(str.ljust, line[:-1], widths), line[-1]]).rstrip() for line in lines]
        metrics = self["metrics"].to_dataset()
        notes = zip(metrics["metric"].values.tolist(), metrics["note"].values.tolist(), strict=True)
        told = [f"  {name}: {note}" for name, note in notes if note]
        reasons = self["left_out"].to_dataset()
        left = zip(reasons["metric"].values.tolist(), reasons["why"].values.tolist(), strict=True)
        missing = [f"  {name}: {why}" for name, why in left]
        worth = [f"Effective draws: {self.attrs['effective_draws']}"] if "effective_draws" in self.attrs else []
        parts = [[self.summary, *worth, ""], table, *([["", "Notes", *told]] if told else [])]
        parts += [["", "Left out", *missing]] if missing else []
        return "\n".join(line for part in parts for line in part)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def _lines(self) -> list[tuple[str, ...]]:
        metrics = self["metrics"].to_dataset()
        found = []
        for i, name in enumerate(metrics["metric"].values.tolist()):
            figures = [(float(metrics[c].values[i]), float(metrics[f"{c}_error"].values[i])) for c in COLUMNS]
            found.append((name, *(with_error(*each) for each in figures), str(metrics["verdict"].values[i])))
        return found

    def to_plain(self) -> dict[str, Any]:
        """Plain JSON: every figure with its error, verdicts, and what was left out."""
        metrics = self["metrics"].to_dataset()
        found = []
        for i, name in enumerate(metrics["metric"].values.tolist()):
            one = metrics.isel(metric=i)
            figures = {c: _plain(float(one[c]), float(one[f"{c}_error"])) for c in COLUMNS}
            found.append({"metric": name, **figures, **{key: str(one[key].values) for key in ("outcome", "verdict")}})
        reasons = self["left_out"].to_dataset()
        left = dict(zip(reasons["metric"].values.tolist(), reasons["why"].values.tolist(), strict=True))
        return {"summary": self.summary, "metrics": found, "left_out": left}

    def plot(self) -> MatplotlibFigure:
        """How much of the way from the refits (0) back to the untouched draws (1) is left, by each metric that sees it.

        Needs matplotlib.
        """
        metrics = self["metrics"].to_dataset()
        outcomes = self.outcomes
        target = metrics["target"]
        way = metrics["origin"] - target
        judged = self.with_outcome(Outcome.AT_FLOOR, Outcome.OFF)
        shown = [name for name in judged if abs(float(way.sel(metric=name))) > 0]
        figure = new_figure(6.4, 1.2 + 0.3 * max(len(shown), 1))
        axis = figure.subplots()
        for place, name in enumerate(shown):
            one, scale = metrics.sel(metric=name), float(way.sel(metric=name))
            left = (float(one["erased"]) - float(target.sel(metric=name))) / scale
            colour = GREEN if outcomes[name] is Outcome.AT_FLOOR else VERMILION
            axis.errorbar(left, place, xerr=2 * float(one["erased_error"]) / abs(scale), fmt="o", color=colour, ms=5)
            axis.plot(1, place, "o", color=GREY, ms=5)
        axis.axvline(0, color=BLACK, lw=0.8)
        axis.axvline(1, color=GREY, lw=0.8, ls="--")
        axis.set_yticks(range(len(shown)), shown, fontsize=8)
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.set_xlabel(
            "left of the way: 0 the refits, 1 the untouched draws\n(green: at the floor; red: off; bars: two errors)",
            fontsize=8,
        )
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_title(self.summary, fontsize=9, loc="right")
        return figure


def _plain(value: float, error: float) -> dict[str, float | None] | None:
    return None if np.isnan(value) else {"value": value, "error": None if np.isnan(error) else error}


def with_error(value: float, error: float) -> str:
    """`−45.3 ± 0.2`, with as many digits as the error allows; a dash for what was not measured."""
    if np.isnan(value):
        return "–"
    if not error > 0 or not np.isfinite(error):
        return f"{value:.3g}"
    digits = int(np.clip(1 - np.floor(np.log10(error)), 0, 6))
    return f"{value:,.{digits}f} ± {error:.{digits}f}"
