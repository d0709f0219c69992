"""Rounds of steps on the kept rows from chains that have not converged, for `Rewind` and `CorrectedContinuation`.

A chain takes steps of stochastic gradient ascent with momentum, their sizes falling to zero along the budget as a
cosine does. After every round the objective is looked at on control rows. A round that ends in numbers that are not
finite, with less than half of the objective's rise so far, or with a loss on the kept rows higher by more than
`loss_limit` times what it was before the first (or one nat, where that is more), is refused: the chain goes back to
where the round began and on with half the step size.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.data.row_source import row_source
from posterase.draws.draws import Draws
from posterase.draws.objections import Objection
from posterase.errors import InvalidOptionError
from posterase.methods.base import Method, MethodResult, Problem, replaced
from posterase.methods.diagnostics import Diagnostics
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.factorised import Model
from posterase.numerics.cost import Cost
from posterase.numerics.densities import batch_size
from posterase.numerics.weights import parameter_ess
from posterase.runtime import sharding
from posterase.runtime.checks import check_int
from posterase.runtime.precision import Number, is_known, numbers_as_arrays
from posterase.sampling.batches import BatchDensity, Rows, check_batch, draw, present_rows
from posterase.sampling.vectors import Unravel, as_vectors, of_vector

FALLEN = 0.5
"""A round is refused that leaves less than this share of the objective's rise. Steps are noisy, so that the objective
may fall a little on the way; a step size that is too large makes it fall to nothing within a round."""

A_NAT = 1.0
"""By less than this an objective is not said to fall."""

PATIENCE = 2
"""Rounds in turn without a rise, after which a chain is done."""

UNMEASURED = "how near the result is to a refit is not measured"

LogDensityFunction = Callable[[PyTree], Float[Array, ""]]


@dataclasses.dataclass(frozen=True)
class RoundsDetails:
    """What every draw's chain did, in the order of the draws."""

    steps: Int[np.ndarray, " draws"]
    """Steps that were kept."""
    refused: Int[np.ndarray, " draws"]
    """Rounds that were taken back."""
    settled: Bool[np.ndarray, " draws"]
    """Whether the chain stopped before the budget was spent, as its objective rose no more."""
    rise: Float[np.ndarray, " draws"]
    """Of the objective on the control rows, in nats."""
    loss: Float[np.ndarray, "draws two"]
    """Mean −log p of the control rows, before the erasure and after it."""

    @property
    def brief(self) -> str:
        """What there is to say."""
        return f"{int(np.median(self.steps))} steps, {int(self.refused.sum())} rounds refused"

    def __str__(self) -> str:
        settled = f"{int(self.settled.sum())} of {len(self.settled)} chains settled within the budget; "
        return (
            f"{int(np.median(self.steps))} steps on the kept rows (median); {settled if self.settled.any() else ''}"
            f"{int(self.refused.sum())} rounds refused; loss on kept rows {self.loss[:, 0].mean():.4g} → "
            f"{self.loss[:, 1].mean():.4g}; {UNMEASURED}"
        )


class Course(NamedTuple):
    """Where one chain begins, and what it climbs from there."""

    begin: PyTree
    ascent: Callable[[LogDensityFunction, PyTree], PyTree]
    """The step's direction, from a batch's density of the kept rows and where the chain is."""
    drift: PyTree
    """What is taken off the slope: the objective is kept(θ) − drift·θ."""


class Place(NamedTuple):
    """What a course is laid out from."""

    model: AbstractModel
    change: Change
    unravel: Unravel
    share_left: Float[Array, ""]
    """N′/N."""
    on_control: LogDensityFunction
    """log p(θ, kept rows), estimated from the control rows."""


