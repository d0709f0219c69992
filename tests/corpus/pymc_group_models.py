"""Hierarchies, mixtures and models of several outcomes as users of PyMC write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

from tests.corpus.case import Case, Data


def _counties() -> Data:
    rng = np.random.default_rng(21)
    county = np.repeat(np.arange(12), 10)
    floor = (rng.uniform(size=120) < 0.3).astype(float)
    level = rng.normal(1.4, 0.4, size=12)
    return {"county": county, "floor": floor, "y": level[county] - 0.6 * floor + 0.7 * rng.normal(size=120)}


def centred(county: Any, floor: Any, y: Any) -> pm.Model:
    """A varying intercept, centred, with coordinates."""
    with pm.Model(coords={"county": [f"county {i}" for i in range(12)]}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        alpha = pm.Normal("alpha", mu, tau, dims="county")
        beta = pm.Normal("beta", 0, 2)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("y", alpha[county] + beta * floor, sigma, observed=y)
    return model


def non_centred(county: Any, floor: Any, y: Any) -> pm.Model:
    """The same, non-centred, with all data in `pm.Data`."""
    with pm.Model(coords={"county": [f"county {i}" for i in range(12)], "obs": np.arange(len(y))}) as model:
        county_idx = pm.Data("county_idx", county, dims="obs")
        floor_data = pm.Data("floor", floor, dims="obs")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, dims="county")
        alpha = pm.Deterministic("alpha", mu + tau * z, dims="county")
        beta = pm.Normal("beta", 0, 2)
        sigma = pm.Exponential("sigma", 1)
        theta = alpha[county_idx] + beta * floor_data
        pm.Normal("y", theta, sigma, observed=y, dims="obs")
    return model


def _slopes() -> Data:
    rng = np.random.default_rng(22)
    group = np.repeat(np.arange(10), 12)
    x = rng.normal(size=120)
    effects = rng.multivariate_normal([1.0, 0.5], [[0.5, 0.15], [0.15, 0.2]], size=10)
    return {"group": group, "x": x, "y": effects[group, 0] + effects[group, 1] * x + 0.6 * rng.normal(size=120)}


def varying_slopes(group: Any, x: Any, y: Any) -> pm.Model:
    """Correlated intercepts and slopes with an LKJ prior, non-centred."""
    with pm.Model(coords={"group": np.arange(10), "effect": ["intercept", "slope"]}) as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0), compute_corr=True)
        mean = pm.Normal("mean", 0, 2, dims="effect")
        z = pm.Normal("z", 0, 1, dims=("group", "effect"))
        effects = pm.Deterministic("effects", mean + pt.dot(z, chol.T), dims=("group", "effect"))
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", effects[group, 0] + effects[group, 1] * x, sigma, observed=y)
    return model


def _answers() -> Data:
    rng = np.random.default_rng(23)
    ability, difficulty = rng.normal(size=25), rng.normal(size=8)
    person, item = (each.ravel() for each in np.meshgrid(np.arange(25), np.arange(8), indexing="ij"))
    return {
        "person": person,
        "item": item,
        "right": (rng.uniform(size=200) < expit(ability[person] - difficulty[item])),
    }


def item_response(person: Any, item: Any, right: Any) -> pm.Model:
    """Abilities and difficulties: a row for each answer."""
    with pm.Model(coords={"person": np.arange(25), "item": list("abcdefgh")}) as model:
        ability = pm.Normal("ability", 0, 1, dims="person")
        difficulty = pm.Normal("difficulty", 0, 1.5, dims="item")
        pm.Bernoulli("right", logit_p=ability[person] - difficulty[item], observed=right.astype(int))
    return model


def _sheet() -> Data:
    rng = np.random.default_rng(24)
    ability, difficulty = rng.normal(size=40), rng.normal(size=6)
    return {"right": (rng.uniform(size=(40, 6)) < expit(ability[:, None] - difficulty)).astype(int)}


def answer_sheets(right: Any) -> pm.Model:
    """The same on a sheet with a row for each person, whose ability goes with the row."""
    with pm.Model(coords={"person": np.arange(len(right)), "item": list("abcdef")}) as model:
        ability = pm.Normal("ability", 0, 1, dims="person")
        difficulty = pm.Normal("difficulty", 0, 1.5, dims="item")
        pm.Bernoulli("right", logit_p=ability[:, None] - difficulty, observed=right, dims=("person", "item"))
    return model


def _crossed() -> Data:
    rng = np.random.default_rng(25)
    teacher, school = rng.integers(8, size=150), rng.integers(6, size=150)
    score = 0.7 * rng.normal(size=8)[teacher] + 0.5 * rng.normal(size=6)[school] + rng.normal(size=150)
    return {"teacher": teacher, "school": school, "score": score}


def crossed(teacher: Any, school: Any, score: Any) -> pm.Model:
    """Crossed effects that sum to zero."""
    with pm.Model(coords={"teacher": np.arange(8), "school": np.arange(6), "pupil": np.arange(len(score))}) as model:
        mu = pm.Normal("mu", 0, 2)
        of_teacher = pm.ZeroSumNormal("of_teacher", 1, dims="teacher")
        of_school = pm.ZeroSumNormal("of_school", 1, dims="school")
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("score", mu + of_teacher[teacher] + of_school[school], sigma, observed=score, dims="pupil")
    return model


def _two_kinds() -> Data:
    rng = np.random.default_rng(26)
    kind = rng.uniform(size=120) < 0.35
    return {"y": np.where(kind, rng.normal(-2, 0.6, 120), rng.normal(1.5, 0.9, 120))}


def mixture(y: Any) -> pm.Model:
    """Two normal components whose means are ordered."""
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(2))
        means = pm.Normal(
            "means", 0, 3, shape=2, transform=pm.distributions.transforms.ordered, initval=np.array([-1.0, 1.0])
        )
        sigma = pm.HalfNormal("sigma", 1, shape=2)
        pm.NormalMixture("y", weights, means, sigma, observed=y)
    return model


def _incomes() -> Data:
    rng = np.random.default_rng(27)
    return {"y": np.r_[rng.normal(-1.5, 0.4, 60), rng.normal(0.5, 0.7, 60)]}


def dirichlet_process(y: Any) -> pm.Model:
    """A truncated Dirichlet process; components have labels, so only their density is compared."""
    grid = np.linspace(-3, 3, 13)
    with pm.Model() as model:
        alpha = pm.Gamma("alpha", 2, 2)
        sticks = pm.Beta("sticks", 1, alpha, shape=4)
        rest = pt.concatenate([[1.0], pt.cumprod(1 - sticks)])
        weights = pm.Deterministic("weights", pt.concatenate([sticks, [1.0]]) * rest)
        means = pm.Normal("means", 0, 2, shape=5)
        sigma = pm.Gamma("sigma", 4, 8)
        pm.NormalMixture("y", weights, means, sigma, observed=y)
        parts = pt.exp(-0.5 * ((grid[:, None] - means) / sigma) ** 2) / sigma
        pm.Deterministic("density", (weights * parts).sum(axis=1))
    return model


def _two_outcomes() -> Data:
    rng = np.random.default_rng(28)
    x = rng.normal(size=80)
    noise = rng.multivariate_normal([0, 0], [[0.6, 0.3], [0.3, 0.5]], size=80)
    return {"x": x, "y": np.c_[1 + 0.5 * x, -0.3 * x] + noise}


def two_outcomes(x: Any, y: Any) -> pm.Model:
    """Two correlated outcomes of each person."""
    with pm.Model(coords={"person": np.arange(len(x)), "outcome": ["weight", "height"]}) as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        alpha = pm.Normal("alpha", 0, 2, dims="outcome")
        beta = pm.Normal("beta", 0, 2, dims="outcome")
        mu = alpha + beta * pt.as_tensor(x)[:, None]
        pm.MvNormal("y", mu, chol=chol, observed=y, dims=("person", "outcome"))
    return model


def _plots() -> Data:
    rng = np.random.default_rng(29)
    share = rng.dirichlet(np.array([4.0, 2.0, 1.0, 1.0]) * 2, size=40)
    return {"counts": np.array([rng.multinomial(30, each) for each in share])}


def overdispersed_counts(counts: Any) -> pm.Model:
    """Counts of species on plots: Dirichlet-multinomial."""
    with pm.Model(coords={"plot": np.arange(len(counts)), "species": ["oak", "ash", "elm", "yew"]}) as model:
        share = pm.Dirichlet("share", np.ones(4), dims="species")
        concentration = pm.LogNormal("concentration", 1, 1)
        pm.DirichletMultinomial("counts", n=30, a=concentration * share, observed=counts, dims=("plot", "species"))
    return model


def _noisy() -> Data:
    rng = np.random.default_rng(30)
    exact = rng.normal(2, 1, size=60)
    return {"measured": exact + 0.4 * rng.normal(size=60), "y": 1 + 0.8 * exact + 0.5 * rng.normal(size=60)}


def measurement_error(measured: Any, y: Any) -> pm.Model:
    """A covariate with measurement error: a row has its exact value as a parameter."""
    with pm.Model(coords={"obs": np.arange(len(y))}) as model:
        centre, spread = pm.Normal("centre", 0, 3), pm.HalfNormal("spread", 2)
        exact = pm.Normal("exact", centre, spread, dims="obs")
        pm.Normal("measured", exact, 0.4, observed=measured, dims="obs")
        alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", alpha + beta * exact, sigma, observed=y, dims="obs")
    return model


def _with_gaps() -> Data:
    rng = np.random.default_rng(31)
    x = rng.normal(1, 1, size=80)
    y = 0.5 + 0.9 * x + 0.5 * rng.normal(size=80)
    x[[5, 12, 20, 33, 51, 61, 66, 70, 75]] = np.nan
    return {"x": x, "y": y}


def imputed_covariate(x: Any, y: Any) -> pm.Model:
    """A covariate with gaps, which PyMC fills in as parameters."""
    with pm.Model() as model:
        centre, spread = pm.Normal("centre", 0, 2), pm.HalfNormal("spread", 2)
        filled = pm.Normal("x", centre, spread, observed=np.ma.masked_invalid(x))
        alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 2)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", alpha + beta * filled, sigma, observed=y)
    return model


def _outcome_gaps() -> Data:
    rng = np.random.default_rng(32)
    x = rng.normal(size=70)
    y = 1 + 0.7 * x + 0.6 * rng.normal(size=70)
    y[[5, 20, 33, 61]] = np.nan
    return {"x": x, "y": y}


def missing_outcome(x: Any, y: Any) -> pm.Model:
    """Outcomes with gaps."""
    with pm.Model() as model:
        alpha, beta, sigma = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 1), pm.HalfNormal("sigma", 1)
        pm.Normal("y", alpha + beta * x, sigma, observed=y)
    return model


CASES = [
    Case("pymc-hierarchy-centred", "pymc", centred, _counties(), row=3, group=np.arange(40, 50), n_rows=120, emptied=4),
    Case(
        "pymc-hierarchy-non-centred",
        "pymc",
        non_centred,
        _counties(),
        row=77,
        group=np.arange(70, 80),
        n_rows=120,
        emptied=7,
    ),
    Case(
        "pymc-varying-slopes", "pymc", varying_slopes, _slopes(), row=14, group=np.arange(24, 36), n_rows=120, emptied=2
    ),
    Case(
        "pymc-item-response", "pymc", item_response, _answers(), row=20, group=np.arange(40, 48), n_rows=200, emptied=5
    ),
    Case(
        "pymc-answer-sheets",
        "pymc",
        answer_sheets,
        _sheet(),
        row=3,
        group=np.arange(10, 15),
        n_rows=40,
        bridge={"row_dim": "person"},
    ),
    Case("pymc-crossed", "pymc", crossed, _crossed(), row=8, group=np.arange(15), n_rows=150),
    Case("pymc-mixture", "pymc", mixture, _two_kinds(), row=10, group=np.arange(50, 62), n_rows=120),
    Case(
        "pymc-dirichlet-process",
        "pymc",
        dirichlet_process,
        _incomes(),
        row=10,
        group=np.arange(55, 65),
        n_rows=120,
        ignore=("sticks", "weights", "means"),
    ),
    Case("pymc-two-outcomes", "pymc", two_outcomes, _two_outcomes(), row=2, group=np.arange(30, 38), n_rows=80),
    Case(
        "pymc-dirichlet-multinomial", "pymc", overdispersed_counts, _plots(), row=1, group=np.arange(10, 14), n_rows=40
    ),
    Case(
        "pymc-measurement-error",
        "pymc",
        measurement_error,
        _noisy(),
        row=5,
        group=np.arange(20, 26),
        n_rows=60,
        reference_draws=3000,
    ),
    Case(
        "pymc-imputed-covariate",
        "pymc",
        imputed_covariate,
        _with_gaps(),
        row=3,
        group=np.arange(40, 48),
        n_rows=80,
        reference_draws=3000,
    ),
    Case(
        "pymc-missing-outcome",
        "pymc",
        missing_outcome,
        _outcome_gaps(),
        row=3,
        group=np.arange(40, 47),
        n_rows=70,
        reference_draws=3000,
    ),
]
