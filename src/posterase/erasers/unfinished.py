"""ContinueUnfinished: for chains that have not converged, as a network's never have. Only the removal moves them.

A chain of SG-MCMC on a network is stopped long before it is stationary: going on with it on the kept rows trains it
further, which moves it more than the removal does. What a refit would have given is not the kept posterior but the end
of the same recipe on other rows. To first order that end can be had from the chain's own. Step sizes of such recipes
are a rate over the number of rows, so that the chain follows the flow θ̇ = ∇full(θ)/N and the refit θ̇ = ∇kept(θ)/N′.
The difference δ of the two begins at zero and obeys

    N′ δ̇ = ∇kept(θ + δ) − (N′/N) ∇full(θ)

along the chain's way θ. With that way frozen at its end θ₀ it is the flow, from θ₀, of

    N′ θ̇ = ∇kept(θ) − (N′/N) ∇full(θ₀)                                                                   (corrected)

the kept gradient with the drift that the chain has at its end taken off: rows removed at random, which would have left
the recipe's way as it was, leave the chain about where it is. It climbs kept(θ) − (N′/N) ∇full(θ₀)·θ; and stopped after
a time it leaves directions of small curvature alone, as the recipe itself, which ran no longer, leaves them. No Hessian
is inverted, so that none needs to be definite.

Steps are stochastic with variance reduced (Johnson & Zhang 2013): a batch of kept rows is evaluated at θ and at θ₀, and
most of its noise is in both gradients. A step costs two gradients of a batch; no pass over the kept rows is made.

The frozen drift ages. As the chain moves, its own drift falls, and taking off all of what it was at θ₀ trains the
network backwards: the longer it runs, the worse it fits the kept rows. `corrected` below 1 takes off less.

It stops by itself. After every round the corrected objective is looked at on control rows: where it rises no more
(less than `tolerance` of its whole rise, two rounds in turn), or the budget is spent, the chain is done. A round that
ends in numbers that are not finite, with less than half of the objective's rise so far, or with a loss on the kept rows
higher by more than `loss_limit` times what it was before the erasure (or one nat, where that is more), is refused: the
chain goes back to where the round began and on with half the step size.

For a chain that *is* stationary the correction is wrong, since ∇full is not zero at a draw: use `Continue` there.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.checks import whole_number
from posterase.draws import Draws
from posterase.erasers.eraser import Erased, Eraser, Result, replaced
from posterase.erasers.evidence import Evidence
from posterase.errors import InvalidOptionError
from posterase.model import AbstractModel, Model, Removal, RemovedLogLikelihood
from posterase.numerics.cost import Cost
from posterase.numerics.densities import batch_size
from posterase.numerics.weights import parameter_ess
from posterase.precision import Number, is_known, numbers_as_arrays
from posterase.sampling.batches import BatchDensity, Rows, check_batch, draw, rows_of
from posterase.sampling.vectors import Unravel, as_vectors, of_vector

FALLEN = 0.5
"""A round is refused that leaves less than this share of the objective's rise. Steps are noisy, so that the objective
may fall a little on the way; a step size that is too large makes it fall to nothing within a round."""

A_NAT = 1.0
"""By less than this an objective is not said to fall."""

PATIENCE = 2
"""Rounds in turn without a rise, after which a chain is done."""

UNMEASURED = "how near the result is to a refit is not measured"


@dataclasses.dataclass(frozen=True)
class UnfinishedDiagnostics:
    """What every draw's chain did, in the order of the draws."""

    steps: Int[np.ndarray, " draws"]
    """Steps that were kept."""
    refused: Int[np.ndarray, " draws"]
    """Rounds that were taken back."""
    settled: Bool[np.ndarray, " draws"]
    """Whether the objective had stopped rising before the budget was spent."""
    rise: Float[np.ndarray, " draws"]
    """Of the corrected objective on the control rows, in nats."""
    loss: Float[np.ndarray, "draws two"]
    """Mean −log p of the control rows, before and after."""

    @property
    def brief(self) -> str:
        """What there is to say."""
        return f"{int(np.median(self.steps))} steps, {int(self.settled.sum())} of {len(self.settled)} settled"

    def __str__(self) -> str:
        return (
            f"{int(np.median(self.steps))} corrected steps (median); {int(self.settled.sum())} of {len(self.settled)} "
            f"chains settled within the budget; {int(self.refused.sum())} rounds refused; loss on kept rows "
            f"{self.loss[:, 0].mean():.4g} → {self.loss[:, 1].mean():.4g}; {UNMEASURED}"
        )


