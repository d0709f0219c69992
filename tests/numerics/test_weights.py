"""Smoothed weights: the sign, the threshold, and tails that leave nothing to fit."""

import numpy as np
import pytest

import posterase as pe
from posterase.numerics.weights import parameter_ess, pareto_k_threshold, relative_efficiency, smooth


def pareto(k: float, shape=(4, 1000), seed: int = 0) -> np.ndarray:
    """Log-weights whose tail has shape k: w = u^(−k)."""
    return -k * np.log(np.random.default_rng(seed).uniform(size=shape))


def test_larger_log_weights_stay_larger():
    """One function owns the sign: psislw of arviz_stats wants it the other way round."""
    raw = np.random.default_rng(0).normal(size=(4, 500))
    smoothed = smooth(raw).log_weights
    assert np.corrcoef(raw.ravel(), smoothed.ravel())[0, 1] > 0.999
    assert np.exp(smoothed).sum() == pytest.approx(1)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9, 1.3])
def test_pareto_k_of_exact_pareto_tails(k):
    """Against the shape the weights were drawn with; the standard error of k̂ is about (1 + k)/√tail, tail = 190."""
    estimate = np.mean([smooth(pareto(k, seed=seed)).pareto_k for seed in range(8)])
    assert estimate == pytest.approx(k, abs=4.5 * (1 + k) / np.sqrt(8 * 190))


def test_smoothing_changes_the_tail_only():
    raw = pareto(0.9)
    smoothed = smooth(raw).log_weights
    order = np.argsort(raw, axis=None)
    shift = smoothed.ravel()[order] - raw.ravel()[order]
    np.testing.assert_allclose(shift[:3500], shift[0], atol=1e-12)
    assert np.ptp(shift[-100:]) > 0
    assert smoothed.max() - smoothed.ravel()[order[0]] <= np.ptp(raw) + 1e-9


def test_equal_weights():
    result = smooth(np.full((4, 100), -700.0))
    np.testing.assert_allclose(np.exp(result.log_weights), 1 / 400)
    assert result.pareto_k == 0
    assert result.ess == pytest.approx(400)


@pytest.mark.parametrize(
    "raw",
    [np.random.default_rng(0).normal(size=(2, 6)), np.repeat([0.0, 1.0], [60, 40])[None]],
    ids=["too few draws", "a tail of equal values"],
)
def test_tails_that_cannot_be_fitted(raw):
    result = smooth(raw)
    assert result.pareto_k == np.inf
    np.testing.assert_allclose(np.exp(result.log_weights), np.exp(raw) / np.exp(raw).sum())


@pytest.mark.parametrize(("draws", "threshold"), [(100, 0.5), (1000, 1 - 1 / 3), (10_000, 0.7), (10, 0.0), (1, None)])
def test_threshold(draws, threshold):
    if threshold is None:
        assert pareto_k_threshold(draws) < 0
    else:
        assert pareto_k_threshold(draws) == pytest.approx(threshold)


def test_ess_of_a_known_case():
    """Half of the draws weigh nothing: half are left."""
    raw = np.where(np.arange(2000) % 2, 0.0, -1e3).reshape(2, 1000)
    raw = raw + 1e-3 * np.random.default_rng(0).normal(size=raw.shape)
    assert smooth(raw).ess == pytest.approx(1000, rel=0.02)


def test_autocorrelated_chains_count_less():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 2000))
    chain = np.empty_like(noise)
    chain[:, 0] = noise[:, 0]
    for step in range(1, 2000):
        chain[:, step] = 0.9 * chain[:, step - 1] + np.sqrt(1 - 0.81) * noise[:, step]
    # An AR(1) chain with ρ = 0.9 has (1 − ρ)/(1 + ρ) = 0.053 effective draws a draw.
    assert relative_efficiency(0.1 * chain) == pytest.approx(0.053, rel=0.3)
    assert relative_efficiency(0.1 * noise) > 0.8
    assert smooth(0.1 * chain).ess < 0.1 * smooth(0.1 * noise).ess


@pytest.mark.parametrize("finite", [1, 10, 120, 3000])
def test_draws_of_weight_zero_stay_at_zero(finite):
    """They say nothing of the tail, and never end in NaN."""
    raw = np.full((4, 1000), -np.inf)
    raw.ravel()[:finite] = np.random.default_rng(0).normal(size=finite)
    result = smooth(raw)
    assert np.isneginf(result.log_weights.ravel()[finite:]).all()
    assert np.exp(result.log_weights).sum() == pytest.approx(1)
    assert (result.pareto_k < 0.7) == (finite in (1, 120, 3000))


def test_a_tail_of_few_distinct_values_never_ends_in_nan():
    raw = np.zeros(4000)
    raw[:120] = np.linspace(-3, 1, 120)
    result = smooth(raw.reshape(4, 1000))
    assert np.isfinite(result.log_weights).all()


# --- effective draws


@pytest.mark.parametrize(("chains", "draws", "rho"), [(4, 1000, 0.0), (4, 1000, 0.9), (8, 500, -0.5)])
def test_effective_draws_of_autoregressive_chains(chains, draws, rho):
    """AR(1): n(1 − ρ)/(1 + ρ) for the mean, n(1 − ρ²)/(1 + ρ²) for the variance; the smaller, within a factor."""
    rng = np.random.default_rng(0)
    x = np.zeros((chains, draws))
    x[:, 0] = rng.normal(size=chains)
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * rng.normal(size=chains)
    exact = chains * draws * min((1 - rho) / (1 + rho), (1 - rho**2) / (1 + rho**2))
    assert 0.5 < parameter_ess(pe.Draws({"x": x}))["x"] / exact < 1.6


def test_weights_on_a_few_neighbours_are_worth_no_more():
    weights = np.full((4, 500), -np.inf)
    weights[0, :20] = 0.0
    draws = pe.Draws({"x": np.random.default_rng(0).normal(size=(4, 500))}, weights)
    assert parameter_ess(draws)["x"] <= 20
    few = np.random.default_rng(0).normal(size=(1, 4))
    assert smooth(few).pareto_k == np.inf


@pytest.mark.parametrize("chains", [1, 2, 4])
def test_independent_draws_count_however_few_chains(chains):
    x = np.random.default_rng(0).normal(size=(chains, 2000 // chains, 5))
    assert parameter_ess(pe.Draws({"x": x}))["x"] > 1000


def test_numbers_that_never_change_do_not_count_against_the_draws():
    """As above a Cholesky factor's diagonal; but draws that are all one are one."""
    x = np.random.default_rng(0).normal(size=(4, 500, 2))
    x[..., 1] = 3.0
    assert parameter_ess(pe.Draws({"x": x}))["x"] > 1000
    assert parameter_ess(pe.Draws({"x": np.ones((4, 500))}))["x"] < 1000
