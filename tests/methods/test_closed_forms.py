"""Transport and Rejuvenate against closed forms: means, variances and the ratio of evidences; with broken twins.

A broken twin is a broken request: every removed row is in the data twice more, once with a likelihood counted
backwards, so that the posterior is the same; taking out other copies then deletes nothing, twice, or backwards.
"""

import jax
import numpy as np
import pytest

import posterase as pe
from posterase.numerics.weights import Estimate
from tests.oracles import ORACLES, GammaPoisson, LinearRegression
from tests.statistical import assert_moments, assert_near, rejected

CHAINS, DRAWS = 4, 1000
ROWS = {
    "LinearRegression": np.arange(20),
    "BetaBernoulli": np.arange(25),
    "GammaPoisson": np.array([1, 4, 5, 7]),
    "GaussianMean": np.arange(12),
}
METHODS = {
    "Transport": pe.Transport(),
    "Rejuvenate": pe.Rejuvenate(),
    "Rejuvenate, the path": pe.Rejuvenate(start=None),
}


def requests(known, rows):
    """A model, and what to remove from it for a right deletion and for each broken one."""
    base = known.model()
    data = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf[rows], leaf[rows]]), base.data)
    n, k = known.n_rows, len(rows)
    counts = np.concatenate([np.ones(n + k), -np.ones(k)])
    model = pe.Model(
        base.log_prior,
        lambda p, data: data["counted"] * base.log_likelihood(p, data["rows"]),
        {"rows": data, "counted": counts},
        transforms=base.transforms,
    )
    forwards, backwards = np.arange(n, n + k), np.arange(n + k, n + 2 * k)
    broken = {
        "nothing deleted": np.concatenate([forwards, backwards]),
        "deleted twice": np.concatenate([rows, forwards]),
        "sign flipped": backwards,
    }
    return model, rows, broken


QUICK = {(oracle, "Transport") for oracle in ROWS}


def cases():
    """Every method on every oracle; the dearer ones in `make test-all` only."""
    for oracle in ORACLES:
        for name in METHODS:
            marks = [] if (oracle.__name__, name) in QUICK else [pytest.mark.slow]
            yield pytest.param(oracle, name, id=f"{name} on {oracle.__name__}", marks=marks)


@pytest.mark.statistical
@pytest.mark.parametrize(("oracle", "name"), list(cases()))
def test_the_kept_posterior(oracle, name, x64):
    known = oracle.make()
    rows = ROWS[oracle.__name__]
    kept = np.setdiff1d(np.arange(known.n_rows), rows)
    model, right, broken = requests(known, rows)
    draws = pe.Draws(known.sample(np.arange(known.n_rows), (CHAINS, DRAWS), seed=21))
    ratio = known.log_evidence(np.arange(known.n_rows)) - known.log_evidence(kept)

    def check(rows: np.ndarray) -> None:
        erased = METHODS[name](0, model, draws, model.change(remove=rows))
        values = np.asarray(erased.draws.flat()[erased.draws.names[0]])
        efficiency = 1.0 if erased.draws.log_weights is not None else erased.diagnostics.least_ess / len(values)
        weights = np.asarray(erased.draws.weights).ravel()
        assert_moments(values, known.mean(kept), known.variance(kept), weights, efficiency=efficiency)
        assert_near(*erased.diagnostics.log_evidence_ratio, ratio)

    check(right)
    for rows in broken.values():
        with rejected():
            check(rows)


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
def test_refit_gives_the_kept_posterior(oracle):
    known = oracle.make()
    rows = ROWS[oracle.__name__]
    kept = np.setdiff1d(np.arange(known.n_rows), rows)
    model, right, broken = requests(known, rows)
    draws = pe.Draws(known.sample(np.arange(known.n_rows), (CHAINS, DRAWS), seed=21))

    def check(rows: np.ndarray) -> None:
        erased = pe.Refit()(0, model, draws, model.change(remove=rows))
        values = np.asarray(erased.draws.flat()[erased.draws.names[0]])
        # Variances mix more slowly than means do: half of the efficiency of the means.
        efficiency = 0.5 * erased.diagnostics.least_ess / len(values)
        assert_moments(values, known.mean(kept), known.variance(kept), efficiency=efficiency)

    check(right)
    with rejected():
        check(broken["nothing deleted"])


def test_transport_is_exact_on_a_gaussian_but_for_noise(x64):
    """The map's own KL: of order (removed share)² d²/n, where the untouched draws are nats away."""
    known = LinearRegression.make()
    rows = np.arange(20)
    model, draws = known.model(), pe.Draws(known.sample(np.arange(60), (4, 1000), seed=0))
    untouched = pe.Reweight()(0, model, draws, model.change(remove=rows)).details.before_weights
    erased = pe.Transport()(0, model, draws, model.change(remove=rows))
    assert erased.details.before_weights.value < 0.005
    assert untouched is None or untouched.value > 0.2
    one, other = erased.details.maps
    kept = np.setdiff1d(np.arange(60), rows)
    for each in (one, other):
        covariance = each.matrix @ np.linalg.inv(known.precision(np.arange(60))) @ each.matrix.T
        np.testing.assert_allclose(covariance, np.linalg.inv(known.precision(kept)), rtol=1e-6)
        assert each.log_det == pytest.approx(np.linalg.slogdet(each.matrix)[1])