class ContinueUnfinished(Eraser):
    """Corrected steps on the kept rows, from chains that have not converged.

    Parameters
    ----------
    steps
        The most steps a chain takes: the budget, in whole rounds, at least one. Each costs two gradients of a batch.
    rate
        Step sizes are rate/N′, N′ the kept rows; they fall to zero along the budget as a cosine does.
    momentum
        Share of the last step that the next one repeats.
    corrected
        Share that is taken off of the chain's drift (N′/N) ∇full(θ₀): 1, all of it; 0, none, and it just trains on.
    batch
        Rows a step.
    every
        Steps a round.
    control
        Kept rows that the objective is looked at on, after every round; where there are fewer, all.
    tolerance
        A chain is done where two rounds in turn bring less than this share of the whole rise each. None: when the
        budget is spent.
    loss_limit
        A round is refused where it has made the loss on the control rows higher by this share of what it was (or of one
        nat, where that is more).
    """

    steps: int = eqx.field(static=True)
    rate: Number = 0.02
    momentum: Number = 0.9
    corrected: Number = 1.0
    batch: int = eqx.field(default=128, static=True)
    every: int = eqx.field(default=25, static=True)
    control: int = eqx.field(default=512, static=True)
    tolerance: Number | None = 0.005
    loss_limit: Number = 0.5

    def __check_init__(self) -> None:
        for name in ("steps", "batch", "every", "control"):
            whole_number(name, getattr(self, name), 1)
        if is_known(self.corrected) and not 0 <= float(self.corrected) <= 1:
            raise InvalidOptionError(f"corrected is {self.corrected}.", "use a share, from 0 to 1.")
        known = self.rate, self.momentum, 0.0 if self.tolerance is None else self.tolerance, self.loss_limit
        if not is_known(*known):
            return
        if not (0 < float(self.rate) < float("inf") and 0 <= float(self.momentum) < 1):
            raise InvalidOptionError(
                f"rate is {self.rate}, momentum is {self.momentum}.",
                "use a positive rate, and a momentum of at least 0 and below 1.",
            )
        if not (float(known[2]) >= 0 and float(self.loss_limit) > 0):
            raise InvalidOptionError(
                f"tolerance is {self.tolerance}, loss_limit is {self.loss_limit}.",
                "use a tolerance of at least 0, or None, and a positive loss_limit.",
            )

    def _erase(self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal) -> Erased:
        kept = model.without(removal)
        check_batch(kept, self.batch)
        flat = jax.vmap(model.unconstrain)(draws.flat())
        n = draws.n_chains * draws.n_draws
        size = batch_size(2 * kept.elements(self.batch), n)
        pieces = []
        for at in range(0, n, size):
            thetas = jax.tree.map(lambda leaf: leaf[at : at + size], flat)  # noqa: B023
            keys = jax.vmap(lambda chain: jax.random.fold_in(key, chain))(jnp.arange(at, min(at + size, n)))
            control = self._control(kept.n_rows)
            pieces.append(_continue(numbers_as_arrays(self), model, kept, removal, keys, thetas, control))
        chains = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces)
        params = jax.vmap(model.constrain)(chains.theta)
        params = jax.tree.map(lambda new, old: new.astype(old.dtype).reshape(old.shape), params, draws.params)
        returned = replaced(draws, params, draws.log_weights, "the corrected steps")
        return self._erased(returned, chains, model, kept, removal)

    def _control(self, rows: int) -> int:
        return min(self.control, rows)

    def _erased(
        self, draws: Draws, chains: Chain, model: AbstractModel, kept: AbstractModel, removal: Removal
    ) -> Erased:
        rounds, refused = np.asarray(chains.rounds), np.asarray(chains.refused)
        diagnostics = UnfinishedDiagnostics(
            steps=self.every * (rounds - refused),
            refused=refused,
            settled=np.asarray(chains.settled),
            rise=np.asarray(chains.rise, float),
            loss=np.stack([np.asarray(chains.first_loss, float), np.asarray(chains.loss, float)], axis=1),
        )
        rows = kept.n_rows
        control = self._control(rows)
        gradients = 2 * self.every * rounds.sum() * self.batch + len(rounds) * (removal.n_rows + control)
        cost = Cost(
            gradients=float(gradients) / rows,
            densities=float(rounds.sum() + len(rounds)) * control / rows,
            sequential=int(rounds.max()) * self.every,
        )
        evidence = Evidence(
            ess=parameter_ess(draws) if draws.n_draws > 1 else dict.fromkeys(draws.names, float(draws.n_chains)),
            cost=cost,
            flaw=UNMEASURED,
            advice="compare it with refits (posterase.match).",
        )
        moved = bool((diagnostics.steps > 0).all())
        reason = f"{UNMEASURED}." if moved else "every round of some chain was refused: it stands where it stood."
        return Erased(draws, Result(moved, reason, "" if moved else "use a smaller rate."), diagnostics, evidence)


