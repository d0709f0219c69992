"""Does a Gauss–Newton step make corrected continuation cheaper? Both at the same cost, in gradients.

The step climbs the same objective, kept(θ) − (N′/N) ∇full(θ₀)·θ, by conjugate gradients on the damped Gauss–Newton
matrix of some kept rows. Its trust region is Martens's (2010): of all iterates, the one that is highest on the control
rows is taken, or none of them. The continuation goes on from there with what is left of the budget.

What is compared is no time: it is the difference of predictions on removed rows from those of retrained networks, less
the floor, what two retrainings differ by. Digits on a CPU; Fashion-MNIST on a GPU (`posterase data where`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from benchmarks.harness import Ratio
from posterase.experiments import bnn, networks
from posterase.experiments.bnn_results import results
from posterase.methods.unconverged.corrected_continuation import CorrectedContinuation
from posterase.methods.unconverged.rounds import Course, Place
from posterase.model.densities import LogRatio
from posterase.model.factorised import Model
from posterase.runtime.precision import Number
from posterase.sampling.batches import BatchDensity
from posterase.sampling.vectors import of_vector

DATASETS = {"cpu": "digits", "gpu": "fashion-mnist"}
BUDGETS = (0.25, 0.5, 1.0)
"""Shares of the experiment's own budget."""
STEPS = ((256, 10, 3e3), (512, 10, 3e3), (512, 10, 3e4), (1024, 20, 3e3))
"""Rows of the matrix, iterations, damping."""
PRODUCT = 5 / 3
"""Gradients that a product with the Gauss–Newton matrix costs: forwards with its tangent, and once backwards."""


class AfterGaussNewton(CorrectedContinuation):
    """Corrected continuation that begins with a Gauss–Newton step."""

    rows: Int[Array, " rows"] = eqx.field(kw_only=True)
    iterations: int = eqx.field(kw_only=True, static=True)
    damping: Number = eqx.field(kw_only=True)

    def course(self, place: Place, origin: PyTree, start: PyTree | None) -> Course:
        base, model = super().course(place, origin, start), place.model
        assert isinstance(model, Model)
        n = place.share_left * model.present.sum()
        kept = of_vector(BatchDensity(model, self.rows, n), place.unravel)
        ratio_slope = jax.grad(of_vector(LogRatio(model, place.change), place.unravel))(origin)
        own, share = jax.grad(kept)(origin), self.corrected * place.share_left
        slope = jax.tree.map(lambda g, ratio: g - share * (g - ratio), own, ratio_slope)
        likelihood, normal, images = model.log_likelihood, model.log_prior, model.data["x"][self.rows]
        assert isinstance(likelihood, networks.LogLikelihood)
        assert isinstance(normal, networks.NormalPrior)

        def logits(theta: PyTree) -> Float[Array, "rows classes"]:
            return likelihood.network.logits(place.unravel(theta), images).astype(jnp.float32)

        at, back = jax.vjp(logits, origin)
        p = jax.nn.softmax(at)
        prior = normal.sd**-2 + self.damping

        def product(vector: PyTree) -> PyTree:
            forth = jax.jvp(logits, (origin,), (vector,))[1]
            curved = p * (forth - (p * forth).sum(axis=1, keepdims=True)) * (n / len(self.rows))
            return jax.tree.map(lambda own, v: own + prior * v, back(curved)[0], vector)

        steps = _conjugate_gradients(product, slope, self.iterations)

        def rise(step: PyTree) -> Float[Array, ""]:
            return place.on_control(jax.tree.map(jnp.add, origin, step)) - _inner(base.drift, step)

        rises = jax.lax.map(rise, steps)
        best = jnp.argmax(jnp.where(jnp.isfinite(rises), rises, -jnp.inf))
        better = rises[best] > place.on_control(origin)
        begin = jax.tree.map(lambda at, step: at + jnp.where(better, step[best], 0), origin, steps)
        return base._replace(begin=begin)

    def extra_cost(self, removed: int, control: int) -> tuple[int, int]:
        gradients, densities = super().extra_cost(removed, control)
        size = len(self.rows)
        return gradients + round(size * (1 + PRODUCT * self.iterations)), densities + control * (self.iterations + 1)


def _conjugate_gradients(product: Any, slope: PyTree, iterations: int) -> PyTree:
    """All iterates, from zero."""

    def step(carry: tuple[PyTree, PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree, PyTree], PyTree]:
        x, residual, direction = carry
        curved, size = product(direction), _inner(residual, residual)
        length = size / _inner(direction, curved)
        x = jax.tree.map(lambda a, b: a + length * b, x, direction)
        left = jax.tree.map(lambda a, b: a - length * b, residual, curved)
        direction = jax.tree.map(lambda a, b: a + _inner(left, left) / size * b, left, direction)
        return (x, left, direction), x

    zero = jax.tree.map(jnp.zeros_like, slope)
    return jax.lax.scan(step, (zero, slope, slope), length=iterations)[1]


def _inner(one: PyTree, other: PyTree) -> Float[Array, ""]:
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, one, other)), start=jnp.zeros(()))


def run() -> Iterator[Ratio]:
    dataset = DATASETS[jax.default_backend()]
    for settings in bnn.blocks(dataset):
        if settings.sampler == "sgld":
            yield from block(dataclasses.replace(settings, case_study=()))


def block(settings: bnn.Settings) -> Iterator[Ratio]:
    """One block at every budget."""
    ran = bnn.run(settings, methods=("retrain", "floor", "origin"))
    rows = jnp.asarray(np.random.default_rng(0).permutation(ran.problem.kept.row_ids))
    for share in BUDGETS:
        within = dataclasses.replace(settings, budget=share * settings.budget)
        methods = {"alone": bnn.corrected_method(within)} | _first_steps(within, rows)
        arms = {name: bnn.continue_on(ran.problem, ran.arms["origin"], each) for name, each in methods.items()}
        found = results(ran._replace(arms={**ran.arms, **arms}), epsilon=False)
        floor = np.mean(found["floor"]["difference_removed"])
        over = {name: float(np.mean(found["methods"][name]["difference_removed"]) - floor) for name in arms}
        alone = over.pop("alone")
        for name, excess in over.items():
            what = f"{settings.title}: {100 * within.budget:g} % of a retraining, alone / after {name}"
            yield Ratio(what, alone, excess, unit="")


def _first_steps(settings: bnn.Settings, rows: Int[Array, " kept"]) -> dict[str, AfterGaussNewton]:
    """Every first step that leaves at least a tenth of the budget."""
    plain, found = bnn.corrected_method(settings), {}
    for size, iterations, damping in STEPS:
        method = AfterGaussNewton(
            steps=1,
            rate=plain.rate,
            momentum=plain.momentum,
            corrected=plain.corrected,
            batch=plain.batch,
            rows=rows[:size],
            iterations=iterations,
            damping=damping,
        )
        budget = settings.budget * settings.steps * settings.batch
        if method.extra_cost(settings.removed, method.control_rows)[0] <= 0.9 * budget:
            method = dataclasses.replace(method, steps=bnn.steps_within(settings, method))
            name = f"{size} rows, {iterations} iterations, damping {damping:,.0f}, {method.steps} steps"
            found[name] = method
    return found
