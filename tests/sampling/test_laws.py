"""pSGLD, SGNHT and cSGLD against closed forms of their discretised chains; SGLD and SGHMC are in `test_sampling.py`.

Every statistical assertion has a false-alarm rate of 1e-5, and a broken twin that it must reject.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

import posterase as pe
from posterase.errors import DiscretisedChainWarning
from posterase.sampling.sampler import Step
from tests.statistical import assert_moments, assert_near, rejected

CHAINS = 2000


def constant(step_size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscretisedChainWarning)
        return pe.ConstantSteps(step_size)


def gaussian(y, variances):
    """Rows y ~ N(θ, diag(variances)) and a flat prior: the posterior is N(ȳ, variances / N)."""
    return pe.Model(lambda p: 0.0 * jnp.sum(p), lambda p, row: -0.5 * jnp.sum((row - p) ** 2 / variances, axis=-1), y)


def isotropic(rows, d, variance):
    """Rows with mean 1 and exactly this covariance times I."""
    y = np.random.default_rng(0).normal(size=(rows, d))
    y -= y.mean(axis=0)
    return 1 + np.sqrt(variance) * y @ np.linalg.inv(np.linalg.cholesky(y.T @ y / rows)).T


def ends(model, sampler, start, steps):
    """The last states of independent chains."""
    state = pe.start_chains(0, model, sampler, np.broadcast_to(start, (CHAINS, *np.shape(start))))
    sampled = pe.sample(model, sampler, state, 1, thin=steps)
    return np.asarray(sampled.draws.params)[:, 0], sampled.state.extra


# --- pSGLD


def test_one_step_of_psgld_is_the_papers(x64):
    """Two steps by hand: V without its bias, half of the paper's ε, and the gradient per row."""
    sampler, rng = pe.PSGLD(constant(1e-3), decay=0.9, damping=0.01), np.random.default_rng(0)
    theta, moment = rng.normal(size=3), np.zeros(3)
    ours, extra = jnp.asarray(theta), sampler.start_extra(jax.random.key(0), jnp.asarray(theta), jnp.array(1e-3))
    for t in (1, 2):
        gradient, noise = 50 * rng.normal(size=3), rng.normal(size=3)
        moment = 0.9 * moment + 0.1 * (gradient / 20) ** 2
        scale = 1 / (0.01 + np.sqrt(moment / (1 - 0.9**t)))
        theta = theta + 2e-3 / 2 * scale * gradient + np.sqrt(2e-3 * scale) * noise
        step = Step(jnp.array(t), jnp.array(1e-3), jnp.array(20), jnp.asarray(noise))
        ours, extra = sampler.update(ours, extra, jnp.asarray(gradient), step)
        np.testing.assert_allclose(ours, theta, rtol=1e-12)
    np.testing.assert_allclose(extra.second_moment, moment, rtol=1e-12)


class NoiseOfSGLD(pe.PSGLD):
    """The broken twin: the drift is preconditioned and the noise is not."""

    def update(self, theta, extra, ascent, step):
        moved, after = super().update(theta, extra, ascent, step._replace(noise=0 * theta))
        return moved + jnp.sqrt(2 * step.size) * step.noise, after


@pytest.mark.statistical
def test_psgld_samples_a_badly_scaled_gaussian():
    """With α near 1 the preconditioner stands still, and each parameter is a linear chain of a known variance.

    G = 1 / (λ + √E(g/N)²) with E g² = p² · variance, and the variance of x ← x − η G p x + √(2ηG) W is
    1 / (p (1 − η G p / 2)): a fixed point. Standard deviations differ by a factor of 30, and steps of SGLD that the
    narrow parameter bears leave the wide one where it was.
    """
    rows, variances = 4, np.array([10.0, 0.01])
    model = gaussian(isotropic(rows, 2, 1.0), variances)
    precision, size, damping = rows / variances, 0.01, 1e-5
    variance = 1 / precision
    for _ in range(100):
        scale = 1 / (damping + precision * np.sqrt(variance) / rows)
        variance = 1 / (precision * (1 - size * scale * precision / 2))
    start, steps = 1 + np.sqrt(variance), 1500  # not at the mode, where the first gradient would be zero
    thetas, _ = ends(model, pe.PSGLD(constant(size), decay=0.9995, damping=damping), start, steps)
    assert_moments(thetas, np.ones(2), variance)
    for twin in (NoiseOfSGLD(constant(size), decay=0.9995), pe.SGLD(constant(0.5 / precision[1]))):
        with rejected():
            assert_moments(ends(model, twin, start, steps)[0], np.ones(2), variance)


