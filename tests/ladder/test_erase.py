"""erase(): the ladder, its policy and verdict, and what must never go silently wrong."""

import dataclasses
import itertools
import json
import re
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.stats import kstest, norm

import posterase as pe
from posterase.data.parameters import element_names
from posterase.errors import InvalidOptionError, NotFactorisedError, RefusedError
from posterase.ladder.verdict import rounded
from posterase.methods.base import replaced
from posterase.methods.diagnostics import Diagnostics
from posterase.numerics.cost import Cost
from posterase.numerics.densities import constrained, unconstrained
from posterase.numerics.weights import Estimate
from posterase.sampling.mixing import chain_agreement
from tests.oracles import GammaPoisson, GaussianMean, LinearRegression
from tests.statistical import assert_moments

KNOWN = LinearRegression.make()
MODEL = KNOWN.model()
DRAWS = pe.Draws(KNOWN.sample(np.arange(60), (4, 500), seed=0))


def test_the_cheapest_rung_that_passes_is_taken():
    little = pe.erase(MODEL, DRAWS, [5])
    assert little.verdict.accepted
    assert [outcome.name for outcome in little.outcomes] == ["Reweight"]
    much = pe.erase(MODEL, DRAWS, np.arange(35))
    assert [outcome.name for outcome in much.outcomes] == ["Reweight", "Transport"]
    assert much.verdict.method == "Transport"
    assert much.verdict.kind == "measured"
    kept = np.arange(35, 60)
    weights = np.asarray(much.draws.weights).ravel()
    assert_moments(np.asarray(much.draws.flat()["beta"]), KNOWN.mean(kept), KNOWN.variance(kept), weights)


def test_a_rung_that_diverges_is_a_rung_that_does_not_pass():
    wild = pe.ContinueSampling(pe.SGLD(pe.PolynomialSteps(1e6, 1.0, 0.55)), steps=50)
    result = pe.erase(MODEL, DRAWS, np.arange(35), methods=[pe.Reweight(), wild, pe.Transport()])
    assert [outcome.erased is None for outcome in result.outcomes] == [False, True, False]
    assert result.verdict.method == "Transport"


def test_the_eraser_that_continue_starts_with_leaves_no_removed_rows():
    sampler = pe.SGLD(pe.PolynomialSteps(1e-4, 1.0, 0.55))
    result = pe.erase(MODEL, DRAWS, [5], methods=[pe.ContinueSampling(sampler, steps=1, start=pe.Transport())])
    started = result.outcomes[0].erased.details.started
    assert started.details.transported is None
    assert started.diagnostics.log_weights_at is None


def test_the_next_request_has_random_numbers_of_its_own():
    methods = [pe.Reweight()]
    first = pe.erase(MODEL, DRAWS, [5], methods=methods)
    second, again = first.erase([7], methods=methods), first.erase([7], methods=methods)
    same = pe.erase(MODEL, DRAWS, [5], methods=methods, random_seed=0)
    assert eqx.tree_equal(second.draws, again.draws)
    assert eqx.tree_equal(first.draws, same.draws)
    assert not np.array_equal(jax.random.key_data(first.next_key), jax.random.key_data(jax.random.key(0)))


def test_a_result_prints_plots_and_is_json():
    refits = [pe.Draws(KNOWN.sample(np.arange(35, 60), (4, 500), seed=seed)) for seed in (1, 2)]
    result = pe.erase(MODEL, DRAWS, np.arange(35), refits=refits)
    text = str(result)
    assert "35 rows of 60: accepted by Transport: k̂" in text
    assert "ε ≈" in text
    assert "≤" not in text
    assert any(line.startswith("Reweight") and "effective draws" in line for line in text.splitlines())
    json.dumps(result.to_dict(), allow_nan=False)
    again = json.loads(json.dumps(result.diagnostics_dict(), allow_nan=False))
    assert again["verdict"]["method"] == "Transport"
    assert again["methods"][0]["objections"]
    assert again["methods"][1]["jeffreys"]["value"] == pytest.approx(
        0, abs=5 * again["methods"][1]["jeffreys"]["error"]
    )
    figure = result.plot()
    axes = figure.axes
    assert_titles_apart(figure)
    moved = [float(axis.get_title().split(": ")[1].removesuffix(" sd")) for axis in axes[:3]]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0.3
    assert "k̂" in axes[-2].get_title()
    assert "Jeffreys from the refits" in text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.0421, 0.0013, "0.042 ± 0.001"),
        (0.0042, 0.00003, "0.0042 ± 0.0001"),
        (0.00011, 0.00003, "0.0001 ± 0.0001"),
        (0.000002, 0.000001, "0.0000 ± 0.0001"),
        (0.3, np.nan, "0.3 ± nan"),
    ],
)
def test_epsilon_is_not_printed_finer_than_four_decimals(value, error, text):
    assert rounded(Estimate(value, error)) == text


