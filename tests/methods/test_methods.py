"""Reweight and InfluenceShift against closed forms and broken twins."""

import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from tests.oracles import ORACLES, GammaPoisson, LinearRegression
from tests.statistical import BROKEN, assert_moments, rejected

CHAINS, DRAWS = 4, 2500


# --- Reweight against closed forms


def reweighted(known, rows, factor, seed):
    draws = pe.Draws(known.sample(np.arange(known.n_rows), (CHAINS, DRAWS), seed))
    model = known.model(factor)
    return pe.Reweight()(0, model, draws, model.change(remove=rows))


@pytest.mark.statistical
@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
def test_reweight_gives_the_kept_posterior(oracle, precision):
    """Mean and variance of the weighted draws are those of the exact kept posterior; broken twins are rejected."""
    known = oracle.make()
    removed = {
        "LinearRegression": [0, 7, 21],
        "BetaBernoulli": [0, 1, 2, 3, 5, 8],
        "GammaPoisson": [1, 4],
        "GaussianMean": [0, 1, 2, 3],
    }
    rows = removed[oracle.__name__]
    kept = np.setdiff1d(np.arange(known.n_rows), rows)

    def check(factor: float) -> None:
        erased = reweighted(known, rows, factor, seed=11)
        values = np.asarray(erased.draws.params[erased.draws.names[0]])
        flat = values.reshape(CHAINS * DRAWS, *values.shape[2:])
        assert_moments(flat, known.mean(kept), known.variance(kept), np.asarray(erased.draws.weights).ravel())

    check(1.0)
    for factor in BROKEN.values():
        with rejected():
            check(factor)


@pytest.mark.statistical
def test_reweight_continues_from_weighted_draws():
    """Two requests, one after the other, end where both at once end: in the exact kept posterior."""
    known = LinearRegression.make()
    model, draws = known.model(), pe.Draws(known.sample(np.arange(60), (CHAINS, DRAWS), seed=3))
    first = model.change(remove=[0, 7])
    once = pe.Reweight()(0, model, draws, first)
    kept_model = model.without(first)
    twice = pe.Reweight()(0, kept_model, once.draws, kept_model.change(remove=[21]))
    kept = np.setdiff1d(np.arange(60), [0, 7, 21])
    values = np.asarray(twice.draws.flat()["beta"])
    assert_moments(values, known.mean(kept), known.variance(kept), np.asarray(twice.draws.weights).ravel())
    forgot_the_first = pe.Reweight()(0, kept_model, draws, kept_model.change(remove=[21]))
    with rejected():
        weights = np.asarray(forgot_the_first.draws.weights).ravel()
        assert_moments(values, known.mean(kept), known.variance(kept), weights)


def test_reweight_says_when_not_to_trust_it():
    known = LinearRegression.make()
    good = reweighted(known, [5], 1.0, seed=0)
    assert not pe.Policy().objections(good)
    assert good.details.pareto_k < 0.7 == good.details.threshold
    bad = reweighted(known, np.argsort(-np.abs(known.y))[:40], 1.0, seed=0)
    objections = pe.Policy().objections(bad)
    assert [each.cause for each in objections] == ["pareto_k", "ess"]
    assert bad.details.ess < 100 < good.details.ess


# --- InfluenceShift against closed forms


@pytest.mark.parametrize("solver", [None, pe.CG(rtol=1e-13), pe.Neumann(order=20_000, scale=1e-3)], ids=str)
def test_kept_hessian_moves_a_gaussian_mean_exactly(solver, x64):
    """On a Gaussian posterior the Newton step is the difference of the two exact means, to 1e-8."""
    known = LinearRegression.make()
    rows = np.array([2, 5, 11, 40])
    model, draws = known.model(), pe.Draws(known.antithetic(np.arange(60), pairs=20, seed=0))
    erased = pe.InfluenceShift(hessian="kept", solver=solver)(0, model, draws, model.change(remove=rows))
    exact = known.mean(np.setdiff1d(np.arange(60), rows)) - known.mean(np.arange(60))
    np.testing.assert_allclose(erased.details.shift["beta"], exact, atol=1e-8, rtol=0)
    np.testing.assert_allclose(erased.draws.params["beta"], draws.params["beta"] + exact, atol=1e-8, rtol=0)
    assert not pe.Policy(ess=10.0).objections(erased)


