"""Do these draws belong to this model and these data?

For draws θ of a density p that vanishes at its edges, Stein's identities hold: E ∂ⱼ log p = 0 and E θⱼ ∂ⱼ log p = −1.
In coordinates in which the draws have covariance one, the mean score is about the distance, in standard deviations,
between the draws and the posterior, and 1 + E zⱼ ∂ⱼ log p is minus the excess of their variance. One gradient per draw,
at a sample of the draws, shows whether either may be off.

That only raises a suspicion. A density with edges, jumps or heavy tails need not satisfy the identities, and its scores
may have no variance. The decision is made by HMC trajectories, one from each of more draws, which assume nothing about
the density: Metropolis acceptance leaves p invariant, so draws of p do not drift. The differences h(after) − h(before),
weighted by the probability of acceptance, have mean zero for every h. We take bounded h, for which the t-statistics are
nearly exact.

Neither test sees an exchange of rows, which leaves the posterior as it is.

References
----------
Gorham, Mackey (2015), Measuring sample quality with Stein's method. NeurIPS.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree
from scipy import special

from posterase.data.parameters import parameter_names
from posterase.errors import DataChangedError
from posterase.model.densities import LogDensity
from posterase.numerics.curvature import gradients, values_and_gradients
from posterase.numerics.densities import evaluate_at
from posterase.numerics.weights import first_half, variance_of_mean

LOOKED_AT, FEWEST_LOOKED_AT = 256, 32
"""At how many draws scores are computed: the second for data so large that more would take seconds."""

ELEMENTS = 2**25
"""About how many numbers of data, over all of these draws, are passed over."""

MOVED = 4
"""Suspicious draws are examined further at so many times as many draws."""

MOST_PARAMETERS = 10_000
"""Past this, only a few draws are looked at and not tested: a network, whose chains have not converged."""

WHITENED_UP_TO = 64
"""Up to so many parameters the draws' correlations are estimated; past it, their standard deviations only."""

SUSPICIOUS, NOTICEABLE, BLIND = 3.5, 0.1, 0.3
"""Scores are suspicious if off by so many standard errors, and by so much; or with a standard error of more than the
third, which would hide a shift by a standard deviation."""

FALSE_ALARMS = 0.001
"""How often draws of the right model are refused."""

DRIFT, SPREAD_DRIFT = 0.1, 0.06
"""What one trajectory changes by less is not refused: means in standard deviations, and half the squared deviations."""

TRIALS, HINT = (1, 4), 2.0
"""Trajectories from each draw before it is looked whether draws drift; the second time only where they seem to, by so
many standard errors."""

STEPS, TRAJECTORY = (0.6, 0.3, 0.1, 0.03), math.pi / 2
"""Step sizes that are tried, in units of d^(−1/4), and the length of a trajectory, which forgets a Gaussian start."""

MOST_STEPS, ENOUGH_ACCEPTED = 24, 0.5

OUTLYING = 4.0
"""Draws farther out than so many standard deviations count as that far where their scale is estimated."""

MOST_IMPOSSIBLE = 0.01
"""The largest share of draws where the density is not a finite number, as rounding leaves them at an edge."""

CLIP = 3.0
"""Statistics of drift are of values within so many standard deviations."""


class Scores(NamedTuple):
    """The gradients of a log density at a sample of draws."""

    places: Int[np.ndarray, " m"]
    """Of the draws, with chains laid end to end."""
    values: Float[np.ndarray, "m d"]
    levels: Float[np.ndarray, " m"]
    """The log density there."""


