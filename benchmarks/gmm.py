"""The paper's Gaussian mixture: a request against retraining, and many chains against one (compilation apart)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posterase as pe
from benchmarks.harness import Ratio, compare
from posterase.experiments import gmm
from posterase.experiments.recipes import SAMPLERS
from posterase.sampling.batches import BatchDensity, draw, present_rows

REQUESTS = 10


def trainer(settings: gmm.Settings, model: pe.Model) -> Callable[[], Any]:
    sampler = gmm.make_sampler(settings, model.n_rows)
    points = gmm.initial_centres(np.asarray(model.data), settings.components)
    state = pe.start_chains(0, model, sampler, np.broadcast_to(points, (settings.chains, *points.shape)))
    return lambda: pe.sample(model, sampler, state, 1, thin=settings.iterations).state


def arithmetic(settings: gmm.Settings, model: pe.Model) -> Callable[[], Any]:
    """The gradients of as many steps and chains, on batches drawn beforehand: no random numbers, no updates."""
    rows = present_rows(model.present)
    batches = draw(jax.random.key(0), rows, settings.chains * settings.batch).reshape(settings.chains, -1)
    centres = jnp.asarray(gmm.initial_centres(np.asarray(model.data), settings.components))

    @jax.jit
    def gradients(model: pe.Model, thetas: jax.Array) -> jax.Array:
        def step(thetas: jax.Array, _: None) -> tuple[jax.Array, None]:
            ascent = jax.vmap(lambda theta, batch: jax.grad(BatchDensity(model, batch, rows.n))(theta))
            return thetas + 1e-9 * ascent(thetas, batches), None

        return jax.lax.scan(step, thetas, length=settings.iterations)[0]

    return lambda: gradients(model, jnp.broadcast_to(centres, (settings.chains, *centres.shape)))


def run() -> Iterator[Ratio]:
    for name in SAMPLERS:
        settings = gmm.Settings(sampler=name, chains=1)
        points = gmm.make_points(settings)
        model = gmm.make_model(settings, points)
        train = trainer(settings, model)
        state = train()
        sampler = gmm.make_sampler(settings, model.n_rows)
        erase = gmm.make_method(settings)
        batches = points.removed.reshape(-1, settings.request_rows)[:REQUESTS]

        def requests() -> Any:
            return erase(model, sampler, state, batches).state  # noqa: B023

        def request() -> Any:
            return erase(model, sampler, state, batches[:1]).state  # noqa: B023

        yield compare(f"GMM, {name}: retraining, 4,000 steps / one request of 4 points, alone", train, request)
        both = compare(f"GMM, {name}: retraining, 4,000 steps / one request among {REQUESTS}", train, requests)
        yield both._replace(second=both.second / REQUESTS)
        hundred = dataclasses.replace(settings, chains=100)
        many = trainer(hundred, model)
        yield compare(f"GMM, {name}: 100 chains / one chain", many, train, repeats=3)
        alone = arithmetic(hundred, model)
        what = "what limits it, arithmetic: 100 chains' steps / their mini-batch gradients alone"
        yield compare(f"GMM, {name}: {what}", many, alone, repeats=3)
