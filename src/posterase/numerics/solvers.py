"""Solvers of H x = v for a symmetric curvature H. A solver is an object that carries its own settings.

    Cholesky()                     H as a matrix, factorised: for up to some hundred parameters
    CG(rtol, preconditioner)       preconditioned conjugate gradients: products H v only
    Neumann(order=j, scale=c)      the paper's truncated series (Appendix B): j + 1 terms, products H v only

Each returns a `Solved` with its residual. None raises: a failed solve is a value, and the method that asked for it
says what to do.

**What Neumann leaves out.** The sum xⱼ = c Σᵢ₌₀ʲ (I − cH)ⁱ v has the residual v − H xⱼ = (I − cH)ʲ⁺¹ v. Along an
eigenvector of curvature λ it keeps the share 1 − (1 − cλ)ʲ⁺¹ of the exact solution: almost all where cλ(j + 1) ≫ 1,
almost nothing where cλ(j + 1) ≪ 1, about as if 1/(c(j + 1)) had been added to every curvature. It converges as j → ∞
where 0 < λ < 2/c for every λ, and diverges elsewhere; the paper's condition ‖cH‖ ≤ 1 is neither needed nor enough.
The curvatures that v excites, and their shares of it, are read off a few Lanczos steps from v.

**Preconditioners.** CG needs about √κ · ½ log(2/rtol) steps, κ the ratio of the largest to the smallest curvature, and
one step more for every curvature that stands out. So H is solved in units of the parameters' scales, where a posterior
that has no correlations is the identity (`DiagonalPreconditioner`), and with its largest curvatures there made equal
(`NystromPreconditioner`; Frangella, Tropp, Udell 2023, Randomized Nyström preconditioning, SIAM Journal on Matrix
Analysis 44). With S the scales, A = SHS, and Ω of r random orthonormal columns,

    A ≈ AΩ (ΩᵀAΩ)⁻¹ ΩᵀA = U Λ Uᵀ        (r products),        M⁻¹ = I + U (λᵣ Λ⁻¹ − I) Uᵀ

the curvatures along U, λ₁ … λᵣ in Λ, become λᵣ, and κ becomes about λᵣ over the smallest. Theirs is a system A + μI
with μ known; here H has its prior in it, and μ is 0.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from posterase.errors import InvalidOptionError
from posterase.numerics.curvature import Curvature
from posterase.runtime.checks import check_int, check_type
from posterase.runtime.precision import Number, is_known

CHOLESKY_UP_TO = 100
"""Parameters up to which the default solver is `Cholesky`. It makes d products H v, CG some ten: with 300 parameters
CG is already faster on a CPU (`python -m benchmarks influence_shift`; on a GPU, which makes products side by side, the
matrix still wins there), with few parameters Cholesky is exact at no cost."""

LANCZOS_STEPS = 16
"""How many products H v it takes to look at the spectrum."""

SMALLEST_SHARE = 1e-8
"""Curvatures that hold less of the vector's square than this are rounding, and not spoken of."""

Product = Callable[[Float[Array, " d"]], Float[Array, " d"]]
"""A vector to its product with a matrix that need not be there."""


class Spectrum(NamedTuple):
    """Curvatures that a vector excites (Ritz values), and what a truncated Neumann series makes of them."""

    curvatures: Float[Array, " k"]
    shares: Float[Array, " k"]
    """How much of |v|² lies along each."""
    kept: Float[Array, " k"]
    """The share of the exact solution that the series keeps along each: 1 is all, 0 nothing."""
    diverging: Bool[Array, " k"]
    """Where more terms make it worse: λ < 0 or λ > 2/scale."""
    damping: Float[Array, ""]
    """Curvatures below 1/(scale · (order + 1)) are damped, as if this had been added to all of them."""


