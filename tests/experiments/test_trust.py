"""A small form of `posterase bench trust`: accepted results are right, also where methods fail without verification.

The whole bench takes hours; its results are in docs/results/trust.md. A right result fails the strict test with a
probability of about 1e-5 for each number that is compared, and only if it is off by a stated distance besides.
"""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import posterase as pe
from posterase.experiments.trust import bench
from posterase.experiments.trust.exact import PROBABILITIES, Marginal
from posterase.experiments.trust.families import families
from posterase.numerics import refresh

FAMILIES = {family.name: family for family in families()}

HARD = {
    "uniform, the support grows": ("the five largest",),
    "two clusters, t₂ location": ("half of the larger", "most of the larger", "all of the smaller"),
    "prior with an edge, no transform": ("one row", "the smaller half"),
    "horseshoe coefficient": ("half",),
    "Cauchy group means": ("all but four",),
}
"""Cases on which methods fail: a support that grows, modes, an edge, a thin arm, heavy tails."""

WITHOUT_VERIFICATION = {
    "uniform, the support grows": "the five largest",
    "two clusters, t₂ location": "half of the larger",
}


def run(name, *changes, seed=0):
    return list(bench.run_family(FAMILIES[name], [seed], pe.Policy(), refits=False, changes=changes))


@pytest.mark.statistical
@pytest.mark.parametrize("name", HARD)
def test_hard_cases_are_answered_and_right(name):
    outcomes = run(name, *HARD[name])
    assert len(outcomes) == len(HARD[name])
    for outcome in outcomes:
        assert outcome.method, outcome.reason
        assert not outcome.strict


@pytest.mark.statistical
@pytest.mark.parametrize("name", WITHOUT_VERIFICATION)
def test_without_verification_wrong_results_are_accepted(name, monkeypatch):
    """The twin: drift is never found, and nothing may have been missed."""
    found = refresh.find_drift
    monkeypatch.setattr(
        refresh, "find_drift", lambda *args, **kwargs: found(*args, **kwargs)._replace(statistic=0.0, missed=0.0)
    )
    (outcome,) = run(name, WITHOUT_VERIFICATION[name])
    assert outcome.method
    assert outcome.strict


@pytest.mark.statistical
def test_everyday_and_spoiled_draws():
    outcomes = run("linear regression", "one row", "half", *bench.SPOILED)
    assert [outcome.strict for outcome in outcomes] == [""] * len(outcomes)
    answered = {outcome.change: outcome.method for outcome in outcomes}
    assert answered["one row"] == "Reweight"
    assert answered["half"] in ("Reweight", "Transport")
    for spoiled in ("shifted by 1 sd", "1.5 times the spread", "1/1.5 of the spread"):
        assert not answered[spoiled], "draws of another posterior"
    for stuck in ("100 stuck chains of 40", "1,000 stuck chains of 4"):
        assert answered[stuck] in ("", "Refit")


def test_a_grid_agrees_with_the_closed_form():
    """A normal mean with a normal prior."""
    family = FAMILIES["normal mean"]
    data = family.make(np.random.default_rng(0))
    kept = np.arange(len(data["y"])) % 3 > 0
    (found,) = family.posterior(data, kept).marginals()
    precision = kept.sum() + 1 / 100
    law = stats.norm(data["y"][kept].sum(dtype=np.float64) / precision, precision**-0.5)
    np.testing.assert_allclose([found.mean, found.sd], [law.mean(), law.std()], rtol=1e-5)
    np.testing.assert_allclose(found.quantiles, law.ppf(PROBABILITIES), atol=1e-4 * law.std())
    assert found.kurtosis == pytest.approx(3.0, rel=1e-4)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["hierarchy of normal groups", "linear regression, unknown spread", "shares of four"])
def test_exact_draws_are_not_wrong(name):
    family = FAMILIES[name]
    random = np.random.default_rng(0)
    data = family.make(random)
    exact = family.posterior(data, np.ones(len(data["y"]), bool))
    drawn = {key: x.reshape(4, 1000, *x.shape[1:]) for key, x in exact.sample(random, 4000).items()}
    right = bench.Wrong(pe.Draws(drawn), exact.marginals(), has_moments=True)
    assert (right.strict, right.loose) == ([], [])
    shifted = {key: x + 0.2 * x.std((0, 1)) for key, x in drawn.items()}
    assert bench.Wrong(pe.Draws(shifted), exact.marginals(), has_moments=True).strict
    slightly = {key: x + 0.1 * x.std((0, 1)) for key, x in drawn.items()}
    wrong = bench.Wrong(pe.Draws(slightly), exact.marginals(), has_moments=True)
    assert wrong.loose
    assert not wrong.strict


def test_what_is_strictly_wrong_where_moments_do_not_exist():
    law = stats.cauchy()
    exact = [Marginal("m", (), law.ppf(PROBABILITIES), np.nan, np.nan, np.nan)]
    x = law.rvs((4, 1000), random_state=0)
    assert not bench.Wrong(pe.Draws({"m": x}), exact, has_moments=False).loose
    assert bench.Wrong(pe.Draws({"m": np.clip(x, -8, 8) * 0.7}), exact, has_moments=False).strict


def test_the_tables_count_each_outcome_once():
    right = bench.Outcome(
        *("normal mean", "one row", 0, 1, False, "Reweight", "accepted", "", "", 1.0, 100.0, 400.0),
        *("", "", 2.0, 4000.0, 800.0),
    )
    wrong = dataclasses.replace(right, strict="mu: mean off", loose="mu: mean off")
    refused = dataclasses.replace(right, method="", reason="refused: no", ess=0.0, refit_strict="x", refit_loose="x")
    spoiled = dataclasses.replace(refused, change="shifted by 1 sd", spoiled=True, refit_seconds=0.0)
    outcomes = [right, wrong, refused, spoiled]
    by_family, by_removal, by_fault = bench.tables(outcomes)
    assert by_family.rows[0] == ("normal mean", "3", "2", "0", "0", "0", "1", "1", "1", "1", "1", "1", "0.50")
    assert by_family.rows[-1][1:] == by_family.rows[0][1:]
    assert by_removal.rows[0][1:] == by_family.rows[0][1:]
    assert by_fault.rows[0][:2] == ("shifted by 1 sd", "1")
    text = bench.summary(outcomes)
    assert "3 erasures, families: 1. Accepted: 2. Wrong, strictly: 1 of 2 (50.0%)" in text
    assert "Needlessly refused: 1 of 3" in text
    assert "20.0 times fewer evaluations" in text
    assert len(bench.wrong_ones(outcomes)) == 2
    assert [bench.Outcome.from_dict(each.to_dict()) for each in outcomes] == outcomes
