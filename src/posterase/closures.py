"""Arrays that a function uses beside its arguments: out of a closure, a module's globals, a default value.

Such arrays are constants of the function's compiled program, and a copy of them is wherever the program is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree


def holds_arrays(function: Callable[..., PyTree], *args: PyTree) -> bool:
    """Whether a function's program has an array of more than one element for a constant.

    The function is traced, not run: shapes (`jax.ShapeDtypeStruct`) will do for arguments. One that cannot be traced is
    taken to hold arrays; what is wrong with it shows when it is called.
    """
    try:
        program, _, _ = eqx.filter_make_jaxpr(function)(*args)
    except Exception:
        return True
    return any(math.prod(np.shape(constant)) > 1 for constant in _constants(program))


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
