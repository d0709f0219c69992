"""Hundreds of small refits in one batch: models that saw rows and forgot them, and models that never saw them.

For every model m a random part Tₘ of the other rows is its training set:

    erased   fitted to Tₘ and the rows to forget, which are then erased
    never    fitted to Tₘ
    again    fitted to Tₘ with other random numbers: never against again is the floor

All of them run in one compiled program, several side by side. `posterase.metrics.klom` and `posterase.metrics.u_lira`
compare the margins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, PyTree

from posterase.data.checks import row_ids
from posterase.errors import InvalidOptionError, NonFiniteResultError
from posterase.runtime.checks import check_int
from posterase.runtime.prng import as_key
from posterase.runtime.sharding import map_draws

AT_ONCE = 64

Fit = Callable[[Key[Array, ""], Bool[Array, " rows"]], PyTree]
Erase = Callable[[Key[Array, ""], PyTree, Bool[Array, " rows"], Bool[Array, " rows"]], PyTree]
Margin = Callable[[PyTree, Int[Array, " examples"]], Float[Array, " examples"]]


class ShadowModels(NamedTuple):
    """Margins of the rows to forget."""

    erased: Float[np.ndarray, "models examples"]
    never: Float[np.ndarray, "models examples"]
    again: Float[np.ndarray, "models examples"]


def shadow_models(
    key: Key[Array, ""] | int,
    fit: Fit,
    erase: Erase,
    margin: Margin,
    n_rows: int,
    rows: ArrayLike | Sequence[int],
    *,
    models: int = 256,
    share: float = 0.5,
    at_once: int = AT_ONCE,
) -> ShadowModels:
    """Fit and erase many models, all in one compiled program.

    Parameters
    ----------
    key
        A seed or a jax key.
    fit
        `fit(key, present)` → a model fitted to the rows where the mask is true: one draw of their posterior
        (`pe.LaplaceFit(model, params)` is such a function), or one trained network. It is traced by jax.
    erase
        `erase(key, fitted, present, gone)` → the same with the rows of the mask `gone` erased; `present` are the rows
        that it was fitted to. It is traced by jax.
    margin
        `margin(fitted, ids)` → one number for each of these rows.
    n_rows
        How many rows there are.
    rows
        The rows to forget.
    models
        How many models of each kind.
    share
        Which share of the other rows each model is fitted to.
    at_once
        How many models are fitted side by side.
    """
    check_int("models", models, 1)
    check_int("at_once", at_once, 1)
    check_int("n_rows", n_rows, 2)
    if not 0 < share <= 1:
        raise InvalidOptionError(f"share is {share!r}.", "use a share of the rows, above 0 and at most 1.")
    ids = row_ids(rows, np.ones(n_rows, bool))
    gone = jnp.zeros(n_rows, bool).at[jnp.asarray(ids)].set(True)
    keys = jax.random.split(as_key(key), models)
    margins = _margins(fit, erase, margin, keys, gone, jnp.asarray(ids), share, min(at_once, models))
    found = ShadowModels(*(np.asarray(each, np.float64) for each in margins))
    if not all(np.isfinite(each).all() for each in found):
        raise NonFiniteResultError("some models have margins that are NaN or infinite.", "mend the fit or the margin.")
    return found


@eqx.filter_jit
def _margins(
    fit: Fit,
    erase: Erase,
    margin: Margin,
    keys: Key[Array, " models"],
    gone: Bool[Array, " rows"],
    ids: Int[Array, " examples"],
    share: float,
    at_once: int,
) -> tuple[Array, Array, Array]:
    def one(
        key: Key[Array, ""], fit: Fit, erase: Erase, margin: Margin, gone: Array, ids: Array, share: float
    ) -> tuple[Array, Array, Array]:
        pick, first, second, third, undo = jax.random.split(key, 5)
        others = jax.random.bernoulli(pick, share, gone.shape) & ~gone
        present = others | gone
        erased = erase(undo, fit(first, present), present, gone)
        return margin(erased, ids), margin(fit(second, others), ids), margin(fit(third, others), ids)

    return map_draws(one, keys, at_once, (fit, erase, margin, gone, ids, share))
