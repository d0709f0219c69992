"""Drift: draws of the target hardly ever drift, draws that are off do, and what could be missed is not understated."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import posterase as pe
from posterase.model.densities import LogDensity
from posterase.numerics import refresh
from posterase.numerics.densities import unconstrained
from posterase.numerics.drift import bounded, find_drift
from tests.statistical import FALSE_ALARM

N, PIECE, REPEATS = 2000, 10, 400


def chains(random, memory, n=N):
    """Draws of a skewed law, Gamma(2), in chains of a piece each, whose logs remember the draw before."""
    noise = random.normal(size=(n // PIECE, PIECE))
    for i in range(1, PIECE):
        noise[:, i] = memory * noise[:, i - 1] + np.sqrt(1 - memory**2) * noise[:, i]
    return noise.ravel()


def moved(random, z, rho):
    """A reversible kernel that leaves N(0, 1) invariant."""
    return rho * z + np.sqrt(1 - rho**2) * random.normal(size=z.shape)


def columns(z):
    """A skewed function, one with a point mass, and the value itself."""
    return np.stack([np.exp(z), np.maximum(z, 0.0), z], axis=1)


def detections(shift, rho, scale=1.0, memory=0.8, level=0.05, repeats=REPEATS):
    """How often draws that are off by so much are said to drift, and the median of what could have been missed."""
    groups = np.arange(N) // PIECE
    found = []
    for seed in range(repeats):
        random = np.random.default_rng(seed)
        z = shift + scale * chains(random, memory)
        found.append(find_drift(columns(z), columns(moved(random, z, rho)), groups, level))
    return sum(each.is_detected for each in found), float(np.median([each.missed for each in found]))


@pytest.mark.statistical
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8])
def test_draws_of_the_target_rarely_drift(rho):
    alarms, _ = detections(0.0, rho)
    assert alarms <= binom.isf(FALSE_ALARM, REPEATS, 0.05)


@pytest.mark.statistical
def test_chains_that_remember_need_their_groups():
    """The twin of the rate: autocorrelated draws taken for independent ones."""
    alarms = 0
    for seed in range(REPEATS):
        random = np.random.default_rng(seed)
        z = chains(random, 0.95)
        drift = find_drift(columns(z), columns(moved(random, z, 0.0)), np.arange(N), 0.05)
        alarms += drift.is_detected
    assert alarms > binom.isf(FALSE_ALARM, REPEATS, 0.05)


@pytest.mark.statistical
@pytest.mark.parametrize("rho", [0.3, 0.8])
@pytest.mark.parametrize("what", ["location", "spread"])
def test_what_could_be_missed_is_not_understated(what, rho):
    """Draws that are off by so much that the stated error is left after the moves are found nearly every time."""
    _, missed = detections(0.0, rho, level=0.01, repeats=40)
    off = 1.5 * missed / (rho if what == "location" else rho**2)
    if what == "location":
        found, _ = detections(off, rho, level=0.01, repeats=40)
    else:
        found, _ = detections(0.0, rho, scale=1 + off, level=0.01, repeats=40)
    assert found >= 36


def seen_in_parts(memory):
    """How often what is left of an error is seen, of 40: a part holds a quarter of the target, half that of the draws.

    Within the part everything is forgotten.
    """
    held, groups, seen = 0.25, np.arange(N) // PIECE, 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        before = random.uniform(size=N) < held / 2
        after = np.where(random.uniform(size=N) < memory, before, random.uniform(size=N) < held)
        values = [random.normal(size=(N, 1)) + 6.0 * part[:, None] for part in (before, after)]
        drift = find_drift(*values, groups, 0.01)
        left = (held - after.mean()) / np.sqrt(held * (1 - held))
        seen += drift.is_detected or 1.5 * drift.missed >= left
    return seen


@pytest.mark.statistical
@pytest.mark.parametrize("memory", [0.5, 0.8, 0.9])
def test_parts_that_moves_hardly_go_between_are_seen(memory):
    assert seen_in_parts(memory) >= 36


@pytest.mark.statistical
def test_parts_need_the_slowest_level(monkeypatch):
    """The twin: the median instead."""
    monkeypatch.setattr("posterase.numerics.drift._slowest_levels", lambda before, after: np.full(before.shape[1], 0.5))
    assert seen_in_parts(0.9) < 36


BANANA = pe.Model(
    lambda p: -0.5 * (p["x"] ** 2 + (p["y"] - p["x"] ** 2) ** 2 / 0.25) + 2.0 * p["z"] - jnp.exp(p["z"]),
    lambda p, data: 0.0 * data["y"] * p["x"],
    {"y": np.zeros(2)},
)


def banana(seed, n=1000):
    random = np.random.default_rng(seed)
    x = random.normal(size=(4, n))
    return {"x": x, "y": x**2 + 0.5 * random.normal(size=x.shape), "z": np.log(random.gamma(2.0, size=x.shape))}


def verified(params, seed):
    """Draws moved until they do not drift."""
    thetas, like = unconstrained(BANANA, pe.Draws(params))
    thetas = thetas.reshape(2, len(thetas) // 2, -1)
    every = np.tile(np.arange(thetas.shape[1]), (2, 1))
    groups = np.arange(thetas[..., 0].size).reshape(2, -1) // 10
    plan = refresh.Plan(every, (every.shape[1],), np.inf, np.inf)
    return refresh.refresh(
        np.random.default_rng(seed), LogDensity(BANANA), like, thetas, groups, lambda _: plan, None
    ).verification


@pytest.mark.statistical
def test_moves_verify_draws_of_a_bent_and_skewed_target():
    """Exact draws pass at the first look, but for false alarms, which are far fewer than one in twenty here."""
    first = [verified(banana(seed), seed) for seed in range(15)]
    assert all(each.is_passed for each in first)
    assert sum(each.drifts > 0 for each in first) <= binom.isf(FALSE_ALARM, 15, refresh.FALSE_ALARMS)


@pytest.mark.statistical
@pytest.mark.parametrize("what", ["a tail", "the bend", "the spread", "a shift"])
def test_moves_find_draws_that_are_off(what):
    params = banana(0)
    if what == "a tail":
        params["z"] = np.maximum(params["z"], np.quantile(params["z"], 0.05))
    elif what == "the bend":
        params["y"] = params["y"] - 0.3 * (params["x"] ** 2 - 1)
    elif what == "the spread":
        params["x"], params["y"] = 0.85 * params["x"], params["y"] - (1 - 0.85**2) * params["x"] ** 2
    else:
        params["z"] = params["z"] + 0.15
    assert verified(params, 0).drifts > 0


def test_infinite_values_are_ranked_beyond_finite_ones():
    before, after = bounded(np.array([[0.0], [-np.inf]]), np.array([[np.nan], [2.0]]))
    np.testing.assert_array_equal(before, [[0.0], [-3.0]])
    np.testing.assert_array_equal(after, [[-3.0], [2.0]])
