"""What profiling the wide network found: each thing as it was, beside what it is now, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

import posterase as pe
from benchmarks.harness import Ratio, compare, once
from benchmarks.wide import make, temporary
from posterase.methods.influence_shift import _shift, _standard_deviations
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.curvature import Curvature, gradient
from posterase.numerics.densities import expectation, unconstrained
from posterase.numerics.solvers import LANCZOS_STEPS, lanczos
from posterase.numerics.weights import parameter_ess
from posterase.runtime.precision import numbers_as_arrays

PARAMETERS, WIDER, SAMPLES, DRAWS, RANK = 10_000, 100_000, 8, 32, 16


@eqx.filter_jit
def lineax_cg(curvature: Curvature, push: Float[Array, " d"], scales: Float[Array, " d"]) -> tuple[Array, Array]:
    """Conjugate gradients of lineax, and Lanczos steps to see whether the curvature is positive: as it was."""
    structure = jax.eval_shape(lambda: push)
    mv = lambda u: scales * curvature.mv(scales * u)  # noqa: E731
    operator = lx.FunctionLinearOperator(mv, structure, lx.positive_semidefinite_tag)
    solver = lx.CG(rtol=1e-5, atol=0.0, norm=jnp.linalg.norm, max_steps=500)
    solution = lx.linear_solve(operator, scales * push, solver, throw=False)
    residual = push - curvature.mv(scales * solution.value)
    curvatures, _ = lanczos(operator.mv, scales * push, LANCZOS_STEPS)
    left = jnp.linalg.norm(scales * residual) / jnp.linalg.norm(scales * push)
    return jnp.stack([solution.stats["num_steps"] + LANCZOS_STEPS + 2, left]), curvatures.min()


@eqx.filter_jit
def own_cg(solver: pe.CG, curvature: Curvature, push: Float[Array, " d"], scales: Float[Array, " d"]) -> Any:
    return solver(curvature, push, scales)


@eqx.filter_jit
def fresh_products(curvature: Curvature, vectors: Float[Array, "k d"]) -> Float[Array, "k d"]:
    return jax.lax.map(curvature.mv, vectors)


@eqx.filter_jit
def kept_products(curvature: Curvature, vectors: Float[Array, "k d"]) -> Float[Array, "k d"]:
    """The gradient at every draw linearised once, and what that needs kept for all products."""
    at_all = lambda thetas: jax.vmap(lambda t: gradient(curvature.density, t, curvature.like))(thetas)  # noqa: E731
    _, product = jax.linearize(at_all, curvature.thetas)
    same = lambda v: jnp.broadcast_to(v, curvature.thetas.shape)  # noqa: E731
    return jax.lax.map(lambda v: -curvature.weights @ product(same(v)), vectors)


@eqx.filter_jit
def side_by_side(curvature: Curvature, vectors: Float[Array, "k d"]) -> Float[Array, "k d"]:
    return jax.vmap(curvature.mv)(vectors)


def patched(name: str, value: Any, run: Callable[[], Any]) -> Any:
    """A call with one name of the library replaced, compiled anew before and after."""
    jax.clear_caches()
    with mock.patch(name, value):
        found = run()
    jax.clear_caches()
    return found


def run() -> Iterator[Ratio]:
    problem = make(PARAMETERS, DRAWS)
    model, draws = problem.model, problem.draws
    change = model.change(remove=problem.rows)
    kept, log_ratio = LogDensity(model.without(change)), LogRatio(model, change)
    whole, like = unconstrained(model, draws)
    thetas = jnp.asarray(whole, jnp.float32)
    sample, share = thetas[:SAMPLES], jnp.full(SAMPLES, 1 / SAMPLES)
    scales = _standard_deviations(thetas, jnp.full(DRAWS, 1 / DRAWS))
    push = expectation(lambda theta: -gradient(log_ratio, theta, like), sample, share, log_ratio.elements)
    curvature = Curvature(kept, sample, share, like)
    solver = numbers_as_arrays(pe.CG())

    own = own_cg(solver, curvature, push, scales)
    old, _ = lineax_cg(curvature, push, scales)
    what = f"{PARAMETERS:,} parameters, {SAMPLES} draws: products of lineax's CG with Lanczos steps / of our own"
    yield Ratio(what, float(old[0]), float(own.products), "")
    yield Ratio("the residuals they end with", float(old[1]), float(own.relative_residual), "")
    yield compare(
        "their seconds",
        lambda: lineax_cg(curvature, push, scales),
        lambda: own_cg(solver, curvature, push, scales),
        repeats=3,
    )

    def of_shift() -> float:
        wide = make(WIDER, DRAWS)
        change = wide.model.change(remove=wide.rows)
        densities = LogDensity(wide.model.without(change)), LogRatio(wide.model, change)
        arrays = wide.draws.flat(), wide.draws.weights.ravel(), jnp.arange(DRAWS)
        return temporary(_shift, solver, *densities, *arrays, 1) / 2**20

    by_data = patched("posterase.numerics.densities.held", lambda function, at, least, *_: least, of_shift)
    yield Ratio(
        f"{WIDER:,} parameters, InfluenceShift: batches by the data alone / by what a draw holds",
        by_data,
        of_shift(),
        " MB",
    )

    vectors = jax.random.normal(jax.random.key(0), (RANK, PARAMETERS))
    beside, fresh, linearised = (
        temporary(each, curvature, vectors) / 2**20 for each in (side_by_side, fresh_products, kept_products)
    )
    yield Ratio(f"{RANK} directions of Transport, side by side / one after the other", beside, fresh, " MB")
    yield compare(
        "their seconds",
        lambda: side_by_side(curvature, vectors),
        lambda: fresh_products(curvature, vectors),
        repeats=3,
    )
    yield Ratio(f"{RANK} products H v, gradients linearised once / each time", linearised, fresh, " MB")
    yield compare(
        "their seconds",
        lambda: kept_products(curvature, vectors),
        lambda: fresh_products(curvature, vectors),
        repeats=3,
    )

    with mock.patch("posterase.numerics.weights.ESS_ELEMENTS", 2**40):
        once(lambda: parameter_ess(draws))
        at_once = min(once(lambda: parameter_ess(draws)) for _ in range(5))
    in_blocks = min(once(lambda: parameter_ess(draws)) for _ in range(5))
    yield Ratio("effective sizes of all parameters, all at once / in blocks", at_once, in_blocks)
