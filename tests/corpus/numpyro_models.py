"""Regressions of every family, as users of NumPyro write them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMCECS
from scipy.special import expit

from tests.corpus.case import Case, Data


def coin(flips: Any = None) -> None:
    """Flips of a coin."""
    heads = numpyro.sample("heads", dist.Beta(1.0, 1.0))
    numpyro.sample("flip", dist.Bernoulli(heads), obs=flips)


FLIPS = (np.random.default_rng(1).uniform(size=60) < 0.7).astype(int)


def linear(weight: Any, age: Any, height: Any = None) -> None:
    """Height from weight and age, without a plate."""
    intercept = numpyro.sample("intercept", dist.Normal(150.0, 50.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    growth = numpyro.sample("growth", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.Exponential(0.1))
    mean = numpyro.deterministic("mean", intercept + slope * weight + growth * age)
    numpyro.sample("height", dist.Normal(mean, sigma), obs=height)


def _linear_data() -> Data:
    rng = np.random.default_rng(2)
    weight, age = rng.normal(size=90), rng.uniform(-1, 1, size=90)
    return {"weight": weight, "age": age, "height": 155 + 6 * weight + 3 * age + 5 * rng.normal(size=90)}


def logistic(features: Any, bought: Any = None) -> None:
    """Purchases from a design matrix."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([features.shape[1]]).to_event(1))
    with numpyro.plate("customer", features.shape[0]):
        numpyro.sample("bought", dist.Bernoulli(logits=intercept + features @ beta), obs=bought)


def _logistic_data() -> Data:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(200, 4))
    bought = (rng.uniform(size=200) < expit(-0.5 + features @ [1.0, -0.8, 0.4, 0.0])).astype(int)
    return {"features": features, "bought": bought}


def poisson(exposure: Any, treated: Any, baseline: Any, seizures: Any = None) -> None:
    """Counts over times of observation."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    log_rate = intercept + effect * treated + slope * baseline + jnp.log(exposure)
    numpyro.deterministic("rate_ratio", jnp.exp(effect))
    with numpyro.plate("patient", len(exposure)):
        numpyro.sample("seizures", dist.Poisson(jnp.exp(log_rate)), obs=seizures)


def _poisson_data() -> Data:
    rng = np.random.default_rng(4)
    exposure, treated, baseline = rng.uniform(0.5, 3, 100), np.arange(100) % 2, rng.normal(size=100)
    seizures = rng.poisson(exposure * np.exp(0.7 - 0.4 * treated + 0.3 * baseline))
    return {"exposure": exposure, "treated": treated, "baseline": baseline, "seizures": seizures}


def negative_binomial(temperature: Any, weekend: Any, bikes: Any = None) -> None:
    """Overdispersed counts."""
    intercept = numpyro.sample("intercept", dist.Normal(2.0, 2.0))
    warm = numpyro.sample("warm", dist.Normal(0.0, 1.0))
    off = numpyro.sample("off", dist.Normal(0.0, 1.0))
    concentration = numpyro.sample("concentration", dist.Exponential(0.5))
    mean = jnp.exp(intercept + warm * temperature + off * weekend)
    with numpyro.plate("day", len(temperature)):
        numpyro.sample("bikes", dist.NegativeBinomial2(mean, concentration), obs=bikes)


def _negative_binomial_data() -> Data:
    rng = np.random.default_rng(5)
    temperature, weekend = rng.normal(size=140), (np.arange(140) % 7 > 4).astype(int)
    mean = np.exp(2.5 + 0.4 * temperature - 0.5 * weekend)
    return {"temperature": temperature, "weekend": weekend, "bikes": rng.poisson(mean * rng.gamma(3.0, 1 / 3, 140))}


def gamma(age: Any, claim: Any = None) -> None:
    """Positive amounts with a log link."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 3.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    shape = numpyro.sample("shape", dist.HalfNormal(5.0))
    with numpyro.plate("policy", len(age)):
        mean = jnp.exp(intercept + slope * age)
        numpyro.sample("claim", dist.Gamma(shape, shape / mean), obs=claim)


def _gamma_data() -> Data:
    rng = np.random.default_rng(6)
    age = rng.uniform(-1, 1, size=120)
    return {"age": age, "claim": rng.gamma(2.0, np.exp(1.0 + 0.6 * age) / 2)}


def beta_regression(temperature: Any, share: Any = None) -> None:
    """Shares between 0 and 1: a yield by temperature."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 0.1))
    with numpyro.plate("batch", temperature.shape[0]):
        mean = jax.nn.sigmoid(intercept + slope * temperature)
        numpyro.sample("share", dist.BetaProportion(mean, precision), obs=share)


def _beta_data() -> Data:
    rng = np.random.default_rng(7)
    temperature = rng.normal(size=80)
    mean = expit(-0.5 + 0.8 * temperature)
    return {"temperature": temperature, "share": rng.beta(15 * mean, 15 * (1 - mean))}


def robust(x: Any, y: Any = None) -> None:
    """A line through points with outliers."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.1))
    numpyro.sample("y", dist.StudentT(freedom, intercept + slope * x, scale), obs=y)


def _robust_data() -> Data:
    rng = np.random.default_rng(8)
    x = rng.normal(size=70)
    y = 1.0 + 2.0 * x + 0.4 * rng.normal(size=70)
    y[[5, 20, 41]] += [6.0, -5.0, 8.0]
    return {"x": x, "y": y}


