"""Step sizes η_t of stochastic-gradient samplers, t = 1, 2, 3, …

    PolynomialSteps(a, b, r):    η_t = a (b + t)^−r

Draws converge to the posterior where Ση_t = ∞ (the chain can reach everywhere) and Ση_t² < ∞ (the noise of the
mini-batches dies out): 0.5 < r ≤ 1 (Welling & Teh 2011; Section 3 of the paper). A constant step breaks the second
condition: it samples a neighbour of the posterior, the stationary law of the discretised chain, and says so.
"""

from __future__ import annotations

import abc
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from posterase.errors import DiscretisedChainWarning, ScheduleError
from posterase.runtime.checks import check_type
from posterase.runtime.precision import Number, is_known


class Schedule(eqx.Module):
    """The step size at each step."""

    @abc.abstractmethod
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """η_t, for t = 1, 2, 3, …"""

    @abc.abstractmethod
    def scaled(self, factor: Number) -> Schedule:
        """The same schedule, times a factor."""


class PolynomialSteps(Schedule):
    """η_t = a (b + t)^−r.

    Parameters
    ----------
    a
        Scale, positive. For a posterior of N rows it is of the order 1/N.
    b
        Offset, not negative.
    r
        Decay, above 0.5 and at most 1.
    """

    a: Number
    b: Number = 0.0
    r: Number = 0.5005

    def __check_init__(self) -> None:
        if not is_known(self.a, self.b, self.r):
            return
        for name, value in (("a", self.a), ("b", self.b), ("r", self.r)):
            check_type(value, (int, float, np.number, np.ndarray, jax.Array), name, "use a number.")
        a, b, r = float(self.a), float(self.b), float(self.r)
        if not (0 < a < float("inf") and 0 <= b < float("inf")):
            raise ScheduleError(f"the schedule a(b + t)^−r has a = {a:g}, b = {b:g}.", "use a > 0 and b ≥ 0.")
        if r > 1:
            raise ScheduleError(
                f"with r = {r:g} the step sizes have a finite sum: Ση_t = ∞ is broken, the chain stops short.",
                "use 0.5 < r ≤ 1.",
            )
        if not r > 0.5:  # NaN too
            raise ScheduleError(
                f"with r = {r:g} the squared step sizes have an infinite sum: Ση_t² < ∞ is broken, the noise of the "
                "mini-batches never dies out.",
                "use 0.5 < r ≤ 1, or ask for a constant step by name: ConstantSteps(step_size).",
            )

    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        return self.a * (self.b + t) ** (-jnp.asarray(self.r, float))

    def scaled(self, factor: Number) -> PolynomialSteps:
        return PolynomialSteps(self.a * factor, self.b, self.r)


class ConstantSteps(Schedule):
    """η_t = step_size: samples the discretised chain, not the posterior."""

    step_size: Number

    def __check_init__(self) -> None:
        if not is_known(self.step_size):
            return
        check_type(
            self.step_size, (int, float, np.number, np.ndarray, jax.Array), "step_size", "use a positive number."
        )
        if not 0 < float(self.step_size) < float("inf"):
            raise ScheduleError(f"the step size is {self.step_size}.", "use a positive number.")
        warnings.warn(
            "a constant step size breaks Ση_t² < ∞: the chain samples its own discretisation, which is wider than the "
            "posterior by a share of about step × curvature / 2, and wider still with mini-batches.",
            DiscretisedChainWarning,
            stacklevel=3,
        )

    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.asarray(self.step_size, float)

    def scaled(self, factor: Number) -> ConstantSteps:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DiscretisedChainWarning)
            return ConstantSteps(self.step_size * factor)
