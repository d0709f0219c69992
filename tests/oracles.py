"""Closed forms: models whose posterior is known exactly, before and after a change.

Each oracle gives its model, exact independent draws of the posterior of any set of rows, and the exact mean and
variance of its parameter.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy.special import betaln
from scipy.special import gammaln as gammaln_np

import posterase as pe


@dataclasses.dataclass(frozen=True)
class LinearRegression:
    """y ~ N(Xβ, noise²), β ~ N(0, prior²): Gaussian posterior, and a rank-k downdate when k rows go."""

    X: np.ndarray
    y: np.ndarray
    noise: float = 0.8
    prior: float = 2.0

    @classmethod
    def make(cls, rows: int = 60, d: int = 3, seed: int = 0) -> "LinearRegression":
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(rows, d)) * np.linspace(0.5, 2.0, d)
        return cls(X, X @ rng.normal(size=d) + 0.8 * rng.normal(size=rows))

    @property
    def n_rows(self) -> int:
        return len(self.y)

    def model(self, factor: float = 1.0) -> pe.Model:
        """`factor` multiplies the likelihood: 1 is right, −1, 2 and 0 are broken twins."""
        return pe.Model(
            lambda p: -0.5 * jnp.sum(p["beta"] ** 2) / self.prior**2,
            lambda p, data: -0.5 * factor * ((data["y"] - data["X"] @ p["beta"]) / self.noise) ** 2,
            {"X": self.X, "y": self.y},
        )

    def precision(self, rows: np.ndarray) -> np.ndarray:
        X = self.X[rows]
        return X.T @ X / self.noise**2 + np.eye(X.shape[1]) / self.prior**2

    def mean(self, rows: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self.precision(rows), self.X[rows].T @ self.y[rows] / self.noise**2)

    def variance(self, rows: np.ndarray) -> np.ndarray:
        return np.diag(np.linalg.inv(self.precision(rows)))

    def sample(self, rows: np.ndarray, shape: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
        root = np.linalg.cholesky(np.linalg.inv(self.precision(rows)))
        noise = np.random.default_rng(seed).normal(size=(*shape, root.shape[0]))
        return {"beta": self.mean(rows) + noise @ root.T}

    def log_evidence(self, rows: np.ndarray) -> float:
        """log ∫ exp(prior + likelihood of these rows), of the densities as the model has them."""
        precision, mean, y = self.precision(rows), self.mean(rows), self.y[rows]
        determinant = np.linalg.slogdet(precision / (2 * np.pi))[1]
        return float(0.5 * (mean @ precision @ mean - y @ y / self.noise**2 - determinant))

    def antithetic(self, rows: np.ndarray, pairs: int, seed: int) -> dict[str, np.ndarray]:
        """Draws in mirrored pairs: their mean is the posterior's exactly."""
        half = self.sample(rows, (1, pairs), seed)["beta"]
        return {"beta": np.concatenate([half, 2 * self.mean(rows) - half], axis=1)}


