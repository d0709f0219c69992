"""Samplers against closed forms of the discretised chain, blackjax, and themselves cut in pieces."""

import dataclasses
import warnings

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.linalg import solve_discrete_lyapunov

import posterase as pe
from posterase import errors
from posterase.numerics.weights import parameter_ess
from posterase.runtime.precision import numbers_as_arrays
from posterase.sampling import batches
from posterase.sampling.effective_draws import effective_draws
from posterase.sampling.mixing import chain_agreement, mixing
from posterase.sampling.nuts import nuts
from posterase.sampling.resume import load_state, save_state
from posterase.sampling.sample import _put, _room, sample, start_chains
from posterase.sampling.sampler import NoiseFreePhase, Step, step_keys
from posterase.sampling.schedules import ConstantSteps, PolynomialSteps
from posterase.sampling.sghmc import SGHMC
from posterase.sampling.sgld import SGLD
from tests import mesh_programs
from tests.oracles import GammaPoisson, LinearRegression
from tests.statistical import assert_moments, rejected

KNOWN = LinearRegression.make(rows=40, d=2)
EVERYTHING = np.arange(40)


def constant(step_size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.DiscretisedChainWarning)
        return ConstantSteps(step_size)


def at(value, chains):
    return {"beta": np.broadcast_to(value, (chains, 2))}


# --- schedules


def test_schedule_values():
    schedule = PolynomialSteps(4 / 2000, 0.0, 0.5005)
    np.testing.assert_allclose(schedule(jnp.array(100)), 4 / 2000 * 100**-0.5005, rtol=1e-6)
    np.testing.assert_allclose(schedule.scaled(2.0)(jnp.array(7)), 2 * schedule(jnp.array(7)), rtol=1e-6)
    assert constant(0.1).scaled(3.0)(jnp.array(7)) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1.0, 0.0, 0.5), "Ση_t² < ∞ is broken"),
        ((1.0, 0.0, 0.2), "Ση_t² < ∞ is broken"),
        ((1.0, 0.0, 1.1), "Ση_t = ∞ is broken"),
        ((0.0, 0.0, 0.6), "use a > 0"),
        ((1.0, -1.0, 0.6), "b ≥ 0"),
    ],
)
def test_schedules_that_break_their_conditions(arguments, words):
    with pytest.raises(errors.InvalidOptionError, match=words):
        PolynomialSteps(*arguments)


def test_a_constant_step_warns():
    with pytest.warns(errors.DiscretisedChainWarning, match="samples its own discretisation"):
        ConstantSteps(0.1)


# --- stationary laws of the discretised chains


def discretised_covariance(sampler_name: str, step: float, friction: float) -> np.ndarray:
    """The exact stationary covariance of θ for a linear chain x ← A x + noise."""
    precision = KNOWN.precision(EVERYTHING)
    if sampler_name == "SGLD":
        return solve_discrete_lyapunov(np.eye(2) - step * precision, 2 * step * np.eye(2))
    transition = np.block([[np.eye(2), np.eye(2)], [-step * precision, (1 - friction) * np.eye(2)]])
    noise = np.block([[np.zeros((2, 4))], [np.zeros((2, 2)), 2 * friction * step * np.eye(2)]])
    return solve_discrete_lyapunov(transition, noise)[:2, :2]


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["SGLD", "SGHMC"])
def test_stationary_moments_of_the_discretised_chain(name, precision):
    """4,000 independent chains, full batches, a constant step: mean and covariance of the chain's own stationary law.

    The step is large enough that the posterior's own variance, which a broken chain might hit, is rejected.
    """
    largest = np.linalg.eigvalsh(KNOWN.precision(EVERYTHING))[-1]
    step, friction = (0.6 if name == "SGLD" else 0.3) / largest, 0.6  # SGHMC is stable below friction/curvature
    sampler = SGLD(constant(step)) if name == "SGLD" else SGHMC(constant(step), friction=friction)
    model = KNOWN.model()
    state = start_chains(0, model, sampler, at(KNOWN.mean(EVERYTHING), 4000))
    final = np.asarray(sample(model, sampler, state, 1, thin=120).draws.params["beta"])[:, 0]
    covariance = discretised_covariance(name, step, friction)
    assert_moments(final, KNOWN.mean(EVERYTHING), np.diag(covariance))
    # The covariance too: the variance of the sum of the parameters.
    assert_moments(final.sum(axis=1), KNOWN.mean(EVERYTHING).sum(), np.asarray(covariance.sum()))
    with rejected():
        assert_moments(final, KNOWN.mean(EVERYTHING), KNOWN.variance(EVERYTHING))


