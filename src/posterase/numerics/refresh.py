r"""Refresh: move equally weighted draws by kernels that leave their target invariant, until they have forgotten where
they came from, and until nothing about them drifts.

Resampled draws repeat in proportion to their weights, and after an erasure the weights are a function of the removed
rows. So before draws leave the process, every one of them is moved, by two kernels in turn, in coordinates z in which
the draws have unit covariance:

**Trajectories.** Hamiltonian Monte Carlo with extra chances (`numerics.extra_chances`), of length about π/2, which
takes a Gaussian to an independent draw.

**Stretches.** Trajectories take many steps to the end of a heavy tail. A draw that lies more than one standard
deviation out along a direction u, which is the regression of all parameters on one of them, is scaled along it:

    z′ = z + (s − 1)(u·z) u,    log |s| ~ N(0, 1),    accepted with probability min(1, |s| target(z′)/target(z))

**Jumps.** With few parameters, z′ = z + γ(z_a − z_b) for two draws a, b of the other half: between modes that the draws
know, and along the edges of a density, which trajectories run into.

**Verification.** The moves leave the target invariant, so that draws of the target do not drift (`numerics.drift`).
Where they do, they were not its draws: they are moved on, and fresh moves are tested. Where the moves forget too slowly
to detect an error that matters, they go on as well. What is returned has passed such a test, or is said not to have.

**Two halves.** The covariance and the number of leapfrog steps of one half are taken from the other half, and trial
moves are thrown away: a kernel does not depend on the draws that it moves.

Trajectories are computed in the precision of the draws, unless rounding of the log density would decide what is
accepted: then in float64.

References
----------
ter Braak (2006), A Markov chain Monte Carlo version of the genetic algorithm differential evolution, Statistics and
Computing 16. Liu, Sabatti (2000), Generalised Gibbs sampler and multigrid Monte Carlo, Biometrika 87.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from posterase.log_densities import LogDensity
from posterase.numerics.cost import Cost
from posterase.numerics.drift import Drift, bounded, find_drift
from posterase.numerics.extra_chances import Frame, RaveledDensity, State, sweep
from posterase.numerics.moves import COARSE, half_covariances
from posterase.precision import as_jax, in_float64

MOST_CORRELATION = 0.3
"""Draws are moved until nothing correlates with its value at their ancestors more than this."""

LEAPFROGS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Steps that a trajectory of length π/2 is cut into: the fewest that reach the target acceptance."""

TARGET_ACCEPTANCE = 0.75
LEAST_ACCEPTANCE = 0.2
"""Below this even with the most steps, the kernel does not fit the density, and nothing is moved."""

RISING_OVER, RISING = 2, 0.1
"""Acceptance has stopped rising where it has risen by less over so many settings."""

TRIAL_DRAWS = 32
"""Draws of each half that try a setting."""

PILOT_DRAWS = 64
"""Draws of each half that are moved to see what moves take."""

MOST_CHANCES, MOST_SWEEPS = 8, 8
STUCK_STEP = 0.5
"""The step of the cheap sweeps that follow where only a few draws have not moved yet."""

STRETCHES, FAR, FLIPS = 4, 1.0, 0.2
"""Stretches before a sweep; how far out a draw must lie; how often it is also reflected."""

JUMP, JUMPS_UP_TO = 2.38, 16
"""The best multiple for a Gaussian, times √(2d) (ter Braak 2006); past so many parameters few jumps are accepted."""

FALSE_ALARMS = 0.01
"""How often, per erasure, honest draws are said to drift: over all parameters, functions, methods and looks."""

MOST_METHODS = 3
"""That `erase` tries before it refits."""

MOST_LOOKS, MOST_DRIFTS = 6, 3
"""Tests for drift; and how many of them may find it before draws are given up."""

