"""InfluenceShift along a live chain: the form of Algorithm 1 that the paper's experiments ran (Appendices B to D).

Requests come one after the other, in batches of rows. For each, the expectations in

    I(S′) = H⁻¹ Σ_{z∈S′} E ∇ log p(z | θ),        H = −E ∇² log p(θ, S)

are taken along the chain itself: the sampler takes one step before every evaluation, and `samples` evaluations are
averaged for the gradient and for each product H p of the Neumann series. A request so costs `samples · (order + 1)`
sampler steps and `samples · order` Hessian-vector products. Then the chain's current θ is moved by −I(S′).

What the paper did, and the other way, by name:

    along       "full": during a request the chain goes on sampling all rows, those to be removed included (the paper);
                "kept": it samples the kept rows
    step_size   "fixed": step sizes stay as they are (the paper's Gaussian mixture);
                "rescaled": they are multiplied by N/N′ at each request (the paper's networks)
    scale       the series' c is scale/N′, N′ the rows kept after the request
    shift       False: the sampler's steps alone, without the shift: the ablation that the paper does not show

Moving only the current θ is what the paper's code does; Algorithm 1 moves every drawn sample. `shift`, the sum over
requests, is returned for each chain, so that stored draws can be moved too (`moved`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from posterase.draws import Draws
from posterase.errors import DrawsShapeError, InvalidOptionError, NonFiniteResultError
from posterase.model import AbstractModel, Model, Removal, RemovedLogLikelihood
from posterase.precision import Number, is_known, numbers_as_arrays
from posterase.sampling.batches import BatchDensity, Rows, check_batch, draw, rows_of
from posterase.sampling.sampler import Sampler, State

PIECES = 20
"""A run that reports its progress is cut into about so many pieces."""


@dataclasses.dataclass(frozen=True)
class LiveErased:
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
    dropped: tuple[str, ...]
    """Sampler state that saw the removed rows and was made anew."""
    listed: tuple[str, ...]
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
    along, step_size, shift
        The paper's choices and their alternatives, as this file's docstring says.
    batch
        Rows that each Hessian-vector product sees. None: all that are present.
    """

    order: int = eqx.field(default=32, static=True)
    scale: Number = 1.0
    samples: int = eqx.field(default=1, static=True)
    along: Literal["full", "kept"] = eqx.field(default="full", static=True)
    step_size: Literal["fixed", "rescaled"] = eqx.field(default="fixed", static=True)
    shift: bool = eqx.field(default=True, static=True)
    batch: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        whole = isinstance(self.order, int) and isinstance(self.samples, int)
        if not (whole and self.order >= 0 and self.samples >= 1):
            raise InvalidOptionError(
                f"order is {self.order!r}, samples is {self.samples!r}.", "use whole numbers: order ≥ 0, samples ≥ 1."
            )
        if self.along not in ("full", "kept"):
            raise InvalidOptionError(f"along is {self.along!r}.", "use 'full' (the paper) or 'kept'.")
        if self.step_size not in ("fixed", "rescaled"):
            raise InvalidOptionError(f"step_size is {self.step_size!r}.", "use 'fixed' or 'rescaled'.")
        if is_known(self.scale) and not 0 < float(self.scale) < float("inf"):
            raise InvalidOptionError(f"scale is {self.scale!r}.", "use a positive number.")

    def __call__(
        self,
        model: AbstractModel,
        sampler: Sampler,
        state: State,
        requests: Sequence[Sequence[int]] | Int[np.ndarray, "requests rows"],
        *,
        report: Callable[[int, int], None] | None = None,
    ) -> LiveErased:
        """Answer requests one after the other; each is a list of row ids. `report(done, requests)` after each."""
        removals = _stack([model.removal(rows) for rows in requests])
        everything = model.removal(np.asarray(removals.rows)[np.asarray(removals.counted)])  # no row twice, some left
        check_batch(model, sampler.batch)
        check_batch(model.without(everything), self.batch)
        before, total = model.n_rows, len(removals.rows)
        eraser, live = numbers_as_arrays(self), numbers_as_arrays(sampler)
        piece = total if report is None else max(1, total // PIECES)
        shift, last_terms = jax.tree.map(jnp.zeros_like, state.theta), []
        for done in range(0, total, piece):
            some = jax.tree.map(lambda leaf: leaf[done : done + piece], removals)  # noqa: B023
            live, model, state, shift, terms = _answer(eraser, live, model, some, state, shift)
            last_terms.append(np.asarray(terms))
            if report is not None:
                report(min(done + piece, total), total)
        last_term = np.concatenate(last_terms)
        _check_finite(state, last_term)
        listed = () if self.step_size == "rescaled" else (f"step sizes chosen for {before} rows",)
        return LiveErased(model, live, state, shift, last_term, dropped=("velocity",), listed=listed)


def _stack(removals: list[Removal]) -> Removal:
    """Requests side by side, all padded to the largest bucket."""
    if not removals:
        raise InvalidOptionError("requests is empty.", "pass at least one list of row ids.")
    bucket = max(removal.rows.size for removal in removals)

    def padded(removal: Removal) -> Removal:
        short = bucket - removal.rows.size
        rows = jnp.pad(removal.rows, (0, short), constant_values=removal.rows[0].item())
        return Removal(rows, jnp.pad(removal.counted, (0, short)))

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(padded, removals))


Carried = tuple[Sampler, AbstractModel, State, PyTree]
"""What one request hands to the next: the sampler, the model of the rows left, the chains, and their shift so far."""


