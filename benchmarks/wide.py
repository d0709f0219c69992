"""A wide network of any number of parameters, with draws of its posterior that need no matrix of them.

Seven inputs, one hidden layer of W units, one output: d = 9 W + 1 parameters, so that W = 1, 11, 111, … gives exactly
10, 100, 1,000, …. The prior is centred at the weights that the network starts from, as where a network is fine-tuned:

    f(x) = c + Σₖ vₖ tanh(bₖ + uₖ·x),    θ ~ N(θ₀, Λ),    y ~ N(f(x), σ²)

with Λ diagonal, its standard deviations a fifth of the start's: 1 for c and the hidden layer, 1/√W for v.

**Draws.** The mode by Gauss–Newton steps, then draws of the Gaussian that fits there, all of its covariance: with J the
derivative of f at the mode, one row a row of data, z ~ N(0, Λ) and e ~ N(0, σ²),

    θ = mode + z − Λ Jᵀ (J Λ Jᵀ + σ²)⁻¹ (J z + e)                         (Matheron's rule)

is such a draw: a matrix of rows × rows, and products with J and Jᵀ.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import posterase as pe
from posterase.methods.influence_shift import _shift
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.densities import _evaluate, _evaluate_at, unconstrained
from posterase.numerics.transport_fit import RANK, _low_rank
from posterase.runtime.precision import numbers_as_arrays

INPUTS, ROWS, REMOVED, CHAINS = 7, 64, 4, 2
NOISE, LOOSENESS, GAUSS_NEWTON_STEPS = 0.2, 0.2, 8

Params = dict[str, Float[Array, "..."]]


class Wide(NamedTuple):
    """A model, draws of its posterior, and the rows to remove."""

    model: pe.Model
    draws: pe.Draws
    rows: Int[np.ndarray, " removed"]


def width_of(parameters: int) -> int:
    width, left = divmod(parameters - 1, INPUTS + 2)
    assert (left, width > 0) == (0, True), f"{parameters} is not 1 more than a multiple of {INPUTS + 2}"
    return width


def output(p: Params, x: Float[Array, "rows inputs"]) -> Float[Array, " rows"]:
    return p["c"] + jnp.tanh(x @ p["u"] + p["b"]) @ p["v"]


def make_model(start: Params, scales: Params, x: Float[np.ndarray, "n inputs"], y: Float[np.ndarray, " n"]) -> pe.Model:
    def log_prior(p: Params) -> Float[Array, ""]:
        squares = [jnp.sum(((p[name] - start[name]) / scales[name]) ** 2) for name in start]
        return -0.5 * jnp.sum(jnp.stack(squares))

    def log_likelihood(p: Params, data: Params) -> Float[Array, " rows"]:
        return -0.5 * ((data["y"] - output(p, data["x"])) / NOISE) ** 2

    return pe.Model(log_prior, log_likelihood, {"x": x, "y": y})


def make(parameters: int, draws: int = 32, rows: int = ROWS, removed: int = REMOVED) -> Wide:
    """The problem with so many parameters."""
    width = width_of(parameters)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, INPUTS)).astype(np.float32)
    shapes = {"u": (INPUTS, width), "b": (width,), "v": (width,), "c": ()}
    spread = {"u": INPUTS**-0.5, "b": 1.0, "v": width**-0.5, "c": 1.0}
    start = {name: jnp.asarray(spread[name] * rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    scales = {name: jnp.asarray(LOOSENESS * spread[name], jnp.float32) for name in shapes}
    wanted = np.asarray(output(start, jnp.asarray(x))) + 0.5 * np.sin(2 * x[:, 0])
    y = (wanted + NOISE * rng.normal(size=rows)).astype(np.float32)
    sample = _posterior(jax.random.key(1), start, scales, jnp.asarray(x), jnp.asarray(y), draws)
    shaped = jax.tree.map(lambda leaf: leaf.reshape(CHAINS, -1, *leaf.shape[1:]), sample)
    return Wide(make_model(start, scales, x, y), pe.Draws(shaped), np.arange(removed))


@functools.partial(jax.jit, static_argnames="draws")
def _posterior(
    key: Array, start: Params, scales: Params, x: Float[Array, "n inputs"], y: Float[Array, " n"], draws: int
) -> Params:
    """Draws by Matheron's rule at the mode: leaves (draws, …)."""

    def step(at: Params, share: Float[Array, ""]) -> tuple[Params, None]:
        value, product = jax.linearize(lambda p: output(p, x), at)
        gap = y - value + product(jax.tree.map(jnp.subtract, at, start))
        best = jax.tree.map(jnp.add, start, _towards(at, scales, x, gap))
        return jax.tree.map(lambda old, new: old + share * (new - old), at, best), None

    def draw(key: Array, mode: Params) -> Params:
        noise, *keys = jax.random.split(key, 1 + len(mode))
        free = {
            name: scales[name] * jax.random.normal(one, leaf.shape)
            for one, (name, leaf) in zip(keys, mode.items(), strict=True)
        }
        seen = jax.jvp(lambda p: output(p, x), (mode,), (free,))[1] + NOISE * jax.random.normal(noise, y.shape)
        return jax.tree.map(lambda m, z, t: m + z - t, mode, free, _towards(mode, scales, x, seen))

    mode, _ = jax.lax.scan(step, start, jnp.linspace(0.3, 1, GAUSS_NEWTON_STEPS))
    return jax.lax.map(lambda one: draw(one, mode), jax.random.split(key, draws))


def _towards(at: Params, scales: Params, x: Float[Array, "n inputs"], gap: Float[Array, " n"]) -> Params:
    """Λ Jᵀ (J Λ Jᵀ + σ²)⁻¹ gap, with J at these parameters."""
    hidden = jnp.tanh(x @ at["u"] + at["b"])
    slopes = (1 - hidden**2) * at["v"]
    s = scales
    gram = s["c"] ** 2 + s["v"] ** 2 * hidden @ hidden.T + (s["b"] ** 2 + s["u"] ** 2 * x @ x.T) * (slopes @ slopes.T)
    solved = jnp.linalg.solve(gram + NOISE**2 * jnp.eye(len(gap)), gap)
    pulled = jax.vjp(lambda p: output(p, x), at)[1](solved)[0]
    return jax.tree.map(lambda scale, leaf: scale**2 * leaf, scales, pulled)


def programs(problem: Wide, samples: int) -> dict[str, int]:
    """Bytes that XLA sets aside beside arguments and results, for each compiled program that sees all parameters."""
    model, draws = problem.model, problem.draws
    change = model.change(remove=problem.rows)
    kept, log_ratio = LogDensity(model.without(change)), LogRatio(model, change)
    flat = draws.flat()
    picked = jnp.arange(samples)
    solver = numbers_as_arrays(pe.CG())
    thetas, like = unconstrained(model, draws)
    sample = jnp.asarray(thetas[:samples], jnp.float32)
    found = {
        "InfluenceShift": temporary(_shift, solver, kept, log_ratio, flat, draws.weights.ravel(), picked, 1),
        "Transport": temporary(_low_rank, kept, log_ratio, sample, jnp.ones(sample.shape[1]), RANK, like),
    }
    with jax.enable_x64(True):
        found["Reweight"] = temporary(_evaluate, log_ratio, flat, True)
        found["weights"] = temporary(_evaluate_at, kept, jnp.asarray(thetas), like, True)
    return found


def temporary(jitted: Any, *args: Any) -> int:
    """Bytes that a compiled program sets aside beside its arguments and results."""
    return int(jitted.lower(*args).compile().compiled.memory_analysis().temp_size_in_bytes)
