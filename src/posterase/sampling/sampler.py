"""What stochastic-gradient samplers share: the state of a chain, one step of it, and a first phase without noise.

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
    extra: PyTree
    """The sampler's own state, any tree of arrays: velocities, running moments, a thermostat. None: it has none."""
    momentum: PyTree
    """Momentum of the phase without noise, zero after it. None: the sampler has no such phase."""
    step: Int[Array, "*chain"]
    """Number of steps taken."""
    key: Key[Array, "*chain"]
    """All random numbers of the chain come from this key and the number of the step."""
    diverged: Int[Array, "*chain"]
    """The first step after which theta was not finite; 0 if there was none."""


class Step(NamedTuple):
    """What `Sampler.update` needs to know of a step, apart from the chain and the gradient."""

    number: Int[Array, ""]
    """t = 1, 2, …, counted as the schedule counts: from the first step after a phase without noise."""
    size: Float[Array, ""]
    """η_t."""
    rows: Int[Array, ""]
    """N, the number of rows in the log density."""
    noise: PyTree
    """Standard normal numbers, shaped like theta."""


class StepKeys(NamedTuple):
    """The keys of one step, one for each thing that is random. This function of chain and step owns them all."""

    batch: Key[Array, ""]
    noise: Key[Array, ""]
    extra: Key[Array, ""]
    """For a sampler's own state that is drawn anew before the step."""
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
    """A stochastic-gradient sampler: its settings, and one step of one chain.

    A subclass has the three fields below, its own settings, and two methods: `start_extra` and `update`. Both see theta
    as some tree of arrays, whose leaves they treat alike: while chains run, their parameters are one vector.
    """

    schedule: eqx.AbstractVar[Schedule]
    batch: eqx.AbstractVar[int | None]
    noise_free: eqx.AbstractVar[NoiseFreePhase | None]

    @abc.abstractmethod
    def start_extra(self, key: Key[Array, ""], theta: PyTree, step_size: Float[Array, ""]) -> PyTree:
        """The state that a chain starts sampling with, beside theta: any tree of arrays, or None.

        It may depend on the shapes in `theta`, not on its values: it replaces a state that has seen removed rows.
        """

    @abc.abstractmethod
    def update(self, theta: PyTree, extra: PyTree, ascent: PyTree, step: Step) -> tuple[PyTree, PyTree]:
        """Theta and the extra state after one step; `ascent` is ∇ of the log density, or an unbiased estimate of it."""

    def __check_init__(self) -> None:
        check_type(self.schedule, Schedule, "schedule", "use PolynomialSteps(a, b, r) or ConstantSteps(step_size).")

    def check_kept(self, steps: Int[Array, " chain"], thin: int, draws: int) -> None:
        """Refuse to keep every `thin`-th state after these steps, if one of them would be no draw.

        Samplers whose every state is a draw need not override this.
        """

    def init(self, key: Key[Array, ""], theta: PyTree) -> State:
        """A chain that has taken no step."""
        zero = jnp.zeros((), jnp.int32)
        return self.renew(State(theta, None, None, zero, key, zero))

    def renew(self, state: State) -> State:
        """The same chain with everything that its past steps left, apart from theta, made anew.

        Velocities, running moments and momentum have seen the gradients of all rows that were present.
        """
        t = state.step + 1
        extra = self.start_extra(step_keys(state.key, t).extra, state.theta, self.step_size(t))
        momentum = None if self.noise_free is None else jax.tree.map(jnp.zeros_like, state.theta)
        return state._replace(extra=extra, momentum=momentum)

    def renewable_parts(self, theta: PyTree) -> tuple[str, ...]:
        """The names of what `renew` makes anew, for chains with such parameters."""
        named = jax.tree_util.tree_leaves_with_path(extra_layout(self, theta), is_leaf=_is_shaped_like_theta)
        names = tuple(jax.tree_util.keystr(path, simple=True, separator=".") or "extra" for path, _ in named)
        return names if self.noise_free is None else (*names, "momentum")

    def schedule_step(self, t: Int[Array, "*steps"]) -> Int[Array, "*steps"]:
        """Step t of a chain as the schedule counts: from the first step after a phase without noise."""
        return t if self.noise_free is None else jnp.maximum(t - self.noise_free.steps, 1)

    def step_size(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """η at step t of a chain."""
        return self.schedule(self.schedule_step(t))

    def rescaled(self: S, factor: Number) -> S:
        """The same sampler with all its step sizes times a factor."""
        changed = eqx.tree_at(lambda sampler: sampler.schedule, self, self.schedule.scaled(factor))
        if self.noise_free is None:
            return changed
        return eqx.tree_at(lambda sampler: sampler.noise_free.step_size, changed, self.noise_free.step_size * factor)

    def step(
        self, state: State, ascent_at: Callable[[Key[Array, ""], PyTree], PyTree], rows: Int[Array, ""] | int
    ) -> State:
        """One step of one chain, of a log density of so many rows.

        `ascent_at(key, theta)` is ∇ of the log density, or an estimate from a mini-batch.
        """
        t = state.step + 1
        keys = step_keys(state.key, t)
        ascent = ascent_at(keys.batch, state.theta)
        noise = standard_normal(keys.noise, state.theta)
        step = Step(self.schedule_step(t), self.step_size(t), jnp.asarray(rows), noise)
        extra, momentum = state.extra, state.momentum
        if self.noise_free is not None:
            # What the sampler starts with is made when sampling starts, of that step's size.
            begins = t == self.noise_free.steps + 1
            extra = _where(begins, self.renew(state).extra, extra)
        theta, extra = self.update(state.theta, extra, ascent, step)
        if self.noise_free is not None:
            climbs = t <= self.noise_free.steps
            climbed, momentum = _climb(self.noise_free, state, ascent)
            theta, extra = _where(climbs, (climbed, state.extra), (theta, extra))
            momentum = jax.tree.map(lambda leaf: jnp.where(climbs, leaf, jnp.zeros_like(leaf)), momentum)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(theta)]).all()
        diverged = jnp.where((state.diverged == 0) & ~finite, t, state.diverged)
        return State(theta, extra, momentum, t, state.key, diverged)


