"""Tables of the experiments, for a terminal."""

from __future__ import annotations

from rich.table import Table

from posterase.experiments.diabetes import Request


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
