"""Time series, survival and Gaussian processes as users of PyMC write them; and fits that are no MCMC posterior."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from tests.corpus.case import Case, Data


def _walk() -> Data:
    rng = np.random.default_rng(41)
    level = np.cumsum(rng.normal(0, 0.4, size=50))
    return {"time": np.arange(50), "y": level + 0.5 * rng.normal(size=50)}


def random_walk(time: Any, y: Any) -> pm.Model:
    """A level that walks, over fifty days, and observations of some of the days."""
    with pm.Model(coords={"day": np.arange(50)}) as model:
        step = pm.HalfNormal("step", 1)
        level = pm.GaussianRandomWalk("level", sigma=step, init_dist=pm.Normal.dist(0, 2), dims="day")
        sigma = pm.Gamma("sigma", 4, 8)
        pm.Normal("y", level[time], sigma, observed=y)
    return model


def _regression_over_time() -> Data:
    rng = np.random.default_rng(42)
    month, x = np.repeat(np.arange(12), 8), rng.normal(size=96)
    beta = 0.5 + np.cumsum(rng.normal(0, 0.2, size=12))
    return {"month": month, "x": x, "y": beta[month] * x + 0.4 * rng.normal(size=96)}


def rolling_regression(month: Any, x: Any, y: Any) -> pm.Model:
    """A slope that walks from month to month, non-centred."""
    with pm.Model(coords={"month": np.arange(12)}) as model:
        step = pm.HalfNormal("step", 0.5)
        start = pm.Normal("start", 0, 1)
        z = pm.Normal("z", 0, 1, dims="month")
        beta = pm.Deterministic("beta", start + pt.cumsum(step * z), dims="month")
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", beta[month] * x, sigma, observed=y)
    return model


def _autoregression() -> Data:
    rng = np.random.default_rng(43)
    state = np.zeros(60)
    for t in range(1, 60):
        state[t] = 0.7 * state[t - 1] + 0.5 * rng.normal()
    return {"time": np.arange(60), "y": state + 0.3 * rng.normal(size=60)}


def latent_autoregression(time: Any, y: Any) -> pm.Model:
    """A latent AR(1), measured with an error of known size."""
    with pm.Model(coords={"day": np.arange(60)}) as model:
        rho = pm.Uniform("rho", 0, 1)
        step = pm.HalfNormal("step", 1)
        state = pm.AR("state", rho=[rho], sigma=step, init_dist=pm.Normal.dist(0, 1), dims="day")
        pm.Normal("y", state[time], 0.3, observed=y)
    return model


def observed_autoregression(y: Any) -> pm.Model:
    """An AR(1) of the observations themselves: a row is in the likelihood of the next one."""
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        pm.AR("y", rho=rho, sigma=sigma, constant=True, init_dist=pm.Normal.dist(0, 1), observed=y)
    return model


def _disasters() -> Data:
    rng = np.random.default_rng(44)
    year = np.arange(100)
    return {"year": year, "y": rng.poisson(np.where(year < 40, 3.0, 1.0))}


def changepoint(year: Any, y: Any) -> pm.Model:
    """A changepoint whose year is a smooth function: no discrete parameter."""
    with pm.Model() as model:
        at = pm.Uniform("at", 0, 100)
        early, late = pm.Exponential("early", 0.5), pm.Exponential("late", 0.5)
        weight = pm.math.sigmoid((year - at) / 2)
        pm.Poisson("y", (1 - weight) * early + weight * late, observed=y)
    return model


def _survival() -> Data:
    rng = np.random.default_rng(45)
    x = rng.normal(size=100)
    time = np.exp(1 - 0.5 * x) * rng.weibull(1.5, size=100)
    end = rng.uniform(2, 8, size=100)
    return {"x": x, "time": np.minimum(time, end), "end": np.where(time > end, end, np.inf)}


def censored_survival(x: Any, time: Any, end: Any) -> pm.Model:
    """Weibull survival, censored at the end of each person's follow-up."""
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 1)
        shape = pm.Gamma("shape", 2, 1)
        latent = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(alpha + beta * x))
        pm.Censored("time", latent, lower=None, upper=end, observed=time)
    return model


def potential_survival(x: Any, time: Any, end: Any) -> pm.Model:
    """Exponential survival in which deaths are observed and the censored are in a Potential."""
    dead = np.isinf(end)
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 1)
        pm.Exponential("died", pm.math.exp(-alpha - beta * x[dead]), observed=time[dead])
        pm.Potential("survived", -time[~dead] * pm.math.exp(-alpha - beta * x[~dead]))
    return model


def _tobit() -> Data:
    rng = np.random.default_rng(46)
    x = rng.normal(size=90)
    return {"x": x, "y": np.clip(0.5 + x + rng.normal(size=90), -0.5, 1.5)}


def tobit(x: Any, y: Any) -> pm.Model:
    """A regression whose outcome is censored on both sides."""
    with pm.Model() as model:
        alpha, beta, sigma = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 2), pm.HalfNormal("sigma", 2)
        pm.Censored("y", pm.Normal.dist(alpha + beta * x, sigma), lower=-0.5, upper=1.5, observed=y)
    return model


def _places() -> Data:
    rng = np.random.default_rng(47)
    x = np.sort(rng.uniform(0, 10, size=60))
    return {"x": x, "y": np.sin(x) + 0.3 * rng.normal(size=60)}


