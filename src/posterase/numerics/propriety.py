"""Is there a posterior without the removed rows? Parameters that nothing else tells of, and tails that do not fall."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from posterase.data.parameters import parameter_names
from posterase.errors import ImproperPosteriorError, ModelError
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.curvature import gradients
from posterase.numerics.densities import evaluate_at
from posterase.numerics.input_checks import Scores, compute_scores

INFORMED_DRAWS = 4
"""At how many draws it is looked whether a density depends on its parameters."""

COMBINED_UP_TO = 100
"""Up to so many parameters combinations of them are looked at, at as many draws more, where there are so many."""

ALL_UP_TO, OF_EACH = 2000, 16
"""Up to so many numbers all are looked at far out; past it, so many of each parameter, evenly spread."""

POINTS = 2**24
"""About how many numbers of points, far out, are in memory at once."""

FEW_ELEMENTS = 2**22
"""Where gradients pass over so many numbers or fewer, compiling another program takes longer than they do."""

NO_GRADIENT, SOME_GRADIENT = 1e-10, 1e-3
"""Gradients along a direction, in units of one over the draws' spread along it: of rounding in float64; of a density.
Those of a posterior are of order one, those of a wide prior (5,000 times the draws' spread) still 1e-7."""


FAR_OUT, LEAST_FALL = (30.0, 10.0), 3.0
"""So many standard deviations out a density must have fallen by so many nats: at ten of them a Gaussian falls by 50, a
Student's t with three degrees of freedom by 7."""


FARTHER_OUT = (300.0, 3_000.0, 30_000.0, 300_000.0)
"""Where it is looked whether a density that has not fallen does so at all."""


def check_informed(
    kept: LogDensity,
    log_ratio: LogRatio,
    thetas: Float[np.ndarray, "n d"],
    like: PyTree,
    scores: Scores | None = None,
) -> None:
    """Refuse parameters that the density does not depend on, with all rows or without the removed ones.

    Looks at the gradients at some draws, which are zero to the bit there: absent rows do not enter them. And at
    combinations of parameters, along which they cancel: two coefficients of which only the sum is known. Without the
    removed rows they are those of the kept rows; where these are many, ∇source + ∇log_ratio, unless rounding hides it.
    """
    names = parameter_names(like)
    d = thetas.shape[1]
    wanted = informed_draws(thetas)
    combined = wanted > INFORMED_DRAWS
    if scores is None:
        scores = compute_scores(LogDensity(log_ratio.model), thetas, like, 1, wanted)
    some = np.linspace(0, len(scores.places) - 1, wanted).astype(int)
    places, with_all = scores.places[some], scores.values[some]
    without = None
    if kept.elements * len(scores.places) <= FEW_ELEMENTS:  # by the program that computed the scores
        without = gradients(kept, thetas[scores.places], like)[some]
    elif log_ratio.model.rows_factorise:
        without = with_all + gradients(log_ratio, thetas[places], like)
        without = None if _leaves_little(without, thetas) else without
    if without is None:
        without = gradients(kept, thetas[places], like)
    parts = np.split(np.arange(d), np.cumsum([leaf.size for leaf in jax.tree.leaves(like)])[:-1])
    never = [name for name, part in zip(names, parts, strict=True) if not np.any(with_all[:, part])]
    if never:
        raise ModelError(
            f"the model's density does not depend on {', '.join(never)}, so that it cannot be moved.",
            "leave out what the model computes from its parameters (Draws.from_arviz(…, var_names=…)), and compute it "
            "from the erased draws.",
        )
    lost = np.any(with_all, axis=0) & ~np.any(without, axis=0)
    gone = [name for name, part in zip(names, parts, strict=True) if np.any(lost[part])]
    if not gone and combined:
        unknown = _unknown_direction(with_all, without, thetas)
        among = [name for name, part in zip(names, parts, strict=True) if np.abs(unknown[part]).max(initial=0) > 0.1]
        gone = [f"a combination of {' and '.join(among)}"] if among else []
    if gone:
        raise ImproperPosteriorError(
            f"without the removed rows the density does not depend on {', '.join(gone)}: there is no posterior.",
            "give it a proper prior, or leave it out of the model along with its rows.",
        )


def informed_draws(thetas: Float[np.ndarray, "n d"]) -> int:
    """At how many draws gradients are looked at: more than parameters, for combinations of them.

    Fewer gradients than parameters are all zero along some direction, whatever the density.
    """
    n, d = thetas.shape
    return INFORMED_DRAWS + (d if d <= COMBINED_UP_TO and n >= INFORMED_DRAWS + d else 0)


def _leaves_little(without: Float[np.ndarray, "m d"], thetas: Float[np.ndarray, "n d"]) -> bool:
    """Whether gradients are so small along a parameter, or a combination of them, that rounding may be all of it."""
    spread = thetas.std(axis=0)
    scaled = without * np.where(spread > 0, spread, 1)
    if not np.isfinite(scaled).all():
        return True
    least = np.sqrt((scaled**2).mean(axis=0)).min()
    if len(without) >= thetas.shape[1]:
        least = min(least, np.linalg.svd(scaled, compute_uv=False)[-1] / np.sqrt(len(scaled)))
    return bool(least < SOME_GRADIENT)


def _unknown_direction(
    with_all: Float[np.ndarray, "m d"], without: Float[np.ndarray, "m d"], thetas: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " d"]:
    """A direction, in units of the draws' spread, along which only the removed rows had a gradient; else zero."""
    spread = thetas.std(axis=0)
    scale = np.where(spread > 0, spread, 1)
    if not np.isfinite(without).all() or not np.isfinite(with_all).all():
        return np.zeros_like(spread)
    direction = np.linalg.svd(without * scale)[2][-1]
    length = ((thetas / scale) @ direction).std()
    before, after = (length * np.sqrt(np.mean(((each * scale) @ direction) ** 2)) for each in (with_all, without))
    return direction if after < NO_GRADIENT < SOME_GRADIENT < before else np.zeros_like(direction)


class Tails(NamedTuple):
    """Parameters along which a log density does not fall where the draws end."""

    flat: list[str]
    """It falls nowhere: there may be no posterior."""
    distant: list[str]
    """It falls farther out: there is mass far from the draws."""


class _Outlook:
    """A log density far out along each parameter, on both sides of the mean of draws.

    Where draws lie around their mean and not at it, it is held against draws; and with many parameters, where the mean
    is denser than any of them by d/2 nats, it is looked out from a draw.
    """

    def __init__(
        self, density: LogDensity, thetas: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"], like: PyTree
    ):
        self.density, self.like = density, like
        self.mean = weights @ thetas
        self.deviations = np.sqrt(weights @ (thetas - self.mean) ** 2)
        self.places, self.owners = _looked_at([leaf.size for leaf in jax.tree.leaves(like)])
        typical = thetas[np.argsort(-weights)[:INFORMED_DRAWS]]
        few = len(self.mean) <= COMBINED_UP_TO
        self.centre = self.mean if few else typical[0]
        inside = np.vstack([self.centre, typical])
        levels, self.out = np.split(self.values(FAR_OUT[0], inside), [len(inside)])
        self.level = max(levels[0], np.median(levels[1:])) if few else levels[0]
        too_far = np.isnan(self.out) | np.isposinf(self.out)  # exp(−400)² is 0, and −log of it is +∞
        if too_far.any():
            self.out = np.where(too_far, self.values(FAR_OUT[1], inside)[len(inside) :], self.out)

    def values(self, distance: float, inside: Float[np.ndarray, "some d"]) -> Float[np.ndarray, " k"]:
        """The density at the inner points, and so far out on both sides of every place."""
        at = np.tile(self.places, 2)
        steps = np.repeat([-distance, distance], len(self.places)) * self.deviations[at]
        found, size, before = [], max(1, POINTS // len(self.mean)), inside  # with the first, for one program less
        for start in range(0, len(at), size):
            part = slice(start, start + size)
            points = np.tile(self.centre, (len(at[part]), 1))
            points[np.arange(len(points)), at[part]] = self.mean[at[part]] + steps[part]
            found.append(evaluate_at(self.density, np.vstack([before, points]), self.like))
            before = inside[:0]
        return np.concatenate(found)

    @property
    def is_high(self) -> Bool[np.ndarray, "2 k"]:
        """Where the density has not fallen, below and above."""
        return (self.out > self.level - LEAST_FALL).reshape(2, -1)

    def names(self, which: Bool[np.ndarray, " k"]) -> list[str]:
        """Parameters with a number among these."""
        names = parameter_names(self.like)
        return [name for number, name in enumerate(names) if which[self.owners == number].any()]


def flat_tails(
    density: LogDensity, thetas: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"], like: PyTree
) -> Tails:
    """Parameters along which a log density does not fall where the draws end.

    A density that can be integrated is lower by many nats at `FAR_OUT` standard deviations from the mean of its draws
    than it is there. Where it is not, it may fall farther out: then there is mass that the draws do not reach.
    """
    outlook = _Outlook(density, thetas, weights, like)
    high = outlook.is_high
    if not high.any():
        return Tails([], [])
    falls = np.zeros_like(high)
    for distance in FARTHER_OUT:
        farther = outlook.values(distance, outlook.centre[None])[1:].reshape(2, -1)
        falls |= farther <= outlook.level - LEAST_FALL
    flat = (high & ~falls).any(axis=0)
    return Tails(outlook.names(flat), outlook.names(high.any(axis=0) & ~flat))


def _looked_at(sizes: list[int]) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"]]:
    """Places of numbers among all, and which parameter each belongs to."""
    starts = np.cumsum([0, *sizes[:-1]])
    each = [min(size, size if sum(sizes) <= ALL_UP_TO else OF_EACH) for size in sizes]
    places = [
        start + np.linspace(0, size - 1, some).astype(int)
        for start, size, some in zip(starts, sizes, each, strict=True)
    ]
    return np.concatenate(places), np.repeat(np.arange(len(sizes)), each)
