"""How well chains mixed: R̂, effective sample sizes, and chains that sit in different modes, by name.

References
----------
Vehtari, Gelman, Simpson, Carpenter, Bürkner (2021), Rank-normalization, folding, and localization: an improved R̂,
Bayesian Analysis 16. Stephens (2000), Dealing with label switching in mixture models, JRSS B 62.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from posterase.draws import Draws

FEWEST_IN_HALF = 25
"""Halves of chains shorter than this say little of whether they agree."""

APART = 3.0
"""Chains whose means differ by more than so many standard deviations within a chain sit in different modes."""

COMPARED_UP_TO = 2000
"""Past so many components nobody looks whether they are another chain's in another order: it takes their square."""


def mixing(draws: Draws) -> tuple[dict[str, float], dict[str, float]]:
    """R̂ (rank normalised) and bulk ESS, the worst element of each parameter; elements that never change count for none.

    A Cholesky factor has such elements: zeros, and a one.
    """
    from arviz_stats.base import array_stats  # here, since it takes a second to import

    rhat, ess = {}, {}
    for name, every in draws.columns().items():
        values = every[..., np.ptp(every, axis=(0, 1)) > 0]
        if every.shape[-1] and not values.shape[-1]:
            values = every[..., :1]  # nothing of it ever changes: R̂ is not a number, which says so
        rhat[name] = float(np.max(array_stats.rhat(values, chain_axis=0, draw_axis=1)))
        ess[name] = float(np.min(array_stats.ess(values, chain_axis=0, draw_axis=1)))
    return rhat, ess


def split_rhat(draws: Draws) -> dict[str, float]:
    """R̂ of halves of chains, not rank normalised and so cheap: the worst element of each parameter.

    Nothing, where chains are too short to be split.
    """
    half = draws.n_draws // 2
    if half < FEWEST_IN_HALF:
        return {}
    worst = {}
    for name, values in draws.columns().items():
        halves = np.concatenate([values[:, :half], values[:, -half:]])
        within = halves.var(axis=1, ddof=1).mean(axis=0)
        between = halves.mean(axis=1).var(axis=0, ddof=1)
        ratio = np.where(within > 0, between / np.where(within > 0, within, 1), 0)
        worst[name] = float(np.sqrt((half - 1) / half + ratio.max()))
    return worst


def different_modes(draws: Draws) -> str:
    """What to say where chains sit in different modes, naming label switching where it is that; else nothing.

    Labels are switched where a parameter's elements in one chain are those of another chain in another order.
    """
    if draws.n_chains < 2 or draws.n_draws < 4:
        return ""
    apart = ""
    for name, leaf in zip(draws.names, jax.tree.leaves(draws.params), strict=True):
        values = np.asarray(leaf, np.float64)
        values = values.reshape(*values.shape[:2], values.shape[2] if values.ndim > 2 else 1, -1)
        means = values.mean(axis=1)
        # Some numbers never change: those above a Cholesky factor's diagonal.
        spread = np.sqrt(values.var(axis=1).mean(axis=0)) + 1e-12 * (1 + np.abs(means).max(axis=0))
        for chain in range(1, draws.n_chains):
            gap = np.abs((means[chain] - means[0]) / spread)
            if gap.max(initial=0) < APART:
                continue
            apart = apart or f"chains 0 and {chain} sit in different modes of {name}"
            if len(gap) > COMPARED_UP_TO:
                continue
            distance = _distances(means[chain], means[0], spread)
            here = float(np.sqrt(np.mean(gap**2)))
            rows, order = linear_sum_assignment(distance)
            best = float(np.sqrt(distance[rows, order].mean()))
            if best < min(here / 3, APART):
                shown = ", ".join(map(str, order))
                return (
                    f"the components of {name} are numbered differently in different chains (label switching): those "
                    f"of chain {chain} are chain 0's in the order {shown}"
                )
    return apart


def _distances(
    one: Float[np.ndarray, "k rest"], other: Float[np.ndarray, "k rest"], spread: Float[np.ndarray, "k rest"]
) -> Float[np.ndarray, "k k"]:
    """Mean squared distance, in standard deviations, of every element from every other."""
    return np.stack([(((each - other) / spread) ** 2).mean(axis=-1) for each in one])
