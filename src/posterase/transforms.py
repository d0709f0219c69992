"""Constrained parameters: from the scale people use to the whole real line, and back.

A transform t maps an unconstrained vector u to a parameter x = t(u) in its support. Erasers work on u; the density of
u is the density of x times |dt/du|, and `log_det_jacobian(u)` is the log of that factor, summed over the parameter's
last axis where the transform is joint (`ordered`, `simplex`) and over all its elements in any case: one number.

The maps are those of Stan's reference manual, so that draws and densities can be compared with it. They are our own
because the core depends on no distribution library; bridges use their library's own transforms.
"""

from __future__ import annotations

import abc

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


class Bounded(Transform):
    """x above `low` (exp), below `high` (−exp), or between both (logistic)."""

    low: float | None = eqx.field(static=True)
    high: float | None = eqx.field(static=True)

    def __check_init__(self) -> None:
        low, high = self.low, self.high
        finite = all(bound is None or np.isfinite(bound) for bound in (low, high))
        if not finite or (low is None and high is None) or (low is not None and high is not None and not low < high):
            raise InvalidOptionError(
                f"a transform cannot have the bounds low={low}, high={high}.",
                "give one finite bound, or two with low < high; leave unbounded parameters out of `transforms`.",
            )

    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        if self.high is None:
            return self.low + jnp.exp(u)
        if self.low is None:
            return self.high - jnp.exp(u)
        return self.low + (self.high - self.low) * jax.nn.sigmoid(u)

    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        if self.high is None:
            return jnp.log(x - self.low)
        if self.low is None:
            return jnp.log(self.high - x)
        return jnp.log(x - self.low) - jnp.log(self.high - x)

    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        if self.low is None or self.high is None:
            return jnp.sum(u)
        return jnp.sum(jnp.log(self.high - self.low) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u))

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        return (x > low) & (x < high)

    def describe(self) -> str:
        if self.high is None:
            return "positive" if self.low == 0 else f"greater than {self.low:g}"
        if self.low is None:
            return f"less than {self.high:g}"
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
        tolerance = 100 * np.finfo(x.dtype).eps * x.shape[-1]
        return np.all(x > 0, axis=-1) & (np.abs(x.sum(axis=-1) - 1) <= tolerance)

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


def greater_than(low: float) -> Bounded:
    """x > low."""
    return Bounded(low=low, high=None)


def less_than(high: float) -> Bounded:
    """x < high."""
    return Bounded(low=None, high=high)


def interval(low: float, high: float) -> Bounded:
    """low < x < high."""
    return Bounded(low=low, high=high)


real = Identity()
positive = greater_than(0.0)
unit_interval = interval(0.0, 1.0)
ordered = Ordered()
simplex = Simplex()
