r"""Kernels that leave a target invariant, for many draws at once: each moves every draw by itself.

All work in coordinates z (`Frame`) in which the draws have about zero mean and unit covariance.

**Trajectories.** Hamiltonian Monte Carlo with extra chances (`numerics.extra_chances`), of length about π/2, which
takes a Gaussian to an independent draw.

**Stretches.** Trajectories take many steps to the end of a heavy tail. A draw that lies more than one standard
deviation out along a direction u, which is the regression of all parameters on one of them, is scaled along it:

    z′ = z + (s − 1)(u·z) u,    log |s| ~ N(0, 1),    accepted with probability min(1, |s| target(z′)/target(z))

**Jumps.** z′ = z + γ(z_a − z_b) for two draws a, b of the other half: with γ = 1 between modes that the draws know, and
with a small γ along the edges of a density, which trajectories run into.

Stretches and jumps cost a density each, a third of a gradient, and only at the draws that they move.

**Draws of a local mixture** (`numerics.local_mixtures`) that follows the other half's draws, and those that went in,
lead from anywhere to anywhere in few dimensions: into thin arms, and out of them. A proposal z′ from a density q is
accepted with probability min(1, target(z′) q(z) / (target(z) q(z′))).

**Hops** lead from mode to mode, to those that no draw has visited too (`numerics.modes`).

**Two halves.** The coordinates and the number of steps of one half are taken from the other half, and trial moves are
thrown away, so that these kernels do not depend on the draws that they move. The modes that hops lead between are found
from all draws; given the modes, hops leave the target invariant.

References
----------
ter Braak (2006), A Markov chain Monte Carlo version of the genetic algorithm differential evolution, Statistics and
Computing 16. Liu, Sabatti (2000), Generalised Gibbs sampler and multigrid Monte Carlo, Biometrika 87.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from posterase.model.densities import LogDensity
from posterase.numerics.cost import Cost
from posterase.numerics.extra_chances import Frame, Noise, RaveledDensity, State, block_size, evaluate_blocks, sweep
from posterase.numerics.local_mixtures import MOST_DIMENSIONS, LocalMixture, fit_local_mixture
from posterase.numerics.modes import MOST_PARAMETERS, Found, at_once, climb, find_modes
from posterase.numerics.moves import COARSE, half_covariances
from posterase.runtime.precision import as_jax

STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Steps that a trajectory of length π/2 is cut into: the fewest that reach the target acceptance."""

TARGET_ACCEPTANCE = 0.85
"""Of first proposals. With fewer steps trajectories forget less for the same cost, since more of them end in more
chances (products of log-gamma densities in 1, 10 and 30 dimensions)."""

LEAST_ACCEPTANCE = 0.2
"""Below this even with the most steps, the kernel does not fit the density, and nothing is moved."""

RISING_OVER, RISING = 2, 0.1
"""Acceptance has stopped rising where it has risen by less over so many settings."""

TRIAL_DRAWS = 32
"""Draws of each half that try a setting."""

MOST_CHANCES = 4
"""Chances of a trajectory: later ones move few of the draws that are left, and cost as much."""

FAR, FLIPS = 1.0, 0.2
"""How far out a draw must lie to be stretched; how often it is also reflected."""

JUMP = 2.38
"""The best multiple for a Gaussian, times √(2d) (ter Braak 2006)."""


Watched = Callable[[Float[np.ndarray, "n d"]], Float[np.ndarray, " n"]]
"""A function of raveled draws."""

Halves = tuple[Float[np.ndarray, "_ d"], Float[np.ndarray, "_ d"]]
"""Raveled unconstrained draws in two halves, which may differ in size."""


class Tuned(NamedTuple):
    """How the trajectories of each half are integrated."""

    sizes: Float[np.ndarray, " 2"]
    steps: Int[np.ndarray, " 2"]
    acceptance: float
    correlation: float
    """Of the trial draws before and after one trajectory without extra chances, the largest over parameters."""