def assert_titles_apart(figure):
    FigureCanvasAgg(figure).draw()
    boxes = [axis.title.get_window_extent() for axis in figure.axes]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


@pytest.mark.slow
def test_jeffreys_of_the_untouched_draws_is_exact(x64):
    """Gaussians: J = ½ tr(P₁⁻¹P₂ + P₂⁻¹P₁ − 2I) + ½ δᵀ(P₁ + P₂)δ."""
    rows, everything = np.arange(50), np.arange(60)
    kept = np.arange(50, 60)
    refit = pe.Draws(KNOWN.sample(kept, (4, 5000), seed=1))
    draws = pe.Draws(KNOWN.sample(everything, (4, 5000), seed=2))
    full, left = KNOWN.precision(everything), KNOWN.precision(kept)
    apart = KNOWN.mean(everything) - KNOWN.mean(kept)
    exact = 0.5 * np.trace(np.linalg.solve(full, left) + np.linalg.solve(left, full) - 2 * np.eye(3))
    exact += 0.5 * apart @ (full + left) @ apart
    found = pe.erase(MODEL, draws, rows, refits=refit).outcomes[0].jeffreys
    wider = pe.Draws(KNOWN.sample(np.arange(45, 60), (4, 5000), seed=3))
    towards = KNOWN.model().change(remove=np.arange(45, 50))
    weighted = pe.Reweight()(0, MODEL.without(MODEL.change(remove=np.arange(45))), wider, towards).draws
    again = pe.erase(MODEL, draws, rows, refits=weighted).outcomes[0].jeffreys
    ignored = pe.erase(MODEL, draws, rows, refits=wider).outcomes[0].jeffreys
    assert abs(ignored.value - found.value) > 1.2
    assert again.value == pytest.approx(found.value, abs=0.8), "weights of the refit's draws count"
    assert isinstance(found, Estimate)
    assert abs(found.value - exact) < 4.5 * found.error
    assert found.error < 0.05 * exact
    from posterase.metrics import divergence

    model = KNOWN.model()
    assert divergence(model, draws, model.change(remove=rows), refit).value == pytest.approx(found.value)
    assert divergence(model, draws, model.change(remove=rows)) is None, "k̂ does not pass: not measured"
    few = model.change(remove=[3])
    one = np.setdiff1d(everything, [3])
    assert abs(divergence(model, draws, few).value - gaussian_kl(KNOWN, everything, one)) < 1e-3


def gaussian_kl(known, one, other):
    p, q = known.precision(one), known.precision(other)
    apart = known.mean(one) - known.mean(other)
    trace = np.trace(np.linalg.solve(p, q))
    return 0.5 * (trace - len(p) + apart @ q @ apart + np.linalg.slogdet(p)[1] - np.linalg.slogdet(q)[1])


def test_a_refusal_says_why_and_keeps_its_draws_to_itself():
    result = pe.erase(MODEL, DRAWS, np.arange(35), methods=[pe.Reweight()], policy=pe.Policy(refit=False))
    assert not result.verdict.accepted
    assert result.verdict.kind == "refused"
    assert "Reweight: 27 effective draws of beta" in result.verdict.reason
    assert "refit=True" in result.verdict.advice
    assert "or refit" not in result.verdict.advice, "one alternative, named once"
    with pytest.raises(RefusedError, match="refused"):
        _ = result.draws
    assert "refused" in str(result)
    json.dumps(result.to_dict(), allow_nan=False)
    few = pe.Draws(KNOWN.sample(np.arange(60), (2, 100), seed=0))
    refused = pe.erase(MODEL, few, np.arange(35), policy=pe.Policy(ess=400.0, refit=False))
    assert "the draws that went in have" in refused.verdict.reason
    assert "Draw more" in refused.verdict.advice
    weak = pe.erase(MODEL, few, np.arange(35))  # by default the fit's own weakness is no reason to refuse
    assert weak.verdict.accepted
    assert any("fewer than 400 effective draws" in note.text for note in weak.verdict.notes)