@pytest.mark.statistical
def test_the_bias_of_psgld_falls_as_the_moments_are_averaged_longer():
    """What leaving Γ out costs a Gaussian's variance, as the docstring says: nothing to speak of at α = 0.999."""
    model, size = gaussian(isotropic(4, 2, 1.0), np.ones(2)), 0.0125  # η G p is 0.1
    discretised = np.full(2, 0.25 / (1 - 0.1 / 2))
    short, long = (
        ends(model, pe.PSGLD(constant(size), decay=decay), np.full(2, 1.5), 600)[0] for decay in (0.8, 0.9995)
    )
    assert_moments(long, np.ones(2), discretised)
    with rejected():
        assert_moments(short, np.ones(2), discretised)
    assert short.var() > 1.3 * long.var()


# --- SGNHT


def test_one_step_of_sgnht_is_the_papers(x64):
    """Algorithm 2 with p, h, A and ξ in the paper's units."""
    h, a = 0.05, 2.0
    rng = np.random.default_rng(0)
    theta, p, xi = rng.normal(size=3), rng.normal(size=3), 2.5
    gradient, noise = rng.normal(size=3), rng.normal(size=3)
    sampler = pe.SGNHT(constant(h**2), diffusion=a * h)
    extra = sampler.start_extra(jax.random.key(0), jnp.asarray(theta), jnp.array(h**2))
    assert extra.thermostat == a * h
    extra = extra._replace(velocity=jnp.asarray(h * p), thermostat=jnp.asarray(h * xi))
    step = Step(jnp.array(1), jnp.array(h**2), jnp.array(20), jnp.asarray(noise))
    ours, extra = sampler.update(jnp.asarray(theta), extra, jnp.asarray(gradient), step)
    p = p - xi * p * h + gradient * h + np.sqrt(2 * a * h) * noise
    theta = theta + p * h
    xi = xi + (p @ p / 3 - 1) * h
    np.testing.assert_allclose(ours, theta, rtol=1e-12)
    np.testing.assert_allclose(extra.velocity, h * p, rtol=1e-12)
    np.testing.assert_allclose(extra.thermostat, h * xi, rtol=1e-12)


class FixedFriction(pe.SGNHT):
    """The broken twin: the thermostat stands still."""

    def update(self, theta, extra, ascent, step):
        moved, after = super().update(theta, extra, ascent, step)
        return moved, after._replace(thermostat=extra.thermostat)


D, SIZE, DIFFUSION, SPREAD = 8, 0.01, 0.1, 20.0
"""Parameters, η, a, and the variance of the gradient of one row."""


def noisy():
    """A posterior N(1, I), and mini-batches of one row whose gradients have the variance SPREAD in every direction."""
    rows = 16
    return gaussian(isotropic(rows, D, SPREAD), np.full(D, float(rows)))


@pytest.mark.statistical
def test_sgnht_balances_gradient_noise_of_unknown_size():
    """The mini-batch's noise doubles that of the sampler, which does not know of it.

    In the stationary law E vᵀv/d = η exactly, since ξ has no drift. With a steady friction ξ the variance of θ is
    (1 − ξ/2) that of the posterior: from E θ² = E (θ − v)² and the product of v's equation with θ.
    """
    sampler = pe.SGNHT(constant(SIZE), diffusion=DIFFUSION, batch=1)
    thetas, extra = ends(noisy(), sampler, np.ones(D), 500)
    squares = np.mean(np.asarray(extra.velocity) ** 2, axis=1)
    assert_near(squares.mean(), squares.std() / np.sqrt(CHAINS), SIZE)
    friction = np.asarray(extra.thermostat).mean()
    assert friction == pytest.approx(DIFFUSION + SIZE * SPREAD / 2, rel=0.2)
    assert_moments(thetas, np.ones(D), np.full(D, 1 - friction / 2))

    twin = FixedFriction(constant(SIZE), diffusion=DIFFUSION, batch=1)
    thetas, extra = ends(noisy(), twin, np.ones(D), 500)
    with rejected():
        assert_moments(thetas, np.ones(D), np.full(D, 1 - friction / 2))