@dataclasses.dataclass(frozen=True)
class BetaBernoulli:
    """y ~ Bernoulli(p), p ~ Beta(a, b), with p on the unit interval."""

    y: np.ndarray
    a: float = 2.0
    b: float = 3.0

    @classmethod
    def make(cls, rows: int = 80, seed: int = 1) -> "BetaBernoulli":
        return cls((np.random.default_rng(seed).uniform(size=rows) < 0.3).astype(float))

    @property
    def n_rows(self) -> int:
        return len(self.y)

    def model(self, factor: float = 1.0) -> pe.Model:
        return pe.Model(
            lambda p: (self.a - 1) * jnp.log(p["p"]) + (self.b - 1) * jnp.log1p(-p["p"]),
            lambda p, data: factor * (data["y"] * jnp.log(p["p"]) + (1 - data["y"]) * jnp.log1p(-p["p"])),
            {"y": self.y},
            transforms={"p": pe.unit_interval},
        )

    def shapes(self, rows: np.ndarray) -> tuple[float, float]:
        y = self.y[rows]
        return self.a + y.sum(), self.b + (1 - y).sum()

    def mean(self, rows: np.ndarray) -> np.ndarray:
        a, b = self.shapes(rows)
        return np.asarray(a / (a + b))

    def variance(self, rows: np.ndarray) -> np.ndarray:
        a, b = self.shapes(rows)
        return np.asarray(a * b / ((a + b) ** 2 * (a + b + 1)))

    def log_evidence(self, rows: np.ndarray) -> float:
        return float(betaln(*self.shapes(rows)))

    def sample(self, rows: np.ndarray, shape: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
        return {"p": np.random.default_rng(seed).beta(*self.shapes(rows), size=shape)}


@dataclasses.dataclass(frozen=True)
class GammaPoisson:
    """y ~ Poisson(rate), rate ~ Gamma(a, rate b): a skewed posterior, so that no symmetry hides a sign error."""

    y: np.ndarray
    a: float = 1.5
    b: float = 0.5

    @classmethod
    def make(cls, rows: int = 12, seed: int = 2) -> "GammaPoisson":
        return cls(np.random.default_rng(seed).poisson(1.2, size=rows).astype(float))

    @property
    def n_rows(self) -> int:
        return len(self.y)

    def model(self, factor: float = 1.0) -> pe.Model:
        return pe.Model(
            lambda p: (self.a - 1) * jnp.log(p["rate"]) - self.b * p["rate"],
            lambda p, data: factor * (data["y"] * jnp.log(p["rate"]) - p["rate"] - gammaln(data["y"] + 1)),
            {"y": self.y},
            transforms={"rate": pe.positive},
        )

    def shapes(self, rows: np.ndarray) -> tuple[float, float]:
        y = self.y[rows]
        return self.a + y.sum(), self.b + len(y)

    def mean(self, rows: np.ndarray) -> np.ndarray:
        a, b = self.shapes(rows)
        return np.asarray(a / b)

    def variance(self, rows: np.ndarray) -> np.ndarray:
        a, b = self.shapes(rows)
        return np.asarray(a / b**2)

    def log_evidence(self, rows: np.ndarray) -> float:
        a, b = self.shapes(rows)
        return float(gammaln_np(a) - a * np.log(b) - gammaln_np(self.y[rows] + 1).sum())

    def sample(self, rows: np.ndarray, shape: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
        a, b = self.shapes(rows)
        return {"rate": np.random.default_rng(seed).gamma(a, 1 / b, size=shape)}


@dataclasses.dataclass(frozen=True)
class GaussianMean:
    """y ~ N(mu, 1), mu ~ N(0, prior²): the simplest of all."""

    y: np.ndarray
    prior: float = 3.0

    @classmethod
    def make(cls, rows: int = 40, seed: int = 3) -> "GaussianMean":
        return cls(np.random.default_rng(seed).normal(1.0, 1.0, size=rows))

    @property
    def n_rows(self) -> int:
        return len(self.y)

    def model(self, factor: float = 1.0) -> pe.Model:
        return pe.Model(
            lambda p: -0.5 * (p["mu"] / self.prior) ** 2,
            lambda p, data: -0.5 * factor * (data["y"] - p["mu"]) ** 2,
            {"y": self.y},
        )

    def precision(self, rows: np.ndarray) -> float:
        return len(self.y[rows]) + self.prior**-2

    def mean(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.y[rows].sum() / self.precision(rows))

    def variance(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(1 / self.precision(rows))

    def log_evidence(self, rows: np.ndarray) -> float:
        y, precision = self.y[rows], self.precision(rows)
        return float(0.5 * (y.sum() ** 2 / precision - y @ y - np.log(precision / (2 * np.pi))))

    def sample(self, rows: np.ndarray, shape: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
        noise = np.random.default_rng(seed).normal(size=shape)
        return {"mu": self.mean(rows) + noise * np.sqrt(self.variance(rows))}


Oracle = LinearRegression | BetaBernoulli | GammaPoisson | GaussianMean
ORACLES: list[type[Oracle]] = [LinearRegression, BetaBernoulli, GammaPoisson, GaussianMean]