def test_a_refit_is_started_only_where_it_is_allowed():
    with pytest.raises(InvalidOptionError, match="does not allow"):
        pe.erase(MODEL, DRAWS, [3], methods=[pe.Refit()], policy=pe.Policy(refit=False))
    result = pe.erase(MODEL, DRAWS, [3], methods=[pe.Refit(warmup=200)], spent=0.7)
    assert result.verdict.kind == "refitted"
    assert "R̂" in result.verdict.reason
    assert result.spent == 0.0, "a refit starts the budget anew"


def spent_by(verdict):
    """√(ε/2), with the error of ε and at least what is printed of it; or what verification may have missed, if less."""
    epsilon = max(verdict.epsilon.value + verdict.epsilon.error, 1e-4)
    return min(np.sqrt(epsilon / 2), 2 * norm.cdf(verdict.missed / 2) - 1)


def test_the_budget_counts_total_variation():
    """Σ √(ε/2) over requests is carried on; past the budget, or with what would pass it, a refit is demanded."""
    first = pe.erase(MODEL, DRAWS, [5])
    assert first.spent == pytest.approx(spent_by(first.verdict))
    second = first.erase([9], random_seed=1)
    assert second.spent == pytest.approx(first.spent + spent_by(second.verdict))
    assert second.n_removed == 1
    assert second.model.n_rows == 58
    never = pe.Policy(refit=False)
    past = second.erase([11], spent=1.5, policy=never)
    assert not past.verdict.accepted
    assert "a refit is demanded" in past.verdict.reason
    assert past.outcomes == []
    assert "refused" in str(past)
    json.dumps(past.to_dict(), allow_nan=False)
    full = first.erase([9], random_seed=1, spent=1.0, policy=never)
    assert "earlier erasures have used up the budget of 1: a refit is demanded" in full.verdict.reason
    assert full.outcomes == []  # known beforehand, so nothing is tried
    scarce = first.erase([9], random_seed=1, spent=1.0 - 1e-9, policy=never)
    assert re.search(r"left 1e-09 of a budget of 1, and this one would spend [\d.e-]+: a refit", scarce.verdict.reason)
    assert full.verdict.advice == past.verdict.advice == "Allow a refit: policy=pe.Policy(refit=True)."
    allowed = first.erase([9], random_seed=1, spent=1.0, methods=[pe.Reweight()])
    assert allowed.verdict.advice == "Add pe.Refit() to methods."
    refitted = second.erase([11], spent=1.5)
    assert [outcome.name for outcome in refitted.outcomes] == ["Refit"]
    assert refitted.spent == 0.0


def test_deterministic_given_the_key_and_nothing_touched():
    before = jax.tree.map(np.array, DRAWS)
    one, other = (pe.erase(MODEL, DRAWS, np.arange(35), random_seed=7).draws for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.array, DRAWS), before)


def test_the_result_holds_nothing_that_evaluates_the_removed_rows():
    result = pe.erase(MODEL, DRAWS, np.arange(35))
    for outcome in result.outcomes:
        assert outcome.diagnostics.log_weights_at is None
        assert getattr(outcome.erased.details, "transported", None) is None
    assert not np.isin(np.asarray(MODEL.data["y"])[:35], np.asarray(result.model.data["y"])).any()


def test_a_likelihood_that_does_not_factorise_is_caught():
    leaking = pe.Model(
        lambda p: -0.5 * p["mu"] ** 2,
        lambda p, data: -0.5 * (data["y"] - data["y"].mean() - p["mu"]) ** 2,
        {"y": np.arange(20.0)},
    )
    draws = pe.Draws({"mu": np.random.default_rng(0).normal(size=(2, 500))})
    with pytest.raises(NotFactorisedError):
        pe.erase(leaking, draws, [3])


