"""The paper's membership attack (Appendix D): a threshold on the probability of the true class.

    Acc(ρ) = ½ (share of kept rows with f_θ(x)_y ≥ ρ + share of test rows with f_θ(x)_y < ρ)

is maximised over ρ on kept and test rows; what is reported is the share of removed rows with f_θ(x)_y ≥ ρ*: how many of
them the attack takes for members. Lower is *not* better: the target is what a refit, which never saw them, gives.
Any increasing function of the probability gives the same shares: log-likelihoods do, and keep apart what rounds to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from posterase.errors import InvalidOptionError
from posterase.runtime.checks import check_finite
from posterase.runtime.precision import widest_float


def membership_attack(
    kept: ArrayLike | Sequence[Any], test: ArrayLike | Sequence[Any], removed: ArrayLike | Sequence[Any]
) -> float:
    """The share of removed rows taken for members, averaged over draws.

    Arguments are probabilities of the true classes, `(draws, rows)`.
    """
    return float(member_shares(kept, test, removed).mean())


def member_shares(
    kept: ArrayLike | Sequence[Any], test: ArrayLike | Sequence[Any], removed: ArrayLike | Sequence[Any]
) -> Float[np.ndarray, " draws"]:
    """The same for every draw."""
    given = {"kept": kept, "test": test, "removed": removed}
    sets = {name: check_finite(name, values, "draws rows") for name, values in given.items()}
    for name, values in sets.items():
        if values.shape[-1] == 0:
            raise InvalidOptionError(f"there are no {name} rows.", "the attack needs kept, test and removed rows.")
        draws = len(sets["kept"])
        if len(values) != draws or draws == 0:
            raise InvalidOptionError(f"{name} has {len(values)} draws.", f"give as many of each: {draws}.")
    with jax.enable_x64(True):
        return np.asarray(_member_shares(*(jnp.asarray(each, jnp.float64) for each in sets.values())))


def member_share(
    kept: Float[Array, " kept"],
    test: Float[Array, " test"],
    removed: Float[Array, " removed"],
    counted: Bool[Array, " removed"] | None = None,
) -> Float[Array, ""]:
    """The share of removed rows taken for members at one draw; of those that are counted, where some are padding."""
    return jnp.mean(removed >= threshold(kept, test), dtype=widest_float(), where=counted)


def threshold(kept: Float[Array, " kept"], test: Float[Array, " test"]) -> Float[Array, ""]:
    """The best threshold between members and others; of several as good ones the lowest."""
    members, others = len(kept), len(test)
    both = jnp.concatenate([kept, test])
    order = jnp.argsort(both)
    values, is_member = both[order], order < members
    # How many of either are below: right at the first of equal values, which stands for all of them.
    below = jnp.cumsum(is_member) - is_member
    below_others = jnp.arange(members + others) - below
    is_first = jnp.concatenate([jnp.ones(1, bool), values[1:] != values[:-1]])
    # Whole numbers, so that equal accuracies are equal to the bit: 2 Acc · members · others.
    right = (members - below).astype(widest_float()) * others + below_others.astype(widest_float()) * members
    return values[jnp.argmax(jnp.where(is_first, right, -1))]


_member_shares = jax.jit(jax.vmap(member_share))
