"""The command line: demo, erase, assess, report, reproduce, bench, data; requests, keys, tokens, verify, serve."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import posterase
from posterase.cli.data import data
from posterase.cli.exit_status import ERROR, STOPPED
from posterase.cli.files import assess, erase, report
from posterase.cli.output import Commands, Said
from posterase.cli.record_options import DEFAULT_RECORD, KeysFolder, RecordUrl, keys_folder
from posterase.cli.reproduce import bench, demo, reproduce
from posterase.cli.requests import keys, requests, verify
from posterase.cli.service import serve
from posterase.cli.tokens import tokens
from posterase.errors import PeerLostError, PosteraseError
from posterase.projects.advice import as_options
from posterase.runtime.compilation_cache import enable_compilation_cache

app = Commands(
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


app.command()(demo)
app.command()(erase)
app.command()(assess)
app.command()(report)
app.command()(verify)
app.command()(serve)
app.add_typer(reproduce, name="reproduce")
app.add_typer(bench, name="bench")
app.add_typer(data, name="data")
app.add_typer(requests, name="requests")
app.add_typer(keys, name="keys")
app.add_typer(tokens, name="tokens")


@app.command()
def doctor(said: Said, record: RecordUrl = DEFAULT_RECORD, folder: KeysFolder = None) -> None:
    """What is installed, what jax runs on, where data and keys are, and what is wrong.

    The exit status is 1 where something is wrong; what is only missing is needed for some things only.

    Example: `posterase doctor`
    """
    from posterase.cli.doctor import examine

    found = list(examine(folder or keys_folder(), record))
    said.json([each._asdict() for each in found])
    console, marks = Console(), {"ok": "[green]✓[/]", "missing": "[yellow]–[/]", "wrong": "[bold red]✗[/]"}
    for each in found:
        advice = f"\n    What to do: {each.advice}" if each.advice else ""
        line = f"{marks[each.state]} {escape(each.what)}: {escape(each.said)}{escape(advice)}"
        console.print(line, highlight=False, soft_wrap=True)
    if any(each.state == "wrong" for each in found):
        raise typer.Exit(ERROR)


UNREADABLE: Any = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")
"""A command that cannot be read: click's error, of the click that typer uses, its own or the installed one."""


def main() -> None:
    """Run the command line; mistakes of the user's end in a sentence, not in a traceback. See `exit_status`."""
    enable_compilation_cache()  # not for `app`: whoever runs it in a process of their own decides for that process
    try:
        ended = app(prog_name="posterase", standalone_mode=False)
    except UNREADABLE as error:
        error.show()
        ended = ERROR
    except (typer.Abort, KeyboardInterrupt):
        ended = STOPPED
    except PosteraseError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(as_options(str(error)))}", highlight=False, soft_wrap=True
        )
        if isinstance(error, PeerLostError):
            os._exit(ERROR)  # at a usual end jax would wait for the process that is gone
        ended = ERROR
    if ended == STOPPED:
        Console(stderr=True).print("Stopped. What was not finished was not written.", highlight=False)
    sys.exit(ended if isinstance(ended, int) else 0)


if __name__ == "__main__":
    main()
