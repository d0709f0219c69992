"""The same on a GPU: float32 and float64, without a change. Skipped where there is none."""

import jax
import numpy as np
import pytest
from benchmarks.scaling import problem

import posterase as pe
from posterase.model.densities import LogDensity
from tests.oracles import LinearRegression

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("method", [pe.Reweight(), pe.InfluenceShift(), pe.InfluenceShift(solver=pe.CG())], ids=str)
def test_a_gpu_gives_what_a_cpu_gives(method, precision):
    known = LinearRegression.make()
    results = {}
    for backend in ("cpu", "gpu"):
        with jax.default_device(jax.devices(backend)[0]):
            model = known.model()
            draws = pe.Draws(known.sample(np.arange(60), (4, 500), seed=0))
            erased = method(0, model, draws, model.change(remove=[3, 8]))
            assert {device.platform for device in erased.draws.params["beta"].devices()} == {backend}
            results[backend] = jax.device_get((erased.draws.params, erased.draws.log_weights))
    tolerance = 1e-9 if precision == "float64" else 2e-5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), *results.values())


def test_gradients_over_many_rows_have_all_digits():
    """jax would round float32 products to three, and a step go astray by a tenth of the posterior's width."""
    model, draws, _ = problem(1_000_000, 20, 1, 50)
    thetas, sd = draws.flat(), np.asarray(draws.flat()).std(axis=0)
    gradients = jax.jit(lambda density, at: jax.vmap(jax.grad(density))(at))
    with jax.enable_x64(True):
        exact = np.asarray(gradients(LogDensity(model), thetas.astype(np.float64)))

    def error():
        return np.abs((np.asarray(gradients(LogDensity(model), thetas), np.float64) - exact) * sd).max()

    assert error() < 1e-3
    with jax.default_matmul_precision("tensorfloat32"):
        assert error() > 0.05
