"""Weights from float32 draws and data are as good as from float64 ones, with a million rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import posterase as pe
from posterase.errors import CoarseRowsWarning, ModelError
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.densities import evaluate, expectation
from posterase.runtime.precision import numpy_as_jax
from posterase.sampling.batches import BatchDensity
from tests import mesh_programs

ROWS = 1_000_000


def regression():
    """y ~ N(μ, σ) with σ unknown: every row subtracts the same rounded log σ, which no way of summing mends."""
    rng = np.random.default_rng(0)
    y = rng.normal(1.3, 0.7, ROWS).astype(np.float32)
    draws = {
        "mu": rng.normal(1.3, 0.7e-3, (1, 12)).astype(np.float32),
        "sigma": (0.7 * np.exp(rng.normal(0, 0.7e-3, (1, 12)))).astype(np.float32),
    }

    def log_likelihood(p, data):
        return -0.5 * ((data - p["mu"]) / p["sigma"]) ** 2 - jnp.log(p["sigma"])

    return pe.Model(lambda p: -p["sigma"], log_likelihood, y, transforms={"sigma": pe.positive}), draws, y


def exact(draws, y):
    """Σ log p(y | θ) in numpy's float64, at the very same float32 numbers."""
    y = y.astype(np.float64)
    values = []
    for mu, sigma in zip(draws["mu"][0].astype(float), draws["sigma"][0].astype(float), strict=True):
        values.append(np.sum(-0.5 * ((y - mu) / sigma) ** 2) - len(y) * np.log(sigma))
    return np.array(values)


def differences(values):
    values = np.asarray(values, np.float64).ravel()
    return values - values[0]


