"""ArviZ's bulk and tail effective sample sizes, for all parameters at once.

The same numbers as `arviz_stats` gives, which goes through parameters one by one, at about three milliseconds each: a
request on a few hundred parameters would spend longer on them than on everything else.

References
----------
Vehtari, Gelman, Simpson, Carpenter, Bürkner (2021), Rank-normalization, folding, and localization: an improved R̂,
Bayesian Analysis 16. Geyer (1992), Practical Markov chain Monte Carlo, Statistical Science 7.
"""

from __future__ import annotations

import math
import weakref

import jax
import numpy as np
from jaxtyping import Float
from scipy import fft

from posterase.draws.draws import Draws
from posterase.sampling.mixing import normal_scores

TAIL = 0.05
"""Tail ESS is that of the quantiles at this probability and at one minus it."""

AT_ONCE = 2_000_000
"""Numbers that are looked at at once, which bounds the memory needed."""

FEWEST_IN_HALF = 4
"""Halves of chains shorter than this have no autocorrelations to speak of."""


_known: dict[tuple[tuple[str, ...], tuple[int, ...]], dict[str, float]] = {}
"""Effective sizes of draws that are still in memory, by the names of parameters and the identities of their arrays."""


def effective_draws(draws: Draws) -> dict[str, float]:
    """The smaller of bulk and tail ESS, of the worst element of each parameter; infinite where none ever changes.

    Never more than there are distinct draws, which shuffled copies would otherwise hide. The sizes of draws that are
    still in memory are computed once.
    """
    leaves = jax.tree.leaves(draws.params)
    key = tuple(draws.names), tuple(map(id, leaves))
    if key not in _known:
        _known[key] = _compute(draws)
        for leaf in leaves:
            weakref.finalize(leaf, _known.pop, key, None)
    return dict(_known[key])


def _compute(draws: Draws) -> dict[str, float]:
    sizes = {name: float(_worst(values)) for name, values in draws.columns().items()}
    distinct = float(draws.n_distinct)
    if distinct == draws.n_chains * draws.n_draws:  # antithetic chains may have more
        return sizes
    return {name: size if math.isinf(size) else min(size, distinct) for name, size in sizes.items()}


def _worst(values: Float[np.ndarray, "chain draw element"]) -> float:
    changing = values[..., np.ptp(values, axis=(0, 1)) > 0]
    if not changing.shape[-1]:
        return math.inf
    if changing.shape[1] < 2 * FEWEST_IN_HALF:
        return float(changing.shape[0])
    count = max(1, math.ceil(changing.size / AT_ONCE))
    parts = np.array_split(np.ascontiguousarray(changing.transpose(2, 0, 1), np.float64), count)
    return min(float(_least(part).min()) for part in parts if len(part))


def _least(values: Float[np.ndarray, "element chain draw"]) -> Float[np.ndarray, " element"]:
    """The smallest of the effective sizes for the ranks and for the two indicators of a tail."""
    half = values.shape[-1] // 2
    halves = np.concatenate([values[..., :half], values[..., -half:]], axis=1)
    ranks = normal_scores(halves.reshape(len(halves), -1)).reshape(halves.shape)
    low, high = np.quantile(values.reshape(len(values), -1), [TAIL, 1 - TAIL], axis=1)[..., None, None]
    indicators = [(halves <= quantile).astype(np.float64) for quantile in (low, high)]
    return np.min([_geyer(each) for each in (ranks, *indicators)], axis=0)


def _geyer(x: Float[np.ndarray, "element chain draw"]) -> Float[np.ndarray, " element"]:
    """The effective size for the mean, by Geyer's initial monotone sequence; constants count fully."""
    _, m, n = x.shape
    centred = x - x.mean(axis=-1, keepdims=True)
    length = fft.next_fast_len(2 * n)
    spectrum = fft.rfft(centred, length, axis=-1)
    autocovariance = fft.irfft(spectrum * spectrum.conj(), length, axis=-1)[..., :n].mean(axis=1) / n
    within = autocovariance[:, 0] * n / (n - 1)
    variance = within * (n - 1) / n + (x.mean(axis=-1).var(axis=1, ddof=1) if m > 1 else 0.0)
    changes = variance > 0
    rho = 1 - (within[:, None] - autocovariance) / np.where(changes, variance, 1)[:, None]
    rho[:, 0] = 1
    pairs = rho[:, : n - n % 2].reshape(len(rho), -1, 2).sum(axis=-1)
    last = np.argmax(np.concatenate([pairs < 0, np.ones((len(rho), 1), bool)], axis=1), axis=1)
    last = np.minimum(last, max((n - 3) // 2, 1))  # ArviZ stops a few lags before the end
    inside = np.arange(pairs.shape[1]) < last[:, None]
    monotone = np.minimum.accumulate(np.where(inside, pairs, np.inf), axis=1)
    sums = np.where(inside, monotone, 0).sum(axis=1)
    after = rho[np.arange(len(rho)), np.minimum(2 * last, n - 1)]
    tau = np.maximum(-1 + 2 * sums + np.maximum(after, 0), 1 / math.log10(m * n))
    return np.where(changes, m * n / tau, float(m * n))
