r"""Refresh: move equally weighted draws by kernels that leave their target invariant, until they have forgotten where
they came from, and until nothing about them drifts.

Resampled draws repeat in proportion to their weights, and after an erasure the weights are a function of the removed
rows. So before draws leave the process, every one of them is moved, by trajectories, stretches and jumps in turn
(`numerics.kernels`).

**Verification.** The moves leave the target invariant, so that draws of the target do not drift (`numerics.drift`).
Where they do, they were not its draws: they are moved on, and fresh moves are tested. Where the moves forget too slowly
to detect an error that matters, they go on as well. What is returned has passed such a test, or is said not to have.

Moves are computed in the precision of the draws, unless rounding of the log density would decide what is accepted: then
in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from posterase.model.densities import LogDensity
from posterase.numerics.cost import Cost
from posterase.numerics.drift import Drift, bounded, find_drift
from posterase.numerics.extra_chances import State
from posterase.numerics.kernels import (
    TARGET_ACCEPTANCE,
    TRIAL_DRAWS,
    Halves,
    Kernels,
    Tuned,
    Watched,
    correlations,
    largest_correlation,
)
from posterase.runtime.compilation_cache import wait_for_background
from posterase.runtime.precision import as_jax, in_float64

MOST_CORRELATION = 0.3
"""Draws are moved until nothing correlates with its value at their ancestors more than this."""

MOST_SWEEPS = 16
"""Trajectories of every draw until they have forgotten."""

MOST_FOLLOWED, MOST_NUDGES, LAST_STEP = 2, 12, 0.3
"""Then, for the few that have not moved: single steps, and rounds of cheap moves. A step of this share is accepted by
nearly every draw: a second one would cost every draw a gradient more."""

SLOWING = 2.0
"""Draws forget more slowly the longer they are moved: so many times the sweeps are needed that the first one tells."""

STRETCHES = 4
"""Stretches before each trajectory."""

RENEWALS = 2
"""Proposals from local mixtures before each trajectory, in few dimensions."""

HOPS = 3
"""Hops before each trajectory, where there are several modes."""

JUMPS_UP_TO = 16
"""Past so many parameters few jumps between modes are accepted."""

FALSE_ALARMS = 0.01
"""How often, per erasure, honest draws are said to drift: over all parameters, functions, methods and looks."""

MOST_METHODS = 3
"""That `erase` tries before it refits."""

MOST_LOOKS, MOST_DRIFTS = 6, 3
"""Tests for drift; and how many of them may find it before draws are given up."""

MISSED_SD, MISSED_ERRORS = 0.15, 8.0
"""Moves go on until they cannot have missed an error of more than so many standard deviations, or standard errors."""

SUSPECT_SD, SUSPECT_ERRORS = 0.1, 4.0
"""The same for draws that something speaks against: they drifted, or their chains diverged or disagreed."""


class Plan(NamedTuple):
    """Which draws to move, and when to give up."""

    places: Int[np.ndarray, "2 count"]
    """Of each half."""
    fewer: tuple[int, ...]
    """Numbers of draws of each half that are enough, the fewest first, for draws that drift or forget slowly."""
    most_gradients: float
    """No sweep is begun once moves have taken more than this."""
    most_if_slow: float
    """The same if one trajectory does not forget its start: such posteriors take NUTS longer, too."""


class Pace(NamedTuple):
    """What moves take, as far as trials tell."""

    steps: float
    """Of a trajectory, the mean of the halves."""
    sweeps: int
    """Trajectories until a draw has forgotten."""

    @classmethod
    def of(cls, tuned: Tuned) -> Pace:
        """From the correlation that one trajectory leaves, allowing for that of so few draws by chance."""
        left = max(tuned.correlation - 3 / math.sqrt(2 * TRIAL_DRAWS), 0.0)
        sweeps = 1 if left < MOST_CORRELATION else math.ceil(math.log(MOST_CORRELATION) / math.log(min(left, 0.9)))
        return cls(float(tuned.steps.mean()), sweeps)

    @property
    def gradients_per_draw(self) -> float:
        """A gradient at the start; and for each sweep stretches, a jump, the gradient after them, a trajectory.

        From whole numbers only, so that how many draws are moved hardly varies with the values of the removed rows.
        """
        return 1.5 + self.sweeps * (0.9 + self.steps / TARGET_ACCEPTANCE)


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
        """No drift in the last look, nor doubt; and it would have detected what matters."""
        return not self.drift.is_doubtful and self.drift.missed <= self.most_missed


class Refreshed(NamedTuple):
    """Draws after their moves."""

    thetas: Float[np.ndarray, "2 count d"]
    places: Int[np.ndarray, "2 count"]
    """Which draws they were, in each half."""
    correlation: float
    """The largest, over parameters and whatever else was asked for, with the values before the moves."""
    unmoved: int
    """Draws that are still where they were."""
    cost: Cost
    acceptance: float = 0.0
    """Of the first proposals."""
    sweeps: int = 0
    """Trajectories of every draw."""
    verification: Verification | None = None
    """None where nothing was moved."""
    mirrored: bool = False
    """Whether the target has modes that no draw is in, which are images of those that draws are in."""
    pace: Pace | None = None
    """None where no step size was found."""

    @property
    def forgot(self) -> bool:
        """Whether every draw has moved and nothing of where they were is left."""
        return self.unmoved == 0 and self.correlation < MOST_CORRELATION


T = TypeVar("T")

Choose = Callable[[Pace], Plan]


def refresh(
    random: np.random.Generator,
    density: LogDensity,
    like: PyTree,
    thetas: Float[np.ndarray, "2 m d"],
    groups: Int[np.ndarray, "2 m"],
    choose: Choose,
    watched: Watched | None,
    before: Halves | None = None,
    is_suspect: bool = False,
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
        Given what moves take, which draws to move.
    watched
        A function of raveled draws that must not correlate either.
    before
        The draws that went in, those from which the first half descends and the others: they say which modes the fit
        knew, and where there is mass to move to. None: these.
    is_suspect
        Whether something speaks against the draws, so that less may be missed.

    Returns
    -------
    Refreshed
        Draws that the kernels do not fit come back unmoved.
    """
    known = (thetas[0], thetas[1]) if before is None else before

    def run(kernels: Kernels) -> Refreshed:
        return _refresh(random, kernels, groups, choose, watched, known, is_suspect)

    return _precisely(density, like, thetas, run)


