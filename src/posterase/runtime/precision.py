"""Float64 where it matters, whatever the precision of the draws.

Weights are differences of log densities: numbers of the size of the data whose difference is of order one. In float32
the rounding of a single row's log σ, repeated over a million rows, is already 0.03 nat, and no way of summing mends
that. So differences are evaluated in float64, in a scope of their own; everything else stays in the precision it has.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from posterase.errors import CoarseRowsWarning, ModelError

Number = float | Float[Array, ""]
"""A setting that is a number: plain, or an array inside compiled code."""

RAN_BEFORE = ("INTERNAL:", "UNAVAILABLE:", "UNKNOWN:", "DEADLINE_EXCEEDED:", "FAILED_PRECONDITION:")
"""How jax's errors begin that come from a running program."""

T = TypeVar("T")


def numbers_as_arrays(settings: T) -> T:
    """Settings with their numbers as arrays, so that another value does not compile anew."""
    # Through numpy: a plain number would make an array of weak type, which compiles apart from a strong one.
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else as_jax(x), settings)


def as_jax(values: Any, dtype: Any = None) -> Array:
    """A copy of numpy's numbers as a jax array. `jnp.asarray` would compile a program for every shape."""
    return jax.device_put(np.array(values, dtype))  # a copy: on a CPU, jax goes on using the array that it is handed


def is_known(*numbers: Any) -> bool:
    """Whether numbers have values to check: inside compiled code they have not."""
    return not any(isinstance(number, jax.core.Tracer) for number in numbers)


def widest_float() -> Any:
    """float64 where jax has 64-bit numbers switched on, else float32: the dtype to sum log densities in."""
    return jax.dtypes.canonicalize_dtype(np.float64)


def cast_floats(tree: PyTree, dtype: Any) -> PyTree:
    """Floating leaves in at least this precision; all others as they are."""

    def cast(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return leaf.astype(jnp.promote_types(leaf.dtype, dtype))

    return jax.tree.map(cast, tree)


@contextmanager
def all_digits() -> Iterator[None]:
    """Matrix products in all digits of float32, unless `jax_default_matmul_precision` says otherwise.

    Of a GPU's float32 products jax keeps three digits by default (TF32). Over millions of rows a step goes
    astray by up to an eighth of the posterior's width, for a quarter of a gradient's time (`python -m benchmarks
    low_precision`).
    Mini-batches, whose gradients are noisy anyway, are left to the default.
    """
    chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    with jax.default_matmul_precision(chosen or "float32"):
        yield


def failed_running(error: BaseException) -> bool:
    """Whether a compiled program failed as it ran. (jax raises a ValueError where it had run the program before.)"""
    return isinstance(error, jax.errors.JaxRuntimeError) or (
        isinstance(error, ValueError) and str(error).startswith(RAN_BEFORE)
    )


def in_float64(function: Callable[[bool], T], what: str) -> tuple[T, bool]:
    """`function(True)` with 64-bit numbers on, where True asks it to cast its arguments to float64; and True.

    Not every user's function can be called so: code bound to float32 (a loop with a float32 carry) cannot be traced.
    Then `function(False)` is called, its arguments as they are, so that only sums are in float64; False comes back with
    it, and a warning says what to do.
    """
    with jax.enable_x64(True):
        try:
            return function(True), True
        except Exception as error:
            if failed_running(error):
                raise  # no matter of precision
            try:
                narrow = function(False)
            except Exception:
                raise ModelError(
                    f"{what} cannot be evaluated with 64-bit numbers on: {str(error).splitlines()[0]}",
                    "if it uses numpy arrays from outside, make them jax arrays first (jnp.asarray); if it has a loop, "
                    "let the loop's carry take the precision of the arguments.",
                ) from error
            warnings.warn(
                f"{what} cannot be called on float64 ({type(error).__name__}): rows are evaluated in float32 and only "
                "summed in float64. If it has a loop, let the loop's carry take the precision of the arguments.",
                CoarseRowsWarning,
                stacklevel=3,
            )
            return narrow, False


def numpy_as_jax(function: Callable[..., T]) -> Callable[..., T]:
    """The function, with the numpy arrays it uses from outside made jax arrays.

    jax (0.10 to 0.12) remembers the float32 copy of a numpy array that was first used in float32, and what then uses
    the array in float64 does not compile. jax arrays have no such memory. A function that uses no numpy array is
    returned as it is. Arrays are found in the function and in those defined within it; not in others that it calls, of
    which `in_float64` says what to do. Where there are such arrays among the module's names, the function sees all
    names of its module as they are now.
    """
    if not isinstance(function, types.FunctionType):
        return function
    cells = function.__closure__ or ()
    enclosed = [cell.cell_contents for cell in cells if _is_filled(cell)]
    known = function.__globals__
    named = {name: known[name] for name in _names(function.__code__) if isinstance(known.get(name), np.ndarray)}
    if not named and not any(isinstance(value, np.ndarray) for value in enclosed):
        return function
    made = types.FunctionType(
        function.__code__,
        {**known, **{name: _as_jax(value) for name, value in named.items()}} if named else known,
        function.__name__,
        function.__defaults__,
        tuple(types.CellType(_as_jax(cell.cell_contents)) if _is_filled(cell) else cell for cell in cells),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _names(code: types.CodeType) -> set[str]:
    """What a function looks up by name, and those that are defined within it."""
    within = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, within))


def _as_jax(value: Any) -> Any:
    numeric = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    return jnp.asarray(value) if numeric else value


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a variable that is bound later
        return False
    return True
