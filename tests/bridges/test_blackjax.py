"""Draws by BlackJAX, and of any log density: axes, weights, and that the states are the model's."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.errors import DifferentModelError, DrawsShapeError, InvalidOptionError, OutsideSupportError
from tests.oracles import LinearRegression
from tests.statistical import assert_moments

KNOWN = LinearRegression.make()
EVERYONE, GONE = np.arange(60), np.array([3, 17, 42, 5])
DATA = {"X": KNOWN.X, "y": KNOWN.y}


def log_prior(position):
    return -0.5 * jnp.sum((position["beta"] / 2) ** 2)


def log_likelihood(position, data):
    return -0.5 * ((data["y"] - data["X"] @ position["beta"]) / 0.8) ** 2


def log_density(position):
    return log_prior(position) + log_likelihood(position, DATA).sum()


@pytest.fixture(scope="module")
def states():
    """NUTS, a scan of two chains side by side: (draw, chain, …)."""
    kernel = blackjax.nuts(log_density, step_size=0.08, inverse_mass_matrix=np.ones(3))
    at = {"beta": jnp.asarray(KNOWN.mean(EVERYONE) + np.array([[0.1], [-0.1]]), jnp.float32)}

    @jax.jit
    def run(key, begun):
        def step(state, key):
            moved, _ = jax.vmap(kernel.step)(jax.random.split(key, 2), state)
            return moved, moved

        return jax.lax.scan(step, begun, jax.random.split(key, 1500))[1]

    return run(jax.random.key(0), jax.vmap(kernel.init)(at))


def test_a_fit_by_blackjax_forgets_rows(states):
    model, draws = pe.from_blackjax(log_prior, log_likelihood, DATA, states)
    assert (draws.n_chains, draws.n_draws) == (2, 1500)
    np.testing.assert_array_equal(draws.params["beta"][1, 7], states.position["beta"][7, 1])
    result = pe.erase(model, draws, rows=GONE)
    kept = np.setdiff1d(EVERYONE, GONE)
    found = np.average(result.draws.matrix(), axis=0, weights=np.asarray(result.draws.weights).ravel())
    assert (np.abs(found - KNOWN.mean(kept)) < 5 * np.sqrt(KNOWN.variance(kept) / 400)).all()
    assert (np.abs(KNOWN.mean(EVERYONE) - KNOWN.mean(kept)) > np.abs(found - KNOWN.mean(kept))).any()


def test_states_of_another_density_are_refused(states):
    other = {**DATA, "y": np.roll(DATA["y"], 1)}
    with pytest.raises(DifferentModelError, match="more than a constant"):
        pe.from_blackjax(log_prior, log_likelihood, other, states)
    pe.from_blackjax(lambda p: log_prior(p) + 7.0, log_likelihood, DATA, states)  # a constant is none


def exact(*shape):
    return KNOWN.sample(EVERYONE, shape, seed=2)["beta"]


@pytest.mark.parametrize(("axes", "shape", "expected"), [("draw", (9,), (1, 9)), ("draw chain", (9, 2), (2, 9))])
def test_positions_alone_need_their_axes(axes, shape, expected):
    alone = {"beta": exact(*shape, 1)[..., 0, :] if len(shape) == 2 else exact(*shape, 1)[:, 0]}
    with pytest.raises(DrawsShapeError, match="axes="):
        pe.from_blackjax(log_prior, log_likelihood, DATA, alone)
    _, draws = pe.from_blackjax(log_prior, log_likelihood, DATA, alone, axes=axes)
    assert (draws.n_chains, draws.n_draws) == expected


def test_as_many_chains_as_draws_must_be_said(states):
    square = jax.tree.map(lambda leaf: leaf[:2], states)
    with pytest.raises(DrawsShapeError, match="which are the draws"):
        pe.from_blackjax(log_prior, log_likelihood, DATA, square)
    _, draws = pe.from_blackjax(log_prior, log_likelihood, DATA, square, axes="draw chain")
    np.testing.assert_array_equal(draws.params["beta"][1, 0], states.position["beta"][0, 1])


def test_axes_that_nobody_knows(states):
    with pytest.raises(InvalidOptionError, match="'chain draw'"):
        pe.from_blackjax(log_prior, log_likelihood, DATA, states, axes="draws")
    with pytest.raises(DrawsShapeError, match="no leading axis"):
        pe.from_blackjax(lambda p: -(p["mu"] ** 2), lambda p, d: d - p["mu"], np.ones(5), {"mu": 0.0}, axes="draw")


def test_particles_keep_their_weights(x64):
    """From the prior, weighted by the likelihood: the posterior, to be erased from."""
    beta = exact(4000, 1)[:, 0]
    logs = -0.01 * np.arange(4000)  # any weights will do, as long as they are kept
    weights = np.exp(logs) / np.exp(logs).sum()
    states = blackjax.smc.tempered.TemperedSMCState({"beta": jnp.asarray(beta)}, jnp.asarray(weights), 1.0)
    _, draws = pe.from_blackjax(log_prior, log_likelihood, DATA, states)
    np.testing.assert_allclose(np.asarray(draws.weights).ravel(), weights, rtol=1e-6)
    with pytest.raises(DrawsShapeError, match=r"temperature 0\.1"):
        pe.from_blackjax(log_prior, log_likelihood, DATA, states._replace(**{states._fields[2]: 0.1}))


def test_our_own_states_and_draws(x64):
    by_hand, _ = pe.from_blackjax(log_prior, log_likelihood, DATA, pe.Draws({"beta": exact(2, 50)}))
    sampler = pe.SGLD(pe.PolynomialSteps(1e-4))
    state = pe.start_chains(0, by_hand, sampler, {"beta": exact(3, 1)[:, 0]})
    _, draws = pe.from_blackjax(log_prior, log_likelihood, DATA, state)
    assert draws.params["beta"].shape == (3, 1, 3)
    _, draws = pe.from_blackjax(log_prior, log_likelihood, DATA, pe.sample(by_hand, sampler, state, 4))
    assert draws.params["beta"].shape == (3, 4, 3)


def test_positions_on_a_constrained_scale():
    y = np.random.default_rng(0).normal(size=30)
    parts = (lambda p: -p["sigma"], lambda p, d: -0.5 * (d / p["sigma"]) ** 2 - jnp.log(p["sigma"]), y)
    model, _ = pe.from_blackjax(
        *parts, {"sigma": np.full((1, 5), 0.9)}, axes="chain draw", transforms={"sigma": pe.positive}
    )
    assert model.transforms == {"sigma": pe.positive}
    with pytest.raises(OutsideSupportError):
        pe.from_blackjax(*parts, {"sigma": np.full((1, 5), -0.9)}, axes="chain draw", transforms={"sigma": pe.positive})


def test_exact_draws_come_out_exact(x64):
    model, draws = pe.from_blackjax(log_prior, log_likelihood, DATA, {"beta": exact(4, 2000)}, axes="chain draw")
    erased = pe.Reweight()(0, model, draws, model.change(remove=GONE)).draws
    kept = np.setdiff1d(EVERYONE, GONE)
    assert_moments(erased.matrix(), KNOWN.mean(kept), KNOWN.variance(kept), np.asarray(erased.weights).ravel())
