"""Each metric as a function of arrays: against a closed form or brute force, and against what must be caught."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest, norm

import posterase as pe
from posterase.errors import (
    DataError,
    DifferentModelError,
    DrawsShapeError,
    InvalidOptionError,
    MeaninglessDimensionWarning,
)
from posterase.metrics import (
    divergence,
    error_rate,
    forget_sets,
    jeffreys,
    kernel_stein,
    klom,
    knowledge_removal,
    logit_margin,
    membership_attack,
    nearest_neighbour_kl,
    pac_bayes,
    pac_bayes_change,
    prediction_difference,
    row_influence,
    timed,
    total_variation,
    u_lira,
)
from posterase.metrics import nearest_neighbours as neighbours_module
from posterase.metrics.moments import moment_errors
from posterase.numerics.weights import base_of, smooth
from posterase.numerics.weights import divergence as kl_from_weights
from tests.oracles import GammaPoisson, GaussianMean, LinearRegression


def rng(seed=0):
    return np.random.default_rng(seed)


# --- the paper's ε̂_M


def by_hand(x, y, k):
    """Wang et al. (2009), with two loops."""
    n, d = x.shape
    total = 0.0
    for i in range(n):
        own = sorted(np.linalg.norm(x[i] - x[j]) for j in range(n) if j != i)[k - 1]
        other = sorted(np.linalg.norm(x[i] - each) for each in y)[k - 1]
        total += np.log(other / own)
    return d / n * total + np.log(len(y) / (n - 1))


@pytest.mark.parametrize("k", [1, 3])
def test_nearest_neighbours_against_two_loops(k, x64):
    x, y = rng().normal(size=(15, 4)), 0.3 + rng(1).normal(size=(18, 4))
    assert nearest_neighbour_kl(x, y, k=k).value == pytest.approx(by_hand(x, y, k), rel=1e-12)


def test_distances_are_summed_in_blocks_of_dimensions(monkeypatch):
    """In float32 and 20,000 dimensions, of draws that are a thousand times nearer to each other than to the origin."""
    start = rng().normal(size=20_000)
    x, y = (start + 1e-3 * rng(seed).normal(size=(6, 20_000)) for seed in (1, 2))
    x, y = x.astype(np.float32), y.astype(np.float32)
    exact = by_hand(x.astype(np.float64), y.astype(np.float64), 1)
    assert nearest_neighbour_kl(x, y).value == pytest.approx(exact, abs=0.02)
    monkeypatch.setattr(neighbours_module, "DIMENSIONS_AT_ONCE", 777)
    jax.clear_caches()
    assert nearest_neighbour_kl(x, y).value == pytest.approx(exact, abs=0.02)


@pytest.mark.statistical
def test_nearest_neighbours_in_two_dimensions():
    """KL(N(μ, 1) ‖ N(0, 1)) = ½‖μ‖²; 4.5 errors of the mean over seeds."""
    shift = np.array([0.8, -0.6])
    processed = shift + rng(1).normal(size=(10, 800, 2))
    refit, second = rng(2).normal(size=(10, 800, 2)), rng(3).normal(size=(10, 800, 2))
    found = knowledge_removal(processed, refit, second)
    assert abs(found.epsilon.value - 0.5) < 4.5 * found.epsilon.error + 0.02
    assert abs(found.floor.value) < 4.5 * found.floor.error + 0.02
    assert found.epsilon.value > found.floor.value + 5 * found.epsilon.error  # nothing deleted is caught
    assert found.warning == ""


def test_the_floor_comes_with_a_warning_where_neighbours_mean_nothing():
    """Two chains of one law in 500 dimensions: consecutive draws are nearer to each other than chains are."""
    steps = 0.01 * rng().normal(size=(3, 4, 30, 500)).cumsum(axis=2)
    runs = rng(1).normal(size=(3, 4, 1, 500)) + steps
    with pytest.warns(MeaninglessDimensionWarning, match="two refits of one law differ by"):
        found = knowledge_removal(*runs)
    assert found.floor.value > 100
    assert "Warning" in str(found)


def test_bad_neighbours():
    x = rng().normal(size=(10, 2))
    with pytest.raises(DifferentModelError, match="copy"):
        nearest_neighbour_kl(np.concatenate([x, x[:1]]), x + 1)
    with pytest.raises(DifferentModelError, match="both sides"):
        nearest_neighbour_kl(x, x)
    with pytest.raises(DataError, match="one holds NaN"):
        nearest_neighbour_kl(np.full((10, 2), np.nan), x)
    with pytest.raises(DrawsShapeError, match="1 and 10"):
        nearest_neighbour_kl(x[:1], x)
    with pytest.raises(DrawsShapeError, match="same model"):
        nearest_neighbour_kl(x, x[:, :1])
    with pytest.raises(DrawsShapeError, match="pairs runs by seed"):
        knowledge_removal(x[None], np.stack([x, x]), x[None])


# --- the membership attack, prediction differences, time


def test_a_model_that_remembers_is_caught_by_the_attack():
    kept, test, removed = (rng(i).beta(a, 2, size=(5, 300)) for i, a in enumerate((9, 4, 9)))
    forgotten = rng(3).beta(4, 2, size=(5, 300))
    remembers, refit = membership_attack(kept, test, removed), membership_attack(kept, test, forgotten)
    assert abs(remembers - refit) > 0.25
    assert membership_attack(np.log(kept), np.log(test), np.log(removed)) == remembers  # any increasing function
    with pytest.raises(DataError, match="NaN"):
        membership_attack(kept, test, np.full((5, 3), np.nan))
    with pytest.raises(InvalidOptionError, match="4 draws"):
        membership_attack(kept, test[:4], removed)


def test_the_error_of_a_prediction_difference():
    """Against the spread over repeats, within a factor."""
    made = [
        prediction_difference(0.5 + 0.1 * rng(i).normal(size=(30, 8, 2)), rng(1000 + i).normal(size=(30, 8, 2)))
        for i in range(60)
    ]
    assert np.mean([each.error for each in made]) == pytest.approx(np.std([each.value for each in made]), rel=0.35)
    with pytest.raises(InvalidOptionError, match="labels"):
        error_rate(np.ones((2, 3, 1)), np.zeros(2, int))
    with pytest.raises(InvalidOptionError, match="same rows"):
        prediction_difference(np.ones((3, 4, 2)), np.ones((3, 5, 2)))


def test_time_a_request():
    """The first run, which compiles, is told apart from the others."""
    calls = []

    def request():
        calls.append(0)
        time.sleep(0.2 if len(calls) == 1 else 0.02)
        return jnp.ones(3)

    found = timed(request, repeats=4)
    assert len(calls) == 5
    assert found.first >= 0.2
    assert 0.02 <= found.seconds < 0.2
    assert "a request" in str(found)


# --- PAC-Bayes


def test_the_pac_bayes_bound_of_a_gaussian(x64):
    """KL(N(m, s²) ‖ Laplace(0, 1)) in closed form, five parameters alike, draws in mirrored pairs."""
    m, s, d, n = 0.1, 1.2, 5, 900
    half = rng().normal(size=(4, 20_000, d))
    thetas = m + s * np.concatenate([half, -half], axis=1)
    log_density = norm.logpdf(thetas, m, s).sum(axis=-1)
    folded = s * np.sqrt(2 / np.pi) * np.exp(-(m**2) / (2 * s**2)) + m * (1 - 2 * norm.cdf(-m / s))
    exact = d * (-0.5 * np.log(2 * np.pi * np.e * s**2) + folded + np.log(2))
    found = pac_bayes(0.1, log_density, np.abs(thetas).sum(axis=-1), d, n, delta=0.05)
    assert abs(found.divergence.value - exact) < 4.5 * found.divergence.error + 1e-3
    assert exact > 0  # with log 2 in the place of d log 2, as printed, a KL would be negative here
    assert exact - (d - 1) * np.log(2) < 0
    root = np.sqrt((exact + np.log(20) + np.log(n) + 2) / (2 * n - 1))
    assert found.bound.value == pytest.approx(0.1 + root, abs=1e-3)
    assert "without looking at their values" in str(found)


@pytest.mark.statistical
def test_the_pac_bayes_bound_from_the_evidence(x64):
    """log q = kept − log evidence: the same KL as from the Gaussian's own density."""
    oracle = LinearRegression.make()
    rows = np.arange(50)
    draws = oracle.sample(rows, (4, 2000), seed=0)["beta"]
    residual = (oracle.y[rows] - draws @ oracle.X[rows].T) / oracle.noise
    joint = -0.5 * (residual**2).sum(axis=-1) - 0.5 * (draws**2).sum(axis=-1) / oracle.prior**2
    norms = np.abs(draws).sum(axis=-1)
    found = pac_bayes(0.0, joint - oracle.log_evidence(rows), norms, 3, 50)
    precision = oracle.precision(rows)
    exact = 0.5 * np.linalg.slogdet(precision)[1] - 1.5 * np.log(2 * np.pi * np.e) + norms.mean() + 3 * np.log(2)
    assert abs(found.divergence.value - exact) < 4.5 * found.divergence.error


