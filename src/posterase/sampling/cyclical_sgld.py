"""Cyclical stochastic gradient Langevin dynamics, cSGLD (Zhang et al. 2020, Algorithm 1).

    r_t = ((t − 1) mod cycle) / cycle,        η_t = η / 2 · (1 + cos π r_t)
    exploration, r_t < β:    θ_{t+1} = θ_t + η_t g_t
    sampling, r_t ≥ β:       θ_{t+1} = θ_t + η_t g_t + √(2η_t) W,        W ~ N(0, I)

g_t is the gradient of the log density. Every cycle leaves a mode with large steps, climbs to one, and samples it with
steps that become small. Only states of the sampling stage are draws: `sample` refuses to keep others.

Bias: a mode is drawn as often as cycles end in it. The step sizes decide how often that is, not the mass of the mode,
so draws find modes but do not weigh them. Step sizes begin anew with every cycle, so the bias of discretisation stays:
draws from the middle of a cycle are wider than the posterior, those from its end less so.

References
----------
.. [1] Zhang, R., Li, C., Zhang, J., Chen, C. and Wilson, A. G. (2020). Cyclical stochastic gradient MCMC for Bayesian
   deep learning. ICLR.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.errors import InvalidOptionError
from posterase.runtime.checks import check_type
from posterase.runtime.precision import Number, is_known
from posterase.sampling.sampler import NoiseFreePhase, Sampler, Step, combine
from posterase.sampling.schedules import CyclicalSteps
from posterase.sampling.sgld import langevin


class CyclicalSGLD(Sampler):
    """Cyclical stochastic gradient Langevin dynamics.

    Parameters
    ----------
    schedule
        Step sizes: `CyclicalSteps(step_size, cycle)`. Draw with `thin=cycle`: the last state of every cycle.
    exploration
        β, at least 0 and below 1: the share of every cycle that explores, without noise.
    batch
        Rows per step. None: all of them.
    noise_free
        A first phase without noise, before the first cycle: `NoiseFreePhase(steps, step_size, momentum)`.
    """

    schedule: CyclicalSteps
    exploration: Number = 0.25
    batch: int | None = eqx.field(default=None, static=True)
    noise_free: NoiseFreePhase | None = None

    def __check_init__(self) -> None:
        check_type(self.schedule, CyclicalSteps, "schedule", "use CyclicalSteps(step_size, cycle).")
        if is_known(self.exploration) and not 0 <= float(self.exploration) < 1:
            raise InvalidOptionError(f"exploration is {self.exploration}.", "use a number of at least 0 and below 1.")

    def is_exploring(self, number: Int[Array, "*steps"]) -> Bool[Array, "*steps"]:
        """Whether a step of the schedule belongs to an exploration stage."""
        return self.schedule.position(number) < self.exploration

    def check_kept(self, steps: Int[Array, " chain"], thin: int, draws: int) -> None:
        kept = np.unique(steps)[:, None] + thin * np.arange(1, draws + 1)
        explored = np.asarray(self.is_exploring(self.schedule_step(jnp.asarray(kept, jnp.int32))))
        if explored.any():
            cycle = int(self.schedule.cycle)
            raise InvalidOptionError(
                f"thin={thin} keeps the state after step {kept[explored][0]} of a chain, which is in the exploration "
                f"stage of a cycle of {cycle} steps: without noise, it is no draw.",
                f"pass thin={cycle}, or a multiple of it, so that the last state of a cycle is kept.",
            )

    def start_extra(self, key: Key[Array, ""], theta: PyTree, step_size: Float[Array, ""]) -> None:
        return None

    def update(self, theta: PyTree, extra: None, ascent: PyTree, step: Step) -> tuple[PyTree, None]:
        silent = self.is_exploring(step.number)
        noise = combine(lambda w: jnp.where(silent, 0, w), step.noise)
        return langevin(theta, ascent, step.size, noise), None
