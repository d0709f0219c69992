"""A set of draws as metrics see it: how many of them are effective, and which depend on each other.

Draws of a chain depend on their neighbours; weighted draws count unevenly; resampled ones are copies, or descend from
the same ancestors. An error that ignores any of it is too small, and calls a right erasure off.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from posterase.draws.draws import Draws, systematic
from posterase.numerics.weights import Estimate, base_weights, element_ess, independent_groups, standard_error


class Sample(NamedTuple):
    """Draws, and what they are worth."""

    draws: Draws
    values: Float[np.ndarray, "n elements"]
    base: Float[np.ndarray, "chain draw"]
    """Weights, summing to one."""
    effective: float
    """Independent draws that would be worth as much, for the worst number."""
    groups: Int[np.ndarray, " n"]
    """Draws of one group may depend on each other; groups hardly do."""
    distinct: Float[np.ndarray, " n"]
    """Weights with those of copies added to the first of them."""

    @property
    def freedom(self) -> float:
        """Degrees of freedom of an error."""
        return float(max(len(np.unique(self.groups)) - 1, 1))

    def mean(self, values: Float[np.ndarray, "chain draw"]) -> Estimate:
        """Of a number that every draw has, with its Monte Carlo error; NaN where some draws have none."""
        if not np.isfinite(values).all():
            return Estimate(float("nan"), float("nan"))
        return Estimate(float((self.base * values).sum()), standard_error(values, self.base, self.groups))

    def most_picks(self, most: int) -> int:
        """How many distinct draws can be picked in proportion to their weights, and be taken for independent.

        Of a chain that remembers only half of what is effective: draws spaced by its memory still share some of it.
        """
        n = len(self.distinct)
        spaced = self.effective * (0.5 + 0.5 * min(1.0, self.effective / n))
        return int(max(1, min(most, spaced, (self.distinct > 0).sum(), 1 / self.distinct.max())))

    def pick(self, key: Key[Array, ""], size: int) -> Int[np.ndarray, " size"]:
        """Places of so many distinct draws."""
        with jax.enable_x64(True):
            return np.asarray(systematic(key, jnp.asarray(self.distinct), size))


def sampled(draws: Draws, ancestors: Any = None) -> Sample:
    """What draws are worth; `ancestors` are the places of those that they were resampled from, where that is known."""
    values, base = draws.matrix(), base_weights(draws)
    first = _first_copies(values)
    if ancestors is None and _is_resampled(first, draws):
        ancestors = first.reshape(base.shape)
    known = None if ancestors is None else np.asarray(ancestors)
    sizes = element_ess(draws, known)
    finite = sizes[np.isfinite(sizes)]
    effective = float(max(finite.min(), 1.0)) if finite.size else float(values.shape[0])
    distinct = np.bincount(first, weights=base.ravel(), minlength=len(values))
    return Sample(draws, values, base, effective, independent_groups(draws, effective, known), distinct)


def rounded_down(size: int) -> int:
    """To three binary digits: so that sizes which depend on the draws do not all compile anew."""
    step = 1 << max(size.bit_length() - 3, 0)
    return size // step * step


def _first_copies(values: Float[np.ndarray, "n elements"]) -> Int[np.ndarray, " n"]:
    """For every draw the first that equals it, told by one number that varies: draws are real."""
    varying = np.flatnonzero(np.ptp(values, axis=0) > 0)
    if not varying.size:
        return np.arange(len(values))
    _, first, inverse = np.unique(values[:, varying[0]], return_index=True, return_inverse=True)
    return first[inverse]


def _is_resampled(first: Int[np.ndarray, " n"], draws: Draws) -> bool:
    """Whether copies lie apart: a chain that refuses a step repeats its draw next to it."""
    own = first.reshape(draws.n_chains, draws.n_draws)
    apart = own != np.arange(own.size).reshape(own.shape)
    apart[:, 1:] &= own[:, 1:] != own[:, :-1]
    return bool(apart.any())
