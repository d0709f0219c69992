"""What every method does to the same cloud of draws, in two parameters, so that it can be seen.

442 patients (`diabetes.csv`), and whether their disease went on faster than the scale's middle a year later,

    above ~ Bernoulli(1/(1 + exp(−intercept − slope · bmi))),        intercept, slope ~ N(0, 5)

with bmi in fixed units, (BMI − 25)/5. The patients with a BMI of 30 or more are to be forgotten. Without them it is
less well known how the risk goes on: the cloud has to move, to spread along the slope, and to turn. With two
parameters the kept posterior is known to rounding, from its density on a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from posterase.draws.draws import Draws
from posterase.experiments.diabetes import CHAINS, DRAWS, TERMS, load
from posterase.ladder.policy import Policy
from posterase.ladder.verdict import epsilon_text
from posterase.methods.base import Method, MethodResult
from posterase.methods.influence_shift import InfluenceShift
from posterase.methods.refit import Refit
from posterase.methods.rejuvenate import Rejuvenate
from posterase.methods.reweight import Reweight
from posterase.methods.transport import Transport
from posterase.model.change import Change
from posterase.model.densities import LogDensity
from posterase.model.factorised import Model
from posterase.numerics.densities import evaluate_at
from posterase.sampling.nuts import nuts

HEAVIEST = 1.0
"""A BMI of 30, in the data's units: patients from here on are forgotten."""

LADDER: dict[str, tuple[Method, str]] = {
    "Reweight": (Reweight(), "keeps the draws, changes their weights"),
    "InfluenceShift": (InfluenceShift(), "moves all draws by one vector"),
    "Transport": (Transport(), "moves and stretches, then weighs"),
    "Rejuvenate": (Rejuvenate(), "resamples, and walks on by MCMC"),
    "Refit": (Refit(), "samples the kept rows anew"),
}
"""Methods as they come, and what they do, in a few words."""

POLICY = Policy()
"""What each method is held against, as in `pe.erase`."""

ALONG = 200
"""Points of the grid along each parameter."""


class Grid(NamedTuple):
    """The kept posterior, as probabilities of the cells of a grid."""

    intercept: Float[np.ndarray, " along"]
    slope: Float[np.ndarray, " along"]
    mass: Float[np.ndarray, "along along"]
    """`mass[i, j]` at `slope[i]` and `intercept[j]`; they add up to one."""

    @property
    def points(self) -> Float[np.ndarray, "cells 2"]:
        """Intercept and slope of every cell."""
        return np.stack(np.meshgrid(self.intercept, self.slope), axis=-1).reshape(-1, 2)

    @property
    def mean(self) -> Float[np.ndarray, " 2"]:
        """Of intercept and slope."""
        return self.mass.ravel() @ self.points

    @property
    def sd(self) -> Float[np.ndarray, " 2"]:
        """Of intercept and slope."""
        return np.sqrt(self.mass.ravel() @ (self.points - self.mean) ** 2)

    def level(self, share: float) -> float:
        """The mass of a cell on the edge of the smallest region that holds this share of the posterior."""
        heaviest_first = np.sort(self.mass.ravel())[::-1]
        return float(heaviest_first[np.searchsorted(np.cumsum(heaviest_first), share)])


class Cloud(NamedTuple):
    """Draws after a method, or before any."""

    name: str
    does: str
    draws: Draws
    says: str
    """What the default policy says of it."""
    mean_error: float
    """Root mean square, over the two parameters, of the error of the mean in exact posterior standard deviations."""
    spread_error: float
    """Root mean square of the log ratio of standard deviations."""


class Clouds(NamedTuple):
    """The same request by every method."""

    kept: Grid
    clouds: list[Cloud]
    """The draws before, and after each method."""
    n_removed: int
    n_rows: int


class Asked(NamedTuple):
    """A model, and the rows to forget."""

    model: Model
    change: Change


