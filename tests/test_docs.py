"""Every command of the README and the docs, as it is written there: it runs here, or it is said where it is run.

A page's commands are run in an empty folder, in their order, with the files that the page shows.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_commands import COMMANDS
from tests.cli.test_record_commands import write_draws
from tests.services import until

ROOT = Path(__file__).parent.parent
TUTORIALS = [f"docs/tutorials/{path.name}" for path in sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
PAGES = ["README.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md"]
PAGES += [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]
PAGES += TUTORIALS  # whose blocks are run by tests/test_tutorials.py
PROGRAMS = ("posterase", "python", "make", "pip", "export", "echo", "cp", "kill", "wait", "git", "uv")

ELSEWHERE = {
    "make demo": "test_a_fresh_clone",
    "make test": "this is it",
    "make test-all": "this is it",
    "make test-all JAX_PLATFORMS=cuda,cpu": "on a GPU, by hand",
    "make lint": ".ci/run",
    "make bench": "the results in docs/results say when",
    "make docs": "test_the_docs_can_be_built",
    "make tutorials": "test_tutorials.py runs the same pages",
    "python -m tests.tutorials NAME": "test_tutorials.py, with each name",
    "make lock": "by hand, where dependencies change",
    "make PYTHON=python3.12 test": "by hand, on each Python",
    'pip install "jax[cuda13]"': "on a GPU, by hand",
    "pip install .": "the newcomer's test, with extras",
    "posterase reproduce page FOLDER --out PAGE.md": "test_bnn_tables.py, with a folder",
    "posterase tokens revoke NAME": "test_every_example_works_as_pasted, with a name",
    "posterase demo": "test_every_long_example_works_as_pasted, into another folder",
    "posterase reproduce gmm": "the same",
    "posterase reproduce diabetes": "test_every_example_works_as_pasted, into another folder",
    "posterase reproduce methods": "test_every_example_works_as_pasted, into another folder",
    "posterase reproduce digits": "test_every_long_example_works_as_pasted, into another folder",
    "posterase reproduce fashion-mnist": "on a GPU: docs/results/networks.md",
    "posterase reproduce cifar10": "on a GPU: docs/results/networks.md",
    "posterase reproduce cifar10 --sampler sgld --removed 3000 --no-pretraining": "on a GPU: docs/results/networks.md",
    "posterase bench posteriors": "most of an hour: docs/results/posteriors.md",
    "posterase requests export ledger.jsonl --checkpoint checkpoint.txt": "test_the_record",
    "posterase requests work": "test_service.py, until a signal",
    "posterase serve --workers 0": "benchmarks/service.py, with a port",
    "python -m tests.screenshots docs/figures": "by hand, where pages change",
    "make release-check": "release/last_check.json says when",
    'make release-check CHECKS="build core"': "the same",
    "python -m release build": "the same",
    "python -m release lowest": "the same",
    "python -m pytest tests/test_package.py tests/test_release.py": "make test has both",
    'git tag --annotate v0.1.0 --message "posterase 0.1.0"': "by hand, by whoever releases",
    "uv publish --dry-run .release/dist/*": "by hand, by whoever releases",
    "pip install posterase==0.1.0": "by hand, after a release",
}
"""Where a command is run that takes too long for a page's test, or needs what a page does not have."""


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def commands_of(page):
    """What a page says to type: in blocks, in indented lines, and in the text."""
    text = (ROOT / page).read_text()
    for block in blocks(page, "sh"):
        yield from block.replace("\\\n", " ").splitlines()
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for line in re.findall(r"^ {4}((?:posterase|make|python|pip) .*)$", plain, re.MULTILINE):
        yield line.split("  ")[0].strip()
    plain = re.sub(r"^ {4}.*$", "", plain, flags=re.MULTILINE)
    yield from re.findall(r"`((?:posterase|python|make|pip) [^`]+)`", plain.replace("\n", " "))


EVERY = sorted({(page, command) for page in PAGES for command in commands_of(page) if command.strip()})


