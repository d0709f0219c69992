"""Observed variables with gaps. PyMC splits them in two: observed values, and parameters for the missing ones.

    y_observed    the values that are there: rows like all others
    y_unobserved  parameters, whose densities stay in the prior with the covariates of their rows

The density of a missing value integrates to one whatever its covariates are, so a row that loses its observed values is
gone from the posterior of all other parameters. The parameter of a removed row is cut out of the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from jaxtyping import Bool, Int
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace

from posterase.bridges.pymc.model import IN_PYTHON
from posterase.errors import UnsupportedModelError

Graphs = dict[str, Any]
"""Graphs by the name of their variable."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gaps:
    """Where the values of a variable are missing."""

    name: str
    mask: Bool[np.ndarray, "..."]
    """Of the shape of the values: whether they are missing."""
    constant: Any
    """The observed values, in PyMC's graphs."""

    @property
    def observed(self) -> str:
        """The variable of the values that are there."""
        return f"{self.name}_observed"

    @property
    def site(self) -> str:
        """What the rows are called: neither PyMC's part, which is shorter, nor the variable that joins both parts."""
        return f"{self.name} (observed)"

    @property
    def unobserved(self) -> str:
        """The parameters in the place of missing values."""
        return f"{self.name}_unobserved"

    def members(self, axis: int) -> Int[np.ndarray, " rows"]:
        """The number of every row's missing value, along this axis of rows; −1: the row has none."""
        rows = np.nonzero(self.mask)[axis]
        found = np.full(self.mask.shape[axis], -1)
        found[rows] = np.arange(len(rows))
        return found

    def is_mask(self, variable: Any) -> bool:
        """Whether an array in a graph says where values are missing."""
        if not isinstance(variable, Constant) or getattr(variable.type, "dtype", "") != "bool":
            return False
        return variable.data.shape == self.mask.shape and (
            np.array_equal(variable.data, self.mask) or np.array_equal(variable.data, ~self.mask)
        )

    def fill(self, densities: Graphs, deterministic: Graphs) -> tuple[Graphs, Graphs, Any]:
        """The graphs with the density of observed values along all rows; and the array of values that they come from.

        Where a value is missing, the density is zero and the array holds a zero.
        """
        there = np.nonzero(~self.mask)
        whole = np.zeros(self.mask.shape, self.constant.type.dtype)
        whole[there] = self.constant.data
        array = pt.constant(whole, name=self.name)
        scattered = pt.set_subtensor(pt.zeros(self.mask.shape)[there], densities[self.observed])
        others = {name: each for name, each in densities.items() if name != self.observed}
        every = {**others, self.site: scattered}
        graphs = clone_replace([*every.values(), *deterministic.values()], {self.constant: array[there]})
        return (
            dict(zip(every, graphs, strict=False)),
            dict(zip(deterministic, graphs[len(every) :], strict=True)),
            array,
        )


def gaps_of(model: Any, free: Sequence[Any]) -> list[Gaps]:
    """Variables with gaps; refuse by name those that cannot be told apart row by row."""
    found = []
    for each in free:
        name = each.name.removesuffix("_unobserved")
        if name == each.name or f"{name}_observed" not in model.named_vars:
            continue
        observed = model[f"{name}_observed"]
        values = model.rvs_to_values
        mask = _mask(model, name, values[each], values[observed])
        rows = np.nonzero(mask)[0]
        if observed.type.ndim != 1 or observed.owner.op.ndim_supp or len(np.unique(rows)) < len(rows):
            raise UnsupportedModelError(
                f"rows of {name!r} have several values, some of them missing.",
                "give every row one value, with an index of what was measured; or leave out the rows with gaps.",
            )
        found.append(Gaps(name, mask, values[observed]))
    return found


def _mask(model: Any, name: str, unobserved: Any, observed: Any) -> Bool[np.ndarray, "..."]:
    """Where values are missing, from the graph that joins both parts."""
    joined = model.replace_rvs_by_values([model[name]])[0]
    marked = clone_replace(joined, {observed: pt.zeros_like(observed)}, rebuild_strict=False)
    shape = tuple(int(n) for n in model.eval_rv_shapes()[f"{name}_unobserved"])
    return np.asarray(marked.eval({unobserved: np.ones(shape, unobserved.type.dtype)}, mode=IN_PYTHON)) == 1