@pytest.mark.statistical
def test_a_group_that_loses_all_its_rows_ends_at_its_prior():
    """Ten groups with effects of their own; all rows of one go, and its effect is N(0, 1) again: KS, p > 1e-5."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(10), 12)
    y = rng.normal(size=10)[group] + rng.normal(size=120)
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p["effect"] ** 2),
        lambda p, data: -0.5 * (data["y"] - p["effect"][data["group"]]) ** 2,
        {"y": y, "group": group},
    )
    sums = np.bincount(group, weights=y)
    draws = pe.Draws({"effect": sums / 13 + rng.normal(size=(4, 500, 10)) / np.sqrt(13)})
    result = pe.erase(model, draws, group == 4)
    assert result.verdict.accepted
    effects = np.asarray(result.draws.flat()["effect"])
    assert kstest(effects[::2, 4], "norm").pvalue > 1e-5
    assert kstest(np.asarray(draws.flat()["effect"])[::2, 4], "norm").pvalue < 1e-5
    assert kstest((effects[::2, 7] - sums[7] / 13) * np.sqrt(13), "norm").pvalue > 1e-5


def grouped(width):
    """Groups with effects of their own and a Gaussian prior of this width, or none."""
    group = np.repeat(np.arange(3), 20)
    y = np.random.default_rng(0).normal(size=60)
    model = pe.Model(
        lambda p: -0.5 * jnp.sum((p["effect"] / width) ** 2),
        lambda p, data: -0.5 * (data["y"] - p["effect"][data["group"]]) ** 2,
        {"y": y, "group": group},
    )
    means = np.bincount(group, weights=y) / 20
    noise = np.random.default_rng(1).normal(size=(4, 500, 3)) / np.sqrt(20)
    return model, {"effect": means + noise}, group


@pytest.mark.parametrize("method", [pe.Transport(), pe.Rejuvenate(start=None)], ids=["Transport", "Rejuvenate"])
def test_a_flat_prior_without_rows_is_refused(method):
    model, params, group = grouped(jnp.inf)
    with pytest.raises(pe.errors.ImproperPosteriorError, match="effect"):
        method(0, model, pe.Draws(params), model.change(remove=group == 1))
    model, params, group = grouped(1e3)  # a wide prior is a prior: it is not taken for none
    assert (
        pe.Transport()(
            0, model, pe.Draws(params), model.change(remove=np.flatnonzero(group == 1)[:10])
        ).diagnostics.pareto_k
        < 0.7
    )
    with pytest.raises(pe.errors.ModelError, match="double"):
        method(0, model, pe.Draws({**params, "double": params["effect"] * 2}), model.change(remove=[3]))


@pytest.mark.slow
@pytest.mark.parametrize("key", [5, 0])
def test_what_has_no_posterior_is_refused(key):
    """Haldane's prior and two successes among 52 trials; without these two Beta(0, 50) is left, which is none."""
    y = np.array([1.0] * 2 + [0.0] * 50)
    model = pe.Model(
        lambda p: -jnp.log(p["p"]) - jnp.log1p(-p["p"]),
        lambda p, data: data["y"] * jnp.log(p["p"]) + (1 - data["y"]) * jnp.log1p(-p["p"]),
        {"y": y},
        transforms={"p": pe.unit_interval},
    )
    draws = pe.Draws({"p": np.random.default_rng(key).beta(2, 50, size=(4, 1000))})
    result = pe.erase(model, draws, [0, 1], random_seed=key)
    assert not result.verdict.accepted
    assert pe.erase(model, draws, [0], random_seed=key).verdict.accepted


@pytest.mark.statistical
@pytest.mark.parametrize("width", [10.0, 1000.0])
def test_a_group_ends_at_a_wide_prior_too(width):
    """From a posterior sd of 0.2 to a prior sd of 10 or 1,000, in float32."""
    model, params, group = grouped(jnp.asarray(width))
    result = pe.erase(model, pe.Draws(params), group == 1)
    values, weights = np.asarray(result.draws.flat()["effect"])[:, 1], np.asarray(result.draws.weights).ravel()
    assert_moments(values[:, None] / width, np.zeros(1), np.ones(1), weights)