def test_removing_half_a_million_rows():
    model, draws, y = regression()
    change = model.change(remove=np.arange(ROWS // 2))
    ours = evaluate(LogRatio(model, change), pe.Draws(draws))
    assert ours.dtype == np.float64
    np.testing.assert_allclose(differences(ours), -differences(exact(draws, y[: ROWS // 2])), atol=0.01)


def test_density_of_a_million_rows():
    model, draws, y = regression()
    ours = evaluate(LogDensity(model), pe.Draws(draws))
    jacobian_and_prior = np.log(draws["sigma"][0].astype(float)) - draws["sigma"][0].astype(float)
    expected = differences(exact(draws, y) + jacobian_and_prior)
    np.testing.assert_allclose(differences(ours), expected, atol=0.01)
    # The twin that must fail: the same sum, evaluated as it stands in float32.
    thetas = jax.vmap(model.unconstrain)(pe.Draws(draws).flat())
    naive = differences(jax.jit(jax.vmap(model.log_density))(thetas))
    assert np.abs(naive - expected).max() > 0.01


def test_likelihoods_bound_to_float32_are_summed_in_float64():
    """A loop with a float32 carry cannot be traced in float64; its rows are still summed there."""
    y = np.random.default_rng(0).normal(3.0, 1.0, 200_000).astype(np.float32)

    def log_likelihood(p, data):
        return jax.lax.fori_loop(0, 1, lambda _, c: c - (data - p["mu"]) ** 2, jnp.zeros(data.shape, jnp.float32))

    model = pe.Model(lambda p: 0.0 * p["mu"], log_likelihood, y)
    draws = {"mu": np.array([[3.0, 3.001, 2.999]], np.float32)}
    with pytest.warns(CoarseRowsWarning, match="only summed in float64"):
        ours = evaluate(LogDensity(model), pe.Draws(draws))
    expected = [-np.sum((y - mu).astype(np.float32).astype(float) ** 2) for mu in draws["mu"][0]]
    np.testing.assert_allclose(differences(ours), differences(expected), atol=0.01)


OUTSIDE = np.array([5.0, 3.0])


@pytest.mark.parametrize("where", ["in the closure", "in the module", "in a function within"])
def test_numpy_constants_used_in_both_precisions(where):
    """jax keeps the float32 copy of a numpy array it met first, and cannot compile what mixes it with float64."""
    scale = np.array([5.0, 3.0])
    prior, likelihood = {
        "in the closure": (lambda p: -0.5 * ((scale * p) ** 2).sum(), lambda p, y: y * (scale * p).sum()),
        "in the module": (lambda p: -0.5 * ((OUTSIDE * p) ** 2).sum(), lambda p, y: y * (OUTSIDE * p).sum()),
        "in a function within": (
            lambda p: -0.5 * sum(map(lambda s: (s**2).sum(), [OUTSIDE * p])),  # noqa: C417
            lambda p, y: y * (lambda: OUTSIDE * p)().sum(),
        ),
    }[where]
    model = pe.Model(prior, likelihood, np.arange(6.0), params=np.zeros(2))
    draws = pe.Draws(np.random.default_rng(0).normal(size=(2, 100, 2)))
    weights = np.asarray(pe.Reweight()(0, model, draws, model.change(remove=[3])).draws.log_weights)
    exact = -3.0 * np.asarray(draws.params) @ scale
    body = exact < np.quantile(exact, 0.8)
    assert np.ptp((weights - exact)[body]) < 1e-4


def test_numpy_constants_out_of_reach_are_an_error_with_advice():
    class Holder:
        scale = np.array([5.0, 3.0])

    model = pe.Model(lambda p: -0.5 * ((Holder.scale * p) ** 2).sum(), lambda p, y: y * p.sum(), np.arange(6.0))
    draws = pe.Draws(np.random.default_rng(0).normal(size=(2, 100, 2)))
    with pytest.raises(ModelError, match=r"jnp\.asarray"):
        pe.InfluenceShift()(0, model, draws, model.change(remove=[3]))


def test_functions_with_numpy_keep_their_defaults():
    def scaled(p, *, by=2.0):
        return by * (OUTSIDE * p).sum()

    assert numpy_as_jax(scaled) is not scaled
    assert numpy_as_jax(scaled)(1.0) == 16.0


def test_functions_without_numpy_stay_themselves():
    def plain(p):
        return jnp.sum(p)

    assert numpy_as_jax(plain) is plain
    assert numpy_as_jax(jnp.sum) is jnp.sum


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_keep_the_precision_of_the_draws(dtype, precision):
    draws = pe.Draws({"mu": np.zeros((2, 40), dtype) + np.linspace(0, 1, 40, dtype=dtype)})
    expected = jnp.zeros((), dtype).dtype if precision == "float64" else np.float32
    model = pe.Model(lambda p: -(p["mu"] ** 2), lambda p, y: -((y - p["mu"]) ** 2), np.linspace(0, 1, 30))
    for method in (pe.Reweight(), pe.InfluenceShift(), pe.InfluenceShift(solver=pe.CG())):
        assert method(0, model, draws, model.change(remove=[3])).draws.params["mu"].dtype == expected


def test_expectations_do_not_depend_on_the_batches(x64):
    thetas = jax.random.normal(jax.random.key(0), (103, 2))
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(1), (103,)))
    whole = expectation(lambda theta: theta**2, thetas, weights, elements=1)
    for elements in (2**22, 2**20, 2**17):
        batched = expectation(lambda theta: theta**2, thetas, weights, elements)
        np.testing.assert_allclose(batched, whole, rtol=1e-12)


def products(jaxpr):
    """The precision of every matrix product of a program, those of its loops included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for inner in jaxprs_in_params(equation.params):
            yield from products(inner)


@pytest.mark.parametrize("rows", [10, 300_000])
def test_matrix_products_have_all_digits_unless_the_user_says_otherwise(rows):
    """On a GPU jax would round float32 to three of them."""
    model = mesh_programs.problem(rows=rows)[0]
    theta = {"beta": jnp.zeros(3)}
    density, batch = LogDensity(model), BatchDensity(model, jnp.arange(5), jnp.array(5))

    def found(function):
        return set(products(jax.make_jaxpr(jax.value_and_grad(function))(theta).jaxpr))

    highest = jax.lax.Precision.HIGHEST
    assert found(density) == {(highest, highest)}
    with jax.default_matmul_precision("tensorfloat32"):
        assert found(density) == {(jax.lax.Precision.HIGH, jax.lax.Precision.HIGH)}
    assert found(batch) == {None}
