"""Evidence: the two-sample test, calibration, the membership attack, and the match with refits."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import posterase as pe
from posterase.errors import DrawsShapeError, InvalidOptionError
from posterase.metrics import calibrate, membership_attack, two_sample
from posterase.metrics.membership import threshold
from posterase.metrics.predictive import error_rate, mean_loss, prediction_difference
from posterase.metrics.two_sample import tell_apart
from tests.oracles import GammaPoisson

# --- two samples


@pytest.mark.statistical
def test_the_two_sample_test_is_calibrated_under_the_null():
    """200 pairs of one law: p-values below 0.05 at most 24 times (binomial, false alarm 1e-5); mean accuracy ½."""
    rng = np.random.default_rng(0)
    found = [tell_apart(i, rng.normal(size=(200, 5)), rng.normal(size=(200, 5))) for i in range(200)]
    assert sum(each.p_value < 0.05 for each in found) <= 24
    assert abs(np.mean([each.accuracy for each in found]) - 0.5) < 4.5 * found[0].error / np.sqrt(200)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 0.3,
        lambda x: 1.3 * x,
        lambda x: x @ np.linalg.cholesky(0.5 * np.eye(5) + 0.5).T,
    ],
    ids=["a shift", "a spread", "a correlation"],
)
def test_the_two_sample_test_sees_differences(change):
    rng = np.random.default_rng(0)
    assert tell_apart(0, rng.normal(size=(1000, 5)), change(rng.normal(size=(1000, 5)))).p_value < 1e-5


@pytest.mark.statistical
@pytest.mark.parametrize("d", [1, 400])
def test_the_two_sample_test_is_as_good_as_can_be(d):
    """N(δ, 1) against N(0, 1) along one direction: no classifier is right more often than Φ(δ/2), this one nearly so
    often; 400 dimensions, looked at along 256 directions, cost some of it."""
    direction = np.random.default_rng(2).normal(size=d)
    shift = 2.0 * direction / np.linalg.norm(direction)
    rng = np.random.default_rng(0)
    found = tell_apart(0, rng.normal(size=(2000, d)), shift + rng.normal(size=(2000, d)))
    best = norm.cdf(1.0)
    assert found.accuracy < best + 4.5 * found.error
    assert found.accuracy > (best - 4.5 * found.error if d == 1 else 0.6)


def test_draws_to_compare_must_be_alike():
    one = pe.Draws({"a": np.random.default_rng(0).normal(size=(2, 100))})
    assert 0.35 < two_sample(0, one, one.replace(one.params, np.zeros((2, 100)))).accuracy < 0.65
    with pytest.raises(DrawsShapeError, match="other parameters"):
        two_sample(0, one, pe.Draws({"b": np.zeros((2, 100))}))
    with pytest.raises(DrawsShapeError, match="numbers each"):
        two_sample(0, one, pe.Draws({"a": np.zeros((2, 100, 3))}))
    with pytest.raises(DrawsShapeError, match="finite"):
        tell_apart(0, np.full((50, 2), np.nan), np.ones((50, 2)))
    with pytest.raises(DrawsShapeError, match="20 of each"):
        two_sample(0, one, pe.Draws({"a": np.zeros((1, 10))}))


# --- contaminated simulation-based calibration (Gamma–Poisson: skewed, so that no symmetry hides a sign)

ROWS = np.arange(4)
TEMPLATE = GammaPoisson.make(rows=12)


def prior(key):
    return {"rate": jax.random.gamma(key, TEMPLATE.a) / TEMPLATE.b}


def simulate(key, params):
    return {"y": jax.random.poisson(key, params["rate"], (12,)).astype(jnp.float32)}


def posterior(key, model):
    y = np.asarray(model.data["y"], float)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return pe.Draws({"rate": rng.gamma(TEMPLATE.a + y.sum(), 1 / (TEMPLATE.b + 12), size=(2, 250))})


def nothing_deleted(key, model, draws, change):
    return SimpleNamespace(draws=draws)


def deleted_twice(key, model, draws, change):
    y = np.asarray(model.data["y"], float)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    a = max(TEMPLATE.a + y.sum() - 2 * y[ROWS].sum(), 0.1)
    return SimpleNamespace(draws=pe.Draws({"rate": rng.gamma(a, 1 / (TEMPLATE.b + 12 - 8), size=(2, 250))}))


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("method", "repeats"),
    [
        pytest.param(pe.Transport(), 500, marks=pytest.mark.slow),
        pytest.param(pe.Rejuvenate(), 300, marks=pytest.mark.slow),
    ],
    ids=["Transport", "Rejuvenate"],
)
def test_contaminated_calibration(method, repeats):
    """False alarm 1e-4."""
    found = calibrate(method, prior, simulate, TEMPLATE.model(), ROWS, posterior, repeats=repeats)
    assert found.p_value > 1e-4, found
    assert "simulated data sets" in str(found)


@pytest.mark.parametrize("broken", [nothing_deleted, deleted_twice])
def test_contaminated_calibration_rejects_what_is_broken(broken):
    found = calibrate(broken, prior, simulate, TEMPLATE.model(), ROWS, posterior, repeats=400)
    assert found.p_value < 1e-6, found
    assert len(found.plot().axes) == 1


# --- the membership attack


def brute_force(kept, test):
    """Accuracies as whole numbers, so that rounding breaks no ties."""
    grid = np.unique(np.concatenate([kept, test, [np.inf]]))
    accuracy = [np.sum(kept >= rho) * len(test) + np.sum(test < rho) * len(kept) for rho in grid]
    return grid[int(np.argmax(accuracy))]


def test_the_attack_threshold_is_the_best_one():
    rng = np.random.default_rng(0)
    for _ in range(20):
        kept, test = np.round(rng.beta(5, 2, 40), 2), np.round(rng.beta(3, 3, 30), 2)  # with ties
        with jax.enable_x64(True):
            assert threshold(jnp.asarray(kept), jnp.asarray(test)) == brute_force(kept, test)
    members = membership_attack(np.full((1, 5), 0.9), np.full((1, 5), 0.2), np.array([[0.95, 0.9, 0.3, 0.1]]))
    assert members == 0.5
    with pytest.raises(InvalidOptionError, match="no test rows"):
        membership_attack(np.ones((1, 5)), np.ones((1, 0)), np.ones((1, 5)))


def test_errors_and_losses_by_hand():
    probabilities = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.3, 0.7]]])  # two draws, two rows
    labels = np.array([0, 1])
    assert error_rate(probabilities, labels) == 0.25
    assert mean_loss(probabilities, labels) == pytest.approx(-np.mean(np.log([0.9, 0.6, 0.2, 0.7])))


def test_prediction_difference_is_over_pairs_of_draws():
    one = np.random.default_rng(0).dirichlet(np.ones(3), size=(4, 6))
    other = np.random.default_rng(1).dirichlet(np.ones(3), size=(5, 6))
    by_hand = np.mean([np.abs(a - b).sum(-1).mean() for a in one for b in other])
    assert prediction_difference(one, other).value == pytest.approx(by_hand, rel=1e-5)


# --- matched empirically


@pytest.fixture(scope="module")
def classifier():
    """Softmax regression on three blobs; the refits and the erased draws come from Gaussians around a common point."""
    rng = np.random.default_rng(0)
    centres = np.array([[2.0, 0], [-1, 2], [-1, -2]])

    def rows(n):
        labels = rng.integers(0, 3, n)
        return centres[labels] + rng.normal(size=(n, 2)), labels

    def draws(seed, offset=0.0):
        noise = np.random.default_rng(seed).normal(size=(2, 15, 2, 3))
        return pe.Draws({"w": centres.T + offset + 0.1 * noise})

    return SimpleNamespace(
        predictor=lambda p, x: jax.nn.softmax(jnp.asarray(x) @ p["w"]),
        sets={"kept": rows(200), "removed": rows(60), "test": rows(200)},
        refits=[draws(seed) for seed in range(3)],
        draws=draws,
    )


def test_a_network_like_the_refits_is_matched(classifier):
    found = pe.match_refits(classifier.predictor, classifier.draws(9), classifier.refits, **classifier.sets)
    assert found.verdict.accepted
    assert found.verdict.kind == "matched empirically"
    assert found.verdict.epsilon is None
    assert "against 3 refits; ε not measured" in found.verdict.reason
    assert "membership attack" in str(found)


def test_a_network_unlike_the_refits_is_refused(classifier):
    other = classifier.draws(9, offset=np.array([[1.0, -0.5, -0.5], [0, 0, 0]]))
    found = pe.match_refits(classifier.predictor, other, classifier.refits, **classifier.sets)
    assert not found.verdict.accepted
    assert "predictions on removed rows differ" in found.verdict.reason
    assert found.verdict.advice


def test_bad_matches(classifier):
    with pytest.raises(InvalidOptionError, match="two or more"):
        pe.match_refits(classifier.predictor, classifier.draws(9), classifier.refits[:1], **classifier.sets)
    with pytest.raises(InvalidOptionError, match="not probabilities"):
        pe.match_refits(lambda p, x: jnp.asarray(x) @ p["w"], classifier.draws(9), classifier.refits, **classifier.sets)
    with pytest.raises(InvalidOptionError, match="labels of kept"):
        pe.match_refits(
            classifier.predictor,
            classifier.draws(9),
            classifier.refits,
            **{**classifier.sets, "kept": (classifier.sets["kept"][0], np.zeros(0))},
        )
