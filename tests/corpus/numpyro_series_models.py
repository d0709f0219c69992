"""Series, curves and Gaussian processes, as users of NumPyro write them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Bool, Float
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from scipy.interpolate import BSpline

from tests.corpus.case import Case, Data


def local_level(known: Any, level: Any = None) -> None:
    """A river's level: a random walk seen with noise, by scan. Weeks that are not known are masked."""
    drift = numpyro.sample("drift", dist.LogNormal(-1.0, 0.5))
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 0.5))

    def step(before: Any, now: Any) -> Any:
        value, is_known = now
        state = numpyro.sample("state", dist.Normal(before, drift))
        with handlers.mask(mask=is_known):
            numpyro.sample("level", dist.Normal(state, noise), obs=value)
        return state, None

    scan(step, jnp.zeros(()), (level, known))


def _local_level_data() -> Data:
    rng = np.random.default_rng(41)
    state = np.cumsum(0.4 * rng.normal(size=80))
    return {"known": np.ones(80, bool), "level": state + 0.4 * rng.normal(size=80)}


def _masked(data: Data, kept: Bool[np.ndarray, " rows"]) -> Data:
    """Time goes on where a week is not known."""
    return {**data, "known": kept}


def random_walk(known: Any, deaths: Any) -> None:
    """Weekly counts with a log rate that walks, not centred."""
    start = numpyro.sample("start", dist.Normal(2.0, 1.0))
    drift = numpyro.sample("drift", dist.HalfNormal(0.3))
    steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([len(deaths)]).to_event(1))
    log_rate = numpyro.deterministic("log_rate", start + drift * jnp.cumsum(steps))
    with numpyro.plate("week", len(deaths)), handlers.mask(mask=known):
        numpyro.sample("deaths", dist.Poisson(jnp.exp(log_rate)), obs=deaths)


def _random_walk_data() -> Data:
    rng = np.random.default_rng(42)
    log_rate = 2.2 + np.cumsum(0.15 * rng.normal(size=60))
    return {"known": np.ones(60, bool), "deaths": rng.poisson(np.exp(log_rate))}


