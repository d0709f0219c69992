r"""Refresh: move equally weighted draws by a kernel that leaves their density invariant, until they have forgotten
where they came from.

Resampled draws repeat in proportion to their weights, and after an erasure the weights are a function of the removed
rows. So before draws leave the process, every one of them is moved by Hamiltonian Monte Carlo on the kept posterior:

    H(θ, p) = −log kept(θ) + ½ p·p,        a trajectory of L leapfrog steps and length about π/2

in coordinates in which the draws have unit covariance, where such a trajectory takes a Gaussian to an independent draw.

**Extra chances** (Sohl-Dickstein et al. 2014; Campos and Sanz-Serna 2015). A draw whose proposal is rejected would stay
where it was. Instead its trajectory goes on: with one uniform number u for all chances, the state after j L steps is
accepted at the first j with u < exp(H₀ − H_j). The chances are equally spaced, which makes the kernel reversible. Those
that are still on their way are gathered into blocks, so that a draw pays only for the chances it takes: about L divided
by the acceptance rate, in gradients.

**Two halves.** The covariance and the number of leapfrog steps of one half are taken from the other half, and trial
moves are thrown away: a kernel does not depend on the draws that it moves.

A trajectory whose energy is not finite ends there, rejected: an overflow is never accepted. Trajectories are computed
in the precision of the draws, unless rounding of the log density would decide what is accepted: then in float64.

References
----------
Sohl-Dickstein, Mudigonda, DeWeese (2014), Hamiltonian Monte Carlo without detailed balance, ICML.
Campos, Sanz-Serna (2015), Extra chance generalized hybrid Monte Carlo, Journal of Computational Physics 281.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from posterase import devices
from posterase.log_densities import LogDensity
from posterase.numerics.cost import Cost
from posterase.numerics.densities import batch_size
from posterase.numerics.moves import COARSE, half_covariances
from posterase.precision import all_digits, as_jax, in_float64

MOST_CORRELATION = 0.3
"""Draws are moved until nothing correlates with its value at their ancestors more than this."""

LEAPFROGS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Steps that a trajectory of length π/2 is cut into: the fewest that reach the target acceptance."""

TARGET_ACCEPTANCE = 0.75
LEAST_ACCEPTANCE = 0.2
"""Below this even with the most steps, the kernel does not fit the density, and nothing is moved."""

TRIAL_DRAWS = 64
"""Draws of each half that try a setting."""

PILOT_DRAWS = 256
"""Draws of each half that are moved to see what moves take."""

JITTER = 0.2
"""Step sizes vary by this share between draws, so that no trajectory closes on itself."""

MOST_CHANCES, MOST_SWEEPS = 8, 8
STUCK_STEP = 0.5
"""The step of the cheap sweeps that follow where only a few draws have not moved yet."""

BLOCK = 128
"""Draws that are integrated side by side on a CPU: few, since blocks are filled up at the end of a sweep."""


class Refreshed(NamedTuple):
    """Draws after their moves."""

    thetas: Float[np.ndarray, "2 count d"]
    correlation: float
    """The largest, over parameters and whatever else was asked for, with the values before the moves."""
    unmoved: int
    """Draws that are still where they were."""
    acceptance: float
    """Of the first proposals."""
    leapfrogs: int
    sweeps: int
    """With the tuned trajectories."""
    cost: Cost

    @property
    def forgot(self) -> bool:
        """Whether every draw has moved and nothing of where they were is left."""
        return self.unmoved == 0 and self.correlation < MOST_CORRELATION


class Plan(NamedTuple):
    """Which draws to move, and when to give up."""

    places: Int[np.ndarray, "2 count"]
    """Of each half."""
    most_gradients: float
    """No sweep is begun once moves have taken more than this."""


class Tuned(NamedTuple):
    """How each half is moved, in units of the draws' covariance, and what it takes."""

    step: Float[np.ndarray, " 2"]
    leapfrogs: Int[np.ndarray, " 2"]
    acceptance: float
    sweeps: int = 1
    """Full sweeps that a pilot needed."""

    @property
    def gradients_per_draw(self) -> float:
        """What the moves of a draw take: the gradient at the start, full sweeps, and a cheap one for those stuck.

        From whole numbers only, so that how many draws are moved hardly varies with the values of the removed rows.
        """
        return 2.2 + self.sweeps * float(self.leapfrogs.mean()) / TARGET_ACCEPTANCE


