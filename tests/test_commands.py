"""The command line as a whole: every command has a help page with an example that can be read."""

import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from posterase.interfaces.cli import app


def commands(group=None, path=()):
    """Every command, by the words that call it."""
    group = typer.main.get_command(app) if group is None else group
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, (*path, name))
        else:
            yield " ".join((*path, name)), each


COMMANDS = dict(commands())


def test_commands_are_those_that_are_promised():
    expected = {"demo", "erase", "verify", "doctor", "keys new", "keys rotate", "requests add", "requests run"}
    assert expected <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_can_be_read(name):
    """Its words and options are known; that it does what it says is shown where the command is tested."""
    text = COMMANDS[name].help
    example = re.search(r"Example: `(posterase [^`]+)`", text)
    assert example, name
    words = shlex.split(example.group(1))[1:]
    assert words[: len(name.split())] == name.split()
    context = COMMANDS[name].make_context(name, words[len(name.split()) :], resilient_parsing=True)
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert context.params is not None


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_page_can_be_printed(name):
    done = CliRunner().invoke(app, [*name.split(), "--help"])
    assert done.exit_code == 0
    assert "Usage" in done.output
