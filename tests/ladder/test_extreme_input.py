"""Densities and draws at the edge of what can be: each request ends in a verdict or in a named error."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase import errors

ROWS = 40
RNG = np.random.default_rng(0)
Y = RNG.normal(size=ROWS)
MEAN, SD = Y.sum() / (ROWS + 1 / 9), (ROWS + 1 / 9) ** -0.5
EXACT = MEAN + SD * RNG.normal(size=(4, 250))
DATA = {"y": Y, "row": np.arange(ROWS)}


def log_prior(p):
    return -0.5 * p["m"] ** 2 / 9


def log_likelihood(p, data):
    return -0.5 * (data["y"] - p["m"]) ** 2


def prior_is(value, where):
    """The model, with another value of its log prior somewhere."""
    return pe.Model(lambda p: jnp.where(where(p["m"]), value, log_prior(p)), log_likelihood, DATA)


def likelihood_is(value, row):
    """The model, with another log-likelihood of one row in the lower half of the posterior."""

    def changed(p, data):
        return jnp.where((data["row"] == row) & (p["m"] < MEAN), value, log_likelihood(p, data))

    return pe.Model(log_prior, changed, DATA)


def gradient_is_nan_at_an_edge():
    """√(m − edge) has an infinite slope at the edge, and nothing below it; times zero, NaN."""
    return pe.Model(lambda p: log_prior(p) + 0 * jnp.sqrt(jnp.maximum(p["m"] - (MEAN - SD), 0.0)), log_likelihood, DATA)


class Case(NamedTuple):
    model: pe.Model
    values: dict[str, Any]
    expected: type[Exception] | None
    """The error; None where there is a verdict."""
    words: str = ""
    rows: Any = (3,)


MODEL = pe.Model(log_prior, log_likelihood, DATA)
TAIL = {"below": lambda m: m < MEAN - SD, "far": lambda m: m < MEAN - 2.7 * SD, "everywhere": lambda m: m == m}
CASES = {
    "no density at some draws": Case(prior_is(-jnp.inf, TAIL["below"]), {"m": EXACT}, errors.DataChangedError, "zero"),
    "infinite at some draws": Case(prior_is(jnp.inf, TAIL["below"]), {"m": EXACT}, errors.DataChangedError, "infinite"),
    "NaN at some draws": Case(prior_is(jnp.nan, TAIL["below"]), {"m": EXACT}, errors.DataChangedError, "not a number"),
    "no density at a few draws": Case(prior_is(-jnp.inf, TAIL["far"]), {"m": EXACT}, None),
    "no density anywhere": Case(
        prior_is(-jnp.inf, TAIL["everywhere"]), {"m": EXACT}, errors.OutsideSupportError, "infinite"
    ),
    "a removed row that is impossible": Case(likelihood_is(-jnp.inf, 3), {"m": EXACT}, errors.DataChangedError, "zero"),
    "a kept row that is impossible": Case(likelihood_is(-jnp.inf, 5), {"m": EXACT}, errors.DataChangedError, "zero"),
    "a row of infinite density": Case(likelihood_is(jnp.inf, 3), {"m": EXACT}, errors.DataChangedError, "infinite"),
    "draws far from all mass": Case(MODEL, {"m": EXACT + 1e6}, None),
    "draws outside of the support": Case(
        prior_is(-jnp.inf, lambda m: m < 50), {"m": EXACT}, errors.OutsideSupportError, "pass the model and the data"
    ),
    "a gradient that is NaN beyond an edge": Case(gradient_is_nan_at_an_edge(), {"m": EXACT}, None),
    "a kink with an infinite slope, at a draw": Case(
        pe.Model(lambda p: -jnp.sqrt(jnp.abs(p["m"])), lambda p, data: 0 * data["y"] * p["m"], DATA),
        {"m": np.append(0.0, RNG.choice([-1, 1], 999) * RNG.gamma(2, 1, 999) ** 2).reshape(4, 250)},
        None,
    ),
    "all parameters constant": Case(MODEL, {"m": np.full((4, 250), MEAN)}, errors.DifferentModelError, "all draws"),
    "one parameter constant": Case(
        pe.Model(lambda p: log_prior(p) - 0.5 * p["c"] ** 2, log_likelihood, DATA),
        {"m": EXACT, "c": np.ones((4, 250))},
        errors.DataChangedError,
        "c never changes",
    ),
    "two values": Case(MODEL, {"m": MEAN + SD * RNG.choice([-1, 1], (4, 250))}, None),
    "a chain that never moved": Case(MODEL, {"m": np.stack([EXACT[0], np.full(250, MEAN)])}, None),
    "one chain": Case(MODEL, {"m": EXACT.reshape(1, 1000)}, None),
    "a thousand chains of one draw": Case(MODEL, {"m": EXACT.reshape(1000, 1)}, None),
    "two draws": Case(MODEL, {"m": EXACT[:1, :2]}, errors.DrawsShapeError, "2 draws"),
    "two chains of two draws": Case(MODEL, {"m": EXACT[:2, :2]}, errors.DrawsShapeError, "4 draws"),
    "ten chains of two draws": Case(MODEL, {"m": EXACT.ravel()[:20].reshape(10, 2)}, None),
    "all rows but one": Case(MODEL, {"m": EXACT}, None, rows=range(ROWS - 1)),
    "huge numbers": Case(
        pe.Model(lambda p: 0.0 * p["m"], lambda p, data: -0.5 * (data["y"] - p["m"] / 1e30) ** 2, DATA),
        {"m": 1e30 * EXACT},
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_request_ends_in_a_verdict_or_a_named_error(name):
    case = CASES[name]
    draws = pe.Draws(case.values)
    if case.expected is not None:
        with pytest.raises(case.expected, match=case.words) as caught:
            pe.erase(case.model, draws, case.rows, random_seed=0)
        assert isinstance(caught.value, errors.PosteraseError)
        return
    result = pe.erase(case.model, draws, case.rows, random_seed=0)
    assert str(result)
    assert result.public_text()
    if result.verdict.accepted:
        assert np.isfinite(result.draws.matrix()).all()
    else:
        assert result.verdict.advice