def test_three_newton_steps_find_the_best_shift(x64):
    """The exact minimiser of Eq. 1 for Gamma–Poisson on the log scale: E e^(u + δ) (n′ + b) = a + Σy′."""
    known = GammaPoisson.make()
    draws = known.sample(np.arange(12), (2, 500), seed=0)
    model, change = known.model(), known.model().change(remove=[1, 4, 5])
    kept = np.setdiff1d(np.arange(12), [1, 4, 5])
    a, b = known.shapes(kept)
    full_a, full_b = known.shapes(np.arange(12))
    # E∇kept(u + δ) = E∇full(u) over these draws: a − b e^δ m = full_a − full_b m, with m the mean rate.
    mean = draws["rate"].mean()
    exact = np.log((a - full_a + full_b * mean) / (b * mean))
    shifts = [
        float(pe.InfluenceShift(newton_steps=n)(0, model, pe.Draws(draws), change).details.shift["rate"])
        for n in (1, 2, 6)
    ]
    errors = np.abs(np.array(shifts) - exact)
    assert errors[2] < 1e-12
    assert errors[1] < errors[0]


@pytest.mark.statistical
@pytest.mark.slow
def test_transport_in_many_dimensions(x64):
    """600 parameters: no matrices, a low-rank map; independent Gaussians whose curvature changes in ten directions."""
    d, n = 600, 400
    rng = np.random.default_rng(0)
    owner = np.concatenate([np.repeat(np.arange(10), 30), np.arange(10, d)])
    y = rng.normal(size=len(owner))
    model = pe.Model(
        lambda p: -0.5 * jax.numpy.sum(p["x"] ** 2),
        lambda p, data: -0.5 * (data["y"] - p["x"][data["owner"]]) ** 2,
        {"y": y, "owner": owner},
    )

    def exact(rows):
        precision = 1 + np.bincount(owner[rows], minlength=d)
        return np.bincount(owner[rows], weights=y[rows], minlength=d) / precision, 1 / precision

    everything = np.arange(len(owner))
    gone = np.concatenate([30 * group + np.arange(20) for group in range(10)])
    mean, variance = exact(everything)
    draws = pe.Draws({"x": mean + np.sqrt(variance) * rng.normal(size=(2, n // 2, d))})
    erased = pe.Transport(refinements=0)(0, model, draws, model.change(remove=gone))
    mean, variance = exact(np.setdiff1d(everything, gone))
    values, weights = np.asarray(erased.draws.flat()["x"]), np.asarray(erased.draws.weights).ravel()
    assert_moments(values, mean, variance, weights)
    assert erased.diagnostics.pareto_k < erased.diagnostics.threshold
    with rejected():
        assert_moments(np.asarray(draws.flat()["x"]), mean, variance)


@pytest.mark.slow
def test_continue_ends_near_the_kept_posterior():
    """SGLD from every draw, on the kept rows: means near the exact ones, which the draws that went in are not."""
    known = LinearRegression.make(rows=60)
    rows = np.arange(30)
    kept = np.setdiff1d(np.arange(60), rows)
    model, draws = known.model(), pe.Draws(known.sample(np.arange(60), (2, 200), seed=0))
    with pytest.warns(UserWarning, match="step"):
        sampler = pe.SGLD(pe.ConstantSteps(2e-3), batch=20)
    erased = pe.ContinueSampling(sampler, steps=600)(0, model, draws, model.change(remove=rows))
    sd = np.sqrt(known.variance(kept))
    before, after = (
        np.abs(np.asarray(d.flat()["beta"]).mean(0) - known.mean(kept)) / sd for d in (draws, erased.draws)
    )
    assert after.max() < 0.3 < before.max()
    objections = pe.Policy(ess=10.0).objections(erased)
    assert [each.cause for each in objections] == ["not measured"], "a ladder must not take it for proven"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*step")
def test_refit_and_continue_by_an_sg_mcmc_recipe():
    """SGLD on the kept rows: anew from the draws at hand, and on from shifted draws; both near the exact mean."""
    known = LinearRegression.make(rows=60)
    rows, kept = np.arange(30), np.arange(30, 60)
    model, draws = known.model(), pe.Draws(known.sample(np.arange(60), (4, 100), seed=0))
    sampler = pe.SGLD(pe.ConstantSteps(1e-3), batch=20)
    shift = pe.InfluenceShift(weigh=False)
    for method in (pe.Refit(sampler, warmup=500, thin=20), pe.ContinueSampling(sampler, steps=100, start=shift)):
        erased = method(0, model, draws, model.change(remove=rows))
        assert erased.draws.params["beta"].shape == (4, 100, 3)
        apart = np.abs(np.asarray(erased.draws.flat()["beta"]).mean(0) - known.mean(kept)) / np.sqrt(
            known.variance(kept)
        )
        assert apart.max() < 0.4, method
    assert np.isfinite(pe.Refit(sampler)(0, model, draws, model.change(remove=rows)).diagnostics.rhat)


def test_estimates_print_with_their_error():
    assert str(Estimate(0.0041, 0.0012)) == "0.0041 ± 0.001"
