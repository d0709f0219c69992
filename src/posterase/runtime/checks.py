"""Checks of single arguments. Each returns nothing, or raises an error that says what to pass instead."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from posterase.errors import DataError, InvalidOptionError, InvalidTypeError

T = TypeVar("T")

_found: dict[Hashable, Any] = {}
REMEMBERED = 256
"""How many kinds of model are remembered to have passed their checks."""


def check_type(value: object, kind: Any, name: str, advice: str) -> None:
    """The value is of this kind."""
    if not isinstance(value, kind):
        raise InvalidTypeError(f"{name} is {value!r} ({type(value).__name__}).", advice)


def check_int(name: str, value: object, least: int, most: int | None = None) -> None:
    """The value is a whole number within bounds."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= int(value) <= (most if most is not None else int(value)):  # type: ignore[call-overload]
        upto = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidOptionError(f"{name} is {value!r}.", f"use a whole number, {upto}.")


def check_finite(name: str, values: Any, axes: str) -> Any:
    """An array of finite real numbers with these axes, `"models examples"`, from whatever holds them."""
    try:
        array = values if isinstance(values, jax.Array) else np.asarray(values)
        array = array if array.dtype.kind == "f" else np.asarray(array, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} holds no numbers.", f"pass an array with the axes ({axes}).") from error
    if array.ndim != len(axes.split()):
        raise DataError(f"{name} is an array of shape {array.shape}.", f"its axes are ({axes.replace(' ', ', ')}).")
    if not bool((jnp if isinstance(array, jax.Array) else np).isfinite(array).all()):
        raise DataError(f"{name} holds NaN or infinity.", "leave out what has no value, or cut it off.")
    return array


def once(kind: Hashable, check: Callable[[], T]) -> T:
    """What a check finds that depends on `kind` alone. One that passed is not run again: tracing takes milliseconds."""
    if kind not in _found:
        found = check()
        while len(_found) >= REMEMBERED:
            del _found[next(iter(_found))]
        _found[kind] = found
    return _found[kind]


def first_bad(bad: Bool[np.ndarray, "..."] | Bool[Array, "..."]) -> tuple[int, ...] | None:
    """The first position that is bad, or None."""
    if not bool(bad.any()):
        return None
    return tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
