"""Moves: Markov kernels that leave a density invariant, applied to many particles side by side.

A kernel is an object with its settings: `MALAMoves()`, `HMCMoves()`, `NUTSMoves()`, all through blackjax, all
preconditioned by the particles' covariance. In such units a trajectory of length π/2 takes a Gaussian to an independent
draw; `HMCMoves` cuts it into as few leapfrog steps as the acceptance rate allows. `MALAMoves` is one leapfrog step.

Particles come in two halves. What a kernel is tuned on, covariance and step size, is taken from the other half, and the
trial moves that it takes are thrown away: so the moves do not depend on the particles that they move, and leave the
density exactly invariant.

Moves are repeated until the particles have forgotten where they were: until in every parameter the correlation between
a particle's place before and now is small.

References
----------
Buchholz, Chopin, Jacob (2021), Adaptive tuning of Hamiltonian Monte Carlo within sequential Monte Carlo, Bayesian
Analysis 16. Cabezas et al. (2024), BlackJAX, arXiv 2402.10797.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from posterase.errors import InvalidOptionError, NonFiniteResultError
from posterase.numerics.densities import batch_size
from posterase.numerics.paths import Path
from posterase.numerics.transport_maps import MATRICES_UP_TO
from posterase.runtime import sharding
from posterase.runtime.checks import check_int
from posterase.runtime.precision import all_digits, as_jax, cast_floats, in_float64

TRIAL_PARTICLES = 64
"""How many particles of each half try out a step size."""

COARSE = 0.01
"""Nats of rounding in a log density above which moves are made in float64."""

SURE = 4.0
"""Standard errors that are put down to chance."""

JITTER = 0.2
"""Step sizes vary by this share from particle to particle, so that no trajectory closes on itself."""


MOST_LEAPFROGS = 128
"""Where this many are too few, smaller steps will not help: the particles' spread tells the density's scales badly."""


class Setting(NamedTuple):
    """How a kernel moves, in units of the particles' spread."""

    step_size: float
    leapfrogs: int


class Moves(eqx.Module):
    """A kernel and its settings."""

    target_acceptance: eqx.AbstractVar[float]
    """The acceptance rate that a step size must reach."""

    @abc.abstractmethod
    def settings(self) -> list[Setting]:
        """Settings to try, from bold to timid."""

    @abc.abstractmethod
    def move_one(
        self, key: Key[Array, ""], state: Any, path: Path, step: Array, inverse_mass: Array, leapfrogs: Array
    ) -> tuple[Any, Float[Array, ""], Array]:
        """One move of one particle: its new state, the acceptance rate, gradients taken."""

    def __check_init__(self) -> None:
        if not 0 < self.target_acceptance < 1:
            raise InvalidOptionError(f"target_acceptance is {self.target_acceptance}.", "use a number between 0 and 1.")


class LeapfrogMoves(Moves):
    """Kernels that propose the end of a trajectory of leapfrog steps."""

    def move_one(
        self, key: Key[Array, ""], state: Any, path: Path, step: Array, inverse_mass: Array, leapfrogs: Array
    ) -> tuple[Any, Float[Array, ""], Array]:
        from blackjax.mcmc import hmc  # here, since blackjax takes a while to import

        state, info = hmc.build_kernel()(key, state, path, step, inverse_mass, leapfrogs)
        return state, info.acceptance_rate, leapfrogs


class HMCMoves(LeapfrogMoves):
    """Hamiltonian Monte Carlo with trajectories of length π/2 in units of the particles' spread.

    Parameters
    ----------
    target_acceptance
        The number of leapfrog steps is the least that is accepted this often.
    max_leapfrogs
        The most that are tried.
    """

    target_acceptance: float = eqx.field(default=0.7, static=True)
    max_leapfrogs: int = eqx.field(default=64, static=True)

    def __check_init__(self) -> None:
        check_int("max_leapfrogs", self.max_leapfrogs, 1, MOST_LEAPFROGS)

    def settings(self) -> list[Setting]:
        grid = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, MOST_LEAPFROGS)
        counts = [n for n in grid if n <= self.max_leapfrogs] or [1]
        return [Setting(float(np.pi / 2 / n), n) for n in counts]