class Visits(NamedTuple):
    """Which modes draws visit."""

    all_visited: bool
    mirrored: bool
    """Whether there are others, which are images of those that they are in."""
    cost: Cost


def visit_modes(
    random: np.random.Generator,
    density: LogDensity,
    like: PyTree,
    thetas: Float[np.ndarray, "2 m d"],
    before: Halves,
    removed: Watched,
) -> Visits:
    """Look for modes that draws do not visit, given those that went in and the log-likelihood of the removed rows."""

    def search(kernels: Kernels) -> Visits:
        found = kernels.find_modes(random, np.concatenate(before), removed)
        return Visits(found is None or not found.unvisited, found is not None and found.mirrored > 0, kernels.cost)

    return _precisely(density, like, thetas, search)


def _precisely(density: LogDensity, like: PyTree, thetas: Float[np.ndarray, "2 m d"], run: Callable[[Kernels], T]) -> T:
    """With kernels in the precision of the draws, or in float64 where that is needed."""
    wait_for_background()
    narrow = Kernels(density, jax.tree.map(as_jax, like), thetas)
    if narrow.is_precise():
        return run(narrow)

    def run_in(wide: bool) -> T:
        precise = jax.tree.map(lambda leaf: as_jax(leaf, np.float64 if wide else None), like)
        return run(Kernels(density, precise, thetas))

    return in_float64(run_in, "the model's density")[0]


def _refresh(
    random: np.random.Generator,
    kernels: Kernels,
    groups: Int[np.ndarray, "2 m"],
    choose: Choose,
    watched: Watched | None,
    before: Halves,
    is_suspect: bool,
) -> Refreshed:
    tuned = kernels.tune(random)
    kernels.fit_mixtures(random, kernels.thetas, before)
    if tuned is None and kernels.mixtures is not None:
        tuned = kernels.give_up_trajectories()
    if tuned is None:
        everywhere = np.tile(np.arange(kernels.thetas.shape[1]), (2, 1))
        return Refreshed(kernels.thetas, everywhere, 1.0, everywhere.size, kernels.cost)
    found = kernels.find_modes(random, np.concatenate(before), watched)
    pace = Pace.of(tuned)
    plan = choose(pace)
    run = _Run(random, kernels, tuned, plan, groups, watched, before)
    if not run.is_finite():  # the density or its gradient is no number there
        return Refreshed(run.starts, plan.places, 1.0, plan.places.size, kernels.cost, pace=pace)
    verification = _verify(run, is_suspect)
    return Refreshed(
        thetas=run.thetas(),
        places=run.places,
        correlation=run.correlation(),
        unmoved=int((~run.moved).sum()),
        cost=kernels.cost,
        acceptance=run.acceptance,
        sweeps=run.sweeps,
        verification=verification,
        mirrored=found is not None and found.mirrored > 0,
        pace=pace,
    )