def test_what_a_shift_adds_to_the_bound():
    norms = rng().uniform(1, 2, size=(2, 500))
    found = pac_bayes_change(norms, norms + 0.08, 200)
    assert found.divergence.value == pytest.approx(0.08)
    assert found.bound == pytest.approx(np.sqrt(0.08 / 399))
    assert pac_bayes_change(norms, norms - 0.08, 200).bound == 0
    for wrong in ({"risk": 1.2}, {"delta": 0.0}, {"kept_rows": 0}, {"log_density": np.full((2, 500), np.nan)}):
        given = {"risk": 0.1, "log_density": norms, "l1_norm": norms, "dimensions": 3, "kept_rows": 20} | wrong
        with pytest.raises((InvalidOptionError, DrawsShapeError)):
            pac_bayes(**given)
    with pytest.raises(DrawsShapeError, match="moves every draw"):
        pac_bayes_change(norms, norms[:1], 20)


# --- ε from densities


@pytest.mark.statistical
@pytest.mark.parametrize("d", [2, 50, 1000, 10_000])
def test_jeffreys_of_gaussians_in_any_dimension(d):
    """y ~ N(θ, I) with a flat-ish prior: without one of ten rows J = ½ (d (1/r + r − 2) + …), r = 9.01/10.01."""
    rows, prior = 10, 0.01
    y = rng(d).normal(size=(rows, d)) * 0.5 + 0.3
    model = pe.Model(
        lambda p: -0.5 * prior * jnp.sum(p["theta"] ** 2),
        lambda p, data: -0.5 * jnp.sum((data["y"] - p["theta"]) ** 2, axis=-1),
        {"y": y},
    )

    def posterior(n, seed):
        return y[:n].sum(axis=0) / (n + prior), pe.Draws(
            {"theta": y[:n].sum(axis=0) / (n + prior) + rng(seed).normal(size=(4, 100, d)) / np.sqrt(n + prior)}
        )

    (full_mean, full), (kept_mean, kept) = posterior(rows, 1), posterior(rows - 1, 2)
    a, b = rows + prior, rows - 1 + prior
    exact = 0.5 * d * (a / b + b / a - 2) + 0.5 * (a + b) * np.sum((full_mean - kept_mean) ** 2)
    found = divergence(model, full, model.change(remove=[rows - 1]), refit=kept)
    assert abs(found.value - exact) < 4.5 * found.error
    assert found.error < 0.1 * exact + 0.05
    # Two refits: nothing but noise.
    _, again = posterior(rows - 1, 3)
    floor = divergence(model, again, model.change(remove=[rows - 1]), refit=kept)
    assert abs(floor.value) < 4.5 * floor.error


