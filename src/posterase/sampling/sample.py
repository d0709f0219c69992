"""Run a sampler: many chains in one scan, thinned, in pieces with a progress bar, resumable to the bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PyTree

from posterase.draws.draws import Draws
from posterase.errors import DrawsShapeError, NonFiniteResultError
from posterase.model.base import AbstractModel
from posterase.numerics.failures import entry_point
from posterase.runtime import sharding
from posterase.runtime.checks import check_int
from posterase.runtime.precision import numbers_as_arrays
from posterase.runtime.prng import as_key
from posterase.sampling.batches import check_batch, density, present_rows
from posterase.sampling.sampler import Sampler, State, check_sampler
from posterase.sampling.vectors import of_vector, running, standing

PIECES = 20
"""A run that reports its progress is cut into about so many pieces."""


class Sampled(NamedTuple):
    """Draws, and the chains' state to go on from."""

    draws: Draws
    state: State


@entry_point
def start_chains(key: Key[Array, ""] | int, model: AbstractModel, sampler: Sampler, initial: PyTree) -> State:
    """Chains at their initial points: parameters on their own scale, leaves shaped `(chain, …)`."""
    check_sampler(sampler)
    points = initial_points(initial)
    model.check(points)
    check_batch(model, sampler.batch)
    keys = jax.random.split(as_key(key), points.n_chains)
    return jax.vmap(sampler.init)(keys, jax.vmap(model.unconstrain)(points.flat()))


def initial_points(initial: PyTree) -> Draws:
    """Initial points of chains, leaves shaped `(chain, …)`, as one draw of each chain."""
    if any(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(initial)):
        raise DrawsShapeError(
            "initial has a single number where chains are wanted.",
            "give every parameter a leading chain axis: (chain, …).",
        )
    return Draws(jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], initial))


@entry_point
def sample(
    model: AbstractModel,
    sampler: Sampler,
    state: State,
    draws: int,
    *,
    thin: int = 1,
    report: Callable[[int, int], None] | None = None,
    piece: int | None = None,
    mesh: Mesh | None = None,
) -> Sampled:
    """Go on from `state` and keep every `thin`-th step, `draws` times a chain.

    Over a `mesh` of devices (`pe.mesh()`) each takes some of the chains, or of the rows.

    `report(done, draws)` is called after every `piece` draws (a twentieth of them, where that is not said). Runs with
    pieces of one size share a compilation. However a run is cut, the draws are the same to the bit: two calls of 500
    draws give what one of 1,000 gives.
    """
    check_int("draws", draws, 1)
    check_int("thin", thin, 1)
    if piece is not None:
        check_int("piece", piece, 1)
    check_sampler(sampler)
    check_batch(model, sampler.batch)
    check_state(model, state)
    sampler.check_kept(state.step, thin, draws)
    settings = numbers_as_arrays(sampler)
    piece = piece or (draws if report is None else max(1, draws // PIECES))
    return sharding.run_over(mesh, lambda: _sample(model.spread(), settings, state, draws, thin, report, piece))


def _sample(
    model: AbstractModel,
    sampler: Sampler,
    state: State,
    draws: int,
    thin: int,
    report: Callable[[int, int], None] | None,
    piece: int,
) -> Sampled:
    # A loop of unknown length asks the host before every step, which a GPU would wait for; a CPU does not mind, and
    # need not compile for every length.
    between = jnp.asarray(thin, jnp.int32) if jax.default_backend() == "cpu" else thin
    params, done = None, 0
    while done < draws:
        size = min(piece, draws - done)
        state, thetas = _run(sampler, model, state, size, between)
        check_diverged(state)
        params = thetas if size == draws else _added(params, thetas, done, draws)
        done += size
        if report is not None:
            report(done, draws)
    return Sampled(Draws(params), state)


def _added(params: PyTree | None, thetas: PyTree, at: int, draws: int) -> PyTree:
    """The draws so far with these at their place, in room for all of them that is made once."""
    return _put(_room(thetas, draws) if params is None else params, thetas, at)


def _room(thetas: PyTree, draws: int) -> PyTree:
    """Room for so many draws like these, on the devices that these are on."""

    def room(leaf: Array) -> Array:
        return jnp.zeros((leaf.shape[0], draws, *leaf.shape[2:]), leaf.dtype, device=leaf.sharding)

    return jax.tree.map(room, thetas)


@functools.partial(jax.jit, donate_argnums=0)
def _put(params: PyTree, thetas: PyTree, at: int | Int[Array, ""]) -> PyTree:
    """The room is donated, so that draws are never held twice."""
    return jax.tree.map(lambda all_, new: jax.lax.dynamic_update_slice_in_dim(all_, new, at, 1), params, thetas)


@eqx.filter_jit
def _run(
    sampler: Sampler, model: AbstractModel, state: State, draws: int, thin: int | Int[Array, ""]
) -> tuple[State, PyTree]:
    def chains(state: State, sampler: Sampler, model: AbstractModel, thin: int | Array) -> tuple[State, PyTree]:
        rows = present_rows(model.present)
        state, unravel = running(sampler, state)

        def ascent_at(key: Key[Array, ""], theta: PyTree) -> PyTree:
            return jax.grad(of_vector(density(key, model, rows, sampler.batch), unravel))(theta)

        def step(_: Int[Array, ""], state: State) -> State:
            return jax.vmap(lambda chain: sampler.step(chain, ascent_at, rows.n))(state)

        def draw(state: State, _: None) -> tuple[State, PyTree]:
            state = jax.lax.fori_loop(0, thin, step, state)
            return state, jax.vmap(lambda theta: model.constrain(unravel(theta)))(state.theta)

        state, thetas = jax.lax.scan(draw, state, length=draws)
        return standing(sampler, state, unravel), jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), thetas)

    return sharding.each_part(chains, state, (sampler, model, thin))


def check_diverged(state: State) -> None:
    """Raise `NonFiniteResultError`, with chain and step, where a chain is not finite."""
    steps = np.atleast_1d(state.diverged)
    if (steps > 0).any():
        chain = int(np.argmax(steps > 0))
        raise NonFiniteResultError(
            f"chain {chain} was not finite after step {steps[chain]} ({(steps > 0).sum()} of {len(steps)} chains).",
            "use smaller steps (a of the order 1/rows), a larger offset b, or start nearer to the mode.",
        )


def check_state(model: AbstractModel, state: State) -> None:
    """The state is one of chains of this model."""
    if not isinstance(state, State):
        raise DrawsShapeError(
            f"state is a {type(state).__name__}.", "make one: start_chains(key, model, sampler, initial)."
        )
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.theta)
    model.check_functions(one if not model.transforms else jax.eval_shape(model.constrain, one))