def _verify(run: _Run, is_suspect: bool) -> Verification:
    """Move draws until they have forgotten and do not drift, or until it takes too much."""
    since, drifts, least_sweeps = None, 0, 1
    for look in range(1, MOST_LOOKS + 1):
        sweeps = run.mix(least_sweeps)
        start = run.origin if since is None else since
        drift = find_drift(start, run.columns(), run.groups, FALSE_ALARMS / (MOST_METHODS * MOST_LOOKS))
        is_suspect |= drift.is_doubtful
        verification = Verification(drift, drifts + drift.is_detected, look, _most_missed(run.count, is_suspect))
        if verification.is_passed or verification.drifts == MOST_DRIFTS or run.is_over_budget():
            break
        least_sweeps = sweeps if look == 1 else 2 * least_sweeps
        if drift.is_detected:
            run.start_again()
            least_sweeps *= 2
            run.mix(least_sweeps)
            drifts += 1
        if drift.is_doubtful:
            since = run.columns()  # a fresh test
    return verification


def _most_missed(count: int, is_suspect: bool) -> float:
    """What moves of so many draws of each half may have missed."""
    sd, errors = (SUSPECT_SD, SUSPECT_ERRORS) if is_suspect else (MISSED_SD, MISSED_ERRORS)
    return max(sd, errors / math.sqrt(2 * count))