@pytest.mark.slow
def test_mass_between_modes_is_moved():
    """y ~ N(mu², 1): two modes, every chain in one; rows that tilted them go, and the other mode has the mass."""
    rng = np.random.default_rng(0)
    y, tilt = rng.normal(4.0, 1.0, size=20), np.array([1.0, -1.0, 1.0])
    model = pe.Model(
        lambda p: -0.5 * (p["mu"] / 3) ** 2,
        lambda p, data: data["tilt"] * p["mu"] / 2 - 0.5 * data["kind"] * (data["y"] - p["mu"] ** 2) ** 2,
        {
            "y": np.concatenate([y, np.zeros(3)]),
            "tilt": np.concatenate([np.zeros(20), tilt]),
            "kind": np.repeat([1.0, 0.0], [20, 3]),
        },
    )
    grid = np.linspace(-4, 4, 8001)

    def density(rows_of_tilt):
        log = -0.5 * (grid / 3) ** 2 - 0.5 * ((y[:, None] - grid**2) ** 2).sum(0) + grid * tilt[rows_of_tilt].sum() / 2
        return np.exp(log - log.max()) / np.exp(log - log.max()).sum()

    full, kept = density([0, 1, 2]), density([1])
    chains = np.sort(rng.choice(grid, size=6000, p=full)).reshape(24, 250)
    draws = pe.Draws({"mu": rng.permuted(chains, axis=1)})
    patient = pe.Rejuvenate(start=None, max_gradients=2000)
    erased = patient(0, model, draws, model.change(remove=[20, 22]))
    positive = kept[grid > 0].sum()
    assert np.mean(np.asarray(erased.draws.params["mu"]) > 0) == pytest.approx(positive, abs=0.05)
    assert abs(np.mean(chains > 0) - positive) > 0.3
    result = pe.erase(model, draws, [20, 22])
    assert not result.verdict.accepted
    assert "different modes of mu" in result.verdict.reason


