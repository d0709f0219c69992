"""Tables of the experiments, for a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from posterase.experiments.clouds import Clouds
from posterase.experiments.diabetes import Request, columns
from posterase.experiments.gmm import Outcome
from posterase.experiments.one_person import PATIENT, OnePerson


def diabetes_table(request: Request) -> Table:
    """How far each answer to a request ends from the exact one."""
    table = Table(
        title=f"Forget {request.title} ({len(request.rows)} of 442 rows)", title_justify="left", title_style="bold"
    )
    table.add_column("draws")
    table.add_column("error of means\n(posterior sd)", justify="right")
    table.add_column("error of spreads\n(log ratio)", justify="right")
    table.add_column("its own diagnostics")
    for outcome in request.outcomes:
        errors = f"{outcome.mean_error:.3f}", f"{outcome.spread_error:.3f}"
        table.add_row(outcome.method, *errors, outcome.verdict)
    return table


def one_person_table(seen: OnePerson) -> Table:
    """Means and standard deviations of what one person moved most."""
    table = Table(title="Forget one of 442 patients", title_justify="left", title_style="bold")
    table.add_column("coefficient")
    for name in ("before", "after", "refit"):
        table.add_column(f"{name}:\nmean ± sd", justify="right")
    every = [columns(each) for each in (seen.before, seen.result.draws, seen.refit)]
    for at in seen.moved_most:
        table.add_row(seen.names[at], *(f"{each[:, at].mean():.3f} ± {each[:, at].std():.3f}" for each in every))
    return table


def one_person_plain(seen: OnePerson) -> dict[str, Any]:
    """The same as plain JSON, of all coefficients; and the public verdict."""
    every = {"before": seen.before, "after": seen.result.draws, "refit": seen.refit}
    figures = {name: columns(each) for name, each in every.items()}
    return {
        "erased": PATIENT,
        "verdict": seen.result.verdict.to_dict(),
        "coefficients": list(seen.names),
        "mean": {name: each.mean(axis=0).tolist() for name, each in figures.items()},
        "sd": {name: each.std(axis=0).tolist() for name, each in figures.items()},
    }


def diabetes_plain(request: Request) -> dict[str, Any]:
    """The same as plain JSON."""
    figures = [
        {"draws": o.method, "mean_error": float(o.mean_error), "spread_error": float(o.spread_error), "says": o.verdict}
        for o in request.outcomes
    ]
    return {"forgot": request.title, "rows": len(request.rows), "answers": figures}


def gmm_table(outcome: Outcome) -> Table:
    """How far each posterior's centres are from the retrained one's, next to the floor."""
    settings = outcome.settings
    removed = f"{len(outcome.points.removed)} of {settings.points} points removed"
    table = Table(title=f"{settings.sampler.upper()}: {removed}", title_justify="left", title_style="bold")
    table.add_column("draws of the centres")
    table.add_column("distance of\nmean centres", justify="right")
    table.add_column("in the target's\nsd", justify="right")
    table.add_column("spreads\n(log ratio)", justify="right")
    for each in outcome.comparisons:
        name = "floor: retrained twice" if each.name == "floor" else each.name
        table.add_row(name, f"{each.distance:.3f}", f"{each.in_sd:.2f}", f"{each.spread:.2f}")
    return table


def methods_table(seen: Clouds) -> Table:
    """How far each method's draws end from the kept posterior."""
    title = f"Forget {seen.n_removed} of {seen.n_rows} rows"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("draws")
    table.add_column("error of means\n(posterior sd)", justify="right")
    table.add_column("error of spreads\n(log ratio)", justify="right")
    table.add_column("its own diagnostics")
    for cloud in seen.clouds:
        table.add_row(cloud.name, f"{cloud.mean_error:.3f}", f"{cloud.spread_error:.3f}", cloud.says)
    return table


def methods_plain(seen: Clouds) -> list[dict[str, Any]]:
    """The same as plain JSON."""
    return [
        {"draws": each.name, "mean_error": each.mean_error, "spread_error": each.spread_error, "says": each.says}
        for each in seen.clouds
    ]