@pytest.mark.statistical
def test_the_noise_as_the_paper_prints_it_is_rejected():
    """2√η W instead of √(2η) W: variances twice as large."""

    class AsPrinted(SGLD):
        def update(self, theta, extra, ascent, step):
            louder = jax.tree.map(lambda w: jnp.sqrt(2.0) * w, step.noise)
            return super().update(theta, extra, ascent, step._replace(noise=louder))

    step = 0.1 / np.linalg.eigvalsh(KNOWN.precision(EVERYTHING))[-1]
    model = KNOWN.model()
    covariance = discretised_covariance("SGLD", step, 0.0)
    for kind, fails in ((SGLD, False), (AsPrinted, True)):
        sampler = kind(constant(step))
        state = start_chains(0, model, sampler, at(KNOWN.mean(EVERYTHING), 3000))
        final = np.asarray(sample(model, sampler, state, 1, thin=600).draws.params["beta"])[:, 0]
        if fails:
            with rejected():
                assert_moments(final, KNOWN.mean(EVERYTHING), np.diag(covariance))
        else:
            assert_moments(final, KNOWN.mean(EVERYTHING), np.diag(covariance))


def test_sgld_is_blackjaxs_given_the_same_noise(x64):
    model, sampler = KNOWN.model(), SGLD(constant(1e-3))
    theta, key = {"beta": jnp.array([0.3, -0.5])}, jax.random.key(7)
    noise = blackjax.util.generate_gaussian_noise(key, theta)
    ascent = jax.grad(model.log_density)(theta)
    step = Step(jnp.array(1), jnp.array(1e-3), jnp.array(40), noise)
    ours, _ = sampler.update(theta, None, ascent, step)
    theirs = blackjax.sgld(lambda position, _: jax.grad(model.log_density)(position)).step(key, theta, None, 1e-3)
    np.testing.assert_allclose(ours["beta"], theirs["beta"], rtol=1e-12)


# --- mini-batches


def test_mini_batch_gradients_are_unbiased(x64):
    """A batch is drawn with replacement, so its mean is the mean over batches of one row: the full gradient."""
    model = KNOWN.model()
    kept = model.without(model.change(remove=[3, 7, 20]))
    theta = {"beta": jnp.array([0.3, -0.5])}
    n = jnp.array(kept.n_rows)
    singles = [jax.grad(batches.BatchDensity(kept, jnp.array([row]), n))(theta)["beta"] for row in kept.row_ids]
    np.testing.assert_allclose(np.mean(singles, axis=0), jax.grad(kept.log_density)(theta)["beta"], rtol=1e-10)
    pair = jax.grad(batches.BatchDensity(kept, jnp.array([0, 5]), n))(theta)["beta"]
    np.testing.assert_allclose(pair, (singles[0] + singles[list(kept.row_ids).index(5)]) / 2, rtol=1e-10)


