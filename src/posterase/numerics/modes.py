r"""Modes, those that no draw has visited too: found by climbing, with their masses by Laplace's method.

Weights, and moves that are local, only see where the draws are. A mode that the removed rows suppressed may hold much
of the target and none of the draws.

**Climbing.** Points scattered around the draws, from a few to hundreds of standard deviations away, go uphill by steps
of which only the signs come from the gradient: each coordinate's step grows while its sign stays, and shrinks when it
turns (Igel, Hüsken 2003). Flat tails are crossed as fast as steep ones. Where they arrive, Newton's method follows,
with Hessians from differences of gradients, so that one program is compiled for all of it.

**Hops.** Each mode has a centre c and a root L of its inverse Hessian; where draws are in none of them, their own
coordinates, as they were at first, count as one more. A hop maps every second draw from the one that it is nearest to,
to another, picked at random:

    θ′ = c_j + L_j L_i⁻¹ (θ − c_i),    accepted with probability min(1, target(θ′)|L_j| / (target(θ)|L_i|)),

if θ′ is nearest to j, so that the way back is as likely. That leaves the target invariant. So draws spread over the
modes in proportion to their masses, and where this changes their law, they drift, which is detected and mended
(`posterase.numerics.drift`). A mode of no mass is never hopped to, and costs only the proposals.

A mode that is as high and as wide as one that the draws are in, with the removed rows and without them, is its mirror
image: components relabelled, or signs turned. If the draws that went in kept to one of them, draws stay there, and a
note says so.

References
----------
Igel, Hüsken (2003), Empirical evaluation of the improved Rprop learning algorithms, Neurocomputing 50. Tjelmeland,
Hegstad (2001), Mode jumping proposals in MCMC, Scandinavian Journal of Statistics 28.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from posterase.numerics.extra_chances import Frame, RaveledDensity
from posterase.runtime import sharding
from posterase.runtime.fast_compilation import quick_jit
from posterase.runtime.precision import all_digits, as_jax

MOST_PARAMETERS = 50
"""Above this no modes are looked for: few points in so many directions would find none."""

AT_ONCE, AT_ONCE_OUTSIDE, FROM_DRAWS = 32, 16, 4
"""Points that climb, or have their gradients taken, at once, the second where gradients are expensive; and how many of
them are draws, whose own modes are to be known."""

NEAR, FAR = 3.0, 300.0
"""How far from the draws' centre dispersed points lie, in standard deviations."""

MOST_CLIMBS, FIRST_STEP, LAST_STEP, GROWTH, SHRINKAGE = 80, 0.2, 0.1, 1.4, 0.5
"""Steps of a climb: how many, and their lengths."""

MOST_NEWTON_STEPS, LONGEST_NEWTON_STEP, ARRIVED = 6, 3.0, 1e-2
"""Newton's method, with steps in standard deviations of the mode, ends where the log density can hardly rise."""

DIFFERENCE = 0.05
"""Of coordinates, for second derivatives, in standard deviations of the mode."""

SAME = 1.0
"""Modes closer than this, in standard deviations of one of them, are one."""

VISITED = 0.1
"""A mode that at least this share of the draws is in is known to them."""

KNOWN = 0.01
"""A mode that at least this share of the draws that went in is in was known to the fit."""

LEAST_LOG_MASS = -10.0
"""Modes of less mass than this, relative to at most what the draws have, are left out."""

MOST_MODES = 6

MIRRORED = 0.05
"""Two modes whose log heights and log widths differ by less than this are images of each other."""