class Solved(NamedTuple):
    """An approximate solution of H x = v."""

    value: Float[Array, " d"]
    residual: Float[Array, " d"]
    """v − H x."""
    relative_residual: Float[Array, ""]
    """|v − H x| / |v|, in the norm of the preconditioner where there is one."""
    products: ArrayLike
    """Products H v made, or 0 where H was a matrix."""
    iterations: ArrayLike
    """Steps of conjugate gradients, or terms of a series; 0 where H was a matrix."""
    smallest_curvature: Float[Array, ""]
    """The smallest curvature met; where it is negative the solution is a saddle, not a minimum."""
    spectrum: Spectrum | None
    """What the solver left out, where it is a series."""


class Solver(eqx.Module):
    """Solves H x = v."""

    @abc.abstractmethod
    def __call__(self, curvature: Curvature, vector: Float[Array, " d"], scales: Float[Array, " d"]) -> Solved:
        """Solve; `scales` are about the parameters' posterior standard deviations, to measure vectors in."""


class Cholesky(Solver):
    """Exact, by factorising H as a matrix. NaN where H is not positive definite."""

    def __call__(self, curvature: Curvature, vector: Float[Array, " d"], scales: Float[Array, " d"]) -> Solved:
        matrix = curvature.dense()
        operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
        value = lx.linear_solve(operator, vector, lx.Cholesky(), throw=False).value
        residual = vector - matrix @ value
        smallest = jnp.linalg.eigvalsh(scales[:, None] * matrix * scales)[0]
        return Solved(value, residual, _relative(residual, vector, scales), 0, 0, smallest, None)


class Preconditioner(eqx.Module):
    """An approximate inverse of H in units of the scales: SHS."""

    @abc.abstractmethod
    def prepare(self, mv: Product, scales: Float[Array, " d"]) -> Product:
        """The approximate inverse, as a function, from products with SHS."""

    @property
    def products(self) -> int:
        """How many products H v it takes to prepare."""
        return 0


class NoPreconditioner(Preconditioner):
    """None: conjugate gradients on H as it is."""

    def prepare(self, mv: Product, scales: Float[Array, " d"]) -> Product:
        return lambda vector: vector / scales**2  # in units of the scales H itself looks so


class DiagonalPreconditioner(Preconditioner):
    """The draws' variances."""

    def prepare(self, mv: Product, scales: Float[Array, " d"]) -> Product:
        return lambda vector: vector


class NystromPreconditioner(Preconditioner):
    """The draws' variances, and in their units the `rank` largest curvatures, found by as many products H v."""

    rank: int = eqx.field(default=16, static=True)

    def __check_init__(self) -> None:
        check_int("rank", self.rank, 1)

    @property
    def products(self) -> int:
        return self.rank

    def prepare(self, mv: Product, scales: Float[Array, " d"]) -> Product:
        curvatures, basis = nystrom(mv, scales.size, min(self.rank, scales.size), scales.dtype)
        change = curvatures[-1] / curvatures - 1
        return lambda vector: vector + basis @ (change * (basis.T @ vector))