def autoregression(before: Any, price: Any = None) -> None:
    """First order, with the price of the day before as a column."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 0.5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("day", len(before)):
        numpyro.sample("price", dist.Normal(mean + slope * (before - mean), sigma), obs=price)


def _autoregression_data() -> Data:
    rng = np.random.default_rng(43)
    price = np.zeros(121)
    for t in range(1, 121):
        price[t] = 0.3 + 0.6 * price[t - 1] + 0.5 * rng.normal()
    return {"before": price[:-1], "price": price[1:]}


def _without_next(data: Data, kept: Bool[np.ndarray, " rows"]) -> Data:
    """Days whose day before is unknown are dropped too, as `DataFrame.dropna` drops them."""
    complete = kept & np.concatenate([[True], kept[:-1]])
    return {name: values[complete] for name, values in data.items()}


def growth(n_series: int, series: Any, time: Any, log_size: Any = None) -> None:
    """Growth curves of colonies that share their shape."""
    rate = numpyro.sample("rate", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("colony", n_series):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0))
        start = numpyro.sample("start", dist.Normal(0.0, 2.0))
    with numpyro.plate("measurement", len(series)):
        mean = start[series] + (rate + spread * own[series]) * time
        numpyro.sample("log_size", dist.Normal(mean, sigma), obs=log_size)


def _growth_data() -> Data:
    rng = np.random.default_rng(44)
    series, time = np.repeat(np.arange(10), 8), np.tile(np.linspace(0, 2, 8), 10)
    mean = (1 + 0.5 * rng.normal(size=10))[series] + (0.8 + 0.3 * rng.normal(size=10))[series] * time
    return {"n_series": 10, "series": series, "time": time, "log_size": mean + 0.2 * rng.normal(size=80)}


def spline(basis: Any, day: Any = None) -> None:
    """The first day of blossom: a cubic spline with a random-walk prior of its weights."""
    smooth = numpyro.sample("smooth", dist.LogNormal(-0.5, 0.5))
    first = numpyro.sample("first", dist.Normal(0.0, 2.0))
    steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([basis.shape[1] - 1]).to_event(1))
    weights = numpyro.deterministic("weights", first + smooth * jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)]))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("year", basis.shape[0]):
        numpyro.sample("day", dist.Normal(basis @ weights, sigma), obs=day)


def _spline_basis(at: Float[np.ndarray, " rows"], inner: int) -> Float[np.ndarray, "rows weights"]:
    knots = np.concatenate([[0.0] * 3, np.linspace(0, 1, inner), [1.0] * 3])
    return BSpline.design_matrix(np.clip(at, 0, 1 - 1e-9), knots, 3).toarray()


def _spline_data() -> Data:
    rng = np.random.default_rng(45)
    at = np.linspace(0, 1, 120)
    return {"basis": _spline_basis(at, 8), "day": np.sin(5 * at) + 0.4 * rng.normal(size=120)}


def hilbert_space_process(x: Any, y: Any = None) -> None:
    """A Gaussian process by its Hilbert space approximation."""
    amplitude = numpyro.sample("amplitude", dist.LogNormal(0.0, 0.5))
    length = numpyro.sample("length", dist.InverseGamma(5.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(0.5))
    curve = hsgp_squared_exponential(x=x, alpha=amplitude, length=length, ell=1.5, m=15)
    with numpyro.plate("point", len(x)):
        numpyro.sample("y", dist.Normal(curve, sigma), obs=y)


def _curve_data(n_points: int) -> Data:
    rng = np.random.default_rng(46)
    x = np.sort(rng.uniform(-1, 1, size=n_points))
    return {"x": x, "y": np.sin(4 * x) + 0.3 * rng.normal(size=n_points)}


def _kernel(x: Any, amplitude: Any, length: Any) -> Any:
    distances = (x[:, None] - x[None, :]) / length
    return amplitude**2 * jnp.exp(-0.5 * distances**2)


def latent_process(x: Any, count: Any = None) -> None:
    """Counts along a road, their log rate a Gaussian process at the points themselves."""
    amplitude = numpyro.sample("amplitude", dist.LogNormal(-0.5, 0.5))
    length = numpyro.sample("length", dist.InverseGamma(5.0, 2.0))
    level = numpyro.sample("level", dist.Normal(1.0, 1.0))
    white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    root = jnp.linalg.cholesky(_kernel(x, amplitude, length) + 1e-4 * jnp.eye(len(x)))
    with numpyro.plate("point", len(x)):
        numpyro.sample("count", dist.Poisson(jnp.exp(level + root @ white)), obs=count)


def _latent_process_data() -> Data:
    rng = np.random.default_rng(47)
    x = np.linspace(-1, 1, 40)
    return {"x": x, "count": rng.poisson(np.exp(1.2 + 0.7 * np.sin(3 * x)))}


def marginal_process(x: Any, y: Any = None) -> None:
    """A Gaussian process with its function integrated out: one density for all points."""
    amplitude = numpyro.sample("amplitude", dist.LogNormal(0.0, 0.5))
    length = numpyro.sample("length", dist.InverseGamma(5.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(0.5))
    covariance = _kernel(x, amplitude, length) + (sigma**2 + 1e-5) * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


CASES = [
    Case(
        "numpyro-local-level",
        "numpyro",
        local_level,
        _local_level_data(),
        row=40,
        group=np.arange(20, 24),
        n_rows=80,
        reference_draws=5000,
        cut=_masked,
        sampler={"target_accept_prob": 0.95},
    ),
    Case(
        "numpyro-random-walk",
        "numpyro",
        random_walk,
        _random_walk_data(),
        row=30,
        group=np.arange(10, 13),
        n_rows=60,
        emptied="rows",
        reference_draws=5000,
        cut=_masked,
    ),
    Case(
        "numpyro-autoregression",
        "numpyro",
        autoregression,
        _autoregression_data(),
        row=50,
        group=np.arange(80, 85),
        n_rows=120,
        cut=_without_next,
    ),
    Case(
        "numpyro-growth",
        "numpyro",
        growth,
        _growth_data(),
        row=19,
        group=np.arange(32, 40),
        n_rows=80,
        reference_draws=5000,
        emptied=4,
    ),
    Case(
        "numpyro-spline",
        "numpyro",
        spline,
        _spline_data(),
        row=60,
        group=np.arange(90, 96),
        n_rows=120,
        sampler={"target_accept_prob": 0.95},
        reference_draws=5000,
    ),
    Case(
        "numpyro-hilbert-space-process",
        "numpyro",
        hilbert_space_process,
        _curve_data(100),
        row=50,
        group=np.arange(20, 26),
        n_rows=100,
        reference_draws=5000,
        sampler={"target_accept_prob": 0.95},
    ),
    # The places of the removed points stay, and the function at them is a parameter like any other.
    Case(
        "numpyro-latent-process",
        "numpyro",
        latent_process,
        _latent_process_data(),
        row=20,
        group=np.arange(5, 8),
        n_rows=40,
        reference_draws=5000,
        bridge={"shared": "x"},
        ignore=("white",),
    ),
    Case(
        "numpyro-marginal-process",
        "numpyro",
        marginal_process,
        _curve_data(20),
        row=10,
        group=np.arange(5, 8),
        n_rows=20,
        draws=100,
        refusal="make the function a parameter, with one likelihood per row",
        instead="numpyro-latent-process",
        fast=True,
    ),
]