class Mode(NamedTuple):
    """A local maximum of a density, in some coordinates."""

    centre: Float[np.ndarray, " d"]
    root: Float[np.ndarray, "d d"]
    """Of the inverse of the Hessian, with its sign turned."""
    height: float
    """The log density."""

    @property
    def log_width(self) -> float:
        """log |root|."""
        return float(np.linalg.slogdet(self.root)[1])

    @property
    def log_mass(self) -> float:
        """By Laplace's method."""
        return self.height + self.log_width + len(self.centre) / 2 * math.log(2 * math.pi)

    def distances(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Squared distances of points, in the mode's standard deviations."""
        return (np.linalg.solve(self.root, (z - self.centre).T) ** 2).sum(axis=0)

    def share_of(self, z: Float[np.ndarray, "n d"]) -> float:
        """The share of points that are in it."""
        d = len(self.centre)
        return float((self.distances(z) < d + 3 * math.sqrt(2 * d)).mean())


class Found(NamedTuple):
    """What climbing found."""

    modes: list[Mode]
    """To hop between; none where there is one mode, and draws are in it."""
    unvisited: int
    """How many of them draws have not visited."""
    visited: int
    """And how many they have."""
    mirrored: int
    """Other modes, images of visited ones, that are left alone."""
    gradients: float
    sequential: int


def find_modes(
    random: np.random.Generator,
    density: RaveledDensity,
    frame: Frame,
    z: Float[np.ndarray, "n d"],
    height: float,
    before: Float[np.ndarray, "m d"],
    removed: Callable[[Float[np.ndarray, "k d"]], Float[np.ndarray, " k"]] | None = None,
) -> Found:
    """Modes of a density, and whether draws have visited them.

    Parameters
    ----------
    random
        For the points that climb.
    density, frame
        The density, and coordinates in which the draws have about unit covariance.
    z
        The draws.
    height
        The mean log density of the draws.
    before
        The draws that went in: an image of a visited mode is left alone only where they had left it alone.
    removed
        The log-likelihood of the removed rows. Where it differs between two modes, these rows told them apart, and the
        fit had no choice: one is no image of the other.
    """
    search = _Search(density, frame)
    modes = search.modes(_points(random, z, search.size))
    bulk = height + z.shape[1] / 2 * (1 + math.log(2 * math.pi))  # Gaussians have the most entropy
    heavy = [mode for mode in modes if mode.share_of(z) >= VISITED or mode.log_mass > bulk + LEAST_LOG_MASS]
    unvisited = [mode for mode in heavy if mode.share_of(z) < VISITED]
    visited = [mode for mode in heavy if mode.share_of(z) >= VISITED]
    left_alone = [
        mode
        for mode in unvisited
        if mode.share_of(before) < KNOWN and any(_is_image(mode, known, removed) for known in visited)
    ]
    heavy = [mode for mode in heavy if all(mode is not image for image in left_alone)]
    missed = len(unvisited) - len(left_alone)
    heavy = sorted(heavy, key=lambda mode: -mode.log_mass)[:MOST_MODES] if missed or len(heavy) > 1 else []
    return Found(heavy, missed, len(visited), len(left_alone), search.gradients, search.sequential)


def at_once(density: RaveledDensity) -> int:
    """How many points climb."""
    return AT_ONCE_OUTSIDE if density.density.model.gradients_are_expensive else AT_ONCE


def _points(random: np.random.Generator, z: Float[np.ndarray, "n d"], size: int) -> Float[np.ndarray, "size d"]:
    """Draws, and points in random directions from their centre, every other one along a single coordinate."""
    d = z.shape[1]
    own = z[random.integers(len(z), size=FROM_DRAWS)]
    directions = random.normal(size=(size - FROM_DRAWS, d))
    alone = np.arange(len(directions)) % 2 == 1
    axes = (
        np.eye(d)[np.arange(len(directions)) // 2 % d]
        * np.where(np.arange(len(directions)) // 2 // d % 2, -1, 1)[:, None]
    )
    directions[alone] = axes[alone]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = np.exp(random.permutation(np.linspace(math.log(NEAR), math.log(FAR), len(directions))))
    return np.concatenate([own, radii[:, None] * directions])


def _is_image(
    one: Mode, other: Mode, removed: Callable[[Float[np.ndarray, "k d"]], Float[np.ndarray, " k"]] | None
) -> bool:
    if abs(one.height - other.height) >= MIRRORED or abs(one.log_width - other.log_width) >= MIRRORED:
        return False
    if removed is None:
        return True
    at_one, slope_one = _value_and_slope(removed, one)
    at_other, slope_other = _value_and_slope(removed, other)
    # Each centre is known up to so many standard deviations.
    uncertain = math.sqrt(2 * ARRIVED) * (slope_one + slope_other)
    return abs(at_one - at_other) < MIRRORED + uncertain


def _value_and_slope(
    function: Callable[[Float[np.ndarray, "k d"]], Float[np.ndarray, " k"]], mode: Mode
) -> tuple[float, float]:
    """A function at a mode's centre, and how steep it is there, per standard deviation of the mode."""
    steps = DIFFERENCE * mode.root.T
    values = function(np.concatenate([mode.centre[None], mode.centre + steps, mode.centre - steps]))
    ahead, behind = np.split(values[1:], 2)
    return float(values[0]), float(np.linalg.norm(ahead - behind)) / (2 * DIFFERENCE)


class _Search:
    """Climbs, and Newton's method from where they end; and what they have cost."""

    def __init__(self, density: RaveledDensity, frame: Frame):
        self.density, self.frame, self.size = density, frame, at_once(density)
        self.gradients, self.sequential = 0.0, 0

    def modes(self, points: Float[np.ndarray, "size d"]) -> list[Mode]:
        """All that are found from these points, each once."""
        ends, heights, _ = self._climb(points, MOST_CLIMBS)
        found: list[Mode] = []
        for end in ends[np.argsort(-heights)]:
            if not np.isfinite(end).all() or any(mode.distances(end[None])[0] < SAME for mode in found):
                continue
            mode = self._refined(end)
            if mode is not None and not any(known.distances(mode.centre[None])[0] < SAME for known in found):
                found.append(mode)
        return found

    def _climb(
        self, points: Float[np.ndarray, "n d"], most: int
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"], Float[np.ndarray, "n d"]]:
        """Where points end after at most so many steps; the log density, and its gradient there."""
        n, precision = len(points), self.frame.centre.dtype
        padded = np.pad(points, ((0, -n % self.size), (0, 0)), mode="edge").reshape(-1, self.size, points.shape[1])
        parts = []
        for part in padded:
            *out, steps = climb(self.density, self.frame, as_jax(part, precision), as_jax(most, np.int32))
            parts.append([np.asarray(leaf, np.float64) for leaf in out])
            self.gradients += (int(steps) + 1) * self.size
            self.sequential += int(steps) + 1
        z, value, gradient = (np.concatenate(leaves)[:n] for leaves in zip(*parts, strict=True))
        return z, np.where(np.isnan(value), -np.inf, value), gradient

    def _refined(self, z: Float[np.ndarray, " d"]) -> Mode | None:
        """The maximum near a point; None where there is none."""
        d, widths = len(z), np.full(len(z), 1.0)
        for _ in range(MOST_NEWTON_STEPS):
            shifts = np.diag(DIFFERENCE * widths)
            _, values, gradients = self._climb(np.concatenate([z[None], z + shifts, z - shifts]), 0)
            if not (np.isfinite(values).all() and np.isfinite(gradients).all()):
                return None
            curvature = (gradients[d + 1 :] - gradients[1 : d + 1]) / (2 * np.diagonal(shifts)[:, None])
            curvature = (curvature + curvature.T) / 2
            try:
                np.linalg.cholesky(curvature)
                root = np.linalg.cholesky(np.linalg.inv(curvature))
            except np.linalg.LinAlgError:
                return None
            own = 1 / np.sqrt(np.diagonal(curvature))
            step = root @ (root.T @ gradients[0])
            rises = float(step @ gradients[0]) / 2
            if rises < ARRIVED and (np.abs(np.log(own / widths)) < 1).all():
                return Mode(z, root, float(values[0]))
            widths = own
            length = float(np.linalg.norm(root.T @ gradients[0]))
            z = z + step * (LONGEST_NEWTON_STEP / max(length, LONGEST_NEWTON_STEP))
        return None


class _Climb(NamedTuple):
    """Points on their way uphill."""

    number: Int[Array, ""]
    """Of steps taken."""
    z: Float[Array, "size d"]
    value: Float[Array, " size"]
    gradient: Float[Array, "size d"]
    steps: Float[Array, "size d"]
    uphill: Float[Array, "size d"]
    """The gradient that the last step followed, 0 where it had turned."""
    sound: Float[Array, "size d"]
    """Where the density was a number last."""


@quick_jit(elements=lambda density, *rest: density.elements)
@all_digits()
def climb(
    density: RaveledDensity, frame: Frame, points: Float[Array, "size d"], most: Int[Array, ""]
) -> tuple[Float[Array, "size d"], Float[Array, " size"], Float[Array, "size d"], Int[Array, ""]]:
    """Go uphill, and half of the way back from where the density is no number.

    Returns where points end after at most so many steps; the log density and its gradient there; and how many steps
    there were.
    """
    side_by_side = 1 if density.one_by_one else len(points)

    def at(z: Array, density: RaveledDensity, frame: Frame) -> tuple[Array, Array]:
        return jax.value_and_grad(lambda z: density(frame.theta(z)))(z)

    def evaluate(z: Array) -> tuple[Array, Array]:
        value, gradient = sharding.map_draws(at, z, side_by_side, (density, frame))
        return value.astype(z.dtype), gradient.astype(z.dtype)

    def step(now: _Climb) -> _Climb:
        started = now.number >= 0  # the first time points are only evaluated: what evaluates them is compiled once
        finite = (jnp.isfinite(now.value) & jnp.isfinite(now.gradient).all(axis=1))[:, None]
        turn = jnp.sign(now.gradient) * jnp.sign(now.uphill)
        steps = now.steps * jnp.where(finite & (turn > 0), GROWTH, jnp.where(finite & (turn == 0), 1.0, SHRINKAGE))
        uphill = jnp.where(finite & (turn >= 0), now.gradient, 0.0)
        z = jnp.where(finite, now.z + jnp.sign(uphill) * steps, (now.z + now.sound) / 2)
        sound = jnp.where(finite & started, now.z, now.sound)
        return _Climb(now.number + 1, z, *evaluate(z), steps, uphill, sound)

    nothing = jnp.zeros_like(points)
    first = FIRST_STEP * jnp.maximum(1.0, jnp.linalg.norm(points, axis=1, keepdims=True) / 10)
    steps = jnp.broadcast_to(first, points.shape)
    # With no gradient points stay where they are.
    start = _Climb(jnp.full((), -1, jnp.int32), points, nothing[:, 0], nothing, steps, nothing, nothing)
    end = jax.lax.while_loop(lambda now: (now.number < most) & (now.steps.max() > LAST_STEP), step, start)
    return end.z, end.value, end.gradient, end.number
