"""Regressions as users of PyMC write them: every family of outcomes, one row per observation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.interpolate import BSpline
from scipy.special import expit

from tests.corpus.case import Case, Data


def _linear() -> Data:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3))
    return {"x": x, "y": 1.0 + x @ [0.8, -0.5, 0.0] + 0.7 * rng.normal(size=80)}


def linear(x: Any, y: Any) -> pm.Model:
    """A linear regression with named dimensions, its data in `pm.Data`, and its fitted values kept."""
    coords = {"obs": np.arange(len(y)), "predictor": ["age", "dose", "weight"]}
    with pm.Model(coords=coords) as model:
        x_data = pm.Data("x", x, dims=("obs", "predictor"))
        y_data = pm.Data("y_data", y, dims="obs")
        intercept = pm.Normal("intercept", 0, 5)
        beta = pm.Normal("beta", 0, 2, dims="predictor")
        sigma = pm.HalfNormal("sigma", 1)
        mu = pm.Deterministic("mu", intercept + x_data @ beta, dims="obs")
        pm.Deterministic("contrast", beta[0] - beta[1])
        pm.Normal("y", mu, sigma, observed=y_data, dims="obs")
    return model


def _robust() -> Data:
    rng = np.random.default_rng(2)
    x = rng.uniform(0, 10, size=60)
    y = 2 + 0.6 * x + 0.5 * rng.standard_t(3, size=60)
    y[[7, 31]] += 6
    return {"x": x, "y": y}


def robust(x: Any, y: Any) -> pm.Model:
    """A line through data with outliers: Student's t, its degrees of freedom estimated."""
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept", 0, 10), pm.Normal("slope", 0, 2)
        sigma = pm.HalfCauchy("sigma", 1)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=intercept + slope * x, sigma=sigma, observed=y)
    return model


def _logistic() -> Data:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(150, 2))
    return {"x": x, "y": (rng.uniform(size=150) < expit(0.3 + x @ [1.0, -0.7])).astype(int)}


def logistic(x: Any, y: Any) -> pm.Model:
    """A logistic regression."""
    with pm.Model() as model:
        intercept, beta = pm.Normal("intercept", 0, 1.5), pm.Normal("beta", 0, 1.5, shape=2)
        pm.Bernoulli("y", logit_p=intercept + pt.dot(x, beta), observed=y)
    return model


def _counts() -> Data:
    rng = np.random.default_rng(4)
    exposure, x = rng.uniform(1, 20, size=90), rng.normal(size=90)
    return {"exposure": exposure, "x": x, "y": rng.poisson(exposure * np.exp(-1 + 0.5 * x))}


def poisson(exposure: Any, x: Any, y: Any) -> pm.Model:
    """Counts with an exposure."""
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 1)
        rate = pm.math.exp(alpha + beta * x)
        pm.Deterministic("rate_ratio", pm.math.exp(beta))
        pm.Poisson("y", mu=exposure * rate, observed=y)
    return model


def _overdispersed() -> Data:
    rng = np.random.default_rng(5)
    x = rng.normal(size=100)
    mu = np.exp(1 + 0.4 * x)
    return {"x": x, "y": rng.negative_binomial(2, 2 / (2 + mu))}


def negative_binomial(x: Any, y: Any) -> pm.Model:
    """Overdispersed counts."""
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 1)
        dispersion = pm.Exponential("dispersion", 0.5)
        pm.NegativeBinomial("y", mu=pm.math.exp(alpha + beta * x), alpha=dispersion, observed=y)
    return model


def _zero_inflated() -> Data:
    rng = np.random.default_rng(6)
    x = rng.normal(size=120)
    return {"x": x, "y": rng.poisson(np.exp(1 + 0.3 * x)) * (rng.uniform(size=120) < 0.7)}


def zero_inflated(x: Any, y: Any) -> pm.Model:
    """Counts with too many zeros."""
    with pm.Model() as model:
        psi = pm.Beta("psi", 2, 2)
        alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 1)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(alpha + beta * x), observed=y)
    return model


def _hurdle() -> Data:
    rng = np.random.default_rng(7)
    x = rng.normal(size=100)
    spent = rng.gamma(4, np.exp(0.5 + 0.3 * x) / 4)
    return {"x": x, "y": np.where(rng.uniform(size=100) < 0.6, spent, 0.0)}


