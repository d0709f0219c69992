"""The three functions, rows that keep their ids, what a kept model still holds, and the additivity check."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import posterase as pe
from posterase.errors import ModelError, NotFactorisedError, RowsError
from posterase.model import factorised as model_file
from tests.oracles import ORACLES, GammaPoisson, GaussianMean, LinearRegression


def one_draw(draws: pe.Draws, at: int = 0):
    return jax.tree.map(lambda leaf: leaf[at], draws.flat())


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_the_target_is_the_source_plus_the_log_ratio(oracle, data):
    with jax.enable_x64(True):
        known = oracle.make()
        rows = data.draw(st.lists(st.integers(0, known.n_rows - 1), min_size=1, max_size=9, unique=True))
        model = known.model()
        source, target, log_ratio = pe.split(model, model.change(remove=rows))
        draws = pe.Draws(known.sample(np.arange(known.n_rows), (1, 1), seed=3))
        theta = model.unconstrain(one_draw(draws))
        np.testing.assert_allclose(target(theta), source(theta) + log_ratio(theta), rtol=1e-12)


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
def test_densities_are_the_closed_forms(oracle, x64):
    """Differences of log densities between two draws equal those of the exact posterior, Jacobian included."""
    known = oracle.make()
    model = known.model()
    kept_rows = np.setdiff1d(np.arange(known.n_rows), [1, 4])
    draws = pe.Draws(known.sample(kept_rows, (1, 2), seed=5))
    first, second = (model.unconstrain(one_draw(draws, at)) for at in (0, 1))
    kept = pe.split(model, model.change(remove=[1, 4])).target
    np.testing.assert_allclose(kept(first) - kept(second), exact_difference(known, kept_rows, draws), rtol=1e-9)


def exact_difference(known, rows, draws):
    name = draws.names[0]
    x, y = np.asarray(draws.params[name])[0]
    if isinstance(known, LinearRegression):
        mean, precision = known.mean(rows), known.precision(rows)
        return -0.5 * ((x - mean) @ precision @ (x - mean) - (y - mean) @ precision @ (y - mean))
    if isinstance(known, GaussianMean):
        return -0.5 * known.precision(rows) * ((x - known.mean(rows)) ** 2 - (y - known.mean(rows)) ** 2)
    a, b = known.shapes(rows)
    if isinstance(known, GammaPoisson):  # density of log(rate): the Jacobian adds one to the power
        return a * np.log(x / y) - b * (x - y)
    return a * np.log(x / y) + b * np.log((1 - x) / (1 - y))


def test_rows_keep_their_ids_through_several_requests(x64):
    known = LinearRegression.make()
    model = known.model()
    second = model.without(model.change(remove=[7, 3])).without(model.change(remove=[20]))
    np.testing.assert_array_equal(second.row_ids, np.setdiff1d(np.arange(60), [3, 7, 20]))
    assert second.n_rows == 57
    with pytest.raises(RowsError, match="row 3 was removed before"):
        second.change(remove=[3, 8])
    at_once = model.without(model.change(remove=[3, 7, 20]))
    theta = {"beta": jnp.array([0.3, -0.2, 0.9])}
    np.testing.assert_allclose(second.log_density(theta), at_once.log_density(theta), rtol=1e-13)


def test_nothing_of_the_removed_rows_is_left_in_the_kept_model():
    known = LinearRegression.make()
    model = known.model()
    kept = model.without(model.change(remove=[7, 3]))
    for row in (3, 7):
        assert not np.isclose(np.asarray(kept.data["y"]), known.y[row], atol=1e-6).any()
    np.testing.assert_array_equal(np.delete(kept.data["X"], [3, 7], axis=0), np.delete(model.data["X"], [3, 7], axis=0))


def test_nor_after_several_requests_that_take_the_filler_too():
    """The row that fills the gaps may be removed later: no copy of it may stay."""
    known = LinearRegression.make()
    model = known.model()
    for rows in ([5], [0, 9], [1], [2, 3]):
        model = model.without(model.change(remove=rows))
    for row in (0, 1, 2, 3, 5, 9):
        assert not np.isclose(np.asarray(model.data["y"]), known.y[row], atol=1e-6).any(), row


def test_masks_and_ids_mean_the_same():
    model = LinearRegression.make().model()
    mask = np.zeros(60, bool)
    mask[[5, 9]] = True
    np.testing.assert_array_equal(model.change(remove=mask).row_ids, model.change(remove=[5, 9]).row_ids)
    assert repr(model.change(remove=range(10))) == "Change: remove 10 rows (0, 1, 2, 3, 4, 5, 6, 7, …)"


def test_blocks_change_nothing(monkeypatch, x64):
    """Rows that do not divide into blocks are each counted once, in values and in derivatives."""
    known = LinearRegression.make(rows=1000)
    model = known.model()
    theta = {"beta": jnp.array([0.3, -0.2, 0.9])}
    whole = jax.value_and_grad(model.log_density)(theta)
    hessian = jax.hessian(model.log_density)(theta)
    monkeypatch.setattr(model_file, "BLOCK_ELEMENTS", 1)  # blocks of 256 rows: 1000 is no multiple
    assert model.elements(1000) == 256 * 4
    blocked = jax.value_and_grad(model.log_density)(theta)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), whole, blocked)
    blocked_hessian = jax.hessian(model.log_density)(theta)
    np.testing.assert_allclose(blocked_hessian["beta"]["beta"], hessian["beta"]["beta"], rtol=1e-12)
    twice_backwards = jax.jacrev(jax.jacrev(model.log_density))(theta)
    np.testing.assert_allclose(twice_backwards["beta"]["beta"], hessian["beta"]["beta"], rtol=1e-12)


def test_blocks_keep_the_derivatives_that_functions_have_of_their_own(monkeypatch):
    """At 0 the curvature of logaddexp is that of its rule: max and abs, which it is made of, have none there."""
    x = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    monkeypatch.setattr(model_file, "BLOCK_ELEMENTS", 1)
    model = pe.Model(lambda p: -0.5 * jnp.sum(p**2), lambda p, data: -jnp.logaddexp(0, data @ p), x)
    expected = -np.eye(2) - x.T @ x / 4
    np.testing.assert_allclose(jax.hessian(model.log_density)(jnp.zeros(2)), expected, rtol=1e-5, atol=1e-3)


def test_blocks_are_differentiable_in_the_data_too(monkeypatch, x64):
    known = LinearRegression.make(rows=1000)
    theta = {"beta": jnp.array([0.3, -0.2, 0.9])}

    def slope():
        model = known.model()
        density = lambda data, theta: model_file.with_rows(model, data, model.present).log_density(theta)  # noqa: E731
        return jax.grad(density, argnums=(0, 1))(model.data, theta)

    whole = slope()
    monkeypatch.setattr(model_file, "BLOCK_ELEMENTS", 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), whole, slope())


def test_jit_and_vmap(precision):
    known = GammaPoisson.make()
    model = known.model()
    draws = pe.Draws(known.sample(np.arange(known.n_rows), (1, 5), seed=0))
    thetas = jax.vmap(model.unconstrain)(draws.flat())
    log_ratio = pe.split(model, model.change(remove=[2])).log_ratio
    together = jax.jit(jax.vmap(log_ratio))(thetas)
    one_by_one = [log_ratio(jax.tree.map(lambda leaf, at=at: leaf[at], thetas)) for at in range(5)]
    assert together.dtype == precision
    np.testing.assert_allclose(together, jnp.stack(one_by_one), rtol=1e-5 if precision == "float32" else 1e-12)


def test_models_are_trees_of_arrays(x64):
    """They go through jax.jit, jax.vmap and jax.grad like any other, whether their functions are modules or not."""

    class Prior(eqx.Module):
        width: jax.Array

        def __call__(self, p):
            return -0.5 * (p["mu"] / self.width) ** 2

    y = np.arange(5.0)
    plain = pe.Model(lambda p: -0.5 * (p["mu"] / 2.0) ** 2, lambda p, y: -0.5 * (y - p["mu"]) ** 2, y)
    module = pe.Model(Prior(jnp.array(2.0)), plain.log_likelihood, y)
    theta = {"mu": jnp.array(0.7)}
    density = jax.jit(lambda model, theta: model.log_density(theta))
    np.testing.assert_allclose(density(plain, theta), density(module, theta))
    by_width = jax.grad(lambda model: model.log_density(theta), allow_int=True)(module).log_prior.width
    np.testing.assert_allclose(by_width, 0.7**2 / 2.0**3)


def test_functions_are_checked_at_construction_without_computing():
    calls = []

    def log_likelihood(p, data):
        calls.append(isinstance(data["y"], jax.core.Tracer))
        return -((data["y"] - p["mu"]) ** 2)

    pe.Model(lambda p: -(p["mu"] ** 2), log_likelihood, {"y": np.arange(5.0)}, params={"mu": 0.0})
    assert calls
    assert all(calls)


def test_a_likelihood_bound_to_the_number_of_rows_is_named():
    offset = jnp.arange(5.0)
    with pytest.raises(ModelError, match="any number of rows"):
        pe.Model(lambda p: -p, lambda p, y: -((y - offset - p) ** 2), np.zeros(5), params=0.0)


# --- likelihoods that do not factorise


def gaussian(log_likelihood, y):
    model = pe.Model(lambda p: -0.5 * p["mu"] ** 2, log_likelihood, {"y": y})
    return model, pe.Draws({"mu": np.random.default_rng(0).normal(size=(2, 50))}), model.change(remove=[4, 11])


Y = np.random.default_rng(1).normal(size=40)


def test_additivity_holds_where_rows_are_independent(precision):
    model, draws, change = gaussian(lambda p, data: -0.5 * (data["y"] - p["mu"]) ** 2, Y)
    model.check_additivity(draws, change)


@pytest.mark.parametrize(
    "coupled",
    [
        lambda p, data: -0.5 * (data["y"] - data["y"].mean() - p["mu"]) ** 2,
        lambda p, data: -0.5 * (data["y"] - p["mu"] * jnp.roll(data["y"], 1)) ** 2,
        lambda p, data: -0.5 * (data["y"] - p["mu"]) ** 2 / len(data["y"]),
        lambda p, data: jax.nn.log_softmax((data["y"] * p["mu"]).reshape(-1, 2)).ravel(),
    ],
    ids=["centred inside", "looks at the row before", "divided by the number of rows", "normalised in pairs"],
)
def test_coupled_rows_are_caught(coupled, precision):
    model, draws, change = gaussian(coupled, Y)
    with pytest.raises(NotFactorisedError, match=r"depend on each other|source − target is"):
        model.check_additivity(draws, change)


def test_coupling_within_groups_is_caught_among_many_rows():
    """Only the removed rows' own neighbours notice: a thousand rows picked evenly do not meet them."""
    y = np.random.default_rng(2).normal(size=20_000)

    def log_likelihood(p, data):
        values = data["y"] * p["mu"]
        groups = jnp.arange(len(values)) // 5
        return values - jnp.log(jax.ops.segment_sum(jnp.exp(values), groups, len(values)))[groups]

    model, draws, change = gaussian(log_likelihood, y)
    with pytest.raises(NotFactorisedError):
        model.check_additivity(draws, change)


