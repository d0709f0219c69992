"""From BlackJAX's states, or any log density's draws: the density in two parts, the data, and the states.

model, draws = pe.from_blackjax(log_prior, log_likelihood, data, states)
result = pe.erase(model, draws, rows=person == 17)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from posterase.bridges.shared.positions import Positions, positions
from posterase.bridges.shared.row_frames import describe_plain_rows, read_frames
from posterase.draws.draws import Draws
from posterase.errors import DifferentModelError
from posterase.model.factorised import Model
from posterase.model.transforms import Transform
from posterase.runtime.precision import cast_floats, in_float64

LOOKED_AT = 8
"""Draws whose log densities are compared with those that the sampler noted."""


def from_blackjax(
    log_prior: Callable[[PyTree], Float[Array, ""]],
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]],
    data: PyTree,
    states: Any,
    *,
    axes: str | None = None,
    transforms: Mapping[str, Transform] | None = None,
    preprocessing: str | None = None,
    frame: Any = None,
) -> tuple[Model, Draws]:
    """The model and the draws of a fit by BlackJAX, or by any sampler that leaves positions.

    Parameters
    ----------
    log_prior
        `log_prior(position)` → one number; with the Jacobians of transforms that the log density has inside.
    log_likelihood
        `log_likelihood(position, data)` → one value a row, on any number of rows. The log density that was sampled is
        the prior plus their sum, up to a constant: that is checked where the states hold their log densities, as far as
        the precision of those allows.
    data
        A tree of arrays that share their leading axis: the rows.
    states
        States as a scan stacks them (NUTS, HMC, MALA, SGLD, …), particles of an SMC with their weights, or positions
        alone; also `pe.State` and what `pe.sample` returns.
    axes
        The leading axes of every array: "draw", "chain" (ends of chains), "chain draw" or "draw chain". Left out, they
        are taken from the states' log densities, and an axis three times as long as the other for the draws.
    transforms
        Where positions are on a constrained scale, as for `pe.Model`: `{"sigma": pe.positive}`.
    preprocessing
        What was computed from all rows before the fit, in words, "x standardised" say; "none" if nothing was. The
        verdict names it.
    frame
        What else is known about the rows, as columns that `pe.erase(…, rows=…)` can name: a DataFrame (pandas, polars)
        or a dict of columns, one row per row of the data, in the same order. It is used in memory only.
    """
    frames = read_frames(frame)
    found = positions(states, axes)
    model = Model(log_prior, log_likelihood, data, transforms=transforms)
    model.check(found.draws)
    _check_density(model, found)
    return model, describe_plain_rows(model, found.draws, frames, preprocessing)


def _check_density(model: Model, found: Positions) -> None:
    """The sampler's log densities are the model's, up to a constant."""
    if found.log_density is None:
        return
    noted = np.asarray(found.log_density, float).ravel()
    some = np.unique(np.linspace(0, len(noted) - 1, LOOKED_AT).astype(int))
    flat = jax.tree.map(lambda leaf: leaf[some], found.draws.flat())

    def evaluate(wide: bool) -> Array:
        return jax.vmap(model.log_joint)(cast_floats(flat, np.float64) if wide else flat)

    ours = np.asarray(in_float64(evaluate, "the log density")[0], float)
    apart = ours - noted[some]
    rounding = 16 * float(jnp.finfo(found.log_density.dtype).eps) * (1 + np.abs(ours).max())
    if not np.ptp(apart) <= rounding:
        raise DifferentModelError(
            f"the states' log densities differ from those of log_prior and log_likelihood by {apart.min():.6g} to "
            f"{apart.max():.6g}: more than a constant.",
            "pass the functions and the data that were sampled with; for positions on a constrained scale, transforms.",
        )
