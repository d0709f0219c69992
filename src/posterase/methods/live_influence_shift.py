"""InfluenceShift along a live chain: the form of Algorithm 1 that the paper's experiments ran (Appendices B to D).

Requests come one after the other, in batches of rows. For each, the expectations in

    I(S′) = H⁻¹ Σ_{z∈S′} E ∇ log p(z | θ),        H = −E ∇² log p(θ, S)

are taken along the chain itself: the sampler takes one step before every evaluation, and `samples` evaluations are
averaged for the gradient and for each product H p of the Neumann series. A request so costs `samples · (order + 1)`
sampler steps and `samples · order` Hessian-vector products. Then the chain's current θ is moved by −I(S′).

Moving only the current θ is what the paper's code does; Algorithm 1 moves every drawn sample. `shift`, the sum over
requests, is returned for each chain, so that stored draws can be moved too (`moved`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.data.checks import row_ids
from posterase.draws.draws import Draws
from posterase.errors import DrawsShapeError, InvalidOptionError, NonFiniteResultError
from posterase.model.base import AbstractModel
from posterase.model.change import Change, bucket_of
from posterase.model.densities import LogRatio
from posterase.numerics.failures import entry_point
from posterase.runtime import sharding
from posterase.runtime.checks import check_type
from posterase.runtime.precision import Number, is_known, numbers_as_arrays
from posterase.sampling.batches import check_batch, density, present_rows
from posterase.sampling.sample import check_diverged, check_state
from posterase.sampling.sampler import Sampler, State, check_sampler, step_keys
from posterase.sampling.vectors import Unravel, of_vector, running, standing

MOST_LOST = 1.0
"""Nats a kept row may lose by a shift, where shifts can be refused."""

PIECES = 20
"""A run that reports its progress is cut into about so many pieces."""


@dataclasses.dataclass(frozen=True)
class LiveResult:
    """A chain after requests, and all that is needed to go on."""

    model: AbstractModel
    """The model of the kept rows."""
    sampler: Sampler
    """The sampler, with its step sizes rescaled where that was asked for."""
    state: State
    """The chains, shifted."""
    shift: PyTree
    """What was added to each chain in all, on the unconstrained scale: leaves `(chain, …)`."""
    last_term: Float[np.ndarray, "requests chain"]
    """Norm of the series' last term over that of its first: what more terms would still change; above 1 it diverges."""
    refused: Int[np.ndarray, " chain"]
    """Requests whose shift was refused, since the series diverged."""
    dropped: tuple[str, ...]
    """Sampler state that saw the removed rows and was made anew: `("velocity",)` for SGHMC."""
    still_there: tuple[str, ...]
    """Sampler state that saw the removed rows and is still there."""

    def moved(self, draws: Draws) -> Draws:
        """Stored draws of the same chains, each moved by its chain's shift: Algorithm 1 on every drawn sample."""
        if draws.n_chains != len(self.state.step):
            raise DrawsShapeError(
                f"the draws have {draws.n_chains} chains and the state {len(self.state.step)}.",
                "pass the draws of the very chains that were erased.",
            )

        def move(params: PyTree, shift: PyTree) -> PyTree:
            theta = self.model.unconstrain(params)
            return self.model.constrain(jax.tree.map(jnp.add, theta, shift))

        return draws.replace(jax.vmap(jax.vmap(move, (0, None)))(draws.params, self.shift), draws.log_weights)


