"""What grows with the parameters: memory in proportion, no matrix of them past 2,000, and the steps of CG not at all.

The small form of `python -m benchmarks parameters`, on the same network.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.wide import make, programs, temporary

import posterase as pe
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.densities import batch_size, held, unconstrained
from posterase.numerics.propriety import ALL_UP_TO, OF_EACH, check_informed, flat_tails
from posterase.numerics.weights import base_weights, element_ess
from posterase.sampling.mixing import different_modes

FLOAT = 4
SMALL, LARGE = 2017, 6049
"""9 W + 1, three times as many the second time, both past what may be a matrix."""


@pytest.fixture(scope="module")
def wide():
    return {size: make(size, draws=32, rows=16, removed=2) for size in (SMALL, LARGE)}


@pytest.fixture(scope="module")
def set_aside(wide):
    """Bytes that the compiled programs need beside arguments and results."""
    return {size: programs(problem, samples=4) for size, problem in wide.items()}


@pytest.mark.parametrize("name", ["InfluenceShift", "Transport", "Reweight", "weights"])
def test_no_program_holds_a_matrix_of_parameters_and_memory_is_linear(set_aside, name):
    small, large = set_aside[SMALL][name], set_aside[LARGE][name]
    assert large < FLOAT * LARGE**2 / 4
    assert large / small < 1.2 * LARGE / SMALL


def test_a_matrix_of_parameters_would_be_seen():
    """The twin: a program with a covariance in it."""

    @eqx.filter_jit
    def gram(draws):
        centred = draws - draws.mean(axis=0)
        return jnp.trace(jnp.tanh(centred.T @ centred))

    taken = {size: temporary(gram, jnp.ones((8, size))) for size in (SMALL, LARGE)}
    assert taken[LARGE] >= FLOAT * LARGE**2
    assert taken[LARGE] / taken[SMALL] > 2 * LARGE / SMALL


def test_a_batch_counts_what_a_draw_holds():
    """Two rows of data and a hidden layer of a thousand units: a draw holds its parameters, and rows × units."""
    weights = {"u": jnp.zeros((7, 1000)), "v": jnp.zeros(1000)}
    x = jnp.ones((20, 7))
    at = lambda p: jnp.sum(jnp.tanh(x @ p["u"]) @ p["v"])  # noqa: E731
    assert held(at, weights, least=x.size) == 20 * 1000
    assert held(jax.grad(at), weights, least=x.size) == 20 * 1000
    assert held(jax.jit(at), weights, least=10**6) == 10**6
    # Inside loops as well.
    assert held(lambda p: jax.lax.scan(lambda c, _: (c + at(p), None), 0.0, length=3)[0], weights, least=1) == 20 * 1000
    assert batch_size(held(at, weights, least=x.size), 10**6) < batch_size(x.size, 10**6)


def test_steps_of_conjugate_gradients(wide):
    """With the draws' variances they are fewer than without, and a network three times as wide needs no more."""

    def steps(size, preconditioner):
        problem = wide[size]
        method = pe.InfluenceShift(solver=pe.CG(preconditioner=preconditioner), samples=4, weigh=False)
        erased = method(0, problem.model, problem.draws, problem.model.change(remove=problem.rows))
        assert erased.details.relative_residual < 1e-4
        taken = int(erased.details.solved.iterations)
        assert f"after {taken} iterations, {taken + 1} products" in str(erased)
        return taken

    small = steps(SMALL, pe.DiagonalPreconditioner())
    assert small < steps(SMALL, pe.NoPreconditioner()) / 1.5
    assert steps(LARGE, pe.DiagonalPreconditioner()) <= 1.3 * small


def test_effective_sizes_do_not_depend_on_how_they_are_cut(wide, monkeypatch):
    draws = wide[SMALL].draws
    whole = element_ess(draws)
    monkeypatch.setattr("posterase.numerics.weights.ESS_ELEMENTS", 16 * 100)
    np.testing.assert_allclose(element_ess(draws), whole, rtol=1e-9)
    blocks = list(draws.column_blocks(100))
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), draws.matrix())
    assert max(block.shape[1] for block in blocks) == 100


def improper(size, flat_from):
    """A prior that is flat from some element on."""
    known = jnp.arange(size) < flat_from
    return pe.Model(
        lambda p: -0.5 * jnp.sum(jnp.where(known, p["x"], 0) ** 2), lambda p, y: -0.5 * (y - p["c"]) ** 2, np.zeros(3)
    )