def test_full_hessian_is_the_exact_first_order_term(x64):
    """The paper's shift is −∂δ̂/∂τ at τ = 0: here −H⁻¹ Xᵀ(y − Xm)/noise² over the removed rows, in closed form."""
    known = LinearRegression.make()
    rows = np.array([2, 5, 11, 40])
    model, draws = known.model(), pe.Draws(known.antithetic(np.arange(60), pairs=20, seed=0))
    erased = pe.InfluenceShift(hessian="full")(0, model, draws, model.change(remove=rows))
    everything = np.arange(60)
    residuals = known.y[rows] - known.X[rows] @ known.mean(everything)
    exact = -np.linalg.solve(known.precision(everything), known.X[rows].T @ residuals / known.noise**2)
    np.testing.assert_allclose(erased.details.shift["beta"], exact, atol=1e-10, rtol=0)


def test_weighted_draws_weigh_in_the_expectations(x64):
    """Draws of another Gaussian, weighted to the posterior by quadrature, give the posterior's shift."""
    known = GammaPoisson.make()
    model, change = known.model(), known.model().change(remove=[3])
    nodes = np.linspace(-4, 3, 800)
    a, b = known.shapes(np.arange(12))
    weighted = pe.Draws({"rate": np.exp(nodes)[None]}, (a * nodes - b * np.exp(nodes))[None])
    shift = pe.InfluenceShift()(0, model, weighted, change).details.shift["rate"]
    # On u = log(rate): E[y − rate] over the removed row, and −E∇² = E[rate]·(rows kept + b).
    mean = known.mean(np.arange(12))
    np.testing.assert_allclose(shift, -(known.y[3] - mean) / (mean * (11 + known.b)), rtol=1e-9)
    moved = pe.InfluenceShift()(0, model, weighted, change).draws
    np.testing.assert_array_equal(moved.log_weights, weighted.log_weights)


def test_weights_of_the_moved_draws_are_exact(x64):
    """Gaussian: log w = kept(θ + shift) − full(θ) in closed form, and k̂ tells a good shift from none."""
    known = LinearRegression.make()
    rows, everything = np.arange(12), np.arange(60)
    kept = np.setdiff1d(everything, rows)
    model, draws = known.model(), pe.Draws(known.sample(everything, (4, 500), seed=0))
    erased = pe.InfluenceShift()(0, model, draws, model.change(remove=rows))

    def log_normal(values, rows):
        centred = values - known.mean(rows)
        return -0.5 * np.einsum("cdi,ij,cdj->cd", centred, known.precision(rows), centred)

    exact = log_normal(np.asarray(erased.draws.params["beta"]), kept) - log_normal(
        np.asarray(draws.params["beta"]), everything
    )
    ours = erased.details.weights.log_weights
    body = exact < np.quantile(exact, 0.9)  # the tail is smoothed
    np.testing.assert_allclose(np.ptp((ours - exact)[body]), 0, atol=1e-9)
    assert not pe.Policy().objections(erased)
    untouched = pe.Reweight()(0, model, draws, model.change(remove=rows))
    assert erased.details.weights.pareto_k < untouched.details.pareto_k


def test_a_shift_that_does_not_suffice_is_not_passed():
    known = LinearRegression.make()
    model, draws = known.model(), pe.Draws(known.sample(np.arange(60), (4, 500), seed=0))
    erased = pe.InfluenceShift()(0, model, draws, model.change(remove=np.arange(55)))
    assert pe.Policy().objections(erased)[0].cause == "pareto_k"
    unweighed = pe.InfluenceShift(weigh=False)(0, model, draws, model.change(remove=np.arange(55)))
    assert pe.Policy().objections(unweighed)[0].cause == "not measured"


