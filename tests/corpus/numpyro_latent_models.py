"""Mixtures, hidden Markov chains and other models with discrete states summed out, as users of NumPyro write them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform
from scipy.special import expit

from tests.corpus.case import Case, Data


def mixture(waiting: Any = None) -> None:
    """Two normal components with ordered means."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    means = numpyro.sample(
        "means", dist.TransformedDistribution(dist.Normal(0.0, 3.0).expand([2]).to_event(1), OrderedTransform())
    )
    scales = numpyro.sample("scales", dist.LogNormal(-0.5, 0.5).expand([2]).to_event(1))
    with numpyro.plate("eruption", len(waiting)):
        components = dist.Normal(means, scales)
        numpyro.sample("waiting", dist.MixtureSameFamily(dist.Categorical(probs=weights), components), obs=waiting)


def _mixture_data() -> Data:
    rng = np.random.default_rng(31)
    second = rng.uniform(size=150) < 0.6
    return {"waiting": np.where(second, 1.5 + 0.6 * rng.normal(size=150), -1.5 + 0.5 * rng.normal(size=150))}


def stick_breaking(parts: Any) -> Any:
    """Weights from the parts of a stick that are broken off, one after another."""
    left = jnp.cumprod(1 - parts)
    return jnp.concatenate([parts, jnp.ones(1)]) * jnp.concatenate([jnp.ones(1), left])


def dirichlet_process(velocity: Any = None, n_components: int = 4) -> None:
    """A truncated Dirichlet process mixture; ordered means keep the labels apart."""
    alpha = numpyro.sample("alpha", dist.Gamma(2.0, 1.0))
    parts = numpyro.sample("parts", dist.Beta(1.0, alpha).expand([n_components - 1]).to_event(1))
    weights = numpyro.deterministic("weights", stick_breaking(parts))
    base = dist.Normal(0.0, 2.0).expand([n_components]).to_event(1)
    means = numpyro.sample("means", dist.TransformedDistribution(base, OrderedTransform()))
    scale = numpyro.sample("scale", dist.LogNormal(-1.0, 0.3))
    with numpyro.plate("galaxy", velocity.shape[0]):
        mixed = dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(means, scale))
        numpyro.sample("velocity", mixed, obs=velocity)


def _dirichlet_process_data() -> Data:
    rng = np.random.default_rng(32)
    part = rng.choice(4, p=[0.35, 0.25, 0.25, 0.15], size=200)
    return {"velocity": np.array([-4.0, -1.5, 1.0, 3.5])[part] + 0.35 * rng.normal(size=200)}


def hidden_markov(signal: Any) -> None:
    """Sequences of a chain with two hidden states, summed out by the forward algorithm; a row is a sequence."""
    stay = numpyro.sample("stay", dist.Beta(8.0, 2.0).expand([2]).to_event(1))
    levels = numpyro.sample(
        "levels", dist.TransformedDistribution(dist.Normal(0.0, 2.0).expand([2]).to_event(1), OrderedTransform())
    )
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    step = jnp.log(jnp.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]]))
    emission = dist.Normal(levels, sigma).log_prob(signal[..., None])  # (sequence, time, state)

    def forward(log_filtered: Any, now: Any) -> Any:
        return jax.nn.logsumexp(log_filtered[:, :, None] + step, axis=1) + now, None

    first = jnp.log(0.5) + emission[:, 0]
    last, _ = jax.lax.scan(forward, first, jnp.moveaxis(emission[:, 1:], 1, 0))
    with numpyro.plate("sequence", signal.shape[0]):
        numpyro.factor("signal_likelihood", jax.nn.logsumexp(last, axis=1))


def _hidden_markov_data() -> Data:
    rng = np.random.default_rng(33)
    state = np.zeros((40, 12), int)
    state[:, 0] = rng.integers(2, size=40)
    for t in range(1, 12):
        keeps = rng.uniform(size=40) < np.array([0.85, 0.75])[state[:, t - 1]]
        state[:, t] = np.where(keeps, state[:, t - 1], 1 - state[:, t - 1])
    return {"signal": np.array([-1.0, 1.2])[state] + 0.8 * rng.normal(size=(40, 12))}


