"""The paper's networks: their sizes, the forms of their convolutions, prior and likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from posterase.experiments.networks import (
    FASTEST,
    FORMS,
    ConvolutionalNetwork,
    LogLikelihood,
    NormalPrior,
    cifar_network,
    digits_network,
    lenet,
)

SHAPES = {"as the paper's": ((10, 10, 1), (2,), (3,), 5), "an even kernel, an odd image": ((9, 11, 2), (3,), (), 2)}


def test_sizes_are_the_papers():
    assert lenet().size == 61_706
    assert cifar_network().size == 725_962
    assert cifar_network(100).size == 725_962 + 90 * 385


def of(form, image, channels, hidden, kernel):
    return ConvolutionalNetwork(image, channels, hidden, 10, kernel=kernel, form=form)


def images(network, rows=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (rows, *network.image), dtype=np.uint8)
    return {"x": jnp.asarray(x), "y": jnp.asarray(rng.integers(0, 10, rows).astype(np.int32))}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_all_forms_are_the_same_function(shape, x64):
    """Logits, gradients and products with the Hessian, in float64, against XLA's own convolution."""
    found = {}
    for form in FORMS:
        network = of(form, *shape)
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), network.init(jax.random.key(1)))
        data = images(network)
        vector, unravel = ravel_pytree(params)
        likelihood = LogLikelihood(network)

        @jax.jit
        def everything(v, likelihood=likelihood, unravel=unravel, data=data, network=network):
            gradient = jax.grad(lambda u: likelihood(unravel(u), data).sum())
            product = jax.jvp(gradient, (v,), (v,))[1]
            return network.logits(unravel(v), data["x"]).ravel(), gradient(v), product

        found[form] = everything(vector)
    for form in FORMS:
        for ours, direct in zip(found[form], found["direct"], strict=True):
            np.testing.assert_allclose(ours, direct, rtol=1e-9, atol=1e-11, err_msg=form)


def test_a_convolution_by_hand():
    """One 2 × 2 kernel on a 3 × 3 image: of the four sums the largest, then a ReLU, and no ReLU on the logits."""
    network = ConvolutionalNetwork((3, 3, 1), (1,), (), 2, kernel=2)
    x = np.arange(9, dtype=np.uint8).reshape(1, 3, 3, 1)
    scaled = x[0, :, :, 0] / 255 - 0.5
    w = np.array([[1.0, -2.0], [0.5, 3.0]])
    sums = [np.sum(scaled[i : i + 2, j : j + 2] * w) for i in (0, 1) for j in (0, 1)]
    hidden = max(max(sums) + 2.0, 0)
    params = {
        "convolution0": {"w": jnp.asarray(w[:, :, None, None], jnp.float32), "b": jnp.array([2.0])},
        "dense0": {"w": jnp.array([[1.0, -1.0]]), "b": jnp.array([0.0, -5.0])},
    }
    logits = network.logits(params, jnp.asarray(x))
    np.testing.assert_allclose(logits, [[hidden, -hidden - 5.0]], rtol=1e-5)
    assert logits[0, 1] < 0


def test_prior_and_likelihood_are_log_densities():
    network = digits_network()
    params = jax.jit(network.init)(jax.random.key(0))
    flat = np.asarray(ravel_pytree(params)[0])
    np.testing.assert_allclose(NormalPrior(0.1)(params), -0.5 * np.sum(flat**2) / 0.01, rtol=1e-5)
    assert NormalPrior(float("inf"))(params) == 0
    data = images(network)
    logits = np.asarray(jax.jit(network.logits)(params, data["x"]), float)
    expected = logits[np.arange(6), data["y"]] - np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(jax.jit(LogLikelihood(network))(params, data), expected, rtol=1e-4)


def test_weights_begin_uniform_in_one_over_the_root_of_their_inputs():
    params = jax.jit(lenet().init)(jax.random.key(0))
    for name, inputs in {"convolution0": 25, "convolution1": 150, "dense0": 400, "dense2": 84}.items():
        bound = 1 / np.sqrt(inputs)
        for leaf in params[name].values():
            assert np.abs(leaf).max() <= bound
        assert np.abs(params[name]["w"]).max() > 0.9 * bound
        assert np.std(params[name]["w"]) == pytest.approx(bound / np.sqrt(3), rel=0.2)


@pytest.mark.slow
@pytest.mark.slow
def test_products_in_bfloat16_are_near_those_in_float32():
    exact, rough = digits_network(), digits_network(precision="bfloat16")
    params, data = jax.jit(exact.init)(jax.random.key(0)), images(exact)
    logits = tuple(jax.jit(network.logits)(params, data["x"]) for network in (exact, rough))
    assert logits[1].dtype == jnp.float32
    np.testing.assert_allclose(*logits, atol=0.02)
    assert not np.array_equal(*logits)


def test_every_backend_has_a_form():
    assert {"cpu", "gpu", "tpu"} <= FASTEST.keys()
    assert set(FASTEST.values()) <= set(FORMS)
