"""Methods by name: those of posterase, and those that another package registers as entry points."""

import sys

import numpy as np
import pytest

import posterase as pe
from posterase.errors import InvalidOptionError
from posterase.methods import find_method, method_names

PACKAGE = """
from posterase.methods import MethodResult, Reweight


class Theirs(Reweight):
    def run(self, problem, warm_start=None):
        print(type(warm_start).__name__)
        return super().run(problem, warm_start)


class Broken(Reweight):
    '''It returns the draws as they are, with weights that say nothing.'''

    def run(self, problem, warm_start=None):
        found = super().run(problem, warm_start)
        return MethodResult(problem.draws, found.details, found.diagnostics)


NOT_A_METHOD = 3
"""

ENTRY_POINTS = """
[posterase.methods]
theirs = theirs:Theirs
broken = theirs:Broken
number = theirs:NOT_A_METHOD
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(PACKAGE)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("theirs", None)


def problem():
    rng = np.random.default_rng(0)
    y = np.append(rng.normal(size=80), np.full(20, 3.0))
    model = pe.Model(lambda p: -0.5 * p["m"] ** 2, lambda p, y: -0.5 * (y - p["m"]) ** 2, y)
    return model, pe.Draws({"m": y.sum() / 101 + rng.normal(size=(4, 500)) / np.sqrt(101)})


def test_methods_of_posterase_have_names():
    assert type(find_method("transport")) is pe.Transport
    assert {"reweight", "transport", "rejuvenate", "refit"} <= set(method_names())
    model, draws = problem()
    result = pe.erase(model, draws, [3], methods=["reweight", pe.Transport()], random_seed=0)
    assert result.verdict.method == "Reweight"


def test_a_method_of_another_package_is_warm_started_and_accepted(package, capsys):
    model, draws = problem()
    assert "theirs" in method_names()
    result = pe.erase(model, draws, range(60, 100), methods=["reweight", "theirs", "transport"], random_seed=0)
    assert capsys.readouterr().out == "MethodResult\n"
    assert [outcome.name for outcome in result.outcomes] == ["Reweight", "Theirs", "Transport"]
    assert result.verdict.method == "Transport"


def test_what_it_returns_is_verified_like_any_other(package):
    """Half a standard deviation off, with diagnostics that pass: the twin of an honest method."""
    model, draws = problem()
    result = pe.erase(model, draws, [90, 91], methods=["broken"], policy=pe.Policy(refit=False), random_seed=0)
    mean = np.asarray(result.draws.params["m"]).mean() if result.verdict.accepted else np.nan
    y = np.asarray(model.data)
    exact = np.delete(y, [90, 91]).sum() / 99
    assert not result.verdict.accepted or abs(mean - exact) < 4.5 / np.sqrt(99 * result.verdict.ess)


@pytest.mark.parametrize(("name", "says"), [("transprot", "did you mean 'transport'"), ("number", "not a method")])
def test_bad_names(package, name, says):
    with pytest.raises(InvalidOptionError, match=says):
        find_method(name)
