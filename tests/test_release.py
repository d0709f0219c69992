"""What a release is held to: its import is light, and its papers are whole."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from release import core, extra_uses, fast_tests
from release.environments import CheckError, project

import posterase as pe
from posterase.cli.doctor import EXTRAS
from tests.cli.test_commands import COMMANDS

ROOT = Path(__file__).parent.parent
PAPERS = ["CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "RELEASING.md", "SECURITY.md"]


def test_the_import_is_light():
    """In new processes of each in turn, so that a busy machine slows both alike."""
    own, measure = core.imports(Path(sys.executable), repeats=2)
    assert own <= core.MOST * measure


@pytest.mark.slow
def test_an_import_that_is_not_light_is_noticed():
    """The broken twin: everything that has a name is imported at once."""
    eager = "import posterase\nfor name in dir(posterase): getattr(posterase, name)"
    own, measure = core.imports(Path(sys.executable), eager, repeats=2)
    assert own > core.MOST * measure


def test_the_version_is_stated_once():
    """Nowhere else than in version.py, but where a file must repeat it."""
    assert project()["dynamic"] == ["version"]
    assert importlib.metadata.version("posterase") == pe.__version__
    first = re.search(r"(?m)^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert first[1] == citation["version"] == pe.__version__
    assert ("unreleased" if "date-released" not in citation else str(citation["date-released"])) == first[2]
    stated = [path for path in (ROOT / "src").rglob("*.py") if f'"{pe.__version__}"' in path.read_text()]
    assert stated == [ROOT / "src" / "posterase" / "version.py"]


def test_the_changelog_has_every_name_command_and_extra():
    text = (ROOT / "CHANGELOG.md").read_text()
    words = set(re.findall(r"[\w-]+", text))
    names = {name for name in dir(pe) if not name.startswith("_")}
    assert names - words == set()
    assert {extra for extra in EXTRAS if f"[{extra}]" not in text} == set()
    assert {name for name in COMMANDS if not set(name.split()) <= words} == set()


def test_the_papers_lead_somewhere():
    """Links to files and to their headings."""
    for paper in PAPERS:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", (ROOT / paper).read_text()):
            name, _, heading = target.partition("#")
            assert (ROOT / name).exists(), (paper, target)
            assert not heading or heading in _anchors(ROOT / name), (paper, target)


def _anchors(page):
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


def test_the_papers_are_in_the_sdist():
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    included = targets["sdist"]["include"]
    assert all(any(Path("/", paper).match(pattern) for pattern in included) for paper in PAPERS)
    assert all(pattern.startswith("/") for pattern in included)  # else it would be looked for in every folder


def test_every_extra_has_a_use():
    assert list(extra_uses.USES) == list(project()["optional-dependencies"])


def test_fast_tests_are_not_counted_where_some_would_be_skipped(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "chromium"))
    monkeypatch.setattr(fast_tests, "ran", lambda *_, **__: pytest.fail("they were run"))
    with pytest.raises(CheckError, match=r"initdb is not on the PATH; g\+\+ is not on the PATH; there is no Chromium"):
        fast_tests.counted(Path(sys.executable))


@pytest.mark.parametrize("module", ["release", "benchmarks"])
def test_a_name_that_is_none_is_refused_in_words(module):
    done = subprocess.run([sys.executable, "-m", module, "nope"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nope; there are " in done.stderr