def softmax(features: Any, n_classes: int, species: Any = None) -> None:
    """Three species by their measures; the first is the pivot."""
    intercepts = numpyro.sample("intercepts", dist.Normal(0.0, 2.0).expand([n_classes - 1]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([features.shape[1], n_classes - 1]).to_event(2))
    scores = intercepts + features @ beta
    logits = jnp.concatenate([jnp.zeros((features.shape[0], 1)), scores], axis=1)
    with numpyro.plate("flower", features.shape[0]):
        numpyro.sample("species", dist.Categorical(logits=logits), obs=species)


def _softmax_data() -> Data:
    rng = np.random.default_rng(9)
    features = rng.normal(size=(150, 2))
    logits = np.column_stack([np.zeros(150), features @ [1.5, -0.5], 0.3 + features @ [-1.0, 1.0]])
    species = np.argmax(logits + rng.gumbel(size=(150, 3)), axis=1)
    return {"features": features, "n_classes": 3, "species": species}


def horseshoe(x: Any, y: Any = None) -> None:
    """Twelve predictors, of which two matter."""
    n_predictors = x.shape[1]
    overall = numpyro.sample("overall", dist.HalfCauchy(0.1))
    with numpyro.plate("predictor", n_predictors):
        own = numpyro.sample("own", dist.HalfCauchy(1.0))
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
    beta = numpyro.deterministic("beta", overall * own * raw)
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("row", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def _horseshoe_data() -> Data:
    rng = np.random.default_rng(10)
    x = rng.normal(size=(120, 12))
    return {"x": x, "y": x[:, 0] * 1.2 - x[:, 3] * 0.9 + 0.8 * rng.normal(size=120)}


def multinomial(log_income: Any, turnout: Any, votes: Any = None) -> None:
    """Votes for three parties, one row a district."""
    intercepts = numpyro.sample("intercepts", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("district", len(log_income)):
        scores = intercepts + log_income[:, None] * slopes
        logits = jnp.pad(scores, ((0, 0), (1, 0)))
        numpyro.sample("votes", dist.Multinomial(total_count=turnout, logits=logits), obs=votes)


def _multinomial_data() -> Data:
    rng = np.random.default_rng(11)
    log_income, turnout = rng.normal(size=40), rng.integers(40, 90, size=40)
    scores = np.column_stack([np.zeros(40), 0.3 + 0.2 * log_income, -0.4 - 0.3 * log_income])
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    votes = np.stack([rng.multinomial(n, p) for n, p in zip(turnout, shares, strict=True)])
    return {"log_income": log_income, "turnout": turnout, "votes": votes}


def subsampled(x: Any, y: Any = None) -> None:
    """A regression whose plate draws a tenth of its rows at every step, sampled by HMCECS."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("row", len(x), subsample_size=len(x) // 10) as some:
        numpyro.sample("y", dist.Normal(slope * x[some], sigma), obs=y[some])


def _subsampled_data() -> Data:
    rng = np.random.default_rng(12)
    x = rng.normal(size=200)
    return {"x": jnp.asarray(x), "y": jnp.asarray(0.8 * x + 0.5 * rng.normal(size=200))}


CASES = [
    # The group are heads, so that the draws of all flips are not those of the kept ones.
    Case(
        "numpyro-coin", "numpyro", coin, {"flips": FLIPS}, row=3, group=np.flatnonzero(FLIPS)[:12], n_rows=60, fast=True
    ),
    Case("numpyro-linear", "numpyro", linear, _linear_data(), row=7, group=np.arange(20, 26), n_rows=90, fast=True),
    Case("numpyro-logistic", "numpyro", logistic, _logistic_data(), row=11, group=np.arange(40, 52), n_rows=200),
    Case("numpyro-poisson", "numpyro", poisson, _poisson_data(), row=0, group=np.arange(30, 38), n_rows=100),
    Case(
        "numpyro-negative-binomial",
        "numpyro",
        negative_binomial,
        _negative_binomial_data(),
        row=5,
        group=np.arange(70, 77),
        n_rows=140,
    ),
    Case("numpyro-gamma", "numpyro", gamma, _gamma_data(), row=2, group=np.arange(60, 67), n_rows=120),
    Case("numpyro-beta", "numpyro", beta_regression, _beta_data(), row=1, group=np.arange(8, 14), n_rows=80),
    # Both requests take outliers out.
    Case("numpyro-robust", "numpyro", robust, _robust_data(), row=41, group=np.array([5, 20, 41, 42]), n_rows=70),
    Case("numpyro-softmax", "numpyro", softmax, _softmax_data(), row=9, group=np.arange(100, 108), n_rows=150),
    Case(
        "numpyro-horseshoe",
        "numpyro",
        horseshoe,
        _horseshoe_data(),
        row=4,
        group=np.arange(12, 18),
        n_rows=120,
        sampler={"target_accept_prob": 0.99},
    ),
    Case("numpyro-multinomial", "numpyro", multinomial, _multinomial_data(), row=6, group=np.arange(3), n_rows=40),
    Case(
        "numpyro-subsampled",
        "numpyro",
        subsampled,
        _subsampled_data(),
        row=6,
        group=np.arange(10, 20),
        n_rows=200,
        draws=100,
        sampler={"around": HMCECS},
        refusal="pass the model without subsample_size",
        instead="numpyro-linear",
        is_posterior=False,
    ),
]