def check_sampler(value: object, *, instead: str = "") -> None:
    """The value is a sampler; `instead` says what else could be passed."""
    check_type(value, Sampler, "sampler", f"use a sampler, such as SGLD(schedule) or SGHMC(schedule){instead}.")


def _climb(phase: NoiseFreePhase, state: State, ascent: PyTree) -> tuple[PyTree, PyTree]:
    """Theta and momentum after a step of the phase without noise."""
    momentum = combine(lambda v, g: phase.momentum * v + phase.step_size * g, state.momentum, ascent)
    return combine(lambda theta, v: theta + v, state.theta, momentum), momentum


class ShapedLikeTheta(NamedTuple):
    """Stands for a part of a sampler's state that has the shape of the parameters."""

    vector: Float[Array, " d"]


def extra_layout(sampler: Sampler, theta: PyTree) -> PyTree:
    """A sampler's extra state with `ShapedLikeTheta` for every part of it that has the parameters' shape.

    The sampler is asked for its state at parameters of a type that nothing else has. Comparing shapes would not do: a
    thermostat has the shape of a parameter that is one number.
    """
    dtype = jnp.result_type(*(leaf.dtype for leaf in jax.tree.leaves(theta)))
    probe = ShapedLikeTheta(jax.ShapeDtypeStruct((2,), dtype))  # type: ignore[arg-type]
    return jax.eval_shape(lambda theta: sampler.start_extra(jax.random.key(0), theta, jnp.ones(())), probe)


def map_extra(function: Callable[[PyTree], PyTree], sampler: Sampler, theta: PyTree, extra: PyTree) -> PyTree:
    """The extra state with a function applied to every part that has the shape of the parameters."""
    return jax.tree.map(
        lambda part, value: function(value) if _is_shaped_like_theta(part) else value,
        extra_layout(sampler, theta),
        extra,
        is_leaf=_is_shaped_like_theta,
    )


def _is_shaped_like_theta(part: object) -> bool:
    return isinstance(part, ShapedLikeTheta)


def combine(function: object, first: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` that keeps the precision of the first tree."""
    return jax.tree.map(lambda leaf, *others: function(leaf, *others).astype(leaf.dtype), first, *rest)  # type: ignore[operator]


def standard_normal(key: Key[Array, ""], like: PyTree) -> PyTree:
    """Standard normal numbers in the shape of a tree."""
    flat, unravel = ravel_pytree(like)
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))


def _where(condition: Bool[Array, ""], if_true: PyTree, if_false: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
