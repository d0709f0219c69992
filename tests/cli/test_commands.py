"""The command line as a whole: every command has a help page with an example that can be read."""

import json
import re
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from posterase.cli.main import app
from posterase.cli.output import Commands, Said
from posterase.errors import OutputError
from posterase.ladder.reasons import ALLOW
from posterase.model.stored import GIVE_THE_MODEL
from posterase.projects.advice import as_options, as_settings


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
    expected = {"demo", "erase", "assess", "report", "verify", "doctor", "data check", "bench posteriors"}
    expected |= {"keys new", "keys rotate", "requests add", "requests run", "reproduce gmm", "reproduce cifar10"}
    assert expected <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_quiet_and_speak_json(name):
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts]
    assert options.count("--json") == options.count("--quiet") == 1


def test_what_a_command_says_for_people_is_told_to_machines_too():
    """A command without a document of its own; one that goes on; one that fails; one that ends by itself."""
    spoken = Commands()

    @spoken.command()
    def lines():
        print("one")
        print("two")

    @spoken.command()
    def goes_on(said: Said):
        said.at_once({"at": 1})
        print("and on")

    @spoken.command()
    def fails():
        print("half")
        raise OutputError("it is wrong.", "mend it.")

    @spoken.command()
    def refuses(said: Said):
        print("refused")
        said.json({"accepted": False})
        raise typer.Exit(2)

    run = CliRunner().invoke
    assert run(spoken, ["lines"]).stdout == "one\ntwo\n"
    assert run(spoken, ["lines", "--quiet"]).stdout == ""
    assert json.loads(run(spoken, ["lines", "--json"]).stdout) == {"said": ["one", "two"]}
    assert json.loads(run(spoken, ["goes-on", "--json"]).stdout) == {"at": 1}
    failed = run(spoken, ["fails", "--json"])
    assert json.loads(failed.stdout)["error"] == {
        "kind": "OutputError",
        "problem": "it is wrong.",
        "advice": "mend it.",
    }
    assert isinstance(failed.exception, OutputError)
    refused = run(spoken, ["refuses", "--json"])
    assert (json.loads(refused.stdout), refused.exit_code) == ({"accepted": False}, 2)
    assert (run(spoken, ["refuses", "-q"]).stdout, refused.exit_code) == ("", 2)


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
    """By either option; a flag is shown without the type of a value that it does not take."""
    done, short = (CliRunner().invoke(app, [*name.split(), option]) for option in ("--help", "-h"))
    assert done.exit_code == 0
    assert "Usage" in done.output
    assert short.output == done.output
    assert not re.search(r"(?i)<bool>|\bboolean\b|--\S+ +<list|\[default: \(", done.output)


def test_the_help_of_erase_fits_on_a_screen():
    done = CliRunner().invoke(app, ["erase", "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert len(done.output.strip("\n").splitlines()) <= 40, done.output


def test_python_runs_the_package():
    ran = subprocess.run([sys.executable, "-m", "posterase", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"posterase \S+\n", ran.stdout)


def test_advice_for_python_becomes_advice_for_commands_and_files():
    assert as_options(f"Or {ALLOW}") == "Or allow a refit: --policy refit=true."
    assert as_settings(f"Or {ALLOW}") == "Or allow a refit: refit = true under [policy]."
    said = "preprocessing='…'), or preprocessing='none'"
    assert as_options(said) == "--preprocessing '…'), or --preprocessing 'none'"
    assert as_settings(said) == 'preprocessing = "…"), or preprocessing = "none"'
    assert "--model module:function" in as_options(GIVE_THE_MODEL)
    assert 'model = "module:function"' in as_settings(GIVE_THE_MODEL)
    for other in ("use more draws.", ""):
        assert as_options(other) == as_settings(other) == other
