"""Example by example: do erased models treat a row as models do that never saw it?

Both metrics look at *margins*, one number for each model and example: for a classifier log p/(1 − p) of the true class,
for a regression the log predictive density. A model is one draw of a posterior, or one trained network; models must be
independent of each other. `posterase.metrics.shadow_models` makes hundreds of them in one batch.

**KLoM** (KL of margins): for each example, KL between the margins of erased and of refitted models, over histograms
with shared bins; reported are its median and 95th percentile over examples.

**U-LiRA**: an attacker who knows models with and without the rows. For each example a Gaussian is fitted to the margins
of erased models and to those of models that never saw it; the log ratio of the two densities, at models that were not
used in the fit, is the attack's score. Scores are pooled over examples; reported is the share of erased models found
out at a threshold that accuses 1 % of the innocent. Where nothing can be told it is 1 %, or less where scores tie.

References
----------
Georgiev et al. (2024), Attribute-to-delete: machine unlearning via datamodel matching, arXiv 2410.23232. Hayes et al.
(2024), Inexact unlearning needs more careful evaluations to avoid a false sense of privacy, arXiv 2403.01218.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key

from posterase.errors import DrawsShapeError, InvalidOptionError
from posterase.numerics.weights import Estimate
from posterase.runtime.checks import check_finite, check_int
from posterase.runtime.prng import as_key
from posterase.runtime.sharding import map_draws

BINS = 20
CLIP = 100.0
"""Margins beyond this are cut off."""
SMOOTHING = 0.5
"""Added to the count of every bin, so that an empty one does not make a KL infinite."""
FEWEST_MODELS = 20
PERCENTILES = (50, 95)
REPEATS = 200
"""Bootstrap samples of models."""


class KLoM(NamedTuple):
    """KL of margins over examples."""

    by_example: Float[np.ndarray, " examples"]
    median: Estimate
    percentile_95: Estimate
    """The 95th percentile."""

    def __str__(self) -> str:
        return f"KLoM {self.median} in the median, {self.percentile_95} at the 95th percentile"


class ULira(NamedTuple):
    """What a likelihood-ratio attack finds out."""

    true_positives: Estimate
    """Share of erased models found out; its error from a bootstrap over models."""
    false_positives: float
    """Share of never-trained models accused: what the first is where nothing can be told."""

    def __str__(self) -> str:
        return f"true positives {self.true_positives} at {self.false_positives:.1%} false ones"


def logit_margin(log_probability: Float[Array, "..."]) -> Float[Array, "..."]:
    """log p − log(1 − p) of the true class, from log p."""
    least = -jnp.finfo(log_probability.dtype).eps  # p that rounds to one
    below = jnp.minimum(log_probability, least)
    return below - jnp.log(-jnp.expm1(below))


def klom(
    key: Key[Array, ""] | int,
    erased: ArrayLike | Sequence[Any],
    refit: ArrayLike | Sequence[Any],
    *,
    bins: int = BINS,
) -> KLoM:
    """KL(erased ‖ refit) of the margins of every example; the error of percentiles from a bootstrap over models.

    Margins are shaped `(models, examples)`.
    """
    check_int("bins", bins, 2)
    keys = jax.random.split(as_key(key))
    sides = [jnp.clip(each, -CLIP, CLIP) for each in _margins(erased, refit)]
    counts = [_multiplicities(k, len(side)) for k, side in zip(keys, sides, strict=True)]
    values, boot = (np.asarray(each, np.float64) for each in _klom(*sides, *counts, bins))
    levels = np.percentile(values, PERCENTILES)
    errors = np.percentile(boot, PERCENTILES, axis=1).std(axis=1, ddof=1)
    return KLoM(values, *(Estimate(float(v), float(e)) for v, e in zip(levels, errors, strict=True)))


def u_lira(
    key: Key[Array, ""] | int,
    erased: ArrayLike | Sequence[Any],
    refit: ArrayLike | Sequence[Any],
    *,
    false_positives: float = 0.01,
) -> ULira:
    """The attack between erased models and models that never saw the examples; margins `(models, examples)`."""
    sides = _margins(erased, refit)
    if not 0 < false_positives < 1:
        raise InvalidOptionError(f"false_positives is {false_positives!r}.", "use a share between 0 and 1: 0.01.")
    models = min(len(side) for side in sides)
    if false_positives < 0.01 and models < round(1 / false_positives):
        raise InvalidOptionError(
            f"false_positives is {false_positives:.2%} with {models} models.",
            f"so few accusations need {round(1 / false_positives):,} models or more: use them, or 0.01.",
        )
    keys = jax.random.split(as_key(key))
    counts = [_multiplicities(k, len(side)) for k, side in zip(keys, sides, strict=True)]
    share, boot = (np.asarray(each, np.float64) for each in _u_lira(*sides, *counts, false_positives))
    return ULira(Estimate(float(share), float(boot.std(ddof=1))), float(false_positives))


def _margins(erased: Any, refit: Any) -> list[Float[Array, "models examples"]]:
    one, other = (
        check_finite(f"margins of {name} models", each, "models examples")
        for name, each in (("erased", erased), ("refitted", refit))
    )
    if one.shape[1] != other.shape[1] or one.shape[1] == 0:
        raise DrawsShapeError(
            f"there are margins of {one.shape[1]} and of {other.shape[1]} examples.", "give those of the same ones."
        )
    if min(len(one), len(other)) < FEWEST_MODELS:
        raise DrawsShapeError(
            f"there are {len(one)} and {len(other)} models.", f"give {FEWEST_MODELS} independent ones of each."
        )
    return [jnp.asarray(one), jnp.asarray(other)]


def _multiplicities(key: Key[Array, ""], models: int) -> Int[Array, "repeats models"]:
    """How often each model is in each bootstrap sample."""
    picked = jax.random.randint(key, (REPEATS, models), 0, models)
    return jax.vmap(partial(jnp.bincount, length=models))(picked)


@partial(jax.jit, static_argnames="bins")
def _klom(
    erased: Float[Array, "m e"],
    refit: Float[Array, "n e"],
    erased_counts: Int[Array, "r m"],
    refit_counts: Int[Array, "r n"],
    bins: int,
) -> tuple[Float[Array, " e"], Float[Array, "r e"]]:
    low = jnp.minimum(erased.min(axis=0), refit.min(axis=0))
    width = jnp.maximum(erased.max(axis=0), refit.max(axis=0)) - low

    def in_bins(values: Float[Array, "k e"]) -> Float[Array, "k e bins"]:
        places = jnp.where(width > 0, (values - low) / jnp.where(width > 0, width, 1), 0) * bins
        return jax.nn.one_hot(jnp.clip(places.astype(int), 0, bins - 1), bins, dtype=values.dtype)

    def divergence(p: Float[Array, "e bins"], q: Float[Array, "e bins"]) -> Float[Array, " e"]:
        p, q = ((each + SMOOTHING) / (each.sum(axis=1, keepdims=True) + SMOOTHING * bins) for each in (p, q))
        return jnp.sum(p * jnp.log(p / q), axis=1)

    one, other = in_bins(erased), in_bins(refit)

    def resampled(counts: tuple[Int[Array, " m"], Int[Array, " n"]], *both: Array) -> Float[Array, " e"]:
        p, q = (jnp.tensordot(c.astype(x.dtype), x, axes=1) for c, x in zip(counts, both, strict=True))
        return divergence(p, q)

    return divergence(one.sum(axis=0), other.sum(axis=0)), map_draws(
        resampled, (erased_counts, refit_counts), shared=(one, other)
    )


@jax.jit
def _u_lira(
    erased: Float[Array, "m e"],
    refit: Float[Array, "n e"],
    erased_counts: Int[Array, "r m"],
    refit_counts: Int[Array, "r n"],
    false_positives: Float[Array, ""] | float,
) -> tuple[Float[Array, ""], Float[Array, " r"]]:
    """The share found out, and the same with models resampled; the attack itself is fitted once."""
    spread = jnp.concatenate([erased, refit]).std(axis=0)
    least = jnp.where(spread > 0, (1e-3 * spread) ** 2, 1.0)

    def log_ratio(values: Float[Array, "k e"], half: int) -> Float[Array, "k e"]:
        """log density in the erased world minus in the other, from Gaussians fitted to one half of the models."""
        (mean, variance), (other_mean, other_variance) = (
            (world[half::2].mean(axis=0), world[half::2].var(axis=0) + least) for world in (erased, refit)
        )
        distance, other_distance = (values - mean) ** 2 / variance, (values - other_mean) ** 2 / other_variance
        return 0.5 * (other_distance - distance + jnp.log(other_variance / variance))

    def ranked(values: Float[Array, "k e"]) -> tuple[Float[Array, " k*e"], Int[Array, " k*e"]]:
        """All scores, falling, and whose they are: every model scored by the fit to the half that it is not in."""
        is_even = (jnp.arange(len(values)) % 2 == 0)[:, None]
        scores = jnp.where(is_even, log_ratio(values, 1), log_ratio(values, 0)).ravel()
        order = jnp.argsort(-scores)
        return scores[order], order // values.shape[1]

    (accused, whose_accused), (innocent, whose_innocent) = ranked(erased), ranked(refit)
    # For every accused score, how many innocent ones are at least as high.
    rivals = jnp.searchsorted(-innocent, -accused, side="right")

    def found_out(counts: tuple[Int[Array, " m"], Int[Array, " n"]], *shared: Any) -> Float[Array, ""]:
        whose_accused, whose_innocent, rivals, false_positives = shared
        mine, others = (c.astype(erased.dtype) / c.sum() / erased.shape[1] for c in counts)
        above = jnp.concatenate([jnp.zeros(1, mine.dtype), jnp.cumsum(others[whose_innocent])])
        return jnp.sum(jnp.where(above[rivals] <= false_positives, mine[whose_accused], 0))

    shared = whose_accused, whose_innocent, rivals, false_positives
    share = found_out((jnp.ones(len(erased), int), jnp.ones(len(refit), int)), *shared)
    return share, map_draws(found_out, (erased_counts, refit_counts), shared=shared)
