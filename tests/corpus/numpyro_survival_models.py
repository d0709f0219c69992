"""Censored, ordered, incomplete and multivariate outcomes, as users of NumPyro write them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Bool
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import OrderedTransform

from tests.corpus.case import Case, Data


def survival(treated: Any, age: Any, time: Any, event: Any) -> None:
    """Weibull times with censoring, by a factor."""
    shape = numpyro.sample("shape", dist.Gamma(4.0, 2.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    log_hazard_time = shape * (jnp.log(time) - intercept - effect * treated - slope * age)
    log_density = jnp.log(shape) - jnp.log(time) + log_hazard_time - jnp.exp(log_hazard_time)
    log_survival = -jnp.exp(log_hazard_time)
    numpyro.factor("log_likelihood_of_times", jnp.where(event == 1, log_density, log_survival))


def _survival_data() -> Data:
    rng = np.random.default_rng(51)
    treated, age = np.arange(120) % 2, rng.normal(size=120)
    time = np.exp(0.5 + 0.5 * treated - 0.2 * age) * rng.weibull(1.6, size=120)
    end = rng.uniform(1, 5, size=120)
    return {"treated": treated, "age": age, "time": np.minimum(time, end), "event": (time <= end).astype(int)}


def censored_by_masks(treated: Any, time: Any, event: Any) -> None:
    """Exponential times: a density where the event was seen, a survival probability where not."""
    log_rate = numpyro.sample("log_rate", dist.Normal(0.0, 2.0))
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    rate = jnp.exp(log_rate + effect * treated)
    with numpyro.plate("patient", len(time)):
        with handlers.mask(mask=event == 1):
            numpyro.sample("seen", dist.Exponential(rate), obs=time)
        with handlers.mask(mask=event == 0):
            numpyro.sample("censored", dist.Bernoulli(jnp.exp(-rate * time)), obs=jnp.ones(len(time), int))


def _censored_data() -> Data:
    rng = np.random.default_rng(52)
    treated = np.arange(80) % 2
    time, end = rng.exponential(np.exp(0.3 + 0.6 * treated)), rng.uniform(0.5, 4, size=80)
    return {"treated": treated, "time": np.minimum(time, end), "event": (time <= end).astype(int)}


def ordinal(contact: Any, temperature: Any, rating: Any = None) -> None:
    """Ratings in five steps with ordered cutpoints."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    cutpoints = numpyro.sample(
        "cutpoints", dist.TransformedDistribution(dist.Normal(0.0, 2.0).expand([4]).to_event(1), OrderedTransform())
    )
    with numpyro.plate("tasting", len(contact)):
        numpyro.sample("rating", dist.OrderedLogistic(beta[0] * contact + beta[1] * temperature, cutpoints), obs=rating)


def flat_ordinal(x: Any, grade: Any = None) -> None:
    """Grades with a flat prior of the cutpoints."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    cutpoints = numpyro.sample("cutpoints", dist.ImproperUniform(constraints.ordered_vector, (), event_shape=(2,)))
    with numpyro.plate("pupil", len(x)):
        numpyro.sample("grade", dist.OrderedLogistic(slope * x, cutpoints), obs=grade)


def _ordinal_data() -> Data:
    rng = np.random.default_rng(53)
    contact, temperature = np.arange(150) % 2, rng.normal(size=150)
    latent = 1.0 * contact + 0.7 * temperature + rng.logistic(size=150)
    return {"contact": contact, "temperature": temperature, "rating": np.digitize(latent, [-1.5, 0.0, 1.2, 2.8])}


def _grades() -> Data:
    rng = np.random.default_rng(54)
    x = rng.normal(size=90)
    return {"x": x, "grade": np.digitize(0.8 * x + rng.logistic(size=90), [-1.0, 1.0])}


def missing_covariates(age_known: Any, age: Any, missing: Any, fare: Any, survived: Any = None) -> None:
    """Ages that are missing are parameters, imputed from the other ages."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    imputed = numpyro.sample("imputed", dist.Normal(mean, spread).expand([len(missing)]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    complete = jnp.asarray(age).at[missing].set(imputed)
    with numpyro.plate("passenger", age.shape[0]):
        with handlers.mask(mask=age_known):
            numpyro.sample("age", dist.Normal(mean, spread), obs=age)
        logits = intercept + beta[0] * complete + beta[1] * fare
        numpyro.sample("survived", dist.Bernoulli(logits=logits), obs=survived)