def test_label_switching_is_named():
    """Two components; in one chain of two they are numbered the other way round."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-3, 1, 100), rng.normal(3, 1, 100)])
    model = pe.Model(
        lambda p: -0.5 * jnp.sum((p["mu"] / 5) ** 2),
        lambda p, data: jnp.logaddexp(-0.5 * (data["y"] - p["mu"][0]) ** 2, -0.5 * (data["y"] - p["mu"][1]) ** 2),
        {"y": y},
    )
    chain = np.array([y[:100].mean(), y[100:].mean()]) + 0.1 * rng.normal(size=(1, 500, 2))
    switched = pe.Draws({"mu": np.concatenate([chain, chain[..., ::-1]])})
    result = pe.erase(model, switched, np.arange(100, 150), methods=[pe.Reweight(), pe.Transport()])
    assert not result.verdict.accepted
    assert "label switching" in result.verdict.reason
    assert "order 1, 0" in result.verdict.reason
    assert "pe.ordered" in result.verdict.advice
    apart = pe.Draws({"mu": np.concatenate([chain, chain + 5])})
    from posterase.sampling.mixing import different_modes

    assert "different modes of mu" in different_modes(apart).reason
    assert different_modes(pe.Draws({"mu": np.concatenate([chain, chain])})) is None


def test_stuck_chains_are_named():
    """NUTS leaves a chain where every proposal diverges; the other chains are draws of the posterior."""
    rng = np.random.default_rng(0)
    model = pe.Model(
        lambda p: -0.5 * (p["mu"] / 5) ** 2,
        lambda p, data: -0.5 * (data["y"] - p["mu"]) ** 2,
        {"y": rng.normal(size=40)},
    )
    mean, sd = float(np.sum(model.data["y"])) / (40 + 1 / 25), (40 + 1 / 25) ** -0.5
    chains = mean + sd * rng.normal(size=(4, 500))
    chains[2] = mean + 3 * sd
    cheap = [pe.Reweight(), pe.Transport()]
    result = pe.erase(model, pe.Draws({"mu": chains}), [3], methods=cheap)
    assert not result.verdict.accepted
    assert "the draws of chain 2 are all the same" in result.verdict.reason
    assert "modes" not in result.verdict.reason
    assert "Keep the chains that moved" in result.verdict.advice
    assert pe.erase(model, pe.Draws({"mu": chains[[0, 1, 3]]}), [3], methods=cheap).verdict.accepted


@pytest.mark.slow
@given(st.sets(st.integers(0, 11), min_size=2, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_two_steps_end_where_one_does(rows, random):
    """Rows removed at once, or in two requests in any order: both are the exact kept posterior, within error."""
    known = GammaPoisson.make()
    model, draws = known.model(), pe.Draws(known.sample(np.arange(12), (4, 500), seed=4))
    order = list(rows)
    random.shuffle(order)
    kept = np.setdiff1d(np.arange(12), order)
    policy = pe.Policy(ess=100.0)
    once = pe.erase(model, draws, order, policy=policy, methods=[pe.Reweight(), pe.Transport()])
    first = pe.erase(model, draws, order[:1], policy=policy, methods=[pe.Reweight(), pe.Transport()])
    twice = first.erase(order[1:], methods=[pe.Reweight(), pe.Transport()])
    for result in (once, twice):
        values, weights = np.asarray(result.draws.flat()["rate"]), np.asarray(result.draws.weights).ravel()
        assert_moments(values, known.mean(kept), known.variance(kept), weights)


def test_chains_that_disagree_are_refused_and_named():
    apart = pe.Draws({"beta": DRAWS.params["beta"] + np.array([0, 0, 0, 0.4])[:, None, None]})
    result = pe.erase(MODEL, apart, [5], methods=[pe.Reweight()])
    assert not result.verdict.accepted
    assert "disagree" in result.verdict.reason or "modes" in result.verdict.reason
    with pytest.raises(pe.errors.DrawsShapeError, match="4 draws"):
        pe.erase(MODEL, pe.Draws(KNOWN.sample(np.arange(60), (1, 4), seed=0)), [5])


@pytest.mark.parametrize(("shift", "rhat"), [(0.0, 1.0), (0.4, 1.02), (0.8, 1.07)])
def test_chains_that_disagree_a_little_are_noted_and_more_is_refused(shift, rhat):
    """Of four chains one is shifted, in standard deviations; R̂ is known to 0.01."""
    sd = np.sqrt(KNOWN.variance(np.arange(60)))
    away = pe.Draws({"beta": DRAWS.params["beta"] + shift * sd * np.array([0, 0, 0, 1])[:, None, None]})
    found = chain_agreement(away)["beta"].rhat.max()
    assert found == pytest.approx(rhat, abs=0.01)
    verdict = pe.erase(MODEL, away, [5], methods=[pe.Reweight()]).verdict
    assert verdict.accepted == (rhat < 1.05)
    assert ("R̂ of the draws that went in is above 1.01 for some parameter" in map(str, verdict.notes)) == (shift == 0.4)
    assert (f"the chains that went in disagree (R̂ {found:.2f} of beta)" in verdict.reason) == (shift == 0.8)


@pytest.mark.parametrize("shape", [(100, 40), (1000, 4)])
def test_walkers_that_are_stuck_are_refused_and_others_are_not(shape):
    """With 0.4 of the posterior's spread each, around centres spread so that all draws together look right."""
    rng, known = np.random.default_rng(0), GaussianMean.make()
    mean, sd = known.mean(np.arange(known.n_rows)), np.sqrt(known.variance(np.arange(known.n_rows)))
    stuck = np.sqrt(1 - 0.4**2) * rng.normal(size=(shape[0], 1)) + 0.4 * rng.normal(size=shape)
    for z, accepted in ((rng.normal(size=shape), True), (stuck, False)):
        draws = pe.Draws({"mu": mean + sd * z})
        verdict = pe.erase(known.model(), draws, [3], policy=pe.Policy(refit=False), random_seed=0).verdict
        assert verdict.accepted == accepted
    assert "disagree" in verdict.reason or "modes" in verdict.reason


def test_a_policy_that_needs_epsilon_refuses_what_has_none():
    erased = pe.MethodResult(DRAWS, None, Diagnostics(ess={"x": 900.0}, cost=Cost(), pareto_k=0.2, threshold=0.7))
    assert pe.Policy().objections(erased) == []
    assert "policy needs" in pe.Policy(need_epsilon=True).objections(erased)[0].reason
    assert pe.Policy().spends(erased) == 1.0, "an ε that was not measured counts as the most there can be"


class Unchanged(pe.Method):
    """Returns the draws that went in, and says that their chains agree."""

    def run(self, problem, warm_start=None):
        diagnostics = Diagnostics(ess={"beta": 2000.0}, cost=Cost(), rhat=1.0)
        return pe.MethodResult(
            problem.draws, Agreement(), diagnostics, samples_anew=True
        )  # which the class does not say