class MALAMoves(LeapfrogMoves):
    """The Metropolis-adjusted Langevin algorithm: a single leapfrog step.

    Parameters
    ----------
    target_acceptance
        The step size is the largest that is accepted this often.
    """

    target_acceptance: float = eqx.field(default=0.55, static=True)

    def settings(self) -> list[Setting]:
        return [Setting(float(2 * 0.75**i), 1) for i in range(24)]


class NUTSMoves(Moves):
    """The No-U-Turn sampler, which chooses the length of each trajectory itself.

    Parameters
    ----------
    target_acceptance
        The step size is the largest whose trajectories are accepted this often.
    max_doublings
        A trajectory has at most 2 to this power of leapfrog steps.
    """

    target_acceptance: float = eqx.field(default=0.75, static=True)
    max_doublings: int = eqx.field(default=6, static=True)

    def __check_init__(self) -> None:
        check_int("max_doublings", self.max_doublings, 1)

    def settings(self) -> list[Setting]:
        return [Setting(float(np.pi / 2 * 0.75**i), 1) for i in range(20)]

    def move_one(
        self, key: Key[Array, ""], state: Any, path: Path, step: Array, inverse_mass: Array, leapfrogs: Array
    ) -> tuple[Any, Float[Array, ""], Array]:
        from blackjax.mcmc import nuts

        state, info = nuts.build_kernel()(key, state, path, step, inverse_mass, self.max_doublings)
        return state, info.acceptance_rate, info.num_integration_steps


class Moved(NamedTuple):
    """Particles after their moves."""

    thetas: Float[np.ndarray, "2 m d"]
    acceptance: float
    correlation: float
    """The largest over parameters, between places before the moves and after them."""
    unsettled: float
    """How far the particles are from equilibrium, beyond chance: E[(θ − Eθ) ∇log p] + 1, the worst parameter."""
    moves: int
    gradients: float
    """Taken in all, trial moves included."""
    sequential: int
    """Gradients that waited for each other."""


def move(
    key: Key[Array, ""],
    kernel: Moves,
    path: Path,
    thetas: Float[np.ndarray, "2 m d"],
    *,
    most: int,
    enough: float,
) -> Moved:
    """Move particles of p_λ until they have forgotten where they were, at most `most` times.

    Where `path` was moved by maps, they have a leading axis: one for each half. Moves are made in the precision of the
    draws, unless rounding of the log density there would decide what is accepted: then in float64.
    """
    precision = jnp.result_type(*jax.tree.leaves(path.like))
    moved = _move(key, kernel, path, thetas, most, enough, precision)
    if moved is not None:
        return moved

    def again(wide: bool) -> Moved:
        like = cast_floats(jax.tree.map(jnp.asarray, path.like), jnp.float64) if wide else path.like
        at = jnp.asarray(path.at, jnp.float64) if wide else path.at
        fine = eqx.tree_at(lambda p: (p.like, p.at), path, (like, at))
        out = _move(key, kernel, fine, thetas, most, enough, jnp.result_type(*jax.tree.leaves(like)), coarse_ok=True)
        assert out is not None
        return out

    return in_float64(again, "the model's density")[0]