MISSED_SD, MISSED_ERRORS = 0.15, 8.0
"""Moves go on until they cannot have missed an error of more than so many standard deviations, or standard errors."""


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
        """What the moves of a draw take: a gradient at the start, sweeps with their jump and stretches, and a cheap
        sweep for those stuck.

        From whole numbers only, so that how many draws are moved hardly varies with the values of the removed rows.
        """
        return 2.2 + self.sweeps * (1 + 0.3 * STRETCHES + float(self.leapfrogs.mean()) / TARGET_ACCEPTANCE)


class Verification(NamedTuple):
    """Whether moved draws have stopped drifting."""

    drift: Drift
    """Of the last look."""
    drifts: int
    """How many looks found drift."""
    looks: int
    most_missed: float
    """What the moves may have missed, at the most, in standard deviations."""

    @property
    def is_passed(self) -> bool:
        """No drift in the last look, which would have detected what matters."""
        return not self.drift.is_detected and self.drift.missed <= self.most_missed


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
    verification: Verification | None = None
    """None where nothing was moved."""

    @property
    def forgot(self) -> bool:
        """Whether every draw has moved and nothing of where they were is left."""
        return self.unmoved == 0 and self.correlation < MOST_CORRELATION


Choose = Callable[[Tuned], Plan]
Watched = Callable[[Float[np.ndarray, "n d"]], Float[np.ndarray, " n"]]


def refresh(
    random: np.random.Generator,
    density: LogDensity,
    like: PyTree,
    thetas: Float[np.ndarray, "2 m d"],
    groups: Int[np.ndarray, "2 m"],
    choose: Choose,
    watched: Watched,
) -> Refreshed:
    """Move draws until every one has moved, none of their values correlates with where they came from, and none drifts.

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
    groups
        Draws of one group may depend on each other.
    choose
        Given the tuned moves, which draws to move.
    watched
        A function of raveled draws that must not correlate either.

    Returns
    -------
    Refreshed
        Draws that the kernel does not fit come back unmoved.
    """
    narrow = _Refresh(density, like, thetas, groups, wide=False)
    if narrow.is_precise():
        return narrow(random, choose, watched)

    def run(wide: bool) -> Refreshed:
        return _Refresh(density, like, thetas, groups, wide)(random, choose, watched)

    return in_float64(run, "the model's density")[0]


class _Swept(NamedTuple):
    """What a sweep did."""

    state: State
    moved: Bool[np.ndarray, "2 m"]
    rates: Float[np.ndarray, " 2"]
    """Acceptance rates of first proposals, of each half."""


class _Mixed(NamedTuple):
    """What moves did until the draws had forgotten where they began."""

    state: State
    columns: Float[np.ndarray, "n k"]
    moved: Bool[np.ndarray, "2 count"]
    sweeps: int
    acceptance: float