class _Run:
    """The moves of planned draws.

    Draws that are not moved fill the arrays up: all plans have one shape, which is compiled once.
    """

    def __init__(
        self,
        random: np.random.Generator,
        kernels: Kernels,
        tuned: Tuned,
        plan: Plan,
        groups: Int[np.ndarray, "2 m"],
        watched: Watched | None,
        before: Halves,
    ):
        self.random, self.kernels, self.tuned, self.before = random, kernels, tuned, before
        self.plan, self.watched, self.most_gradients = plan, watched, plan.most_gradients
        rows = np.arange(2)[:, None]
        self.places, self.starts = plan.places, kernels.thetas[rows, plan.places]
        self.groups = groups[rows, plan.places].ravel()
        self.moved = np.zeros(plan.places.shape, bool)
        self.jumps = kernels.thetas.shape[2] <= JUMPS_UP_TO
        self.acceptance, self.sweeps = 0.0, 0
        self._start(self.starts)
        self.origin = self.columns()

    def _start(self, thetas: Float[np.ndarray, "2 count d"]) -> None:
        m, self.count = self.kernels.thetas.shape[1], thetas.shape[1]
        filled = np.pad(thetas, ((0, 0), (0, m - self.count), (0, 0)), mode="edge")
        self.active = np.broadcast_to(np.arange(m) < self.count, (2, m))
        self.state = self.kernels.start(self.kernels.whiten(filled), self.active)
        self.stale = np.zeros((2, m), bool)
        self._followed: tuple[State, Float[np.ndarray, "n k"]] | None = None

    def is_finite(self) -> bool:
        """Whether the density and its gradient are numbers at all planned draws."""
        return bool(np.isfinite(np.asarray(self.state.value)[self.active]).all())

    def mix(self, least_sweeps: int) -> int:
        """Move draws until they have forgotten their ancestors, or until it takes too much.

        Returns the number of trajectories of every draw, at least `least_sweeps`. To stop when the last draw has moved
        depends on the draws; it concerns one or two of them, and biases means by about one in their number.
        """
        for number in range(1, MOST_SWEEPS + least_sweeps + 1):
            # What is stuck with these steps moves with smaller ones.
            is_stuck = number > least_sweeps + 1 and number % 2 == 0 and not self.moved.all()
            self.sweep(4.0 ** -((number - least_sweeps) // 2) if is_stuck else 1.0)
            if self.is_over_budget():
                break
            has_forgotten = number >= least_sweeps and self.parameters_have_forgotten()
            if self.sweeps == 1 and not has_forgotten:
                self.most_gradients = self.plan.most_if_slow
                self.thin(self.affordable())
            if has_forgotten:
                self._move_the_last()
                if self.moved.all() and self.correlation() < MOST_CORRELATION:
                    return number
        return number

    def sweep(self, shrink: float) -> None:
        """Draws of local mixtures, stretches, a jump, hops, and a trajectory of every draw."""
        for _ in range(RENEWALS if self.kernels.mixtures is not None else 0):
            self.take(self.kernels.renew)
        for _ in range(STRETCHES):
            self.take(self.kernels.stretch)
        if self.jumps:
            self.take(self.kernels.jump)
        for _ in range(HOPS if len(self.kernels.modes) > 1 else 0):
            self.take(self.kernels.hop)
        self.follow(shrink)
        self.sweeps += 1
        self._stretch_what_is_slow()

    def follow(self, shrink: float, *, one_step: bool = False) -> None:
        """A trajectory of every draw, its steps shrunk; all of them, or one."""
        self.state = self.kernels.update(self.state, self.stale & self.active)
        setting = self.tuned._replace(sizes=self.tuned.sizes * shrink)
        if one_step:
            setting = setting._replace(steps=np.ones_like(setting.steps))
        self.state, swept = self.kernels.sweep(self.random, self.state, self.active, setting)
        self.stale = np.zeros_like(self.stale)
        self.moved |= swept.moved[:, : self.count]
        self.acceptance = self.acceptance or float(swept.rates.mean())

    def _move_the_last(self) -> None:
        """More moves of every draw, for the sake of the few that have not moved: to choose these would be a bias.

        Single small steps are nearly always accepted; at edges, which they run into, cheap moves are.
        """
        for number in range(MOST_FOLLOWED + MOST_NUDGES):
            if self.moved.all():
                return
            if number < MOST_FOLLOWED:
                self.follow(LAST_STEP ** (number + 1), one_step=True)
            else:
                self.take(self.kernels.stretch)
                self.take(functools.partial(self.kernels.jump, far=0.0))

    def _stretch_what_is_slow(self) -> None:
        """Stretch along parameters that remember their ancestors: for each half, those of the other half."""
        width = self.starts.shape[-1]
        for half, (before, now) in enumerate(zip(self.starts, self.thetas(), strict=True)):
            remembered = correlations(before, now) ** 2 + 1 / (width * self.count)
            self.kernels.stretched[1 - half] = remembered / remembered.sum()

    def take(self, move: Callable[..., tuple[State, Bool[np.ndarray, "2 m"]]]) -> None:
        """Make a move that leaves gradients stale."""
        self.state, accepted = move(self.random, self.state, self.active)
        self.stale |= accepted
        self.moved |= accepted[:, : self.count]

    def parameters_have_forgotten(self) -> bool:
        """Whether no parameter correlates with its value at the ancestors: they cost nothing to look at."""
        width = self.starts.shape[-1]
        own = bounded(self.origin[:, :width], self.thetas().reshape(-1, width))
        return largest_correlation(*own) < MOST_CORRELATION

    def affordable(self) -> int:
        """How many draws of each half can be moved on for a third of what may be spent, given what one sweep did."""
        correlation = min(max(self.correlation(), MOST_CORRELATION), 0.99)
        sweeps = SLOWING * math.ceil(math.log(MOST_CORRELATION) / math.log(correlation))
        count = self.count * self.most_gradients / (3 * self.spent * sweeps)
        return max((each for each in self.plan.fewer if each <= count), default=self.plan.fewer[0])

    def thin(self, count: int) -> None:
        """Go on with fewer draws, evenly spaced."""
        if count >= self.count:
            return
        m, chosen = self.stale.shape[1], np.linspace(0, self.count, count, endpoint=False).astype(int)
        first = np.pad(chosen, (0, m - count), mode="edge")
        self.state = State(*(as_jax(np.asarray(leaf)[:, first], leaf.dtype) for leaf in self.state))
        self.stale, self.active = self.stale[:, first], np.broadcast_to(np.arange(m) < count, (2, m))

        def select(rows: np.ndarray) -> np.ndarray:
            return rows.reshape(2, self.count, -1)[:, chosen].reshape(2 * count, -1)

        self.origin, self.groups = select(self.origin), select(self.groups).ravel()
        self.places, self.starts, self.moved = (each[:, chosen] for each in (self.places, self.starts, self.moved))
        self.count, self._followed = count, None

    def start_again(self) -> None:
        """Take the coordinates of draws that have drifted from where they were, and go on with as few as possible."""
        fitted = self.thetas()
        self.thin(self.plan.fewer[0])
        thetas = self.thetas()
        self.kernels.fit(fitted)
        self.kernels.fit_mixtures(self.random, fitted, self.before)
        self._start(thetas)

    @property
    def spent(self) -> float:
        """What moves have cost so far."""
        return self.kernels.cost.evaluations

    def is_over_budget(self) -> bool:
        """Whether no more moves should be begun."""
        return self.spent > self.most_gradients

    def thetas(self) -> Float[np.ndarray, "2 count d"]:
        """Raveled unconstrained draws."""
        return self.kernels.unwhiten(np.asarray(self.state.z, np.float64))[:, : self.count]

    def columns(self) -> Float[np.ndarray, "n k"]:
        """What is followed of the planned draws: their parameters, what is watched, and at last the log density."""
        if self._followed is not None and self._followed[0] is self.state:
            return self._followed[1]
        thetas = self.thetas().reshape(2 * self.count, -1)
        columns = [thetas]
        if self.watched is not None:
            columns.append(self.watched(thetas)[:, None])
        columns.append(np.asarray(self.state.value, np.float64)[:, : self.count].reshape(-1, 1))
        followed = np.concatenate(columns, axis=1)
        self._followed = self.state, followed
        return followed

    def correlation(self) -> float:
        """The largest correlation of a column but the log density with its value at the ancestors."""
        return largest_correlation(*bounded(self.origin[:, :-1], self.columns()[:, :-1]))
