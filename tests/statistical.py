"""Assertions about random numbers, each with a stated false-alarm rate.

`FALSE_ALARM` is the chance that a correct algorithm fails one assertion, however many numbers it compares. Keys are
fixed, so a test that passes goes on passing; the rate says how likely the key was to be an unlucky one.

Every test of a random algorithm that uses these has a broken twin in `BROKEN`, which must be rejected, with a power of
at least `POWER`: a test that cannot fail shows nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from scipy.stats import norm

FALSE_ALARM = 1e-5
POWER = 0.99


class Rejected(AssertionError):
    """A z-score beyond its limit."""

    def __init__(self, worst: float, limit: float, text: str = ""):
        super().__init__(f"|z| = {worst:.2f} exceeds {limit:.2f} {text}")
        self.worst, self.limit = worst, limit


BROKEN = {"sign flipped": -1.0, "nothing deleted": 0.0, "deleted twice": 2.0}
"""What multiplies the likelihood of the removed rows in each broken twin; 1 is right."""


def assert_moments(
    draws: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    weights: np.ndarray | None = None,
    false_alarm: float = FALSE_ALARM,
    efficiency: float = 1.0,
) -> None:
    """Independent (weighted) draws, shaped `(n, …)`, have this mean and this variance in every element.

    A z-test for each mean and each variance, Bonferroni corrected. The standard errors are those of a weighted mean,
    from the draws themselves; `efficiency` is the share of them that counts, where draws are not independent.
    """
    n = len(draws)
    weights = np.full(n, 1 / n) if weights is None else np.asarray(weights, float) / np.sum(weights)
    centred = draws.astype(float) - mean
    scores = [_z(weights, centred), _z(weights, centred**2 - variance)]
    worst = max(float(np.max(np.abs(score))) for score in scores) * np.sqrt(min(efficiency, 1.0))
    limit = norm.isf(false_alarm / 2 / sum(np.size(score) for score in scores))
    if not worst < limit:
        raise Rejected(worst, limit, f"(means {scores[0]}, variances {scores[1]})")


def assert_near(value: float, error: float, exact: float, false_alarm: float = FALSE_ALARM) -> None:
    """An estimate with a standard error is within its error, and rounding, of the exact value."""
    worst, limit = abs(value - exact) / (error + 1e-9 * (1 + abs(exact))), norm.isf(false_alarm / 2)
    if not worst < limit:
        raise Rejected(worst, limit, f"({value} ± {error}, exactly {exact})")


def _z(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """How many standard errors the weighted mean of `values` is from 0."""
    column = weights.reshape(-1, *[1] * (values.ndim - 1))
    return (column * values).sum(axis=0) / np.sqrt((column**2 * values**2).sum(axis=0))


@contextmanager
def rejected() -> Iterator[None]:
    """The broken twin inside must fail its assertion, and would with another key with a probability of `POWER`.

    Its z-score is normal around what it is, so it must lie beyond the limit by the quantile of `POWER`.
    """
    with pytest.raises(Rejected) as caught:
        yield
    assert caught.value.worst > caught.value.limit + norm.isf(1 - POWER), "rejected, but not with enough power"
