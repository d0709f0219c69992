"""Stochastic gradient Langevin dynamics (Welling & Teh 2011; Section 3 of the paper).

    θ_{t+1} = θ_t − η_t ∇Ũ(θ_t) + √(2η_t) W,        W ~ N(0, I)

The paper prints 2√η_t W, which would sample the posterior at twice its temperature; √(2η_t) is right.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from posterase.sampling.sampler import NoiseFreePhase, Sampler, Step, combine
from posterase.sampling.schedules import Schedule


class SGLD(Sampler):
    """Stochastic gradient Langevin dynamics.

    Parameters
    ----------
    schedule
        Step sizes: `PolynomialSteps(a, b, r)` or `ConstantSteps(step_size)`.
    batch
        Rows per step. None: all of them.
    noise_free
        A first phase without noise: `NoiseFreePhase(steps, step_size, momentum)`.
    """

    schedule: Schedule
    batch: int | None = eqx.field(default=None, static=True)
    noise_free: NoiseFreePhase | None = None

    def start_extra(self, key: Key[Array, ""], theta: PyTree, step_size: Float[Array, ""]) -> None:
        return None

    def update(self, theta: PyTree, extra: None, ascent: PyTree, step: Step) -> tuple[PyTree, None]:
        return langevin(theta, ascent, step.size, step.noise), None


def langevin(theta: PyTree, ascent: PyTree, step_size: Float[Array, ""], noise: PyTree) -> PyTree:
    """θ + η g + √(2η) W."""
    return combine(lambda x, g, w: x + step_size * g + jnp.sqrt(2 * step_size) * w, theta, ascent, noise)
