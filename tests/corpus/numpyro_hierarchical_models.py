"""Hierarchies, as users of NumPyro write them: centred and not, varying slopes, responses of persons to items."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Int
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam
from scipy.special import expit

from tests.corpus.case import Case, Data


def schools(n_schools: int, error: Any, effect: Any = None) -> None:
    """Eight schools, not centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", n_schools):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * raw)
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


SCHOOLS = {
    "n_schools": 8,
    "error": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
    "effect": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
}


def counties(county: Any, n_counties: int, floor: Any, log_radon: Any = None) -> None:
    """Houses in counties, with the counties' levels centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("county_plate", n_counties):
        level = numpyro.sample("level", dist.Normal(mu, tau))
    with numpyro.plate("house", len(county)):
        numpyro.sample("log_radon", dist.Normal(level[county] + slope * floor, sigma), obs=log_radon)


def _counties_data() -> Data:
    rng = np.random.default_rng(21)
    county = np.repeat(np.arange(12), [4, 6, 8, 10, 12, 14, 16, 18, 20, 12, 10, 10])
    floor = rng.integers(2, size=140)
    log_radon = (1.4 + 0.5 * rng.normal(size=12))[county] - 0.6 * floor + 0.7 * rng.normal(size=140)
    return {"county": county, "n_counties": 12, "floor": floor, "log_radon": log_radon}


COUNTIES = _counties_data()


def cafes(cafe: Any, n_cafes: int, afternoon: Any, wait: Any = None) -> None:
    """Intercepts and slopes of cafés, correlated a priori."""
    mean = numpyro.sample("mean", dist.Normal(jnp.array([5.0, -1.0]), 2.0).to_event(1))
    spread = numpyro.sample("spread", dist.Exponential(1.0).expand([2]).to_event(1))
    root = numpyro.sample("root", dist.LKJCholesky(2, concentration=2.0))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("cafe_plate", n_cafes):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    effects = numpyro.deterministic("effects", mean + raw @ (spread[:, None] * root).T)
    numpyro.deterministic("correlation", root[1, 0])
    with numpyro.plate("visit", len(cafe)):
        numpyro.sample("wait", dist.Normal(effects[cafe, 0] + effects[cafe, 1] * afternoon, sigma), obs=wait)


def _cafes_data() -> Data:
    rng = np.random.default_rng(22)
    cafe, afternoon = np.repeat(np.arange(16), 10), np.tile([0, 1], 80)
    effects = rng.multivariate_normal([3.5, -1.0], [[1.0, -0.35], [-0.35, 0.25]], size=16)
    wait = effects[cafe, 0] + effects[cafe, 1] * afternoon + 0.5 * rng.normal(size=160)
    return {"cafe": cafe, "n_cafes": 16, "afternoon": afternoon, "wait": wait}


def centred_cafes(cafe: Any, n_cafes: int, afternoon: Any, wait: Any = None) -> None:
    """The same with a multivariate normal of the effects themselves."""
    mean = numpyro.sample("mean", dist.Normal(jnp.array([5.0, -1.0]), 2.0).to_event(1))
    spread = numpyro.sample("spread", dist.Exponential(1.0).expand([2]).to_event(1))
    correlations = numpyro.sample("correlations", dist.LKJ(2, concentration=2.0))
    covariance = jnp.outer(spread, spread) * correlations
    effects = numpyro.sample("effects", dist.MultivariateNormal(mean, covariance).expand([n_cafes]))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    numpyro.sample("wait", dist.Normal(effects[cafe, 0] + effects[cafe, 1] * afternoon, sigma), obs=wait)


def responses(person: Any, item: Any, n_persons: int, n_items: int, correct: Any = None) -> None:
    """Two-parameter item response model, one row a response."""
    with numpyro.plate("item_plate", n_items):
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0))
        discrimination = numpyro.sample("discrimination", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("person_plate", n_persons):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
    with numpyro.plate("response", len(person)):
        logits = discrimination[item] * (ability[person] - difficulty[item])
        numpyro.sample("correct", dist.Bernoulli(logits=logits), obs=correct)


def _responses_data() -> Data:
    rng = np.random.default_rng(23)
    person, item = np.repeat(np.arange(40), 10), np.tile(np.arange(10), 40)
    ability, difficulty, slope = rng.normal(size=40), np.linspace(-1.5, 1.5, 10), np.exp(0.3 * rng.normal(size=10))
    chance = expit(slope[item] * (ability[person] - difficulty[item]))
    correct = (rng.uniform(size=400) < chance).astype(int)
    return {"person": person, "item": item, "n_persons": 40, "n_items": 10, "correct": correct}


def batters(at_bats: Any, hits: Any = None) -> None:
    """Binomial counts with a beta distribution of the chances; a row is a player."""
    mean = numpyro.sample("mean", dist.Uniform(0.0, 1.0))
    concentration = numpyro.sample("concentration", dist.LogNormal(3.0, 1.0))
    with numpyro.plate("player", len(at_bats)):
        chance = numpyro.sample("chance", dist.Beta(mean * concentration, (1 - mean) * concentration))
        numpyro.sample("hits", dist.Binomial(at_bats, probs=chance), obs=hits)


def _batters_data() -> Data:
    rng = np.random.default_rng(24)
    at_bats = rng.integers(30, 90, size=40)
    return {"at_bats": at_bats, "hits": rng.binomial(at_bats, rng.beta(0.27 * 40, 0.73 * 40, size=40))}


def litters(treated: Any, size: Any, affected: Any = None) -> None:
    """Beta–binomial counts, their chances integrated out."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.5))
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.2))
    chance = jax.nn.sigmoid(intercept + effect * treated)
    with numpyro.plate("litter", len(size)):
        numpyro.sample(
            "affected", dist.BetaBinomial(chance * concentration, (1 - chance) * concentration, size), obs=affected
        )


