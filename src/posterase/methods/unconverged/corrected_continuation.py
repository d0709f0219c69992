"""CorrectedContinuation: for chains that have not converged, as a network's never have. Only the removal moves them.

A chain of SG-MCMC on a network is stopped long before it is stationary: going on with it on the kept rows trains it
further, which moves it more than the change does. What a refit would have given is not the kept posterior but the end
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

It stops by itself: where the corrected objective rises no more on control rows (less than `tolerance` of its whole
rise, two rounds in turn), or the budget is spent. Rounds that lead nowhere are refused
(`posterase.methods.unconverged.rounds`).

What the removed rows have written into directions in which the kept rows are flat stays there: no gradient of the kept
rows sees it. Where the chains' starts are known, `Rewind` takes that back too, and comes nearer to a refit.

For a chain that *is* stationary the correction is wrong, since ∇full is not zero at a draw: use `ContinueSampling`
there.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from posterase.errors import InvalidOptionError
from posterase.methods.unconverged.rounds import Course, LogDensityFunction, Place, RoundsMethod
from posterase.model.densities import LogRatio
from posterase.runtime.precision import Number, is_known
from posterase.sampling.vectors import of_vector


class CorrectedContinuation(RoundsMethod):
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
    round_steps
        Steps a round.
    control_rows
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
    round_steps: int = eqx.field(default=25, static=True)
    control_rows: int = eqx.field(default=512, static=True)
    tolerance: Number | None = 0.005
    loss_limit: Number = 0.5
    gradients_a_step: ClassVar[int] = 2

    def __check_init__(self) -> None:
        if is_known(self.corrected) and not 0 <= float(self.corrected) <= 1:
            raise InvalidOptionError(f"corrected is {self.corrected}.", "use a share, from 0 to 1.")
        if self.tolerance is not None and is_known(self.tolerance) and not float(self.tolerance) >= 0:
            raise InvalidOptionError(
                f"tolerance is {self.tolerance}.", "use a share of at least 0, or None for the whole budget."
            )

    def course(self, place: Place, origin: PyTree, start: PyTree | None) -> Course:
        ratio_slope = jax.grad(of_vector(LogRatio(place.model, place.change), place.unravel))(origin)
        share = self.corrected * place.share_left

        def ascent(batch: LogDensityFunction, theta: PyTree) -> PyTree:
            both = jax.vmap(jax.grad(batch))(jax.tree.map(lambda a, b: jnp.stack([a, b]), theta, origin))
            return jax.tree.map(lambda pair, ratio: pair[0] - share * (pair[1] - ratio), both, ratio_slope)

        slope = jax.grad(place.on_control)(origin)
        drift = jax.tree.map(lambda target, ratio: share * (target - ratio), slope, ratio_slope)
        return Course(origin, ascent, drift)

    def least_rise(self, rise: Float[Array, ""]) -> Float[Array, ""]:
        return super().least_rise(rise) if self.tolerance is None else self.tolerance * rise

    def extra_cost(self, removed: int, control: int) -> tuple[int, int]:
        return removed + control, control
