"""The diabetes experiment, as a user runs it, and its closed forms; and the command line's manners."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from posterase import __version__
from posterase.cli import main, reproduce
from posterase.experiments import diabetes, one_person


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("posterase"), *arguments]
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def requests():
    return diabetes.run(seed=3)


def test_the_demo_erases_one_person(monkeypatch, tmp_path):
    """Its fits by closed form. The after is the kept posterior within 4.5 standard errors: a false alarm in 10,000."""
    kept = np.arange(442) != one_person.PATIENT
    exact = diabetes.Exact(diabetes.load(), kept)

    def fit(seed, model):
        rows = np.asarray(model.present)
        return diabetes.Exact(diabetes.load(), rows).sample(np.random.default_rng(seed))

    monkeypatch.setattr(one_person, "_fit", fit)
    monkeypatch.setattr(reproduce, "_reproduce_gmm", lambda *_, **__: {"results": {}, "files": []})
    done = CliRunner().invoke(main.app, ["demo", "--out", str(tmp_path), "--json"])
    told = json.loads(done.stdout)
    assert told["files"] == [str(tmp_path / "one-person.png"), str(tmp_path / "one-person.json")]
    assert (tmp_path / "one-person.png").stat().st_size > 20_000
    shown = told["one_person"]
    assert shown["verdict"]["accepted"]
    assert shown["verdict"]["method"] == "Reweight"
    off = {name: np.abs(np.array(each) - exact.mean()) / exact.sd() for name, each in shown["mean"].items()}
    assert off["before"].max() > 0.3
    assert off["after"].max() < 4.5 / np.sqrt(1000)  # at least 1,000 effective draws
    assert off["refit"].max() < 4.5 / np.sqrt(4000)


@pytest.mark.slow
def test_diabetes_from_the_command_line(tmp_path):
    done = run("reproduce", "diabetes", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Forget one patient (1 of 442 rows)" in done.stdout
    assert "Forget all patients aged 60 or over (103 of 442 rows)" in done.stdout
    assert (tmp_path / "diabetes.png").stat().st_size > 20_000


def test_mistakes_end_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    done = run("reproduce", "diabetes", "--out", str(tmp_path / "file" / "folder"))
    assert done.returncode == 1
    assert "error: the folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help():
    assert run("--version").stdout == f"posterase {__version__}\n"
    for words in (["demo"], ["reproduce", "gmm"]):
        assert f"posterase {' '.join(words)} " in CliRunner().invoke(main.app, [*words, "--help"]).output


def test_without_matplotlib(monkeypatch, tmp_path, requests):
    monkeypatch.setattr(diabetes, "run", lambda *_, **__: requests)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(main.app, ["reproduce", "diabetes", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "pip install 'posterase[plots]'" in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_data_are_scikit_learns():
    from sklearn.datasets import load_diabetes

    table, patients = load_diabetes(scaled=False), diabetes.load()
    np.testing.assert_array_equal(patients.age, table.data[:, 0])
    np.testing.assert_allclose(patients.X[:, 3] * 5 + 25, table.data[:, 2])
    np.testing.assert_allclose(patients.y * 75 + 150, table.target)


def test_the_model_has_the_closed_form_posterior(x64):
    """Its log density, integrated over β on paper, is that of σ² ~ InverseGamma; checked along σ at the mode of β."""
    patients = diabetes.load()
    model, exact = diabetes.make_model(patients), diabetes.Exact(patients, np.arange(442))

    def ours(sigma):
        return float(model.log_joint({"beta": np.asarray(exact.beta), "sigma": np.asarray(sigma)}))

    def closed(sigma):  # N(β | mean, σ²V) at its mode, times InverseGamma on σ², times 2σ
        return -11 * np.log(sigma) - (2 * exact.shape + 1) * np.log(sigma) - exact.scale / sigma**2

    assert ours(0.75) - ours(0.65) == pytest.approx(closed(0.75) - closed(0.65), rel=1e-9)


def test_what_it_shows(requests):
    one, group = (dict(zip([o.method for o in r.outcomes], r.outcomes, strict=True)) for r in requests)
    floor = "floor: exact draws"
    assert one["Reweight"].verdict.startswith("passed")
    assert one["Reweight"].mean_error < 2 * one[floor].mean_error
    assert group["Reweight"].verdict.startswith("not passed")
    untouched, paper, newton = (
        group[name].mean_error for name in ("before: nothing erased", "InfluenceShift, the paper's", "InfluenceShift")
    )
    assert newton < paper < untouched
    assert newton < untouched / 4
    # A shift leaves the spread as it was.
    assert group["InfluenceShift"].spread_error == pytest.approx(group["before: nothing erased"].spread_error, abs=0.02)
