"""The stochastic gradient Nosé–Hoover thermostat (Ding et al. 2014, Algorithm 2).

    v_{t+1} = (1 − ξ_t) v_t + η_t g_t + √(2 a η_t) W,        W ~ N(0, I),    v₀ ~ N(0, η₀ I)
    θ_{t+1} = θ_t + v_{t+1}
    ξ_{t+1} = ξ_t + v_{t+1}ᵀ v_{t+1} / d − η_t,              ξ₀ = a,         d parameters

g_t is the gradient of the log density. In the paper's letters, with the step h: v = h p, η = h², and ξ and a are its
ξ and A times h.

SGHMC is right when its friction matches all the noise there is, and the noise of mini-batches is unknown. Here the
friction ξ adapts until v has the temperature it should have, E vᵀv/d = η. Gradient noise of variance B in every
direction thus comes to be balanced by friction of about a + η B / 2. One number can balance only noise of the same size
in all directions.

Bias: with a steady ξ, the variance of a Gaussian comes out as 1 − ξ/2 of what it should be. Smaller steps make ξ
smaller. ξ needs some 1/η steps for every unit that it changes: give it time before the first draw.

References
----------
.. [1] Ding, N., Fang, Y., Babbush, R., Chen, C., Skeel, R. D. and Neven, H. (2014). Bayesian sampling using stochastic
   gradient thermostats. NeurIPS.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from posterase.errors import InvalidOptionError
from posterase.runtime.precision import Number, is_known
from posterase.sampling.sampler import NoiseFreePhase, Sampler, Step, combine
from posterase.sampling.schedules import Schedule
from posterase.sampling.sghmc import start_velocity


class SGNHTExtra(NamedTuple):
    """What SGNHT carries beside theta."""

    velocity: PyTree
    """v, shaped like theta."""
    thermostat: Float[Array, "*chain"]
    """ξ, the friction that adapts."""


class SGNHT(Sampler):
    """Stochastic gradient Nosé–Hoover thermostat.

    Parameters
    ----------
    schedule
        Step sizes: `PolynomialSteps(a, b, r)` or `ConstantSteps(step_size)`.
    diffusion
        a, above 0 and below 1: the noise that is added to that of the mini-batches, and the friction of the first step.
    batch
        Rows per step. None: all of them.
    noise_free
        A first phase without noise: `NoiseFreePhase(steps, step_size, momentum)`.
    """

    schedule: Schedule
    diffusion: Number = 0.1
    batch: int | None = eqx.field(default=None, static=True)
    noise_free: NoiseFreePhase | None = None

    def __check_init__(self) -> None:
        if is_known(self.diffusion) and not 0 < float(self.diffusion) < 1:
            raise InvalidOptionError(f"diffusion is {self.diffusion}.", "use a number above 0 and below 1.")

    def start_extra(self, key: Key[Array, ""], theta: PyTree, step_size: Float[Array, ""]) -> SGNHTExtra:
        dtype = jnp.result_type(*jax.tree.leaves(theta))
        return SGNHTExtra(start_velocity(key, theta, step_size), jnp.asarray(self.diffusion, dtype))

    def update(self, theta: PyTree, extra: SGNHTExtra, ascent: PyTree, step: Step) -> tuple[PyTree, SGNHTExtra]:
        friction, jitter = extra.thermostat, jnp.sqrt(2 * self.diffusion * step.size)

        def accelerate(v: Array, g: Array, w: Array) -> Array:
            return (1 - friction) * v + step.size * g + jitter * w

        velocity = combine(accelerate, extra.velocity, ascent, step.noise)
        leaves = jax.tree.leaves(velocity)
        temperature = sum(jnp.sum(leaf**2) for leaf in leaves) / sum(leaf.size for leaf in leaves)
        thermostat = combine(lambda xi: xi + temperature - step.size, friction)
        return combine(lambda x, v: x + v, theta, velocity), SGNHTExtra(velocity, thermostat)