@pytest.mark.parametrize("solver", [pe.CG(), pe.Neumann(order=3, scale=1e-3)], ids=str)
def test_a_saddle_is_not_passed(solver):
    """Curvatures 5, 3 and −2: CG solves such systems without a word, to a saddle."""
    curvatures = jnp.array([5.0, 3.0, -2.0])
    model = pe.Model(
        lambda p: -0.5 * (curvatures * p["x"] ** 2).sum(), lambda p, y: y * p["x"].sum(), np.array([1.0, 0.0, 0.0])
    )
    draws = pe.Draws({"x": np.random.default_rng(0).normal(size=(1, 50, 3))})
    erased = pe.InfluenceShift(solver=solver)(0, model, draws, model.change(remove=[0]))
    assert pe.Policy().objections(erased)[0].cause == "saddle"
    assert "saddle" in str(erased)


@pytest.mark.statistical
def test_influence_shift_lands_on_the_kept_mean(precision):
    """With random draws: the mean after the shift is the exact kept mean, within its error; broken twins are not."""
    known = LinearRegression.make()
    rows = np.array([2, 5, 11, 40])
    kept = np.setdiff1d(np.arange(60), rows)
    model, draws = known.model(), pe.Draws(known.sample(np.arange(60), (CHAINS, DRAWS), seed=8))
    erased = pe.InfluenceShift()(0, model, draws, model.change(remove=rows))
    shift = np.asarray(erased.details.shift["beta"])
    original = np.asarray(draws.flat()["beta"])

    def check(factor: float) -> None:
        # A shift leaves the spread as it was: the variance to expect is still that of the full posterior.
        assert_moments(original + factor * shift, known.mean(kept), known.variance(np.arange(60)))

    check(1.0)
    for factor in BROKEN.values():
        with rejected():
            check(factor)
    np.testing.assert_allclose(np.asarray(erased.draws.flat()["beta"]), original + shift, rtol=1e-4, atol=1e-5)


def test_samples_are_picked_by_the_key(x64):
    known = GammaPoisson.make()
    model, draws = known.model(), pe.Draws(known.sample(np.arange(12), (2, 500), seed=0))
    method = pe.InfluenceShift(samples=20)
    shifts = [float(method(key, model, draws, model.change(remove=[3])).details.shift["rate"]) for key in range(20)]
    everything = float(pe.InfluenceShift()(0, model, draws, model.change(remove=[3])).details.shift["rate"])
    assert len(set(shifts)) == 20
    assert np.mean(shifts) == pytest.approx(everything, abs=5 * np.std(shifts) / np.sqrt(20))


def test_a_damped_series_says_so():
    known = LinearRegression.make()
    model, draws = known.model(), pe.Draws(known.sample(np.arange(60), (2, 50), seed=0))
    damped = pe.InfluenceShift(solver=pe.Neumann(order=2, scale=1e-4))(0, model, draws, model.change(remove=[3]))
    assert "residual" in [each.cause for each in pe.Policy().objections(damped)]
    assert "are damped" in str(damped)
    assert "most is left in beta" in str(damped)
    assert damped.details.left_out["beta"] == pytest.approx(damped.details.relative_residual)
    diverging = pe.InfluenceShift(solver=pe.Neumann(order=3, scale=0.1))(0, model, draws, model.change(remove=[3]))
    assert "residual" in [each.cause for each in pe.Policy().objections(diverging)]
    assert "diverges" in str(diverging)


def test_covariance_gap_of_like_rows():
    """Half of all rows gone: ½(−½ + log 2) nats a dimension, three dimensions."""
    known = LinearRegression.make()
    model, draws = known.model(), pe.Draws(known.sample(np.arange(60), (2, 50), seed=0))
    erased = pe.InfluenceShift()(0, model, draws, model.change(remove=np.arange(30)))
    assert erased.details.covariance_gap == pytest.approx(3 * 0.5 * (-0.5 + np.log(2)))
