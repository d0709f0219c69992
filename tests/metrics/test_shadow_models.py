"""Hundreds of small refits in one batch, and the attacks on them: an erasure that was none must be caught."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.errors import InvalidOptionError, NonFiniteResultError, RowsError
from posterase.metrics import klom, logit_margin, shadow_models, u_lira
from posterase.sampling.laplace import inverse_root
from tests.oracles import BetaBernoulli, LinearRegression
from tests.statistical import assert_moments

FORGET = np.arange(4, 10)
"""Rows far off the regression: models that saw them fit them better."""
PLAIN = LinearRegression.make(rows=60, d=3)
ORACLE = dataclasses.replace(PLAIN, y=PLAIN.y + 3 * np.isin(np.arange(60), FORGET) * np.sign(PLAIN.X[:, 2]))
X, Y = jnp.asarray(ORACLE.X), jnp.asarray(ORACLE.y)


def fit(key, present):
    """One exact draw of the posterior of the rows of a mask."""
    weights = present.astype(X.dtype) / ORACLE.noise**2
    precision = (X.T * weights) @ X + jnp.eye(3) / ORACLE.prior**2
    root = jnp.linalg.cholesky(precision)
    mean = jnp.linalg.solve(precision, X.T @ (weights * Y))
    return mean + jax.scipy.linalg.solve_triangular(root.T, jax.random.normal(key, (3,)), lower=False)


def margin(beta, ids):
    return -0.5 * ((Y[ids] - X[ids] @ beta) / ORACLE.noise) ** 2


def exactly(key, fitted, present, gone):
    return fit(key, present & ~gone)


def nothing(key, fitted, present, gone):
    return fitted


def far_too_much(key, fitted, present, gone):
    return 2 * fit(key, present & ~gone) - fitted


@pytest.mark.statistical
def test_exact_erasures_cannot_be_told_from_the_floor():
    """300 models in one program; 5 bootstrap errors."""
    made = shadow_models(0, fit, exactly, margin, 60, FORGET, models=300)
    assert made.erased.shape == made.never.shape == made.again.shape == (300, 6)
    floor, found = u_lira(1, made.again, made.never), u_lira(1, made.erased, made.never)
    assert abs(found.true_positives.value - floor.true_positives.value) < 5 * found.true_positives.error
    assert klom(1, made.erased, made.never).median.value < klom(1, made.again, made.never).percentile_95.value + 0.05


@pytest.mark.parametrize("broken", [nothing, pytest.param(far_too_much, marks=pytest.mark.slow)])
def test_broken_erasures_are_caught_by_both_attacks(broken):
    made = shadow_models(0, fit, broken, margin, 60, FORGET, models=300)
    found, floor = u_lira(1, made.erased, made.never), u_lira(1, made.again, made.never)
    assert found.true_positives.value > floor.true_positives.value + 3 * found.true_positives.error
    assert klom(1, made.erased, made.never).median.value > klom(1, made.again, made.never).percentile_95.value


@pytest.mark.slow
@pytest.mark.slow
def test_a_batch_is_what_a_loop_gives():
    made = shadow_models(3, fit, exactly, margin, 60, FORGET, models=5, at_once=2)
    gone = jnp.zeros(60, bool).at[FORGET].set(True)
    for number, key in enumerate(jax.random.split(jax.random.key(3), 5)):
        pick, first, second, _, undo = jax.random.split(key, 5)
        others = jax.random.bernoulli(pick, 0.5, (60,)) & ~gone
        fitted = fit(first, others | gone)
        assert np.allclose(made.erased[number], margin(exactly(undo, fitted, others | gone, gone), FORGET), rtol=2e-3)
        assert np.allclose(made.never[number], margin(fit(second, others), FORGET), rtol=2e-3)


def test_bad_worlds():
    for wrong in ({"models": 0}, {"share": 0.0}, {"at_once": 0}):
        with pytest.raises(InvalidOptionError):
            shadow_models(0, fit, exactly, margin, 60, FORGET, **wrong)
    with pytest.raises(RowsError):
        shadow_models(0, fit, exactly, margin, 60, [70])
    with pytest.raises(NonFiniteResultError, match="margins"):
        shadow_models(0, fit, exactly, lambda beta, ids: jnp.full(len(ids), jnp.nan), 60, FORGET, models=3)


# --- one draw of any rows' posterior


@pytest.mark.statistical
@pytest.mark.parametrize("oracle", [ORACLE, BetaBernoulli.make()], ids=["regression", "Beta–Bernoulli"])
def test_the_laplace_sampler_draws_from_the_posterior_of_any_rows(oracle, x64):
    """Means and variances of 4,000 draws in closed form; exact for a Gaussian, by its moves for a Beta."""
    model = oracle.model()
    rows = np.arange(5, oracle.n_rows)
    example = {name: values[0, 0] for name, values in oracle.sample(rows, (1, 1), seed=0).items()}
    sampler = pe.LaplaceFit(model, example)
    present = jnp.arange(oracle.n_rows) >= 5
    draws = jax.jit(jax.vmap(lambda key: sampler(key, present)))(jax.random.split(jax.random.key(0), 4000))
    (values,) = jax.tree.leaves(draws)
    assert_moments(np.asarray(values), oracle.mean(rows), oracle.variance(rows))


def test_inverse_roots_without_lapack(x64):
    x = np.random.default_rng(0).normal(size=(30, 7))
    root = np.asarray(inverse_root(jnp.asarray(x.T @ x)))
    assert np.allclose(root @ root.T, np.linalg.inv(x.T @ x), rtol=1e-9)
    saddle = np.asarray(inverse_root(jnp.asarray(np.diag([4.0, -1.0, 0.0]))))  # no definite matrix: still a root
    assert np.isfinite(saddle).all()
    assert (saddle @ saddle.T)[0, 0] == pytest.approx(0.25)


@pytest.mark.slow
def test_the_laplace_sampler_fits_worlds():
    """Logistic regression: rows with flipped labels, remembered and forgotten."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 3))
    y = (generator.uniform(size=80) < 1 / (1 + np.exp(-x @ [2.0, -1.0, 0.5]))).astype(float)
    flipped = np.argsort(-np.abs(x @ [2.0, -1.0, 0.5]))[:5]
    y[flipped] = 1 - y[flipped]
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p**2) / 4,
        lambda p, data: data["y"] * (data["x"] @ p) - jnp.logaddexp(0, data["x"] @ p),
        {"x": x, "y": y},
    )
    sampler = pe.LaplaceFit(model, np.zeros(3), newton_steps=8, langevin_steps=10)
    made = shadow_models(
        0, sampler, nothing, lambda p, ids: logit_margin(model.log_rows(p, ids)), 80, flipped, models=100, share=0.8
    )
    assert (made.erased.mean(axis=0) > made.never.mean(axis=0)).all()
    assert klom(0, made.erased, made.never).median.value > klom(0, made.again, made.never).percentile_95.value
