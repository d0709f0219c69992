"""Solvers against matrices written out: values, residuals, and what a series leaves out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.model.densities import LogDensity
from posterase.numerics.curvature import Curvature, ravel_draws
from posterase.numerics.solvers import CHOLESKY_UP_TO, default_solver, lanczos, nystrom

D = 6
MATRIX = np.diag([0.5, 1.0, 2.0, 4.0, 8.0, 16.0]) + 0.3
VECTOR = np.array([1.0, -2.0, 0.5, 3.0, -1.0, 0.7])
SCALES = 1 / np.sqrt(np.diag(MATRIX))


def curvature(matrix: np.ndarray = MATRIX) -> Curvature:
    """A model whose −∇² is this matrix everywhere."""
    precision = jnp.asarray(matrix)
    model = pe.Model(lambda p: -0.5 * p["x"] @ precision @ p["x"], lambda p, y: 0 * y * p["x"][0], np.zeros(4))
    thetas = {"x": jax.random.normal(jax.random.key(0), (7, len(matrix)))}
    like = jax.tree.map(lambda leaf: leaf[0], thetas)
    return Curvature(LogDensity(model), ravel_draws(thetas), jnp.full(7, 1 / 7), like)


def solve(solver, matrix=MATRIX):
    return solver(curvature(matrix), jnp.asarray(VECTOR), jnp.asarray(SCALES))


def test_curvature_products_and_matrix(x64):
    np.testing.assert_allclose(curvature().mv(jnp.asarray(VECTOR)), MATRIX @ VECTOR, rtol=1e-12)
    np.testing.assert_allclose(curvature().dense(), MATRIX, rtol=1e-12)


@pytest.mark.parametrize("solver", [pe.Cholesky(), pe.CG(rtol=1e-12)], ids=["Cholesky", "CG"])
def test_exact_solvers(solver, x64):
    solved = solve(solver)
    np.testing.assert_allclose(solved.value, np.linalg.solve(MATRIX, VECTOR), rtol=1e-9)
    np.testing.assert_allclose(solved.residual, VECTOR - MATRIX @ np.asarray(solved.value), atol=1e-12)
    assert solved.relative_residual < 1e-10


def test_cg_stops_where_it_is_told(x64):
    few = solve(pe.CG(rtol=1e-12, max_steps=2))
    assert few.relative_residual > 1e-3
    rough = solve(pe.CG(rtol=0.1))
    assert rough.relative_residual < 0.3
    assert rough.products < solve(pe.CG(rtol=1e-12)).products


@pytest.mark.parametrize("order", [0, 1, 5, 64])
@pytest.mark.parametrize("scale", [0.01, 0.1, 0.2])
def test_neumann_is_its_polynomial(order, scale, x64):
    """c Σᵢ₌₀ʲ (I − cH)ⁱ v, term by term, and (I − cH)ʲ⁺¹ v left over. At scale 0.2 the series diverges."""
    powers = [np.linalg.matrix_power(np.eye(D) - scale * MATRIX, i) @ VECTOR for i in range(order + 2)]
    solved = solve(pe.Neumann(order=order, scale=scale))
    np.testing.assert_allclose(solved.value, scale * sum(powers[: order + 1]), rtol=1e-9)
    np.testing.assert_allclose(solved.residual, powers[order + 1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(solved.residual, VECTOR - MATRIX @ np.asarray(solved.value), rtol=1e-6, atol=1e-9)


def test_neumann_says_what_it_damped(x64):
    solved = solve(pe.Neumann(order=9, scale=0.02))
    exact = np.linalg.eigvalsh(MATRIX)
    np.testing.assert_allclose(solved.spectrum.curvatures, exact, rtol=1e-8)
    np.testing.assert_allclose(solved.spectrum.kept, 1 - (1 - 0.02 * exact) ** 10, rtol=1e-7)
    np.testing.assert_allclose(solved.spectrum.shares.sum(), 1, rtol=1e-12)
    assert not solved.spectrum.diverging.any()
    assert float(solved.spectrum.damping) == pytest.approx(5.0)
    # Along a direction of small curvature the series does what a prior of precision `damping` would do.
    small, kept = float(solved.spectrum.curvatures[0]), float(solved.spectrum.kept[0])
    assert kept == pytest.approx(small / (small + 5.0), rel=0.1)


@pytest.mark.parametrize(("rows", "scale", "times"), [(50_000, 0.08, 96), (60_000, 0.05, 185)])
def test_the_papers_settings_damp_like_a_much_stronger_prior(rows, scale, times):
    """CIFAR-10 and Fashion-MNIST: c = scale/N, j = 64, prior N(0, 0.1²)."""
    damping = solve(pe.Neumann(order=64, scale=scale / rows)).spectrum.damping
    assert float(damping) / 0.1**-2 == pytest.approx(times, abs=0.5)


@pytest.mark.parametrize(
    ("matrix", "scale"),
    [(MATRIX, 0.2), (MATRIX - 2 * np.eye(D), 0.05)],
    ids=["a curvature above 2/scale", "a negative curvature"],
)
def test_neumann_says_that_it_diverges(matrix, scale, x64):
    spectrum = solve(pe.Neumann(order=3, scale=scale), matrix).spectrum
    exact = np.linalg.eigvalsh(matrix)
    np.testing.assert_array_equal(spectrum.diverging, (exact < 0) | (exact > 2 / scale))
    assert spectrum.diverging.any()


def test_norm_at_most_one_is_neither_needed_nor_enough(x64):
    """The paper asks for ‖cH‖ ≤ 1. With ‖cH‖ = 1.7 the series converges; with ‖cH‖ < 1 and λ < 0 it diverges."""
    largest = np.linalg.eigvalsh(MATRIX)[-1]
    assert solve(pe.Neumann(order=400, scale=1.7 / largest)).relative_residual < 1e-3
    indefinite = MATRIX - 2 * np.eye(D)
    scale = 0.9 / np.abs(np.linalg.eigvalsh(indefinite)).max()
    assert solve(pe.Neumann(order=400, scale=scale), indefinite).relative_residual > 1e3


def test_lanczos_in_a_smaller_space(x64):
    """A vector along one eigenvector excites one curvature, however many steps are taken."""
    values, vectors = np.linalg.eigh(MATRIX)
    curvatures, shares = lanczos(lambda v: jnp.asarray(MATRIX) @ v, jnp.asarray(vectors[:, 2]), 4)
    assert curvatures[jnp.argmax(shares)] == pytest.approx(values[2], rel=1e-9)
    assert shares.max() == pytest.approx(1, rel=1e-9)


def test_lanczos_finds_the_extremes_of_a_large_spectrum(x64):
    spectrum = jnp.linspace(1, 100, 400)
    curvatures, _ = lanczos(lambda v: spectrum * v, jnp.ones(400), 16)
    assert curvatures.min() > 1
    assert curvatures.max() < 100
    assert curvatures.max() > 98


def test_default_solver():
    assert isinstance(default_solver(CHOLESKY_UP_TO), pe.Cholesky)
    assert isinstance(default_solver(CHOLESKY_UP_TO + 1), pe.CG)


def test_a_vector_of_zeros_needs_no_shift():
    for solver in (pe.Cholesky(), pe.CG(), pe.Neumann(order=3, scale=0.05)):
        solved = solver(curvature(), jnp.zeros(D), jnp.asarray(SCALES))
        np.testing.assert_array_equal(solved.value, 0)
        assert solved.relative_residual == 0


def of_spectrum(spectrum):
    """A curvature with these eigenvalues, in a turned basis."""
    size = len(spectrum)
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(size, size)))[0]
    return (basis * spectrum) @ basis.T


def steps_on(matrix, solver, scales=None):
    """How many steps a right-hand side takes that excites every curvature; its solution is checked too."""
    vector = np.random.default_rng(2).normal(size=len(matrix))
    scales = np.ones(len(matrix)) if scales is None else scales
    solved = eqx.filter_jit(solver)(curvature(matrix), jnp.asarray(vector), jnp.asarray(scales))
    error = np.asarray(solved.value) - np.linalg.solve(matrix, vector)
    assert np.sqrt(error @ matrix @ error) < 1e-4 * np.sqrt(vector @ np.linalg.solve(matrix, vector))
    return int(solved.iterations)


@pytest.mark.parametrize("ratio", [4, 36, 100])
def test_steps_grow_as_the_root_of_the_ratio_of_curvatures(ratio, x64):
    """About √κ · ½ log(2/rtol), for curvatures all over between 1 and κ; never more than that by much."""
    theory = np.sqrt(ratio) * 0.5 * np.log(2 / 1e-8)
    steps = steps_on(of_spectrum(np.linspace(1, ratio, 150)), pe.CG(rtol=1e-8))
    assert theory / 3 < steps < 1.2 * theory + 2


def test_scales_that_are_right_leave_nothing_to_do_and_wrong_ones_cost_steps(x64):
    """Independent parameters of standard deviations 1/3 to 3; the twin has them the wrong way round."""
    spreads = np.geomspace(1 / 3, 3, 60)
    matrix = np.diag(spreads**-2)
    right = steps_on(matrix, pe.CG(rtol=1e-9), spreads)
    none = steps_on(matrix, pe.CG(rtol=1e-9, preconditioner=pe.NoPreconditioner()), spreads)
    wrong = steps_on(matrix, pe.CG(rtol=1e-9), 1 / spreads)
    assert right == 1
    assert none > 20
    assert wrong > 1.2 * none


def test_nystrom_takes_away_what_stands_out(x64):
    """Ten curvatures of 1,000 to 10,000 over a bulk between 1 and 2: only the bulk's steps are left."""
    matrix = of_spectrum(np.concatenate([np.geomspace(1e3, 1e4, 10), np.linspace(1, 2, 110)]))
    diagonal = steps_on(matrix, pe.CG(rtol=1e-6))
    bulk = steps_on(of_spectrum(np.linspace(1, 2, 120)), pe.CG(rtol=1e-6))
    # A sketch of twenty finds the ten; one of three does not, and takes as many steps but for a few.
    found = steps_on(matrix, pe.CG(rtol=1e-6, preconditioner=pe.NystromPreconditioner(rank=20)))
    missed = steps_on(matrix, pe.CG(rtol=1e-6, preconditioner=pe.NystromPreconditioner(rank=3)))
    assert diagonal >= bulk + 10
    assert found <= bulk + 3
    assert missed >= found + 5


