"""Refit as the last method of the ladder: warm started, run again where that fails, limited in time; and methods that
fail in a library's own error."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.draws.objections import Objection
from posterase.errors import InvalidOptionError
from posterase.ladder import climb, erase
from posterase.methods import refit as refit_module
from posterase.methods.base import Problem, run_method
from posterase.numerics import transport_fit
from posterase.numerics.cost import WARM_WARMUP
from posterase.runtime.progress import approximate, told_to
from posterase.sampling import warm_nuts
from tests.oracles import LinearRegression
from tests.statistical import assert_moments, rejected

KNOWN = LinearRegression.make()
MODEL = KNOWN.model()
EVERYONE, ROWS = np.arange(60), np.arange(20)
KEPT = np.setdiff1d(EVERYONE, ROWS)
DRAWS = pe.Draws(KNOWN.sample(EVERYONE, (4, 1000), seed=0))
NOTHING_ELSE = pe.Policy(epsilon=0.0)
"""No other method passes."""


def refitted(draws=DRAWS, near=None, **options):
    change = MODEL.change(remove=ROWS)
    return run_method(pe.Refit(**options), Problem(jax.random.key(1), MODEL, draws, change, near=near))


def values_of(draws):
    return np.asarray(draws.flat()["beta"])


@pytest.mark.statistical
def test_erase_ends_in_a_refit_that_is_right():
    """Efficiency: NUTS draws of a three-dimensional Gaussian are worth at least half as many independent ones."""
    result = pe.erase(MODEL, DRAWS, ROWS, policy=NOTHING_ELSE)
    assert [outcome.name for outcome in result.outcomes] == ["Reweight", "Transport", "Refit"]
    assert (result.verdict.kind, result.verdict.draws) == ("refitted", "refitted")
    last = result.outcomes[-1]
    assert last.erased.details.warmup == WARM_WARMUP
    assert last.erased.details.before == ()
    assert 0.2 < last.expected.gradients / last.cost.gradients < 5
    assert_moments(values_of(result.draws), KNOWN.mean(KEPT), KNOWN.variance(KEPT), efficiency=0.5)
    with rejected():
        assert_moments(values_of(result.draws), KNOWN.mean(EVERYONE), KNOWN.variance(EVERYONE), efficiency=0.5)
    assert all(outcome.moved is None for outcome in result.outcomes)


def test_without_a_refit_there_is_a_refusal_that_names_it_once():
    result = pe.erase(MODEL, DRAWS, ROWS, policy=dataclasses.replace(NOTHING_ELSE, refit=False))
    assert not result.verdict.accepted
    assert result.verdict.advice.count("refit") == result.verdict.advice.count("allow a refit: ") + 1 == 2
    assert "or refit" not in result.verdict.advice


@pytest.mark.statistical
def test_the_metric_costs_time_and_nothing_else():
    """From draws of another posterior: narrow in one direction, wide in another. The chains are right all the same."""
    wrong = pe.Draws({"beta": DRAWS.params["beta"] * np.array([0.2, 1.0, 5.0])})
    for weights in (None, np.linspace(0, 300, 4000).reshape(4, 1000)):
        found = refitted(near=wrong.replace(wrong.params, weights))
        assert_moments(values_of(found.draws), KNOWN.mean(KEPT), KNOWN.variance(KEPT), efficiency=0.4)


def test_a_good_metric_saves_evaluations():
    """Parameters with a correlation of 0.99: a warm start takes less than a third of a cold one's gradients."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 4))
    known = LinearRegression(x, x.sum(axis=1) + 0.8 * rng.normal(size=200))
    model = known.model()
    draws = pe.Draws(known.sample(np.arange(200), (4, 500), seed=0))
    change = model.change(remove=np.arange(10))
    warm, cold = (pe.Refit(warm=steps)(0, model, draws, change).diagnostics for steps in (WARM_WARMUP, 0))
    assert warm.rhat < 1.01
    assert warm.cost.gradients / min(warm.ess.values()) < cold.cost.gradients / min(cold.ess.values()) / 3


