"""The live form of the influence shift against its closed form, along a chain that hardly moves."""

import warnings

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import posterase as pe
from posterase import errors
from posterase.methods.live_influence_shift import LiveInfluenceShift
from posterase.sampling.sample import start_chains
from posterase.sampling.sampler import NoiseFreePhase, step_keys
from posterase.sampling.schedules import ConstantSteps, PolynomialSteps
from posterase.sampling.sghmc import SGHMC
from posterase.sampling.sgld import SGLD
from tests.oracles import LinearRegression

KNOWN = LinearRegression.make()
EVERYTHING = np.arange(60)
REQUESTS = np.array([[2, 5], [11, 40], [7, 8]])


def frozen(kind=SGLD, **options):
    """A sampler whose chain stays where it is, to 1e-9."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.DiscretisedChainWarning)
        return kind(ConstantSteps(1e-22), **options)


def begin(sampler, chains=2):
    model = KNOWN.model()
    initial = {"beta": np.broadcast_to(KNOWN.mean(EVERYTHING), (chains, 3))}
    return model, start_chains(0, model, sampler, initial)


def closed_form(order, scale):
    """The sum over requests of −c Σᵢ₌₀ʲ (I − cH)ⁱ v, H of the rows present when the request comes, c = scale/N′."""
    theta, rows, total = KNOWN.mean(EVERYTHING), EVERYTHING, np.zeros(3)
    for request in REQUESTS:
        v = KNOWN.X[request].T @ (KNOWN.y[request] - KNOWN.X[request] @ theta) / KNOWN.noise**2
        c = scale / (len(rows) - len(request))
        powers = [np.linalg.matrix_power(np.eye(3) - c * KNOWN.precision(rows), i) @ v for i in range(order + 1)]
        total, theta = total - c * sum(powers), theta - c * sum(powers)
        rows = np.setdiff1d(rows, request)
    return total


@pytest.mark.parametrize("samples", [1, 3])
def test_the_shift_is_the_papers_series(samples, x64):
    sampler = frozen()
    model, state = begin(sampler)
    erased = LiveInfluenceShift(order=12, scale=0.2, samples=samples)(model, sampler, state, REQUESTS)
    for chain in range(2):
        np.testing.assert_allclose(erased.shift["beta"][chain], closed_form(12, 0.2), rtol=1e-6)
        moved = erased.state.theta["beta"][chain] - state.theta["beta"][chain]
        np.testing.assert_allclose(moved, closed_form(12, 0.2), rtol=1e-5)
    # One sampler step before each of the 1 + 12 evaluations of each of three requests.
    np.testing.assert_array_equal(erased.state.step, 3 * samples * 13)
    np.testing.assert_array_equal(erased.model.row_ids, np.setdiff1d(EVERYTHING, REQUESTS))


def test_it_lands_near_the_kept_mean(x64):
    """With a series long enough, requests one after the other come nearer than the paper's one step."""
    sampler = frozen()
    model, state = begin(sampler, chains=1)
    rows = np.argsort(-KNOWN.y)[:24]  # a coherent group: random rows' gradients would cancel
    erased = LiveInfluenceShift(order=3000, scale=0.2)(model, sampler, state, rows.reshape(12, 2))
    kept = KNOWN.mean(np.setdiff1d(EVERYTHING, rows))
    draws = pe.Draws(KNOWN.antithetic(EVERYTHING, 20, seed=0))
    one = pe.InfluenceShift(hessian="full")(0, model, draws, model.change(remove=rows))
    at_once = KNOWN.mean(EVERYTHING) + one.details.shift["beta"]
    assert np.linalg.norm(erased.state.theta["beta"][0] - kept) < 0.5 * np.linalg.norm(at_once - kept)


@pytest.mark.slow
def test_pieces_and_reports_change_nothing(x64):
    sampler = SGLD(PolynomialSteps(1e-4), batch=16)
    model, state = begin(sampler)
    method = LiveInfluenceShift(order=5, scale=0.2, batch=16)
    heard = []
    whole = method(model, sampler, state, REQUESTS)
    parts = method(model, sampler, state, REQUESTS, report=lambda done, total: heard.append((done, total)))
    np.testing.assert_array_equal(whole.state.theta["beta"], parts.state.theta["beta"])
    assert heard == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