class Swept(NamedTuple):
    """What one trajectory of every draw did."""

    moved: Bool[np.ndarray, "2 m"]
    rates: Float[np.ndarray, " 2"]
    """Acceptance rates of first proposals, of each half."""


class Kernels:
    """The kernels of one target, in one precision; and what they have cost.

    Parameters
    ----------
    density
        The log density that they leave invariant.
    like
        One draw's parameters, for the structure of a raveled one and for the precision.
    thetas
        Raveled unconstrained draws, in two halves of equal size.
    """

    def __init__(self, density: LogDensity, like: PyTree, thetas: Float[np.ndarray, "2 m d"]):
        self.density = RaveledDensity(density, like)
        self.precision = jnp.result_type(*jax.tree.leaves(like))
        self.thetas = thetas
        self.stretched = np.full((2, thetas.shape[2]), 1 / thetas.shape[2])
        self.gradients, self.densities, self.sequential = 0.0, 0.0, 0
        self.mixtures: tuple[LocalMixture, LocalMixture] | None = None
        """For each half, in its coordinates; None where there are too many parameters."""
        self.modes: list[tuple[Float[np.ndarray, "2 d"], Float[np.ndarray, "2 d d"]]] = []
        """Centres and roots for each half: of modes, and of the draws' first coordinates if they are in none."""
        self.fit(thetas)

    def fit(self, thetas: Float[np.ndarray, "2 m d"]) -> None:
        """Take coordinates in which these draws have unit covariance: for each half, those of the other half."""
        scales = _roots(half_covariances(thetas))
        self.centres, self.scales = thetas.mean(axis=1)[::-1], scales[::-1]
        self.frame = Frame(as_jax(self.centres, self.precision), as_jax(self.scales, self.precision))
        self.others = self.whiten(thetas[::-1])

    def fit_mixtures(
        self, random: np.random.Generator, thetas: Float[np.ndarray, "2 m d"], known: Halves | None
    ) -> None:
        """Take mixtures that follow the other half's draws, and those that are known besides."""
        if thetas.shape[2] > MOST_DIMENSIONS:
            return
        more = (thetas[0, :0], thetas[1, :0]) if known is None else known
        fitted = []
        for half in range(2):
            others = np.concatenate([thetas[1 - half], more[1 - half]])
            fitted.append(fit_local_mixture(random, self._whiten_half(half, others)))
        first, second = fitted
        self.mixtures = None if first is None or second is None else (first, second)

    @property
    def cost(self) -> Cost:
        """So far, trials included."""
        return Cost(gradients=self.gradients, densities=self.densities, sequential=self.sequential)

    @property
    def first_frame(self) -> Frame:
        """The coordinates of the first half's draws."""
        return Frame(as_jax(self.centres[0], self.precision), as_jax(self.scales[0], self.precision))

    @property
    def can_find_modes(self) -> bool:
        """Whether there are few enough parameters."""
        return self.scales.ndim == 3 and self.thetas.shape[2] <= MOST_PARAMETERS

    def whiten(self, thetas: Float[np.ndarray, "2 m d"]) -> Float[np.ndarray, "2 m d"]:
        """Coordinates of draws."""
        return np.stack([self._whiten_half(half, own) for half, own in enumerate(thetas)])

    def _whiten_half(self, half: int, thetas: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        centred, scale = thetas - self.centres[half], self.scales[half]
        return centred / scale if scale.ndim == 1 else np.linalg.solve(scale, centred.T).T

    def unwhiten(self, z: Float[np.ndarray, "2 count d"]) -> Float[np.ndarray, "2 count d"]:
        """Raveled unconstrained draws at these coordinates."""
        scaled = z * self.scales[:, None] if self.scales.ndim == 2 else z @ np.swapaxes(self.scales, 1, 2)
        return self.centres[:, None] + scaled

    @functools.cached_property
    def trial(self) -> tuple[State, Bool[np.ndarray, "2 m"]]:
        """A few draws of each half at which the density and its gradient are numbers, and these numbers."""
        m = self.thetas.shape[1]
        active = np.zeros((2, m), bool)
        active[:, np.linspace(0, m - 1, min(m, TRIAL_DRAWS)).astype(int)] = True
        state = self.start(self.whiten(self.thetas), active)
        return state, active & np.isfinite(np.asarray(state.value))

    def is_precise(self) -> bool:
        """Whether rounding of the log density is too small to matter."""
        state, active = self.trial
        values = np.abs(np.asarray(state.value, np.float64)[active])
        return bool(values.max(initial=0.0) * float(jnp.finfo(self.precision).eps) < COARSE)

    def start(self, z: Float[np.ndarray, "2 m d"], active: Bool[np.ndarray, "2 m"]) -> State:
        """Value and gradient at the active draws. The value is −∞ where either is no number, and elsewhere."""
        value, gradient = np.full(z.shape[:2], -np.inf), np.full(z.shape, np.nan)
        return self.update(State(*(as_jax(leaf, self.precision) for leaf in (z, value, gradient))), active)

    def update(self, state: State, stale: Bool[np.ndarray, "2 m"]) -> State:
        """Compute value and gradient anew at stale draws, by a trajectory of length 0: nothing more is compiled.

        Where the gradient is no number it is NaN, and trajectories from there are rejected, as are those to there.
        """
        if not stale.any():
            return state
        value, gradient = np.asarray(state.value), np.asarray(state.gradient)
        unknown = state._replace(
            value=as_jax(np.where(stale, -np.inf, value), self.precision),
            gradient=as_jax(np.where(stale[..., None], 0.0, gradient), self.precision),
        )
        random = np.random.default_rng(0)  # of no effect
        still = Tuned(np.zeros(2), np.ones(2, np.int64), 1.0, 1.0)
        new, swept = self.sweep(random, unknown, stale, still, chances=1)
        failed = stale & ~swept.moved
        if not failed.any():
            return new
        values = np.where(failed, value, np.asarray(new.value))
        gradients = np.where(failed[..., None], np.nan, np.asarray(new.gradient))
        return new._replace(value=as_jax(values), gradient=as_jax(gradients))

    def tune(self, random: np.random.Generator) -> Tuned | None:
        """Find the fewest steps that are accepted often enough, tried by a few draws of the other half.

        Smaller steps do not help where trajectories run into an edge of the density: then the fewest that do as well.
        None where hardly any are accepted.

        XLA miscompiles some gradients of many draws side by side: on a CPU, jax 0.10.2 gets that of `betaln` wrong at
        more than 4,096 draws × rows, and right for a draw at a time. So that is tried next.
        """
        tuned = self._tune(random)
        if tuned is None and not self.density.one_by_one:
            self.density = dataclasses.replace(self.density, one_by_one=True)
            del self.trial
            tuned = self._tune(random)
        return tuned

    def give_up_trajectories(self) -> Tuned:
        """Single tiny steps: hardly any trajectory is accepted, and other kernels do the work."""
        self.density = dataclasses.replace(self.density, one_by_one=False)
        return Tuned(np.full(2, np.pi / 2 / STEPS[-1]), np.ones(2, np.int64), 0.0, 1.0)

    def _tune(self, random: np.random.Generator) -> Tuned | None:
        state, active = self.trial
        rates: list[Float[np.ndarray, " 2"]] = []
        correlations = []
        for steps in STEPS:
            setting = Tuned(np.full(2, np.pi / 2 / steps), np.full(2, steps), 0.0, 1.0)
            after, swept = self.sweep(random, state, active, setting, chances=1)
            rates.append(swept.rates)
            before_and_after = (np.asarray(each.z, np.float64)[active] for each in (state, after))
            correlations.append(largest_correlation(*before_and_after))
            if all(_is_tuned(own) for own in np.stack(rates, axis=1).tolist()):
                break
        chosen = [_fewest(own) for own in np.stack(rates, axis=1).tolist()]
        acceptance = min(float(rates[number][half]) for half, number in enumerate(chosen))
        if acceptance < LEAST_ACCEPTANCE:
            return None
        counts = np.array([STEPS[number] for number in chosen[::-1]])
        return Tuned(np.pi / 2 / counts, counts, acceptance, max(correlations[number] for number in chosen))

    def find_modes(
        self, random: np.random.Generator, before: Float[np.ndarray, "n d"], removed: Watched | None
    ) -> Found | None:
        """Look for modes to hop between, those that no draw has visited too. None where parameters are too many.

        `before` are the draws that went in, and `removed` is the log-likelihood of the removed rows.
        """
        if not self.can_find_modes:
            return None
        frame = self.first_frame
        state, sound = self.trial
        flat = np.concatenate(self.thetas)
        now, before = ((each - self.centres[0]) @ np.linalg.inv(self.scales[0]).T for each in (flat, before))
        height = float(np.asarray(state.value, np.float64)[sound].mean())

        def removed_at(z: Float[np.ndarray, "k d"]) -> Float[np.ndarray, " k"]:
            assert removed is not None
            return removed(self.centres[0] + z @ self.scales[0].T)

        found = find_modes(random, self.density, frame, now, height, before, removed_at if removed else None)
        self.gradients += found.gradients
        self.sequential += found.sequential
        modes = [(self.centres[0] + self.scales[0] @ m.centre, self.scales[0] @ m.root) for m in found.modes]
        own = [] if found.visited else [(self.centres, self.scales)]
        self.modes = [*own, *((np.stack([c, c]), np.stack([root, root])) for c, root in modes)]
        return found

    def hop(
        self, random: np.random.Generator, state: State, active: Bool[np.ndarray, "2 m"]
    ) -> tuple[State, Bool[np.ndarray, "2 m"]]:
        """Map every second draw from the mode that it is nearest to, to around another.

        Where the image is not nearest to that other, the way back would be another one: then it is rejected.
        """
        thetas, count = self.unwhiten(np.asarray(state.z, np.float64)), len(self.modes)
        proposal, log_factor = thetas.copy(), np.zeros(active.shape)
        chosen = active & (random.uniform(size=active.shape) < 0.5)  # all, twice, would lead back
        for half in range(2):
            centres, roots = (np.stack([leaf[half] for leaf in leaves]) for leaves in zip(*self.modes, strict=True))
            log_widths = np.linalg.slogdet(roots)[1]
            one, standard = _nearest(thetas[half], centres, roots, log_widths)
            other = (one + random.integers(1, count, size=one.shape)) % count
            proposal[half] = centres[other] + np.einsum("mkl,ml->mk", roots[other], standard)
            log_factor[half] = log_widths[other] - log_widths[one]
            chosen[half] &= _nearest(proposal[half], centres, roots, log_widths)[0] == other
        return self._propose(random, state, self.whiten(proposal), log_factor, chosen)

    def sweep(
        self,
        random: np.random.Generator,
        state: State,
        active: Bool[np.ndarray, "2 m"],
        setting: Tuned,
        chances: int = MOST_CHANCES,
    ) -> tuple[State, Swept]:
        """Move every active draw along one trajectory. Their gradients must be up to date."""
        out = sweep(
            Noise.draw(random, active, self.thetas.shape[2], self.precision),
            self.density,
            self.frame,
            state,
            as_jax(active),
            as_jax(setting.sizes, self.precision),
            as_jax(setting.steps, np.int32),
            as_jax(np.full(2, chances), np.int32),
        )
        state, moved, first, taken = out[0], *map(np.asarray, out[1:])
        self.gradients += float((taken.sum(axis=1) * setting.steps).sum())
        self.sequential += int((taken.max(axis=1) * setting.steps).max())
        return state, Swept(moved, first.sum(axis=1, dtype=np.float64) / np.maximum(active.sum(axis=1), 1))

    def stretch(
        self, random: np.random.Generator, state: State, active: Bool[np.ndarray, "2 m"]
    ) -> tuple[State, Bool[np.ndarray, "2 m"]]:
        """Scale draws that lie far out along a direction. Gradients of those that moved become stale.

        The direction is that of a parameter, chosen with the probabilities `stretched`.
        """
        z = np.asarray(state.z)
        direction = np.stack([random.choice(z.shape[2], active.shape[1], p=shares) for shares in self.stretched])
        scale = np.exp(random.normal(size=active.shape)) * np.where(random.uniform(size=active.shape) < FLIPS, -1, 1)
        along, shift = self._along(z, direction)
        chosen = active & (np.abs(along) > FAR) & (np.abs(scale * along) > FAR)
        proposal = shift(np.where(chosen, (scale - 1) * along, 0.0))
        return self._propose(random, state, proposal, np.log(np.abs(scale)), chosen)

    def jump(
        self, random: np.random.Generator, state: State, active: Bool[np.ndarray, "2 m"], far: float = 0.5
    ) -> tuple[State, Bool[np.ndarray, "2 m"]]:
        """Shift draws by a multiple of the difference between two draws of the other half: of 1 in a share `far`."""
        z = np.asarray(state.z)
        one, other = random.integers(self.others.shape[1], size=(2, *active.shape))
        rows = np.arange(2)[:, None]
        multiple = np.where(random.uniform(size=active.shape) < far, 1.0, JUMP / math.sqrt(2 * z.shape[2]))
        proposal = z + multiple[..., None] * (self.others[rows, one] - self.others[rows, other])
        return self._propose(random, state, proposal, np.zeros(active.shape), active)

    def renew(
        self, random: np.random.Generator, state: State, active: Bool[np.ndarray, "2 m"]
    ) -> tuple[State, Bool[np.ndarray, "2 m"]]:
        """Propose draws of the local mixtures, whatever the draws are now."""
        assert self.mixtures is not None
        z, log_factor = np.asarray(state.z, np.float64), np.zeros(active.shape)
        proposal = z.copy()
        for half, mixture in enumerate(self.mixtures):
            own = np.flatnonzero(active[half])
            new = mixture.draw(random, len(own))
            log_factor[half, own] = mixture.log_density(z[half, own]) - mixture.log_density(new)
            proposal[half, own] = new
        return self._propose(random, state, proposal, log_factor, active)

    def _propose(
        self,
        random: np.random.Generator,
        state: State,
        proposal: Float[np.ndarray, "2 m d"],
        log_factor: Float[np.ndarray, "2 m"],
        chosen: Bool[np.ndarray, "2 m"],
    ) -> tuple[State, Bool[np.ndarray, "2 m"]]:
        """Move the chosen draws where proposed with probability min(1, factor × target(proposed)/target(now))."""
        z, value = np.asarray(state.z), np.asarray(state.value)
        with np.errstate(over="ignore"):  # what is infinite in the draws' precision is rejected
            proposal = proposal.astype(z.dtype)
        chosen = chosen & np.isfinite(proposal).all(axis=2) & (proposal != z).any(axis=2)
        new = self._values(proposal, chosen)
        sound = chosen & np.isfinite(new)
        gain = np.where(sound, new, 0.0).astype(np.float64) - value + log_factor
        accepted = sound & (np.log(random.uniform(size=chosen.shape)) < gain)
        z, value = np.where(accepted[..., None], proposal, z), np.where(accepted, new, value)
        return state._replace(z=as_jax(z), value=as_jax(value)), accepted

    def _values(self, z: Float[np.ndarray, "2 m d"], chosen: Bool[np.ndarray, "2 m"]) -> Float[np.ndarray, "2 m"]:
        """The log density at the chosen coordinates, which are gathered first; −∞ elsewhere."""
        counts = chosen.sum(axis=1)
        order = np.argsort(~chosen, axis=1, kind="stable")
        gathered = np.take_along_axis(z, order[..., None], 1)
        size = block_size(self.density.density, z.shape[1])
        found = evaluate_blocks(self.density, self.frame, as_jax(gathered), as_jax(-(-counts // size), np.int32), size)
        values = np.full(chosen.shape, -np.inf, z.dtype)
        np.put_along_axis(values, order, np.asarray(found), 1)
        self.densities += float(counts.sum())
        self.sequential += 1
        return np.where(chosen, values, -np.inf)

    def _along(
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


_lowered_before: set[int] = set()
"""Hashes of what was lowered, and nothing that would keep a model alive."""


def lower_kernels(density: LogDensity, like: PyTree, thetas: Float[np.ndarray, "n d"], half: int) -> Iterator[Any]:
    """The programs that move draws of this shape, `half` of them in each half, to be compiled; none if they were."""
    leaves, structure = jax.tree.flatten((density, like))
    signature = hash((structure, half, tuple((np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)))
    if signature in _lowered_before:
        return
    _lowered_before.add(signature)
    kernels = Kernels(density, jax.tree.map(as_jax, like), np.resize(thetas, (2, half, thetas.shape[1])))
    still = np.zeros((2, half))
    z = as_jax(np.zeros(kernels.thetas.shape), kernels.precision)
    state = State(z, as_jax(still, kernels.precision), z)
    noise = Noise.draw(np.random.default_rng(0), still.astype(bool), thetas.shape[1], kernels.precision)
    sizes, counts = as_jax(np.zeros(2), kernels.precision), as_jax(np.ones(2), np.int32)
    arguments = noise, kernels.density, kernels.frame, state, as_jax(still.astype(bool)), sizes, counts, counts
    size = block_size(density, half)
    yield sweep.lower(*arguments)  # type: ignore[attr-defined]
    yield evaluate_blocks.lower(kernels.density, kernels.frame, z, counts, size)  # type: ignore[attr-defined]
    if kernels.can_find_modes:
        frame = kernels.first_frame
        points = as_jax(np.zeros((at_once(kernels.density), thetas.shape[1])), kernels.precision)
        yield climb.lower(kernels.density, frame, points, as_jax(1, np.int32))  # type: ignore[attr-defined]


def _nearest(
    thetas: Float[np.ndarray, "m d"],
    centres: Float[np.ndarray, "k d"],
    roots: Float[np.ndarray, "k d d"],
    log_widths: Float[np.ndarray, " k"],
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, "m d"]]:
    """The mode of which draws are most probable, as if all were Gaussian; and draws in its coordinates."""
    standard = np.einsum("kij,kmj->kmi", np.linalg.inv(roots), thetas - centres[:, None])
    nearest = (-0.5 * (standard**2).sum(axis=2) - log_widths[:, None]).argmax(axis=0)
    return nearest, standard[nearest, np.arange(len(thetas))]


def correlations(before: Float[np.ndarray, "n k"], now: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " k"]:
    """The absolute correlation of each column before and now; columns that never vary count as forgotten."""
    a, b = before - before.mean(axis=0), now - now.mean(axis=0)
    scale = np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scale > 0, np.abs((a * b).sum(axis=0)) / scale, 0.0)


def largest_correlation(before: Float[np.ndarray, "n k"], now: Float[np.ndarray, "n k"]) -> float:
    """The largest of them."""
    return float(correlations(before, now).max(initial=0.0))


def _is_tuned(rates: list[float]) -> bool:
    """Whether acceptance rates of more and more steps are high enough, or have stopped rising."""
    if max(rates) >= TARGET_ACCEPTANCE:
        return True
    has_stopped = len(rates) > RISING_OVER + 1 and rates[-1] - rates[-1 - RISING_OVER] < RISING
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