@pytest.mark.parametrize("trouble", ["chains that disagree", "divergences", "a singular matrix"])
def test_what_a_warm_start_gets_wrong_is_run_again(monkeypatch, trouble):
    made = warm_nuts.warm_nuts

    def broken(*args):
        if trouble == "a singular matrix":
            np.linalg.cholesky(np.zeros((2, 2)))
        sampled = made(*args)
        if trouble == "divergences":
            return sampled._replace(divergences=3)
        return sampled._replace(thetas=sampled.thetas + np.arange(4.0)[:, None, None])

    monkeypatch.setattr(refit_module, "warm_nuts", broken)
    found = refitted()
    assert found.details.warmup == 500
    expected = {"chains that disagree": "R̂ was", "divergences": "3 transitions", "a singular matrix": "not positive"}
    assert expected[trouble] in found.details.before[0]
    assert found.details.before[0] in str(found.details)
    assert len(found.details.before) == (2 if trouble == "divergences" else 1), "smaller steps first"
    assert found.diagnostics.rhat < 1.01
    assert refitted(warm=0).details.before == ()
    if trouble != "a singular matrix":
        alone = refitted(warm=0).diagnostics.cost
        assert found.diagnostics.cost.gradients > 1.1 * alone.gradients, "both runs count"


def test_few_draws_are_taken_from_longer_chains():
    """From 4 chains of 100 draws R̂ would be above 1.02 by chance; and 20 chains would be 20 warm-ups."""
    for chains, length in ((4, 100), (20, 100)):
        few = pe.Draws(KNOWN.sample(EVERYONE, (chains, length), seed=0))
        found = refitted(few)
        assert (found.draws.n_chains, found.draws.n_draws) == (chains, length)
        assert found.diagnostics.rhat < 1.02
        assert found.details.before == ()
        assert min(found.diagnostics.ess.values()) < 2 * chains * length
        assert len(np.unique(values_of(found.draws)[:, 0])) > 0.9 * chains * length


def test_chains_that_disagree_lead_to_a_cold_refit():
    apart = pe.Draws({"beta": DRAWS.params["beta"] + np.array([0, 0, 0, 3.0])[:, None, None]})
    result = pe.erase(MODEL, apart, [5])
    assert [outcome.name for outcome in result.outcomes] == ["Refit"]
    assert result.verdict.accepted
    assert result.outcomes[0].erased.details.warmup == 500


def test_a_refit_that_cannot_pass_is_not_started():
    result = pe.erase(MODEL, DRAWS, ROWS, policy=pe.Policy(ess=1e5))
    assert "Refit: it returns 4000 draws, as went in, and 1e+05 effective ones are asked for" in result.verdict.reason
    assert result.outcomes[-1].erased is None


def test_a_refit_that_would_take_too_long_is_not_started():
    policy = dataclasses.replace(NOTHING_ELSE, refit_seconds=0.0)
    result = pe.erase(MODEL, DRAWS, ROWS, policy=policy)
    assert not result.verdict.accepted
    last = result.outcomes[-1]
    assert (last.name, last.objections[0].cause, last.erased) == ("Refit", "time", None)
    assert "longer than refit_seconds=0 of the policy" in result.verdict.reason
    assert "refit_seconds" in result.verdict.advice
    assert "a refit is estimated to take longer than the policy allows" in result.verdict.public()
    assert json.loads(json.dumps(result.to_dict()))["methods"][-1]["expected_seconds"] > 0


def test_a_refit_that_turns_out_to_take_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(climb.Climb, "expected", lambda *_: climb.Expected(1.0, 0.0))
    result = pe.erase(MODEL, DRAWS, ROWS, policy=dataclasses.replace(NOTHING_ELSE, refit_seconds=1e-6))
    assert result.outcomes[-1].objections[0].cause == "time"
    assert pe.erase(MODEL, DRAWS, ROWS, policy=dataclasses.replace(NOTHING_ELSE, refit_seconds=1e6)).verdict.accepted


def test_progress_says_how_long_a_refit_takes():
    heard = []
    with told_to(heard.append):
        pe.erase(MODEL, DRAWS, ROWS, policy=NOTHING_ELSE)
    own = [each.removeprefix("erasing, 3 of 3: ") for each in heard if each.startswith("erasing, 3 of 3: Refit")]
    assert own[0].startswith(("Refit, about ", "Refit, less than "))
    assert own[-1].startswith("Refit, 100% done")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.01, "less than 0.1 s"),
        (3.14, "about 3.1 s"),
        (90.0, "about 90 s"),
        (600.0, "about 10 min"),
        (1e4, "about 2.8 hours"),
    ],
)
def test_times_are_told_to_two_digits(seconds, text):
    assert approximate(seconds) == text


