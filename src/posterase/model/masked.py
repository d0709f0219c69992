"""Models whose rows are not independent given the parameters: a log density and a mask of the rows that are present."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from posterase.data.checks import rows_of
from posterase.data.row_source import is_streamed, row_source
from posterase.errors import DataError, NotFactorisedError
from posterase.model.base import AbstractModel, M, as_node, coupled_elements, evaluate_precisely, with_rows
from posterase.model.change import Change
from posterase.model.checks import has_density, returns_scalar, transforms_of
from posterase.model.transforms import Transform
from posterase.runtime.precision import cast_floats, widest_float

MASK_FILLERS = 8
"""How many kept rows `check_additivity` puts in the place of the removed ones of a masked model."""


class MaskedModel(AbstractModel):
    """A model whose rows are not independent given the parameters.

    Parameters
    ----------
    log_joint
        `log_joint(params, data, present)` → log prior plus log-likelihood of the rows where the mask `present` is
        true, one number, up to a constant that does not depend on the parameters. Values of absent rows must not
        matter; `check_additivity` tests that.
    data
        A tree of arrays that share their leading axis: the rows.
    transforms
        For constrained parameters, by name, as for `Model`.
    params
        An example of the parameters of one draw, to check the function at once.
    """

    rows_factorise: ClassVar[bool] = False

    masked_log_joint: Callable[[PyTree, PyTree, Bool[Array, " rows"]], Float[Array, ""]]
    data: PyTree
    present: Bool[Array, " rows"]
    transforms: dict[str, Transform]

    def __init__(
        self,
        log_joint: Callable[[PyTree, PyTree, Bool[Array, " rows"]], Float[Array, ""]],
        data: PyTree,
        *,
        transforms: Mapping[str, Transform] | None = None,
        params: PyTree | None = None,
    ):
        self.masked_log_joint = as_node(log_joint)
        if is_streamed(data):
            raise DataError(
                "data is a stream, and a masked model looks at all rows at once.",
                "pass arrays; or write a pe.Model, whose rows are independent given the parameters.",
            )
        self.data, self.present = rows_of(data)
        self.transforms = transforms_of(transforms)
        if params is not None:
            self._check_example(params)

    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        data = cast_floats(self.data, jnp.result_type(*jax.tree.leaves(params)))
        return self.masked_log_joint(params, data, self.present).astype(widest_float())

    def log_ratio(self, params: PyTree, change: Change) -> Float[Array, ""]:
        return self.without(change).log_joint(params) - self.log_joint(params)

    def elements(self, rows: int) -> int:
        return max(coupled_elements(self.present.shape[0]), sum(leaf.size for leaf in jax.tree.leaves(self.data)))

    def _without(self: M, left: Bool[Array, " rows"]) -> M:
        return with_rows(self, row_source(self.data).without(left), left)

    def _check_functions(self, params: PyTree) -> None:
        returns_scalar("log_joint", self.masked_log_joint, params, self.data, self.present)

    def _check_additive(self, params: PyTree, change: Change) -> None:
        # full − kept is removed by definition; what can go wrong is that kept still looks at the removed rows.
        # So put other rows in their place, and see whether the density notices.
        kept = self.without(change)
        left = kept.row_ids
        expected, eps = evaluate_precisely(self.masked_log_joint, params, self.data, kept.present)
        for filler in left[np.linspace(0, len(left) - 1, min(len(left), MASK_FILLERS)).astype(int)]:
            data = jax.tree.map(lambda leaf: leaf.at[change.padded_ids].set(leaf[filler]), self.data)  # noqa: B023
            value, _ = evaluate_precisely(self.masked_log_joint, params, data, kept.present)
            has_density(float(expected), "log density of the kept rows")
            if not abs(float(value - expected)) <= 1e4 * eps * (1 + abs(float(expected))):
                raise NotFactorisedError(
                    f"the log density of the kept rows changes from {expected:.9g} to {value:.9g} with the values of "
                    "the removed rows.",
                    "log_joint must not look at rows where the mask is false: multiply their terms by the mask, or "
                    "replace their values with jnp.where before they are used.",
                )
