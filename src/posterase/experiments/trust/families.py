"""Families of posteriors that are known exactly, and what is removed from them.

Textbook models of one or two parameters, conjugate models of more, and targets on which methods have failed: supports
that grow or end in an edge, tails that become heavier, bends, modes, and groups that lose all their rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jax.scipy import stats as laws
from jaxtyping import Array, Bool, Float, Int, PyTree
from scipy import stats

from posterase.experiments.trust.exact import (
    Axis,
    Dirichlet,
    Distribution,
    Exact,
    Gaussians,
    GaussiansGiven,
    Independent,
    OnGrid,
    log_posterior,
)
from posterase.model.factorised import Model
from posterase.model.transforms import Simplex, Transform, greater_than, interval

positive = greater_than(0.0)

Data = dict[str, np.ndarray]
Choice = Callable[[np.random.Generator, Data], Int[np.ndarray, " some"]]
"""Which rows to remove."""


def _rows(data: Data) -> int:
    return len(next(iter(data.values())))


def at_random(share: float) -> Choice:
    """A share of the rows, one at least."""

    def choose(random: np.random.Generator, data: Data) -> Int[np.ndarray, " some"]:
        n = _rows(data)
        return random.choice(n, max(1, round(share * n)), replace=False)

    return choose


def all_but(few: int) -> Choice:
    """All rows but a few, picked at random."""

    def choose(random: np.random.Generator, data: Data) -> Int[np.ndarray, " some"]:
        n = _rows(data)
        return random.choice(n, n - few, replace=False)

    return choose


def largest(share: float, of: str = "y") -> Choice:
    """The share of the rows with the largest values."""
    return lambda random, data: np.argsort(data[of])[-max(1, round(share * _rows(data))) :]


def smallest(share: float, of: str = "y") -> Choice:
    """The share of the rows with the smallest values."""
    return lambda random, data: np.argsort(data[of])[: max(1, round(share * _rows(data)))]


def where(condition: Callable[[Data], Bool[np.ndarray, " rows"]], but: int = 0) -> Choice:
    """The rows that fulfil a condition, but for the last few."""

    def choose(random: np.random.Generator, data: Data) -> Int[np.ndarray, " some"]:
        rows = np.flatnonzero(condition(data))
        return rows[: len(rows) - but]

    return choose


REMOVALS: dict[str, Choice] = {
    "one row": at_random(0.0),
    "the largest": largest(0.0),
    "a tenth": at_random(0.1),
    "half": at_random(0.5),
    "the largest fifth": largest(0.2),
    "the smaller half": smallest(0.5),
    "all but four": all_but(4),
}
"""What is removed from every family."""


@dataclasses.dataclass(frozen=True)
class Family:
    """A model, data for it, its exact posteriors, and what is removed."""

    name: str
    log_prior: Callable[[PyTree], Array]
    log_likelihood: Callable[[PyTree, PyTree], Array]
    make: Callable[[np.random.Generator], Data]
    posterior: Callable[[Data, Bool[np.ndarray, " rows"]], Exact]
    """Given data and which rows are kept."""
    transforms: dict[str, Transform] = dataclasses.field(default_factory=dict)
    changes: dict[str, Choice] = dataclasses.field(default_factory=lambda: dict(REMOVALS))
    has_moments: bool = True
    """Whether means and standard deviations exist for any rows kept; else quantiles are compared alone."""

    def model(self, data: Data) -> Model:
        """As a user writes it."""
        return Model(
            self.log_prior,
            self.log_likelihood,
            {name: jnp.asarray(each) for name, each in data.items()},
            transforms=self.transforms,
        )


def _on_grid(
    name: str,
    log_prior: Callable[[PyTree], Array],
    log_likelihood: Callable[[PyTree, PyTree], Array],
    make: Callable[[np.random.Generator], Data],
    axes: Mapping[str, Axis] | Callable[[Data, Bool[np.ndarray, " rows"]], Mapping[str, Axis]],
    transforms: dict[str, Transform] | None = None,
    more: Mapping[str, Choice] | None = None,
    **rest: Any,
) -> Family:
    """A family of one or two scalars, whose posteriors are on a grid."""
    maps = transforms or {}
    programs: dict[tuple[str, ...], Any] = {}

    def posterior(data: Data, kept: Bool[np.ndarray, " rows"]) -> Exact:
        ranges = axes(data, kept) if callable(axes) else axes
        names = tuple(ranges)
        if names not in programs:
            programs[names] = log_posterior(log_prior, log_likelihood, maps, names)
        return OnGrid(programs[names](data, kept), names, maps, ranges)

    changes = {**REMOVALS, **(more or {})}
    return Family(name, log_prior, log_likelihood, make, posterior, maps, changes, **rest)


def _floats(**arrays: Any) -> Data:
    return {name: np.asarray(each, np.float32) for name, each in arrays.items()}


def _covariate(random: np.random.Generator, n: int) -> Float[np.ndarray, " n"]:
    return np.round(random.normal(size=n), 2)


WIDE = Axis.of(-60, 60)
LOG = Axis.of(-12, 12)
HEAVY = Axis.of(-1e7, 1e7)
SEPARATED = Axis.of(-1e5, 1e5)


def _scalars() -> list[Family]:
    """One parameter."""

    def normal_data(random: np.random.Generator) -> Data:
        return _floats(y=random.normal(random.normal(), 1, 60))

    def count_data(random: np.random.Generator) -> Data:
        return _floats(y=random.poisson(random.gamma(4, 1), 40))

    def coin_data(random: np.random.Generator) -> Data:
        return _floats(y=random.uniform(size=40) < random.beta(2, 2))

    def waiting_data(random: np.random.Generator) -> Data:
        return _floats(y=random.exponential(random.uniform(0.5, 5), 40))

    def uniform_data(random: np.random.Generator) -> Data:
        return _floats(y=random.uniform(0, random.uniform(2, 6), 30))

    def above_zero(random: np.random.Generator) -> Data:
        return _floats(y=random.normal(random.uniform(0, 0.5), 1, 20))

    def cauchy_data(random: np.random.Generator) -> Data:
        return _floats(y=random.standard_cauchy(25) + random.normal())

    def clusters(random: np.random.Generator) -> Data:
        return _floats(y=np.concatenate([random.normal(0, 1, 20), random.normal(random.uniform(6, 12), 1, 12)]))

    def squares(random: np.random.Generator) -> Data:
        return _floats(y=random.normal(random.uniform(0.3, 4), 1, 30))

    def laplace_data(random: np.random.Generator) -> Data:
        return _floats(y=random.laplace(random.normal(), 1, 40))

    def directions(random: np.random.Generator) -> Data:
        return _floats(y=random.vonmises(random.uniform(-1, 1), 1.5, 40))

    def uniform_axes(data: Data, kept: Bool[np.ndarray, " rows"]) -> dict[str, Axis]:
        return {"theta": Axis.of(float(np.log(data["y"][kept].max())), 10.0)}

    return [
        _on_grid(
            "normal mean",
            lambda p: laws.norm.logpdf(p["mu"], 0, 10),
            lambda p, d: laws.norm.logpdf(d["y"], p["mu"], 1),
            normal_data,
            {"mu": WIDE},
        ),
        _on_grid(
            "Poisson rate",
            lambda p: laws.gamma.logpdf(p["rate"], 1, scale=5),
            lambda p, d: d["y"] * jnp.log(p["rate"]) - p["rate"] - special.gammaln(d["y"] + 1),
            count_data,
            {"rate": LOG},
            {"rate": positive},
        ),
        _on_grid(
            "Bernoulli",
            lambda p: jnp.zeros(()) * p["p"],
            lambda p, d: d["y"] * jnp.log(p["p"]) + (1 - d["y"]) * jnp.log1p(-p["p"]),
            coin_data,
            {"p": Axis.of(-30, 30)},
            {"p": interval(0.0, 1.0)},
            {"all successes but one": where(lambda d: d["y"] == 1, but=1)},
        ),
        _on_grid(
            "exponential rate",
            lambda p: laws.gamma.logpdf(p["rate"], 2, scale=1),
            lambda p, d: jnp.log(p["rate"]) - p["rate"] * d["y"],
            waiting_data,
            {"rate": LOG},
            {"rate": positive},
        ),
        _on_grid(
            "uniform, the support grows",
            lambda p: laws.gamma.logpdf(p["theta"], 2, scale=5),
            lambda p, d: jnp.where(d["y"] <= p["theta"], -jnp.log(p["theta"]), -jnp.inf),
            uniform_data,
            uniform_axes,
            {"theta": positive},
            {"the five largest": largest(5 / 30)},
        ),
        _on_grid(
            "prior with an edge, no transform",
            lambda p: jnp.where((p["mu"] > 0) & (p["mu"] < 5), 0.0, -jnp.inf),
            lambda p, d: laws.norm.logpdf(d["y"], p["mu"], 1),
            above_zero,
            {"mu": Axis.of(0, 5, 2.5, 10)},
        ),
        _on_grid(
            "Cauchy location",
            lambda p: laws.cauchy.logpdf(p["m"], 0, 10),
            lambda p, d: laws.cauchy.logpdf(d["y"], p["m"], 1),
            cauchy_data,
            {"m": HEAVY},
            has_moments=False,
        ),
        _on_grid(
            "two clusters, t₂ location",
            lambda p: laws.norm.logpdf(p["m"], 0, 20),
            lambda p, d: laws.t.logpdf(d["y"], 2, p["m"], 1),
            clusters,
            {"m": Axis.of(-200, 200)},
            more={
                "a third of the larger": where(lambda d: d["y"] < 4, but=13),
                "half of the larger": where(lambda d: d["y"] < 4, but=9),
                "most of the larger": where(lambda d: d["y"] < 4, but=4),
                "all of the smaller": where(lambda d: d["y"] > 4),
            },
        ),
        _on_grid(
            "square, two modes",
            lambda p: laws.norm.logpdf(p["root"], 0, 3),
            lambda p, d: laws.norm.logpdf(d["y"], p["root"] ** 2, 1),
            squares,
            {"root": Axis.of(-20, 20)},
        ),
        _on_grid(
            "Laplace location",
            lambda p: laws.norm.logpdf(p["m"], 0, 10),
            lambda p, d: -jnp.abs(d["y"] - p["m"]),
            laplace_data,
            {"m": WIDE},
        ),
        _on_grid(
            "von Mises direction",
            lambda p: jnp.zeros(()) * p["mu"],
            lambda p, d: 1.5 * jnp.cos(d["y"] - p["mu"]),
            directions,
            {"mu": Axis.of(-30, 30)},
            {"mu": interval(-np.pi, np.pi)},
        ),
    ]


def _pairs() -> list[Family]:
    """Two parameters."""

    def normal_data(random: np.random.Generator) -> Data:
        return _floats(y=random.normal(random.normal(), random.uniform(0.5, 4), 50))

    def shifted(random: np.random.Generator) -> Data:
        return _floats(y=random.normal() + random.exponential(random.uniform(0.5, 2), 40))

    def shifted_axes(data: Data, kept: Bool[np.ndarray, " rows"]) -> dict[str, Axis]:
        edge = float(data["y"][kept].min())
        return {"start": Axis.of(edge - 60, edge, edge, 0.01), "rate": LOG}

    def rare_outcomes(random: np.random.Generator) -> Data:
        x = _covariate(random, 40)
        return _floats(x=x, y=random.uniform(size=40) < special.expit(-1 + 0.8 * x))

    def separable(random: np.random.Generator) -> Data:
        x = np.sort(_covariate(random, 40))
        y = x > 0.2
        y[[12, 15, 30, 33]] ^= True
        return _floats(x=x, y=y, against=y != (x > 0.2))

    def products(random: np.random.Generator) -> Data:
        return _floats(y=random.normal(random.uniform(0.5, 2), 1, 40))

    def lifetimes(random: np.random.Generator) -> Data:
        t = random.weibull(1.5, 40) * 3
        return _floats(y=np.minimum(t, 2.0), seen=t < 2.0)

    def gammas(random: np.random.Generator) -> Data:
        return _floats(y=random.gamma(random.uniform(0.7, 4), 1.5, 50))

    def overdispersed(random: np.random.Generator) -> Data:
        return _floats(y=random.poisson(random.gamma(1.5, 3, 50)))

    def betas(random: np.random.Generator) -> Data:
        return _floats(y=np.clip(random.beta(2, random.uniform(1, 5), 40), 0.001, 0.999))

    def probits(random: np.random.Generator) -> Data:
        x = _covariate(random, 60)
        return _floats(x=x, y=random.normal(size=60) < 0.3 + x)

    def counts(random: np.random.Generator) -> Data:
        x = _covariate(random, 50)
        return _floats(x=x, y=random.poisson(np.exp(1 + 0.4 * x)))

    def outliers(random: np.random.Generator) -> Data:
        x = _covariate(random, 40)
        y = 1 + x + 0.5 * random.standard_t(3, 40)
        y[:3] += 8
        return _floats(x=x, y=y)

    def two_components(random: np.random.Generator) -> Data:
        return _floats(y=np.where(random.uniform(size=50) < 0.4, -1.5, 1.5) + random.normal(size=50))

    def weak_effect(random: np.random.Generator) -> Data:
        x = _covariate(random, 40)
        return _floats(x=x, y=random.uniform(0, 1.5) * x + random.normal(size=40))

    def funnel_data(random: np.random.Generator) -> Data:
        return _floats(y=random.normal(random.normal(0, 2), 1, 20))

    def many_zeros(random: np.random.Generator) -> Data:
        return _floats(y=random.poisson(3, 50) * (random.uniform(size=50) < 0.7))

    def uneven(random: np.random.Generator) -> Data:
        x = _covariate(random, 60)
        return _floats(x=x, y=random.normal(size=60) * np.exp(0.3 + 0.5 * x))

    def extremes(random: np.random.Generator) -> Data:
        return _floats(y=random.gumbel(2, 1.5, 40))

    def bent(random: np.random.Generator) -> Data:
        x = _covariate(random, 30)
        return _floats(x=x, y=random.normal(0.5, 1, 30))

    def mean_and_log(p: PyTree) -> Array:
        return laws.norm.logpdf(p["mu"], 0, 10) + laws.norm.logpdf(p["sigma"], 0, 5)

    def weibull(p: PyTree, d: PyTree) -> Array:
        hazard = jnp.log(p["shape"]) - jnp.log(p["scale"]) + (p["shape"] - 1) * jnp.log(d["y"] / p["scale"])
        return d["seen"] * hazard - (d["y"] / p["scale"]) ** p["shape"]

    def logistic(p: PyTree, d: PyTree) -> Array:
        return -jnp.logaddexp(0.0, jnp.where(d["y"] > 0, -1.0, 1.0) * (p["a"] + p["b"] * d["x"]))

    def negative_binomial(p: PyTree, d: PyTree) -> Array:
        m, r, y = p["mean"], p["size"], d["y"]
        choose = special.gammaln(y + r) - special.gammaln(r) - special.gammaln(y + 1)
        return choose + r * jnp.log(r / (r + m)) + y * jnp.log(m / (r + m))

    def zero_inflated(p: PyTree, d: PyTree) -> Array:
        poisson = d["y"] * jnp.log(p["rate"]) - p["rate"] - special.gammaln(d["y"] + 1)
        zero = jnp.log(p["share"] + (1 - p["share"]) * jnp.exp(-p["rate"]))
        return jnp.where(d["y"] == 0, zero, jnp.log1p(-p["share"]) + poisson)

    def component(p: PyTree, d: PyTree) -> Array:
        each = [jnp.log(w) + laws.norm.logpdf(d["y"], p[name], 1) for w, name in ((0.5, "one"), (0.5, "other"))]
        return jnp.logaddexp(*each)

    both_normal = {"a": Axis.of(-80, 80), "b": Axis.of(-80, 80)}
    events = where(lambda d: d["seen"] == 1, but=2)
    return [
        _on_grid(
            "normal mean and spread",
            mean_and_log,
            lambda p, d: laws.norm.logpdf(d["y"], p["mu"], p["sigma"]),
            normal_data,
            {"mu": WIDE, "sigma": LOG},
            {"sigma": positive},
        ),
        _on_grid(
            "shifted exponential, an edge",
            lambda p: laws.norm.logpdf(p["start"], 0, 10) + laws.gamma.logpdf(p["rate"], 2, scale=1),
            lambda p, d: jnp.where(
                d["y"] >= p["start"], jnp.log(p["rate"]) - p["rate"] * (d["y"] - p["start"]), -jnp.inf
            ),
            shifted,
            shifted_axes,
            {"rate": positive},
            {"the six largest": largest(6 / 40)},
        ),
        _on_grid(
            "logistic, Cauchy priors",
            lambda p: laws.cauchy.logpdf(p["a"], 0, 10) + laws.cauchy.logpdf(p["b"], 0, 2.5),
            logistic,
            rare_outcomes,
            {"a": SEPARATED, "b": SEPARATED},
            more={"all successes but one": where(lambda d: d["y"] == 1, but=1)},
            has_moments=False,
        ),
        _on_grid(
            "logistic, t₇ priors, separation",
            lambda p: laws.t.logpdf(p["a"], 7, 0, 2.5) + laws.t.logpdf(p["b"], 7, 0, 2.5),
            logistic,
            separable,
            {"a": Axis.of(-1e3, 1e3), "b": Axis.of(-1e3, 1e3)},
            more={"separated": where(lambda d: d["against"] == 1)},
        ),
        _on_grid(
            "logistic, normal priors, separation",
            lambda p: laws.norm.logpdf(p["a"], 0, 10) + laws.norm.logpdf(p["b"], 0, 10),
            logistic,
            separable,
            both_normal,
            more={"separated": where(lambda d: d["against"] == 1)},
        ),
        _on_grid(
            "product, bent",
            lambda p: laws.norm.logpdf(p["a"], 0, 3) + laws.norm.logpdf(p["b"], 0, 3),
            lambda p, d: laws.norm.logpdf(d["y"], p["a"] * p["b"], 1),
            products,
            {"a": LOG, "b": WIDE},
            {"a": positive},
        ),
        _on_grid(
            "bent line",
            lambda p: laws.norm.logpdf(p["a"], 0, 3) + laws.norm.logpdf(p["b"], 0, 3),
            lambda p, d: laws.norm.logpdf(d["y"], p["a"] + p["b"] ** 2, 1),
            bent,
            both_normal,
        ),
        _on_grid(
            "Weibull, censored",
            lambda p: laws.gamma.logpdf(p["shape"], 2, scale=1) + laws.norm.logpdf(jnp.log(p["scale"]), 0, 3),
            weibull,
            lifetimes,
            {"shape": LOG, "scale": Axis.of(-40, 40)},
            {"shape": positive, "scale": positive},
            {"most events": events},
            has_moments=False,
        ),
        _on_grid(
            "gamma",
            lambda p: laws.gamma.logpdf(p["shape"], 2, scale=2) + laws.gamma.logpdf(p["rate"], 2, scale=2),
            lambda p, d: (
                p["shape"] * jnp.log(p["rate"])
                - special.gammaln(p["shape"])
                + (p["shape"] - 1) * jnp.log(d["y"])
                - p["rate"] * d["y"]
            ),
            gammas,
            {"shape": LOG, "rate": LOG},
            {"shape": positive, "rate": positive},
        ),
        _on_grid(
            "negative binomial",
            lambda p: laws.gamma.logpdf(p["mean"], 2, scale=5) + laws.gamma.logpdf(p["size"], 2, scale=2),
            negative_binomial,
            overdispersed,
            {"mean": LOG, "size": LOG},
            {"mean": positive, "size": positive},
        ),
        _on_grid(
            "beta",
            lambda p: laws.gamma.logpdf(p["a"], 2, scale=2) + laws.gamma.logpdf(p["b"], 2, scale=2),
            lambda p, d: (
                (p["a"] - 1) * jnp.log(d["y"]) + (p["b"] - 1) * jnp.log1p(-d["y"]) - special.betaln(p["a"], p["b"])
            ),
            betas,
            {"a": LOG, "b": LOG},
            {"a": positive, "b": positive},
        ),
        _on_grid(
            "probit",
            lambda p: laws.norm.logpdf(p["a"], 0, 2) + laws.norm.logpdf(p["b"], 0, 2),
            lambda p, d: laws.norm.logcdf(jnp.where(d["y"] > 0, 1.0, -1.0) * (p["a"] + p["b"] * d["x"])),
            probits,
            both_normal,
        ),
        _on_grid(
            "Poisson regression",
            lambda p: laws.norm.logpdf(p["a"], 0, 3) + laws.norm.logpdf(p["b"], 0, 3),
            lambda p, d: d["y"] * (p["a"] + p["b"] * d["x"]) - jnp.exp(p["a"] + p["b"] * d["x"]),
            counts,
            {"a": Axis.of(-40, 40), "b": Axis.of(-40, 40)},
        ),
        _on_grid(
            "t₃ regression, outliers",
            lambda p: laws.norm.logpdf(p["a"], 0, 10) + laws.norm.logpdf(p["b"], 0, 10),
            lambda p, d: laws.t.logpdf(d["y"], 3, p["a"] + p["b"] * d["x"], 0.5),
            outliers,
            both_normal,
        ),
        _on_grid(
            "two components",
            lambda p: laws.norm.logpdf(p["one"], 0, 4) + laws.norm.logpdf(p["other"], 0, 4),
            component,
            two_components,
            {"one": Axis.of(-40, 40), "other": Axis.of(-40, 40)},
        ),
        _on_grid(
            "horseshoe coefficient",
            lambda p: laws.norm.logpdf(p["z"]) + laws.cauchy.logpdf(p["scale"]),
            lambda p, d: laws.norm.logpdf(d["y"], p["z"] * p["scale"] * d["x"], 1),
            weak_effect,
            {"z": Axis.of(-12, 12), "scale": Axis.of(-45, 45)},
            {"scale": positive},
            has_moments=False,
        ),
        _on_grid(
            "funnel",
            lambda p: laws.norm.logpdf(p["v"], 0, 2) + laws.norm.logpdf(p["x"], 0, jnp.exp(p["v"] / 2)),
            lambda p, d: laws.norm.logpdf(d["y"], p["x"], 2),
            funnel_data,
            {"v": Axis.of(-25, 25), "x": Axis.of(-1e4, 1e4, 0.0, 0.01)},
        ),
        _on_grid(
            "zero-inflated Poisson",
            lambda p: laws.gamma.logpdf(p["rate"], 2, scale=3) + 0 * p["share"],
            zero_inflated,
            many_zeros,
            {"share": Axis.of(-30, 30), "rate": LOG},
            {"share": interval(0.0, 1.0), "rate": positive},
        ),
        _on_grid(
            "uneven spread",
            lambda p: laws.norm.logpdf(p["a"], 0, 2) + laws.norm.logpdf(p["b"], 0, 2),
            lambda p, d: laws.norm.logpdf(d["y"], 0, jnp.exp(p["a"] + p["b"] * d["x"])),
            uneven,
            both_normal,
        ),
        _on_grid(
            "Gumbel",
            lambda p: laws.norm.logpdf(p["m"], 0, 5) + laws.gamma.logpdf(p["s"], 2, scale=1),
            lambda p, d: -(d["y"] - p["m"]) / p["s"] - jnp.exp(-(d["y"] - p["m"]) / p["s"]) - jnp.log(p["s"]),
            extremes,
            {"m": WIDE, "s": LOG},
            {"s": positive},
        ),
    ]


def _vectors() -> list[Family]:
    """More parameters, in closed form."""
    width, groups = 5, 6

    def regression_data(random: np.random.Generator) -> Data:
        x = np.concatenate([np.ones((60, 1)), random.normal(size=(60, width - 1))], axis=1)
        return _floats(x=x, y=x @ random.normal(size=width) + random.normal(size=60))

    def regression(data: Data, kept: Bool[np.ndarray, " rows"]) -> Exact:
        x, y = (data[name][kept].astype(np.float64) for name in "xy")
        precision = x.T @ x + np.eye(width) / 9
        covariance = np.linalg.inv(precision)
        mean, root = covariance @ (x.T @ y), np.linalg.cholesky(covariance)
        return Gaussians({"b": slice(0, width)}, mean[None], root[None])

    def unknown_spread(data: Data, kept: Bool[np.ndarray, " rows"]) -> Exact:
        """σ² ~ inverse gamma(3, 2), b | σ ~ N(0, 9 σ²)."""
        x, y = (data[name][kept].astype(np.float64) for name in "xy")
        covariance = np.linalg.inv(x.T @ x + np.eye(width) / 9)
        mean = covariance @ (x.T @ y)
        shape, rate = 3 + len(y) / 2, 2 + (y @ y - mean @ np.linalg.solve(covariance, mean)) / 2
        law = stats.invgamma(shape, scale=rate)
        edges = np.log(law.ppf(np.concatenate([[1e-9], np.linspace(0, 1, 4001)[1:-1], [1 - 1e-9]]))) / 2
        sigma = np.exp((edges[1:] + edges[:-1]) / 2)
        roots = sigma[:, None, None] * np.linalg.cholesky(covariance)
        mass = np.diff(law.cdf(np.exp(2 * edges)))
        means = np.tile(mean, (len(sigma), 1))
        return GaussiansGiven("sigma", edges, np.exp, {"b": slice(0, width)}, means, roots, mass / mass.sum())

    def by_group(random: np.random.Generator) -> Data:
        g = np.repeat(np.arange(groups), 8)
        return {"g": g, **_floats(y=random.poisson(random.gamma(3, 1, groups)[g]))}

    def rates(data: Data, kept: Bool[np.ndarray, " rows"]) -> Exact:
        parts: list[Exact] = []
        for group in range(groups):
            own = data["y"][kept & (data["g"] == group)]
            parts.append(Distribution("rate", stats.gamma(2 + own.sum(dtype=np.float64), scale=1 / (0.5 + len(own)))))
        return Independent("rate", parts)

    def heavy_by_group(random: np.random.Generator) -> Data:
        g = np.repeat(np.arange(groups), 6)
        return {"g": g, **_floats(y=random.normal(random.standard_t(2, groups)[g], 1))}

    heavy = log_posterior(
        lambda p: laws.cauchy.logpdf(p["m"], 0, 1), lambda p, d: laws.norm.logpdf(d["y"], p["m"], 1), {}, ("m",)
    )

    def heavy_means(data: Data, kept: Bool[np.ndarray, " rows"]) -> Exact:
        each = [heavy(data, kept & (data["g"] == group)) for group in range(groups)]
        return Independent("m", [OnGrid(one, ("m",), {}, {"m": HEAVY}) for one in each])

    def schools(random: np.random.Generator) -> Data:
        g = np.repeat(np.arange(groups), 8)
        return {"g": g, **_floats(y=random.normal(random.normal(1, 1, groups)[g], 2))}

    def hierarchy(data: Data, kept: Bool[np.ndarray, " rows"]) -> Exact:
        """μ ~ N(0, 5), log τ ~ N(0, 1), θ ~ N(μ, τ), y ~ N(θ, 2)."""
        edges = np.linspace(-6, 6, 3001)
        tau = np.exp((edges[1:] + edges[:-1]) / 2)
        n = np.array([(kept & (data["g"] == group)).sum() for group in range(groups)])
        total = np.array([data["y"][kept & (data["g"] == group)].sum(dtype=np.float64) for group in range(groups)])
        # The precision of (μ, θ₁, …) given τ, and what multiplies it.
        k = len(tau)
        precision = np.zeros((k, groups + 1, groups + 1))
        inner = np.arange(1, groups + 1)
        precision[:, 0, 0] = 1 / 25 + groups / tau**2
        precision[:, inner, inner] = n / 4 + 1 / tau[:, None] ** 2
        precision[:, 0, inner] = precision[:, inner, 0] = -1 / tau[:, None] ** 2
        covariance = np.linalg.inv(precision)
        linear = np.concatenate([[0.0], total / 4])
        means = covariance @ linear
        log_mass = -0.5 * np.log(tau) ** 2 - groups * np.log(tau)
        log_mass += 0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * means @ linear
        mass = np.exp(log_mass - log_mass.max())
        columns: dict[str, int | slice] = {"mu": 0, "theta": slice(1, None)}
        roots = np.linalg.cholesky(covariance)
        return GaussiansGiven("tau", edges, np.exp, columns, means, roots, mass / mass.sum())

    def whole_group(random: np.random.Generator, data: Data) -> Int[np.ndarray, " some"]:
        return np.flatnonzero(data["g"] == random.integers(groups))

    def votes(random: np.random.Generator) -> Data:
        return {"y": random.choice(4, 60, p=random.dirichlet(np.full(4, 2.0)))}

    def dirichlet(data: Data, kept: Bool[np.ndarray, " rows"]) -> Exact:
        return Dirichlet("p", 1.0 + np.bincount(data["y"][kept], minlength=4))

    in_groups = {**REMOVALS, "a whole group": whole_group}
    return [
        Family(
            "linear regression",
            lambda p: laws.norm.logpdf(p["b"], 0, 3).sum(),
            lambda p, d: laws.norm.logpdf(d["y"], d["x"] @ p["b"], 1),
            regression_data,
            regression,
        ),
        Family(
            "linear regression, unknown spread",
            lambda p: (
                laws.norm.logpdf(p["b"], 0, 3 * p["sigma"]).sum()
                - 2 * 3 * jnp.log(p["sigma"])
                - jnp.log(p["sigma"])
                - 2 / p["sigma"] ** 2
            ),
            lambda p, d: laws.norm.logpdf(d["y"], d["x"] @ p["b"], p["sigma"]),
            regression_data,
            unknown_spread,
            {"sigma": positive},
        ),
        Family(
            "Poisson rates of groups",
            lambda p: laws.gamma.logpdf(p["rate"], 2, scale=2).sum(),
            lambda p, d: d["y"] * jnp.log(p["rate"][d["g"]]) - p["rate"][d["g"]],
            by_group,
            rates,
            {"rate": positive},
            in_groups,
        ),
        Family(
            "Cauchy group means",
            lambda p: laws.cauchy.logpdf(p["m"], 0, 1).sum(),
            lambda p, d: laws.norm.logpdf(d["y"], p["m"][d["g"]], 1),
            heavy_by_group,
            heavy_means,
            changes=in_groups,
            has_moments=False,
        ),
        Family(
            "hierarchy of normal groups",
            lambda p: (
                laws.norm.logpdf(p["mu"], 0, 5)
                + laws.norm.logpdf(jnp.log(p["tau"]), 0, 1)
                - jnp.log(p["tau"])
                + laws.norm.logpdf(p["theta"], p["mu"], p["tau"]).sum()
            ),
            lambda p, d: laws.norm.logpdf(d["y"], p["theta"][d["g"]], 2),
            schools,
            hierarchy,
            {"tau": positive},
            in_groups,
        ),
        Family(
            "shares of four",
            lambda p: 0 * p["p"].sum(),
            lambda p, d: jnp.log(p["p"])[d["y"]],
            votes,
            dirichlet,
            {"p": Simplex()},
            {name: REMOVALS[name] for name in ("one row", "a tenth", "half", "all but four")}
            | {"all of a kind": where(lambda d: d["y"] == 0)},
        ),
    ]


@functools.cache
def families() -> tuple[Family, ...]:
    """All of them."""
    return (*_scalars(), *_pairs(), *_vectors())
