"""Positions of chains, in whatever states a sampler left them, as draws `(chain, draw, …)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from posterase.draws.draws import Draws
from posterase.errors import DrawsShapeError, InvalidOptionError
from posterase.sampling.sample import Sampled
from posterase.sampling.sampler import State

AXES = ("draw", "chain", "chain draw", "draw chain")
"""The leading axes of every array: of a scan; of chains' ends; of scans side by side; of a scan over chains."""
SAY = "say what the leading axes are: axes='draw', axes='chain', axes='chain draw' or axes='draw chain'."
CLEARLY = 3
"""So many times longer than the other the axis of draws is, where nobody said which it is."""


class Positions(NamedTuple):
    """Draws, and the log densities that the sampler noted beside them, if it did."""

    draws: Draws
    log_density: Float[Array, "chain draw"] | None


def positions(
    states: Any, axes: str | None, like: PyTree | None = None, read: Callable[[Any], PyTree] = lambda tree: tree
) -> Positions:
    """Draws from states.

    Parameters
    ----------
    states
        BlackJAX's, stacked (`position`, or `particles` with `weights`); posterase's own; `Draws`; or positions alone.
    axes
        The leading axes of every array. None: found from log densities, or from `like`.
    like
        The parameters of one draw, where they are known.
    read
        What makes plain parameters of a position.
    """
    if axes is not None and axes not in AXES:
        raise InvalidOptionError(f"axes is {axes!r}.", SAY)
    if isinstance(states, Sampled):
        states = states.draws
    if isinstance(states, Draws):
        return Positions(states, None)
    if isinstance(states, State):
        return Positions(Draws(jax.tree.map(lambda leaf: leaf[:, None], read(states.theta))), None)
    if hasattr(states, "particles"):
        return _particles(states, read)
    noted = getattr(states, "logdensity", None)
    tree = read(getattr(states, "position", states))
    leaves = [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
    if not leaves or min(map(len, leaves)) == 0:
        raise DrawsShapeError(
            "the states hold no draws: a parameter has no leading axis.", "stack them along the scan."
        )
    found = axes or _found(leaves, None if noted is None else np.shape(noted), like, tree)
    return Positions(
        Draws(jax.tree.map(lambda leaf: _ordered(jnp.asarray(leaf), found), tree)),
        None if noted is None else _ordered(jnp.asarray(noted), found),
    )


def _particles(states: Any, read: Callable[[Any], PyTree]) -> Positions:
    """The particles of a sequential Monte Carlo, with their weights."""
    weights = jnp.asarray(states.weights)
    reached = getattr(states, "tempering_param", getattr(states, "lmbda", 1.0))
    if not np.allclose(reached, 1.0):
        raise DrawsShapeError(
            f"the particles are at the temperature {float(np.max(reached)):.3g} of their path, not at its end.",
            "run the sampler to the temperature 1: only there are they draws of the posterior.",
        )
    tree = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], read(states.particles))
    return Positions(Draws(tree, jnp.log(weights)[None]), None)


def _found(shapes: list[tuple[int, ...]], noted: tuple[int, ...] | None, like: PyTree | None, tree: PyTree) -> str:
    """The leading axes, where they can be known."""
    if noted is not None:
        leading = noted
    elif like is not None:
        own = [np.shape(leaf) for leaf in jax.tree.leaves(like)]
        if str(jax.tree.structure(like)) != str(jax.tree.structure(tree)):
            raise DrawsShapeError("the draws have other parameters than the module.", "pass draws of this module.")
        leading = shapes[0][: len(shapes[0]) - len(own[0])]
        if any(shape != (*leading, *one) for shape, one in zip(shapes, own, strict=True)):
            raise DrawsShapeError(
                "the draws' arrays are not the module's with leading axes before them.", "pass draws of this module."
            )
    else:
        raise DrawsShapeError("how many leading axes there are cannot be known from positions alone.", SAY)
    if len(leading) == 1 and noted is None:
        raise DrawsShapeError(f"there is one leading axis, of {leading[0]}: draws, or ends of chains?", SAY)
    if len(leading) == 1:
        return "draw"
    if len(leading) != 2:
        raise DrawsShapeError(f"there are {len(leading)} leading axes.", "stack draws as (chain, draw, …).")
    if noted is None:
        return "chain draw"
    if max(leading) < CLEARLY * min(leading):
        raise DrawsShapeError(f"the leading axes are {leading[0]} and {leading[1]}: which are the draws?", SAY)
    return "chain draw" if leading[0] < leading[1] else "draw chain"


def _ordered(leaf: Array, axes: str) -> Array:
    if axes in ("draw", "chain"):
        return leaf[None] if axes == "draw" else leaf[:, None]
    if leaf.ndim < 2:
        raise DrawsShapeError(f"an array of the states has the shape {leaf.shape}.", SAY)
    return leaf if axes == "chain draw" else jnp.swapaxes(leaf, 0, 1)
