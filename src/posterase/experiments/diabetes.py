"""A posterior forgets patients: linear regression on the diabetes data, where the exact answer is known.

442 patients, ten measurements, and the progression of their disease a year later (Efron, Hastie, Johnstone, Tibshirani
2004, Least angle regression; the copy beside this file, `diabetes.csv`, is the one of scikit-learn). The model

    y ~ N(Xβ, σ),    β | σ ~ N(0, (σ · width)²),    σ² ~ InverseGamma(shape, scale)

is conjugate, so draws of the posterior are independent and those of any kept set of patients are known exactly.

Measurements are scaled by fixed round numbers, not by the data's own mean and spread: those would have seen the
patients who are to be forgotten.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from importlib import resources
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from posterase.draws.draws import Draws
from posterase.ladder.policy import Policy
from posterase.methods.base import Method
from posterase.methods.influence_shift import InfluenceShift
from posterase.methods.reweight import Reweight
from posterase.model.factorised import Model
from posterase.model.transforms import positive

CENTRE_AND_UNIT = {
    "age": (50, 10),
    "sex": (1.5, 1),
    "bmi": (25, 5),
    "bp": (95, 15),
    "s1": (190, 35),
    "s2": (115, 30),
    "s3": (50, 13),
    "s4": (4, 1.3),
    "s5": (4.6, 0.5),
    "s6": (90, 11),
    "progression": (150, 75),
}
TERMS = ["constant", *list(CENTRE_AND_UNIT)[:-1]]
WIDTH, SHAPE, SCALE = 2.0, 2.0, 1.0
CHAINS, DRAWS = 4, 1000


class Patients(NamedTuple):
    """The data, in fixed units."""

    X: Float[np.ndarray, "patients terms"]
    y: Float[np.ndarray, " patients"]
    age: Float[np.ndarray, " patients"]


def load() -> Patients:
    """The embedded data."""
    text = resources.files("posterase.experiments").joinpath("diabetes.csv").read_text(encoding="utf-8")
    table = list(csv.DictReader(text.splitlines()))
    columns = {name: np.array([float(row[name]) for row in table]) for name in CENTRE_AND_UNIT}
    scaled = {name: (columns[name] - centre) / unit for name, (centre, unit) in CENTRE_AND_UNIT.items()}
    y = scaled.pop("progression")
    return Patients(np.column_stack([np.ones_like(y), *scaled.values()]), y, columns["age"])


def make_model(patients: Patients) -> Model:
    """The regression as a user would write it."""

    def log_prior(p: dict[str, jnp.ndarray]) -> jnp.ndarray:
        beta, sigma = p["beta"], p["sigma"]
        log_beta = -0.5 * jnp.sum((beta / (WIDTH * sigma)) ** 2) - beta.size * jnp.log(sigma)
        return log_beta - (2 * SHAPE + 1) * jnp.log(sigma) - SCALE / sigma**2

    def log_likelihood(p: dict[str, jnp.ndarray], data: dict[str, jnp.ndarray]) -> jnp.ndarray:
        return -0.5 * ((data["y"] - data["X"] @ p["beta"]) / p["sigma"]) ** 2 - jnp.log(p["sigma"])

    data = {"X": patients.X, "y": patients.y}
    example = {"beta": np.zeros(len(TERMS)), "sigma": 1.0}
    return Model(log_prior, log_likelihood, data, transforms={"sigma": positive}, params=example)


class Exact:
    """The closed-form posterior of some rows: β given σ is normal, σ² is inverse gamma."""

    def __init__(self, patients: Patients, rows: Int[np.ndarray, " rows"] | Bool[np.ndarray, " patients"]):
        X, y = patients.X[rows], patients.y[rows]
        precision = X.T @ X + np.eye(X.shape[1]) / WIDTH**2
        self.covariance = np.linalg.inv(precision)
        self.beta = self.covariance @ X.T @ y
        self.shape = SHAPE + len(y) / 2
        self.scale = SCALE + (y @ y - self.beta @ precision @ self.beta) / 2

    def mean(self) -> Float[np.ndarray, " terms+1"]:
        """Posterior means of β, then σ."""
        sigma = math.exp(0.5 * math.log(self.scale) + math.lgamma(self.shape - 0.5) - math.lgamma(self.shape))
        return np.append(self.beta, sigma)

    def sd(self) -> Float[np.ndarray, " terms+1"]:
        """Posterior standard deviations of β, then σ."""
        variance = self.scale / (self.shape - 1)
        return np.sqrt(np.append(variance * np.diag(self.covariance), variance - self.mean()[-1] ** 2))

    def sample(self, rng: np.random.Generator) -> Draws:
        """Independent draws."""
        sigma = np.sqrt(self.scale / rng.gamma(self.shape, size=(CHAINS, DRAWS)))
        root = np.linalg.cholesky(self.covariance)
        noise = rng.normal(size=(CHAINS, DRAWS, len(self.beta))) @ root.T
        beta = self.beta + sigma[..., None] * noise
        return Draws({"beta": beta, "sigma": sigma}, dims={"beta": ["term"]}, coords={"term": TERMS})


class Outcome(NamedTuple):
    """One way to answer a request, and how far it ends from the exact answer."""

    method: str
    draws: Draws
    mean_error: float
    """Root mean square, over parameters, of the error of the mean in exact posterior standard deviations."""
    spread_error: float
    """Root mean square of the log ratio of standard deviations."""
    verdict: str
    """The default policy's, in brief."""


class Request(NamedTuple):
    """A request and all ways it was answered."""

    title: str
    rows: Int[np.ndarray, " removed"]
    exact: Exact
    outcomes: list[Outcome]


METHODS: dict[str, Method] = {
    "Reweight": Reweight(),
    "InfluenceShift, the paper's": InfluenceShift(hessian="full"),
    "InfluenceShift": InfluenceShift(),
}


def run(seed: int = 0, report: Callable[[str], None] = lambda _: None) -> list[Request]:
    """Answer two requests, one patient's and a group's, by every method; `report` hears what is being done."""
    rng = np.random.default_rng(seed)
    patients = load()
    model = make_model(patients)
    before = Exact(patients, np.arange(len(patients.y))).sample(rng)
    groups = {
        "one patient": np.array([17]),
        "all patients aged 60 or over": np.flatnonzero(patients.age >= 60),
    }
    requests = []
    for title, rows in groups.items():
        exact = Exact(patients, np.setdiff1d(np.arange(len(patients.y)), rows))
        outcomes = [_outcome("before: nothing erased", before, exact)]
        for name, method in METHODS.items():
            report(f"{name}: forgetting {title}")
            erased = method(seed, model, before, model.change(remove=rows))
            outcomes.append(_outcome(name, erased.draws, exact, Policy().brief(erased)))
        outcomes.append(_outcome("floor: exact draws", exact.sample(rng), exact))
        requests.append(Request(title, rows, exact, outcomes))
    return requests


def columns(draws: Draws) -> Float[np.ndarray, "n terms+1"]:
    """β, then σ, one row a draw."""
    flat = draws.flat()
    return np.column_stack([np.asarray(flat["beta"], float), np.asarray(flat["sigma"], float)])


def _outcome(method: str, draws: Draws, exact: Exact, verdict: str = "") -> Outcome:
    values, weights = columns(draws), np.asarray(draws.weights, float).ravel()
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    mean_error = np.sqrt(np.mean(((mean - exact.mean()) / exact.sd()) ** 2))
    spread_error = np.sqrt(np.mean(np.log(sd / exact.sd()) ** 2))
    return Outcome(method, draws, float(mean_error), float(spread_error), verdict)