def name_of(words):
    """The command that words call, and the rest of them."""
    for length in (2, 1):
        if " ".join(words[:length]) in COMMANDS:
            return " ".join(words[:length]), words[length:]
    raise AssertionError(f"there is no command {' '.join(words)}")


@pytest.mark.parametrize(("page", "command"), EVERY)
def test_every_command_can_be_read(page, command):
    """Its words and options are known, and its program is one that we know."""
    words = shlex.split(re.split(r" > | \|\| | &$", command.split(" | ")[-1])[0])
    words = [word for i, word in enumerate(words) if not (i == 0 and re.fullmatch(r"[A-Z_]+=\S+", word))]
    assert words[0] in PROGRAMS
    if words[0] != "posterase" or words[1] in ("--install-completion", "--show-completion"):
        return
    name, rest = name_of(words[1:])
    known = {option for each in COMMANDS[name].params for option in (*each.opts, *each.secondary_opts)}
    assert {word.split("=")[0] for word in rest if word.startswith("--")} <= known, name
    if rest:
        COMMANDS[name].make_context(name, list(rest), resilient_parsing=True)


def test_every_command_is_run_somewhere():
    """In the test of its page, or where ELSEWHERE says; one that only names a command is none to type."""
    pages = {"docs/record.md", "docs/service.md", "docs/command-line.md", "docs/devices.md", *TUTORIALS}
    readme = set(README)
    for page, command in EVERY:
        words = shlex.split(re.sub(r"^[A-Z_]+=\S+ ", "", command))
        mentioned = words[0] == "posterase" and (
            words[1].startswith("--") or all(each.startswith("--") for each in name_of(words[1:])[1])
        )
        installs = command.startswith("pip install '.")
        benchmark = re.fullmatch(r"(SECONDS=\d+ )?python -m benchmarks( \w+( --sizes( \d+)+)?)?", command)
        written = re.fullmatch(r"python -m tests\.tutorials [\w-]+", command)  # by hand, where a page changes
        in_block = page in pages and command in "\n".join(blocks(page, "sh")).replace("\\\n", " ")
        known = command in ELSEWHERE or command in readme or mentioned or installs or benchmark or written or in_block
        assert known or command in IN_TEXT, (page, command)


README = [
    "posterase erase fit.nc --rows 'county == \"ANOKA\"' --out kept.nc",
    "posterase requests add visits 17 --regulation gdpr --id 7c9e6679-7425-40de-944b-e07fc1f90ae7",
    "posterase requests run visits",
    "posterase requests show 7c9e6679-7425-40de-944b-e07fc1f90ae7 --certificate certificate.json",
    "posterase requests export ledger.jsonl",
    "posterase verify ledger.jsonl --key keys/public.key --certificate certificate.json",
]
"""In their order."""

IN_TEXT = [
    "posterase requests register visits.toml --returned",
    "posterase data list",
    "posterase data where",
    "posterase data check",
]
"""Single ones, each after those of its page."""


def environment(folder):
    bin_folder = Path(sys.executable).parent
    own = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    own["POSTERASE_COMPILATION_CACHE"] = str(folder / "programs")
    return {name: value for name, value in os.environ.items() if not name.startswith("POSTERASE_")} | own


def shell(folder, *lines):
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)], cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def write_visits(folder):
    """The two files of docs/record.md."""
    (folder / "visits.py").write_text(blocks("docs/record.md", "python")[0])
    (folder / "visits.toml").write_text(blocks("docs/record.md", "toml")[0])


@pytest.mark.slow
def test_the_readme(tmp_path):
    write_visits(tmp_path)
    county = np.where(np.arange(60) < 4, "ANOKA", "AITKIN")
    write_draws(tmp_path / "fit.nc", county, np.random.default_rng(0).normal(size=60), name="county")
    keys_and_project = blocks("docs/record.md", "sh")[0]
    said = shell(tmp_path, keys_and_project, *README)
    assert "1 request: 1 completed" in said
    assert "certificate.json is entry" in said