@pytest.mark.parametrize("size", [ALL_UP_TO // 2, LARGE])
def test_flat_tails_are_found_past_a_matrix(size):
    """Every element up to 2,000; past it some of each parameter, which a flat part of it cannot miss."""
    draws = pe.Draws({"x": np.random.default_rng(0).normal(size=(1, 8, size)), "c": np.zeros((1, 8)) + np.arange(8)})

    def flat(flat_from):
        model = improper(size, flat_from)
        thetas, like = unconstrained(model, draws)
        return flat_tails(LogDensity(model), thetas, base_weights(draws).ravel(), like).flat

    assert flat(size) == []
    assert flat(size - 2 * size // OF_EACH) == ["x"]


@pytest.mark.parametrize(("tail", "expected"), [(2.0, []), (0.0, ["scale"])])
def test_a_heavy_tail_among_many_parameters_is_no_flat_one(tail, expected):
    """The mean of 80 normal parameters is 40 nats denser than their draws: a Student's t falls by less, far out."""
    rng = np.random.default_rng(0)
    draws = pe.Draws({"effects": rng.normal(size=(4, 250, 80)), "scale": rng.standard_t(3, size=(4, 250))})
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p["effects"] ** 2) - tail * jnp.log1p(p["scale"] ** 2 / 3),
        lambda p, y: jnp.zeros(len(y)),
        np.zeros(3),
    )
    thetas, like = unconstrained(model, draws)
    assert flat_tails(LogDensity(model), thetas, base_weights(draws).ravel(), like) == (expected, [])


@pytest.mark.parametrize(("slope", "expected"), [(-0.5, []), (0.5, ["x"])])
def test_a_density_that_overflows_far_out_is_looked_at_closer_in(slope, expected):
    """A standard deviation whose square underflows, as in `pm.LKJCholeskyCov`; and the twin, which grows."""
    draws = pe.Draws({"x": np.random.default_rng(0).normal(size=(4, 250))})
    model = pe.Model(
        lambda p: jnp.where(jnp.abs(p["x"]) > 20, jnp.inf, slope * p["x"] ** 2),
        lambda p, y: jnp.zeros(len(y)),
        np.zeros(3),
    )
    thetas, like = unconstrained(model, draws)
    assert flat_tails(LogDensity(model), thetas, base_weights(draws).ravel(), like) == (expected, [])


@pytest.mark.parametrize(
    ("log_prior", "expected"),
    [
        (lambda m: jnp.logaddexp(-0.5 * m**2, -0.5 * (m - 30) ** 2), ([], ["m"])),
        (lambda m: -0.5 * (m / 2000) ** 2, ([], ["m"])),
        (lambda m: 0.0 * m, (["m"], [])),
        (lambda m: -0.5 * m**2, ([], [])),
    ],
    ids=["a second mode", "a wide prior", "a flat prior", "a Gaussian"],
)
def test_mass_far_from_the_draws_is_no_flat_tail(log_prior, expected):
    draws = pe.Draws({"m": np.random.default_rng(0).normal(size=(4, 250))})
    model = pe.Model(lambda p: log_prior(p["m"]), lambda p, y: jnp.zeros(len(y)), np.zeros(3))
    thetas, like = unconstrained(model, draws)
    assert flat_tails(LogDensity(model), thetas, base_weights(draws).ravel(), like) == expected


def test_a_refusal_names_the_parameter_and_the_page_of_its_cause():
    """A group loses all rows, and its prior is 2,000 times as wide as its draws: they do not reach that far."""
    y = np.random.default_rng(0).normal(size=20)
    model = pe.Model(
        lambda p: -0.5 * (p["m"] / 1000) ** 2 - 0.5 * p["u"] ** 2,
        lambda p, data: -0.5 * (data["y"] - jnp.where(data["of_m"], p["m"], p["u"])) ** 2,
        {"y": y, "of_m": np.arange(20) < 4},
    )
    rng = np.random.default_rng(1)
    m = y[:4].mean() + rng.normal(size=(4, 500)) / 2
    u = y[4:].sum() / 17 + rng.normal(size=(4, 500)) / np.sqrt(17)
    objections = pe.Policy(pareto_k=np.inf, ess=1.0, epsilon=np.inf)
    result = pe.erase(model, pe.Draws({"m": m, "u": u}), range(4), methods=[pe.Reweight()], policy=objections)
    assert "along m, the kept density is as high as among them" in result.verdict.reason
    assert "second mode" in result.verdict.advice
    assert result.verdict.page == "docs/when-not-to-trust.md#mass-far-from-the-draws"
    assert result.verdict.page in str(result)
    assert result.verdict.page in result.public_text()
    assert "along" not in result.verdict.public()


def test_chains_in_different_modes_need_no_matrix_of_components():
    """Of a vector of 50,000 elements; a matrix of them would be 20 GB."""
    values = np.random.default_rng(0).normal(size=(2, 32, 50_000))
    assert different_modes(pe.Draws({"b": values})) is None
    values[1] += 10 * np.arange(50_000)
    assert different_modes(pe.Draws({"b": values})).reason == "chains 0 and 1 sit in different modes of b"


def test_fewer_draws_than_parameters_are_no_sign_of_an_improper_posterior():
    """Gradients at 8 draws vanish along most of 50 directions, and along others with some rows less."""
    rng = np.random.default_rng(0)
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p**2), lambda p, x: -0.5 * (x @ p) ** 2, rng.normal(size=(16, 50)).astype(np.float32)
    )
    thetas, like = unconstrained(model, pe.Draws(rng.normal(size=(1, 8, 50))))
    change = model.change(remove=[0, 1])
    check_informed(LogDensity(model.without(change)), LogRatio(model, change), thetas, like)


def test_a_combination_that_only_removed_rows_knew_is_still_found():
    """The twin, with draws enough: rows 0 and 1 know a − b, the others a + b."""
    sign = np.array([-1.0, -1.0, 1.0, 1.0, 1.0])
    model = pe.Model(
        lambda p: jnp.zeros(()), lambda p, z: -0.5 * (p["a"] + z * p["b"]) ** 2, jnp.asarray(sign, jnp.float32)
    )
    rng = np.random.default_rng(0)
    draws = pe.Draws({"a": rng.normal(size=(1, 8)), "b": rng.normal(size=(1, 8))})
    thetas, like = unconstrained(model, draws)
    change = model.change(remove=[0, 1])
    with pytest.raises(pe.errors.ImproperPosteriorError, match="a combination of a and b"):
        check_informed(LogDensity(model.without(change)), LogRatio(model, change), thetas, like)
