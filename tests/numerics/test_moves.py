"""Moves leave the density invariant that they are given, forget where they started, and are tuned on others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.numerics.densities import unconstrained
from posterase.numerics.moves import move
from posterase.numerics.paths import Path, next_step
from tests.oracles import GammaPoisson, LinearRegression
from tests.statistical import assert_moments, rejected

KERNELS = [
    pe.HMCMoves(),
    pytest.param(pe.MALAMoves(), marks=pytest.mark.slow),
    pytest.param(pe.NUTSMoves(), marks=pytest.mark.slow),
]


def moved(known, start, rows, kernel, ended=True, at=1.0, most=12, n=4000):
    """Exact draws given the rows `start`, moved along the path at λ = `at` for a change of `rows`."""
    model = known.model()
    change = model.change(remove=rows)
    draws = pe.Draws(known.sample(start, (2, n // 2), seed=5))
    thetas, like = unconstrained(model, draws)
    path = Path(model, model.without(change), change, None, jnp.asarray(at), like, ended)
    out = move(jax.random.key(0), kernel, path, thetas.reshape(2, n // 2, -1), most=most, enough=0.1)
    return model, like, out


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_exact_kept_draws_stay_exact(kernel, x64):
    """On a skewed posterior; the twin moves draws of the full posterior's target instead."""
    known = GammaPoisson.make()
    rows = np.array([1, 4, 5])
    kept = np.setdiff1d(np.arange(12), rows)
    _, _, out = moved(known, kept, rows, kernel)
    rates = np.exp(out.thetas.reshape(-1))
    assert_moments(rates, known.mean(kept), known.variance(kept))
    assert out.correlation < 0.2, "they must have moved"
    assert 0.5 < out.acceptance <= 1
    _, _, wrong = moved(known, kept, np.array([2]), kernel)
    with rejected():
        assert_moments(np.exp(wrong.thetas.reshape(-1)), known.mean(kept), known.variance(kept))


@pytest.mark.slow
@pytest.mark.statistical
def test_moves_half_way_along_the_path(x64):
    """kept + ½ removed is a posterior too: that of half of each removed row."""
    known = GammaPoisson.make()
    rows = np.array([1, 4, 5])
    kept = np.setdiff1d(np.arange(12), rows)
    _, _, out = moved(known, np.arange(12), rows, pe.HMCMoves(), ended=False, at=0.5)
    a, b = known.a + known.y[kept].sum() + 0.5 * known.y[rows].sum(), known.b + len(kept) + 0.5 * len(rows)
    assert_moments(np.exp(out.thetas.reshape(-1)), np.asarray(a / b), np.asarray(a / b**2))


@pytest.mark.slow
def test_halves_are_tuned_on_each_other(x64):
    """A half's own spread does not matter to its moves: only the other's does."""
    known = LinearRegression.make()
    model = known.model()
    change = model.change(remove=[0])
    draws = pe.Draws(known.sample(np.arange(60), (2, 200), seed=5))
    thetas, like = unconstrained(model, draws)
    path = Path(model, model.without(change), change, None, jnp.asarray(1.0), like, True)
    halves = thetas.reshape(2, 200, -1)
    one = move(jax.random.key(0), pe.HMCMoves(), path, halves, most=1, enough=0.0).thetas
    stretched = np.stack([halves[0], halves[1].mean(axis=0) + 0.5 * (halves[1] - halves[1].mean(axis=0))])
    other = move(jax.random.key(0), pe.HMCMoves(), path, stretched, most=1, enough=0.0).thetas
    assert not np.allclose(one[0], other[0]), "the first half uses the second's spread"
    squeezed = np.stack([halves[0].mean(axis=0) + 0.5 * (halves[0] - halves[0].mean(axis=0)), halves[1]])
    squeezed[0, :10] = halves[0, :10]
    third = move(jax.random.key(0), pe.HMCMoves(), path, squeezed, most=1, enough=0.0).thetas
    np.testing.assert_allclose(third[0, :10], one[0, :10], rtol=1e-9)


def test_steps_keep_the_share_that_they_should():
    ratios = np.random.default_rng(0).normal(0, 3, size=1000)
    flat = np.zeros(1000)
    to = next_step(ratios, flat, 0.0, 0.5)
    weights = np.exp(to * ratios)
    assert weights.sum() ** 2 / (weights**2).sum() == pytest.approx(500, rel=1e-3)
    assert next_step(ratios / 100, flat, 0.3, 0.5) == 1.0
    assert to < next_step(ratios, flat, to, 0.5) <= 1


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: pe.HMCMoves(target_acceptance=1.5), "target_acceptance"),
        (lambda: pe.HMCMoves(max_leapfrogs=0), "max_leapfrogs"),
        (lambda: pe.NUTSMoves(max_doublings=0), "max_doublings"),
        (lambda: pe.Rejuvenate(ess_share=1.0), "ess_share"),
        (lambda: pe.Rejuvenate(max_moves=0), "max_moves"),
        (lambda: pe.Transport(samples=1), "samples"),
        (lambda: pe.Refit(warmup=1), "warmup"),
        (lambda: pe.InfluenceShift(newton_steps=2, hessian="full"), "kept rows"),
        (lambda: pe.InfluenceShift(reweight=True, weigh=False), "reweight"),
        (lambda: pe.Policy(ess=-1.0), "ess"),
    ],
)
def test_bad_options(make, argument):
    with pytest.raises((pe.errors.InvalidOptionError, pe.errors.InvalidTypeError), match=argument):
        make()


@pytest.mark.slow
@pytest.mark.statistical
def test_a_large_constant_does_not_coarsen_the_moves():
    """In float32 a log density of 3e7 is rounded to whole nats: moves are made in float64 then."""
    known = GammaPoisson.make()
    rows, kept = np.array([1, 4, 5]), np.setdiff1d(np.arange(12), [1, 4, 5])
    base = known.model()
    lifted = pe.Model(
        base.log_prior,
        lambda p, data: base.log_likelihood(p, data) + 3e6,
        base.data,
        transforms=base.transforms,
    )
    change = lifted.change(remove=rows)
    draws = pe.Draws(known.sample(kept, (2, 2000), seed=5))
    thetas, like = unconstrained(lifted, draws)
    path = Path(lifted, lifted.without(change), change, None, jnp.asarray(1.0), like, True)
    out = move(jax.random.key(0), pe.HMCMoves(), path, thetas.reshape(2, 2000, -1), most=6, enough=0.0)
    assert_moments(np.exp(out.thetas.reshape(-1)), known.mean(kept), known.variance(kept))
    assert out.unsettled < 0.1