Choose = Callable[[Tuned], Plan | None]
Watched = Callable[[Float[np.ndarray, "n d"]], Float[np.ndarray, " n"]]


def refresh(
    random: np.random.Generator,
    density: LogDensity,
    like: PyTree,
    thetas: Float[np.ndarray, "2 m d"],
    choose: Choose,
    watched: Watched,
) -> Refreshed | None:
    """Move draws until every one has moved and none of their values correlates with where they came from.

    Parameters
    ----------
    random
        Where the random numbers come from. (On the host: every jax operation on a key would be a program to compile.)
    density
        The log density that the moves leave invariant.
    like
        One draw's parameters, for the structure of a raveled one.
    thetas
        Raveled unconstrained draws, in two halves of equal size.
    choose
        Given the tuned moves, which draws to move; None to move none.
    watched
        A function of raveled draws that must not correlate either.

    Returns
    -------
    Refreshed
        None where `choose` declined. Draws that the kernel does not fit come back unmoved.
    """
    narrow = _Refresh(density, like, thetas, wide=False)
    if narrow.is_precise():
        return narrow(random, choose, watched)

    def run(wide: bool) -> Refreshed | None:
        return _Refresh(density, like, thetas, wide)(random, choose, watched)

    return in_float64(run, "the model's density")[0]


