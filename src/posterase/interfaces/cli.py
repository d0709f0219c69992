"""The command line: `posterase demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import posterase
from posterase.errors import MissingExtraError, PosteraseError
from posterase.files import check_writable

app = typer.Typer(
    help="Erase data from a posterior.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"posterase {posterase.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Erase data from a posterior."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path(),
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
) -> None:
    """A regression forgets patients: before, after each eraser, and exact.

    Example: `posterase demo --out /tmp`
    """
    from posterase.experiments import diabetes, figures, tables

    target = out / "posterase-demo.png"
    check_writable(target)
    console = Console()
    with console.status("drawing from the posterior of 442 patients") as status:
        requests = diabetes.run(seed, report=status.update)
    for request in requests:
        console.print(tables.diabetes_table(request), "")
    console.print(
        "The floor is an independent sample of the exact answer, of the same size: what chance alone leaves.\n"
        "A shift mends the means and leaves the spreads; weights mend both, as long as their diagnostics pass."
    )
    try:
        figures.draw_diabetes(requests, target)
        console.print(f"Figure: {target}")
    except MissingExtraError as error:
        console.print(f"No figure: {error.problem} To get it: {error.advice}", markup=False)
    console.print("Next: README.md has ten lines that do this to a model of yours.")


def main() -> None:
    """Run the command line; mistakes of the user's end in a sentence, not in a traceback."""
    try:
        app()
    except PosteraseError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
