"""What commands tell: lines for people, one JSON document for machines, or nothing; the same for all of them.

    @app.command()
    def show(said: Said, name: str) -> None:
        print(f"Lines for people: {name}")
        said.json({"name": name})

Every command of `Commands` takes `--json` and `--quiet`. With either, lines for people are not shown; with `--json` the
document is, and nothing but it, errors included: they are told as `{"error": …}`. A command that has no document of its
own tells its lines in one.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from posterase.errors import PosteraseError
from posterase.projects.advice import as_options

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only; the exit status tells the rest.")]

OPTIONS = {"as_json": AsJson, "quiet": Quiet}
SAID = "said"
"""The argument of a command that is handed what was asked for."""


class Said:
    """What a command was asked to tell, and has told."""

    def __init__(self, as_json: bool, quiet: bool):
        self.as_json, self.quiet = as_json, quiet
        self.document: Any = None
        self.told = False
        self._out = sys.stdout

    def json(self, value: Any) -> None:
        """The document for machines; it is printed when the command ends, where it was asked for."""
        self.document = value

    def at_once(self, value: Any) -> None:
        """The document of a command that goes on until it is ended: printed now, and nothing after it."""
        self.document = value
        self._print(io.StringIO())

    @property
    def aside(self) -> Console:
        """Where progress is shown: beside the output, so that it can be piped."""
        return Console(stderr=True, quiet=self.quiet)

    def step(self, text: str) -> None:
        """A line beside the output, on what is done now; bars of the work itself may follow it."""
        self.aside.print(f"{text} …", style="dim", markup=False, highlight=False, soft_wrap=True)

    @property
    def progress(self) -> bool | None:
        """Whether to show progress. None: on a terminal."""
        return False if self.quiet else None

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Around a command: lines for people are shown where they were asked for."""
        if not self.as_json and not self.quiet:
            yield
            return
        lines = io.StringIO()
        try:
            with redirect_stdout(lines):
                yield
        except PosteraseError as error:
            told = {"problem": error.problem, "advice": as_options(error.advice)}
            self.document = {"error": {"kind": type(error).__name__, **told}}
            self._print(lines)
            raise
        except typer.Exit:
            self._print(lines)
            raise
        self._print(lines)

    def _print(self, lines: io.StringIO) -> None:
        if self.as_json and not self.told:
            value = {"said": lines.getvalue().splitlines()} if self.document is None else self.document
            self._out.write(json.dumps(value, indent=2, default=str) + "\n")
            self._out.flush()
            self.told = True


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    """A flag takes no value: its help line shows no `<bool>`."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


class Commands(typer.Typer):
    """Commands with `--json` and `--quiet`, and with `-h` as well as `--help`."""

    def __init__(self, **options: Any):
        super().__init__(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]}, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        register = super().command(name, cls=_Command, **options)

        def decorate(function: Any) -> Any:
            register(_saying(function))
            return function

        return decorate


def _saying(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the two options, handed `said` where it wants it."""
    own = inspect.signature(function, eval_str=True).parameters

    @functools.wraps(function)
    def called(**given: Any) -> Any:
        said = Said(**{name: given.pop(name) for name in OPTIONS})
        with said.telling():
            return function(**given, **({SAID: said} if SAID in own else {}))

    shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, each in own.items() if name != SAID]
    for name, kind in OPTIONS.items():
        shown.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind))
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in shown}
    return called


def print_line(text: str) -> None:
    """A line as it is, however long."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_table(lines: Sequence[Sequence[str]], urgent: Collection[int] = ()) -> None:
    """Print a heading and rows, never truncated, so that ids can be copied; `urgent` rows, by their place, in red."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    console = Console()
    for number, line in enumerate(lines):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        style = "bold" if number == 0 else "red" if number - 1 in urgent else None
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