def test_a_faint_coupling_is_caught_in_float32():
    """One row in 20,000 changes a mean by 1e-4 and a row's likelihood by less: float32 alone would not see it."""
    y = np.random.default_rng(2).normal(size=20_000)
    model, draws, change = gaussian(lambda p, data: -0.5 * (data["y"] - 1e-3 * data["y"].mean() - p["mu"]) ** 2, y)
    with pytest.raises(NotFactorisedError):
        model.check_additivity(draws, change)


# --- masked models: a stationary AR(1), whose rows are not independent


def autoregression(honest: bool = True):
    def log_density(p, data, present):
        y = data["y"]
        if not honest:
            terms = -0.5 * (y[1:] - p["rho"] * y[:-1]) ** 2
            return jnp.sum(jnp.where(present[1:], terms, 0)) - 0.5 * p["rho"] ** 2
        # A missing value is a gap: the next one depends on the last present one, gap steps back.
        index = jnp.arange(len(y))
        last = jax.lax.associative_scan(jnp.maximum, jnp.where(present, index, -1))
        before = jnp.concatenate([jnp.array([-1]), last[:-1]])
        power = p["rho"] ** (index - before)
        mean = jnp.where(before >= 0, power * y[jnp.maximum(before, 0)], 0.0)
        variance = jnp.where(before >= 0, 1 - power**2, 1.0)
        terms = -0.5 * ((y - mean) ** 2 / variance + jnp.log(variance))
        return jnp.sum(jnp.where(present, terms, 0))

    y = np.random.default_rng(3).normal(size=30)
    model = pe.MaskedModel(log_density, {"y": y}, transforms={"rho": pe.unit_interval}, params={"rho": 0.5})
    draws = pe.Draws({"rho": np.random.default_rng(4).uniform(0.1, 0.9, size=(2, 30))})
    return model, draws