def hurdle(x: Any, y: Any) -> pm.Model:
    """Money spent: nothing, or a gamma distributed amount."""
    with pm.Model() as model:
        psi = pm.Beta("psi", 1, 1)
        alpha, beta = pm.Normal("alpha", 0, 1), pm.Normal("beta", 0, 1)
        sigma = pm.Exponential("sigma", 1)
        pm.HurdleGamma("y", psi=psi, mu=pm.math.exp(alpha + beta * x), sigma=sigma, observed=y)
    return model


def _shares() -> Data:
    rng = np.random.default_rng(8)
    x = rng.normal(size=70)
    mu = expit(-0.4 + 0.6 * x)
    return {"x": x, "y": rng.beta(mu * 12, (1 - mu) * 12)}


def beta_regression(x: Any, y: Any) -> pm.Model:
    """Shares between zero and one."""
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 1.5), pm.Normal("beta", 0, 1)
        kappa = pm.Gamma("kappa", 2, 0.1)
        pm.Beta("y", mu=pm.math.invlogit(alpha + beta * x), nu=kappa, observed=y)
    return model


def _variants() -> Data:
    rng = np.random.default_rng(9)
    variant = np.repeat([0, 1], 100)
    return {"variant": variant, "bought": (rng.uniform(size=200) < np.array([0.2, 0.3])[variant]).astype(int)}


def ab_test(variant: Any, bought: Any) -> pm.Model:
    """An A/B test with a row for each visitor."""
    with pm.Model(coords={"variant": ["A", "B"], "visitor": np.arange(len(bought))}) as model:
        which = pm.Data("which", variant, dims="visitor")
        rate = pm.Beta("rate", 2, 5, dims="variant")
        pm.Deterministic("uplift", rate[1] / rate[0] - 1)
        pm.Bernoulli("bought", p=rate[which], observed=bought, dims="visitor")
    return model


KNOTS = np.r_[[0.0] * 3, np.linspace(0, 1, 6), [1.0] * 3]


def _curve() -> Data:
    rng = np.random.default_rng(10)
    x = np.sort(rng.uniform(0, 1, size=100))
    basis = BSpline.design_matrix(x, KNOTS, 3).toarray()
    return {"basis": basis, "y": np.sin(2 * np.pi * x) + 0.3 * rng.normal(size=100)}


def spline(basis: Any, y: Any) -> pm.Model:
    """A penalised cubic spline."""
    with pm.Model(coords={"knot": np.arange(basis.shape[1])}) as model:
        tau = pm.HalfNormal("tau", 1)
        weights = pm.Normal("weights", 0, tau, dims="knot")
        sigma = pm.HalfNormal("sigma", 1)
        mu = pm.Deterministic("mu", pm.math.dot(basis, weights))
        pm.Normal("y", mu, sigma, observed=y)
    return model


def _ratings() -> Data:
    rng = np.random.default_rng(11)
    x = rng.normal(size=120)
    return {"x": x, "y": np.searchsorted([-1.0, 0.2, 1.4], x * 0.8 + rng.logistic(size=120))}


def ordinal(x: Any, y: Any) -> pm.Model:
    """Ordered ratings with ordered cutpoints."""
    with pm.Model() as model:
        cutpoints = pm.Normal(
            "cutpoints",
            0,
            2,
            shape=3,
            transform=pm.distributions.transforms.ordered,
            initval=np.array([-1.0, 0.0, 1.0]),
        )
        beta = pm.Normal("beta", 0, 1)
        pm.OrderedLogistic("y", eta=beta * x, cutpoints=cutpoints, observed=y)
    return model


def _kinds() -> Data:
    rng = np.random.default_rng(12)
    x = rng.normal(size=(120, 2))
    logits = np.c_[np.zeros(120), x @ [1.0, 0.0], 0.5 + x @ [-0.5, 0.8]]
    return {"x": x, "kind": np.argmax(logits + rng.gumbel(size=(120, 3)), axis=1)}


def softmax(x: Any, kind: Any) -> pm.Model:
    """A choice among three kinds, the first of which is the reference."""
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 1.5, shape=2), pm.Normal("beta", 0, 1, shape=(2, 2))
        eta = alpha + pt.dot(x, beta)
        logits = pt.concatenate([pt.zeros((eta.shape[0], 1)), eta], axis=1)
        pm.Categorical("kind", p=pm.math.softmax(logits, axis=1), observed=kind)
    return model


def _channels() -> Data:
    rng = np.random.default_rng(13)
    spend = rng.gamma(2, 1, size=(104, 2))
    sales = 3 + 2 * np.tanh(spend[:, 0] * 0.6) + 1.2 * np.tanh(spend[:, 1] * 0.3) + 0.3 * rng.normal(size=104)
    return {"spend": spend, "sales": sales}


