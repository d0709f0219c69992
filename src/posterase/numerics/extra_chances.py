r"""Hamiltonian Monte Carlo with extra chances: one move of many draws, each of which is almost sure to move.

    H(z, p) = −log target(z) + ½ p·p,        a trajectory of L steps

in coordinates (`Frame`) in which the draws have about zero mean and unit covariance. There the target is nearly a unit
Gaussian, whose trajectories are rotations, so that only the rest has to be integrated. A step of size h is

    p ← p + h/2 (∇log target(z) + z)
    (z, p) ← (z cos h + p sin h,  p cos h − z sin h)
    p ← p + h/2 (∇log target(z) + z)

Like a leapfrog step it is reversible and keeps volumes. For a Gaussian target one step of size π/2 is an independent
draw, where leapfrog needs three or four for the same acceptance.

A draw whose proposal is rejected would stay where it was. Instead its trajectory goes on: with one uniform number u for
all chances, the state after j L steps is accepted at the first j with u < exp(H₀ − H_j). The chances are equally
spaced, which makes the kernel reversible. Draws that are still on their way are gathered into blocks, so that a draw
pays only for the chances it takes: about L divided by the acceptance rate, in gradients.

A trajectory whose energy is not finite ends there, rejected: an overflow is never accepted.

References
----------
Beskos, Pinski, Sanz-Serna, Stuart (2011), Hybrid Monte Carlo on Hilbert spaces, Stochastic Processes and their
Applications 121. Shahbaba, Lan, Johnson, Neal (2014), Split Hamiltonian Monte Carlo, Statistics and Computing 24.
Sohl-Dickstein, Mudigonda, DeWeese (2014), Hamiltonian Monte Carlo without detailed balance, ICML.
Campos, Sanz-Serna (2015), Extra chance generalized hybrid Monte Carlo, Journal of Computational Physics 281.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from posterase.model.densities import LogDensity
from posterase.numerics.densities import batch_size
from posterase.runtime import sharding
from posterase.runtime.fast_compilation import quick_jit
from posterase.runtime.precision import all_digits, as_jax

JITTER = 0.2
"""Step sizes vary by this share between draws, so that no trajectory closes on itself."""

BLOCK = 128
"""Draws that are integrated side by side on a CPU: few, since blocks are filled up at the end of a sweep."""

BLOCK_OUTSIDE = 16
"""The same where each gradient is computed outside compiled code, so that nothing is gained from many side by side."""


class Frame(eqx.Module):
    """Coordinates in which the draws of a half have about unit covariance: θ = centre + scale z."""

    centre: Float[Array, "*half d"]
    scale: Float[Array, "*half d ..."]
    """A Cholesky factor, or standard deviations."""

    def theta(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.centre + (self.scale @ z if self.scale.ndim == 2 else self.scale * z)


class State(NamedTuple):
    """Draws in a frame's coordinates, with the log density and its gradient there."""

    z: Float[Array, "*half m d"]
    value: Float[Array, "*half m"]
    gradient: Float[Array, "*half m d"]


class Noise(NamedTuple):
    """The random numbers of a sweep. They come from the host: to draw them here would be more to compile."""

    momentum: Float[Array, "*half m d"]
    jitter: Float[Array, "*half m"]
    """What step sizes are multiplied by."""
    level: Float[Array, "*half m"]
    """log u."""

    @classmethod
    def draw(cls, random: np.random.Generator, active: Bool[np.ndarray, "2 m"], d: int, precision: Any) -> Noise:
        """Noise of two halves with d parameters; none where draws are not active."""
        count = int(active.sum())
        momentum = np.zeros((*active.shape, d), np.float64 if precision == np.float64 else np.float32)
        jitter, level = np.ones(active.shape), np.zeros(active.shape)
        momentum[active] = random.standard_normal((count, d), momentum.dtype)
        jitter[active] = random.uniform(1 - JITTER, 1 + JITTER, count)
        level[active] = -random.exponential(size=count)
        return cls(*(as_jax(each, precision) for each in (momentum, jitter, level)))


