"""The three functions that everything hangs on, as objects that go through jax: full, kept and removed.

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


class RemovedLogLikelihood(eqx.Module):
    """log p(S | θ) − log p(S − S′ | θ), as a function of unconstrained θ."""

    model: AbstractModel
    change: Change

    def __call__(self, theta: PyTree) -> Float[Array, ""]:
        return self.model.log_removed_density(theta, self.change)

    @property
    def elements(self) -> int:
        """How many numbers of data one evaluation holds in memory."""
        return self.model.elements(self.change.padded_ids.shape[0])


class Split(NamedTuple):
    """The three functions: full(θ) = kept(θ) + removed(θ), up to a constant."""

    full: LogDensity
    kept: LogDensity
    removed: RemovedLogLikelihood


def split(model: AbstractModel, change: Change) -> Split:
    """The log densities of all rows, of the kept rows, and what the removed rows add, at unconstrained parameters.

    They compute in the precision of their argument. Weights are differences of them, for which float32 is not enough:
    `posterase.numerics.densities.evaluate` gives those.
    """
    return Split(
        full=LogDensity(model), kept=LogDensity(model.without(change)), removed=RemovedLogLikelihood(model, change)
    )