def test_the_commands_of_the_readme_are_these():
    indented = re.findall(r"^ {4}(posterase .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [line.split("  ")[0] for line in indented] == README


@pytest.mark.slow
def test_a_fresh_clone(tmp_path):
    """Only what is committed, an environment of its own, and a folder that only its owner can enter, as homes are."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    tmp_path.chmod(0o700)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    outer = {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS")
    }
    done = subprocess.run(["make", "demo"], cwd=clone, env=outer, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Figure: " in done.stdout
    # `make test` is too long for here: of its tests these become another user, where root runs them.
    others = [
        ".venv/bin/python",
        "-m",
        "pytest",
        "-q",
        "tests/record/test_record.py",
        "-k",
        "no_permission or postgresql",
    ]
    done = subprocess.run(others, cwd=clone, env=outer, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    shutil.rmtree(clone)


@pytest.mark.slow
def test_the_record(tmp_path):
    """Its files and commands, as they stand; and the Python at its end."""
    write_visits(tmp_path)
    fit_anew = "python visits.py"  # from data with the people who came back
    said = shell(tmp_path, *blocks("docs/record.md", "sh"), fit_anew, IN_TEXT[0])
    for expected in ("2 requests: 2 completed", "whole and unchanged", "certificate.json is entry"):
        assert expected in said
    python = blocks("docs/record.md", "python")[1]
    assert "nothing to do" in shell(tmp_path, f"python -c {shlex.quote(python)}")


@pytest.mark.slow
def test_the_command_line(tmp_path):
    """Its files are named in the sentences before them."""
    page = (ROOT / "docs/command-line.md").read_text()
    for name, content in re.findall(r"`([\w.]+)`:\n\n```(?:python|toml|text)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(content)
    shell(tmp_path, *blocks("docs/command-line.md", "sh"))
    for name in ("kept.nc", "certificate.json", "report.html", "assessed.nc", "again.html"):
        assert (tmp_path / name).stat().st_size > 0
    assert not (tmp_path / "none.nc").exists()
    shell(tmp_path, *blocks("docs/devices.md", "sh"))  # with the same files
    assert (tmp_path / "by-two.nc").stat().st_size > 0


@pytest.mark.slow
def test_the_commands_of_data(tmp_path):
    shell(tmp_path, *IN_TEXT[1:])


ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"

PREPARED = {
    "requests register": ["export POSTERASE_KEYS=keys"],
    "requests extend": [f"posterase requests add radon AITKIN --regulation gdpr --id {ID}"],
    "requests show": ["posterase requests run radon"],
    "requests cancel": [
        "export POSTERASE_RECORD=other.db",
        "posterase requests register radon.toml --refitted",
        f"posterase requests add radon LAKE --regulation gdpr --id {ID}",
    ],
    "requests export": ["unset POSTERASE_RECORD"],
    "verify": ["cp keys/public.key public.key"],
    "report": ["posterase erase fit.nc --rows 3,17 --out again.nc --diagnostics diagnostics.json --preprocessing none"],
}
"""What an example takes for granted."""

IN_ORDER = [
    *("keys new", "requests register", "requests add", "requests list", "requests extend", "requests run"),
    *("requests show", "requests cancel", "requests export", "verify", "keys show", "keys rotate", "tokens new"),
    *("tokens list", "tokens revoke", "erase", "assess", "report", "doctor", "data list", "data where", "data check"),
    *("reproduce fashion-mnist", "reproduce cifar10", "reproduce page", "reproduce diabetes", "reproduce methods"),
]
LONG = ["demo", "reproduce gmm", "reproduce digits"]
UNTIL_A_SIGNAL = ["serve", "requests work"]
NOT_HERE = {
    "bench posteriors": "most of an hour: docs/results/posteriors.md",
    "bench trust": "hours: docs/results/trust.md",
}


def example_of(name):
    return re.search(r"Example: `(posterase [^`]+)`", COMMANDS[name].help)[1]


def write_fits(folder):
    """A fit with two houses in ANOKA, rows 3 and 17; fits without them; and a project of its own."""
    county = np.full(60, "HENNEPIN")
    county[[3, 17]], county[[4, 18]], county[[5, 19]] = "ANOKA", "AITKIN", "LAKE"
    values = np.random.default_rng(0).normal(size=60)
    kept = county != "ANOKA"
    for name, rows in (("fit", kept | True), ("radon", kept | True), ("refit-1", kept), ("refit-2", kept)):
        write_draws(folder / f"{name}.nc", county[rows], values[rows], name="county")
    (folder / "radon.toml").write_text('name = "radon"\ndraws = "radon.nc"\nbridge = "arviz"\nsubject = "county"\n')


def test_every_example_is_known():
    assert sorted([*IN_ORDER, *LONG, *UNTIL_A_SIGNAL, *NOT_HERE]) == sorted(COMMANDS)


@pytest.mark.slow
def test_every_example_works_as_pasted(tmp_path):
    write_fits(tmp_path)
    shutil.copytree(ROOT / "docs" / "results" / "networks", tmp_path / "docs" / "results" / "networks")
    pasted = {name: example_of(name).replace("/tmp", str(tmp_path)) for name in IN_ORDER}
    shell(tmp_path, *(line for name in IN_ORDER for line in (*PREPARED.get(name, []), pasted[name])))


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_every_long_example_works_as_pasted(tmp_path, name):
    shell(tmp_path, example_of(name).replace("/tmp", str(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", UNTIL_A_SIGNAL)
def test_examples_that_go_on_until_a_signal(tmp_path, name):
    shell(tmp_path, example_of("keys new"))
    own = environment(tmp_path) | {"POSTERASE_KEYS": "keys"}
    running = subprocess.Popen(["bash", "-c", f"exec {example_of(name)}"], cwd=tmp_path, env=own)
    if name == "serve":
        until(lambda: _answers("http://127.0.0.1:8350/sign-in"), 60)
    else:
        until(lambda: _handles(running.pid, signal.SIGTERM), 60)
    assert running.poll() is None
    running.terminate()
    assert running.wait(90) == 0


@pytest.mark.slow
def test_the_service(tmp_path):
    """Its commands, the service itself, and the program that uses it."""
    write_visits(tmp_path)
    *before, serve = blocks("docs/service.md", "sh")
    said = shell(tmp_path, *before)
    secret = re.findall(r"posterase_\w{16}_[\w-]{43}", said)[1]  # the shop's, which submits
    own = environment(tmp_path) | {"POSTERASE_KEYS": "keys"}
    service = subprocess.Popen(
        ["bash", "-c", f"exec {serve.strip()}"], cwd=tmp_path, env=own, stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: _answers("http://127.0.0.1:8350/sign-in"), 60)
        program = blocks("docs/service.md", "python")[0]
        ran = subprocess.run(
            [sys.executable, "-c", program], env=own | {"POSTERASE_TOKEN": secret}, capture_output=True, text=True
        )
        assert ran.stdout == "pending\n", ran.stderr
    finally:
        service.send_signal(signal.SIGINT)
        assert service.wait(90) in (0, 130)


def _handles(process, number):
    """Whether a process has a handler for a signal, as Linux tells."""
    caught = re.search(r"(?m)^SigCgt:\s*(\w+)$", Path(f"/proc/{process}/status").read_text())[1]
    return int(caught, 16) >> (number - 1) & 1


def _answers(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status == 200
    except urllib.error.URLError:
        return False


@pytest.mark.slow
def test_the_docs_can_be_built(tmp_path):
    site = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run([sys.executable, *site], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_newcomers_path(tmp_path):
    """Install into a new environment, the demo, an own NumPyro model, a certificate, and verify it."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "new"], check=True)
    own = environment(tmp_path) | {
        "PATH": f"{tmp_path / 'new' / 'bin'}:{os.environ['PATH']}",
        "HOME": os.environ["HOME"],
    }

    def shell(*lines):
        command = ["bash", "-e", "-c", "\n".join(lines)]
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    shell(f"pip install --quiet '{ROOT}[numpyro,record]'")
    assert "pip install 'posterase[plots]'" in shell("posterase demo")  # a table, and how to get the figure
    assert (tmp_path / "posterase-demo" / "gmm.json").exists()
    write_visits(tmp_path)
    said = shell(*blocks("docs/record.md", "sh"))
    assert "certificate.json is entry" in said
    assert "[record]" in shell("posterase doctor || true")