class UnchangedRefit(Unchanged):
    """The broken twin: it claims to be a refit."""

    samples_anew: ClassVar[bool] = True
    origin: ClassVar[str] = "refitted"


class Agreement:
    brief = "R̂ 1.000"


def test_a_method_is_a_refit_because_it_says_so_and_not_because_of_an_rhat():
    rows = np.arange(35)
    measured = pe.erase(MODEL, DRAWS, rows, methods=[Unchanged()], policy=pe.Policy(need_epsilon=True), spent=0.3)
    assert "ε not measured" in measured.verdict.reason
    assert measured.spent == 0.3
    moved = pe.erase(MODEL, DRAWS, rows, methods=[Unchanged()], spent=0.3)
    assert moved.verdict.kind != "refitted"
    assert moved.spent >= 0.3
    assert not moved.verdict.accepted or moved.verdict.verified
    with pytest.raises(InvalidOptionError, match="refit"):
        pe.erase(MODEL, DRAWS, rows, methods=[UnchangedRefit()], policy=pe.Policy(refit=False))
    allowed = pe.Policy(refit=True, need_epsilon=True)
    broken = pe.erase(MODEL, DRAWS, rows, methods=[UnchangedRefit()], policy=allowed, spent=0.3)
    assert (broken.verdict.kind, broken.spent) == ("refitted", 0.0), "nothing but the field makes the difference"


def test_without_epsilon_what_verification_may_have_missed_is_spent_and_the_verdict_says_what_is_left():
    first = pe.erase(MODEL, DRAWS, [5], methods=[Unchanged()], random_seed=0)
    verdict = first.verdict
    assert (verdict.kind, verdict.epsilon) == ("moved", None)
    assert 0 < verdict.missed < 0.15
    assert verdict.spends == first.spent == pytest.approx(2 * norm.cdf(verdict.missed / 2) - 1)
    assert verdict.left == pytest.approx(1 - first.spent)
    assert verdict.left / verdict.spends > 101
    assert "enough for more than 100 more like it" in str(verdict)
    dearer = dataclasses.replace(verdict, spends=verdict.left / 3.5)
    assert "enough for 3 more like it" in str(dearer)
    figures = first.diagnostics_dict()["verdict"]
    assert (figures["spends"], figures["left"]) == (verdict.spends, verdict.left)
    assert f"Budget: {np.ceil(first.spent / 0.05) * 0.05:g} of 1 spent" in first.public_text()
    assert not {"spends", "left"} & set(first.to_dict()["verdict"]), "they vary with the removed rows' values"
    scarce = pe.erase(MODEL, DRAWS, [5], methods=[Unchanged()], random_seed=0, spent=1 - 1.5 * first.spent)
    assert "another like it will need a refit" in str(scarce.verdict)


def test_a_refit_must_measure_rhat():
    erased = pe.MethodResult(DRAWS, None, Diagnostics(ess={"x": 900.0}, cost=Cost()), samples_anew=True)
    assert [each.cause for each in pe.Policy().objections(erased)] == ["rhat not measured"]


def test_bad_input():
    for wrong in ({"methods": []}, {"spent": -1.0}):
        with pytest.raises(InvalidOptionError):
            pe.erase(MODEL, DRAWS, [3], **wrong)
    with pytest.raises(pe.errors.RowsError):
        pe.erase(MODEL, DRAWS, np.array([3.5]))
    with pytest.raises(pe.errors.PosteraseError):
        pe.erase(GaussianMean.make().model(), DRAWS, [3])


def test_columns_are_named():
    assert element_names(DRAWS.params) == ["beta[0]", "beta[1]", "beta[2]"]


def test_progress_is_told_to_whoever_listens():
    from posterase.runtime.progress import told_to

    heard = []
    with told_to(heard.append):
        pe.erase(MODEL, DRAWS, np.arange(35))
    assert [said.split(": ")[1] for said in heard] == ["Reweight", "Transport"]
    assert heard[1].startswith("erasing, 2 of ")
    pe.erase(MODEL, DRAWS, [5])
    assert len(heard) == 2


