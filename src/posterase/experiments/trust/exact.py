"""Posteriors that are known exactly: independent draws of them, and means, spreads and quantiles of every parameter.

In one or two dimensions the density is evaluated on a fine grid, in float64, from the family's own functions and with
none of the machinery of models and changes. Elsewhere there are closed forms, or independent parameters that have a
grid each, or parameters that are Gaussian given one that has a grid.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from scipy import optimize, stats

from posterase.model.transforms import Identity, Transform
from posterase.runtime.precision import as_jax

PROBABILITIES = np.array([0.05, 0.25, 0.5, 0.75, 0.95])

ALONG = {1: 8001, 2: 501}
"""Points of the last grid along each parameter, by the number of parameters."""

ZOOMS = 400.0, 200.0, 100.0, 60.0, 45.0, 40.0
"""Each grid covers what is within so much of the highest log density on the one before."""

COARSE = 0.6
"""Points of the first grids, as a share of those of the last."""

MOST_ERROR = 0.01
"""Leaving out every second point of a grid changes no mean or spread by more than so many standard deviations."""

BATCH = 2**15


class Marginal(NamedTuple):
    """What is known of one number of a posterior."""

    name: str
    at: tuple[int, ...]
    quantiles: Float[np.ndarray, " 5"]
    """At `PROBABILITIES`."""
    mean: float
    sd: float
    kurtosis: float
    """E(x − mean)⁴ / sd⁴: how well a sample's standard deviation is known."""

    @classmethod
    def of(
        cls, name: str, quantiles: Float[np.ndarray, " 5"], x: Float[np.ndarray, " n"], mass: Float[np.ndarray, " n"]
    ) -> Marginal:
        """From values with their probabilities."""
        mean = float(mass @ x)
        variance = float(mass @ (x - mean) ** 2)
        return cls(name, (), quantiles, mean, float(np.sqrt(variance)), float(mass @ (x - mean) ** 4) / variance**2)


class Exact(abc.ABC):
    """A posterior."""

    @abc.abstractmethod
    def sample(self, random: np.random.Generator, n: int) -> dict[str, Float[np.ndarray, "n ..."]]:
        """Independent draws."""

    @abc.abstractmethod
    def marginals(self) -> list[Marginal]:
        """Of every number."""