def _missing_covariates_data() -> Data:
    rng = np.random.default_rng(55)
    age, fare = rng.normal(size=150), rng.normal(size=150)
    survived = (rng.uniform(size=150) < 1 / (1 + np.exp(-(0.2 - 0.8 * age + 0.6 * fare)))).astype(int)
    missing = np.sort(rng.choice(150, 30, replace=False))
    known = ~np.isin(np.arange(150), missing)
    return {
        "age_known": known,
        "age": np.where(known, age, 0.0),
        "missing": missing,
        "fare": fare,
        "survived": survived,
    }


PASSENGERS = _missing_covariates_data()


def _passengers_left(data: Data, kept: Bool[np.ndarray, " rows"]) -> Data:
    """Places of missing ages are counted anew."""
    cut = {name: data[name][kept] for name in ("age_known", "age", "fare", "survived")}
    return {**cut, "missing": np.flatnonzero(~cut["age_known"])}


def multivariate(iq: Any, scores: Any = None) -> None:
    """Three test scores of each pupil, correlated."""
    intercepts = numpyro.sample("intercepts", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    scales = numpyro.sample("scales", dist.HalfNormal(1.0).expand([3]).to_event(1))
    root = numpyro.sample("root", dist.LKJCholesky(3, concentration=1.5))
    numpyro.deterministic("correlations", root @ root.T)
    with numpyro.plate("pupil", len(iq)):
        mean = intercepts + iq[:, None] * slopes
        numpyro.sample("scores", dist.MultivariateNormal(mean, scale_tril=scales[:, None] * root), obs=scores)


def _multivariate_data() -> Data:
    rng = np.random.default_rng(56)
    iq = rng.normal(size=90)
    root = np.linalg.cholesky([[1.0, 0.6, 0.2], [0.6, 1.0, 0.4], [0.2, 0.4, 1.0]])
    return {"iq": iq, "scores": np.outer(iq, [0.8, 0.5, 0.1]) + 0.7 * rng.normal(size=(90, 3)) @ root.T}


def meta_analysis(dose: Any, error: Any, n_studies: int, effect: Any = None) -> None:
    """Effects of studies that depend on their dose, centred: one parameter and one row per study."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(0.5))
    with numpyro.plate("study", n_studies):
        theta = numpyro.sample("theta", dist.Normal(intercept + slope * dose, tau))
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def _meta_analysis_data() -> Data:
    rng = np.random.default_rng(57)
    dose, error = rng.uniform(-1, 1, size=40), rng.uniform(0.1, 0.4, size=40)
    effect = 0.4 + 0.5 * dose + 0.3 * rng.normal(size=40) + error * rng.normal(size=40)
    return {"dose": dose, "error": error, "n_studies": 40, "effect": effect}


CASES = [
    Case("numpyro-survival", "numpyro", survival, _survival_data(), row=14, group=np.arange(60, 66), n_rows=120),
    Case(
        "numpyro-censored",
        "numpyro",
        censored_by_masks,
        _censored_data(),
        row=3,
        group=np.arange(30, 35),
        n_rows=80,
    ),
    Case(
        "numpyro-ordinal",
        "numpyro",
        ordinal,
        _ordinal_data(),
        row=44,
        group=np.arange(100, 108),
        n_rows=150,
        reference_draws=5000,
    ),
    Case("numpyro-flat-ordinal", "numpyro", flat_ordinal, _grades(), row=5, group=np.arange(20, 25), n_rows=90),
    Case(
        "numpyro-missing-covariates",
        "numpyro",
        missing_covariates,
        PASSENGERS,
        row=int(PASSENGERS["missing"][4]),
        group=np.arange(50, 58),
        n_rows=150,
        reference_draws=5000,
        cut=_passengers_left,
        ignore=("imputed",),
    ),
    Case(
        "numpyro-multivariate",
        "numpyro",
        multivariate,
        _multivariate_data(),
        row=33,
        group=np.arange(70, 75),
        n_rows=90,
        reference_draws=5000,
        ignore=("root",),
    ),
    Case(
        "numpyro-meta-analysis",
        "numpyro",
        meta_analysis,
        _meta_analysis_data(),
        row=7,
        group=np.arange(20, 23),
        n_rows=40,
        reference_draws=5000,
        bridge={"shared": "dose"},  # it is in the prior of the study's own effect
    ),
]
