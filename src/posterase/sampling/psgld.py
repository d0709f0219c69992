"""SGLD preconditioned by running second moments of the gradient, as in RMSprop (Li et al. 2016, Algorithm 1).

    V_t = α V_{t−1} + (1 − α) (g_t / N)²,        G_t = 1 / (λ + √V̂_t)
    θ_{t+1} = θ_t + η_t G_t g_t + √(2 η_t G_t) W,        W ~ N(0, I)

g_t is the gradient of the log density of N rows, all operations are by element, and η_t is half of the paper's ε_t. The
paper divides the likelihood's gradient by N, here the prior's is divided with it. V starts at zero, so that
V̂_t = V_t / (1 − α^t), the mean of the gradients so far, replaces V_t, as in Adam; the paper's first steps are longer.

Bias: the exact diffusion has another term in its drift, Γ_i = ∂G_i/∂θ_i. It is left out, as in the paper's experiments.
So the stationary law is not the posterior even for small steps, and less so the further α is below 1: G_t follows the
current gradient with the weight 1 − α. Take α near 1 where variances matter.

References
----------
.. [1] Li, C., Chen, C., Carlson, D. and Carin, L. (2016). Preconditioned stochastic gradient Langevin dynamics for deep
   neural networks. AAAI.
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


class PSGLDExtra(NamedTuple):
    """What pSGLD carries beside theta."""

    second_moment: PyTree
    """V, shaped like theta."""
    weight: Float[Array, "*chain"]
    """1 − α^t, where t counts the gradients in V."""


class PSGLD(Sampler):
    """Stochastic gradient Langevin dynamics with RMSprop's preconditioner.

    Parameters
    ----------
    schedule
        Step sizes: `PolynomialSteps(a, b, r)` or `ConstantSteps(step_size)`.
    decay
        α, at least 0 and below 1: the share of the second moments that a step keeps. Near 1 the bias is small.
    damping
        λ, positive: bounds the preconditioner by 1/λ. A chain that starts where the gradient is zero takes a first step
        of that scale.
    batch
        Rows per step. None: all of them.
    noise_free
        A first phase without noise: `NoiseFreePhase(steps, step_size, momentum)`. It is not preconditioned.
    """

    schedule: Schedule
    decay: Number = 0.99
    damping: Number = 1e-5
    batch: int | None = eqx.field(default=None, static=True)
    noise_free: NoiseFreePhase | None = None

    def __check_init__(self) -> None:
        if not is_known(self.decay, self.damping):
            return
        if not 0 <= float(self.decay) < 1:
            raise InvalidOptionError(f"decay is {self.decay}.", "use a number of at least 0 and below 1, such as 0.99.")
        if not 0 < float(self.damping) < float("inf"):
            raise InvalidOptionError(f"damping is {self.damping}.", "use a positive number, such as 1e-5.")

    def start_extra(self, key: Key[Array, ""], theta: PyTree, step_size: Float[Array, ""]) -> PSGLDExtra:
        dtype = jnp.result_type(*jax.tree.leaves(theta))
        return PSGLDExtra(jax.tree.map(jnp.zeros_like, theta), jnp.zeros((), dtype))

    def update(self, theta: PyTree, extra: PSGLDExtra, ascent: PyTree, step: Step) -> tuple[PyTree, PSGLDExtra]:
        kept = self.decay
        moment = combine(lambda v, g: kept * v + (1 - kept) * (g / step.rows) ** 2, extra.second_moment, ascent)
        weight = combine(lambda w: kept * w + (1 - kept), extra.weight)

        def move(x: Array, v: Array, g: Array, w: Array) -> Array:
            scale = step.size / (self.damping + jnp.sqrt(v / weight))
            return x + scale * g + jnp.sqrt(2 * scale) * w

        return combine(move, theta, moment, ascent, step.noise), PSGLDExtra(moment, weight)