class Axis(NamedTuple):
    """One parameter's part of a grid: u = centre + scale · sinh(v), with v evenly spaced.

    Far out its steps are a share of the distance, so that heavy tails cost few points.
    """

    low: float
    high: float
    centre: float
    scale: float

    @classmethod
    def of(cls, low: float, high: float, centre: float = 0.0, scale: float = 1.0) -> Axis:
        """Between two values of u."""
        start, end = (float(np.arcsinh((value - centre) / scale)) for value in (low, high))
        return cls(start, end, centre, scale)

    def middles(self, count: int) -> Float[np.ndarray, " count"]:
        """The middles of its cells, as values of v."""
        edges = np.linspace(self.low, self.high, count + 1)
        return (edges[1:] + edges[:-1]) / 2

    def at(self, v: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """u at v."""
        return self.centre + self.scale * np.sinh(v)

    def log_slope(self, v: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """log du/dv."""
        return np.log(self.scale * np.cosh(v))

    def narrowed(self, low: float, high: float) -> Axis:
        """The same map between two values of v, within what it covers."""
        return self._replace(low=max(self.low, low), high=min(self.high, high))


LogPosterior = Callable[[Float[np.ndarray, "n d"]], Float[np.ndarray, " n"]]


def log_posterior(
    log_prior: Callable[[PyTree], Array],
    log_likelihood: Callable[[PyTree, PyTree], Array],
    transforms: Mapping[str, Transform],
    names: tuple[str, ...],
) -> Callable[[Mapping[str, np.ndarray], Bool[np.ndarray, " rows"]], LogPosterior]:
    """The log density of unconstrained scalars, given data and which of the rows are there: one program for all."""

    def at(u: Array, data: PyTree, kept: Array) -> Array:
        params, slopes = {}, jnp.zeros(())
        for name, value in zip(names, u, strict=True):
            transform = transforms.get(name, Identity())
            params[name] = transform.forward(value)
            slopes += transform.log_det_jacobian(value)
        rows = jnp.where(kept, log_likelihood(params, data), 0.0)
        return log_prior(params) + rows.sum() + slopes

    @jax.jit
    def run(points: Array, data: PyTree, kept: Array) -> Array:
        return jax.lax.map(lambda u: at(u, data, kept), points, batch_size=256)

    def given(data: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " rows"]) -> LogPosterior:
        def evaluate(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
            found = []
            with jax.enable_x64(True):
                wide = {name: as_jax(np.asarray(each), _widest(each)) for name, each in data.items()}
                for start in range(0, len(points), BATCH):
                    some = points[start : start + BATCH]
                    padded = np.pad(some, ((0, BATCH - len(some)), (0, 0)), mode="edge") if start else some
                    found.append(np.asarray(run(as_jax(padded, np.float64), wide, as_jax(kept)))[: len(some)])
            values = np.concatenate(found)
            return np.where(np.isnan(values), -np.inf, values)

        return evaluate

    return given


def _widest(values: np.ndarray) -> type:
    return np.float64 if np.issubdtype(np.asarray(values).dtype, np.floating) else np.int64


class OnGrid(Exact):
    """A posterior of one or two scalars, on a grid."""

    def __init__(
        self,
        density: LogPosterior,
        names: tuple[str, ...],
        transforms: Mapping[str, Transform],
        axes: Mapping[str, Axis],
    ):
        self.density, self.names = density, names
        self.transforms = [transforms.get(name, Identity()) for name in names]
        self.axes = [axes[name] for name in names]
        last = ALONG[len(names)]
        for zoom in ZOOMS:
            self._evaluate(int(COARSE * last))
            self._zoom(zoom)
        self._evaluate(last)
        self._check()

    def _evaluate(self, count: int) -> None:
        self.v = [axis.middles(count) for axis in self.axes]
        grid = np.meshgrid(*self.v, indexing="ij")
        points = np.stack([axis.at(v).ravel() for axis, v in zip(self.axes, grid, strict=True)], axis=1)
        slopes = sum(axis.log_slope(v) for axis, v in zip(self.axes, grid, strict=True))
        self.log_mass = self.density(points).reshape(grid[0].shape) + slopes
        self.mass = np.exp(self.log_mass - self.log_mass.max())
        self.mass /= self.mass.sum()

    def _zoom(self, within: float) -> None:
        inside = self.log_mass > self.log_mass.max() - within
        for number, axis in enumerate(self.axes):
            others = tuple(other for other in range(len(self.axes)) if other != number)
            at = np.flatnonzero(inside.any(axis=others))
            step = self.v[number][1] - self.v[number][0]
            low, high = self.v[number][at[0]] - 1.5 * step, self.v[number][at[-1]] + 1.5 * step
            self.axes[number] = axis.narrowed(low, high)

    def _check(self) -> None:
        for number, marginal in enumerate(self.marginals()):
            half = self.mass[tuple(slice(None, None, 2) for _ in self.v)]
            others = tuple(other for other in range(len(self.v)) if other != number)
            mass = half.sum(axis=others) / half.sum()
            u = self.axes[number].at(self.v[number][::2])
            fine = self.mass.sum(axis=others)
            mean, middle = mass @ u, fine @ self.axes[number].at(self.v[number])
            spread = np.sqrt(fine @ (self.axes[number].at(self.v[number]) - middle) ** 2)
            if not abs(mean - middle) <= MOST_ERROR * spread:
                raise AssertionError(f"the grid is too coarse for {marginal.name}")

    def _forward(self, number: int, u: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        with jax.enable_x64(True):
            return np.asarray(self.transforms[number].forward(as_jax(u, np.float64)))

    def sample(self, random: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        cells = random.choice(self.mass.size, n, p=self.mass.ravel())
        places = np.stack(np.unravel_index(cells, self.mass.shape), axis=1)
        u = np.empty((n, len(self.axes)))
        outside = np.ones(n, bool)
        while outside.any():  # a cell on an edge of the support is not inside it everywhere
            for number, (axis, v) in enumerate(zip(self.axes, self.v, strict=True)):
                jitter = random.uniform(-0.5, 0.5, outside.sum()) * (v[1] - v[0])
                u[outside, number] = np.asarray(axis.at(v[places[outside, number]] + jitter), np.float32)
            outside = ~np.isfinite(self.density(u))
        return {name: self._forward(number, u[:, number]) for number, name in enumerate(self.names)}

    def marginals(self) -> list[Marginal]:
        found = []
        for number, name in enumerate(self.names):
            others = tuple(other for other in range(len(self.axes)) if other != number)
            mass, v = self.mass.sum(axis=others), self.v[number]
            x = self._forward(number, self.axes[number].at(v))
            below = np.concatenate([[0.0], np.cumsum(mass)])
            edges = np.append(v - (v[1] - v[0]) / 2, v[-1] + (v[1] - v[0]) / 2)
            at = self.axes[number].at(np.interp(PROBABILITIES, below, edges))
            found.append(Marginal.of(name, self._forward(number, at), x, mass))
        return found


class Independent(Exact):
    """A vector of numbers that are independent of each other."""

    def __init__(self, name: str, parts: list[Exact]):
        self.name, self.parts = name, parts

    def sample(self, random: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        drawn = [next(iter(part.sample(random, n).values())) for part in self.parts]
        return {self.name: np.stack(drawn, axis=1)}

    def marginals(self) -> list[Marginal]:
        each = [part.marginals()[0] for part in self.parts]
        return [one._replace(name=self.name, at=(number,)) for number, one in enumerate(each)]


class Distribution(Exact):
    """One number, of one of scipy's distributions."""

    def __init__(self, name: str, law: stats.distributions.rv_frozen):
        self.name, self.law = name, law

    def sample(self, random: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        return {self.name: self.law.rvs(n, random_state=random)}

    def marginals(self) -> list[Marginal]:
        mean, variance, _, excess = map(float, self.law.stats("mvsk"))
        return [Marginal(self.name, (), self.law.ppf(PROBABILITIES), mean, variance**0.5, 3 + excess)]


class Dirichlet(Exact):
    """Shares that add up to one."""

    def __init__(self, name: str, counts: Float[np.ndarray, " k"]):
        self.name, self.counts = name, counts

    def sample(self, random: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        return {self.name: random.dirichlet(self.counts, n)}

    def marginals(self) -> list[Marginal]:
        rest = self.counts.sum() - self.counts
        laws = [Distribution(self.name, stats.beta(*each)) for each in zip(self.counts, rest, strict=True)]
        return [law.marginals()[0]._replace(at=(number,)) for number, law in enumerate(laws)]


class Gaussians(Exact):
    """A mixture of Gaussians; `columns` says which of their numbers each parameter is."""

    def __init__(
        self,
        columns: Mapping[str, int | slice],
        means: Float[np.ndarray, "k d"],
        roots: Float[np.ndarray, "k d d"],
        probabilities: Float[np.ndarray, " k"] | None = None,
    ):
        self.columns, self.means, self.roots = columns, means, roots
        self.probabilities = np.ones(len(means)) / len(means) if probabilities is None else probabilities

    def sample(self, random: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        return self._given(random, random.choice(len(self.means), n, p=self.probabilities))

    def _given(self, random: np.random.Generator, which: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        noise = random.normal(size=(len(which), self.means.shape[1]))
        drawn = self.means[which] + np.einsum("nij,nj->ni", self.roots[which], noise)
        return {name: drawn[:, columns] for name, columns in self.columns.items()}

    def marginals(self) -> list[Marginal]:
        found = []
        for name, columns in self.columns.items():
            if isinstance(columns, int):
                found.append(self._marginal(name, (), columns))
            else:
                numbers = range(self.means.shape[1])[columns]
                found += [self._marginal(name, (at,), number) for at, number in enumerate(numbers)]
        return found

    def _marginal(self, name: str, index: tuple[int, ...], number: int) -> Marginal:
        p, means = self.probabilities, self.means[:, number]
        sds = np.linalg.norm(self.roots[:, number], axis=1)
        mean = float(p @ means)
        off = means - mean
        variance = float(p @ (sds**2 + off**2))
        kurtosis = float(p @ (3 * sds**4 + 6 * sds**2 * off**2 + off**4)) / variance**2

        def excess(x: float, probability: float) -> float:
            return float(p @ stats.norm.cdf(x, means, sds)) - probability

        ends = (means - 12 * sds).min(), (means + 12 * sds).max()
        quantiles = np.array([optimize.brentq(excess, *ends, args=(each,)) for each in PROBABILITIES])
        return Marginal(name, index, quantiles, mean, variance**0.5, kurtosis)


class GaussiansGiven(Gaussians):
    """Parameters that are Gaussian given one more, which has a distribution on cells.

    `edges` are the cells' on a scale from which `forward` maps to the parameter's own.
    """

    def __init__(
        self,
        given: str,
        edges: Float[np.ndarray, " k+1"],
        forward: Callable[[np.ndarray], np.ndarray],
        columns: Mapping[str, int | slice],
        means: Float[np.ndarray, "k d"],
        roots: Float[np.ndarray, "k d d"],
        probabilities: Float[np.ndarray, " k"],
    ):
        super().__init__(columns, means, roots, probabilities)
        self.given, self.edges, self.forward = given, edges, forward

    def sample(self, random: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        which = random.choice(len(self.means), n, p=self.probabilities)
        low, high = self.edges[which], self.edges[which + 1]
        return {**self._given(random, which), self.given: self.forward(random.uniform(low, high))}

    def marginals(self) -> list[Marginal]:
        p, middles = self.probabilities, self.forward((self.edges[1:] + self.edges[:-1]) / 2)
        quantiles = np.interp(PROBABILITIES, np.concatenate([[0.0], np.cumsum(p)]), self.edges)
        return [*super().marginals(), Marginal.of(self.given, self.forward(quantiles), middles, p)]
