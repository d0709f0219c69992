"""Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014; Section 3 of the paper).

    θ_{t+1} = θ_t + v_t
    v_{t+1} = (1 − α) v_t − η_t ∇Ũ(θ_t) + √(2αη_t) W,        W ~ N(0, I),    v₀ ~ N(0, η₀ I)

The paper calls α the momentum factor; it is friction: of the velocity 1 − α is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from posterase.errors import InvalidOptionError
from posterase.runtime.precision import Number, is_known
from posterase.sampling.sampler import NoiseFreePhase, Sampler, Step, combine, standard_normal
from posterase.sampling.schedules import Schedule


class SGHMCExtra(NamedTuple):
    """What SGHMC carries beside theta."""

    velocity: PyTree
    """v, shaped like theta."""


class SGHMC(Sampler):
    """Stochastic gradient Hamiltonian Monte Carlo.

    Parameters
    ----------
    schedule
        Step sizes: `PolynomialSteps(a, b, r)` or `ConstantSteps(step_size)`.
    friction
        α, above 0 and below 1: the share of the velocity that a step loses.
    batch
        Rows per step. None: all of them.
    noise_free
        A first phase without noise: `NoiseFreePhase(steps, step_size, momentum)`.
    """

    schedule: Schedule
    friction: Number = 0.9
    batch: int | None = eqx.field(default=None, static=True)
    noise_free: NoiseFreePhase | None = None

    def __check_init__(self) -> None:
        if is_known(self.friction) and not 0 < float(self.friction) < 1:
            raise InvalidOptionError(f"friction is {self.friction}.", "use a number above 0 and below 1.")

    def start_extra(self, key: Key[Array, ""], theta: PyTree, step_size: Float[Array, ""]) -> SGHMCExtra:
        return SGHMCExtra(start_velocity(key, theta, step_size))

    def update(self, theta: PyTree, extra: SGHMCExtra, ascent: PyTree, step: Step) -> tuple[PyTree, SGHMCExtra]:
        velocity, jitter = extra.velocity, jnp.sqrt(2 * self.friction * step.size)

        def accelerate(v: Array, g: Array, w: Array) -> Array:
            return (1 - self.friction) * v + step.size * g + jitter * w

        moved = combine(lambda x, v: x + v, theta, velocity)
        return moved, SGHMCExtra(combine(accelerate, velocity, ascent, step.noise))


def start_velocity(key: Key[Array, ""], theta: PyTree, step_size: Float[Array, ""]) -> PyTree:
    """v₀ ~ N(0, η I): its stationary law in continuous time."""
    return combine(lambda w: jnp.sqrt(step_size) * w, standard_normal(key, theta))
