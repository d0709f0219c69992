"""Gradients of many draws, compiled with and without XLA's code generator for fused operations.

What `posterase.runtime.fast_compilation` chooses between: compilation is faster without that generator, and gradients
are slower where a density passes over much data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from benchmarks.harness import Ratio, compare, once
from benchmarks.problems import PROBLEMS
from posterase.model.densities import LogDensity
from posterase.numerics.extra_chances import BLOCK, RaveledDensity
from posterase.runtime.fast_compilation import FEW, LITTLE_DATA, MORE

STEPS = 16


def climb(z: Float[Array, "n d"], density: RaveledDensity) -> Float[Array, "n d"]:
    """Small steps uphill."""
    gradient = jax.vmap(jax.grad(density))
    return jax.lax.fori_loop(0, STEPS, lambda _, z: z + 1e-6 * gradient(z), z)


def run() -> Iterator[Ratio]:
    for make in PROBLEMS:
        problem = make()
        like = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], problem.initial)
        density = RaveledDensity(LogDensity(problem.model), like)
        z = jnp.full((BLOCK, sum(leaf.size for leaf in jax.tree.leaves(like))), 0.1, jnp.float32)
        settings: list[dict[str, Any]] = [{"compiler_options": dict(options)} for options in (FEW, MORE)]
        few, more = (eqx.filter_jit(climb, **each) for each in settings)
        size = f"{density.elements:,} numbers of data" + (", many" if density.elements > LITTLE_DATA else "")
        first, second = (once(lambda: compiled(z, density)) for compiled in (few, more))  # noqa: B023
        yield Ratio(f"{problem.name} ({size}), first call: without / with the generator", first, second)
        ratio = compare("", lambda: few(z, density), lambda: more(z, density))  # noqa: B023
        first, second = (1e6 * value / (STEPS * BLOCK) for value in (ratio.first, ratio.second))
        yield Ratio(f"{problem.name} ({size}), a gradient: without / with the generator", first, second, " µs")
