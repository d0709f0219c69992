"""Programs that compile fast on a CPU.

XLA's code generator for fused operations and the second level of optimisation make a first request slower. Where a
density passes over little data, they gain little afterwards. Where it passes over more, the generator is worth its
time, since only it vectorises some elementwise functions (`python -m benchmarks compile_options` has both times). So
programs of small densities are compiled without it, and those of others with it. Programs that are evaluated at one
draw only are compiled without any optimisation.

Other devices than CPUs are left to XLA's own choice.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax

Option = tuple[str, bool | int]

PIECES: Option = ("xla_cpu_parallel_codegen_split_count", max(1, (os.cpu_count() or 1) // 2))
"""Pieces that a program's code is generated in, side by side: half of the cores, since two programs are compiled at a
time. XLA's own default, 32, takes longer in all, which two cores do not win back."""

FEW: tuple[Option, ...] = (("xla_cpu_use_fusion_emitters", False), ("xla_backend_optimization_level", 1), PIECES)
"""For programs that run over many draws of a density of little data."""

MORE: tuple[Option, ...] = (("xla_backend_optimization_level", 1), PIECES)
"""The same where a density passes over more data."""

LITTLE_DATA = 10_000
"""Numbers that one evaluation of a density of little data passes over, at the most."""

NONE: tuple[Option, ...] = (
    ("xla_cpu_use_fusion_emitters", False),
    ("xla_backend_optimization_level", 0),
    ("xla_llvm_disable_expensive_passes", True),
    PIECES,
)
"""For programs that run at one draw."""

F = TypeVar("F", bound=Callable[..., Any])


def quick_jit(options: tuple[Option, ...] = FEW, *, elements: Callable[..., int] | None = None) -> Callable[[F], F]:
    """`eqx.filter_jit` with these options of XLA on a CPU. It cannot be called inside of another compiled function.

    `elements`, given the function's arguments, is how many numbers of data an evaluation passes over: many are worth
    more optimisation.
    """

    def decorate(function: F) -> F:
        @functools.cache
        def compiled(chosen: tuple[Option, ...]) -> Any:
            known = _known(chosen) if chosen else {}
            settings: dict[str, Any] = {"compiler_options": known} if known else {}
            return eqx.filter_jit(function, **settings)

        def choose(*args: Any) -> Any:
            if jax.default_backend() != "cpu":
                return compiled(())
            return compiled(MORE if elements is not None and elements(*args) > LITTLE_DATA else options)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return choose(*args)(*args, **kwargs)

        def lower(*args: Any, **kwargs: Any) -> Any:
            return choose(*args).lower(*args, **kwargs)

        call.lower = lower  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


@functools.cache
def _known(options: tuple[Option, ...]) -> dict[str, bool | int]:
    """The options, unless this version of XLA does not have them."""
    chosen = dict(options)
    try:
        jax.jit(lambda: 0, compiler_options=chosen).lower().compile()
    except Exception:  # whatever XLA raises
        return {}
    return chosen