def hilbert_space_process(x: Any, y: Any) -> pm.Model:
    """A Gaussian process by its Hilbert-space approximation."""
    with pm.Model() as model:
        places = pm.Data("places", x[:, None])
        length = pm.InverseGamma("length", 5, 8)
        scale = pm.HalfNormal("scale", 1)
        process = pm.gp.HSGP(m=[12], L=[9.0], cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=length))
        f = process.prior("f", X=places)
        sigma = pm.HalfNormal("sigma", 0.5)
        pm.Normal("y", f, sigma, observed=y)
    return model


GRID = np.linspace(0, 10, 20)[:, None]


def latent_process(x: Any, y: Any) -> pm.Model:
    """A Gaussian process at twenty inducing places, interpolated linearly to the rows."""
    cell = np.clip((x / 10 * 19).astype(int), 0, 18)
    share = x / 10 * 19 - cell
    with pm.Model() as model:
        length = pm.InverseGamma("length", 5, 8)
        process = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=length))
        f = process.prior("f", X=GRID)
        sigma = pm.HalfNormal("sigma", 0.5)
        pm.Normal("y", (1 - share) * f[cell] + share * f[cell + 1], sigma, observed=y)
    return model


def marginal_process(x: Any, y: Any) -> pm.Model:
    """A Gaussian process with its function integrated out: one likelihood of all rows."""
    with pm.Model() as model:
        length = pm.InverseGamma("length", 5, 8)
        process = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=length))
        sigma = pm.HalfNormal("sigma", 0.5)
        process.marginal_likelihood("y", X=x[:, None], y=y, sigma=sigma)
    return model


def minibatch(x: Any, y: Any) -> pm.Model:
    """Mini-batches, as for variational inference; sampled all the same."""
    some_x, some_y = pm.Minibatch(x, y, batch_size=16)
    with pm.Model() as model:
        alpha, beta, sigma = pm.Normal("alpha", 0, 2), pm.Normal("beta", 0, 2), pm.HalfNormal("sigma", 2)
        pm.Normal("y", alpha + beta * some_x, sigma, observed=some_y, total_size=len(y))
    return model


def _of_the_dead_and_others(data: Data) -> Data:
    """Those who died first, as the model has its rows."""
    order = np.argsort(np.isfinite(data["end"]), kind="stable")
    return {name: values[order] for name, values in data.items()}


def _only_y(data: Data) -> Data:
    return {"y": data["y"]}


CASES = [
    Case(
        "pymc-random-walk",
        "pymc",
        random_walk,
        _walk(),
        row=20,
        group=np.arange(30, 35),
        n_rows=50,
        reference_draws=3000,
        emptied="rows",
    ),
    Case(
        "pymc-rolling-regression",
        "pymc",
        rolling_regression,
        _regression_over_time(),
        5,
        np.arange(40, 48),
        96,
        emptied=5,
        reference_draws=3000,
    ),
    Case(
        "pymc-latent-ar",
        "pymc",
        latent_autoregression,
        _autoregression(),
        row=9,
        group=np.arange(30, 36),
        n_rows=60,
        emptied="rows",
        reference_draws=3000,
    ),
    Case(
        "pymc-observed-ar",
        "pymc",
        observed_autoregression,
        _only_y(_autoregression()),
        row=9,
        group=np.arange(30, 36),
        n_rows=60,
        refusal="make the series a latent variable and observe it with an error",
        instead="pymc-latent-ar",
    ),
    Case(
        "pymc-changepoint",
        "pymc",
        changepoint,
        _disasters(),
        row=39,
        group=np.arange(36, 44),
        n_rows=100,
        reference_draws=3000,
    ),
    Case(
        "pymc-censored-survival",
        "pymc",
        censored_survival,
        _survival(),
        row=7,
        group=np.arange(20, 30),
        n_rows=100,
        sampler={"nuts_sampler": "nutpie", "nuts_sampler_kwargs": {}},
        reference_draws=3000,
    ),
    Case(
        "pymc-potential-survival",
        "pymc",
        potential_survival,
        _of_the_dead_and_others(_survival()),
        row=2,
        group=np.r_[0:4, 90:96],
        n_rows=100,
        reference_draws=3000,
        bridge={"row_dim": ("died_dim_0", "survived_dim_0")},
    ),
    Case(
        "pymc-tobit",
        "pymc",
        tobit,
        _tobit(),
        row=1,
        group=np.arange(50, 59),
        n_rows=90,
        sampler={"nuts_sampler": "nutpie", "nuts_sampler_kwargs": {}},
        reference_draws=3000,
    ),
    Case(
        "pymc-hsgp",
        "pymc",
        hilbert_space_process,
        _places(),
        row=30,
        group=np.arange(20, 25),
        n_rows=60,
        reference_draws=3000,
    ),
    Case(
        "pymc-latent-gp",
        "pymc",
        latent_process,
        _places(),
        row=30,
        group=np.arange(20, 25),
        n_rows=60,
        reference_draws=3000,
    ),
    Case(
        "pymc-marginal-gp",
        "pymc",
        marginal_process,
        _places(),
        row=30,
        group=np.arange(20, 25),
        n_rows=60,
        refusal="make the function a parameter, with one likelihood per row",
        instead="pymc-latent-gp",
    ),
    Case(
        "pymc-minibatch",
        "pymc",
        minibatch,
        _tobit(),
        row=1,
        group=np.arange(50, 59),
        n_rows=90,
        refusal="pass the model of all rows",
        instead="pymc-tobit",
        is_posterior=False,
        sampler={
            "nuts_sampler": "pymc",
            "nuts_sampler_kwargs": {},
            "cores": 1,
            "tune": 20,
            "nuts": {"max_treedepth": 4},
        },
        draws=20,
        fast=True,
    ),
]
