"""Data that a function uses beside its arguments: out of a closure, a module's globals, a default value.

They are constants of the function's compiled program, and a copy of them is wherever the program is. Arrays are found,
and so are many plain numbers; a few cannot be told from those that a model's formula has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree

MOST_NUMBERS = 40
"""Different real numbers that a model's formula may have. A loop over rows that are Python numbers has as many as rows;
derivatives of special functions have up to twenty."""


def holds_data(function: Callable[..., PyTree], *args: PyTree) -> bool:
    """Whether a function's program has constants that may be data: arrays, or many different numbers.

    The function is traced, not run: shapes (`jax.ShapeDtypeStruct`) will do for arguments. One that cannot be traced is
    taken to hold data; what is wrong with it shows when it is called.
    """
    try:
        program, _, _ = eqx.filter_make_jaxpr(function)(*args)
    except Exception:
        return True
    if any(np.ndim(constant) == 0 for constant in program.consts):  # made by the user: plain numbers are literals
        return True
    constants = list(_constants(program))
    numbers = {
        np.asarray(each).item() for each in constants if np.size(each) == 1 and np.asarray(each).dtype.kind == "f"
    }
    return len(numbers) > MOST_NUMBERS or any(math.prod(np.shape(each)) > 1 for each in constants)


def _constants(program: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    """Constants of a program and of all programs within it (of loops, branches, functions that are jitted)."""
    if isinstance(program, ClosedJaxpr):
        yield from program.consts
        program = program.jaxpr
    variables = [*program.outvars, *(each for equation in program.eqns for each in equation.invars)]
    yield from (each.val for each in variables if isinstance(each, Literal))
    for equation in program.eqns:
        for value in equation.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(each, (ClosedJaxpr, Jaxpr)):
                    yield from _constants(each)
                elif eqx.is_array_like(each):
                    yield each