def test_progress_appears_after_a_while(monkeypatch, capsys):
    import time

    from posterase.runtime import progress

    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes what it writes to for a terminal
    with progress.shown("erasing", 3, wanted=True) as report:
        report("Transport", 1)
        time.sleep(0.3)
    assert "Transport" in capsys.readouterr().err
    monkeypatch.delenv("FORCE_COLOR")
    with progress.shown("erasing", 3) as report:
        report("nobody looks", 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("rows", [[5], np.arange(35)], ids=["accepted", "refused"])
def test_what_a_notebook_saves_has_no_figures(rows):
    """It saves text as well as HTML; `print(result)` shows the figures."""
    result = pe.erase(MODEL, DRAWS, rows, methods=[pe.Reweight()])
    saved = result._repr_mimebundle_()
    assert saved["text/html"] == result._repr_html_()
    assert saved["text/plain"] == result.public_text()
    for text in (*saved.values(), *result.verdict._repr_mimebundle_().values()):
        assert result.verdict.public_reason in text
        figures = text.replace("Budget: 0.05 of 1 spent", "")  # rounded up
        assert not re.search(r"\d\.\d|k̂ \d|ESS \d|effective draws of", figures)
    assert re.search(r"\d\.\d", str(result)), "the twin"


def test_draws_are_shown_as_a_table_of_shapes():
    draws = pe.Draws({"a<b": np.zeros((2, 30)), "beta": np.zeros((2, 30, 3))})
    assert "<td>a&lt;b</td><td>float32</td>" in draws._repr_html_()
    assert "<td>beta</td><td>float32[3]</td>" in draws._repr_html_()


def test_a_seed_is_a_number_or_a_key():
    one, other, third = (
        pe.erase(MODEL, DRAWS, [5], methods=[pe.Reweight()], **given)
        for given in ({"random_seed": 3}, {"random_seed": jax.random.key(3)}, {"random_seed": 4})
    )
    np.testing.assert_array_equal(one.draws.params["beta"], other.draws.params["beta"])
    assert not np.array_equal(one.draws.params["beta"], third.draws.params["beta"])
    again = [result.erase([7], methods=[pe.Reweight()], random_seed=1).draws.params["beta"] for result in (one, other)]
    np.testing.assert_array_equal(*again)
    calls = {
        "erase": lambda **given: pe.erase(MODEL, DRAWS, [5], **given),
        "assess": lambda **given: pe.assess(MODEL, DRAWS, DRAWS, **given),
        "calibrate": lambda **given: pe.metrics.calibrate(pe.Reweight(), dict, dict, MODEL, [5], **given),
    }
    for call in calls.values():
        with pytest.raises(pe.errors.InvalidTypeError, match="random_seed is True"):
            call(random_seed=True)


def test_a_variance_that_overflows_float32_is_moved_in_float64():
    """To the kept posterior; and without a warning from numpy, which would be an error here."""
    rng, scale = np.random.default_rng(0), 1e30
    y = rng.normal(size=40)
    model = pe.Model(
        lambda p: -0.5 * (p["mu"] / (10 * scale)) ** 2,
        lambda p, data: -0.5 * (data["y"] - p["mu"] / scale) ** 2,
        {"y": jnp.asarray(y)},
    )
    draws = pe.Draws({"mu": scale * (y.sum() / 40.01 + rng.normal(size=(4, 500)) / np.sqrt(40.01))})
    result = pe.erase(model, draws, np.arange(32), methods=[pe.Rejuvenate()])
    values = np.asarray(result.draws.params["mu"], np.float64).reshape(-1, 1) / scale
    assert_moments(values, np.array([y[32:].sum() / 8.01]), np.array([1 / 8.01]))


def test_a_map_that_overflows_is_refused_without_a_warning():
    draws = pe.Draws({"scale": np.exp(np.random.default_rng(0).normal(size=(2, 50)))})
    model = pe.Model(
        lambda p: -(jnp.log(p["scale"]) ** 2),
        lambda p, y: jnp.zeros(len(y)),
        np.zeros(3),
        transforms={"scale": pe.positive},
    )
    thetas, like = unconstrained(model, draws)
    params = constrained(model, thetas + 200.0, like, draws)
    with pytest.raises(pe.errors.NonFiniteResultError, match="after the map"):
        replaced(draws, params, None, "the map")
