"""Step sizes η_t of stochastic-gradient samplers, t = 1, 2, 3, …

    PolynomialSteps(a, b, r):           η_t = a (b + t)^−r
    ConstantSteps(step_size):           η_t = step_size
    CyclicalSteps(step_size, cycle):    η_t = step_size / 2 · (1 + cos π r_t),    r_t = ((t − 1) mod cycle) / cycle

Draws converge to the posterior where Ση_t = ∞ (the chain can reach everywhere) and Ση_t² < ∞ (the noise of the
mini-batches dies out): 0.5 < r ≤ 1 (Welling & Teh 2011; Section 3 of the paper). A constant step breaks the second
condition: it samples a neighbour of the posterior, the stationary law of the discretised chain, and says so. Cyclical
steps (Zhang et al. 2020, Equation 1) break it too: they start large, to leave a mode, and end every cycle near zero.

References
----------
.. [1] Welling, M. and Teh, Y. W. (2011). Bayesian learning via stochastic gradient Langevin dynamics. ICML.
.. [2] Zhang, R., Li, C., Zhang, J., Chen, C. and Wilson, A. G. (2020). Cyclical stochastic gradient MCMC for Bayesian
   deep learning. ICLR.
"""

from __future__ import annotations

import abc
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from posterase.errors import DiscretisedChainWarning, InvalidOptionError
from posterase.runtime.checks import check_int, check_type
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
            raise InvalidOptionError(f"the schedule a(b + t)^−r has a = {a:g}, b = {b:g}.", "use a > 0 and b ≥ 0.")
        if r > 1:
            raise InvalidOptionError(
                f"with r = {r:g} the step sizes have a finite sum: Ση_t = ∞ is broken, the chain stops short.",
                "use 0.5 < r ≤ 1.",
            )
        if not r > 0.5:  # NaN too
            raise InvalidOptionError(
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
        _check_step_size(self.step_size)
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


class CyclicalSteps(Schedule):
    """η_t = step_size / 2 · (1 + cos π r_t): cycles that begin with large steps and end with small ones.

    r_t = ((t − 1) mod cycle) / cycle is the share of the cycle that is over before step t.

    Parameters
    ----------
    step_size
        The step size that every cycle begins with.
    cycle
        Steps in a cycle.
    """

    step_size: Number
    cycle: int | Int[Array, ""]

    def __check_init__(self) -> None:
        if not is_known(self.step_size, self.cycle):
            return
        _check_step_size(self.step_size)
        check_int("cycle", int(self.cycle) if isinstance(self.cycle, jax.Array) else self.cycle, 2)

    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        return 0.5 * self.step_size * (1 + jnp.cos(jnp.pi * self.position(t)))

    def position(self, t: Int[Array, "*steps"]) -> Float[Array, "*steps"]:
        """r_t, at least 0 and below 1."""
        return (t - 1) % self.cycle / jnp.asarray(self.cycle, float)

    def scaled(self, factor: Number) -> CyclicalSteps:
        return CyclicalSteps(self.step_size * factor, self.cycle)


def _check_step_size(step_size: Number) -> None:
    check_type(step_size, (int, float, np.number, np.ndarray, jax.Array), "step_size", "use a positive number.")
    if not 0 < float(step_size) < float("inf"):
        raise InvalidOptionError(f"the step size is {step_size}.", "use a positive number.")