def compute_scores(
    density: LogDensity, thetas: Float[np.ndarray, "n d"], like: PyTree, chains: int, least: int = 4
) -> Scores:
    """Gradients at evenly spaced draws of those to be tested, `least` of them or more."""
    count = min(LOOKED_AT, max(FEWEST_LOOKED_AT, ELEMENTS // max(1, density.elements)))
    places = _spaced(thetas, chains, max(count if thetas.shape[1] <= MOST_PARAMETERS else 0, least))
    levels, values = values_and_gradients(density, thetas[places], like)
    return Scores(places, values, levels)


def _spaced(thetas: Float[np.ndarray, "n d"], chains: int, count: int) -> Int[np.ndarray, " m"]:
    """Evenly spaced places in the half of the draws that is tested.

    The other half tells scale and directions. In the direction in which draws vary least, the same draws would vary
    less than the posterior by chance: they were asked where.
    """
    tested = np.flatnonzero(~first_half(chains, len(thetas) // chains))
    if len(tested) < count:
        tested = np.arange(len(thetas))
    return tested[np.linspace(0, len(tested) - 1, min(len(tested), count)).astype(int)]


def check_draws(
    density: LogDensity,
    thetas: Float[np.ndarray, "n d"],
    like: PyTree,
    scores: Scores,
    chains: int,
    groups: Int[np.ndarray, " n"],
) -> None:
    """Refuse draws that drift when they are moved along the density which they are said to be of.

    Draws of one group may depend on each other: groups are pieces of chains longer than the chains remember.
    """
    if thetas.shape[1] > MOST_PARAMETERS:
        return
    names = np.repeat(parameter_names(like), [leaf.size for leaf in jax.tree.leaves(like)])
    still = (np.ptp(thetas, axis=0) == 0) & np.any(scores.values != 0, axis=0)
    if still.any():
        fixed = ", ".join(dict.fromkeys(names[still]))
        raise DataChangedError(
            f"{fixed} never changes among the draws, though the density depends on it.",
            "pass draws in which it was sampled; or write its value into the model, and leave it out of the draws.",
        )
    said = _without_density(scores.levels)
    if said:
        raise _of_other_data(said)
    if len(scores.places) < FEWEST_LOOKED_AT:
        return
    length = len(thetas) // chains
    scale = _Scale.of(thetas[first_half(chains, length)])
    if not _are_suspicious(scale, scale.whiten(thetas[scores.places]), scores.values, groups[scores.places]):
        return
    places = _spaced(thetas, chains, min(len(thetas) // 2, MOVED * len(scores.places)))
    said = _drift(density, scale, thetas[places], like, groups[places])
    if said:
        raise _of_other_data(said)


def _of_other_data(said: str) -> DataChangedError:
    return DataChangedError(
        f"the draws are not of this model's posterior with these data: {said}.",
        "pass the model and the data of the fit (the same rows, columns and units, in the same order). If they are, "
        "the fit has not converged: sample again.",
    )


def _without_density(levels: Float[np.ndarray, " m"]) -> str:
    """Describe draws at which the density is zero or not a number; empty if there are hardly any."""
    impossible = int((~np.isfinite(levels)).sum())
    if impossible <= MOST_IMPOSSIBLE * len(levels):
        return ""
    return f"its density is zero, infinite or not a number at {impossible} of {len(levels)} draws"


class _Scale(NamedTuple):
    """Coordinates in which draws have mean zero and covariance one: θ = mean + factor z."""

    mean: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d k"]
    inverse: Float[np.ndarray, "k d"]

    @classmethod
    def of(cls, thetas: Float[np.ndarray, "n d"]) -> _Scale:
        thetas = _winsorised(thetas)
        mean, sd = thetas.mean(axis=0), thetas.std(axis=0)
        moving = np.flatnonzero(sd > 0)
        units = np.zeros((len(sd), len(moving)))
        units[moving, np.arange(len(moving))] = sd[moving]
        inverse = np.zeros_like(units.T)
        inverse[np.arange(len(moving)), moving] = 1 / sd[moving]
        if len(moving) > WHITENED_UP_TO or len(thetas) < 4 * len(moving):
            return cls(mean, units, inverse)
        values, vectors = np.linalg.eigh(inverse @ np.cov(thetas.T).reshape(len(sd), -1) @ inverse.T)
        kept = values > 1e-10 * values.max(initial=0)
        vectors, root = vectors[:, kept], np.sqrt(values[kept])
        return cls(mean, units @ (vectors * root), (vectors / root).T @ inverse)

    def whiten(self, thetas: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n k"]:
        """Coordinates of draws."""
        return (thetas - self.mean) @ self.inverse.T


def _winsorised(thetas: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """The draws with outliers pulled in, so that a few of them in a heavy tail do not set the scale."""
    low, middle, high = np.quantile(thetas, [0.16, 0.5, 0.84], axis=0)
    reach = np.where(high > low, OUTLYING * (high - low) / 2, np.inf)
    return np.clip(thetas, middle - reach, middle + reach)


def _are_suspicious(
    scale: _Scale, z: Float[np.ndarray, "m k"], scores: Float[np.ndarray, "m d"], groups: Int[np.ndarray, " m"]
) -> bool:
    """Whether Stein's identities may be violated, or scores vary too much to tell."""
    scaled = scores @ scale.factor
    if not np.isfinite(scaled).all():
        return True
    identities = np.concatenate([scaled, z * scaled + 1], axis=1)
    mean, error = _mean(identities, groups)
    return bool(np.any((np.abs(mean) > SUSPICIOUS * error) & (np.abs(mean) > NOTICEABLE)) or error.max() > BLIND)


def _mean(
    values: Float[np.ndarray, "m k"], groups: Int[np.ndarray, " m"]
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Means of columns and their standard errors; draws of one group may depend on each other."""
    weights = np.full(len(values), 1 / len(values))
    return weights @ values, np.sqrt(variance_of_mean(values, weights, groups))


def _drift(
    density: LogDensity,
    scale: _Scale,
    thetas: Float[np.ndarray, "m d"],
    like: PyTree,
    groups: Int[np.ndarray, " m"],
) -> str:
    """Describe the drift of draws that are moved along the density; empty if there is none."""
    names = np.repeat(parameter_names(like), [leaf.size for leaf in jax.tree.leaves(like)])
    levels = evaluate_at(density, thetas, like)
    said = _without_density(levels)
    if said:
        return said
    before = scale.whiten(thetas)
    least = np.repeat([DRIFT, SPREAD_DRIFT], before.shape[1])
    change, real = np.zeros((len(before), 2 * before.shape[1])), np.zeros(2 * before.shape[1], bool)
    for looks, count in enumerate(TRIALS, 1):
        for number in range(0 if looks == 1 else TRIALS[looks - 2], count):
            after, accepted = _trajectories(number, density, scale, thetas, levels, like)
            if accepted.mean() < ENOUGH_ACCEPTED:  # too rough for trajectories, which says nothing of the draws
                return ""
            change += accepted[:, None] * (_statistics(after) - _statistics(before))
        mean, error = _mean(change / count, groups)
        limit = -special.stdtrit(max(len(np.unique(groups)) - 1, 1), FALSE_ALARMS / (2 * len(mean) * len(TRIALS)))
        real = (np.abs(mean) > limit * error) & (np.abs(mean) > least)
        if real.any() or not np.any((np.abs(mean) > HINT * error) & (np.abs(mean) > least / 2)):
            break
    if not real.any():
        return ""
    shift, spread = np.split(np.where(real, mean, 0.0), 2)
    if np.any(shift):
        moved = scale.factor @ shift / np.maximum(np.sqrt((scale.factor**2).sum(axis=1)), 1e-300)
        worst = int(np.abs(moved).argmax())
        return f"moved along it, {names[worst]} drifts by {abs(moved[worst]):.1f} standard deviations or more"
    worst = int(np.abs(scale.factor[:, np.abs(spread).argmax()]).argmax())
    wider = "wider" if spread[np.abs(spread).argmax()] > 0 else "narrower"
    return f"moved along it, the draws of {names[worst]} become {wider}"


def _statistics(z: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "m 2*k"]:
    """What drifts: values, and half their squares, both bounded."""
    near = np.clip(z, -CLIP, CLIP)
    return np.concatenate([near, near**2 / 2], axis=1)


def _trajectories(
    number: int,
    density: LogDensity,
    scale: _Scale,
    thetas: Float[np.ndarray, "m d"],
    levels: Float[np.ndarray, " m"],
    like: PyTree,
) -> tuple[Float[np.ndarray, "m k"], Float[np.ndarray, " m"]]:
    """Where an HMC trajectory from each draw ends, and its probability of acceptance, with the largest usable step.

    Trajectories have random lengths: where draws are too wide, ones of the same length may all end across the mode, as
    far out as they began.
    """
    before = scale.whiten(thetas)
    random = np.random.default_rng(number)
    first, part = random.normal(size=before.shape), random.uniform(size=len(before))
    uphill = gradients(density, thetas, like) @ scale.factor
    after, accepted = before, np.zeros(len(before))
    with np.errstate(all="ignore"):  # a trajectory that overflows is rejected
        for unit in STEPS:
            step = unit * before.shape[1] ** -0.25
            distance, momentum, slope = np.zeros_like(before), first, uphill
            steps = min(math.ceil(TRAJECTORY / step), MOST_STEPS)
            last = np.floor(part * steps)
            ended, its_momentum = distance, momentum
            for number in range(steps):
                momentum = momentum + 0.5 * step * slope
                distance = distance + step * momentum
                place = thetas + distance @ scale.factor.T
                slope = gradients(density, place, like) @ scale.factor
                momentum = momentum + 0.5 * step * slope
                ends = (last == number)[:, None]
                ended, its_momentum = np.where(ends, distance, ended), np.where(ends, momentum, its_momentum)
            energy = evaluate_at(density, thetas + ended @ scale.factor.T, like) - levels
            energy += 0.5 * ((first**2).sum(axis=1) - (its_momentum**2).sum(axis=1))
            moved = np.isfinite(energy) & np.isfinite(ended).all(axis=1)
            after = np.where(moved[:, None], before + ended, before)
            accepted = np.where(moved, np.exp(np.minimum(energy, 0)), 0)
            if accepted.mean() >= ENOUGH_ACCEPTED:
                break
    return after, accepted