class Chain(NamedTuple):
    """A chain between two rounds; of the objective, what the control rows say."""

    theta: PyTree
    velocity: PyTree
    scale: Float[Array, ""]
    """Of the step size: halved after every refusal."""
    rise: Float[Array, ""]
    first_loss: Float[Array, ""]
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
def _continue(
    eraser: ContinueUnfinished,
    model: AbstractModel,
    kept: AbstractModel,
    removal: Removal,
    keys: Key[Array, " chain"],
    thetas: PyTree,
    control: int,
) -> Chain:
    assert isinstance(kept, Model)
    rows = rows_of(kept.present)
    vectors, unravel = as_vectors(thetas)
    one = functools.partial(_one, eraser, model, kept, rows, removal, unravel, control)
    chains = jax.vmap(one)(keys, vectors)
    return chains._replace(theta=jax.vmap(unravel)(chains.theta))


def _one(
    eraser: ContinueUnfinished,
    model: AbstractModel,
    kept: Model,
    rows: Rows,
    removal: Removal,
    unravel: Unravel,
    n_control: int,
    key: Key[Array, ""],
    origin: PyTree,
) -> Chain:
    """One chain's erasure; all densities are log densities, so that it climbs."""
    for_control, for_steps = jax.random.split(key)
    among = jax.random.permutation(for_control, rows.order.shape[0])
    chosen = rows.order[jnp.argsort(jnp.where(jnp.arange(len(among)) < rows.n, among, len(among)))[:n_control]]
    control = jax.tree.map(lambda leaf: leaf[chosen], kept.data)

    def density_and_loss(theta: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """log p(θ, kept rows) and the mean loss, estimated on the control rows."""
        free = unravel(theta)
        params = kept.constrain(free)
        loss = -kept.log_likelihood(params, control).mean()
        return kept.log_prior(params) + kept.log_det_jacobian(free) - rows.n * loss, loss

    push = jax.grad(of_vector(RemovedLogLikelihood(model, removal), unravel))(origin)
    (level, loss), slope = jax.value_and_grad(density_and_loss, has_aux=True)(origin)
    share = eraser.corrected * rows.n / model.present.sum()
    drift = jax.tree.map(lambda on_kept, on_removed: share * (on_kept + on_removed), slope, push)

    def step(
        carry: tuple[PyTree, PyTree], at: tuple[Key[Array, ""], Float[Array, ""]]
    ) -> tuple[tuple[PyTree, PyTree], None]:
        theta, velocity = carry
        key, step_size = at
        batch = of_vector(BatchDensity(kept, draw(key, rows, eraser.batch), rows.n), unravel)
        both = jax.vmap(jax.grad(batch))(jax.tree.map(lambda a, b: jnp.stack([a, b]), theta, origin))
        ascent = jax.tree.map(lambda pair, pushed: pair[0] - share * (pair[1] + pushed), both, push)
        velocity = jax.tree.map(lambda v, g: (eraser.momentum * v + step_size * g).astype(v.dtype), velocity, ascent)
        return (jax.tree.map(jnp.add, theta, velocity), velocity), None

    budget = -(-eraser.steps // eraser.every)

    def round_(chain: Chain) -> Chain:
        at = chain.rounds * eraser.every + jnp.arange(eraser.every)
        falling = 0.5 * (1 + jnp.cos(jnp.pi * at / (budget * eraser.every)))
        step_sizes = chain.scale * falling * eraser.rate / rows.n
        keys = jax.random.split(jax.random.fold_in(for_steps, chain.rounds), eraser.every)
        (theta, velocity), _ = jax.lax.scan(step, (chain.theta, chain.velocity), (keys, step_sizes))
        value, loss = density_and_loss(theta)
        rise = value - level - _inner(drift, jax.tree.map(jnp.subtract, theta, origin))
        reasonable = loss - chain.first_loss <= eraser.loss_limit * jnp.maximum(jnp.abs(chain.first_loss), 1)
        good = jnp.isfinite(rise) & (rise >= FALLEN * chain.rise - A_NAT) & reasonable
        least = -jnp.inf if eraser.tolerance is None else eraser.tolerance * rise
        after = chain._replace(
            theta=theta,
            velocity=velocity,
            rise=rise,
            loss=loss,
            stalls=jnp.where(rise - chain.rise < least, chain.stalls + 1, 0),
        )
        back = chain._replace(
            velocity=jax.tree.map(jnp.zeros_like, velocity), scale=chain.scale / 2, refused=chain.refused + 1
        )
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), after, back)._replace(rounds=chain.rounds + 1)

    zero = jnp.zeros((), jnp.int32)
    still = jax.tree.map(jnp.zeros_like, origin)
    begun = Chain(origin, still, jnp.ones_like(loss), jnp.zeros_like(level), loss, loss, zero, zero, zero)
    return jax.lax.while_loop(lambda chain: ~chain.settled & (chain.rounds < budget), round_, begun)


def _inner(one: PyTree, other: PyTree) -> Float[Array, ""]:
    products = [jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]
    return jnp.sum(jnp.stack(products))
