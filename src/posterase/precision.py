"""Float64 where it matters, whatever the precision of the draws.

Weights are differences of log densities: numbers of the size of the data whose difference is of order one. In float32
the rounding of a single row's log σ, repeated over a million rows, is already 0.03 nat, and no way of summing mends
that. So differences are evaluated in float64, in a scope of their own; everything else stays in the precision it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def widest_float() -> Any:
    """float64 where jax has 64-bit numbers switched on, else float32: the dtype to sum log densities in."""
    return jnp.zeros(()).dtype


def cast_floats(tree: PyTree, dtype: Any) -> PyTree:
    """Floating leaves in at least this precision; all others as they are."""

    def cast(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return leaf.astype(jnp.promote_types(leaf.dtype, dtype))

    return jax.tree.map(cast, tree)


def in_float64(function: Callable[..., Any], *args: PyTree) -> Any:
    """`function(*args)` with 64-bit numbers on and the arguments cast to float64.

    A function whose own code is bound to float32 (a loop with a float32 carry, say) cannot be called so; it gets its
    arguments as they are, and only what is summed outside of it is summed in float64.
    """
    with jax.enable_x64(True):
        wide = cast_floats(args, jnp.float64)
        return function(*(wide if accepts(function, *wide) else args))


def accepts(function: Callable[..., Any], *args: PyTree) -> bool:
    """Whether the function can be traced with such arguments."""
    try:
        jax.eval_shape(function, *args)
    except Exception:  # whatever the user's code raises on float64, it runs in its own precision instead
        return False
    return True