def test_step_sizes_follow_the_rows_where_asked():
    sampler = SGLD(PolynomialSteps(1e-4), batch=16)
    model, state = begin(sampler)
    rescaled = LiveInfluenceShift(order=2, scale=0.2, rescale_steps=True)(model, sampler, state, REQUESTS)
    np.testing.assert_allclose(rescaled.sampler.schedule.a, 1e-4 * 60 / 54, rtol=1e-5)
    assert not any("step sizes" in each for each in rescaled.still_there)
    fixed = LiveInfluenceShift(order=2, scale=0.2)(model, sampler, state, REQUESTS)
    np.testing.assert_allclose(fixed.sampler.schedule.a, 1e-4, rtol=1e-6)
    assert "step sizes chosen for 60 rows" in fixed.still_there
    assert any("gradients" in each for each in fixed.still_there)


def test_velocities_are_drawn_anew(x64):
    """What is left of the old velocity after a request does not depend on it."""
    sampler = frozen(SGHMC)
    model, state = begin(sampler)
    other = state._replace(extra=jax.tree.map(lambda leaf: leaf * 0.5, state.extra))
    method = LiveInfluenceShift(order=2, scale=0.2)
    one, two = (method(model, sampler, each, REQUESTS) for each in (state, other))
    np.testing.assert_array_equal(one.state.extra.velocity["beta"], two.state.extra.velocity["beta"])
    assert one.dropped == ("velocity",)
    # And it shares its random numbers with nothing: the noise of the last step is another.
    keys = jax.vmap(step_keys)(one.state.key, one.state.step)
    noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys.noise)
    velocity = one.state.extra.velocity["beta"] / jnp.sqrt(1e-22)
    assert not np.isclose(velocity, noise).any()


@pytest.mark.parametrize("along", ["full", "kept"])
def test_which_rows_the_chain_samples_during_a_request(along, x64):
    """Without noise to speak of and without the shift it climbs: towards the mode of all rows, or of the kept ones."""
    sampler = SGLD(PolynomialSteps(1e-30), noise_free=NoiseFreePhase(10_000, 5e-3))
    model, state = begin(sampler, chains=1)
    rows = np.argsort(-KNOWN.y)[:24]
    method = LiveInfluenceShift(order=3000, scale=0.2, along=along, shift=False)
    theta = np.asarray(method(model, sampler, state, [rows]).state.theta["beta"][0])
    expected = KNOWN.mean(EVERYTHING if along == "full" else np.setdiff1d(EVERYTHING, rows))
    np.testing.assert_allclose(theta, expected, atol=1e-8)


def test_the_sampler_steps_alone():
    """The ablation takes the very same number of steps and shifts nothing."""
    sampler = SGLD(PolynomialSteps(1e-3), batch=16)
    model, state = begin(sampler)
    alone = LiveInfluenceShift(order=4, scale=0.2, samples=2, shift=False)(model, sampler, state, REQUESTS)
    np.testing.assert_array_equal(alone.shift["beta"], 0)
    np.testing.assert_array_equal(alone.state.step, 3 * 2 * 5)


def test_stored_draws_move_with_their_chain(x64):
    sampler = frozen()
    model, state = begin(sampler)
    erased = LiveInfluenceShift(order=12, scale=0.2)(model, sampler, state, REQUESTS)
    draws = pe.Draws(KNOWN.sample(EVERYTHING, (2, 30), seed=0), dims={"beta": ["term"]})
    moved = erased.moved(draws)
    expected = draws.params["beta"] + erased.shift["beta"][:, None]
    np.testing.assert_allclose(moved.params["beta"], expected, atol=1e-12)
    assert moved.labels == draws.labels
    with pytest.raises(errors.DrawsShapeError, match="3 chains and the state 2"):
        erased.moved(pe.Draws(KNOWN.sample(EVERYTHING, (3, 30), seed=0)))


def test_a_series_that_diverges_is_refused():
    sampler = frozen()
    model, state = begin(sampler)
    with pytest.raises(errors.NonFiniteResultError, match="the series diverges: at request 0, chain 0"):
        LiveInfluenceShift(order=400, scale=50.0)(model, sampler, state, REQUESTS)
    with pytest.raises(errors.NonFiniteResultError, match="times its first"):
        LiveInfluenceShift(order=3, scale=1.0)(model, sampler, state, REQUESTS)