class _Refresh:
    """One call of `refresh`, in one precision."""

    def __init__(
        self,
        density: LogDensity,
        like: PyTree,
        thetas: Float[np.ndarray, "2 m d"],
        groups: Int[np.ndarray, "2 m"],
        wide: bool,
    ):
        like = jax.tree.map(lambda leaf: as_jax(leaf, np.float64 if wide else None), like)
        self.density = RaveledDensity(density, like)
        self.precision = jnp.result_type(*jax.tree.leaves(like))
        self.thetas, self.groups = thetas, groups
        self.gradients, self.sequential = 0.0, 0
        self.jumps = thetas.shape[2] <= JUMPS_UP_TO
        self.fit(thetas)

    def fit(self, thetas: Float[np.ndarray, "2 m d"]) -> None:
        """Take coordinates in which these draws have unit covariance: for each half, those of the other half."""
        scales = _roots(half_covariances(thetas))
        self.centres, self.scales = thetas.mean(axis=1)[::-1], scales[::-1]
        self.frame = Frame(as_jax(self.centres, self.precision), as_jax(self.scales, self.precision))
        self.others = self.whitened(thetas[::-1])

    @functools.cached_property
    def trial(self) -> tuple[State, Bool[np.ndarray, "2 m"]]:
        """A few draws of each half at which the density and its gradient are numbers, and these numbers."""
        m = self.thetas.shape[1]
        active = np.zeros((2, m), bool)
        active[:, np.linspace(0, m - 1, min(m, TRIAL_DRAWS)).astype(int)] = True
        state = self.start(self.whitened(self.thetas), active)
        return state, active & np.isfinite(np.asarray(state.value))

    def is_precise(self) -> bool:
        """Whether rounding of the log density is too small to matter."""
        state, active = self.trial
        values = np.abs(np.asarray(state.value, np.float64)[active])
        return bool(values.max(initial=0.0) * float(jnp.finfo(self.precision).eps) < COARSE)

    def __call__(self, random: np.random.Generator, choose: Choose, watched: Watched) -> Refreshed:
        tuned = self.tune(random)
        if tuned is None:
            every = self.thetas.shape[0] * self.thetas.shape[1]
            return Refreshed(self.thetas, 1.0, every, 0.0, LEAPFROGS[-1], 0, self.cost)
        tuned = self.pilot(random, tuned)
        return self.move(random, tuned, choose(tuned), watched)

    def pilot(self, random: np.random.Generator, tuned: Tuned) -> Tuned:
        """How many sweeps are needed, by those of a few draws, which are thrown away."""
        m = self.thetas.shape[1]
        places = np.linspace(0, m - 1, min(m, PILOT_DRAWS)).astype(int)
        run = _Run(self, tuned, Plan(np.stack([places, places]), math.inf), None)
        mixed = run.mix(random, 1) if run.is_finite() else None
        return tuned._replace(sweeps=1 if mixed is None else mixed.sweeps)

    def move(self, random: np.random.Generator, tuned: Tuned, plan: Plan, watched: Watched | None) -> Refreshed:
        """Move the planned draws until they have forgotten and do not drift, or until it takes too much."""
        run = _Run(self, tuned, plan, watched)
        count, leapfrogs = plan.places.shape[1], int(tuned.leapfrogs.max())
        if not run.is_finite():  # the density or its gradient is no number there
            return Refreshed(run.starts, 1.0, 2 * count, 0.0, leapfrogs, 0, self.cost)
        groups = self.groups[np.arange(2)[:, None], plan.places].ravel()
        most_missed = max(MISSED_SD, MISSED_ERRORS / math.sqrt(2 * count))
        since, drifts, sweeps, least_sweeps = run.origin, 0, 0, 1
        acceptance = 0.0
        for look in range(1, MOST_LOOKS + 1):
            mixed = run.mix(random, least_sweeps)
            sweeps += mixed.sweeps
            acceptance = acceptance or mixed.acceptance
            drift = find_drift(since, mixed.columns, groups, FALSE_ALARMS / (MOST_METHODS * MOST_LOOKS))
            verification = Verification(drift, drifts + drift.is_detected, look, most_missed)
            if verification.is_passed or verification.drifts == MOST_DRIFTS or self.gradients > plan.most_gradients:
                break
            least_sweeps = mixed.sweeps if look == 1 else 2 * least_sweeps
            if drift.is_detected:
                run.fit_frame()
                least_sweeps *= 2
                since, drifts = run.mix(random, least_sweeps).columns, drifts + 1
        return Refreshed(
            thetas=run.thetas(mixed.state),
            correlation=run.correlation(run.origin, mixed.columns),
            unmoved=int((~mixed.moved).sum()),
            acceptance=acceptance,
            leapfrogs=leapfrogs,
            sweeps=sweeps,
            cost=self.cost,
            verification=verification,
        )

    @property
    def cost(self) -> Cost:
        """So far, trials included."""
        return Cost(gradients=self.gradients, sequential=self.sequential)

    def tune(self, random: np.random.Generator) -> Tuned | None:
        """The fewest leapfrog steps that are accepted often enough, tried by a few draws of the other half.

        Smaller steps do not help where trajectories run into an edge of the density: then the fewest that do as well.
        """
        state, trial = self.trial
        rates: list[Float[np.ndarray, " 2"]] = []
        for leapfrogs in LEAPFROGS:
            step, counts = np.full(2, np.pi / 2 / leapfrogs), np.full(2, leapfrogs)
            rates.append(self.sweep(random, state, trial, step, counts, chances=1).rates)
            if all(_is_tuned(list(own)) for own in zip(*rates, strict=True)):
                break
        chosen = [_fewest(list(own)) for own in zip(*rates, strict=True)]
        acceptance = min(float(rates[number][half]) for half, number in enumerate(chosen))
        if acceptance < LEAST_ACCEPTANCE:
            return None
        counts = np.array([LEAPFROGS[number] for number in chosen[::-1]])
        return Tuned(np.pi / 2 / counts, counts, acceptance)

    def whitened(self, thetas: Float[np.ndarray, "2 m d"]) -> Float[np.ndarray, "2 m d"]:
        centred = thetas - self.centres[:, None]
        if self.scales.ndim == 2:
            return centred / self.scales[:, None]
        return np.stack([np.linalg.solve(scale, half.T).T for scale, half in zip(self.scales, centred, strict=True)])

    def thetas_of(self, z: Float[np.ndarray, "2 count d"]) -> Float[np.ndarray, "2 count d"]:
        scaled = z * self.scales[:, None] if self.scales.ndim == 2 else z @ np.swapaxes(self.scales, 1, 2)
        return self.centres[:, None] + scaled

    def start(self, z: Float[np.ndarray, "2 m d"], active: Bool[np.ndarray, "2 m"]) -> State:
        """Value and gradient at the active draws: by a trajectory of length zero, so that nothing else is compiled."""
        blank = as_jax(z, self.precision)
        state = State(
            blank, as_jax(np.full(z.shape[:2], -np.inf), self.precision), as_jax(np.zeros(z.shape), self.precision)
        )
        random = np.random.default_rng(0)  # of no effect
        return self.sweep(random, state, active, np.zeros(2), np.ones(2, np.int64)).state

    def stretch(self, random: np.random.Generator, state: State, active: Bool[np.ndarray, "2 m"]) -> State:
        """Draws that lie far out along a direction, scaled along it."""
        z = np.asarray(state.z)
        direction = random.integers(z.shape[2], size=active.shape)
        scale = np.exp(random.normal(size=active.shape)) * np.where(random.uniform(size=active.shape) < FLIPS, -1, 1)
        along, step = self.along(z, direction)
        chosen = active & (np.abs(along) > FAR) & (np.abs(scale * along) > FAR)
        proposal = step(np.where(chosen, (scale - 1) * along, 0.0))
        return self.propose(random, state, proposal, np.log(np.abs(scale)), chosen)

    def jump(self, random: np.random.Generator, state: State, active: Bool[np.ndarray, "2 m"]) -> State:
        """Draws shifted by a multiple of the difference between two draws of the other half."""
        z = np.asarray(state.z)
        one, other = random.integers(self.others.shape[1], size=(2, *active.shape))
        rows = np.arange(2)[:, None]
        multiple = np.where(random.uniform(size=active.shape) < 0.5, 1.0, JUMP / math.sqrt(2 * z.shape[2]))
        proposal = z + multiple[..., None] * (self.others[rows, one] - self.others[rows, other])
        return self.propose(random, state, proposal, np.zeros(active.shape), active)

    def propose(
        self,
        random: np.random.Generator,
        state: State,
        proposal: Float[np.ndarray, "2 m d"],
        log_factor: Float[np.ndarray, "2 m"],
        chosen: Bool[np.ndarray, "2 m"],
    ) -> State:
        """Move the chosen draws where proposed with probability min(1, factor × target(proposed)/target(now))."""
        z, value, gradient = (np.asarray(leaf) for leaf in state)
        with np.errstate(over="ignore"):  # what is infinite in the draws' precision is rejected
            proposal = proposal.astype(z.dtype)
        chosen = chosen & np.isfinite(proposal).all(axis=2)
        new = self.start(np.where(chosen[..., None], proposal, z), chosen)
        new_value, new_gradient = np.asarray(new.value), np.asarray(new.gradient)
        sound = chosen & np.isfinite(new_value) & np.isfinite(new_gradient).all(axis=2)
        gain = np.where(sound, new_value, 0.0).astype(np.float64) - value + log_factor
        accepted = sound & (np.log(random.uniform(size=chosen.shape)) < gain)
        pick = accepted[..., None]
        values = np.where(accepted, new_value, value)
        return State(*map(as_jax, (np.where(pick, proposal, z), values, np.where(pick, new_gradient, gradient))))

    def along(
        self, z: Float[np.ndarray, "2 m d"], direction: Int[np.ndarray, "2 m"]
    ) -> tuple[Float[np.ndarray, "2 m"], Callable[[Float[np.ndarray, "2 m"]], Float[np.ndarray, "2 m d"]]]:
        """How far draws lie out along directions, each a parameter's number; and a function that moves them along."""
        if self.scales.ndim == 2:
            places = direction[..., None]

            def shift(by: Float[np.ndarray, "2 m"]) -> Float[np.ndarray, "2 m d"]:
                moved = z.astype(np.float64)
                np.put_along_axis(moved, places, np.take_along_axis(moved, places, 2) + by[..., None], 2)
                return moved

            return np.take_along_axis(z, places, 2)[..., 0].astype(np.float64), shift
        units = self.scales / np.linalg.norm(self.scales, axis=2, keepdims=True)
        chosen = units[np.arange(2)[:, None], direction]
        return np.einsum("hmd,hmd->hm", z, chosen), lambda by: z + by[..., None] * chosen

    def sweep(
        self,
        random: np.random.Generator,
        state: State,
        active: Bool[np.ndarray, "2 m"],
        step: Float[np.ndarray, " 2"],
        leapfrogs: Int[np.ndarray, " 2"],
        chances: int = MOST_CHANCES,
    ) -> _Swept:
        """Every active draw moved once."""
        out = sweep(
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


class _Run:
    """The moves of planned draws.

    Draws that are not moved fill the arrays up: all plans have one shape, which is compiled once.
    """

    def __init__(self, owner: _Refresh, tuned: Tuned, plan: Plan, watched: Watched | None):
        self.owner, self.tuned, self.most_gradients, self.watched = owner, tuned, plan.most_gradients, watched
        m, self.count = owner.thetas.shape[1], plan.places.shape[1]
        rows = np.arange(2)[:, None]
        places = np.pad(plan.places, ((0, 0), (0, m - self.count)), mode="edge")
        self.active = np.broadcast_to(np.arange(m) < self.count, (2, m))
        self.state = owner.start(owner.whitened(owner.thetas[rows, places]), self.active)
        self.starts = owner.thetas[rows, plan.places]
        self.moved = np.zeros((2, self.count), bool)
        self.origin = self.columns(owner.thetas[rows, places])

    def is_finite(self) -> bool:
        """Whether the density and its gradient are numbers at all planned draws."""
        return bool(np.isfinite(np.asarray(self.state.value)[self.active]).all())

    def mix(self, random: np.random.Generator, least_sweeps: int) -> _Mixed:
        """Sweeps until the draws have forgotten their ancestors, at least so many, or until it takes too much."""
        owner, tuned = self.owner, self.tuned
        step, leapfrogs = tuned.step, tuned.leapfrogs
        acceptance, full_sweeps = 0.0, 0
        for number in range(MOST_SWEEPS + least_sweeps):
            if leapfrogs is tuned.leapfrogs:
                full_sweeps += 1
                for _ in range(STRETCHES):
                    self.state = owner.stretch(random, self.state, self.active)
                if owner.jumps:
                    self.state = owner.jump(random, self.state, self.active)
            swept = owner.sweep(random, self.state, self.active, step, leapfrogs)
            self.state = swept.state
            self.moved |= swept.moved[:, : self.count]
            acceptance = acceptance or float(swept.rates.mean())
            now = self.columns(owner.thetas_of(np.asarray(self.state.z, np.float64)))
            forgot = self.correlation(self.origin, now) < MOST_CORRELATION and full_sweeps >= least_sweeps
            if (forgot and self.moved.all()) or owner.gradients > self.most_gradients:
                break
            # What is stuck with these steps moves with smaller ones; a single one does where the rest has forgotten.
            shrink = 4.0 ** -((number + 1) // 2) if full_sweeps >= least_sweeps else 1.0
            if forgot:
                step, leapfrogs = np.full(2, STUCK_STEP) * shrink, np.ones(2, np.int64)
            else:
                step, leapfrogs = tuned.step * (shrink if number % 2 == 0 else 1.0), tuned.leapfrogs
        return _Mixed(self.state, now, self.moved, full_sweeps, acceptance)

    def fit_frame(self) -> None:
        """Take the coordinates of draws that have drifted from where they were."""
        thetas = self.owner.thetas_of(np.asarray(self.state.z, np.float64))
        self.owner.fit(thetas[:, : self.count])
        self.state = self.owner.start(self.owner.whitened(thetas), self.active)

    def thetas(self, state: State) -> Float[np.ndarray, "2 count d"]:
        """Raveled unconstrained draws."""
        return self.owner.thetas_of(np.asarray(state.z, np.float64))[:, : self.count]

    def columns(self, thetas: Float[np.ndarray, "2 m d"]) -> Float[np.ndarray, "n k"]:
        """What is followed of the planned draws: their parameters, what is watched, and at last the log density."""
        columns = [thetas]
        if self.watched is not None:
            flat = thetas.reshape(-1, thetas.shape[-1])  # of all, so that one shape is compiled
            columns.append(self.watched(flat).reshape(*thetas.shape[:2], 1))
        columns.append(np.asarray(self.state.value, np.float64)[..., None])
        return np.concatenate(columns, axis=2)[:, : self.count].reshape(2 * self.count, -1)

    @staticmethod
    def correlation(before: Float[np.ndarray, "n k"], now: Float[np.ndarray, "n k"]) -> float:
        """The largest of any column but the log density."""
        return largest_correlation(before[:, :-1], now[:, :-1])


def _is_tuned(rates: list[float]) -> bool:
    """Whether acceptance rates of more and more leapfrog steps are high enough, or have stopped rising."""
    if max(rates) >= TARGET_ACCEPTANCE:
        return True
    has_stopped = len(rates) > RISING_OVER and rates[-1] - rates[-1 - RISING_OVER] < RISING
    return has_stopped and rates[-1] >= LEAST_ACCEPTANCE


def _fewest(rates: list[float]) -> int:
    """The first rate that is high enough, or as high as any."""
    wanted = min(TARGET_ACCEPTANCE, max(rates) - RISING)
    return next(number for number, rate in enumerate(rates) if rate >= wanted)


def _roots(covariances: Float[np.ndarray, "2 d ..."]) -> Float[np.ndarray, "2 d ..."]:
    """Cholesky factors, or standard deviations where there are only variances or a factor cannot be had."""
    if covariances.ndim == 3:
        try:
            return np.linalg.cholesky(covariances)
        except np.linalg.LinAlgError:
            covariances = np.diagonal(covariances, axis1=1, axis2=2)
    return np.sqrt(covariances)


def largest_correlation(before: Float[np.ndarray, "n k"], now: Float[np.ndarray, "n k"]) -> float:
    """The largest absolute correlation of a column before and now; columns that never vary count as forgotten."""
    before, now = bounded(before, now)
    a, b = before - before.mean(axis=0), now - now.mean(axis=0)
    scale = np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(scale > 0, np.abs((a * b).sum(axis=0)) / scale, 0.0), initial=0.0))