def _move(
    key: Key[Array, ""],
    kernel: Moves,
    path: Path,
    thetas: Float[np.ndarray, "2 m d"],
    most: int,
    enough: float,
    precision: Any,
    coarse_ok: bool = False,
) -> Moved | None:
    """The moves, in this precision; None where it is too coarse for the density's values."""
    for_trials, for_moves = jax.random.split(key)
    halves, m, _ = thetas.shape
    inverse_mass = half_covariances(thetas)[::-1]  # each half uses the other's
    if max(np.abs(thetas).max(), np.abs(inverse_mass).max()) > float(jnp.finfo(precision).max):
        if not coarse_ok:
            return None
        raise NonFiniteResultError(
            "the parameters' variance overflows 32-bit numbers.", "rescale the parameters, or switch on 64 bits in jax."
        )
    trials = as_jax(thetas[:, np.linspace(0, m - 1, min(m, TRIAL_PARTICLES)).astype(int)], precision)
    chosen: list[Setting | None] = [None] * halves
    gradients, waited = 0.0, 0
    settings = kernel.settings()
    for i, setting in enumerate(settings):
        # The particles of a half try the settings that the other half will use.
        step, leapfrogs = _settings([setting] * halves, precision)
        own = as_jax(inverse_mass[::-1], precision)
        tried = _trial(jax.random.fold_in(for_trials, i), kernel, path, trials, step, leapfrogs, own)
        rates, taken, level = jax.device_get(tried)
        if not coarse_ok and float(level) * float(jnp.finfo(precision).eps) > COARSE:
            return None
        gradients, waited = gradients + float((taken + 1).sum()), waited + int(taken.max()) + 1
        for half in range(halves):
            if chosen[half] is None and rates[half] >= kernel.target_acceptance:
                chosen[half] = setting
        if all(one is not None for one in chosen):
            break
    step, leapfrogs = _settings([one or settings[-1] for one in chosen][::-1], precision)
    out = _run(
        for_moves,
        kernel,
        path,
        as_jax(thetas, precision),
        step,
        leapfrogs,
        as_jax(inverse_mass, precision),
        as_jax(most),
        as_jax(enough + 3 / np.sqrt(m), precision),
    )
    final, slopes, rate, correlation, moves, taken, longest = jax.device_get(out)
    return Moved(
        thetas=np.asarray(final, np.float64),
        acceptance=float(rate),
        correlation=float(correlation),
        unsettled=_unsettled(np.asarray(final, np.float64), np.asarray(slopes, np.float64)),
        moves=int(moves),
        gradients=gradients + float(taken) + halves * m,
        sequential=waited + int(longest) + 1,
    )


def _unsettled(thetas: Float[np.ndarray, "2 m d"], slopes: Float[np.ndarray, "2 m d"]) -> float:
    """How far E[∇log p], which is 0, and E[(θ − Eθ) ∇log p], which is −1, are from that, beyond chance; the worst.

    Both by integration by parts, for every parameter of a proper density: they hold at equilibrium, and fail where
    particles drift outwards along a flat tail. In units of the particles' spread.
    """
    flat, slope = thetas.reshape(-1, thetas.shape[-1]), slopes.reshape(-1, thetas.shape[-1])
    centred = flat - flat.mean(axis=0)
    terms = np.concatenate([centred.std(axis=0) * slope, centred * slope + 1], axis=1)
    error = terms.std(axis=0) / np.sqrt(len(terms))
    return float(np.maximum(np.abs(terms.mean(axis=0)) - SURE * error, 0).max())


def _settings(settings: list[Setting], dtype: Any) -> tuple[Array, Array]:
    return as_jax([one.step_size for one in settings], dtype), as_jax([one.leapfrogs for one in settings])


def half_covariances(thetas: Float[np.ndarray, "2 m d"]) -> Float[np.ndarray, "2 d ..."]:
    """The covariance of each half, shrunk towards its diagonal where particles are few; or the variances alone."""
    _, m, d = thetas.shape
    variances = np.maximum(thetas.var(axis=1), np.finfo(np.float32).tiny)
    if d > MATRICES_UP_TO or m < 2 * d:
        return variances
    centred = thetas - thetas.mean(axis=1, keepdims=True)
    covariance = np.swapaxes(centred, 1, 2) @ centred / (m - 1)
    trust = m / (m + d)
    return trust * covariance + (1 - trust) * np.stack([np.diag(one) for one in variances])


def _map(function: Any, path: Path, *arrays: Any) -> Any:
    """Half by half, each with its own map; within a half, a batch of particles at a time (see `_particles`)."""
    if path.moved_by is None:
        return jax.lax.map(lambda args: function(path, *args), arrays)
    moved, rest = eqx.partition(path.moved_by, eqx.is_array)

    def half(args: Any) -> Any:
        one, others = args
        return function(eqx.tree_at(lambda p: p.moved_by, path, eqx.combine(one, rest)), *others)

    return jax.lax.map(half, (moved, arrays))


def _particles(path: Path, function: Any, arrays: tuple[Any, ...], shared: tuple[Any, ...] = ()) -> Any:
    """`function(path, *particle, *shared)`, a batch of particles at a time."""
    n = jax.tree.leaves(arrays)[0].shape[0]

    def one(particle: Any, path: Path, *shared: Any) -> Any:
        return function(path, *particle, *shared)

    return sharding.map_draws(one, arrays, batch_size(path.elements, n), (path, *shared))