class RoundsMethod(Method):
    """A method that takes rounds of steps on the kept rows. A course says from where, and along what."""

    steps: eqx.AbstractVar[int]
    rate: eqx.AbstractVar[Number]
    momentum: eqx.AbstractVar[Number]
    batch: eqx.AbstractVar[int]
    round_steps: eqx.AbstractVar[int]
    control_rows: eqx.AbstractVar[int]
    loss_limit: eqx.AbstractVar[Number]
    gradients_a_step: ClassVar[int]
    """Of a batch."""

    def __check_init__(self) -> None:
        for name in ("steps", "batch", "round_steps", "control_rows"):
            check_int(name, getattr(self, name), 1)
        if not is_known(self.rate, self.momentum, self.loss_limit):
            return
        if not (0 < float(self.rate) < float("inf") and 0 <= float(self.momentum) < 1):
            raise InvalidOptionError(
                f"rate is {self.rate}, momentum is {self.momentum}.",
                "use a positive rate, and a momentum of at least 0 and below 1.",
            )
        if not float(self.loss_limit) > 0:
            raise InvalidOptionError(f"loss_limit is {self.loss_limit}.", "use a positive number.")

    @abc.abstractmethod
    def course(self, place: Place, origin: PyTree, start: PyTree | None) -> Course:
        """Of a chain that ended at `origin`."""

    def starts_of(self, model: AbstractModel, draws: Draws) -> PyTree | None:
        """Where the chain of every draw began, unconstrained, if that is asked for; draws in their flat order."""
        return None

    def least_rise(self, rise: Float[Array, ""]) -> Float[Array, ""]:
        """What a round has to add to the objective for the chain to go on; two in turn that add less are enough."""
        return jnp.full_like(rise, -jnp.inf)

    @abc.abstractmethod
    def extra_cost(self, removed: int, control: int) -> tuple[int, int]:
        """Rows of a gradient, and of a density, that a chain's course takes before its first step."""

    def flaw(self, details: RoundsDetails) -> Objection:
        """Chains that did not move; where all did, that nothing measures how far."""
        if (details.steps == 0).any():
            reason = "every round of some chain was refused: it stands where it began"
            return Objection("stuck", reason, "use a smaller rate.")
        return Objection("not measured", UNMEASURED, "compare it with refits (posterase.match_refits).")

    def run(self, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
        key, model, draws, change = problem.parts
        kept = model.without(change)
        check_batch(kept, self.batch)
        ends, starts = jax.vmap(model.unconstrain)(draws.flat()), self.starts_of(model, draws)
        n, control = draws.n_chains * draws.n_draws, min(self.control_rows, kept.n_rows)
        size = batch_size(self.gradients_a_step * kept.elements(self.batch), n)
        settings = numbers_as_arrays(self)
        pieces = []
        for at in range(0, n, size):
            end, start = jax.tree.map(lambda leaf: leaf[at : at + size], (ends, starts))  # noqa: B023
            keys = jax.vmap(lambda chain: jax.random.fold_in(key, chain))(jnp.arange(at, min(at + size, n)))
            pieces.append(_run(settings, model, kept, change, keys, end, start, control))
        chains = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces)
        params = jax.vmap(model.constrain)(chains.theta)
        params = jax.tree.map(lambda new, old: new.astype(old.dtype).reshape(old.shape), params, draws.params)
        moved = replaced(draws, params, draws.log_weights, "steps on the kept rows")
        rounds, refused = np.asarray(chains.rounds), np.asarray(chains.refused)
        details = RoundsDetails(
            steps=self.round_steps * (rounds - refused),
            refused=refused,
            settled=np.asarray(chains.settled),
            rise=np.asarray(chains.rise, float),
            loss=np.stack([np.asarray(chains.loss_before, float), np.asarray(chains.loss, float)], axis=1),
        )
        in_gradients, in_densities = self.extra_cost(change.n_rows, control)
        gradients = self.gradients_a_step * self.round_steps * rounds.sum() * self.batch + n * in_gradients
        cost = Cost(
            gradients=float(gradients) / kept.n_rows,
            densities=float(rounds.sum() * control + n * in_densities) / kept.n_rows,
            sequential=int(rounds.max()) * self.round_steps,
        )
        diagnostics = Diagnostics(
            ess=parameter_ess(moved) if moved.n_draws > 1 else dict.fromkeys(moved.names, float(moved.n_chains)),
            cost=cost,
            flaw=self.flaw(details),
        )
        return MethodResult(moved, details, diagnostics)


class Chain(NamedTuple):
    """A chain between two rounds; of the objective, what the control rows say."""

    theta: PyTree
    velocity: PyTree
    scale: Float[Array, ""]
    """Of the step size: halved after every refusal."""
    rise: Float[Array, ""]
    loss_before: Float[Array, ""]
    loss: Float[Array, ""]
    rounds: Int[Array, ""]
    refused: Int[Array, ""]
    stalls: Int[Array, ""]
    """Rounds in turn that brought nothing much."""

    @property
    def settled(self) -> Bool[Array, "*chain"]:
        """Whether the objective has stopped rising."""
        return self.stalls >= PATIENCE


