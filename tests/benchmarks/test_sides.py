"""What `python -m benchmarks sides` compares with, in small; the page says what was measured, and nothing else."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.peer_models import Peers
from benchmarks.peers import Row
from benchmarks.problems import Problem, breast_cancer

import posterase as pe
from benchmarks import sides, sides_page


def kept():
    return sides_page.from_json(json.loads((sides_page.RESULTS / "sides.json").read_text()))


def test_the_pages_say_what_was_measured():
    found, text = kept(), sides_page.PAGE.read_text()
    assert sides_page.filled(text, sides_page.blocks(found)) == text
    assert sides_page.page(found, sides.__doc__) == (sides_page.RESULTS / "sides.md").read_text()


def test_another_measurement_would_be_seen():
    """The twin."""
    found, text = kept(), sides_page.PAGE.read_text()
    slower = [dataclasses.replace(row, seconds=2 * row.seconds) if row.method == "erase" else row for row in found.rows]
    changed = dataclasses.replace(found, rows=slower)
    assert sides_page.filled(text, sides_page.blocks(changed)) != text


def test_every_request_was_measured_by_all():
    requests = {(row.posterior, row.request) for row in kept().rows}
    assert {request for _, request in requests} == {name for names in sides.REQUESTS.values() for name in names}
    for key in requests:
        here = [row.method for row in kept().rows if (row.posterior, row.request) == key]
        assert len(here) == len(set(here))
        assert {"erase", "SMC by BlackJAX", "moment matching by arviz-stats", *sides.OURS} <= set(here)


@pytest.mark.parametrize(
    ("means", "spreads", "reached"), [(0.03, 0.03, True), (0.05, 0.01, False), (0.01, 0.05, False)]
)
def test_the_floor_is_of_means_and_of_spreads(means, spreads, reached):
    def row(mean_error, sd_error):
        return Row("a", "b", "c", "refit", mean_error, 0.01, sd_error, 0.5, 1.0, 1.0, 0.0, "")

    assert sides_page.at_the_floor(row(means, spreads), [row(0.01, 0.02), row(0.02, 0.01)]) == reached


N_ROWS, REMOVED = 12, np.arange(5)


def gaussian():
    """Rows of a normal with an unknown level, which the removed ones pull up; and the exact draws of its posterior."""
    y = np.where(np.arange(N_ROWS) < len(REMOVED), 2.0, 0.0).astype(np.float32)
    model = pe.Model(lambda p: -0.5 * p["level"] ** 2, lambda p, data: -0.5 * (data["y"] - p["level"]) ** 2, {"y": y})
    exact = y.sum() / (N_ROWS + 1) + np.random.default_rng(0).normal(size=(4, 500)) / np.sqrt(N_ROWS + 1)
    draws = pe.Draws({"level": exact.astype(np.float32)})

    def density(rows):
        return lambda at: -0.5 * jnp.sum((jnp.asarray(rows["y"]) - at["level"]) ** 2) - 0.5 * at["level"] ** 2

    problem = Problem("Gaussian", model, {"level": np.zeros(4, np.float32)}, {"five": REMOVED})
    return sides.Case(problem, Peers(None, None, density, ()), draws, "five", REMOVED)


@pytest.mark.statistical
def test_smc_by_blackjax_ends_at_the_kept_posterior():
    """False alarms: 1e-6 (five standard errors). Untouched draws must fail."""
    case = gaussian()
    found, says = sides.blackjax_smc(case, moves=3, step_size=0.8)(0)
    left = N_ROWS - len(REMOVED) + 1  # the prior is worth one row
    error = 5 / np.sqrt(left * found.params["level"].size)

    def off(draws):
        return abs(float(np.mean(draws.params["level"])))  # kept rows are all zero, and so is the exact mean

    assert off(found) < error, says
    assert np.std(found.params["level"]) == pytest.approx(1 / np.sqrt(left), rel=0.1)
    assert off(case.draws) > 5 * error


def test_the_path_deletes_once():
    at = sides.tempering(gaussian())
    change = at.minus_removed({"level": jnp.float32(1)}) - at.minus_removed({"level": jnp.float32(0)})
    assert float(change) == pytest.approx(len(REMOVED) * (0.5 * (2 - 1) ** 2 - 0.5 * 2**2))


def logistic_case():
    problem = breast_cancer()
    rng = np.random.default_rng(0)
    draws = pe.Draws((0.3 * rng.normal(size=(4, 50, 31))).astype(np.float32))
    return sides.Case(problem, Peers(None, None, None, ()), draws, "10 rows", problem.requests["10 rows"])


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(sides.PYDVL, raising=False)
    sides.has_r.cache_clear()
    found = sides_page.Found("", [], [], [], [])
    case = logistic_case()
    assert list(sides.in_r(case, found)) == list(sides.by_pydvl(case, case.draws, found)) == []
    sides.has_r.cache_clear()
    assert [each.split(":")[0] for each in found.skipped] == ["R loo and iwmm", "pyDVL"]
    told = sides_page.page(dataclasses.replace(kept(), skipped=found.skipped), sides.__doc__)
    assert all(each in told for each in found.skipped)


def test_the_mode_is_a_mode():
    rows = {name: np.asarray(values) for name, values in breast_cancer().model.data.items()}
    mode = sides.mode_of(rows)
    chance = 1 / (1 + np.exp(-rows["x"].astype(float) @ mode))
    assert np.abs(rows["x"].T @ (rows["y"] - chance) - mode).max() < 1e-8


@pytest.mark.slow
@pytest.mark.skipif(not sides.has_r(), reason="no R with the package loo")
def test_r_weighs_as_we_do():
    case = logistic_case()
    found = sides_page.Found("", [], [], [], [])
    by_r = {name: (moved, says) for name, moved, _, says in sides.in_r(case, found)}
    assert len(found.versions) == 1
    own = pe.Reweight()(0, case.problem.model, case.draws, case.problem.model.change(remove=case.removed)).draws
    weights = by_r["weights by R loo"][0]
    light = own.log_weights < np.median(own.log_weights)  # smoothing leaves these as they were, up to a constant
    assert np.ptp((weights.log_weights - own.log_weights)[light]) < 1e-3