@pytest.mark.statistical
def test_sghmc_samples_gradient_noise_too():
    """At the same settings its exact stationary variance, by the linear chain it is, is more than twice too large."""
    transition = np.array([[1, 1], [-SIZE, 1 - DIFFUSION]])
    covariance = solve_discrete_lyapunov(transition, np.diag([0, 2 * DIFFUSION * SIZE + SIZE**2 * SPREAD]))
    assert covariance[0, 0] > 2
    thetas, _ = ends(noisy(), pe.SGHMC(constant(SIZE), friction=DIFFUSION, batch=1), np.ones(D), 500)
    assert_moments(thetas, np.ones(D), np.full(D, covariance[0, 0]))
    with rejected():
        assert_moments(thetas, np.ones(D), np.ones(D))


@pytest.mark.statistical
def test_sgnht_with_a_steady_thermostat_is_a_linear_chain():
    """The twin above has an exact law, which says that drift, noise and friction are right."""
    model = gaussian(isotropic(4, 2, 1.0), np.full(2, 4.0))
    size, a = 0.2, 0.4
    kept = 1 - a
    transition = np.array([[1 - size, kept], [-size, kept]])
    covariance = solve_discrete_lyapunov(transition, 2 * a * size * np.ones((2, 2)))
    np.testing.assert_allclose(covariance[0, 0] * size / covariance[1, 1], 1 - a / 2)  # as used above
    thetas, extra = ends(model, FixedFriction(constant(size), diffusion=a), np.ones(2), 200)
    assert_moments(thetas, np.ones(2), np.full(2, covariance[0, 0]))
    assert_moments(np.asarray(extra.velocity), np.zeros(2), np.full(2, covariance[1, 1]))
    with rejected():
        assert_moments(thetas, np.ones(2), np.full(2, 1.2 * covariance[0, 0]))


# --- cSGLD


def test_cyclical_steps_are_the_papers():
    """Equation 1 with K/M = 10."""
    schedule = pe.CyclicalSteps(0.4, 10)
    t = np.arange(1, 31)
    expected = 0.4 / 2 * (np.cos(np.pi * np.mod(t - 1, 10) / 10) + 1)
    np.testing.assert_allclose(jax.vmap(schedule)(jnp.asarray(t)), expected, rtol=1e-5)
    np.testing.assert_allclose(schedule.scaled(0.5)(jnp.array(11)), 0.2, rtol=1e-6)


def variance_at_the_end_of_a_cycle(step_size, cycle, exploration):
    """Of x ← (1 − η_t) x + √(2η_t) W, without W while exploring, after many cycles."""
    variance = 1.0
    for t in range(50 * cycle):
        position = t % cycle / cycle
        eta = step_size / 2 * (1 + np.cos(np.pi * position))
        variance = (1 - eta) ** 2 * variance + 2 * eta * (position >= exploration)
    return variance


@pytest.mark.statistical
def test_cyclical_sgld_has_the_variance_of_its_steps():
    """Cycles so short that the end still knows whether the beginning had noise."""
    model = gaussian(isotropic(4, 2, 1.0), np.full(2, 4.0))
    sampler = pe.CyclicalSGLD(pe.CyclicalSteps(0.3, 8), exploration=0.5)
    expected, without, whole = (variance_at_the_end_of_a_cycle(0.3, 8, share) for share in (0.5, 0.0, 0.625))
    thetas, _ = ends(model, sampler, np.ones(2), 400)
    assert_moments(thetas, np.ones(2), np.full(2, expected))
    for other in (without, whole):  # noise in every step, and in one step less
        with rejected():
            assert_moments(thetas, np.ones(2), np.full(2, other))


@pytest.mark.statistical
def test_cyclical_sgld_visits_both_modes():
    """Two modes eight standard deviations apart. By symmetry each is drawn half of the time, wherever chains began.

    Chains change modes in a sixth of the cycles, so thirty cycles leave a memory of (2/3)^30. The broken twins never
    leave: the same small steps all along, and cycles whose large steps are too small.
    """

    def two_modes(p):
        return jax.nn.logsumexp(-0.5 * ((p - jnp.array([-2.0, 2.0])) / 0.5) ** 2)

    model = pe.Model(two_modes, lambda p, row: 0.0 * row * p, np.zeros(3))

    def as_often(sides):
        assert_near(np.mean(sides), 1 / np.sqrt(CHAINS), 0.0)

    thetas, _ = ends(model, pe.CyclicalSGLD(pe.CyclicalSteps(0.5, 50)), 2.0, 1500)
    as_often(np.sign(thetas))
    assert np.std(np.abs(thetas)) == pytest.approx(0.5, rel=0.1)
    for small in (pe.SGLD(constant(0.01)), pe.CyclicalSGLD(pe.CyclicalSteps(0.05, 50))):
        with pytest.raises(AssertionError):
            as_often(np.sign(ends(model, small, 2.0, 500)[0]))