def test_a_masked_model_gives_the_exact_marginal(x64):
    """Against the Gaussian density of the kept values, with the AR(1) covariance written out."""
    model, _ = autoregression()
    kept_rows = np.setdiff1d(np.arange(30), [5, 6, 17])
    kept = model.without(model.change(remove=[5, 6, 17]))

    def exact(rho):
        covariance = rho ** np.abs(np.subtract.outer(kept_rows, kept_rows))
        y = np.asarray(model.data["y"])[kept_rows]
        return -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1])

    for rho in (0.2, 0.7):
        np.testing.assert_allclose(kept.log_joint({"rho": jnp.array(rho)}), exact(rho), rtol=1e-10)


def test_a_masked_model_that_honours_its_mask_passes(precision):
    model, draws = autoregression()
    model.check_additivity(draws, model.change(remove=[5, 17]))
    source, target, log_ratio = pe.split(model, model.change(remove=[5, 17]))
    theta = model.unconstrain({"rho": jnp.array(0.4)})
    np.testing.assert_allclose(target(theta) - source(theta), log_ratio(theta), rtol=1e-4)


def test_a_masked_model_that_ignores_its_mask_is_caught():
    """Binary data: the filler often equals the removed row, so several are tried."""
    y = (np.arange(20) % 3 == 0).astype(float)
    model = pe.MaskedModel(lambda p, data, present: jnp.sum(data * p - jnp.logaddexp(0, p)), y)
    with pytest.raises(NotFactorisedError, match="mask"):
        model.check_additivity(pe.Draws(np.zeros((1, 10)) + 0.3), model.change(remove=[3]))


def test_a_masked_model_that_peeks_is_caught(precision):
    model, draws = autoregression(honest=False)
    with pytest.raises(NotFactorisedError, match="must not look at rows where the mask is false"):
        model.check_additivity(draws, model.change(remove=[5, 17]))