class LiveInfluenceShift(eqx.Module):
    """The paper's live form of the influence shift.

    Parameters
    ----------
    order
        j, the Hessian-vector products of the Neumann series (j + 1 terms).
    scale
        The series' c is scale/N′.
    samples
        Draws along the chain that each expectation is averaged over.
    along
        "full": during a request the chain goes on sampling all rows, those to be removed included (the paper); "kept":
        it samples the kept rows.
    rescale_steps
        Whether step sizes are multiplied by N/N′ at each request (the paper's networks) or stay as they are (its
        Gaussian mixture).
    shift
        False: the sampler's steps alone, without the shift: the ablation that the paper does not show.
    batch
        Rows that each Hessian-vector product sees. None: all that are present.
    diverged_above
        With a number, a request's shift is left out for a chain where the last term exceeds the first so many times or
        is not finite, or where the kept rows would lose more than a nat each by it; it is counted as refused, and its
        last term is infinite. None: a series whose last term is not below its first is an error.
    """

    order: int = eqx.field(default=32, static=True)
    scale: Number = 1.0
    samples: int = eqx.field(default=1, static=True)
    along: Literal["full", "kept"] = eqx.field(default="full", static=True)
    rescale_steps: bool = eqx.field(default=False, static=True)
    shift: bool = eqx.field(default=True, static=True)
    batch: int | None = eqx.field(default=None, static=True)
    diverged_above: Number | None = None

    def __check_init__(self) -> None:
        whole = isinstance(self.order, int) and isinstance(self.samples, int)
        if not (whole and self.order >= 0 and self.samples >= 1):
            raise InvalidOptionError(
                f"order is {self.order!r}, samples is {self.samples!r}.", "use whole numbers: order ≥ 0, samples ≥ 1."
            )
        check_type(self.shift, bool, "shift", "use True, or False for the sampler's steps alone.")
        if self.along not in ("full", "kept"):
            raise InvalidOptionError(f"along is {self.along!r}.", "use 'full' (the paper) or 'kept'.")
        check_type(self.rescale_steps, bool, "rescale_steps", "use True (the paper's networks) or False (its mixture).")
        if is_known(self.scale) and not 0 < float(self.scale) < float("inf"):
            raise InvalidOptionError(f"scale is {self.scale!r}.", "use a positive number.")
        if self.diverged_above is not None and is_known(self.diverged_above) and not float(self.diverged_above) > 0:
            raise InvalidOptionError(f"diverged_above is {self.diverged_above!r}.", "use a positive number, or None.")

    @entry_point
    def __call__(
        self,
        model: AbstractModel,
        sampler: Sampler,
        state: State,
        requests: Sequence[Sequence[int] | Int[np.ndarray, " rows"]] | Int[np.ndarray, "requests rows"],
        *,
        report: Callable[[int, int], None] | None = None,
        mesh: Mesh | None = None,
    ) -> LiveResult:
        """Answer requests one after the other; each is a list of row ids. `report(done, requests)` after each.

        Over a `mesh` of devices (`pe.mesh()`) each takes some of the chains, or of the rows.
        """
        check_sampler(sampler)
        check_state(model, state)
        changes, before, left = _stack(model, requests)
        check_batch(model, sampler.batch, left)
        check_batch(model, self.batch, left)
        total, begun = len(changes.padded_ids), state.step
        method, live = numbers_as_arrays(self), numbers_as_arrays(sampler)
        piece = total if report is None else max(1, total // PIECES)
        shift, last_terms = jax.tree.map(jnp.zeros_like, state.theta), []
        with sharding.over(mesh):
            kept = model.spread()
            for done in range(0, total, piece):
                some = jax.tree.map(lambda leaf: leaf[done : done + piece], changes)  # noqa: B023
                live, kept, state, shift, terms = _answer(method, live, kept, some, state, shift)
                last_terms.append(np.asarray(terms))
                if report is not None:
                    report(min(done + piece, total), total)
        if mesh is not None:
            live, state, shift = sharding.home((live, state, shift))
            kept = model.without(model.change(remove=changes.row_ids))
        last_term = np.concatenate(last_terms)
        refused = np.zeros(last_term.shape[1], int)
        if self.diverged_above is None:
            _check_converged(last_term, (state.diverged - begun - 1) // (self.samples * (self.order + 1)))
        else:
            refused = (~np.isfinite(last_term)).sum(axis=0)
        check_diverged(state)
        still_there = ["shift and last_term of this result, which are made from the removed rows' gradients"]
        if not self.rescale_steps:
            still_there.append(f"step sizes chosen for {before} rows")
        return LiveResult(
            kept,
            live,
            state,
            shift,
            last_term,
            refused,
            dropped=sampler.renewable_parts(state.theta),
            still_there=tuple(still_there),
        )


def _stack(
    model: AbstractModel, requests: Sequence[Sequence[int] | np.ndarray] | np.ndarray
) -> tuple[Change, int, int]:
    """Requests side by side, padded to one bucket; and the rows present before, and left after all of them."""
    present = np.asarray(model.present)
    ids = [row_ids(rows, present) for rows in requests]
    if not ids:
        raise InvalidOptionError("requests is empty.", "pass at least one list of row ids.")
    everything = row_ids(np.concatenate(ids), present)  # no row twice, and some left
    bucket = bucket_of(max(map(len, ids)))
    rows = np.stack([np.pad(each, (0, bucket - len(each)), constant_values=each[0]) for each in ids])
    counted = np.arange(bucket) < np.array([len(each) for each in ids])[:, None]
    before = int(present.sum())
    return Change(jnp.asarray(rows.astype(np.int32)), jnp.asarray(counted)), before, before - len(everything)


Carried = tuple[Sampler, AbstractModel, State, PyTree]
"""What one request hands to the next: the sampler, the model of the rows left, the chains, and their shift so far."""


@eqx.filter_jit
def _answer(
    method: LiveInfluenceShift,
    sampler: Sampler,
    model: AbstractModel,
    changes: Change,
    state: State,
    shift: PyTree,
) -> tuple[Sampler, AbstractModel, State, PyTree, Float[Array, "requests chain"]]:
    """Requests one after the other, in one scan."""
    state, unravel = running(sampler, state)

    def request(carried: Carried, change: Change) -> tuple[Carried, Float[Array, " chain"]]:
        sampler, model, state, shift = carried
        state, by, last_term = sharding.each_part(
            functools.partial(_request, unravel), state, (method, sampler, model, change)
        )
        kept = model.without(change)
        if method.rescale_steps:
            factor = model.present.sum() / kept.present.sum()
            sampler = sampler.rescaled(factor)
        return (sampler, kept, state, jax.tree.map(jnp.add, shift, by)), last_term

    none = jax.tree.map(jnp.zeros_like, state.theta)
    (sampler, model, state, by), last_term = jax.lax.scan(request, (sampler, model, state, none), changes)
    shift = jax.tree.map(jnp.add, shift, jax.vmap(unravel)(by))
    return sampler, model, standing(sampler, state, unravel), shift, last_term


def _request(
    unravel: Unravel,
    state: State,
    method: LiveInfluenceShift,
    sampler: Sampler,
    model: AbstractModel,
    change: Change,
) -> tuple[State, PyTree, Float[Array, " chain"]]:
    """One request: the chains after it, what it added to each, and how far the series had come."""
    kept = model.without(change)
    sampled = model if method.along == "full" else kept
    rows, curved_rows = present_rows(sampled.present), present_rows(model.present)
    c = method.scale / kept.present.sum()

    log_ratio = of_vector(LogRatio(model, change), unravel)

    def ascent_at(key: Key[Array, ""], theta: PyTree) -> PyTree:
        return jax.grad(of_vector(density(key, sampled, rows, sampler.batch), unravel))(theta)

    def curved(at: State) -> Callable[[PyTree], PyTree]:
        key = step_keys(at.key, at.step).curvature
        return jax.grad(of_vector(density(key, model, curved_rows, method.batch), unravel))

    def step(state: State, _: None) -> tuple[State, None]:
        return sampler.step(state, ascent_at, rows.n), None

    def average(state: State, function: Callable[[State], PyTree]) -> tuple[State, PyTree]:
        """The mean of a function over the next `samples` states of the chain."""

        def add(carry: tuple[State, PyTree], _: None) -> tuple[tuple[State, PyTree], None]:
            state, total = carry
            state, _ = step(state, None)
            return (state, jax.tree.map(jnp.add, total, function(state))), None

        zeros = jax.tree.map(jnp.zeros_like, state.theta)
        (state, total), _ = jax.lax.scan(add, (state, zeros), length=method.samples)
        return state, jax.tree.map(lambda leaf: leaf / method.samples, total)

    def influence(state: State) -> tuple[State, PyTree, Float[Array, ""]]:
        """−I(S′) by the Neumann series, with expectations along the chain."""
        state, push = average(state, lambda at: jax.tree.map(jnp.negative, jax.grad(log_ratio)(at.theta)))

        def term(carry: tuple[State, PyTree, PyTree], _: None) -> tuple[tuple[State, PyTree, PyTree], None]:
            state, total, power = carry

            def product(at: State) -> PyTree:
                image = jax.jvp(curved(at), (at.theta,), (power,))[1]
                return jax.tree.map(jnp.negative, image)

            state, image = average(state, product)
            power = jax.tree.map(lambda p, hp: (p - c * hp).astype(p.dtype), power, image)
            return (state, jax.tree.map(jnp.add, total, power), power), None

        (state, total, last), _ = jax.lax.scan(term, (state, push, push), length=method.order)
        shift = jax.tree.map(lambda leaf: (-c * leaf).astype(leaf.dtype), total)
        return state, shift, _norm(last) / jnp.maximum(_norm(push), jnp.finfo(c.dtype).tiny)

    def reasonable(state: State, shift: PyTree) -> Bool[Array, ""]:
        """Whether the kept rows lose less than a nat each by the shift, as far as a batch of them tells."""
        key = jax.random.fold_in(step_keys(state.key, state.step).curvature, 1)  # other rows than the last product's
        value = of_vector(density(key, kept, present_rows(kept.present), method.batch), unravel)
        lost = value(state.theta) - value(jax.tree.map(jnp.add, state.theta, shift))
        return lost / kept.present.sum() <= MOST_LOST

    def chain(state: State) -> tuple[State, PyTree, Float[Array, ""]]:
        if method.shift:
            state, shift, last_term = influence(state)
            if method.diverged_above is not None:
                fine = jnp.isfinite(last_term) & (last_term <= method.diverged_above) & reasonable(state, shift)
                last_term = jnp.where(fine, last_term, jnp.inf)
                shift = jax.tree.map(lambda leaf: jnp.where(fine, leaf, 0), shift)
        else:
            state, _ = jax.lax.scan(step, state, length=method.samples * (method.order + 1))
            shift, last_term = jax.tree.map(jnp.zeros_like, state.theta), jnp.zeros(())
        theta = jax.tree.map(jnp.add, state.theta, shift)
        # What the sampler carries beside theta saw the removed rows: it is made anew, as at the start of a chain.
        return sampler.renew(state._replace(theta=theta)), shift, last_term

    return jax.vmap(chain)(state)


def _norm(tree: PyTree) -> Float[Array, ""]:
    return jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)))


def _check_converged(last_term: Float[np.ndarray, "requests chain"], diverged_at: Int[Array, " chain"]) -> None:
    """Refuse a series that diverged, unless the chain itself was lost first, at request `diverged_at`."""
    bad = ~(last_term < 1)
    requests = np.arange(len(last_term))[:, None]
    lost = np.asarray(diverged_at)  # negative where a chain was not lost at all
    bad &= (lost < 0) | (requests < lost)
    if bad.any():
        request, chain = np.unravel_index(int(bad.argmax()), bad.shape)
        raise NonFiniteResultError(
            f"the series diverges: at request {request}, chain {chain}, its last term is "
            f"{last_term[request, chain]:.3g} times its first.",
            "use a smaller scale (c = scale/N′ must stay below 2 over the curvature), or InfluenceShift with CG().",
        )
