"""Rewind: for chains that have not converged and whose starts are known. Back a part of the way, then on anew.

A chain of SG-MCMC on a network is the end of a recipe that was stopped long before it was stationary. A refit is the
end of the same recipe, from the same start, on the kept rows. What rows have done to the chain is of two kinds. In
directions in which the likelihood is steep it is undone by a few steps on the kept rows. In those in which it is flat
(a network has many) nothing undoes it: the kept rows' gradient does not see it, and the chain keeps what the removed
rows have written there, however long it goes on. There the chain is, to first order, its start and the sum of what
every row has pushed it by, so that going back along the line to its start takes off every row's part alike,

    θ₀ + a (start − θ₀)

and steps on the kept rows alone write theirs again. They have to write for as long as was rewound: the recipe's time T
(the sum of its rates, over one minus the momentum) times a. So the share is bound to the budget,

    a = rate · steps / (2 (1 − momentum) T)                     the mean of a cosine that falls to zero is one half

and a larger share forgets more, at a larger rate, which leaves more of its own noise; with a = 1 it is a refit in a
hurry. `Rewind.in_time` chooses the rate by that rule. No gradient of a removed row is taken at all.

The starts must not have seen the removed rows: initial weights, or networks trained on other data.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterase.draws.draws import Draws
from posterase.draws.objections import Objection
from posterase.errors import DrawsShapeError, InvalidOptionError
from posterase.methods.unconverged.rounds import Course, LogDensityFunction, Place, RoundsDetails, RoundsMethod
from posterase.model.base import AbstractModel
from posterase.runtime.checks import check_int
from posterase.runtime.precision import Number, is_known
from posterase.sampling.sample import initial_points

ROUND_STEPS = 25


class Rewind(RoundsMethod):
    """Every chain goes back towards its start, and then takes steps on the kept rows.

    Parameters
    ----------
    steps
        The budget, in whole rounds, at least one. Each step costs one gradient of a batch.
    initial
        Where the chains began, on the parameters' own scale, leaves shaped `(chain, …)`.
    share
        Of the way back to the start that is rewound, from 0 to 1.
    rate
        Step sizes are rate/N′, N′ the kept rows; they fall to zero along the budget as a cosine does.
    momentum
        Share of the last step that the next one repeats.
    batch
        Rows a step.
    round_steps
        Steps a round.
    control_rows
        Kept rows that the objective is looked at on, after every round; where there are fewer, all.
    loss_limit
        A round is refused where it has made the loss on the control rows higher by this share of what it was (or of one
        nat, where that is more). The result is not passed where a chain ends that much above its loss before.
    """

    steps: int = eqx.field(static=True)
    initial: PyTree = eqx.field(kw_only=True)
    share: Number = 0.5
    rate: Number = 0.02
    momentum: Number = 0.9
    batch: int = eqx.field(default=128, static=True)
    round_steps: int = eqx.field(default=ROUND_STEPS, static=True)
    control_rows: int = eqx.field(default=512, static=True)
    loss_limit: Number = 0.5
    gradients_a_step: ClassVar[int] = 1

    def __check_init__(self) -> None:
        if is_known(self.share) and not 0 <= float(self.share) <= 1:
            raise InvalidOptionError(f"share is {self.share}.", "use a share, from 0 to 1.")

    @classmethod
    def in_time(
        cls,
        steps: int,
        *,
        initial: PyTree,
        share: float,
        time: float,
        momentum: float = 0.9,
        round_steps: int = ROUND_STEPS,
        **options: Any,
    ) -> Rewind:
        """With the rate that writes for as long as was rewound; `time` is Σ rates / (1 − momentum) of the recipe."""
        if not 0 < share <= 1 or not 0 < time < float("inf"):
            raise InvalidOptionError(f"share is {share}, time is {time}.", "use a share up to 1 and a positive time.")
        check_int("steps", steps, 1)
        check_int("round_steps", round_steps, 1)
        rate = 2 * share * time * (1 - momentum) / (-(-steps // round_steps) * round_steps)  # whole rounds are run
        given = {"rate": rate, "momentum": momentum, "round_steps": round_steps, **options}
        return cls(steps, initial=initial, share=share, **given)

    def starts_of(self, model: AbstractModel, draws: Draws) -> PyTree:
        begun, ended = initial_points(self.initial), draws.params
        shapes = [jax.tree.map(lambda leaf: (leaf.shape[0], *leaf.shape[2:]), tree) for tree in (begun.params, ended)]
        if shapes[0] != shapes[1]:
            raise DrawsShapeError(
                "the starts are not those of the draws' chains.",
                "give the same parameters, one start for every chain: leaves shaped (chain, …).",
            )
        model.check(begun)
        free = jax.vmap(model.unconstrain)(begun.flat())
        like = jax.eval_shape(jax.vmap(model.unconstrain), draws.flat())
        return jax.tree.map(lambda leaf, end: jnp.repeat(leaf, draws.n_draws, axis=0).astype(end.dtype), free, like)

    def course(self, place: Place, origin: PyTree, start: PyTree | None) -> Course:
        back = jax.tree.map(lambda end, begun: (end + self.share * (begun - end)).astype(end.dtype), origin, start)

        def ascent(batch: LogDensityFunction, theta: PyTree) -> PyTree:
            return jax.grad(batch)(theta)

        return Course(back, ascent, jax.tree.map(jnp.zeros_like, back))

    def extra_cost(self, removed: int, control: int) -> tuple[int, int]:
        return 0, 2 * control

    def flaw(self, details: RoundsDetails) -> Objection:
        before, after = details.loss.T
        if (after > before + float(self.loss_limit) * np.maximum(np.abs(before), 1)).any():
            told = f"loss {before.max():.3g} before, {after.max():.3g} after"
            return Objection(
                "stuck",
                f"the kept rows are not back where they were: {told}",
                "give it more steps, or rewind a smaller share.",
            )
        return super().flaw(details)