def test_where_weights_alone_fail():
    """50 dimensions, KL 12.5, J 25: weights say less than 11, and are refused."""
    d, shift = 50, 0.5**0.5
    q = rng(0).normal(size=(4, 250, d))
    p = shift + rng(1).normal(size=(4, 250, d))

    def log_weights(x):
        return (shift * x - 0.5 * shift**2).sum(axis=-1)

    base = base_of((4, 250))
    given_both = jeffreys(log_weights(q), base, log_weights(p), base)
    assert abs(given_both.value - d * shift**2) < 4.5 * given_both.error
    weights_alone = kl_from_weights(log_weights(q), base)
    assert weights_alone.value < 0.5 * d * shift**2 - 2 * weights_alone.error  # low, by more than its error says
    smoothed = smooth(log_weights(q))
    assert smoothed.pareto_k > smoothed.threshold


def test_repeated_erasures_add_up_in_total_variation():
    assert total_variation([0.02, 0.02]) == pytest.approx(0.2)
    assert total_variation([0.5, 8.0]) == 1.0
    assert total_variation([]) == 0.0
    with pytest.raises(InvalidOptionError):
        total_variation([-0.1])


# --- kernel Stein discrepancy


def test_stein_against_derivatives_by_jax(x64):
    """u = (∇ₓ + s(x))·(∇ᵧ + s(y)) k, with two loops."""
    points, scale = rng().normal(size=(7, 3)) + 0.5, 1.3
    scores = -points * np.array([1.0, 2.0, 0.5])
    weights = rng(1).dirichlet(np.full(7, 9.0))

    def kernel(x, y):
        return (scale**2 + jnp.sum((x - y) ** 2)) ** -0.5

    def u(i, j):
        x, y, s, t = points[i], points[j], scores[i], scores[j]
        both = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(x, y)
        return kernel(x, y) * s @ t + s @ jax.grad(kernel, 1)(x, y) + t @ jax.grad(kernel, 0)(x, y) + jnp.trace(both)

    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    exact = sum(weights[i] * weights[j] * u(i, j) for i, j in pairs) / (1 - np.sum(weights**2))
    found = kernel_stein(0, points, scores, weights=weights, scale=scale)
    assert found.squared.value == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.statistical
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_stein_is_calibrated(correlation):
    """100 samples of the target, independent or a chain's: p-values uniform, false alarm 1e-4; below 5 % at most 16."""
    found = []
    for seed in range(100):
        noise = rng(seed).normal(size=(250, 2))
        for i in range(1, 250):
            noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
        groups = np.arange(250) // (1 if correlation == 0 else 15)
        found.append(kernel_stein(seed, noise, -noise, groups=groups).p_value)
    assert sum(each < 0.05 for each in found) <= 16
    if correlation == 0:
        assert kstest(found, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("change", [lambda x: x + 0.3, lambda x: 1.3 * x], ids=["a shift", "a spread"])
def test_stein_sees_differences_and_its_error_is_right(change):
    """The error against the spread over 40 samples, kernel fixed, within a factor."""
    samples = [change(rng(i).normal(size=(400, 2))) for i in range(40)]
    found = [kernel_stein(i, x, -x, scale=1.5) for i, x in enumerate(samples)]
    assert max(each.p_value for each in found) < 1e-3
    spread = np.std([each.squared.value for each in found], ddof=1)
    assert np.mean([each.squared.error for each in found]) == pytest.approx(spread, rel=0.4)


def test_stein_is_blind_to_the_weights_of_modes():
    """Half and half of two far modes: nine tenths of the draws in one of them pass, though a refit would tell."""
    side = np.where(np.arange(600) % 10 == 0, 6.0, -6.0)
    points = (side + rng().normal(size=600))[:, None]
    density = lambda x: jax.nn.logsumexp(jnp.stack([-0.5 * (x - 6) ** 2, -0.5 * (x + 6) ** 2]))  # noqa: E731
    scores = np.asarray(jax.vmap(jax.grad(density))(jnp.asarray(points[:, 0])))[:, None]
    found = kernel_stein(0, points, scores)
    assert found.p_value > 0.01
    assert "does not see" in str(found)


def test_bad_stein():
    x = rng().normal(size=(30, 2))
    with pytest.raises(DrawsShapeError, match="pairs"):
        kernel_stein(0, x[:2], x[:2])
    with pytest.raises(DataError, match="scores holds NaN"):
        kernel_stein(0, x, np.full_like(x, np.nan))
    with pytest.raises(DrawsShapeError, match="all weight"):
        kernel_stein(0, x, -x, weights=np.r_[0.9, np.full(29, 0.1 / 29)])
    with pytest.raises(DrawsShapeError, match="summing to one"):
        kernel_stein(0, x, -x, weights=np.ones(30))
    with pytest.raises(DrawsShapeError, match="one score a number"):
        kernel_stein(0, x, -x[:, :1])
    with pytest.raises(DrawsShapeError, match="equal"):
        kernel_stein(0, np.ones((30, 2)), -x)


# --- margins


def test_klom_against_histograms_by_hand():
    one, other = rng().normal(size=(40, 3)), rng(1).normal(0.5, 1.2, size=(60, 3))
    found = klom(0, one, other, bins=6)
    for example in range(3):
        edges = np.linspace(*np.quantile(np.r_[one[:, example], other[:, example]], [0, 1]), 7)
        p, q = (np.histogram(each[:, example], edges)[0] + 0.5 for each in (one, other))
        p, q = p / p.sum(), q / q.sum()
        assert found.by_example[example] == pytest.approx(np.sum(p * np.log(p / q)), rel=1e-4)
    assert found.median.value == pytest.approx(np.median(found.by_example))


@pytest.mark.statistical
def test_klom_of_gaussians():
    """KL(N(½, 1) ‖ N(0, 1)) = ⅛, less what 20 bins hide; the null is (bins − 1)/models, what half-filled bins make."""
    found = klom(0, 0.5 + rng().normal(size=(4000, 30)), rng(1).normal(size=(4000, 30)))
    assert found.median.value == pytest.approx(0.125, abs=0.02)
    null = klom(0, rng(2).normal(size=(4000, 30)), rng(3).normal(size=(4000, 30)))
    assert null.percentile_95.value < 0.02
    assert found.median.value > null.percentile_95.value + 5 * found.median.error


@pytest.mark.statistical
def test_u_lira_of_gaussians():
    """Margins N(δ, 1) against N(0, 1): the share found out at 1 % is Φ(δ − Φ⁻¹(0.99)); 5 errors."""
    never = rng(1).normal(size=(600, 40))
    for delta in (0.0, 1.0, 2.5):
        found = u_lira(0, delta + rng(2).normal(size=(600, 40)), never)
        exact = norm.cdf(delta - norm.ppf(0.99))
        assert abs(found.true_positives.value - exact) < 5 * found.true_positives.error + 0.002
    wider = u_lira(0, 2 * rng(3).normal(size=(600, 40)), never)  # a spread gives a model away as well
    assert wider.true_positives.value > 0.1


def test_u_lira_scores_models_it_was_not_fitted_to():
    """By hand: Gaussians from odd models score even ones, and the other way round."""
    erased, never = 0.8 + rng().normal(size=(21, 4)), rng(1).normal(size=(24, 4))
    scores = []
    for values in (erased, never):
        own = np.zeros_like(values)
        for i, row in enumerate(values):
            fits = [(w[1 - i % 2 :: 2].mean(0), w[1 - i % 2 :: 2].std(0)) for w in (erased, never)]
            own[i] = norm.logpdf(row, *fits[0]) - norm.logpdf(row, *fits[1])
        scores.append(own.ravel())
    threshold = np.sort(scores[1])[::-1][int(0.05 * scores[1].size)]
    found = u_lira(0, erased, never, false_positives=0.05)
    assert found.true_positives.value == pytest.approx(np.mean(scores[0] > threshold), abs=0.026)


def test_bad_margins():
    x = rng().normal(size=(40, 5))
    with pytest.raises(InvalidOptionError, match="1,000 models"):
        u_lira(0, x, x, false_positives=0.001)
    assert u_lira(0, rng().normal(size=(1000, 2)), rng(1).normal(size=(1000, 2)), false_positives=0.001) is not None
    with pytest.raises(InvalidOptionError, match="between 0 and 1"):
        u_lira(0, x, x, false_positives=0.0)
    for metric in (klom, u_lira):
        with pytest.raises(DrawsShapeError, match="independent ones"):
            metric(0, x[:5], x)
        with pytest.raises(DrawsShapeError, match="same ones"):
            metric(0, x, x[:, :3])
        with pytest.raises(DataError, match="NaN"):
            metric(0, np.full_like(x, np.nan), x)
        with pytest.raises(DataError, match=r"axes are \(models, examples\)"):
            metric(0, list(x[0]), x)
    constant = np.zeros((30, 2))  # a margin that never changes tells nothing apart
    assert klom(0, constant, constant).percentile_95.value == pytest.approx(0)
    assert u_lira(0, constant, constant).true_positives.value == 0


def test_margins_of_probabilities():
    p = np.array([0.1, 0.5, 0.999])
    assert np.allclose(logit_margin(jnp.log(p)), np.log(p / (1 - p)), rtol=1e-4)
    assert np.isfinite(logit_margin(jnp.zeros(1)))


# --- moments


@pytest.mark.statistical
def test_moments_are_calibrated_and_see_one_parameter_among_many():
    """100 pairs of one law: p-values below 5 % at most 16 times; a shift of one parameter in 40 is caught."""

    def draws(seed, shift=0.0, factor=1.0):
        values = rng(seed).normal(size=(4, 250, 40))
        values[..., 7] = values[..., 7] * factor + shift
        return pe.Draws({"beta": values})

    found = [moment_errors(draws(i), draws(1000 + i)) for i in range(100)]
    assert sum(each.mean_p_value < 0.05 for each in found) <= 16
    assert sum(each.log_sd_p_value < 0.05 for each in found) <= 16
    assert np.mean([each.mean for each in found]) == pytest.approx(
        np.mean([each.mean_chance for each in found]), rel=0.15
    )
    assert np.mean([e.log_sd for e in found]) == pytest.approx(np.mean([e.log_sd_chance for e in found]), rel=0.15)
    assert moment_errors(draws(1, shift=0.4), draws(2)).mean_p_value < 1e-4
    assert moment_errors(draws(1, factor=1.4), draws(2)).log_sd_p_value < 1e-4


def test_moments_of_what_stands_still():
    values = rng().normal(size=(2, 50, 2))
    still = np.stack([values[..., 0], np.ones((2, 50))], axis=-1)
    one, other = pe.Draws({"a": values}), pe.Draws({"a": still})
    assert moment_errors(other, other).mean == 0  # a number that never changes anywhere is left out
    with pytest.raises(DrawsShapeError, match=r"a\[1\] never changes in the target"):
        moment_errors(one, other)
    with pytest.raises(DrawsShapeError, match=r"a\[1\] never changes in the draws"):
        moment_errors(other, one)
    with pytest.raises(DrawsShapeError, match="nothing changes"):
        moment_errors(pe.Draws({"a": np.ones((2, 5))}), pe.Draws({"a": np.ones((2, 5))}))
    with pytest.raises(DrawsShapeError, match="1 and 100 draws"):
        moment_errors(pe.Draws({"a": values[:1, :1]}), one)


# --- forget sets


def test_forget_sets(x64):
    """Row 7 is far out, and most influential; rows 0 to 9 are alike, and apart from all others."""
    x = rng().normal(size=(60, 2))
    x[:10] = [4.0, -4.0] + 0.05 * rng(1).normal(size=(10, 2))
    y = x @ [0.5, 0.2] + 0.3 * rng(2).normal(size=60)
    y[17] += 4
    oracle = LinearRegression(x, y)
    draws = pe.Draws(oracle.sample(np.arange(60), (4, 500), seed=0))
    model = oracle.model()
    sets = forget_sets(0, model, draws, 10)
    assert all(len(each) == 10 == len(np.unique(each)) for each in sets)
    assert 17 in sets.influential
    coherent = [forget_sets(seed, model, draws, 10).coherent for seed in range(12)]
    assert any(np.array_equal(each, np.arange(10)) for each in coherent)
    gone = model.without(model.change(remove=[17]))
    assert 17 not in np.concatenate(forget_sets(0, gone, draws, 30))
    with pytest.raises(InvalidOptionError):
        forget_sets(0, model, draws, 60)


@pytest.mark.statistical
@pytest.mark.parametrize("oracle", [GaussianMean.make(), GammaPoisson.make(rows=40)], ids=["Gaussian", "Gamma–Poisson"])
def test_the_influence_of_a_row_is_about_its_kl(oracle, x64):
    """½ Var[log p(z | θ)] against J/2 of removing the row alone, from draws of both; to leading order."""
    model, rows = oracle.model(), np.arange(oracle.n_rows)
    draws = pe.Draws(oracle.sample(rows, (4, 2000), seed=0))
    influence = row_influence(model, draws)
    for row in np.argsort(-influence)[:3]:
        refit = pe.Draws(oracle.sample(np.delete(rows, row), (4, 2000), seed=1))
        found = divergence(model, draws, model.change(remove=[int(row)]), refit=refit)
        assert influence[row] == pytest.approx(found.value / 2, rel=0.25, abs=2 * found.error)
