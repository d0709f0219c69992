"""Local mixtures: they follow draws, and moves by proposals from them leave a target as it is."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import posterase as pe
from posterase.model.densities import LogDensity
from posterase.numerics.densities import unconstrained
from posterase.numerics.kernels import Kernels
from posterase.numerics.local_mixtures import MOST_DIMENSIONS, fit_local_mixture
from tests.statistical import FALSE_ALARM, assert_moments, rejected


def arm_model():
    def log_prior(p):
        return -0.5 * (p["log_y"] / 1.5) ** 2 - 0.5 * (p["x"] * jnp.exp(p["log_y"])) ** 2 + p["log_y"]

    return pe.Model(log_prior, lambda p, data: 0.0 * data * p["x"], np.zeros(3))


def arm_draws(seed, n=2000):
    random = np.random.default_rng(seed)
    log_y = 1.5 * random.normal(size=(2, n))
    return {"log_y": log_y, "x": random.normal(size=(2, n)) / np.exp(log_y)}


def kernels_of(params, known):
    model = arm_model()
    thetas, like = unconstrained(model, pe.Draws(params))
    kernels = Kernels(LogDensity(model), like, thetas.reshape(2, -1, 2))
    more, _ = unconstrained(model, pe.Draws(known))
    kernels.fit_mixtures(np.random.default_rng(0), kernels.thetas, tuple(more.reshape(2, -1, 2)))
    return kernels


def renewed(kernels, times):
    active = np.ones(kernels.thetas.shape[:2], bool)
    state, random = kernels.start(kernels.whiten(kernels.thetas), active), np.random.default_rng(1)
    moved = np.zeros_like(active)
    for _ in range(times):
        state, accepted = kernels.renew(random, state, active)
        moved |= accepted
    return kernels.unwhiten(np.asarray(state.z, np.float64)), moved


def test_a_mixture_is_a_density_and_draws_from_it():
    random = np.random.default_rng(0)
    x = np.stack([random.normal(size=4000), 0.1 * random.normal(size=4000)], axis=1)
    mixture = fit_local_mixture(random, x)
    drawn = mixture.draw(random, 20_000)
    lows, highs = drawn.min(axis=0) - 1, drawn.max(axis=0) + 1
    points = random.uniform(lows, highs, (50_000, 2))
    constant = np.log(len(mixture.centres)) + np.log(2 * np.pi)
    density = np.exp(mixture.log_density(points) - constant)
    volume = np.prod(highs - lows)
    assert density.mean() * volume == pytest.approx(1, abs=5 * density.std() * volume / np.sqrt(len(points)))
    for number in range(2):  # a mean under the density is that of its draws
        mean, error = (density * points[:, number]).mean() * volume, drawn[:, number].std() / 100
        assert mean == pytest.approx(drawn[:, number].mean(), abs=5 * error)


def test_components_are_narrow_in_an_arm():
    params = arm_draws(0)
    x = np.stack([params["log_y"].ravel(), params["x"].ravel()], axis=1)
    mixture = fit_local_mixture(np.random.default_rng(0), x)
    widths = mixture.roots[:, 1, 1]
    assert np.median(widths[mixture.centres[:, 0] > 2]) < 0.2 * np.median(widths[mixture.centres[:, 0] < -1])


def test_copies_and_few_draws():
    random = np.random.default_rng(0)
    few = random.normal(size=(30, 2))
    assert fit_local_mixture(random, np.repeat(few, 100, axis=0)) is None, "30 different ones"
    many = fit_local_mixture(random, np.concatenate([np.repeat(few, 50, axis=0), random.normal(size=(500, 2))]))
    assert (np.linalg.det(many.roots) > 1e-3).all(), "copies count once"


@pytest.mark.statistical
def test_proposals_leave_the_target_as_it_is_and_reach_the_arm():
    """Moved many times, in coordinates in which the target is a unit Gaussian; and from draws that miss the arm."""

    def standard(thetas):
        log_y, x = thetas.reshape(-1, 2).T
        return np.stack([log_y / 1.5, x * np.exp(log_y)], axis=1)

    thetas, moved = renewed(kernels_of(arm_draws(1), arm_draws(2)), 10)
    assert moved.mean() > 0.9
    assert_moments(standard(thetas), np.zeros(2), np.ones(2))
    order = np.argsort(arm_draws(1)["log_y"], axis=1)[:, :1800]  # without the end of the arm
    cut = {name: np.take_along_axis(x, order, 1) for name, x in arm_draws(1).items()}
    thetas, _ = renewed(kernels_of(cut, arm_draws(2)), 60)
    _, p = stats.kstest(standard(thetas)[:, 0], "norm")
    assert p > FALSE_ALARM
    thetas, _ = renewed(kernels_of(cut, cut), 60)  # the twin: nobody knows of the end
    _, p = stats.kstest(standard(thetas)[:, 0], "norm")
    assert p < FALSE_ALARM
    with rejected():
        assert_moments(standard(thetas), np.zeros(2), np.ones(2))


def test_no_mixture_in_many_dimensions():
    d = MOST_DIMENSIONS + 1
    model = pe.Model(lambda p: -0.5 * (p**2).sum(), lambda p, data: 0.0 * data * p[0], np.zeros(3))
    draws = pe.Draws(np.random.default_rng(0).normal(size=(2, 500, d)))
    thetas, like = unconstrained(model, draws)
    kernels = Kernels(LogDensity(model), like, thetas.reshape(2, 500, d))
    kernels.fit_mixtures(np.random.default_rng(0), kernels.thetas, None)
    assert kernels.mixtures is None


def test_a_proposal_of_where_a_draw_is_does_not_move_it():
    """Jumps by the difference of two copies."""
    params = {name: np.repeat(x[:, :4], 500, axis=1) for name, x in arm_draws(3).items()}
    kernels = kernels_of(params, arm_draws(2))
    active = np.ones(kernels.thetas.shape[:2], bool)
    state = kernels.start(kernels.whiten(kernels.thetas), active)
    after, moved = kernels.jump(np.random.default_rng(0), state, active, far=1.0)
    assert moved.any()
    np.testing.assert_array_equal(moved, (np.asarray(after.z) != np.asarray(state.z)).any(axis=2))


def test_units_of_parameters_do_not_matter():
    """A thin parabola beside a parameter in other units."""
    random = np.random.default_rng(0)
    x = random.normal(size=4000)
    shares = []
    for unit in (1.0, 1e4):
        points = np.stack([x, x**2 + 0.05 * random.normal(size=4000), unit * random.normal(size=4000)], axis=1)
        mixture = fit_local_mixture(random, points)
        drawn = mixture.draw(random, 4000)
        shares.append((np.abs(drawn[:, 1] - drawn[:, 0] ** 2) < 0.5).mean())
    assert shares[0] > 0.6
    assert shares[1] == pytest.approx(shares[0], abs=0.05)