class RaveledDensity(eqx.Module):
    """The log density of raveled parameters."""

    density: LogDensity
    like: PyTree
    one_by_one: bool = eqx.field(default=False, static=True)
    """Whether trajectories are computed one after the other."""

    @property
    def elements(self) -> int:
        """Numbers of data that one evaluation passes over."""
        return self.density.elements

    def __call__(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.density(ravel_pytree(self.like)[1](theta))


@quick_jit(elements=lambda noise, density, *rest: density.elements)
@all_digits()
def sweep(
    noise: Noise,
    density: RaveledDensity,
    frames: Frame,
    states: State,
    active: Bool[Array, "2 m"],
    sizes: Float[Array, " 2"],
    steps: Int[Array, " 2"],
    chances: Int[Array, " 2"],
) -> tuple[State, Bool[Array, "2 m"], Float[Array, "2 m"], Int[Array, "2 m"]]:
    """One move of the active draws, half by half.

    Returns where they are and whether they moved, the acceptance probabilities of their first proposals, and how many
    chances they took; the last two are 0 for other draws.
    """

    def half(args: Any) -> Any:
        return _sweep_half(density, *args)

    return jax.lax.map(half, (noise, frames, states, active, sizes, steps, chances))


@quick_jit(elements=lambda density, *rest: density.elements)
@all_digits()
def evaluate_blocks(
    density: RaveledDensity, frames: Frame, z: Float[Array, "2 m d"], blocks: Int[Array, " 2"], size: int
) -> Float[Array, "2 m"]:
    """The log density of the first blocks of draws of each half; −∞ for the rest."""
    m = z.shape[1]
    padded = jnp.pad(z, ((0, 0), (0, -m % size), (0, 0)))

    def half(args: tuple[Frame, Array, Array]) -> Array:
        frame, own, count = args

        def at(one: Array, density: RaveledDensity, frame: Frame) -> Array:
            return density(frame.theta(one)).astype(z.dtype)

        def block(i: Array, values: Array) -> Array:
            part = jax.lax.dynamic_slice_in_dim(own, i * size, size)
            found = sharding.map_draws(at, part, size, (density, frame))
            return jax.lax.dynamic_update_slice_in_dim(values, found, i * size, 0)

        return jax.lax.fori_loop(0, count, block, jnp.full(len(own), -jnp.inf, z.dtype))

    return jax.lax.map(half, (frames, padded, blocks))[:, :m]


class _Trajectory(NamedTuple):
    """One draw of a sweep: its accepted state, and the trajectory that is on its way."""

    accepted: State
    current: State
    momentum: Float[Array, " d"]
    chances: Int[Array, ""]
    """That it has taken."""
    moved: Bool[Array, ""]
    first: Float[Array, ""]
    """The acceptance probability of the first proposal."""
    size: Float[Array, ""]
    """Of its steps."""
    energy: Float[Array, ""]
    level: Float[Array, ""]
    """log u."""


def _sweep_half(
    density: RaveledDensity,
    noise: Noise,
    frame: Frame,
    state: State,
    active: Bool[Array, " m"],
    size: Float[Array, ""],
    steps: Int[Array, ""],
    chances: Int[Array, ""],
) -> tuple[State, Bool[Array, " m"], Float[Array, " m"], Int[Array, " m"]]:
    m = len(state.z)
    block = block_size(density.density, m)
    none = jnp.zeros(m, jnp.int32)
    energy = _energy(noise.momentum, state.value)
    begun = _Trajectory(
        state, state, noise.momentum, none, none > 0, jnp.zeros_like(energy), size * noise.jitter, energy, noise.level
    )
    # As one matrix, whose rows are read and written by one gather and one scatter: each is much to compile on a CPU.
    unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], begun))[1]
    ravel_all, unravel_all = jax.vmap(lambda one: ravel_pytree(one)[0]), jax.vmap(unravel)

    def body(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, pending = carry
        first = jnp.argsort(~pending, stable=True)[:block]
        places = jnp.where(pending[first], first, m)  # a place past the end is dropped
        old: _Trajectory = unravel_all(rows[first])
        side_by_side = 1 if density.one_by_one else block
        start = old.current, old.momentum, old.size
        current, momenta = sharding.map_draws(_follow, start, side_by_side, (density, frame, steps))
        after = _energy(momenta, current.value)
        finite = jnp.isfinite(after) & jnp.isfinite(current.z).all(1) & jnp.isfinite(current.gradient).all(1)
        gain = jnp.where(finite, old.energy - after, -jnp.inf)
        accepted = old.level < gain
        taken = old.chances + 1
        new = old._replace(
            accepted=jax.tree.map(lambda a, b: _choose(accepted, a, b), current, old.accepted),
            current=current,
            momentum=momenta,
            chances=taken,
            moved=old.moved | accepted,
            first=jnp.where(taken == 1, jnp.exp(jnp.minimum(gain, 0)), old.first),
        )
        return (
            rows.at[places].set(ravel_all(new), mode="drop"),
            pending.at[places].set(~accepted & finite & (taken < chances), mode="drop"),
        )

    rows, _ = jax.lax.while_loop(lambda carry: carry[1].any(), body, (ravel_all(begun), active))
    end: _Trajectory = unravel_all(rows)
    return end.accepted, end.moved, end.first, end.chances


def _choose(
    which: Bool[Array, " n"], one: Float[Array, "n ..."], other: Float[Array, "n ..."]
) -> Float[Array, "n ..."]:
    return jnp.where(which.reshape(-1, *[1] * (one.ndim - 1)), one, other)


def _follow(
    start: tuple[State, Float[Array, " d"], Float[Array, ""]], density: RaveledDensity, frame: Frame, steps: Array
) -> tuple[State, Float[Array, " d"]]:
    """Follow one draw over some steps, with unit mass in the frame's coordinates."""
    state, momentum, size = start
    cosine, sine = jnp.cos(size), jnp.sin(size)
    value_and_gradient = jax.value_and_grad(lambda z: density(frame.theta(z)))

    def step(_: Any, carry: tuple[State, Array]) -> tuple[State, Array]:
        at, momentum = carry
        momentum = momentum + size / 2 * (at.gradient + at.z)
        z, momentum = cosine * at.z + sine * momentum, cosine * momentum - sine * at.z
        value, gradient = value_and_gradient(z)
        return State(z, value.astype(z.dtype), gradient), momentum + size / 2 * (gradient + z)

    return jax.lax.fori_loop(0, steps, step, (state, momentum))


def _energy(momentum: Float[Array, "n d"], value: Float[Array, " n"]) -> Float[Array, " n"]:
    return 0.5 * (momentum**2).sum(axis=1) - value


def block_size(density: LogDensity, m: int) -> int:
    """How many draws are evaluated side by side."""
    most = batch_size(density.elements, m)
    few = BLOCK if jax.default_backend() == "cpu" else max(BLOCK, m // 8)
    if density.model.gradients_are_expensive:
        few = BLOCK_OUTSIDE
    return min(most, few, m) * sharding.shards(sharding.CHAINS)
