"""Constrained parameters: from the scale people use to the whole real line, and back.

A transform t maps an unconstrained vector u to a parameter x = t(u) in its support. Methods work on u; the density of
u is the density of x times |dt/du|, and `log_det_jacobian(u)` is the log of that factor, summed over the parameter's
last axis where the transform is joint (`ordered`, `simplex`) and over all its elements in any case: one number.

The maps are those of Stan's reference manual, so that draws and densities can be compared with it. They are our own
because the core depends on no distribution library; bridges use their library's own transforms.
"""

from __future__ import annotations

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from posterase.errors import InvalidOptionError


class Transform(eqx.Module):
    """A smooth one-to-one map from unconstrained vectors onto a parameter's support."""

    @abc.abstractmethod
    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """The parameter x = t(u)."""

    @abc.abstractmethod
    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The unconstrained u with t(u) = x."""

    @abc.abstractmethod
    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        """log |det dt/du| at u, over all elements."""

    @abc.abstractmethod
    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        """Which draws' elements (or vectors, for joint transforms) lie strictly inside the support."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The support in words, for messages: "positive", "between 0 and 1"."""


class Identity(Transform):
    """No constraint."""

    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return u

    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x

    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.zeros((), u.dtype)

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        return np.isfinite(x)

    def describe(self) -> str:
        return "real"


class GreaterThan(Transform):
    """x = low + exp(u)."""

    low: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_bounds(self.low)

    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.low + jnp.exp(u)

    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(x - self.low)

    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(u)

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        return x > self.low

    def describe(self) -> str:
        return "positive" if self.low == 0 else f"greater than {self.low:g}"


class LessThan(Transform):
    """x = high − exp(u)."""

    high: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_bounds(self.high)

    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.high - jnp.exp(u)

    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(self.high - x)

    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(u)

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        return x < self.high

    def describe(self) -> str:
        return f"less than {self.high:g}"


class Interval(Transform):
    """x = low + (high − low) · logistic(u)."""

    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_bounds(self.low, self.high)

    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.low + (self.high - self.low) * jax.nn.sigmoid(u)

    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(x - self.low) - jnp.log(self.high - x)

    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(math.log(self.high - self.low) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u))

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        return (x > self.low) & (x < self.high)

    def describe(self) -> str:
        return f"between {self.low:g} and {self.high:g}"


class Ordered(Transform):
    """Vectors that increase along their last axis: x₁ = u₁, xₖ = xₖ₋₁ + exp(uₖ)."""

    def forward(self, u: Float[Array, "*batch k"]) -> Float[Array, "*batch k"]:
        steps = jnp.concatenate([u[..., :1], jnp.exp(u[..., 1:])], axis=-1)
        return jnp.cumsum(steps, axis=-1)

    def inverse(self, x: Float[Array, "*batch k"]) -> Float[Array, "*batch k"]:
        return jnp.concatenate([x[..., :1], jnp.log(jnp.diff(x, axis=-1))], axis=-1)

    def log_det_jacobian(self, u: Float[Array, "*batch k"]) -> Float[Array, ""]:
        return jnp.sum(u[..., 1:])

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        return np.all(np.diff(x, axis=-1) > 0, axis=-1)

    def describe(self) -> str:
        return "increasing along the last axis"


class Simplex(Transform):
    """Positive vectors that sum to one along their last axis, by stick breaking: K values from K − 1."""

    def forward(self, u: Float[Array, "*batch free"]) -> Float[Array, "*batch k"]:
        return jnp.exp(self._log_forward(u))

    def inverse(self, x: Float[Array, "*batch k"]) -> Float[Array, "*batch free"]:
        # What is left of the stick after each break, summed from the small end so that nothing cancels.
        left = jnp.flip(jnp.cumsum(jnp.flip(x, -1), axis=-1), -1)[..., 1:]
        return jnp.log(x[..., :-1]) - jnp.log(left) + self._offsets(x.shape[-1] - 1, x.dtype)

    def log_det_jacobian(self, u: Float[Array, "*batch free"]) -> Float[Array, ""]:
        # dxₖ/duₖ = leftₖ · zₖ (1 − zₖ) on a triangular Jacobian, and xₖ = leftₖ · zₖ.
        z = u - self._offsets(u.shape[-1], u.dtype)
        return jnp.sum(self._log_forward(u)[..., :-1] + jax.nn.log_sigmoid(-z))

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        # Files round: what sums to one within 1e-4 is taken as meant to, and is normalised on the way.
        return np.all(x > 0, axis=-1) & (np.abs(x.sum(axis=-1) - 1) <= 1e-4)

    def describe(self) -> str:
        return "positive and summing to one along the last axis"

    def _log_forward(self, u: Float[Array, "*batch free"]) -> Float[Array, "*batch k"]:
        z = u - self._offsets(u.shape[-1], u.dtype)
        log_left = jnp.cumsum(jax.nn.log_sigmoid(-z), axis=-1)
        before = jnp.concatenate([jnp.zeros_like(z[..., :1]), log_left[..., :-1]], axis=-1)
        return jnp.concatenate([before + jax.nn.log_sigmoid(z), log_left[..., -1:]], axis=-1)

    def _offsets(self, free: int, dtype: jnp.dtype) -> Float[Array, " free"]:
        # Stan's centring: u = 0 is the middle of the simplex.
        return jnp.log(jnp.arange(free, 0, -1, dtype=dtype))


def greater_than(low: float) -> GreaterThan:
    """x > low."""
    return GreaterThan(low)


def less_than(high: float) -> LessThan:
    """x < high."""
    return LessThan(high)


def interval(low: float, high: float) -> Interval:
    """low < x < high."""
    return Interval(low, high)


def _check_bounds(*bounds: float) -> None:
    if not all(math.isfinite(bound) for bound in bounds) or list(bounds) != sorted(set(bounds)):
        raise InvalidOptionError(
            f"a transform cannot have the bounds {', '.join(map(str, bounds))}.",
            "bounds are finite, and the lower one is below the upper; leave unbounded parameters out of `transforms`.",
        )


real = Identity()
positive = greater_than(0.0)
unit_interval = interval(0.0, 1.0)
ordered = Ordered()
simplex = Simplex()
