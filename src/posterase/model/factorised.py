"""Models whose rows are independent given the parameters: log-likelihoods of rows, and their sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from posterase.data.row_source import data_of, is_streamed, row_source
from posterase.data.row_sums import Blocks, Spread, Term, sum_rows
from posterase.data.streams import Counted, Stream
from posterase.errors import InvalidOptionError
from posterase.model.base import AbstractModel, M, as_node, evaluate_precisely, with_rows
from posterase.model.change import SMALLEST_BUCKET, Change
from posterase.model.checks import (
    returns_rows,
    returns_scalar,
    same_likelihoods,
    same_sums,
    transforms_of,
)
from posterase.model.transforms import Transform
from posterase.runtime import sharding
from posterase.runtime.precision import cast_floats, widest_float

BLOCK_ELEMENTS = 2**20
"""Rows of up to this many numbers are evaluated in one block; more of them in several, so that a pass over the data
needs little memory."""

CUT_ELEMENTS, DEVICE_CUT_ELEMENTS = 2**18, 2**22
"""Several blocks have about this many numbers each. On a CPU, as many as stay in its cache while a batch of draws is
evaluated on them; on other devices more, since every block is a step that they wait for."""

CHECKED_ROWS = 1000
"""How many kept rows, and removed ones, `check_additivity` looks at."""


class Model(AbstractModel):
    """A model whose rows are independent given the parameters.

    Parameters
    ----------
    log_prior
        `log_prior(params)` → the log density of the prior, one number, up to a constant.
    log_likelihood
        `log_likelihood(params, data)` → one value a row of `data`. It is called on any number of rows and may use
        nothing of the data but its argument.
    data
        A tree of arrays (a dict, say) that share their leading axis: the rows. Or a `pe.stream` of them, where they
        are larger than memory.
    transforms
        For constrained parameters, by name: `{"sigma": pe.positive}`. Densities are given on the parameters' own
        scale; the Jacobians are added here.
    params
        An example of the parameters of one draw (values do not matter), to check the functions at once. Without it
        they are checked when the model first meets draws.

    Examples
    --------
    >>> import jax.numpy as jnp, posterase as pe
    >>> model = pe.Model(
    ...     log_prior=lambda p: -0.5 * p["mu"] ** 2,
    ...     log_likelihood=lambda p, data: -0.5 * (data["y"] - p["mu"]) ** 2,
    ...     data={"y": jnp.array([0.3, -1.2, 0.8])},
    ... )
    >>> model.change(remove=[1])
    Change: remove 1 row (1)
    """

    log_prior: Callable[[PyTree], Float[Array, ""]]
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]]
    data: PyTree
    present: Bool[Array, " rows"]
    transforms: dict[str, Transform]

    def __init__(
        self,
        log_prior: Callable[[PyTree], Float[Array, ""]],
        log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]],
        data: PyTree,
        *,
        transforms: Mapping[str, Transform] | None = None,
        params: PyTree | None = None,
    ):
        self.log_prior = as_node(log_prior)
        self.log_likelihood = as_node(log_likelihood)
        self.data, self.present = data_of(data)
        self.transforms = transforms_of(transforms)
        if params is not None:
            self._check_example(params)

    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        return self.log_prior(params) + self._sum_rows(params, self.data, self.present)

    def log_ratio(self, params: PyTree, change: Change) -> Float[Array, ""]:
        return -self._sum_rows(params, row_source(self.data).take(change.padded_ids), change.counted)

    def log_rows(self, params: PyTree, rows: Int[Array, " some"]) -> Float[Array, " some"]:
        precision = jnp.result_type(*jax.tree.leaves(params))

        def of(ids: Int[Array, " block"]) -> Float[Array, " block"]:
            return self.log_likelihood(params, cast_floats(row_source(self.data).take(ids), precision))

        n, size = len(rows), self._block_rows
        if n <= size:
            return of(rows)
        padded = jnp.pad(rows, (0, -n % size), mode="edge").reshape(-1, size)
        return jax.lax.map(of, padded).ravel()[:n]

    def spread(self: M) -> M:
        if is_streamed(self.data) and sharding.count() > 1:
            raise InvalidOptionError(
                "a stream's rows are read by one process, for one device.",
                "leave out mesh; or hold the rows in memory, some on each device: pe.Model(…, data) without pe.stream.",
            )
        if sharding.count() == 1:
            return self
        parts = sharding.shards(sharding.ROWS)
        data = jax.tree.map(lambda leaf: sharding.place_rows(leaf, parts), self.data)
        return with_rows(self, data, jnp.pad(self.present, (0, -len(self.present) % parts)))

    def elements(self, rows: int) -> int:
        return min(rows, self._block_rows) * self._row_elements

    def _without(self: M, left: Bool[Array, " rows"]) -> M:
        return with_rows(self, row_source(self.data).without(left), left)

    def _check_functions(self, params: PyTree) -> None:
        returns_scalar("log_prior", self.log_prior, params)
        for rows in (self.present.shape[0], SMALLEST_BUCKET):
            returns_rows(self.log_likelihood, params, row_source(self.data).shapes(rows), rows)

    def _check_additive(self, params: PyTree, change: Change) -> None:
        # Row by row, so that nothing cancels: a row's likelihood must not depend on which other rows it comes with.
        removed = np.sort(change.row_ids)[:CHECKED_ROWS]
        left = self.without(change).row_ids
        kept = left[np.linspace(0, len(left) - 1, min(len(left), CHECKED_ROWS)).astype(int)]
        both = np.union1d(kept, removed)
        together = self._row_values(params, both)
        for what, rows in (("kept", kept), ("removed", removed)):
            among = together[np.searchsorted(both, rows)]
            same_likelihoods(rows, among, self._row_values(params, rows), what)
        # And the sums, over all rows: full, the kept rows as the methods sum them and by themselves, the removed rows.
        others = [self.without(change).log_joint]
        if not is_streamed(self.data):  # whose rows are read in blocks, not by themselves
            others.append(_Alone(self, jnp.asarray(left)))
        full, eps = evaluate_precisely(self.log_joint, params)
        tolerance = 1e4 * eps * (1 + abs(float(full)))
        ratio, _ = evaluate_precisely(self.log_ratio, params, change)
        for other in others:
            kept_sum, _ = evaluate_precisely(other, params)
            same_sums(float(full) - float(kept_sum), -float(ratio), tolerance)

    def _row_values(self, params: PyTree, rows: Int[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
        return np.asarray(evaluate_precisely(self.log_likelihood, params, row_source(self.data).take(rows))[0])

    @property
    def _row_elements(self) -> int:
        return max(1, sum(leaf.size for leaf in jax.tree.leaves(row_source(self.data).shapes(1))))

    @property
    def _block_rows(self) -> int:
        if isinstance(self.data, Stream):
            return self.data.source.layout.piece_rows
        block = BLOCK_ELEMENTS
        if self.present.shape[0] * self._row_elements > block:
            block = min(block, CUT_ELEMENTS) if jax.default_backend() == "cpu" else DEVICE_CUT_ELEMENTS
        return max(256, block // self._row_elements)

    def _sum_rows(self, params: PyTree, data: PyTree, counted: Bool[Array, " rows"]) -> Float[Array, ""]:
        """Σ log_likelihood over the counted rows; where a mesh of devices is set, each sums its own."""
        if isinstance(data, Stream):
            return sum_rows(params, self._term, Counted(data, counted))
        parts = sharding.shards(sharding.ROWS)
        rows = Blocks(data, counted, self._block_rows)
        if parts > 1 and counted.shape[0] % parts == 0:
            return sum_rows(params, self._term, Spread(rows))
        if counted.shape[0] <= self._block_rows:
            return self._term(params, data, counted)
        return sum_rows(params, self._term, rows)

    @property
    def _term(self) -> Term:
        return jax.tree_util.Partial(_sum_counted, self.log_likelihood)


class _Alone(eqx.Module):
    """log p(θ) + log p(these rows | θ), the rows taken out of the data block by block: no copy of them is made."""

    model: Model
    rows: Int[Array, " some"]

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        values = self.model.log_rows(params, self.rows)
        return self.model.log_prior(params) + jnp.sum(values, dtype=widest_float())


def _sum_counted(
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]],
    params: PyTree,
    rows: PyTree,
    counted: Bool[Array, " rows"],
) -> Float[Array, ""]:
    """Σ log_likelihood over the rows that count, data in the precision of the parameters."""
    values = log_likelihood(params, cast_floats(rows, jnp.result_type(*jax.tree.leaves(params))))
    return jnp.sum(jnp.where(counted, values, 0), dtype=widest_float())
