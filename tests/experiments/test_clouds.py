"""The picture of what every method does: what it draws are the library's draws, on the kept posterior."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import posterase as pe
from posterase.cli import main
from posterase.experiments import clouds, diabetes, figures

QUICK = ("Reweight", "InfluenceShift")


@pytest.fixture(scope="module")
def seen() -> clouds.Clouds:
    """By the methods that are quick to compile, from draws out of the cells of a grid."""
    asked = clouds.request()
    grid, rng = clouds.on_a_grid(asked.model), np.random.default_rng(0)
    cells = rng.choice(grid.mass.size, (4, 1000), p=grid.mass.ravel())
    sides = [np.diff(side)[0] for side in (grid.intercept, grid.slope)]
    places = grid.points[cells] + rng.uniform(-0.5, 0.5, (4, 1000, 2)) * sides
    return clouds.answer(0, asked, pe.Draws({"intercept": places[..., 0], "slope": places[..., 1]}), QUICK)


def test_what_the_rungs_do(seen):
    before, weighed, shifted = seen.clouds
    assert before.mean_error > 0.8
    assert weighed.says.startswith("refused: ")
    assert shifted.says.startswith("refused: ")
    assert shifted.mean_error < before.mean_error / 10
    assert shifted.spread_error == pytest.approx(before.spread_error, abs=1e-5), "a shift leaves the spread"


def test_the_kept_posterior_is_that_of_the_kept_rows(seen):
    """The density on the grid, against a sum by hand over the patients with a BMI below 30."""
    patients = diabetes.load()
    bmi, above = patients.X[:, 3], patients.y > 0
    kept = bmi < 1
    assert (kept.size, (~kept).sum()) == (seen.n_rows, seen.n_removed)
    points = seen.kept.points
    score = points @ np.stack([np.ones(kept.sum()), bmi[kept]])
    by_hand = (above[kept] * score - np.logaddexp(0, score)).sum(axis=1) - (points**2).sum(axis=1) / 50
    mass = np.exp(by_hand - by_hand.max())
    np.testing.assert_allclose(seen.kept.mass.ravel(), mass / mass.sum(), atol=1e-7)
    inside = [seen.kept.mass[seen.kept.mass >= seen.kept.level(share)].sum() for share in figures.SHARES]
    np.testing.assert_allclose(inside, figures.SHARES, atol=1e-3)


def test_what_is_drawn_are_the_librarys_draws(seen, monkeypatch, tmp_path):
    drawn = {}
    new_figure = figures.new_figure
    monkeypatch.setattr(figures, "new_figure", lambda *size: drawn.setdefault("figure", new_figure(*size)))
    assert figures.draw_methods(seen, tmp_path / "methods.png").stat().st_size > 20_000
    shown = np.linspace(0, 3999, figures.CLOUD_DRAWS).astype(int)
    for cloud, axis in zip(seen.clouds, drawn["figure"].axes, strict=False):
        points = axis.collections[0]
        np.testing.assert_array_equal(points.get_offsets(), cloud.draws.matrix()[shown])
        counts = np.asarray(cloud.draws.weights, float).ravel()[shown] * 4000
        np.testing.assert_allclose(points.get_sizes(), np.minimum(figures.POINT * counts, figures.LARGEST_POINT))
    model, change = clouds.request()
    own = pe.Reweight()(0, model, seen.clouds[0].draws, change).draws
    np.testing.assert_array_equal(own.weights, seen.clouds[1].draws.weights)
    assert np.ptp(np.asarray(own.weights)) > 0


def test_the_command(seen, monkeypatch, tmp_path):
    monkeypatch.setattr(clouds, "run", lambda *_, **__: seen)
    done = CliRunner().invoke(main.app, ["reproduce", "methods", "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [each["draws"] for each in told["answers"]] == ["before", *QUICK]
    assert (tmp_path / "methods.png").exists()


@pytest.mark.slow
def test_all_rungs_from_a_chain():
    found = {each.name: each for each in clouds.run().clouds}
    assert list(found)[1:] == list(clouds.LADDER)
    for name in ("Transport", "Rejuvenate", "Refit"):
        assert found[name].says.startswith("accepted")
        assert max(found[name].mean_error, found[name].spread_error) < 0.1
