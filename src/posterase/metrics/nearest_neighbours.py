"""The paper's ε̂_M (Definition 2, Appendix D): KL between erased and refitted draws, by nearest neighbours.

For draws x₁ … xₙ of one law and y₁ … yₘ of the other, in d dimensions (Wang et al. 2009),

    KL ≈ (d/n) Σᵢ log(νᵢ/ρᵢ) + log(m/(n − 1)),

where ρᵢ is the distance from xᵢ to its k-th neighbour among the other x and νᵢ to its k-th among the y. ε̂_M is its mean
over M seeds, both runs of a pair from the same seed (the same pre-trained start).

**Read it next to its floor.** In many dimensions draws have no near neighbours, and the estimate is d times the log of
one typical distance over another: of chains, the distance between them over the length of a step. Two refits, whose
divergence is nil, then give thousands of nats, and so does everything else. The floor is therefore part of the answer.

References
----------
Wang, Kulkarni, Verdú (2009), Divergence estimation for multidimensional densities via k-nearest-neighbor distances,
IEEE Transactions on Information Theory 55.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from posterase.errors import DifferentModelError, DrawsShapeError, MeaninglessDimensionWarning
from posterase.numerics.weights import Estimate
from posterase.runtime.checks import check_finite, check_int
from posterase.runtime.sharding import map_draws

DIMENSIONS_AT_ONCE = 2**13
"""Differences between draws are summed over so many dimensions at a time on a CPU."""


class KnowledgeRemoval(NamedTuple):
    """ε̂_M of erased draws, next to what two refits give."""

    epsilon: Estimate
    """Mean over seeds, with its standard error."""
    floor: Estimate
    """The same between refits, paired by the same seeds."""
    by_seed: Float[np.ndarray, " seeds"]
    floor_by_seed: Float[np.ndarray, " seeds"]
    warning: str
    """Why the figure means nothing here; empty where it may."""

    def __str__(self) -> str:
        text = f"ε̂ {self.epsilon}, floor {self.floor} ({len(self.by_seed)} seeds)"
        return f"{text}\n  Warning: {self.warning}" if self.warning else text


def knowledge_removal(
    erased: ArrayLike | Sequence[Any],
    refit: ArrayLike | Sequence[Any],
    second_refit: ArrayLike | Sequence[Any],
    *,
    k: int = 1,
) -> KnowledgeRemoval:
    """ε̂_M, with its floor.

    Parameters
    ----------
    erased
        Draws after an erasure, one run a seed: `(seeds, draws, parameters)`.
    refit
        Draws of refits from the same seeds: the target.
    second_refit
        Draws of other refits from the same seeds, which take the place of the erased draws in the floor.
    k
        Which neighbour. The paper's is the first.
    """
    axes = "seeds draws parameters"
    given = {"erased": erased, "refit": refit, "second_refit": second_refit}
    runs, target, again = (check_finite(name, each, axes) for name, each in given.items())
    if not len(runs) == len(target) == len(again) or len(runs) == 0:
        raise DrawsShapeError(
            f"there are {len(runs)} erased runs, {len(target)} refits and {len(again)} second refits.",
            "ε̂ pairs runs by seed: give one run of each for every seed.",
        )
    own, floor = (
        [nearest_neighbour_kl(x, y, k=k) for x, y in zip(each, target, strict=True)] for each in (runs, again)
    )
    epsilon, lowest = _mean(own), _mean(floor)
    doubt = warning_for(runs.shape[2], min(runs.shape[1], target.shape[1]), lowest)
    if doubt:
        warnings.warn(doubt, MeaninglessDimensionWarning, stacklevel=2)
    by_seed, floor_by_seed = (np.array([each.value for each in found]) for found in (own, floor))
    return KnowledgeRemoval(epsilon, lowest, by_seed, floor_by_seed, doubt)


def warning_for(d: int, n: int, floor: Estimate | None) -> str:
    """Why n draws in d dimensions have no near neighbours; empty where they have."""
    if d <= np.log2(n):
        return ""
    told = "" if floor is None else f": two refits of one law differ by {floor.value:,.3g} nats here, where 0 is right"
    return f"{n} draws have no near neighbours in {d:,} dimensions{told}; look at the difference from the floor only"


def nearest_neighbour_kl(one: ArrayLike | Sequence[Any], other: ArrayLike | Sequence[Any], *, k: int = 1) -> Estimate:
    """KL(one ‖ other) in nats from draws `(draws, parameters)`; its error takes them for independent.

    Works in any number of dimensions.
    """
    check_int("k", k, 1)
    x, y = (check_finite(name, each, "draws parameters") for name, each in (("one", one), ("other", other)))
    n, d = x.shape
    if d != y.shape[1] or d == 0:
        raise DrawsShapeError(f"the draws have {d} and {y.shape[1]} numbers each.", "compare draws of the same model.")
    if n <= k or len(y) < k:
        raise DrawsShapeError(f"there are {n} and {len(y)} draws.", f"each needs more than {k} of them.")
    return kl_of_neighbours(jnp.asarray(x), jnp.asarray(y), k)


def kl_of_neighbours(x: Float[Array, "n d"], y: Float[Array, "m d"], k: int = 1) -> Estimate:
    """The same of arrays that are known to be right; they stay on the device that they are on."""
    n, d = x.shape
    own, across = (np.asarray(each, np.float64) for each in _neighbours(x, y, k))
    repeated = int((own <= 0).sum() + (across <= 0).sum())
    if repeated:
        raise DifferentModelError(
            f"{repeated} draws have a copy of themselves as a neighbour.",
            "give distinct draws: not resampled ones, not those of a chain that stands still, no draw on both sides.",
        )
    terms = 0.5 * d * (np.log(across) - np.log(own))
    value = terms.mean() + np.log(len(y) / (n - 1))
    return Estimate(float(value), float(terms.std(ddof=1) / np.sqrt(n)))


@partial(jax.jit, static_argnames="k")
def _neighbours(
    one: Float[Array, "n d"], other: Float[Array, "m d"], k: int
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Squared distances to the k-th neighbour within one sample, and in the other.

    From differences, not from inner products: draws of a chain are far nearer to each other than to the origin.
    """
    own = squared_distances(one, one) + jnp.diag(jnp.full(len(one), jnp.inf, one.dtype))
    across = squared_distances(one, other)
    return -jax.lax.top_k(-own, k)[0][:, -1], -jax.lax.top_k(-across, k)[0][:, -1]


def squared_distances(one: Float[Array, "n d"], other: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """‖xᵢ − yⱼ‖², on a CPU a block of dimensions at a time, for its caches; nothing of size n × m × d is held."""
    d = one.shape[1]
    size = min(d, DIMENSIONS_AT_ONCE) if jax.default_backend() == "cpu" else d
    parts = [jnp.pad(each, ((0, 0), (0, -d % size))).reshape(len(each), -1, size) for each in (one, other)]

    def add(total: Float[Array, "n m"], block: tuple[Array, Array]) -> tuple[Float[Array, "n m"], None]:
        x, y = block
        return total + map_draws(lambda row, y: jnp.sum((y - row) ** 2, axis=1), x, shared=(y,)), None

    zero = jnp.zeros((len(one), len(other)), one.dtype)
    return jax.lax.scan(add, zero, (parts[0].swapaxes(0, 1), parts[1].swapaxes(0, 1)))[0]


def _mean(estimates: list[Estimate]) -> Estimate:
    """Over seeds; the error from their spread, where there are several."""
    values = np.array([each.value for each in estimates])
    if len(values) == 1:
        return estimates[0]
    return Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))