def _litters_data() -> Data:
    rng = np.random.default_rng(25)
    treated, size = np.arange(60) % 2, rng.integers(5, 14, size=60)
    chance = expit(-1.0 + 0.8 * treated)
    affected = rng.binomial(size, rng.beta(6 * chance, 6 * (1 - chance)))
    return {"treated": treated, "size": size, "affected": affected}


def polls(state: Any, n_states: int, woman: Any, yes: Any = None) -> None:
    """Answers of respondents in states, whose effects sum to zero."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.5))
    gender = numpyro.sample("gender", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    effects = numpyro.sample("effects", dist.ZeroSumNormal(spread, (n_states,)))
    with numpyro.plate("respondent", len(state)):
        numpyro.sample("yes", dist.Bernoulli(logits=intercept + effects[state] + gender * woman), obs=yes)


def _polls_data() -> Data:
    rng = np.random.default_rng(26)
    state, woman = np.repeat(np.arange(10), 30), rng.integers(2, size=300)
    chance = expit(0.2 + (0.7 * rng.normal(size=10))[state] - 0.4 * woman)
    return {"state": state, "n_states": 10, "woman": woman, "yes": (rng.uniform(size=300) < chance).astype(int)}


def visits(y: Any, dose: Any) -> None:
    """Repeated measures in a matrix: a row is a person, with all of her visits."""
    n_persons, n_visits = y.shape
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("person", n_persons, dim=-2):
        level = numpyro.sample("level", dist.Normal(mu, tau))
        with numpyro.plate("visit", n_visits, dim=-1):
            numpyro.sample("y", dist.Normal(level + slope * dose, sigma), obs=y)


def _visits_data() -> Data:
    rng = np.random.default_rng(27)
    dose = rng.uniform(0, 2, size=(40, 5))
    return {"dose": dose, "y": 1.0 + 0.8 * rng.normal(size=(40, 1)) + 0.5 * dose + 0.6 * rng.normal(size=(40, 5))}


def _rows_of(group: Int[np.ndarray, " rows"], number: int) -> Int[np.ndarray, " some"]:
    return np.flatnonzero(group == number)


CASES = [
    Case(
        "numpyro-eight-schools",
        "numpyro",
        schools,
        SCHOOLS,
        row=0,
        group=np.array([2, 5]),
        n_rows=8,
        sampler={"target_accept_prob": 0.95},
        fast=True,
    ),
    Case(
        "numpyro-counties",
        "numpyro",
        counties,
        COUNTIES,
        row=30,
        group=_rows_of(COUNTIES["county"], 3),
        n_rows=140,
        reference_draws=5000,
        emptied=3,
    ),
    Case(
        "numpyro-counties-reparam",
        "numpyro",
        handlers.reparam(counties, config={"level": LocScaleReparam(0.0)}),
        COUNTIES,
        row=2,
        group=_rows_of(COUNTIES["county"], 0),
        n_rows=140,
        reference_draws=5000,
        emptied=0,
    ),
    Case(
        "numpyro-cafes",
        "numpyro",
        cafes,
        _cafes_data(),
        row=17,
        group=np.arange(50, 60),
        n_rows=160,
        reference_draws=5000,
        emptied=5,
    ),
    Case(
        "numpyro-cafes-centred",
        "numpyro",
        centred_cafes,
        _cafes_data(),
        row=99,
        group=np.arange(110, 120),
        n_rows=160,
        reference_draws=5000,
        emptied=11,
    ),
    Case(
        "numpyro-item-response",
        "numpyro",
        responses,
        _responses_data(),
        row=123,
        group=np.arange(70, 80),
        n_rows=400,
        emptied=7,
        reference_draws=5000,
    ),
    Case(
        "numpyro-batters",
        "numpyro",
        batters,
        _batters_data(),
        row=8,
        group=np.arange(20, 23),
        n_rows=40,
        reference_draws=5000,
    ),
    Case("numpyro-beta-binomial", "numpyro", litters, _litters_data(), row=13, group=np.arange(4, 9), n_rows=60),
    Case(
        "numpyro-polls",
        "numpyro",
        polls,
        _polls_data(),
        row=77,
        group=np.arange(120, 150),
        n_rows=300,
        reference_draws=5000,
        emptied=4,
    ),
    Case(
        "numpyro-visits",
        "numpyro",
        visits,
        _visits_data(),
        row=12,
        group=np.array([3, 30]),
        n_rows=40,
        reference_draws=5000,
        bridge={"row_dim": "person"},
    ),
]