@pytest.mark.slow
def test_a_diverging_shift_can_be_left_out_and_is_counted(x64):
    """With a limit, requests whose series exceeds it are refused, chain by chain: what is left are the steps alone."""
    sampler = SGLD(PolynomialSteps(1e-4), batch=16)
    model, state = begin(sampler)
    wild = {"order": 40, "scale": 50.0, "batch": 16}
    refusing = LiveInfluenceShift(**wild, diverged_above=1e3)(model, sampler, state, REQUESTS)
    alone = LiveInfluenceShift(**wild, shift=False)(model, sampler, state, REQUESTS)
    np.testing.assert_array_equal(refusing.refused, [3, 3])
    np.testing.assert_array_equal(refusing.state.theta["beta"], alone.state.theta["beta"])
    assert (np.asarray(refusing.shift["beta"]) == 0).all()
    with pytest.raises(errors.InvalidOptionError, match="diverged_above"):
        LiveInfluenceShift(diverged_above=0.0)


@pytest.mark.slow
def test_a_limit_that_is_not_reached_changes_nothing(x64):
    sampler = SGLD(PolynomialSteps(1e-4), batch=16)
    model, state = begin(sampler)
    tame = {"order": 12, "scale": 0.2, "batch": 16}
    limited = LiveInfluenceShift(**tame, diverged_above=1e3)(model, sampler, state, REQUESTS)
    plain = LiveInfluenceShift(**tame)(model, sampler, state, REQUESTS)
    assert limited.refused.sum() == plain.refused.sum() == 0
    np.testing.assert_array_equal(limited.state.theta["beta"], plain.state.theta["beta"])


def test_a_chain_that_diverges_on_the_way_names_its_step():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.DiscretisedChainWarning)
        wild = SGLD(ConstantSteps(1e3))
    model, state = begin(wild)
    with pytest.raises(errors.NonFiniteResultError, match=r"after step \d+"):
        LiveInfluenceShift(order=30, scale=0.2, shift=False)(model, wild, state, REQUESTS)


def test_states_and_samplers_that_do_not_fit():
    sampler = frozen()
    model, state = begin(sampler)
    other = state._replace(theta={"gamma": state.theta["beta"]})
    method = LiveInfluenceShift(order=2, scale=0.2)
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(errors.ModelError, match="KeyError: 'beta'"):
            method(model, sampler, other, REQUESTS)
        with pytest.raises(errors.InvalidTypeError, match="SGLD"):
            method(model, None, state, REQUESTS)
        with pytest.raises(errors.InvalidOptionError, match="of 10 rows"):
            method(model, SGLD(PolynomialSteps(1e-3), batch=30), state, [range(50)])
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_requests_that_make_no_sense():
    sampler = frozen()
    model, state = begin(sampler)
    method = LiveInfluenceShift(order=2, scale=0.2)
    with pytest.raises(errors.RowsError, match="row 5"):
        method(model, sampler, state, [[2, 5], [5]])
    with pytest.raises(errors.NothingKeptError):
        method(model, sampler, state, [range(30), range(30, 60)])
    with pytest.raises(errors.InvalidOptionError, match="requests is empty"):
        method(model, sampler, state, [])


@pytest.mark.slow
@pytest.mark.slow
def test_requests_of_unequal_size(x64):
    """They are padded to one bucket; the padding counts for nothing."""
    sampler = frozen()
    model, state = begin(sampler)
    method = LiveInfluenceShift(order=3, scale=0.2)
    together = method(model, sampler, state, [list(range(20)), [30]])
    first = method(model, sampler, state, [list(range(20))])
    second = method(first.model, sampler, first.state, [[30]])
    np.testing.assert_allclose(together.state.theta["beta"], second.state.theta["beta"], rtol=1e-9)


@pytest.mark.parametrize("options", [{"order": -1}, {"samples": 0}, {"scale": 0.0}], ids=["order", "samples", "scale"])
def test_options(options):
    with pytest.raises(errors.InvalidOptionError):
        LiveInfluenceShift(**options)


def test_another_request_compiles_nothing():
    from tests.runtime.test_compilation import compilations

    sampler = SGLD(PolynomialSteps(1e-4), batch=16)
    model, state = begin(sampler)
    method = LiveInfluenceShift(order=3, scale=0.2, batch=16)
    first = method(model, sampler, state, [[2, 5]])
    again = LiveInfluenceShift(order=3, scale=0.1, batch=16)
    assert compilations(lambda: again(first.model, sampler, first.state, [[11, 40]])) == 0
    assert jnp.isfinite(first.last_term).all()