class _Frame(eqx.Module):
    """Coordinates in which the draws of a half have about unit covariance: θ = centre + scale z."""

    centre: Float[Array, "*half d"]
    scale: Float[Array, "*half d ..."]
    """A Cholesky factor, or standard deviations."""

    def theta(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.centre + (self.scale @ z if self.scale.ndim == 2 else self.scale * z)


class _State(NamedTuple):
    z: Float[Array, "*half m d"]
    value: Float[Array, "*half m"]
    gradient: Float[Array, "*half m d"]


class _Swept(NamedTuple):
    """What a sweep did."""

    state: _State
    moved: Bool[np.ndarray, "2 m"]
    rates: Float[np.ndarray, " 2"]
    """Acceptance rates of first proposals, of each half."""


class _Density(eqx.Module):
    """The log density of raveled parameters."""

    density: LogDensity
    like: PyTree

    def __call__(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.density(ravel_pytree(self.like)[1](theta))


class _Refresh:
    """One call of `refresh`, in one precision."""

    def __init__(self, density: LogDensity, like: PyTree, thetas: Float[np.ndarray, "2 m d"], wide: bool):
        like = jax.tree.map(lambda leaf: as_jax(leaf, np.float64 if wide else None), like)
        self.density = _Density(density, like)
        self.precision = jnp.result_type(*jax.tree.leaves(like))
        scales = _roots(half_covariances(thetas))
        self.centres, self.scales = thetas.mean(axis=1)[::-1], scales[::-1]  # each half uses the other's
        self.thetas = thetas
        self.frame = _Frame(as_jax(self.centres, self.precision), as_jax(self.scales, self.precision))
        self.gradients, self.sequential = 0.0, 0

    @functools.cached_property
    def trial(self) -> tuple[_State, Bool[np.ndarray, "2 m"]]:
        """A few draws of each half at which the density and its gradient are numbers, and these numbers."""
        m = self.thetas.shape[1]
        active = np.zeros((2, m), bool)
        active[:, np.linspace(0, m - 1, min(m, TRIAL_DRAWS)).astype(int)] = True
        state = self.start(self.whitened(), active)
        return state, active & np.isfinite(np.asarray(state.value))

    def is_precise(self) -> bool:
        """Whether rounding of the log density is too small to matter."""
        state, active = self.trial
        values = np.abs(np.asarray(state.value, np.float64)[active])
        return bool(values.max(initial=0.0) * float(jnp.finfo(self.precision).eps) < COARSE)

    def __call__(self, random: np.random.Generator, choose: Choose, watched: Watched) -> Refreshed | None:
        tuned = self.tune(random)
        if tuned is None:
            every = self.thetas.shape[0] * self.thetas.shape[1]
            return Refreshed(self.thetas, 1.0, every, 0.0, LEAPFROGS[-1], 0, self.cost)
        tuned = self.pilot(random, tuned)
        plan = choose(tuned)
        return None if plan is None else self.move(random, tuned, plan, watched)

    def pilot(self, random: np.random.Generator, tuned: Tuned) -> Tuned:
        """How many sweeps are needed, by those of a few draws, which are thrown away."""
        m = self.thetas.shape[1]
        places = np.linspace(0, m - 1, min(m, PILOT_DRAWS)).astype(int)
        moved = self.move(random, tuned, Plan(np.stack([places, places]), np.inf), None)
        return tuned._replace(sweeps=max(moved.sweeps, 1))

    def move(self, random: np.random.Generator, tuned: Tuned, plan: Plan, watched: Watched | None) -> Refreshed:
        """Sweeps over the planned draws until they have forgotten, or it takes too much."""
        m, count = self.thetas.shape[1], plan.places.shape[1]
        # Draws that are not moved fill the arrays up: all plans have one shape, which is compiled once.
        places = np.pad(plan.places, ((0, 0), (0, m - count)), mode="edge")
        active = np.broadcast_to(np.arange(m) < count, (2, m))
        rows = np.arange(2)[:, None]
        starts = self.thetas[rows, places]
        state = self.start(self.whitened()[rows, places], active)
        before = self.features(starts, count, watched)
        moved, step, leapfrogs = np.zeros((2, count), bool), tuned.step, tuned.leapfrogs
        if not np.isfinite(np.asarray(state.value)[active]).all():  # the density or its gradient is no number there
            return Refreshed(starts[:, :count], 1.0, 2 * count, 0.0, int(leapfrogs.max()), 0, self.cost)
        rates, full_sweeps, correlation, thetas = [], 0, 1.0, starts
        for number in range(MOST_SWEEPS):
            full_sweeps += int(leapfrogs is tuned.leapfrogs)
            swept = self.sweep(random, state, active, step, leapfrogs)
            state = swept.state
            moved |= swept.moved[:, :count]
            rates.append(float(swept.rates.mean()))
            thetas = self.thetas_of(np.asarray(state.z, np.float64))
            correlation = largest_correlation(before, self.features(thetas, count, watched))
            forgot = correlation < MOST_CORRELATION
            if (forgot and moved.all()) or self.gradients > plan.most_gradients:
                break
            # What is stuck with these steps moves with smaller ones; a single one does where the rest has forgotten.
            shrink = 4.0 ** -((number + 1) // 2)
            if forgot:
                step, leapfrogs = np.full(2, STUCK_STEP) * shrink, np.ones(2, np.int64)
            else:
                step, leapfrogs = tuned.step * (shrink if number % 2 == 0 else 1.0), tuned.leapfrogs
        return Refreshed(
            thetas=thetas[:, :count],
            correlation=correlation,
            unmoved=int((~moved).sum()),
            acceptance=rates[0],
            leapfrogs=int(tuned.leapfrogs.max()),
            sweeps=full_sweeps,
            cost=self.cost,
        )

    @property
    def cost(self) -> Cost:
        """So far, trials included."""
        return Cost(gradients=self.gradients, sequential=self.sequential)

    def features(
        self, thetas: Float[np.ndarray, "2 m d"], count: int, watched: Watched | None
    ) -> Float[np.ndarray, "n k"]:
        """What draws must forget: their parameters, and what is watched."""
        d = thetas.shape[-1]
        if watched is None:
            return thetas[:, :count].reshape(-1, d)
        values = watched(thetas.reshape(-1, d)).reshape(thetas.shape[:2])  # of all, so that one shape is compiled
        return np.concatenate([thetas, values[..., None]], axis=2)[:, :count].reshape(-1, d + 1)

    def tune(self, random: np.random.Generator) -> Tuned | None:
        """The fewest leapfrog steps that are accepted often enough, tried by a few draws of the other half."""
        state, trial = self.trial
        found: list[tuple[int, float] | None] = [None, None]
        for leapfrogs in LEAPFROGS:
            step, counts = np.full(2, np.pi / 2 / leapfrogs), np.full(2, leapfrogs)
            rates = self.sweep(random, state, trial, step, counts, chances=1).rates
            last = leapfrogs == LEAPFROGS[-1]
            for half in range(2):
                if found[half] is None and (rates[half] >= TARGET_ACCEPTANCE or last):
                    found[half] = leapfrogs, float(rates[half])
            if None not in found:
                break
        settings = np.array(found[::-1])
        acceptance = float(settings[:, 1].min())
        if acceptance < LEAST_ACCEPTANCE:
            return None
        counts = settings[:, 0].astype(np.int64)
        return Tuned(np.pi / 2 / counts, counts, acceptance)

    def whitened(self) -> Float[np.ndarray, "2 m d"]:
        centred = self.thetas - self.centres[:, None]
        if self.scales.ndim == 2:
            return centred / self.scales[:, None]
        return np.stack([np.linalg.solve(scale, half.T).T for scale, half in zip(self.scales, centred, strict=True)])

    def thetas_of(self, z: Float[np.ndarray, "2 count d"]) -> Float[np.ndarray, "2 count d"]:
        scaled = z * self.scales[:, None] if self.scales.ndim == 2 else z @ np.swapaxes(self.scales, 1, 2)
        return self.centres[:, None] + scaled

    def start(self, z: Float[np.ndarray, "2 m d"], active: Bool[np.ndarray, "2 m"]) -> _State:
        """Value and gradient at the active draws: by a trajectory of length zero, so that nothing else is compiled."""
        blank = as_jax(z, self.precision)
        state = _State(
            blank, as_jax(np.full(z.shape[:2], -np.inf), self.precision), as_jax(np.zeros(z.shape), self.precision)
        )
        random = np.random.default_rng(0)  # of no effect
        return self.sweep(random, state, active, np.zeros(2), np.ones(2, np.int64)).state

    def sweep(
        self,
        random: np.random.Generator,
        state: _State,
        active: Bool[np.ndarray, "2 m"],
        step: Float[np.ndarray, " 2"],
        leapfrogs: Int[np.ndarray, " 2"],
        chances: int = MOST_CHANCES,
    ) -> _Swept:
        """Every active draw moved once."""
        out = _sweep(
            as_jax(random.integers(2**32, size=(2, 2), dtype=np.uint32)),
            self.density,
            self.frame,
            state,
            as_jax(active),
            as_jax(step, self.precision),
            as_jax(leapfrogs, np.int32),
            as_jax(np.full(2, chances), np.int32),
        )
        state, moved, rates, trajectories, longest = out
        self.gradients += float((np.asarray(trajectories) * leapfrogs).sum())
        self.sequential += int((np.asarray(longest) * leapfrogs).max())
        return _Swept(state, np.asarray(moved), np.asarray(rates, np.float64))


@eqx.filter_jit
@all_digits()
def _sweep(
    keys: UInt32[Array, "2 2"],
    density: _Density,
    frames: _Frame,
    states: _State,
    active: Bool[Array, "2 m"],
    steps: Float[Array, " 2"],
    leapfrogs: Int[Array, " 2"],
    chances: Int[Array, " 2"],
) -> tuple[_State, Bool[Array, "2 m"], Float[Array, " 2"], Int[Array, " 2"], Int[Array, " 2"]]:
    """One move of the active draws, half by half."""

    def half(args: Any) -> Any:
        return _sweep_half(density, *args)

    return jax.lax.map(half, (keys, frames, states, active, steps, leapfrogs, chances))


class _Sweep(NamedTuple):
    """Where a sweep is: accepted states, and trajectories that are on their way."""

    state: _State
    momentum: Float[Array, "m d"]
    current: _State
    chances: Int[Array, " m"]
    pending: Bool[Array, " m"]
    moved: Bool[Array, " m"]
    first: Float[Array, " m"]
    """The acceptance probability of the first proposal."""
    trajectories: Int[Array, ""]


def _sweep_half(
    density: _Density,
    key: UInt32[Array, " 2"],
    frame: _Frame,
    state: _State,
    active: Bool[Array, " m"],
    step: Float[Array, ""],
    leapfrogs: Int[Array, ""],
    chances: Int[Array, ""],
) -> tuple[_State, Bool[Array, " m"], Float[Array, ""], Int[Array, ""], Int[Array, ""]]:
    m, d = state.z.shape
    for_momentum, for_jitter, for_level = jax.random.split(jax.random.wrap_key_data(key), 3)
    momentum = jax.random.normal(for_momentum, (m, d), state.z.dtype)
    steps = step * jax.random.uniform(for_jitter, (m,), state.z.dtype, 1 - JITTER, 1 + JITTER)
    level = jnp.log(jax.random.uniform(for_level, (m,), state.z.dtype, jnp.finfo(state.z.dtype).tiny))
    energy = _energy(momentum, state.value)
    size = _block_size(density.density.elements, m)

    def body(sweep: _Sweep) -> _Sweep:
        places = jnp.nonzero(sweep.pending, size=size, fill_value=m)[0]

        def gathered(leaf: Array) -> Array:
            return leaf.at[places].get(mode="clip")

        start = jax.tree.map(gathered, (sweep.current, sweep.momentum, steps))
        current, momenta = devices.map_draws(_trajectory, start, size, (density, frame, leapfrogs))
        after = _energy(momenta, current.value)
        finite = jnp.isfinite(after) & jnp.isfinite(current.z).all(1) & jnp.isfinite(current.gradient).all(1)
        gain = jnp.where(finite, gathered(energy) - after, -jnp.inf)
        accepted = gathered(level) < gain
        taken = gathered(sweep.chances) + 1
        kept = jnp.where(accepted, places, m)  # a place past the end is dropped
        first = jnp.where(taken == 1, jnp.exp(jnp.minimum(gain, 0)), gathered(sweep.first))
        return _Sweep(
            state=jax.tree.map(lambda old, new: old.at[kept].set(new, mode="drop"), sweep.state, current),
            momentum=sweep.momentum.at[places].set(momenta, mode="drop"),
            current=jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), sweep.current, current),
            chances=sweep.chances.at[places].set(taken, mode="drop"),
            pending=sweep.pending.at[places].set(~accepted & finite & (taken < chances), mode="drop"),
            moved=sweep.moved.at[kept].set(True, mode="drop"),
            first=sweep.first.at[places].set(first, mode="drop"),
            trajectories=sweep.trajectories + (places < m).sum(dtype=jnp.int32),
        )

    nothing = jnp.zeros(m, jnp.int32)
    initial = _Sweep(
        state, momentum, state, nothing, active, jnp.zeros(m, bool), jnp.zeros_like(steps), jnp.zeros((), jnp.int32)
    )
    sweep = jax.lax.while_loop(lambda sweep: sweep.pending.any(), body, initial)
    rate = sweep.first.sum() / jnp.maximum(active.sum(), 1)
    return sweep.state, sweep.moved, rate, sweep.trajectories, sweep.chances.max()


def _trajectory(
    start: tuple[_State, Float[Array, " d"], Float[Array, ""]], density: _Density, frame: _Frame, leapfrogs: Array
) -> tuple[_State, Float[Array, " d"]]:
    """Leapfrog steps of one draw, with unit mass in the frame's coordinates."""
    state, momentum, step = start
    value_and_gradient = jax.value_and_grad(lambda z: density(frame.theta(z)))

    def leapfrog(_: Any, carry: tuple[_State, Array]) -> tuple[_State, Array]:
        at, momentum = carry
        momentum = momentum + step / 2 * at.gradient
        z = at.z + step * momentum
        value, gradient = value_and_gradient(z)
        return _State(z, value.astype(z.dtype), gradient), momentum + step / 2 * gradient

    return jax.lax.fori_loop(0, leapfrogs, leapfrog, (state, momentum))


def _energy(momentum: Float[Array, "n d"], value: Float[Array, " n"]) -> Float[Array, " n"]:
    return 0.5 * (momentum**2).sum(axis=1) - value


def _block_size(elements: int, m: int) -> int:
    most = batch_size(elements, m)
    few = BLOCK if jax.default_backend() == "cpu" else max(BLOCK, m // 8)
    return min(most, few, m) * devices.shards(devices.CHAINS)


def _roots(covariances: Float[np.ndarray, "2 d ..."]) -> Float[np.ndarray, "2 d ..."]:
    """Cholesky factors, or standard deviations where there are only variances or a factor cannot be had."""
    if covariances.ndim == 3:
        try:
            return np.linalg.cholesky(covariances)
        except np.linalg.LinAlgError:
            covariances = np.diagonal(covariances, axis1=1, axis2=2)
    return np.sqrt(covariances)


def largest_correlation(before: Float[np.ndarray, "n k"], now: Float[np.ndarray, "n k"]) -> float:
    """The largest absolute correlation of a column before and now.

    Columns that never vary count as forgotten, those that are not finite as remembered.
    """
    if not (np.isfinite(before).all() and np.isfinite(now).all()):
        return 1.0
    a, b = before - before.mean(axis=0), now - now.mean(axis=0)
    scale = np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(scale > 0, np.abs((a * b).sum(axis=0)) / scale, 0.0), initial=0.0))
