"""Log-likelihoods that somebody has stored: one value a row and draw, and no function to compute another.

It is what a file of any program's fit may hold, and it is enough for weights: log w(θ) = −Σ log p(z | θ) over the
removed rows, at the draws that are there. Nothing can be moved with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Int, PyTree

from posterase.draws.draws import Draws
from posterase.draws.io import pieces, select_draws
from posterase.errors import DifferentModelError, NeedsDensityError, NonFiniteResultError
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.transforms import Transform

GIVE_THE_MODEL = (
    "Give the model as well, through its bridge: pe.from_numpyro(model, *data, draws=file), "
    "pe.from_stan(program, data, file), …; or write it down: pe.Model(…) with pe.Draws.from_arviz(file)."
)


class LikelihoodBlock:
    """Stored log-likelihoods of the rows of one axis: variables `(chain, draw, row, …)` of the rows that are left."""

    def __init__(self, size: int, variables: Sequence[xr.Variable], rows: Int[np.ndarray, " left"] | None = None):
        self.size, self.variables = size, tuple(variables)
        self.rows = np.arange(size) if rows is None else rows

    def total(self, rows: Int[np.ndarray, " some"]) -> Float[np.ndarray, "chain draw"]:
        """Σ over these rows, in float64. Variables are read a piece at a time: they may be larger than memory."""
        places = np.searchsorted(self.rows, rows)
        total = np.zeros(self.variables[0].shape[:2])
        for variable in self.variables:
            for (chain, draw, *_), values in pieces(variable):
                picked = np.take(values, places, axis=2).astype(np.float64)
                total[chain, draw] += picked.sum(axis=tuple(range(2, picked.ndim)))
        return total

    def without(self, left: Bool[np.ndarray, " rows"]) -> LikelihoodBlock:
        """Only the rows that are left; still in the file, where they are there."""
        places = np.flatnonzero(left[self.rows])
        return LikelihoodBlock(self.size, [each[:, :, places] for each in self.variables], self.rows[places])

    def at_draws(self, chain: xr.Variable, draw: xr.Variable) -> LikelihoodBlock:
        """The same at some of the draws."""
        picked = [select_draws(each, chain.values, draw.values) for each in self.variables]
        return LikelihoodBlock(self.size, picked, self.rows)


class StoredLikelihoods(AbstractModel):
    """A model of which nothing is known but its rows' log-likelihoods at some draws."""

    has_density: ClassVar[bool] = False

    data: PyTree
    present: Bool[Array, " rows"]
    transforms: dict[str, Transform]
    blocks: tuple[LikelihoodBlock, ...] = eqx.field(static=True)
    fitted: PyTree
    """The draws that they were computed at."""

    def __init__(self, blocks: Sequence[LikelihoodBlock], fitted: PyTree):
        self.blocks = tuple(blocks)
        self.data = jnp.arange(sum(block.size for block in self.blocks))
        self.present = jnp.concatenate([jnp.isin(jnp.arange(block.size), block.rows) for block in self.blocks])
        self.transforms = {}
        self.fitted = fitted

    def at_draws(self, places: Int[np.ndarray, "chain draw"], draws: Draws) -> StoredLikelihoods:
        """The same for some of its draws: `draws`, which are at these places with chains laid end to end."""
        shape = jax.tree.leaves(self.fitted)[0].shape[:2]
        index = [xr.Variable(("chain", "draw"), each) for each in np.unravel_index(places, shape)]
        selected = StoredLikelihoods([block.at_draws(*index) for block in self.blocks], draws.params)
        return eqx.tree_at(lambda each: each.present, selected, self.present)

    def stored_log_ratio(self, draws: Draws, change: Change) -> Float[np.ndarray, "chain draw"]:
        """−Σ log p(z | θ) over the removed rows, at the draws that it was stored for."""
        for name, ours, theirs in zip(draws.names, *map(jax.tree.leaves, (draws.params, self.fitted)), strict=True):
            if ours is not theirs and not np.array_equal(ours, theirs):
                raise DifferentModelError(
                    f"{name} is not as it was in the file that the log-likelihoods are from.",
                    "use the draws that pe.from_arviz gave; draws that moved, or were resampled, have other "
                    "likelihoods.",
                )
        total = np.zeros((draws.n_chains, draws.n_draws))
        ids, start = change.row_ids, 0
        for block in self.blocks:
            inside = ids[(ids >= start) & (ids < start + block.size)] - start
            total -= block.total(inside) if inside.size else 0.0
            start += block.size
        if not np.isfinite(total).all():
            raise NonFiniteResultError(
                "the stored log-likelihood of the removed rows is NaN or infinite at some draws.",
                "check the log_likelihood group: draws of a posterior cannot contradict its rows.",
            )
        return total

    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        raise needs_density("the model's density")

    def log_ratio(self, params: PyTree, change: Change) -> Float[Array, ""]:
        raise needs_density("the model's likelihood at other draws")

    def elements(self, rows: int) -> int:
        return rows

    def _without(self, left: Bool[Array, " rows"]) -> StoredLikelihoods:
        ends = np.cumsum([block.size for block in self.blocks])[:-1]
        parts = np.split(np.asarray(left), ends)
        blocks = [block.without(part) for block, part in zip(self.blocks, parts, strict=True)]
        return StoredLikelihoods(blocks, self.fitted)

    def check_functions(self, params: PyTree) -> None:
        """There are none. (And what has passed is remembered with the model: this one holds its rows in itself.)"""

    def _check_functions(self, params: PyTree) -> None:
        pass

    def _check_additive(self, params: PyTree, change: Change) -> None:
        pass


def needs_density(what: str) -> NeedsDensityError:
    """The error of whatever needs more than stored log-likelihoods."""
    return NeedsDensityError(f"{what} is not known: there are only stored log-likelihoods.", GIVE_THE_MODEL)