def test_nystrom_is_exact_on_a_matrix_of_low_rank(x64):
    values = np.array([50.0, 20.0, 3.0, 0.5])
    matrix = of_spectrum(np.concatenate([values, np.zeros(36)]))
    found, basis = nystrom(lambda v: jnp.asarray(matrix) @ v, 40, 8, jnp.float64)
    np.testing.assert_allclose(found[:4], values, rtol=1e-6)
    np.testing.assert_allclose(basis.T @ basis, np.eye(8), atol=1e-10)
    np.testing.assert_allclose(np.asarray(basis[:, :4] * found[:4]) @ np.asarray(basis[:, :4]).T, matrix, atol=1e-5)


def test_products_are_counted(x64):
    solved = solve(pe.CG(preconditioner=pe.NystromPreconditioner(rank=2)))
    assert solved.products == solved.iterations + 2 + 1
    assert solve(pe.CG(preconditioner=pe.NystromPreconditioner(rank=50))).products <= D + D + 1


@pytest.mark.parametrize(
    "preconditioner", [pe.NoPreconditioner(), pe.DiagonalPreconditioner(), pe.NystromPreconditioner(rank=2)], ids=str
)
def test_cg_sees_a_negative_curvature(preconditioner, x64):
    solver = pe.CG(rtol=1e-10, preconditioner=preconditioner)
    assert solve(solver).smallest_curvature > 0
    assert solve(solver, MATRIX - 2 * np.eye(D)).smallest_curvature < 0


def test_cg_ends_in_float32_with_thousands_of_parameters():
    """The residual is small beside the vector; not each of its elements beside its own, which rounding never allows."""
    size = 5000
    spectrum = jnp.linspace(1.0, 10.0, size)
    model = pe.Model(lambda p: -0.5 * jnp.sum(spectrum * p**2), lambda p, y: 0 * y * p[0], np.zeros(4))
    thetas = jnp.zeros((1, size))
    vector = jax.random.normal(jax.random.key(0), (size,))
    solved = pe.CG(rtol=1e-5)(Curvature(LogDensity(model), thetas, jnp.ones(1), thetas[0]), vector, jnp.ones(size))
    assert solved.iterations < np.sqrt(10) * 0.5 * np.log(2 / 1e-5) + 2
    assert solved.relative_residual < 2e-5


def test_a_rank_of_zero_is_refused():
    with pytest.raises(pe.errors.InvalidOptionError, match="rank"):
        pe.NystromPreconditioner(rank=0)
