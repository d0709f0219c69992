"""Networks of Flax (nnx and linen) and Equinox whose parameters were sampled."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.errors import (
    DrawsShapeError,
    InvalidOptionError,
    InvalidTypeError,
    MissingExtraError,
    UnsupportedModelError,
)

flax = pytest.importorskip("flax")
from flax import linen, nnx  # noqa: E402

RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(40, 3)).astype(np.float32), "y": RNG.integers(0, 4, 40)}


class OfNnx(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(5, 4, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(jnp.tanh(self.hidden(x))))


class OfLinen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(4)(jnp.tanh(linen.Dense(5)(x)))


class OfEquinox(eqx.Module):
    hidden: eqx.nn.Linear
    out: eqx.nn.Linear
    name: str

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.hidden, self.out = eqx.nn.Linear(3, 5, key=first), eqx.nn.Linear(5, 4, key=second)
        self.name = "small"

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


def many(tree, *shape):
    """A tree's arrays, moved a little for every draw."""
    moved = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: leaf + 0.1 * moved.normal(size=(*shape, *leaf.shape)).astype(np.float32), tree)


def of_nnx():
    module = OfNnx(nnx.Rngs(0))
    return module, nnx.to_pure_dict(nnx.state(module, nnx.Param)), pe.from_flax


def of_linen():
    module = OfLinen()
    return module, module.init(jax.random.key(0), DATA["x"][:1])["params"], pe.from_flax


def of_equinox():
    module = OfEquinox(jax.random.key(0))
    return module, eqx.filter(module, eqx.is_inexact_array), pe.from_equinox


def weights(params):
    """Of both layers, inputs first, whatever they are called."""
    leaves = jax.tree.leaves(params)
    found = {leaf.shape: np.asarray(leaf, float) for leaf in leaves}
    first = found[(3, 5)] if (3, 5) in found else found[(5, 3)].T
    last = found[(5, 4)] if (5, 4) in found else found[(4, 5)].T
    return first, found[(5,)], last, found[(4,)]


def by_hand(params):
    """Log-likelihoods, in numpy."""
    first, bias, last, own = weights(params)
    logits = np.tanh(DATA["x"] @ first + bias) @ last + own
    return logits[np.arange(40), DATA["y"]] - np.log(np.exp(logits).sum(axis=1))


@pytest.mark.parametrize("made", [of_nnx, of_linen, of_equinox])
def test_densities_are_the_modules(made):
    module, params, bridge = made()
    model, draws = bridge(module, DATA, many(params, 2, 6), prior_sd=0.5)
    assert (draws.n_chains, draws.n_draws) == (2, 6)
    one = jax.tree.map(lambda leaf: leaf[1, 3], draws.params)
    np.testing.assert_allclose(model.log_rows(one, jnp.arange(40)), by_hand(one), rtol=2e-4, atol=1e-5)
    squares = sum(float((np.asarray(leaf, float) ** 2).sum()) for leaf in jax.tree.leaves(one))
    np.testing.assert_allclose(model.log_joint(one), by_hand(one).sum() - 0.5 * squares / 0.25, rtol=1e-4)


@pytest.mark.parametrize(
    "made", [of_equinox, *(pytest.param(each, marks=pytest.mark.slow) for each in (of_nnx, of_linen))]
)
def test_chains_are_sampled_and_forget(made):
    """SG-MCMC of a module, its state through the bridge again, and a method for chains that have not converged."""
    module, params, bridge = made()
    starts = many(params, 2)
    model, _ = bridge(module, DATA, many(params, 2, 1), prior_sd=1.0)
    sampler = pe.SGLD(pe.PolynomialSteps(1e-4), batch=16)
    state = pe.sample(model, sampler, pe.start_chains(0, model, sampler, starts), 1, thin=50).state
    again, draws = bridge(module, DATA, state, prior_sd=1.0)
    erased = pe.Rewind(25, initial=starts, share=0.3, batch=16)(0, again, draws, again.change(remove=[1, 2, 3]))
    assert jax.tree.structure(erased.draws.params) == jax.tree.structure(draws.params)
    assert (erased.details.steps == 25).all()


