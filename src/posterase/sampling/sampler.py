"""What stochastic-gradient samplers share: their state, their first phase without noise, one step of one chain.

Step t = 1, 2, … of a chain takes the gradient g_t of the log density (exact, or from a mini-batch) and moves. All its
random numbers come from the chain's key and t alone, so a run that is cut and resumed anywhere gives the same bits.

In a first phase without noise (Zhang et al. 2020, Appendix D of the paper) the chain climbs: with momentum m,

    v ← m v + η g,    θ ← θ + v,          η fixed

The schedule of step sizes begins when sampling does: its t = 1 is the first step after that phase.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.errors import InvalidOptionError
from posterase.runtime.checks import check_int, check_type
from posterase.runtime.precision import Number, is_known
from posterase.sampling.schedules import Schedule


class State(NamedTuple):
    """A chain between two steps. With a leading axis on every leaf: many chains."""

    theta: PyTree
    """Unconstrained parameters."""
    velocity: PyTree
    """Momentum of the phase without noise, velocity of SGHMC; unused by SGLD otherwise."""
    step: Int[Array, "*chain"]
    """Steps taken."""
    key: Key[Array, "*chain"]
    """All random numbers of the chain come from this key and the number of the step."""
    diverged: Int[Array, "*chain"]
    """The first step after which theta was not finite; 0 where there was none."""


class StepKeys(NamedTuple):
    """The keys of one step, one for each thing that is random. This function of chain and step owns them all."""

    batch: Key[Array, ""]
    noise: Key[Array, ""]
    velocity: Key[Array, ""]
    """For a velocity drawn anew before the step."""
    curvature: Key[Array, ""]
    """For the rows that a Hessian-vector product sees at the state the step ended in."""


def step_keys(key: Key[Array, ""], t: Int[Array, ""]) -> StepKeys:
    """The keys of step t of a chain."""
    return StepKeys(*jax.random.split(jax.random.fold_in(key, t), 4))


class NoiseFreePhase(eqx.Module):
    """A first phase of `steps` steps of gradient ascent, at a fixed step size, with optional momentum."""

    steps: int | Int[Array, ""]
    step_size: Number
    momentum: Number = 0.0

    def __check_init__(self) -> None:
        if not is_known(self.steps, self.step_size, self.momentum):
            return
        check_int("steps", int(self.steps) if isinstance(self.steps, jax.Array) else self.steps, 1)
        if not (0 < float(self.step_size) < float("inf") and 0 <= float(self.momentum) < 1):
            raise InvalidOptionError(
                f"the phase without noise has steps={self.steps}, step_size={self.step_size}, "
                f"momentum={self.momentum}.",
                "use a positive step size, and a momentum of at least 0 and below 1.",
            )


S = TypeVar("S", bound="Sampler")


class Sampler(eqx.Module):
    """A stochastic-gradient sampler: its settings, and one step of one chain."""

    schedule: eqx.AbstractVar[Schedule]
    batch: eqx.AbstractVar[int | None]
    noise_free: eqx.AbstractVar[NoiseFreePhase | None]

    @abc.abstractmethod
    def start_velocity(self, key: Key[Array, ""], theta: PyTree, step_size: Float[Array, ""]) -> PyTree:
        """The velocity a chain starts sampling with."""

    @abc.abstractmethod
    def update(
        self, theta: PyTree, velocity: PyTree, ascent: PyTree, step_size: Float[Array, ""], noise: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Parameters and velocity after one step; `ascent` is ∇ of the log density, `noise` standard normal."""

    def __check_init__(self) -> None:
        check_type(self.schedule, Schedule, "schedule", "use PolynomialSteps(a, b, r) or ConstantSteps(step_size).")

    def init(self, key: Key[Array, ""], theta: PyTree) -> State:
        """A chain that has taken no step."""
        zero = jnp.zeros((), jnp.int32)
        return State(theta, self.fresh_velocity(key, theta, zero + 1), zero, key, zero)

    def fresh_velocity(self, key: Key[Array, ""], theta: PyTree, t: Int[Array, ""]) -> PyTree:
        """A velocity for step t that has seen no data: none while the chain climbs, else as sampling starts."""
        drawn = self.start_velocity(step_keys(key, t).velocity, theta, self.step_size(t))
        if self.noise_free is None:
            return drawn
        return _where(t <= self.noise_free.steps, jax.tree.map(jnp.zeros_like, drawn), drawn)

    def step_size(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """η at step t of a chain; the schedule's own count begins after a phase without noise."""
        return self.schedule(t if self.noise_free is None else jnp.maximum(t - self.noise_free.steps, 1))

    def rescaled(self: S, factor: Number) -> S:
        """The same sampler with all its step sizes times a factor."""
        changed = eqx.tree_at(lambda sampler: sampler.schedule, self, self.schedule.scaled(factor))
        if self.noise_free is None:
            return changed
        return eqx.tree_at(lambda sampler: sampler.noise_free.step_size, changed, self.noise_free.step_size * factor)

    def step(self, state: State, ascent_at: Callable[[Key[Array, ""], PyTree], PyTree]) -> State:
        """One step of one chain; `ascent_at(key, theta)` is ∇ of the log density, or an estimate from a mini-batch."""
        t = state.step + 1
        keys = step_keys(state.key, t)
        ascent = ascent_at(keys.batch, state.theta)
        step_size = self.step_size(t)
        velocity = state.velocity
        if self.noise_free is not None:
            # The velocity that SGHMC samples with is drawn when sampling starts; momentum from before is dropped.
            begins = t == self.noise_free.steps + 1
            velocity = _where(begins, self.fresh_velocity(state.key, state.theta, t), velocity)
        noise = standard_normal(keys.noise, state.theta)
        theta, velocity = self.update(state.theta, velocity, ascent, step_size, noise)
        if self.noise_free is not None:
            climbs = t <= self.noise_free.steps
            theta, velocity = _where(climbs, self._climb(state, ascent), (theta, velocity))
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(theta)]).all()
        diverged = jnp.where((state.diverged == 0) & ~finite, t, state.diverged)
        return State(theta, velocity, t, state.key, diverged)

    def _climb(self, state: State, ascent: PyTree) -> tuple[PyTree, PyTree]:
        phase = self.noise_free
        assert phase is not None
        velocity = combine(lambda v, g: phase.momentum * v + phase.step_size * g, state.velocity, ascent)
        return combine(lambda theta, v: theta + v, state.theta, velocity), velocity


def combine(function: object, first: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` that keeps the precision of the first tree."""
    return jax.tree.map(lambda leaf, *others: function(leaf, *others).astype(leaf.dtype), first, *rest)  # type: ignore[operator]


def standard_normal(key: Key[Array, ""], like: PyTree) -> PyTree:
    """Standard normal numbers in the shape of a tree."""
    flat, unravel = ravel_pytree(like)
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))


def _where(condition: Bool[Array, ""], if_true: PyTree, if_false: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