def test_networks_are_not_refitted_by_default():
    wide = pe.Draws({"w": np.random.default_rng(0).normal(size=(2, 10, 10_001))})
    model = pe.Model(lambda p: -0.5 * jnp.sum(p["w"] ** 2), lambda p, data: -0.5 * (data - p["w"][0]) ** 2, np.zeros(5))
    assert [type(each).__name__ for each in erase._ladder(None, pe.Policy(), model, wide)] == [
        *("Reweight", "Transport", "Rejuvenate")
    ]
    assert isinstance(erase._ladder([pe.Refit()], pe.Policy(), model, wide)[0], pe.Refit)


# --- errors of other libraries


def singular(*_, **__):
    return np.linalg.inv(np.zeros((2, 2)))


def not_finite(*_, **__):
    from scipy.linalg import cho_factor

    return cho_factor(np.full((2, 2), np.nan))


def failing_program(*_, **__):
    return jax.block_until_ready(jax.jit(lambda x: eqx.error_if(x, x > 0, "the solver did not converge"))(1.0))


def out_of_memory(*_, **__):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")


def overflow(*_, **__):
    return 10.0**400


FAILURES = [singular, not_finite, failing_program, out_of_memory, overflow]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: each.__name__)
def test_a_method_that_fails_did_not_pass(monkeypatch, failure):
    """In the fit of the map: `Transport` fails, `Rejuvenate` too, and the ladder goes on to the refit."""
    monkeypatch.setattr(transport_fit.Fit, "run", failure)
    result = pe.erase(MODEL, DRAWS, ROWS, policy=NOTHING_ELSE)
    by_name = {outcome.name: outcome for outcome in result.outcomes}
    assert by_name["Transport"].objections[0].cause == "error"
    assert by_name["Transport"].objections[0].public == "the method ended in an error"
    assert "computation failed" in by_name["Transport"].objections[0].reason
    assert result.verdict.method == "Refit"
    str(result), json.dumps(result.to_dict()), json.dumps(result.diagnostics_dict())


def test_moves_that_fail_are_a_rung_that_did_not_pass(monkeypatch):
    monkeypatch.setattr(climb, "make_output", singular)
    result = pe.erase(MODEL, DRAWS, [5], policy=pe.Policy(refit=False))
    assert {outcome.objections[0].cause for outcome in result.outcomes} == {"error"}


def test_checks_that_fail_are_named_errors(monkeypatch):
    monkeypatch.setattr(erase, "check_draws", singular)
    with pytest.raises(pe.errors.NonFiniteResultError, match="Singular matrix"):
        pe.erase(MODEL, DRAWS, [5])


@pytest.mark.parametrize("mistake", [InvalidOptionError("x is 3.", "use 4."), TypeError("no"), ValueError("ours")])
def test_mistakes_are_raised(monkeypatch, mistake):
    def raises(*_, **__):
        raise mistake

    monkeypatch.setattr(transport_fit.Fit, "run", raises)
    with pytest.raises(type(mistake)):
        pe.erase(MODEL, DRAWS, ROWS, policy=NOTHING_ELSE)


def test_ctrl_c_inside_a_callback_is_raised(monkeypatch):
    def raises(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: CpuCallback error: KeyboardInterrupt")

    monkeypatch.setattr(transport_fit.Fit, "run", raises)
    with pytest.raises(jax.errors.JaxRuntimeError):
        pe.erase(MODEL, DRAWS, ROWS, policy=NOTHING_ELSE)


def test_each_attempt_is_judged_by_itself(monkeypatch):
    """The first attempt of a refit is objected to; the second, which is not, is returned, and judged once."""
    judged = []
    judge = climb.Climb._judge

    def object_to_the_first(self, key, method, erased, near=None):
        outcome = judge(self, key, method, erased, near)
        judged.append(erased)
        found = [Objection("divergences", "made up", "")] if len(judged) == 1 else outcome.objections
        return dataclasses.replace(outcome, objections=found)

    monkeypatch.setattr(climb.Climb, "_judge", object_to_the_first)
    result = pe.erase(MODEL, DRAWS, ROWS, methods=[pe.Refit()], random_seed=0)
    assert result.verdict.accepted
    assert len(judged) == 2
    assert result.outcomes[-1].erased.details.before == ("made up",)
