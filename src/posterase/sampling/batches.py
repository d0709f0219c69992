"""Mini-batches, drawn on the device inside the sampler's loop, and the unbiased gradients they give.

    ∇Ũ(θ) = −(N/n) Σ over the batch of ∇log p(z | θ) − ∇log p(θ)        n rows drawn with replacement from the N present

With replacement every batch is an independent draw, so E ∇Ũ = ∇U exactly, whichever rows have been removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.data.row_source import row_source
from posterase.errors import InvalidOptionError
from posterase.model.base import AbstractModel
from posterase.model.factorised import Model


class Rows(NamedTuple):
    """The rows that are present, ready to be drawn from."""

    order: Int[Array, " rows"]
    """Ids, the present ones first."""
    n: Int[Array, ""]
    """How many are present."""


def present_rows(present: Bool[Array, " rows"]) -> Rows:
    """The present rows of a model."""
    return Rows(jnp.argsort(~present, stable=True), present.sum())


def draw(key: Key[Array, ""], rows: Rows, size: int) -> Int[Array, " size"]:
    """Ids of a mini-batch, drawn with replacement from the present rows."""
    return rows.order[jax.random.randint(key, (size,), 0, rows.n)]


class BatchDensity(eqx.Module):
    """log p(θ) + (N/n) Σ over a batch of log p(z | θ): an unbiased estimate of a model's log density."""

    model: Model
    batch: Int[Array, " size"]
    n: Int[Array, ""]

    def __call__(self, theta: PyTree) -> Float[Array, ""]:
        model = self.model
        params = model.constrain(theta)
        rows = row_source(model.data).take(self.batch)
        values = model.log_likelihood(params, rows)
        prior = model.log_prior(params) + model.log_det_jacobian(theta)
        return prior + self.n / self.batch.size * jnp.sum(values)


def density(key: Key[Array, ""], model: AbstractModel, rows: Rows, size: int | None) -> Callable[[PyTree], Array]:
    """log p(θ, S) of unconstrained θ: exact, or estimated from a mini-batch of `size` rows."""
    if size is None:
        return model.log_density
    assert isinstance(model, Model)  # check_batch has refused others
    return BatchDensity(model, draw(key, rows, size), rows.n)


def check_batch(model: AbstractModel, size: int | None, rows: int | None = None) -> None:
    """A batch has at least one row, at most all (or `rows`) of them, and needs a model that factorises."""
    if size is None:
        return
    rows = model.n_rows if rows is None else rows
    if not isinstance(model, Model):
        raise InvalidOptionError(
            "mini-batches need a model whose rows are independent.", "use batch=None: every step sees all rows."
        )
    whole = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
    if not (whole and 1 <= size <= rows):
        raise InvalidOptionError(
            f"batch is {size!r}, of {rows} rows.", "use a whole number from 1 to the rows, or None for all."
        )
