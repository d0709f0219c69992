"""Contaminated simulation-based calibration: is a method right on average over everything that a model can say?

Simulation-based calibration draws θ* from the prior, data from θ*, and asks whether θ* ranks uniformly among draws of
the posterior. It cannot see a deletion that never happened: a posterior of all rows is calibrated as well as one of
the kept rows. So the removed rows are drawn from *another* parameter θ′:

    θ*, θ′ ~ prior,    kept rows ~ p(· | θ*),    removed rows ~ p(· | θ′)

Draws of the posterior of all rows, their removed rows erased, must rank θ* uniformly. Nothing deleted, or deleted
twice, does not.

References
----------
Talts, Betancourt, Simpson, Vehtari, Gelman (2018), Validating Bayesian inference algorithms with simulation-based
calibration, arXiv 1804.06788.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key, PyTree

from posterase.draws.draws import Draws
from posterase.model.base import AbstractModel, with_rows
from posterase.plotting.figures import BLACK, SKY, new_figure
from posterase.runtime.checks import check_int, check_type
from posterase.runtime.prng import as_key
from posterase.runtime.progress import shown
from posterase.sampling.nuts import nuts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 20

CHAINS, DRAWS, THINNED = 4, 400, 4
"""Of the sampler, where none is given. Ranks among autocorrelated draws are not uniform: so they are thinned."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Where the true parameters rank among the erased draws, over many simulated data sets."""

    ranks: dict[str, Float[np.ndarray, "repeats elements"]]
    """The weight of the draws below the true value, for each element of each parameter: uniform where all is right."""
    p_values: dict[str, float]
    """Kolmogorov–Smirnov against the uniform, the worst element, Bonferroni corrected."""

    @property
    def p_value(self) -> float:
        """Over all parameters, Bonferroni corrected."""
        return min(1.0, min(self.p_values.values()) * len(self.p_values))

    def __str__(self) -> str:
        repeats = len(next(iter(self.ranks.values())))
        worst = min(self.p_values, key=lambda name: self.p_values[name])
        return f"{repeats} simulated data sets: ranks uniform with p = {self.p_value:.2g} (worst: {worst})"

    def plot(self) -> Figure:
        """Rank histograms, flat where all is right; between the lines 95 % of the bars of a flat one."""
        figure = new_figure(3.0 * min(4, len(self.ranks)), 2.6 * -(-len(self.ranks) // 4))
        axes = figure.subplots(-(-len(self.ranks) // 4), min(4, len(self.ranks)), squeeze=False).ravel()
        for axis, (name, ranks) in zip(axes, self.ranks.items(), strict=False):
            expected = ranks.size / BINS
            axis.hist(ranks.ravel(), bins=BINS, range=(0, 1), color=SKY)
            for edge in (-1.96, 1.96):
                axis.axhline(expected + edge * np.sqrt(expected * (1 - 1 / BINS)), color=BLACK, lw=0.8, ls="--")
            axis.set_title(f"{name} (p = {self.p_values[name]:.2g})", fontsize=9)
            axis.set_yticks([])
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right", "left"]].set_visible(False)
        return figure


def calibrate(
    method: Callable[..., Any],
    prior: Callable[[Key[Array, ""]], PyTree],
    simulate: Callable[[Key[Array, ""], PyTree], PyTree],
    model: AbstractModel,
    rows: ArrayLike | Sequence[int],
    posterior: Callable[[Key[Array, ""], AbstractModel], Draws] | None = None,
    *,
    repeats: int = 200,
    random_seed: Key[Array, ""] | int | None = None,
    progress: bool | None = None,
) -> Calibration:
    """Calibrate a method on data sets simulated from a model.

    Parameters
    ----------
    method
        What is to be calibrated: `pe.Transport()`, say, or anything that is called and answers as a method does.
    prior
        `prior(key)` → the parameters of one draw from the prior.
    simulate
        `simulate(key, params)` → data of all rows, in the structure of the model's.
    model
        The model; its data give the shapes and are not looked at.
    rows
        Which rows are contaminated, and then removed.
    posterior
        `posterior(key, model)` → draws of the posterior of the model's rows, in closed form, say. None: by `pe.nuts`,
        from draws of the prior.
    repeats
        How many data sets.
    random_seed
        A seed or a jax key. None: 0.
    progress
        Whether to show progress. None: on a terminal.
    """
    check_type(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
    check_int("repeats", repeats, 10)
    typed = as_key(0 if random_seed is None else random_seed, "random_seed")
    change = model.change(remove=rows)
    gone = np.isin(np.arange(model.present.shape[0]), change.row_ids)
    sample = _sampler(prior) if posterior is None else posterior
    ranks: list[dict[str, Float[np.ndarray, " elements"]]] = []
    with shown("calibrating", repeats, progress) as report:
        for number in range(repeats):
            report(f"data set {number + 1} of {repeats}", number)
            keys = jax.random.split(jax.random.fold_in(typed, number), 6)
            truth, other = prior(keys[0]), prior(keys[1])
            data = jax.tree.map(
                lambda kept, removed: jnp.where(gone.reshape(-1, *[1] * (kept.ndim - 1)), removed, kept),
                simulate(keys[2], truth),
                simulate(keys[3], other),
            )
            simulated = with_rows(model, data, model.present)
            draws = sample(keys[4], simulated)
            ranks.append(_rank(truth, method(keys[5], simulated, draws, change).draws))
    together = {name: np.stack([each[name] for each in ranks]) for name in ranks[0]}
    from scipy.stats import kstest  # takes a second to import

    tests = {
        name: [float(kstest(column, "uniform").pvalue) for column in values.T] for name, values in together.items()
    }
    return Calibration(together, {name: min(1.0, min(each) * len(each)) for name, each in tests.items()})


def _sampler(prior: Callable[[Key[Array, ""]], PyTree]) -> Callable[[Key[Array, ""], AbstractModel], Draws]:
    def posterior(key: Key[Array, ""], model: AbstractModel) -> Draws:
        first, run = jax.random.split(key)
        starts = [prior(each) for each in jax.random.split(first, CHAINS)]
        initial = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        return nuts(run, model, initial, DRAWS, warmup=DRAWS).draws.thin(THINNED)

    return posterior


def _rank(truth: PyTree, draws: Draws) -> dict[str, Float[np.ndarray, " elements"]]:
    weights = np.asarray(draws.weights, np.float64).ravel()
    ranks = {}
    leaves = zip(draws.names, jax.tree.leaves(draws.params), jax.tree.leaves(truth), strict=True)
    for name, leaf, value in leaves:
        columns = np.asarray(leaf, np.float64).reshape(len(weights), -1)
        ranks[name] = weights @ (columns < np.asarray(value, np.float64).ravel())
    return ranks