class CG(Solver):
    """Conjugate gradients, until the residual is below `rtol` of |v|, both in units of the draws' spread.

    Our own, for two reasons that were measured (`docs/results/profile.md`). lineax ends where every single element of
    the residual is small beside the same element of v, which with thousands of them no float32 ever is. And the
    curvatures p·Hp that the steps meet tell whether H is positive definite, as Lanczos steps would, of which each
    costs one more product: they are the pivots of the same tridiagonal matrix, so that one of them is negative just
    where that matrix has a negative eigenvalue.

    Parameters
    ----------
    rtol, atol, max_steps
        When to end.
    preconditioner
        `DiagonalPreconditioner()`, the draws' variances; `NystromPreconditioner(rank=…)`, which pays where several
        curvatures stand out and steps must be few; `NoPreconditioner()` for none.
    """

    rtol: Number = 1e-5
    atol: Number = 0.0
    max_steps: int = eqx.field(default=500, static=True)
    preconditioner: Preconditioner = DiagonalPreconditioner()

    def __check_init__(self) -> None:
        check_int("max_steps", self.max_steps, 1)
        check_type(
            self.preconditioner,
            Preconditioner,
            "preconditioner",
            "use DiagonalPreconditioner(), NystromPreconditioner(rank=…) or NoPreconditioner().",
        )
        if is_known(self.rtol, self.atol) and not (self.rtol >= 0 and self.atol >= 0 and self.rtol + self.atol > 0):
            raise InvalidOptionError(
                f"CG cannot run with rtol={self.rtol}, atol={self.atol}.",
                "tolerances are not negative and not both zero.",
            )

    def __call__(self, curvature: Curvature, vector: Float[Array, " d"], scales: Float[Array, " d"]) -> Solved:
        def mv(u: Float[Array, " d"]) -> Float[Array, " d"]:
            return scales * curvature.mv(scales * u)

        nearly_solve = self.preconditioner.prepare(mv, scales)
        right = scales * vector
        enough = self.atol + self.rtol * jnp.linalg.norm(right)

        def goes_on(at: _Iterate) -> Bool[Array, ""]:
            return (jnp.linalg.norm(at.residual) > enough) & (at.steps < self.max_steps)  # NaN ends it

        def step(at: _Iterate) -> _Iterate:
            image = mv(at.direction)
            met = at.direction @ image
            length = at.fit / met
            residual = at.residual - length * image
            new = nearly_solve(residual)
            fit = residual @ new
            return _Iterate(
                value=at.value + length * at.direction,
                residual=residual,
                direction=new + fit / at.fit * at.direction,
                fit=fit,
                smallest=jnp.minimum(at.smallest, met / (at.direction @ at.direction)),
                steps=at.steps + 1,
            )

        first = nearly_solve(right)
        start = _Iterate(
            value=jnp.zeros_like(right),
            residual=right,
            direction=first,
            fit=right @ first,
            smallest=jnp.asarray(jnp.inf, right.dtype),
            steps=jnp.zeros((), jnp.int32),
        )
        end = jax.lax.while_loop(goes_on, step, start)
        value = scales * end.value
        residual = vector - curvature.mv(value)
        products = end.steps + min(self.preconditioner.products, vector.size) + 1
        relative = _relative(residual, vector, scales)
        return Solved(value, residual, relative, products, end.steps, end.smallest, None)


class _Iterate(NamedTuple):
    """Where conjugate gradients are, in units of the scales."""

    value: Float[Array, " d"]
    residual: Float[Array, " d"]
    direction: Float[Array, " d"]
    fit: Float[Array, ""]
    """The residual times its nearly solved form."""
    smallest: Float[Array, ""]
    steps: Int[Array, ""]


