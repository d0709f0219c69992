"""The paper's Gaussian-mixture experiment, small; its full size is `posterase reproduce gmm`."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import posterase as pe
from posterase.cli import main
from posterase.experiments import gmm
from posterase.experiments.recipes import SAMPLERS

SMALL = gmm.Settings(
    points=400, removed_per_cluster=80, iterations=400, neumann_order=8, chains=2, draws=10, thin=10, seed=1
)


@pytest.fixture(scope="module")
def outcome():
    return gmm.run(SMALL)


def test_the_papers_settings_are_the_defaults():
    settings = gmm.Settings()
    assert (settings.points, settings.components, settings.prior_sd) == (2000, 4, 1.0)
    assert (settings.iterations, settings.batch, settings.step_scale, settings.step_decay) == (4000, 64, 4.0, 0.5005)
    assert (settings.friction, settings.removed_per_cluster, settings.request_rows) == (0.9, 400, 4)
    assert (settings.neumann_order, settings.neumann_scale, settings.monte_carlo) == (32, 1.0, 5)


def test_the_data():
    points = gmm.make_points(gmm.Settings())
    assert points.z.shape == (2000, 2)
    np.testing.assert_array_equal(np.bincount(points.cluster), 500)
    np.testing.assert_array_equal(np.bincount(points.cluster[points.removed]), [0, 0, 400, 400])
    assert len(set(points.removed)) == 800
    spreads = [points.z[points.cluster == k].var(axis=0) for k in range(4)]
    np.testing.assert_allclose(spreads, [[1, 1], [1, 1], [1, 0.05], [0.05, 1]], rtol=0.3)


def test_the_start_knows_nothing_of_the_removed_points():
    points = gmm.make_points(gmm.Settings())
    kept = np.delete(points.z, points.removed, axis=0)
    centres = gmm.initial_centres(kept, 4)
    assert all((kept == centre).all(axis=1).any() for centre in centres)
    assert len({tuple(centre) for centre in centres}) == 4


def test_the_likelihood_far_from_all_centres_does_not_underflow():
    points = gmm.make_points(SMALL)
    model = gmm.make_model(SMALL, points._replace(z=points.z + 100.0))
    values = model.log_likelihood(np.zeros((4, 2), np.float32), model.data)
    assert np.isfinite(values).all()


def test_draws_and_labels_of_the_outcome(outcome):
    assert set(outcome.draws) >= {"original", "processed", "target", "floor"}
    for draws in outcome.draws.values():
        assert draws.params.shape == (2, 10, 4, 2)
    assert outcome.last_term < 1
    assert "step sizes chosen for 400 rows" in outcome.still_there
    # The shift is one vector a chain, up to rounding and the order of the components.
    original = gmm.match(outcome.draws["original"], outcome.draws["processed"])
    moved = np.asarray(outcome.draws["processed"].params - original.params)
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1], moved.shape), atol=1e-5)
    assert np.abs(moved).max() > 1e-3
    assert set(outcome.seconds) == {"retraining", "a request"}


def test_matching_components():
    rng = np.random.default_rng(0)
    target = pe.Draws(np.array([[0, 0], [5, 0], [0, 5], [5, 5.0]]) + 0.1 * rng.normal(size=(2, 20, 4, 2)))
    shuffled = pe.Draws(np.asarray(target.params)[:, :, [2, 0, 3, 1]])
    np.testing.assert_array_equal(gmm.match(shuffled, target).params, target.params)
    assert gmm.compare("same", target, target) == ("same", 0.0, 0.0, 0.0)
    assert gmm.compare("moved", pe.Draws(target.params + 1.0), target).distance == pytest.approx(np.sqrt(2), rel=1e-5)


def test_the_same_seed_gives_the_same_bytes(outcome):
    again = gmm.run(SMALL)
    assert json.dumps(gmm.to_dict(again)) == json.dumps(gmm.to_dict(outcome))
    other = gmm.run(dataclasses.replace(SMALL, seed=2))
    assert json.dumps(gmm.to_dict(other)) != json.dumps(gmm.to_dict(outcome))


def small_settings(monkeypatch):
    monkeypatch.setattr(gmm, "Settings", lambda **given: dataclasses.replace(SMALL, **{**given, "chains": 2}))


def test_reproduce_writes_table_figure_and_results(monkeypatch, tmp_path):
    small_settings(monkeypatch)
    tmp_path /= "[old]"
    result = CliRunner().invoke(main.app, ["reproduce", "gmm", "--sampler", "sghmc", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.count("[old]") == 3
    assert "floor: retrained twice" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        "gmm.png",
        "gmm.json",
        "timings.json",
    }
    results = json.loads((tmp_path / "gmm.json").read_text())
    assert results["sghmc"]["settings"]["seed"] == 0
    assert "seconds" not in json.dumps(results)
    assert set(json.loads((tmp_path / "timings.json").read_text())["sghmc"]) == {
        "retraining",
        "a request",
    }


def test_reproduce_refuses_an_unknown_sampler(tmp_path):
    command = [Path(sys.executable).with_name("posterase"), "reproduce", "gmm", "--sampler", "hmc", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "use sgld, sghmc or both" in done.stderr


@pytest.mark.slow
def test_the_demo_from_the_command_line(tmp_path):
    command = [Path(sys.executable).with_name("posterase"), "demo", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "120"})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for said in ("Forget one of 442 patients", "1 row of 442: accepted by Reweight", "What to try next"):
        assert said in done.stdout
    assert "All 200 requests together take" in done.stdout
    assert (tmp_path / "gmm.png").stat().st_size > 50_000
    assert (tmp_path / "one-person.png").stat().st_size > 20_000


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_papers_experiment_in_full(sampler):
    """Processed centres are nearer to the target than the original ones, and come within reach of the floor."""
    full = gmm.run(gmm.Settings(sampler=sampler, chains=16, ablation=False))
    distance = {each.name: each.distance for each in full.comparisons}
    assert distance["processed"] < 0.6 * distance["original"]
    assert distance["processed"] < 2 * distance["floor"]
    assert jax.tree.leaves(full.draws["target"])[0].shape == (16, 50, 4, 2)
