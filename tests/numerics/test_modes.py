"""Modes that no draw visited: they are found, draws spread over them, and images of known modes are left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm, t
from scipy import stats

import posterase as pe
from posterase.model.densities import LogDensity
from posterase.numerics import modes
from posterase.numerics.extra_chances import Frame, RaveledDensity
from posterase.numerics.kernels import Kernels
from posterase.runtime.precision import as_jax
from tests.statistical import FALSE_ALARM

CLUSTERS = np.concatenate([np.linspace(-1, 1, 16), np.linspace(6, 8, 12)]).astype(np.float32)
"""Two clusters of y. Without four of the larger, the smaller holds a quarter of the mass."""
REMOVED = list(range(4))
BETWEEN = 4.0


def location():
    return pe.Model(
        lambda p: norm.logpdf(p["m"], 0, 20),
        lambda p, data: t.logpdf(data["y"], 2, p["m"], 1),
        {"y": jnp.asarray(CLUSTERS)},
    )


def on_grid(y):
    m = np.linspace(-10, 25, 20_001)
    log_p = np.asarray(norm.logpdf(m, 0, 20) + t.logpdf(y[:, None], 2, m, 1).sum(axis=0), np.float64)
    mass = np.exp(log_p - log_p.max())
    return m, mass / mass.sum()


def draws_of(y, seed, shape=(4, 1000)):
    m, mass = on_grid(y)
    random = np.random.default_rng(seed)
    return pe.Draws({"m": random.choice(m, shape, p=mass) + random.uniform(-1, 1, shape) * (m[1] - m[0]) / 2})


def share_in_the_smaller(draws):
    return float((np.asarray(draws.params["m"]) > BETWEEN).mean())


def test_the_example_hides_a_mode():
    """No draw is near the smaller cluster before, and a quarter of the mass after."""
    m, mass = on_grid(CLUSTERS)
    assert mass[m > BETWEEN].sum() < 1e-5
    kept = np.delete(CLUSTERS, REMOVED)
    m, mass = on_grid(kept)
    assert 0.2 < mass[m > BETWEEN].sum() < 0.3


@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(3))
def test_draws_spread_over_a_mode_that_none_had_visited(seed):
    kept = np.delete(CLUSTERS, REMOVED)
    m, mass = on_grid(kept)
    result = pe.erase(location(), draws_of(CLUSTERS, seed), REMOVED, random_seed=seed)
    found, exact = share_in_the_smaller(result.draws), mass[m > BETWEEN].sum()
    assert abs(found - exact) < 5 * np.sqrt(exact * (1 - exact) / result.verdict.ess)


@pytest.mark.statistical
def test_without_hops_what_is_accepted_is_wrong(monkeypatch):
    """The twin."""
    monkeypatch.setattr(Kernels, "find_modes", lambda self, random, before, removed: None)
    m, mass = on_grid(np.delete(CLUSTERS, REMOVED))
    exact = mass[m > BETWEEN].sum()
    result = pe.erase(location(), draws_of(CLUSTERS, 0), REMOVED, random_seed=0, policy=pe.Policy(refit=False))
    if result.verdict.accepted:
        error = np.sqrt(exact * (1 - exact) / result.verdict.ess)
        assert abs(share_in_the_smaller(result.draws) - exact) > 5 * error


def found_in(log_density, z, d, seed=0):
    model = pe.Model(lambda p: log_density(p["x"]), lambda p, data: 0.0 * data["y"], {"y": np.zeros(2)})
    density = RaveledDensity(LogDensity(model), {"x": np.zeros(d, np.float32)})
    frame = Frame(as_jax(np.zeros(d), np.float32), as_jax(np.eye(d), np.float32))
    height = float(np.mean(jax.vmap(log_density)(jnp.asarray(z, jnp.float32))))
    return modes.find_modes(np.random.default_rng(seed), density, frame, z, height, before=z)


@pytest.mark.parametrize("d", [1, 5, 30])
def test_a_gaussian_has_no_other_mode(d):
    z = np.random.default_rng(0).normal(size=(2000, d))
    found = found_in(lambda x: -0.5 * (x**2).sum(), z, d)
    assert not found.unvisited
    assert not found.mirrored


@pytest.mark.parametrize(("d", "distance", "width"), [(1, 8.0, 0.3), (1, 60.0, 3.0), (5, 8.0, 0.8), (5, 60.0, 3.0)])
def test_a_second_gaussian_is_found_with_its_mass(d, distance, width):
    def log_density(x):
        away = jnp.zeros(d).at[0].set(distance)
        near = -0.5 * (x**2).sum()
        far = -0.5 * ((x - away) ** 2).sum() / width**2 - d * jnp.log(width)
        return jnp.logaddexp(near, far)

    z = np.random.default_rng(0).normal(size=(2000, d))
    found = found_in(log_density, z, d)
    assert found.unvisited == 1
    mode = max(found.modes, key=lambda mode: mode.centre[0])
    assert mode.centre[0] == pytest.approx(distance, abs=0.05 * width)
    assert mode.log_mass == pytest.approx(d / 2 * np.log(2 * np.pi), abs=0.05)


def test_images_of_a_known_mode_are_left_alone():
    def log_density(x):
        return jnp.logaddexp(-0.5 * ((x - 9) ** 2).sum(), -0.5 * ((x + 9) ** 2).sum())

    z = np.random.default_rng(0).normal(size=(2000, 2)) + 9
    found = found_in(log_density, z, 2)
    assert not found.unvisited
    assert found.mirrored


def test_a_funnel_has_no_mode_to_hop_to():
    """Its density grows without end towards the neck, where it has no mass."""
    random = np.random.default_rng(0)
    v = random.normal(size=2000)
    z = np.stack([v, random.normal(size=2000) * np.exp(v / 2)], axis=1)
    found = found_in(lambda x: norm.logpdf(x[0]) + norm.logpdf(x[1], 0, jnp.exp(x[0] / 2)), z, 2)
    assert not found.unvisited


@pytest.mark.statistical
def test_hops_leave_the_target_invariant():
    """From exact draws of two Gaussians of unequal width and mass, where both are hopped between."""
    share, width, distance = 0.3, 0.4, 12.0

    def log_density(x):
        far = jnp.log(share) - 0.5 * ((x[0] - distance) / width) ** 2 - jnp.log(width)
        return jnp.logaddexp(jnp.log1p(-share) - 0.5 * x[0] ** 2, far)

    model = pe.Model(lambda p: log_density(p["x"]), lambda p, data: 0.0 * data["y"], {"y": np.zeros(2)})
    random, n = np.random.default_rng(1), 4000
    far = random.uniform(size=(2, n)) < share
    x = np.where(far, distance + width * random.normal(size=(2, n)), random.normal(size=(2, n)))[..., None]
    kernels = Kernels(
        LogDensity(model), {"x": np.zeros(1, np.float32)}, np.random.default_rng(2).normal(size=(2, n, 1))
    )
    far_mode = np.full((2, 1), distance), np.full((2, 1, 1), width)
    kernels.modes = [(kernels.centres, kernels.scales), far_mode]
    active = np.ones((2, n), bool)
    state = kernels.start(kernels.whiten(x), active)
    hopped = np.zeros((2, n), bool)
    for _ in range(5):
        state, accepted = kernels.hop(random, state, active)
        hopped |= accepted
    now = kernels.unwhiten(np.asarray(state.z, np.float64))[..., 0]
    assert hopped.mean() > 0.5
    near = now[now < distance / 2]
    assert stats.binomtest(int((now > distance / 2).sum()), now.size, share).pvalue > FALSE_ALARM
    assert stats.kstest(near, "norm").pvalue > FALSE_ALARM
    assert stats.kstest((now[now > distance / 2] - distance) / width, "norm").pvalue > FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(2))
def test_a_mode_that_the_removed_rows_told_apart_is_no_image(seed):
    """y ~ N(m², 1), and two rows of N(m, 1) that are removed: they held m above zero."""
    random = np.random.default_rng(seed)
    y = np.concatenate([random.normal(4, 1, 30), random.normal(2, 0.5, 2)]).astype(np.float32)
    is_signed = np.arange(32) >= 30
    model = pe.Model(
        lambda p: norm.logpdf(p["m"], 0, 3),
        lambda p, data: norm.logpdf(data["y"], jnp.where(data["signed"], p["m"], p["m"] ** 2), 1),
        {"y": y, "signed": is_signed},
    )
    m = np.linspace(-6, 6, 20_001)
    log_p = norm.logpdf(m, 0, 3) + sum(
        norm.logpdf(each, m if signed else m**2, 1) for each, signed in zip(y, is_signed, strict=True)
    )
    mass = np.exp(np.asarray(log_p, np.float64) - np.max(log_p))
    drawn = random.choice(m, (4, 1000), p=mass / mass.sum()) + random.uniform(-3e-4, 3e-4, (4, 1000))
    assert (drawn > 0).all()
    result = pe.erase(model, pe.Draws({"m": drawn}), [30, 31], random_seed=seed)
    below = float((np.asarray(result.draws.params["m"]) < 0).mean())
    assert abs(below - 0.5) < 5 * 0.5 / np.sqrt(result.verdict.ess)
    assert not any("images" in note.text for note in result.verdict.notes)


def test_images_are_told_by_what_their_centres_are_known_to():
    """Centres are found to a tenth of a standard deviation, over which many removed rows may change a lot."""
    one = modes.Mode(np.array([3.01]), np.array([[0.1]]), 0.0)
    other = modes.Mode(np.array([-2.99]), np.array([[0.1]]), 0.0)
    assert modes._is_image(one, other, lambda z: 50 * np.abs(z[:, 0]))
    assert not modes._is_image(one, other, lambda z: 5 * z[:, 0]), "the removed rows told them apart"
    assert not modes._is_image(one, other._replace(height=-1.0), lambda z: 0 * z[:, 0])