def saturation(spend: Any, sales: Any) -> pm.Model:
    """Sales by marketing channel, each with a curve that saturates."""
    with pm.Model(coords={"channel": ["tv", "web"], "week": np.arange(len(sales))}) as model:
        x = pm.Data("spend", spend, dims=("week", "channel"))
        base = pm.Normal("base", 3, 2)
        strength = pm.HalfNormal("strength", 2, dims="channel")
        speed = pm.Gamma("speed", 3, 6, dims="channel")
        sigma = pm.HalfNormal("sigma", 1)
        contribution = pm.Deterministic("contribution", strength * pm.math.tanh(speed * x), dims=("week", "channel"))
        pm.Normal("sales", base + contribution.sum(axis=1), sigma, observed=sales, dims="week")
    return model


def _reactions() -> Data:
    rng = np.random.default_rng(14)
    x = rng.normal(size=80)
    return {"x": x, "y": rng.gamma(5, np.exp(0.2 + 0.4 * x) / 5)}


def custom(x: Any, y: Any) -> pm.Model:
    """A likelihood that PyMC does not have, written as its log density, and a soft constraint on the prior."""

    def log_density(value: Any, mu: Any, shape: Any) -> Any:
        rate = shape / mu
        return shape * pt.log(rate) - pt.gammaln(shape) + (shape - 1) * pt.log(value) - rate * value

    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 1), pm.Normal("beta", 0, 1)
        shape = pm.Exponential("shape", 0.2)
        pm.Potential("slope_is_positive", -5 * pt.softplus(-10 * beta))
        pm.CustomDist("y", pm.math.exp(alpha + beta * x), shape, logp=log_density, observed=y)
    return model


CASES = [
    Case(
        "pymc-linear",
        "pymc",
        linear,
        _linear(),
        row=3,
        group=np.arange(10, 18),
        n_rows=80,
        reference_draws=3000,
        fast=True,
    ),
    Case(
        "pymc-robust", "pymc", robust, _robust(), row=7, group=np.array([7, 31, 2, 40]), n_rows=60, reference_draws=3000
    ),
    Case(
        "pymc-logistic",
        "pymc",
        logistic,
        _logistic(),
        row=11,
        group=np.arange(30, 45),
        n_rows=150,
        reference_draws=3000,
        fast=True,
    ),
    Case(
        "pymc-poisson-exposure",
        "pymc",
        poisson,
        _counts(),
        row=5,
        group=np.arange(50, 60),
        n_rows=90,
        reference_draws=3000,
        fast=True,
    ),
    Case(
        "pymc-negative-binomial",
        "pymc",
        negative_binomial,
        _overdispersed(),
        row=8,
        group=np.arange(10),
        n_rows=100,
        reference_draws=3000,
    ),
    Case(
        "pymc-zero-inflated",
        "pymc",
        zero_inflated,
        _zero_inflated(),
        row=4,
        group=np.arange(60, 72),
        n_rows=120,
        reference_draws=3000,
    ),
    Case("pymc-hurdle", "pymc", hurdle, _hurdle(), row=9, group=np.arange(20, 30), n_rows=100, reference_draws=3000),
    Case(
        "pymc-beta", "pymc", beta_regression, _shares(), row=6, group=np.arange(40, 47), n_rows=70, reference_draws=3000
    ),
    Case(
        "pymc-ab-test",
        "pymc",
        ab_test,
        _variants(),
        row=150,
        group=np.arange(100, 120),
        n_rows=200,
        reference_draws=3000,
    ),
    Case("pymc-spline", "pymc", spline, _curve(), row=50, group=np.arange(40, 48), n_rows=100, reference_draws=3000),
    Case(
        "pymc-ordinal", "pymc", ordinal, _ratings(), row=17, group=np.arange(80, 92), n_rows=120, reference_draws=3000
    ),
    Case("pymc-softmax", "pymc", softmax, _kinds(), row=2, group=np.arange(100, 112), n_rows=120, reference_draws=3000),
    Case(
        "pymc-saturation",
        "pymc",
        saturation,
        _channels(),
        row=30,
        group=np.arange(52, 60),
        n_rows=104,
        reference_draws=3000,
    ),
    Case(
        "pymc-custom-density",
        "pymc",
        custom,
        _reactions(),
        row=12,
        group=np.arange(30, 38),
        n_rows=80,
        reference_draws=3000,
    ),
]
