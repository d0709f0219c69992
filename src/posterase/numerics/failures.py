"""What every public call does around its work, and failures of a computation, apart from mistakes of the caller.

A method may meet a singular matrix, an overflow, a solver that does not converge, or too little memory: then another
method may still work. Whatever library says so, and in whatever class of errors, it is one failure here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, overload

import equinox as eqx
import jax
import numpy as np

from posterase.data.streams import read_error
from posterase.errors import NonFiniteResultError, PosteraseError
from posterase.runtime.compilation_cache import compilation_scope
from posterase.runtime.garbage import rare_collections
from posterase.runtime.precision import failed_running

P = ParamSpec("P")
R = TypeVar("R")

LIBRARIES = "numpy", "scipy", "jax", "jaxlib", "lineax", "equinox", "blackjax"
"""Their own errors about values are failures, too: "array must not contain infs or NaNs"."""


def numerical_failure(error: Exception) -> PosteraseError | None:
    """The failure of a computation as an error of ours; None where it is none, and should be raised as it is."""
    if isinstance(error, PosteraseError):
        return error if isinstance(error, ArithmeticError) else None
    if read_error(error) is not None or jax.process_count() > 1:
        return None  # of the file that rows are read from; of processes that wait for each other
    said = (str(error) or type(error).__name__).splitlines()[0][:200]
    if "KeyboardInterrupt" in said:
        return None
    known = isinstance(error, (ArithmeticError, np.linalg.LinAlgError, eqx.EquinoxRuntimeError)) or failed_running(
        error
    )
    if not known and not (isinstance(error, ValueError) and _raised_by(error) in LIBRARIES):
        return None
    return NonFiniteResultError(f"the computation failed: {said}", "remove fewer rows at a time.")


@overload
def entry_point(function: Callable[P, R]) -> Callable[P, R]: ...
@overload
def entry_point(*, converts_failures: bool) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def entry_point(
    function: Callable[P, R] | None = None, *, converts_failures: bool = False
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function that compiles programs.

    The function runs in a `compilation_scope`, with rare garbage collections. An error in reading rows is raised as it
    was before compiled code made another one of it. With `converts_failures`, the failure of a computation is raised
    as an error of ours. All of it is one decorator, so that a traceback has one frame more, not four.
    """
    if function is None:
        return functools.partial(_wrap, converts_failures=converts_failures)
    return _wrap(function, converts_failures)


def _wrap(function: Callable[P, R], converts_failures: bool) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with rare_collections(), compilation_scope():
            try:
                return function(*args, **kwargs)
            except Exception as error:
                cause = read_error(error)
                if cause is None:
                    failure = numerical_failure(error) if converts_failures else None
                    if failure is None or failure is error:
                        raise
                    raise failure from error
            raise cause  # not while the other error is handled: it would be its context

    return call


def _raised_by(error: BaseException) -> str:
    """The package of the code that raised an error."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else str(at.tb_frame.f_globals.get("__name__", "")).split(".")[0]