def request() -> Asked:
    """All patients, and those with a BMI of 30 or more."""
    patients = load()
    bmi = patients.X[:, TERMS.index("bmi")]
    model = make_model(bmi, patients.y > 0)
    return Asked(model, model.change(remove=bmi >= HEAVIEST))


def run(seed: int = 0, report: Callable[[str], None] = lambda _: None) -> Clouds:
    """One request, by every method; `report` hears what is being done."""
    asked = request()
    report(f"sampling the posterior of {asked.model.n_rows} patients")
    before = nuts(seed, asked.model, {"intercept": np.zeros(CHAINS), "slope": np.zeros(CHAINS)}, DRAWS).draws
    return answer(seed, asked, before, list(LADDER), report)


def answer(
    seed: int, asked: Asked, before: Draws, names: Sequence[str], report: Callable[[str], None] = lambda _: None
) -> Clouds:
    """The same from draws of the posterior, by the methods of these names."""
    model, change = asked
    kept = on_a_grid(model.without(change))
    clouds = [_cloud("before", "draws that have seen all rows", before, "", kept)]
    for name in names:
        method, does = LADDER[name]
        report(f"{name}: forgetting {change.n_rows} of them")
        erased = method(seed, model, before, change)
        clouds.append(_cloud(name, does, erased.draws, _judged(erased), kept))
    return Clouds(kept, clouds, change.n_rows, model.n_rows)


def make_model(bmi: Float[np.ndarray, " patients"], above: Bool[np.ndarray, " patients"]) -> Model:
    """The logistic regression."""

    def log_prior(p: dict[str, jnp.ndarray]) -> jnp.ndarray:
        return -0.5 * ((p["intercept"] / 5) ** 2 + (p["slope"] / 5) ** 2)

    def log_likelihood(p: dict[str, jnp.ndarray], data: dict[str, jnp.ndarray]) -> jnp.ndarray:
        score = p["intercept"] + p["slope"] * data["bmi"]
        return data["above"] * score - jnp.logaddexp(0, score)

    return Model(log_prior, log_likelihood, {"bmi": bmi, "above": above.astype(float)})


def on_a_grid(model: Model) -> Grid:
    """A posterior's mass on a grid that holds all of it."""
    coarse = _grid(model, np.linspace(-3, 2, ALONG), np.linspace(-2, 5, ALONG))  # says where it is
    intercept, slope = (np.linspace(m - 6 * s, m + 6 * s, ALONG) for m, s in zip(coarse.mean, coarse.sd, strict=True))
    return _grid(model, intercept, slope)


def _grid(model: Model, intercept: Float[np.ndarray, " along"], slope: Float[np.ndarray, " along"]) -> Grid:
    empty = Grid(intercept, slope, np.zeros((ALONG, ALONG)))
    log_density = evaluate_at(LogDensity(model), empty.points, {"intercept": jnp.zeros(()), "slope": jnp.zeros(())})
    mass = np.exp(log_density - log_density.max()).reshape(ALONG, ALONG)
    return empty._replace(mass=mass / mass.sum())


def _judged(erased: MethodResult) -> str:
    shown = erased.diagnostics
    objections = POLICY.objections(erased)
    if objections:
        return f"refused: {objections[0].reason}"
    if erased.samples_anew:
        return f"accepted: R̂ {shown.rhat:.3f}"
    return f"accepted: k̂ {shown.pareto_k:.2f}, {epsilon_text(shown.epsilon)}"


def _cloud(name: str, does: str, draws: Draws, says: str, kept: Grid) -> Cloud:
    values, weights = draws.matrix(), np.asarray(draws.weights, float).ravel()
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    mean_error = np.sqrt(np.mean(((mean - kept.mean) / kept.sd) ** 2))
    return Cloud(name, does, draws, says, float(mean_error), float(np.sqrt(np.mean(np.log(sd / kept.sd) ** 2))))