def zero_inflated(camper: Any, persons: Any, fish: Any = None) -> None:
    """Fish that visitors of a park caught; some did not fish."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    gate = numpyro.sample("gate", dist.Beta(1.0, 1.0))
    rate = jnp.exp(intercept + beta[0] * camper + beta[1] * persons)
    with numpyro.plate("group", len(camper)):
        numpyro.sample("fish", dist.ZeroInflatedPoisson(gate, rate), obs=fish)


def _zero_inflated_data() -> Data:
    rng = np.random.default_rng(34)
    camper, persons = rng.integers(2, size=180), rng.integers(1, 5, size=180)
    fish = rng.poisson(np.exp(-0.3 + 0.6 * camper + 0.3 * persons)) * (rng.uniform(size=180) > 0.35)
    return {"camper": camper, "persons": persons, "fish": fish}


def capture_recapture(n_occasions: int, captures: Any = None) -> None:
    """A closed population with augmented data: rows that were never caught may not exist."""
    present = numpyro.sample("present", dist.Beta(1.0, 1.0))
    caught = numpyro.sample("caught", dist.Beta(1.0, 1.0))
    with numpyro.plate("animal", len(captures)):
        counts = dist.Binomial(n_occasions, probs=caught)
        numpyro.sample("captures", dist.ZeroInflatedDistribution(counts, gate=1 - present), obs=captures)
    numpyro.deterministic("expected_population", present * len(captures))


def _capture_recapture_data() -> Data:
    rng = np.random.default_rng(35)
    return {"n_occasions": 5, "captures": rng.binomial(5, 0.3, size=120) * (rng.uniform(size=120) < 0.6)}


def two_kinds(x: Any, y: Any = None) -> None:
    """A line with a share of gross errors: each point comes from the line or from a wide normal."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    outliers = numpyro.sample("outliers", dist.Beta(1.0, 9.0))
    with numpyro.plate("point", len(x)):
        mixing = dist.Categorical(probs=jnp.stack([1 - outliers, outliers]))
        parts = [dist.Normal(intercept + slope * x, sigma), dist.Normal(jnp.zeros(len(x)), 8.0)]
        numpyro.sample("y", dist.MixtureGeneral(mixing, parts), obs=y)


def _two_kinds_data() -> Data:
    rng = np.random.default_rng(36)
    x = rng.uniform(-2, 2, size=80)
    y = 0.5 + 1.5 * x + 0.5 * rng.normal(size=80)
    y[rng.choice(80, 6, replace=False)] = 8 * rng.normal(size=6)
    return {"x": x, "y": y}


def occupancy(forest: Any, seen: Any = None) -> None:
    """Sites visited four times: a bird that is there is not always seen. A row is a site."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.5))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    detection = numpyro.sample("detection", dist.Beta(1.0, 1.0))
    log_there = jax.nn.log_sigmoid(intercept + slope * forest) + dist.Bernoulli(detection).log_prob(seen).sum(axis=1)
    log_not_there = jnp.where(seen.any(axis=1), -jnp.inf, jax.nn.log_sigmoid(-intercept - slope * forest))
    numpyro.factor("site_likelihood", jnp.logaddexp(log_there, log_not_there))


def _occupancy_data() -> Data:
    rng = np.random.default_rng(37)
    forest = rng.normal(size=90)
    there = rng.uniform(size=90) < expit(0.3 + 0.8 * forest)
    return {"forest": forest, "seen": (rng.uniform(size=(90, 4)) < 0.45 * there[:, None]).astype(int)}


CASES = [
    Case("numpyro-mixture", "numpyro", mixture, _mixture_data(), row=10, group=np.arange(30, 38), n_rows=150),
    Case(
        "numpyro-dirichlet-process",
        "numpyro",
        dirichlet_process,
        _dirichlet_process_data(),
        row=3,
        group=np.arange(60, 68),
        n_rows=200,
        reference_draws=5000,
    ),
    Case(
        "numpyro-hidden-markov",
        "numpyro",
        hidden_markov,
        _hidden_markov_data(),
        row=5,
        group=np.array([11, 12, 13]),
        n_rows=40,
        reference_draws=5000,
    ),
    Case(
        "numpyro-zero-inflated",
        "numpyro",
        zero_inflated,
        _zero_inflated_data(),
        row=4,
        group=np.arange(90, 99),
        n_rows=180,
    ),
    Case(
        "numpyro-capture-recapture",
        "numpyro",
        capture_recapture,
        _capture_recapture_data(),
        row=0,
        group=np.arange(50, 56),
        n_rows=120,
        ignore=("expected_population",),
    ),
    Case(
        "numpyro-two-kinds",
        "numpyro",
        two_kinds,
        _two_kinds_data(),
        row=21,
        group=np.arange(5),
        n_rows=80,
        reference_draws=5000,
    ),
    Case("numpyro-occupancy", "numpyro", occupancy, _occupancy_data(), row=2, group=np.arange(40, 46), n_rows=90),
]