@eqx.filter_jit
def _run(
    method: RoundsMethod,
    model: AbstractModel,
    kept: AbstractModel,
    change: Change,
    keys: Key[Array, " chain"],
    ends: PyTree,
    starts: PyTree | None,
    control: int,
) -> Chain:
    assert isinstance(kept, Model)
    rows = present_rows(kept.present)
    vectors, unravel = as_vectors(ends)
    begun = None if starts is None else as_vectors(starts)[0]

    one = functools.partial(_one, unravel, control)
    chains = sharding.map_chains(one, (keys, vectors, begun), (method, model, kept, rows, change))
    return chains._replace(theta=jax.vmap(unravel)(chains.theta))


def _one(
    unravel: Unravel,
    n_control: int,
    key: Key[Array, ""],
    origin: PyTree,
    start: PyTree | None,
    method: RoundsMethod,
    model: AbstractModel,
    kept: Model,
    rows: Rows,
    change: Change,
) -> Chain:
    """One chain's erasure; all densities are log densities, so that it climbs."""
    for_control, for_steps = jax.random.split(key)
    among = jax.random.permutation(for_control, rows.order.shape[0])
    chosen = rows.order[jnp.argsort(jnp.where(jnp.arange(len(among)) < rows.n, among, len(among)))[:n_control]]
    control = row_source(kept.data).take(chosen)

    def look(theta: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """log p(θ, kept rows) and the mean loss, estimated on the control rows."""
        free = unravel(theta)
        params = kept.constrain(free)
        loss = -kept.log_likelihood(params, control).mean()
        return kept.log_prior(params) + kept.log_det_jacobian(free) - rows.n * loss, loss

    place = Place(model, change, unravel, rows.n / model.present.sum(), lambda theta: look(theta)[0])
    begin, ascent, drift = method.course(place, origin, start)
    level, loss_begun = look(begin)
    most = loss_begun + method.loss_limit * jnp.maximum(jnp.abs(loss_begun), 1)

    def step(
        carry: tuple[PyTree, PyTree], at: tuple[Key[Array, ""], Float[Array, ""]]
    ) -> tuple[tuple[PyTree, PyTree], None]:
        theta, velocity = carry
        key, step_size = at
        batch = of_vector(BatchDensity(kept, draw(key, rows, method.batch), rows.n), unravel)
        slope = ascent(batch, theta)
        velocity = jax.tree.map(lambda v, g: (method.momentum * v + step_size * g).astype(v.dtype), velocity, slope)
        return (jax.tree.map(jnp.add, theta, velocity), velocity), None

    budget = -(-method.steps // method.round_steps)

    def round_(chain: Chain) -> Chain:
        at = chain.rounds * method.round_steps + jnp.arange(method.round_steps)
        falling = 0.5 * (1 + jnp.cos(jnp.pi * at / (budget * method.round_steps)))
        step_sizes = chain.scale * falling * method.rate / rows.n
        keys = jax.random.split(jax.random.fold_in(for_steps, chain.rounds), method.round_steps)
        (theta, velocity), _ = jax.lax.scan(step, (chain.theta, chain.velocity), (keys, step_sizes))
        value, loss = look(theta)
        rise = value - level - _inner(drift, jax.tree.map(jnp.subtract, theta, begin))
        good = jnp.isfinite(rise) & (rise >= FALLEN * chain.rise - A_NAT) & (loss <= most)
        stalls = jnp.where(rise - chain.rise < method.least_rise(rise), chain.stalls + 1, 0)
        after = chain._replace(theta=theta, velocity=velocity, rise=rise, loss=loss, stalls=stalls)
        back = chain._replace(
            velocity=jax.tree.map(jnp.zeros_like, velocity), scale=chain.scale / 2, refused=chain.refused + 1
        )
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), after, back)._replace(rounds=chain.rounds + 1)

    zero = jnp.zeros((), jnp.int32)
    still, one = jax.tree.map(jnp.zeros_like, begin), jnp.ones_like(loss_begun)
    begun = Chain(begin, still, one, jnp.zeros_like(level), look(origin)[1], loss_begun, zero, zero, zero)
    return jax.lax.while_loop(lambda chain: ~chain.settled & (chain.rounds < budget), round_, begun)


def _inner(one: PyTree, other: PyTree) -> Float[Array, ""]:
    products = [jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]
    return jnp.sum(jnp.stack(products))