def _start(path: Path, thetas: Float[Array, "2 m d"]) -> Any:
    from blackjax.mcmc import hmc

    return _map(lambda path, half: _particles(path, lambda path, at: hmc.init(at, path), (half,)), path, thetas)


def _one_move(
    key: Key[Array, ""], kernel: Moves, path: Path, states: Any, step: Array, leapfrogs: Array, inverse_mass: Array
) -> tuple[Any, Array, Array]:
    """One move of all particles: new states, acceptance rates and gradients, (2, m)."""
    keys = jax.random.split(key, states.position.shape[:2])

    def half(path: Path, keys: Any, states: Any, step: Array, leapfrogs: Array, inverse_mass: Array) -> Any:
        def particle(path: Path, key: Any, state: Any, step: Array, leapfrogs: Array, inverse_mass: Array) -> Any:
            for_jitter, for_move = jax.random.split(key)
            jittered = step * jax.random.uniform(for_jitter, (), step.dtype, 1 - JITTER, 1 + JITTER)
            return kernel.move_one(for_move, state, path, jittered, inverse_mass, leapfrogs)

        states, rates, taken = _particles(path, particle, (keys, states), (step, leapfrogs, inverse_mass))
        return states, rates, jnp.broadcast_to(taken, rates.shape)

    return _map(half, path, keys, states, step, leapfrogs, inverse_mass)


@eqx.filter_jit
@all_digits()
def _trial(
    key: Key[Array, ""],
    kernel: Moves,
    path: Path,
    thetas: Float[Array, "2 trials d"],
    step: Float[Array, " 2"],
    leapfrogs: Int[Array, " 2"],
    inverse_mass: Array,
) -> tuple[Float[Array, " 2"], Array, Float[Array, ""]]:
    """Acceptance rates, gradients taken, and the size of the log density."""
    states = _start(path, thetas)
    _, rates, taken = _one_move(key, kernel, path, states, step, leapfrogs, inverse_mass)
    return jnp.where(jnp.isfinite(rates), rates, 0).mean(axis=1), taken, jnp.abs(states.logdensity).max()


@eqx.filter_jit
@all_digits()
def _run(
    key: Key[Array, ""],
    kernel: Moves,
    path: Path,
    thetas: Float[Array, "2 m d"],
    step: Float[Array, " 2"],
    leapfrogs: Int[Array, " 2"],
    inverse_mass: Array,
    most: Int[Array, ""],
    enough: Float[Array, ""],
) -> tuple[Array, ...]:
    zero = jnp.zeros((), thetas.dtype)

    Carry = tuple[Any, Array, Array, Array, Array, Array]

    def goes_on(carry: Carry) -> Bool[Array, ""]:
        _, _, correlation, i, _, _ = carry
        return (i < most) & (correlation > enough)

    def advance(carry: Carry) -> Carry:
        states, rate, _, i, taken, longest = carry
        states, rates, counts = _one_move(
            jax.random.fold_in(key, i), kernel, path, states, step, leapfrogs, inverse_mass
        )
        mean = jnp.where(jnp.isfinite(rates), rates, 0).mean().astype(rate.dtype)
        return (
            states,
            (rate * i + mean) / (i + 1),
            _correlation(thetas, states.position),
            i + 1,
            taken + counts.sum().astype(taken.dtype),
            longest + counts.max().astype(longest.dtype),
        )

    nothing = jnp.zeros((), jnp.int32)
    initial = (_start(path, thetas), zero, zero + 1, nothing, nothing, nothing)
    states, rate, correlation, moves, taken, longest = jax.lax.while_loop(goes_on, advance, initial)
    return states.position, states.logdensity_grad, rate, correlation, moves, taken, longest


def _correlation(before: Float[Array, "2 m d"], now: Float[Array, "2 m d"]) -> Float[Array, ""]:
    """The largest over halves and parameters of the correlation between places before and now."""
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (before, now))
    scale = jnp.sqrt((a**2).mean(axis=1) * (b**2).mean(axis=1))
    return jnp.max(jnp.where(scale > 0, jnp.abs((a * b).mean(axis=1)) / jnp.where(scale > 0, scale, 1), 0))
