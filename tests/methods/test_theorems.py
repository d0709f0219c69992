"""Theorems 1 and 2 of the paper, measured as slopes on a model that is not Gaussian.

Logistic regression with two parameters; its posterior is a grid of weighted draws, so that expectations are exact to
rounding. A *coherent* group (one row, repeated) of growing size k is removed. Theorem 1: the distance from the shift
to the exact minimiser of KL(p_S(· − δ) ‖ p_{S−S′}) (Eq. 1) grows like k². Theorem 2: KL at the shift minus KL at the
minimiser grows like k⁴.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe

ROWS = 1000
SIZES = np.array([1, 2, 4, 8])


@functools.cache
def logistic(coherent: bool) -> tuple[pe.Model, pe.Draws]:
    """The model, and its posterior as a grid of weighted draws (the trapezoid rule is exact on a smooth density)."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(ROWS), rng.normal(size=ROWS)])
    y = (rng.uniform(size=ROWS) < 1 / (1 + np.exp(-(x @ [0.3, -0.8])))).astype(float)
    if coherent:
        x[: SIZES[-1]], y[: SIZES[-1]] = [1.0, 1.5], 1.0
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p**2) / 25,
        lambda p, data: data["y"] * (data["x"] @ p) - jnp.logaddexp(0, data["x"] @ p),
        {"x": x, "y": y},
    )
    mode = newton_minimum(lambda theta: -model.log_density(theta), jnp.zeros(2))
    root = jnp.linalg.cholesky(jnp.linalg.inv(-jax.hessian(model.log_density)(mode)))
    nodes = jnp.linspace(-6.5, 6.5, 23)
    grid = jnp.stack(jnp.meshgrid(nodes, nodes), -1).reshape(-1, 2) @ root.T + mode
    return model, pe.Draws(grid[None], jax.vmap(model.log_density)(grid)[None])


@eqx.filter_jit
def newton_step(function, at, *args):
    return at - jnp.linalg.solve(jax.hessian(function)(at, *args), jax.grad(function)(at, *args))


def newton_minimum(function, at, *args):
    for _ in range(7):
        before, at = at, newton_step(function, at, *args)
    np.testing.assert_allclose(before, at, atol=1e-12)
    return at


def kl_up_to_constant(delta, kept, draws):
    """KL(p_S(· − δ) ‖ p_{S−S′}) as a function of δ, up to a constant: −E kept(θ + δ)."""
    return -draws.weights.ravel() @ jax.vmap(lambda theta: kept(theta + delta))(draws.flat())


def shift(hessian, model, draws, change):
    return jnp.asarray(pe.InfluenceShift(hessian=hessian, weigh=False)(0, model, draws, change).details.shift)


@functools.cache
def errors(hessian: str) -> tuple[np.ndarray, np.ndarray]:
    """For each size of the group: distance of the shift to the minimiser of Eq. 1, and the KL it costs."""
    model, draws = logistic(coherent=True)
    kl = eqx.filter_jit(kl_up_to_constant)
    distances, gaps = [], []
    for size in SIZES:
        change = model.change(remove=np.arange(size))
        kept = pe.split(model, change).target
        ours = shift(hessian, model, draws, change)
        best = newton_minimum(kl_up_to_constant, ours, kept, draws)
        distances.append(float(jnp.linalg.norm(ours - best)))
        gaps.append(float(kl(ours, kept, draws) - kl(best, kept, draws)))
    return np.array(distances), np.array(gaps)


def slope(values: np.ndarray, sizes: np.ndarray = SIZES) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


@pytest.mark.parametrize("hessian", ["full", pytest.param("kept", marks=pytest.mark.slow)])
def test_theorems_1_and_2(hessian, x64):
    distances, gaps = errors(hessian)
    assert slope(distances) == pytest.approx(2, abs=0.1)
    assert slope(gaps) == pytest.approx(4, abs=0.2)
    assert (gaps > 0).all()


def test_kept_hessian_is_nearer_than_the_papers(x64):
    assert (errors("kept")[0] < errors("full")[0]).all()


@pytest.mark.slow
def test_random_rows_grow_more_slowly(x64):
    """Gradients of many random rows cancel, their curvatures do not: the slope of the rms distance is 1.5."""
    model, draws = logistic(coherent=False)
    sizes = np.array([16, 32, 64, 128])
    squares = np.zeros(len(sizes))
    for seed in range(20):
        rows = np.random.default_rng(seed).permutation(ROWS)
        for at, size in enumerate(sizes):
            change = model.change(remove=rows[:size])
            ours = shift("full", model, draws, change)
            best = newton_minimum(kl_up_to_constant, ours, pe.split(model, change).target, draws)
            squares[at] += float((ours - best) @ (ours - best))
    assert slope(np.sqrt(squares), sizes) == pytest.approx(1.5, abs=0.2)
