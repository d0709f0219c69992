"""The three functions that everything hangs on, as objects that go through jax: source, target and log ratio.

`posterase.model.base` says what they are, and owns their signs.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from posterase.model.base import AbstractModel
from posterase.model.change import Change


class LogDensity(eqx.Module):
    """log p(θ) + log p(present rows | θ) of a model, as a function of unconstrained θ."""

    model: AbstractModel

    def __call__(self, theta: PyTree) -> Float[Array, ""]:
        return self.model.log_density(theta)

    @property
    def elements(self) -> int:
        """How many numbers of data one evaluation holds in memory."""
        return self.model.elements(self.model.present.shape[0])


class LogRatio(eqx.Module):
    """target(θ) − source(θ) = log p(S_new | θ) − log p(S | θ), as a function of unconstrained θ."""

    model: AbstractModel
    change: Change

    def __call__(self, theta: PyTree) -> Float[Array, ""]:
        return self.model.log_density_ratio(theta, self.change)

    @property
    def elements(self) -> int:
        """How many numbers of data one evaluation holds in memory."""
        return self.model.elements(self.change.padded_ids.shape[0])


class Split(NamedTuple):
    """The three functions: target(θ) = source(θ) + log_ratio(θ), up to a constant."""

    source: LogDensity
    target: LogDensity
    log_ratio: LogRatio


def split(model: AbstractModel, change: Change) -> Split:
    """Return the log densities before and after a change, and their difference, at unconstrained parameters.

    They compute in the precision of their argument. Weights are differences of them, for which float32 is not enough:
    `posterase.numerics.densities.evaluate` gives those.
    """
    return Split(LogDensity(model), LogDensity(model.without(change)), LogRatio(model, change))
