"""The same on a GPU: float32 and float64, without a change. Skipped where there is none."""

import jax
import numpy as np
import pytest

import posterase as pe
from tests.oracles import LinearRegression

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("eraser", [pe.Reweight(), pe.InfluenceShift(), pe.InfluenceShift(solver=pe.CG())], ids=str)
def test_a_gpu_gives_what_a_cpu_gives(eraser, precision):
    known = LinearRegression.make()
    results = {}
    for backend in ("cpu", "gpu"):
        with jax.default_device(jax.devices(backend)[0]):
            model = known.model()
            draws = pe.Draws(known.sample(np.arange(60), (4, 500), seed=0))
            erased = eraser(0, model, draws, model.removal([3, 8]))
            assert {device.platform for device in erased.draws.params["beta"].devices()} == {backend}
            results[backend] = jax.device_get((erased.draws.params, erased.draws.log_weights))
    tolerance = 1e-9 if precision == "float64" else 2e-3  # float32 products on a GPU may be rounded to TF32
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), *results.values())