@pytest.mark.statistical
def test_batches_come_from_the_present_rows_alike():
    """A χ² test at 1e-5 on 40,000 draws from 37 rows; removed rows never come."""
    from scipy.stats import chi2

    model = KNOWN.model()
    kept = model.without(model.change(remove=[3, 7, 20]))
    ids = np.asarray(batches.draw(jax.random.key(0), batches.present_rows(kept.present), 40_000))
    counts = np.bincount(ids, minlength=40)
    assert counts[[3, 7, 20]].sum() == 0
    expected = 40_000 / 37
    statistic = ((counts[kept.row_ids] - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(1e-5, 36)
    lopsided = np.bincount(np.sort(ids)[: len(ids) // 2], minlength=40)
    assert ((lopsided[kept.row_ids] - expected / 2) ** 2 / (expected / 2)).sum() > chi2.isf(1e-5, 36)


@pytest.mark.parametrize("batch", [0, 41, 2.5, -3])
def test_batches_that_do_not_fit(batch):
    model = KNOWN.model()
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(errors.InvalidOptionError, match="of 40 rows"):
            start_chains(0, model, SGLD(PolynomialSteps(1e-3), batch=batch), at(0.0, 1))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_a_batch_must_fit_the_rows_that_are_left():
    model, sampler = KNOWN.model(), SGLD(PolynomialSteps(1e-3), batch=20)
    state = start_chains(0, model, sampler, at(0.0, 1))
    with pytest.raises(errors.InvalidOptionError, match="batch is 20, of 15 rows"):
        sample(model.without(model.change(remove=range(25))), sampler, state, 5)


# --- cutting, thinning, resuming


SAMPLERS = {
    "SGLD": SGLD(PolynomialSteps(1e-3), batch=8),
    "SGHMC": SGHMC(PolynomialSteps(1e-3), batch=8),
    "SGHMC after a phase without noise": SGHMC(
        PolynomialSteps(1e-3), batch=8, noise_free=NoiseFreePhase(15, 1e-3, 0.9)
    ),
}


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(s, id=name, marks=[pytest.mark.slow] if name in ("SGLD", "SGHMC") else [])
        for name, s in SAMPLERS.items()
    ],
)
def test_cut_runs_are_the_same_to_the_bit(sampler, tmp_path):
    model = KNOWN.model()
    state = start_chains(0, model, sampler, at(0.0, 3))
    whole = np.asarray(sample(model, sampler, state, 40).draws.params["beta"])
    first = sample(model, sampler, state, 13)
    path = save_state(tmp_path / "run.eqx", first.state, model, sampler)
    resumed = load_state(path, state, model, sampler)
    second = sample(model, sampler, resumed, 27, report=lambda *_: None)
    parts = np.concatenate([first.draws.params["beta"], second.draws.params["beta"]], axis=1)
    np.testing.assert_array_equal(parts, whole)
    thinned = np.asarray(sample(model, sampler, state, 8, thin=5).draws.params["beta"])
    np.testing.assert_array_equal(thinned, whole[:, 4::5])
    assert len({tuple(chain[-1]) for chain in whole}) == 3


def test_draws_that_come_in_pieces_are_held_once():
    piece = {"beta": jnp.zeros((4, 5, 1000))}
    room = _room(piece, 50)
    held = _put.lower(room, piece, 5).compile().memory_analysis()
    assert held.alias_size_in_bytes == room["beta"].nbytes == held.output_size_in_bytes
    copied = jax.jit(_put.__wrapped__).lower(room, piece, 5).compile().memory_analysis()
    assert copied.alias_size_in_bytes == 0


def test_files_of_another_run_are_refused(tmp_path):
    model, sampler = KNOWN.model(), SAMPLERS["SGLD"]
    state = start_chains(0, model, sampler, at(0.7, 2))
    path = save_state(tmp_path / "run.eqx", state, model, sampler)
    assert eqx.tree_equal(load_state(path, state, model, numbers_as_arrays(sampler)), state)
    others = {
        "data": (model.without(model.change(remove=[3])), sampler, state, "rows was 40 there and is 39 here"),
        "sampler": (model, SAMPLERS["SGHMC"], state, "sampler was 'SGLD'"),
        "schedule": (model, SGLD(PolynomialSteps(2e-3), batch=8), state, "sampler.schedule.a was"),
        "batch": (model, SGLD(PolynomialSteps(1e-3), batch=9), state, "batch was 8 there and is 9 here"),
        "chains": (model, sampler, start_chains(0, model, sampler, at(0.0, 5)), "parameters was"),
        "prior": (dataclasses.replace(KNOWN, prior=0.5).model(), sampler, state, "another log density"),
    }
    for other_model, other_sampler, other_state, words in others.values():
        with pytest.raises(errors.InputFileError, match=words):
            load_state(path, other_state, other_model, other_sampler)
    (tmp_path / "text.eqx").write_text("nothing")
    with pytest.raises(errors.InputFileError, match="not a saved state"):
        load_state(tmp_path / "text.eqx", state, model, sampler)
    with pytest.raises(errors.InputFileError, match="no file"):
        load_state(tmp_path / "none.eqx", state, model, sampler)


def test_a_chain_that_diverges_names_the_step():
    model = KNOWN.model()
    sampler = SGLD(constant(1e3))
    state = start_chains(0, model, sampler, at(0.0, 2))
    with pytest.raises(
        errors.NonFiniteResultError, match=r"chain 0 was not finite after step \d+ \(2 of 2 chains\)"
    ) as caught:
        sample(model, sampler, state, 100)
    step = int(str(caught.value).split("step ")[1].split()[0])
    before = sample(model, sampler, state, step - 1)
    assert np.isfinite(before.draws.params["beta"]).all()


@pytest.mark.parametrize(("draws", "thin"), [(0, 1), (5, 0)])
def test_lengths_that_make_no_sense(draws, thin):
    model, sampler = KNOWN.model(), SAMPLERS["SGLD"]
    with pytest.raises(errors.InvalidOptionError, match="at least 1"):
        sample(model, sampler, start_chains(0, model, sampler, at(0.0, 1)), draws, thin=thin)


def test_things_that_are_not_samplers_or_points():
    model, sampler = KNOWN.model(), SAMPLERS["SGLD"]
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(errors.InvalidTypeError, match="PolynomialSteps"):
            SGLD(1e-3)
        with pytest.raises(errors.InvalidTypeError, match="use a number"):
            PolynomialSteps("x")
        with pytest.raises(errors.InvalidTypeError, match="SGLD"):
            start_chains(0, model, None, at(0.0, 1))
        with pytest.raises(errors.DrawsShapeError, match="chain axis"):
            start_chains(0, model, sampler, {"beta": 0.0})
        with pytest.raises(errors.InvalidOptionError, match="steps"):
            NoiseFreePhase(2.5, 1e-3)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_options_of_samplers():
    with pytest.raises(errors.InvalidOptionError, match="friction"):
        SGHMC(PolynomialSteps(1e-3), friction=1.0)
    with pytest.raises(errors.InvalidOptionError, match="momentum"):
        NoiseFreePhase(10, 1e-3, 1.0)


# --- the phase without noise, and velocities


def test_the_first_phase_is_gradient_ascent_with_momentum(x64):
    model = KNOWN.model()
    sampler = SGLD(PolynomialSteps(1e-3), noise_free=NoiseFreePhase(10, 1e-3, momentum=0.9))
    run = sample(model, sampler, start_chains(0, model, sampler, at(0.0, 1)), 11)
    theta, velocity = jnp.zeros(2), jnp.zeros(2)
    for step in range(10):
        velocity = 0.9 * velocity + 1e-3 * jax.grad(model.log_density)({"beta": theta})["beta"]
        theta = theta + velocity
        np.testing.assert_allclose(run.draws.params["beta"][0, step], theta, rtol=1e-10)
    climbed = theta + 1e-3 * jax.grad(model.log_density)({"beta": theta})["beta"]
    assert not np.allclose(run.draws.params["beta"][0, 10], climbed, rtol=1e-3), "the noise did not come back"


@pytest.mark.statistical
def test_velocities_start_from_their_law(x64):
    """v₀ ~ N(0, η₀ I), at the start or when sampling begins after a phase without noise."""
    model = KNOWN.model()
    eta = float(PolynomialSteps(1e-3)(jnp.array(1)))
    at_start = start_chains(0, model, SGHMC(PolynomialSteps(1e-3)), at(0.0, 5000)).extra.velocity["beta"]
    assert_moments(np.asarray(at_start), np.zeros(2), np.full(2, eta))
    with rejected():
        assert_moments(np.asarray(at_start), np.zeros(2), np.full(2, 1.2 * eta))
    # After a phase without noise: θ does not move in step 3 but by the velocity drawn for it, at the schedule's start.
    late = SGHMC(PolynomialSteps(1e-3), noise_free=NoiseFreePhase(2, 1e-12))
    run = np.asarray(sample(model, late, start_chains(0, model, late, at(0.0, 5000)), 3).draws.params["beta"])
    assert_moments(run[:, 2] - run[:, 1], np.zeros(2), np.full(2, eta))
    with rejected():
        assert_moments(run[:, 2] - run[:, 1], np.zeros(2), np.full(2, float(PolynomialSteps(1e-3)(jnp.array(3)))))


def test_all_random_numbers_of_a_step_have_keys_of_their_own():
    keys = jax.random.key_data(jnp.stack(step_keys(jax.random.key(0), jnp.array(5))))
    assert len({tuple(key) for key in np.asarray(keys)}) == 4


# --- NUTS


@pytest.mark.statistical
def test_nuts_draws_from_the_posterior():
    """Against a Gamma posterior: means of thinned draws; and not from the posterior without two rows."""
    known = GammaPoisson.make()
    sampled = nuts(0, known.model(), {"rate": np.full(4, 1.0)}, 1000, warmup=400)
    assert sampled.diagnostics.rhat["rate"] < 1.02
    assert sampled.diagnostics.ess["rate"] > 400
    assert sampled.diagnostics.divergences == 0
    assert sampled.diagnostics.gradients >= 4000
    assert "R̂" in str(sampled.diagnostics)
    thinned = np.asarray(sampled.draws.params["rate"])[:, ::8].ravel()  # nearly independent
    everything = np.arange(12)
    assert_moments(thinned, known.mean(everything), known.variance(everything))
    without = np.setdiff1d(everything, np.argsort(known.y)[-4:])
    with rejected():
        assert_moments(thinned, known.mean(without), known.variance(without))


def test_nuts_options():
    known = GammaPoisson.make()
    with pytest.raises(errors.InvalidOptionError, match="draws"):
        nuts(0, known.model(), {"rate": np.ones(2)}, 0)
    with pytest.raises(errors.InvalidOptionError, match="target_acceptance"):
        nuts(0, known.model(), {"rate": np.ones(2)}, 10, target_acceptance=1.0)
    with pytest.raises(errors.OutsideSupportError):
        nuts(0, known.model(), {"rate": -np.ones(2)}, 10)


def test_models_that_do_not_factorise_need_all_rows():
    masked = pe.MaskedModel(lambda p, data, present: -0.5 * jnp.sum(present * (data - p) ** 2), np.arange(9.0))
    with pytest.raises(errors.InvalidOptionError, match="independent"):
        start_chains(0, masked, SGLD(PolynomialSteps(1e-3), batch=3), np.zeros(1))
    sampler = SGLD(PolynomialSteps(1e-3))
    run = sample(masked, sampler, start_chains(0, masked, sampler, np.zeros(1)), 5)
    assert eqx.tree_equal(run.state.step, jnp.array([5], jnp.int32))


def test_elements_that_never_change_do_not_hide_how_others_mix():
    """As in a Cholesky factor: zeros above, and ones."""
    factor = np.zeros((4, 200, 2, 2)) + np.eye(2)
    factor[..., 1, 0] = np.random.default_rng(0).normal(size=(4, 200))
    rhat, ess = mixing(pe.Draws({"L": factor}))
    assert 0.9 < rhat["L"] < 1.1
    assert ess["L"] > 100


@pytest.mark.parametrize("n_draws", [50, 201])
def test_rank_normalised_rhat_is_that_of_arviz(n_draws):
    rng = np.random.default_rng(0)
    heavy, tied = rng.standard_cauchy(size=(4, n_draws, 5)), rng.integers(0, 4, (4, n_draws, 3)).astype(float)
    heavy[0] += 1.0
    heavy[1, :, 2] *= 5.0  # which only the distances to the median show
    still = np.ones((4, n_draws, 2))
    draws = pe.Draws({"heavy": heavy, "tied": tied, "still": still})
    found = chain_agreement(draws)
    for name in ("heavy", "tied"):
        expected = array_stats.rhat(draws.columns()[name], chain_axis=0, draw_axis=1)
        np.testing.assert_allclose(found[name].rhat, expected, rtol=1e-12)
    np.testing.assert_array_equal(found["still"].rhat, 1.0)
    assert chain_agreement(pe.Draws({"heavy": heavy[:, :19]})) == {}


def autocorrelated(rng, chains, n_draws, elements, rho):
    """Chains of one posterior, an AR(1) process."""
    values = np.empty((chains, n_draws, elements))
    values[:, 0] = rng.normal(size=(chains, elements))
    for step in range(1, n_draws):
        values[:, step] = rho * values[:, step - 1] + np.sqrt(1 - rho**2) * rng.normal(size=(chains, elements))
    return values


def test_few_effective_draws_explain_a_large_rhat_and_a_shift_does_not():
    """20 effective draws in each half. Of 10,000 such fits 2.7 % have an R̂ above 1.05, 0.27 % one beyond chance.

    Two parameters or fewer of 300 are above 1.05 in 1 % of all seeds, five or more are beyond chance in 0.2 %.
    """
    rng = np.random.default_rng(0)
    values = autocorrelated(rng, 4, 160, 300, rho=0.6)
    alone = [chain_agreement(pe.Draws({"x": values[..., k]}))["x"] for k in range(300)]
    assert sum(each.rhat[0] > 1.05 for each in alone) > 2
    assert sum(each.worst_above(1.05) > 0 for each in alone) < 5
    values[0] += 2.0  # standard deviations: the broken twin
    apart = [chain_agreement(pe.Draws({"x": values[..., k]}))["x"] for k in range(50)]
    assert all(each.worst_above(1.05) > 1.05 for each in apart)


def refused(values):
    return chain_agreement(pe.Draws({"x": values}))["x"].worst_above(1.05) > 0


@pytest.mark.parametrize(("chains", "n_draws", "memories"), [(100, 40, (0.0, 0.5, 0.9)), (1000, 4, (0.0, 0.5))])
def test_many_short_chains_may_remember_and_may_not_be_stuck(chains, n_draws, memories):
    """Walkers of an ensemble. 200 seeds of each: more than 4 refusals have a probability below 1e-5 at a rate of 0.1 %.

    Stuck chains have 0.3 to 0.8 of the posterior's spread, around centres that are spread as far as the posterior is,
    or so that all draws together have the posterior's spread.
    """
    for memory in memories:
        rng = np.random.default_rng(0)
        assert sum(refused(autocorrelated(rng, chains, n_draws, 1, memory)) for _ in range(200)) <= 4
    rng = np.random.default_rng(0)
    for spread in (0.3, 0.5, 0.8):
        for apart in (1.0, np.sqrt(1 - spread**2)):
            for _ in range(10):
                centres = apart * rng.normal(size=(chains, 1, 1))
                assert refused(centres + spread * rng.normal(size=(chains, n_draws, 1)))


def test_a_drift_that_many_chains_share_is_seen():
    values = autocorrelated(np.random.default_rng(0), 50, 100, 1, 0.5)
    assert not refused(values)
    assert refused(values + np.linspace(-1, 1, 100)[:, None])


def test_copies_are_no_effective_draws():
    rng = np.random.default_rng(0)
    few = rng.normal(size=250)
    shuffled = pe.Draws({"x": rng.choice(few, (4, 1601)), "constant": np.ones((4, 1601))})
    distinct = len(np.unique(shuffled.params["x"]))
    assert shuffled.n_distinct == distinct <= 250
    assert effective_draws(shuffled) == {"x": distinct, "constant": np.inf}
    assert parameter_ess(shuffled)["x"] <= distinct
    assert pe.Draws({"x": rng.normal(size=(2, 10))}).n_distinct == 20
    pairs = pe.Draws({"x": np.array([[1.0, 1.0, 2.0, 1.0]]), "y": np.array([[1.0, 2.0, 2.0, 1.0]])})
    np.testing.assert_array_equal(pairs.first_places(), [[0, 1, 2, 0]])


def test_nuts_starts_from_float32_where_jax_has_64_bits(x64):
    model, _ = mesh_programs.problem(rows=30)
    initial = {"beta": np.zeros((2, 3), np.float32)}
    drawn = pe.nuts(0, model, initial, 4, warmup=20).draws
    assert drawn.params["beta"].dtype == np.float64


def test_effective_draws_are_those_of_arviz():
    """Autocorrelated in both directions, skewed, discrete, with a chain apart, an odd length, a constant element."""
    rng = np.random.default_rng(0)
    x, noise = np.zeros((3, 301, 12)), rng.normal(size=(3, 301, 12))
    for t in range(1, 301):
        x[:, t] = np.linspace(-0.9, 0.97, 12) * x[:, t - 1] + noise[:, t]
    x[..., 3], x[..., 7] = np.exp(x[..., 3]), np.round(x[..., 7])
    x[0, :, 5] += 3
    draws = pe.Draws({f"x{i}": x[..., i] for i in range(12)} | {"constant": np.ones((3, 301))})
    for name, ours in effective_draws(draws).items():
        values = np.asarray(draws.params[name], np.float64)
        options = {"chain_axis": 0, "draw_axis": 1}
        if name == "constant":
            assert ours == np.inf
            continue
        bulk = array_stats.ess(values, method="bulk", **options)
        tail = array_stats.ess(values, method="tail", prob=(0.05, 0.95), **options)
        np.testing.assert_allclose(ours, min(bulk, tail), rtol=1e-3)
