"""How long a model's gradient takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from posterase.data.row_source import is_streamed
from posterase.model.densities import LogDensity
from posterase.numerics.densities import batch_size
from posterase.runtime.fast_compilation import quick_jit
from posterase.runtime.precision import as_jax

REPEATS = 3


class GradientTime(NamedTuple):
    """Seconds."""

    compiling: float
    each: float
    """Of one gradient among several that are evaluated side by side."""
    together: float
    """Of all of them."""


def time_gradient(density: LogDensity, thetas: Float[np.ndarray, "n d"], like: PyTree) -> GradientTime:
    """Time the gradient of a log density at raveled unconstrained draws, side by side; streamed rows at one draw."""
    count = 1 if is_streamed(density.model.data) else batch_size(density.elements, len(thetas))
    some = as_jax(thetas[:count], jnp.result_type(*jax.tree.leaves(like)))

    def run() -> None:
        jax.block_until_ready(_gradients(density, like, some))

    first, again = _timed(run), min(_timed(run) for _ in range(REPEATS))
    return GradientTime(max(first - again, 0.0), again / count, again * len(thetas) / count)


@quick_jit()
def _gradients(density: LogDensity, like: PyTree, thetas: Float[Array, "n d"]) -> Float[Array, "n d"]:
    unravel = ravel_pytree(like)[1]
    return jax.vmap(jax.grad(lambda theta: density(unravel(theta))))(thetas)


def _timed(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