def test_draws_as_each_library_keeps_them():
    module, params, _ = of_nnx()
    stacked = nnx.state(module, nnx.Param)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), stacked)
    flat = pe.from_flax(module, DATA, stacked, prior_sd=1.0, axes="draw")[1]
    assert flat.params["out"]["bias"].shape == (1, 3, 4)
    module, params, _ = of_linen()
    assert pe.from_flax(module, DATA, {"params": many(params, 3)}, prior_sd=1.0, axes="draw")[1].n_draws == 3
    module, params, _ = of_equinox()
    modules = eqx.filter_vmap(OfEquinox)(jax.random.split(jax.random.key(0), 3))
    assert pe.from_equinox(module, DATA, modules, prior_sd=1.0, axes="chain")[1].n_chains == 3
    with pytest.raises(DrawsShapeError, match="ends of chains"):
        pe.from_equinox(module, DATA, modules, prior_sd=1.0)
    wide = pe.from_equinox(module, DATA, many(params, 5, 2), prior_sd=1.0)[1]
    assert (wide.n_chains, wide.n_draws) == (5, 2)


@pytest.mark.parametrize(
    ("name", "y"),
    [("bernoulli", np.arange(40) % 2), ("normal", RNG.normal(size=40)), ("callable", RNG.normal(size=40))],
)
def test_likelihoods(name, y):
    module = eqx.nn.Linear(3, 1, key=jax.random.key(0))
    given = (lambda out, y: -jnp.abs(out[:, 0] - y)) if name == "callable" else name
    params = eqx.filter(module, eqx.is_inexact_array)
    model, draws = pe.from_equinox(
        module, {**DATA, "y": y}, many(params, 1, 4), prior_sd=1.0, log_likelihood=given, noise_sd=2.0
    )
    one = jax.tree.map(lambda leaf: leaf[0, 2], draws.params)
    out = DATA["x"] @ np.asarray(one.weight)[0] + np.asarray(one.bias)[0]
    expected = {
        "bernoulli": y * out - np.log1p(np.exp(out)),
        "normal": -0.5 * ((y - out) / 2) ** 2,
        "callable": -np.abs(out - y),
    }[name]
    np.testing.assert_allclose(model.log_rows(one, jnp.arange(40)), expected, rtol=1e-3, atol=1e-4)


def test_statistics_over_batches_are_refused():
    class Normed(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(3, rngs=rngs)

        def __call__(self, x):
            return self.norm(x)

    class NormedLinen(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.BatchNorm(use_running_average=True)(x)

    with pytest.raises(UnsupportedModelError, match="BatchStat"):
        pe.from_flax(Normed(nnx.Rngs(0)), DATA, {}, prior_sd=1.0)
    with pytest.raises(UnsupportedModelError, match="batch_stats"):
        pe.from_flax(NormedLinen(), DATA, {}, prior_sd=1.0)
    with pytest.raises(UnsupportedModelError, match="StateIndex"):
        pe.from_equinox(eqx.nn.BatchNorm(3, axis_name="batch", mode="ema"), DATA, {}, prior_sd=1.0)


def test_bad_input():
    module, params, bridge = of_equinox()
    draws = many(params, 1, 3)
    with pytest.raises(InvalidOptionError, match="no prior"):
        bridge(module, DATA, draws)
    with pytest.raises(InvalidOptionError, match="two priors"):
        bridge(module, DATA, draws, prior_sd=1.0, log_prior=lambda p: 0.0)
    with pytest.raises(InvalidOptionError, match="prior_sd is -1"):
        bridge(module, DATA, draws, prior_sd=-1.0)
    with pytest.raises(InvalidOptionError, match="'poisson'"):
        bridge(module, DATA, draws, prior_sd=1.0, log_likelihood="poisson")
    for targets in (DATA["y"] - 1, DATA["y"] + 1, DATA["y"] + 0.0):
        with pytest.raises(InvalidOptionError, match="classes from 0 to 3"):
            bridge(module, {**DATA, "y": targets}, draws, prior_sd=1.0)
    with pytest.raises(InvalidOptionError, match="not 0 and 1"):
        bridge(module, {**DATA, "y": DATA["y"] - 1}, draws, prior_sd=1.0, log_likelihood="bernoulli")
    with pytest.raises(InvalidOptionError, match="noise_sd"):
        bridge(module, DATA, draws, prior_sd=1.0, log_likelihood="normal", noise_sd=0.0)
    with pytest.raises(InvalidTypeError, match="'x' and 'y'"):
        bridge(module, DATA["x"], draws, prior_sd=1.0)
    with pytest.raises(InvalidTypeError, match="from_equinox"):
        pe.from_flax(module, DATA, draws, prior_sd=1.0)
    with pytest.raises(InvalidTypeError, match="from_flax"):
        pe.from_equinox(OfLinen(), DATA, draws, prior_sd=1.0)
    with pytest.raises(DrawsShapeError, match="other parameters"):
        pe.from_flax(OfLinen(), DATA, {"other": np.ones((3, 2))}, prior_sd=1.0)


def test_without_flax(monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(MissingExtraError, match="networks"):
        pe.from_flax(None, DATA, {}, prior_sd=1.0)