class Neumann(Solver):
    """The truncated series c Σᵢ₌₀ʲ (I − cH)ⁱ v of the paper's Appendix B, with j = `order` and c = `scale`."""

    order: int = eqx.field(static=True)
    scale: Number

    def __check_init__(self) -> None:
        check_int("order", self.order, 0)
        check_type(self.scale, (int, float, np.ndarray, np.number, jax.Array), "scale", "use a positive number.")
        if is_known(self.scale) and not 0 < float(self.scale) < float("inf"):
            raise InvalidOptionError(f"scale is {self.scale!r}.", "use a positive number, below 2 over the curvature.")

    def __call__(self, curvature: Curvature, vector: Float[Array, " d"], scales: Float[Array, " d"]) -> Solved:
        def term(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            total, power = carry
            return (total + power, power - self.scale * curvature.mv(power)), None

        start = (jnp.zeros_like(vector), vector)
        (total, residual), _ = jax.lax.scan(term, start, length=self.order + 1)
        spectrum = self._spectrum(curvature.mv, vector)
        made = self.order + 1 + spectrum.curvatures.size
        smallest = _smallest(spectrum.curvatures, spectrum.shares)
        relative = _relative(residual, vector, scales)
        return Solved(self.scale * total, residual, relative, made, self.order + 1, smallest, spectrum)

    def _spectrum(self, mv: Product, vector: Float[Array, " d"]) -> Spectrum:
        curvatures, shares = lanczos(mv, vector, min(vector.size, LANCZOS_STEPS))
        left = 1 - self.scale * curvatures
        return Spectrum(
            curvatures=curvatures,
            shares=shares,
            kept=1 - left ** (self.order + 1),
            diverging=jnp.abs(left) > 1,
            damping=jnp.asarray(1 / (self.scale * (self.order + 1))),
        )


def default_solver(dimension: int) -> Solver:
    """`Cholesky` where the curvature fits a matrix, else `CG`."""
    return Cholesky() if dimension <= CHOLESKY_UP_TO else CG()


def lanczos(
    mv: Product, vector: Float[Array, " d"], steps: int
) -> tuple[Float[Array, " steps"], Float[Array, " steps"]]:
    """Eigenvalues of H that `vector` excites, and the shares of |vector|² along them (Gauss quadrature).

    Ritz values never lie outside the spectrum. Where `vector` lies in a smaller invariant space, the surplus values
    are those of a few arbitrary directions and have share 0.
    """
    basis = jnp.zeros((steps, vector.size), vector.dtype)
    tiny = jnp.finfo(vector.dtype).eps

    def step(carry: tuple[Array, Array, Array], i: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        basis, current, scale = carry
        basis = basis.at[i].set(current)
        image = mv(current)
        alpha = image @ current
        scale = jnp.maximum(scale, jnp.linalg.norm(image))
        for _ in range(2):  # twice is enough, against the loss of orthogonality
            image = image - basis.T @ (basis @ image)
        beta = jnp.linalg.norm(image)
        ended = beta <= 100 * tiny * scale
        following = jnp.where(ended, 0.0, image / jnp.where(ended, 1.0, beta))
        return (basis, following, scale), (alpha, jnp.where(ended, 0.0, beta))

    norm = jnp.linalg.norm(vector)
    start = (basis, vector / jnp.where(norm > 0, norm, 1.0), jnp.zeros((), vector.dtype))
    _, (alphas, betas) = jax.lax.scan(step, start, jnp.arange(steps))
    off = jnp.diag(betas[:-1], 1)
    curvatures, vectors = jnp.linalg.eigh(jnp.diag(alphas) + off + off.T)
    return curvatures, vectors[0] ** 2


def nystrom(mv: Product, size: int, rank: int, dtype: Any) -> tuple[Float[Array, " rank"], Float[Array, "d rank"]]:
    """About the largest eigenvalues of a positive definite A, in falling order, and their vectors: `rank` products."""
    test = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (size, rank), dtype))[0]
    images = jax.lax.map(mv, test.T).T
    rounding = jnp.finfo(dtype).eps * jnp.linalg.norm(images)
    images = images + rounding * test  # taken off again below: what is factorised is then positive definite
    inner, turn = jnp.linalg.eigh(test.T @ images)
    inner = jnp.maximum(inner, rounding)  # an eigenvalue below is rounding, or A is not positive definite
    basis, rest = jnp.linalg.qr(images @ (turn / jnp.sqrt(inner)))
    left, values, _ = jnp.linalg.svd(rest)
    return jnp.maximum(values**2 - rounding, rounding), basis @ left


def _smallest(curvatures: Float[Array, " k"], shares: Float[Array, " k"]) -> Float[Array, ""]:
    return jnp.min(jnp.where(shares > SMALLEST_SHARE, curvatures, jnp.inf))


def _relative(residual: Float[Array, " d"], vector: Float[Array, " d"], scales: Float[Array, " d"]) -> Float[Array, ""]:
    norm = jnp.linalg.norm(scales * vector)
    return jnp.linalg.norm(scales * residual) / jnp.where(norm > 0, norm, 1.0)