@eqx.filter_jit
def _answer(
    eraser: LiveInfluenceShift,
    sampler: Sampler,
    model: AbstractModel,
    removals: Removal,
    state: State,
    shift: PyTree,
) -> tuple[Sampler, AbstractModel, State, PyTree, Float[Array, "requests chain"]]:
    """Requests one after the other, in one scan."""

    def request(carried: Carried, removal: Removal) -> tuple[Carried, Float[Array, " chain"]]:
        sampler, model, state, shift = carried
        state, by, last_term = _request(eraser, sampler, model, removal, state)
        kept = model.without(removal)
        if eraser.step_size == "rescaled":
            factor = model.present.sum() / kept.present.sum()
            sampler = eqx.tree_at(lambda each: each.schedule, sampler, sampler.schedule.scaled(factor))
        return (sampler, kept, state, jax.tree.map(jnp.add, shift, by)), last_term

    (sampler, model, state, shift), last_term = jax.lax.scan(request, (sampler, model, state, shift), removals)
    return sampler, model, state, shift, last_term


def _request(
    eraser: LiveInfluenceShift, sampler: Sampler, model: AbstractModel, removal: Removal, state: State
) -> tuple[State, PyTree, Float[Array, " chain"]]:
    """One request: the chains after it, what it added to each, and how far the series had come."""
    kept = model.without(removal)
    sampled = model if eraser.along == "full" else kept
    rows, curved_rows = rows_of(sampled.present), rows_of(model.present)
    c = eraser.scale / kept.present.sum()

    def step(state: State, _: None) -> tuple[State, None]:
        return sampler.step(state, sampled, rows), None

    def average(state: State, function: Callable[[State], PyTree]) -> tuple[State, PyTree]:
        """The mean of a function over the next `samples` states of the chain."""

        def add(carry: tuple[State, PyTree], _: None) -> tuple[tuple[State, PyTree], None]:
            state, total = carry
            state, _ = step(state, None)
            return (state, jax.tree.map(jnp.add, total, function(state))), None

        zeros = jax.tree.map(jnp.zeros_like, state.theta)
        (state, total), _ = jax.lax.scan(add, (state, zeros), length=eraser.samples)
        return state, jax.tree.map(lambda leaf: leaf / eraser.samples, total)

    def influence(state: State) -> tuple[State, PyTree, Float[Array, ""]]:
        """−I(S′) by the Neumann series, with expectations along the chain."""
        state, push = average(state, lambda at: jax.grad(RemovedLogLikelihood(model, removal))(at.theta))

        def term(carry: tuple[State, PyTree, PyTree], _: None) -> tuple[tuple[State, PyTree, PyTree], None]:
            state, total, power = carry

            def product(at: State) -> PyTree:
                image = jax.jvp(_ascent(eraser, model, curved_rows, at), (at.theta,), (power,))[1]
                return jax.tree.map(jnp.negative, image)

            state, image = average(state, product)
            power = jax.tree.map(lambda p, hp: (p - c * hp).astype(p.dtype), power, image)
            return (state, jax.tree.map(jnp.add, total, power), power), None

        (state, total, last), _ = jax.lax.scan(term, (state, push, push), length=eraser.order)
        shift = jax.tree.map(lambda leaf: (-c * leaf).astype(leaf.dtype), total)
        return state, shift, _norm(last) / jnp.maximum(_norm(push), jnp.finfo(c.dtype).tiny)

    def chain(state: State) -> tuple[State, PyTree, Float[Array, ""]]:
        if eraser.shift:
            state, shift, last_term = influence(state)
        else:
            state, _ = jax.lax.scan(step, state, length=eraser.samples * (eraser.order + 1))
            shift, last_term = jax.tree.map(jnp.zeros_like, state.theta), jnp.zeros(())
        theta = jax.tree.map(jnp.add, state.theta, shift)
        # The velocity saw the removed rows: a new one is drawn, as at the start of a chain.
        redraw = jax.random.fold_in(jax.random.fold_in(state.key, state.step), 1)
        velocity = sampler.start_velocity(redraw, theta, sampler.schedule(jnp.maximum(state.step, 1)))
        return state._replace(theta=theta, velocity=velocity), shift, last_term

    return jax.vmap(chain)(state)


def _ascent(eraser: LiveInfluenceShift, model: AbstractModel, rows: Rows, state: State) -> Callable[[PyTree], PyTree]:
    if eraser.batch is None:
        return jax.grad(model.log_density)
    assert isinstance(model, Model)
    ids = draw(jax.random.fold_in(jax.random.fold_in(state.key, state.step), 2), rows, eraser.batch)
    return jax.grad(BatchDensity(model, ids, rows.n))


def _norm(tree: PyTree) -> Float[Array, ""]:
    return jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)))


def _check_finite(state: State, last_term: Float[np.ndarray, "requests chain"]) -> None:
    bad = [chain for chain in range(len(state.step)) if not _finite(state.theta, chain)]
    if bad:
        growth = last_term[:, bad[0]]
        request = int(np.argmax(~(growth < 1)))
        raise NonFiniteResultError(
            f"chain {bad[0]} was not finite after the requests; at request {request} the series' last term was "
            f"{growth[request]:.3g} times its first: it diverges.",
            "use a smaller scale (c = scale/N′ must stay below 2 over the curvature), or InfluenceShift with CG().",
        )


def _finite(theta: PyTree, chain: int) -> bool:
    return all(bool(np.isfinite(leaf[chain]).all()) for leaf in jax.tree.leaves(theta))
