"""InfluenceShift: move every draw by the MCMC influence function of the removed rows (Section 4.2, Appendix B).

Definition 3 of the paper, with our signs,

    I(S′) = H⁻¹ Σ_{z∈S′} E ∇ log p(z | θ),        H = −E ∇² log p(θ, S),        E over draws of p(θ | S)

and Algorithm 1 moves each draw against it,

    θ ← θ − I(S′).

This is the first-order solution of min over δ of KL(p_S(· − δ) ‖ p_{S−S′}) (Eq. 1): one Euler step along the path that
lets the removed rows fade out. With `hessian="kept"`, the default, H is the curvature of the kept rows' density
instead: one Newton step on the same problem. Where all rows are alike and a share r of them is removed, the paper's H
leaves a share r of the needed shift undone; on a Gaussian posterior the kept H leaves nothing.

Draws are moved on the unconstrained scale and returned on their own. A shift moves the mean and nothing else: where a
share r of like rows is removed, ½(−r − log(1 − r)) nats a dimension remain in the covariance, whatever the shift.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from posterase.draws.draws import Draws
from posterase.draws.objections import Objection
from posterase.errors import InvalidOptionError, ModelError, NonFiniteResultError
from posterase.methods.base import Method, MethodResult, Problem, check_in_support
from posterase.methods.diagnostics import Diagnostics, weigh, weight_diagnostics
from posterase.model.base import AbstractModel
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.cost import Cost
from posterase.numerics.curvature import Curvature, gradient, mean_gradient, ravel_draws, unravel_draws
from posterase.numerics.densities import evaluate, evaluate_at, unconstrained
from posterase.numerics.solvers import SMALLEST_SHARE, Solved, Solver, Spectrum, default_solver
from posterase.numerics.weights import Smoothed, base_weights, parameter_ess, smooth
from posterase.runtime import sharding
from posterase.runtime.checks import check_int
from posterase.runtime.precision import numbers_as_arrays

SADDLE = Objection(
    "saddle",
    "the curvature is negative along some direction: the shift leads to a saddle",
    "use the other hessian ('kept' or 'full'), or remove fewer rows at a time.",
)

NOT_WEIGHED = Objection(
    "not measured", "how near the shifted draws come is not measured", "weigh the moved draws (weigh=True)."
)


@dataclasses.dataclass(frozen=True)
class InfluenceShiftDetails:
    """What the shift was and how well it was solved for."""

    shift: PyTree
    """−I(S′), on the unconstrained scale: what was added to every draw."""
    shift_in_sd: float
    """Length of the shift in posterior standard deviations: root of the mean square over parameters."""
    relative_residual: float
    """|H I − v| / |v|, v the gradient of the removed rows, in units of the posterior standard deviations."""
    left_out: dict[str, float]
    """The same for each parameter by name: the share of |v| that the solver left there."""
    covariance_gap: float
    """Nats of KL that no shift can mend, where removed rows are like the others: d · ½(−r − log(1 − r))."""
    solved: Solved
    """The linear solve, with its spectrum where the solver is a series."""
    weights: Smoothed | None
    """Importance weights kept(θ + shift) − full(θ) of the moved draws, exact: their k̂ says how far the moved draws are
    from the kept posterior. None where they were not asked for."""

    @property
    def brief(self) -> str:
        """The one figure that matters most."""
        k = "k̂ not measured" if self.weights is None else f"k̂ {self.weights.pareto_k:.2f}"
        return f"{k}, residual {self.relative_residual:.0e}"

    @property
    def _solver_work(self) -> str:
        """How many steps the solver took, where it takes steps."""
        products, iterations = (int(np.asarray(each)) for each in (self.solved.products, self.solved.iterations))
        return f" after {iterations} iterations, {products} products" if iterations else ""

    def __str__(self) -> str:
        text = (
            f"shift {self.shift_in_sd:.3g} posterior sd, solver residual {self.relative_residual:.1e}"
            f"{self._solver_work}; "
            f"not mended: about {self.covariance_gap:.2g} nats in the covariance"
        )
        if self.weights is not None:
            text += f"\n  k̂ {self.weights.pareto_k:.2f} of the moved draws (near up to {self.weights.threshold:.2f})"
        if self.solved.spectrum is None:
            return text
        most = max(self.left_out, key=lambda name: self.left_out[name])
        return f"{text}\n  series: most is left in {most}; {_series_note(self.solved.spectrum)}"


class InfluenceShift(Method):
    """The paper's Algorithm 1 on every stored draw.

    Parameters
    ----------
    hessian
        `"kept"`: curvature of the kept rows (a Newton step); `"full"`: of all rows, as in the paper.
    solver
        `Cholesky()`, `CG()` or `Neumann(order=…, scale=…)`. None: Cholesky for up to 100 parameters, else CG.
    samples
        How many stored draws the expectations are taken over, picked at random. None: all of them.
    weigh
        Whether to weigh the moved draws against the kept posterior for k̂, which takes two passes over all rows for
        every draw. Without it the result speaks of the linear solve alone.
    reweight
        Whether to return the moved draws with these weights, Pareto smoothed. By default they come as the paper's do.
    newton_steps
        Newton steps on Eq. 1. One is the paper's approximation; more lead to the exact best shift, where
        E∇kept(θ − I) = E∇full(θ), which is zero over the full posterior. They need `hessian="kept"`.
    """

    hessian: Literal["kept", "full"] = eqx.field(default="kept", static=True)
    solver: Solver | None = None
    samples: int | None = eqx.field(default=None, static=True)
    weigh: bool = eqx.field(default=True, static=True)
    reweight: bool = eqx.field(default=False, static=True)
    newton_steps: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        if self.hessian not in ("kept", "full"):
            raise InvalidOptionError(
                f"hessian is {self.hessian!r}.", "use 'kept' (a Newton step) or 'full' (the paper)."
            )
        if self.solver is not None and not isinstance(self.solver, Solver):
            raise InvalidOptionError(
                f"solver is {self.solver!r}.", "use CG(), Cholesky() or Neumann(order=…, scale=…)."
            )
        if self.samples is not None:
            check_int("samples", self.samples, 1)
        check_int("newton_steps", self.newton_steps, 1)
        if self.newton_steps > 1 and self.hessian != "kept":
            raise InvalidOptionError(
                f"newton_steps is {self.newton_steps} with hessian='full'.",
                "Newton steps need the curvature of the kept rows.",
            )
        if self.reweight and not self.weigh:
            raise InvalidOptionError("reweight is True and weigh is False.", "weights must be measured to be returned.")

    def run(self, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
        key, model, draws, change = problem.parts
        kept = model.without(change)
        one = jax.tree.map(lambda leaf: leaf[0], draws.flat())
        dimension = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.unconstrain, one)))
        solver = numbers_as_arrays(self.solver or default_solver(dimension))
        curved = LogDensity(kept if self.hessian == "kept" else model)
        densities = curved, LogRatio(model, change)
        picked = self._pick(key, draws)
        moved = _shift(solver, *densities, draws.flat(), draws.weights.ravel(), picked, self.newton_steps)
        _check_finite(moved)
        params = jax.tree.map(lambda new, old: new.reshape(old.shape), moved.params, draws.params)
        shifted = draws.replace(params, draws.log_weights)
        share = change.n_rows / model.n_rows
        cost = _cost(len(picked), dimension, moved.solved, share, self.newton_steps)
        check_in_support(model, shifted, "the shift")
        _check_used(draws, moved)
        log_weights = _log_weights(model, kept, draws, shifted) if self.weigh else None
        weights = None if log_weights is None else smooth(log_weights + _input_weights(draws))
        details = InfluenceShiftDetails(
            shift=jax.device_get(moved.shift),
            shift_in_sd=float(moved.shift_in_sd),
            relative_residual=float(moved.solved.relative_residual),
            left_out=dict(zip(draws.names, map(float, jax.tree.leaves(moved.left_out)), strict=True)),
            covariance_gap=float(dimension * 0.5 * (-share - np.log1p(-share))),
            solved=jax.device_get(moved.solved),
            weights=weights,
        )
        flaw = None if moved.solved.smallest_curvature >= 0 else SADDLE
        if log_weights is None or weights is None:
            diagnostics = Diagnostics(
                ess=parameter_ess(shifted),
                cost=cost,
                residual=details.relative_residual,
                flaw=flaw or NOT_WEIGHED,
            )
            return MethodResult(shifted, details, diagnostics)
        weighed = weigh(log_weights, base_weights(draws), weights)
        returned = shifted.replace(shifted.params, weights.log_weights) if self.reweight else shifted
        n = draws.n_chains * draws.n_draws
        diagnostics = weight_diagnostics(
            weighed,
            parameter_ess(returned),
            cost.plus(Cost(densities=2 * n, sequential=1)),
            weighted=self.reweight,
            residual=details.relative_residual,
            flaw=flaw,
            log_weights_at=lambda other: _log_weights_at(model, kept, moved.shift, other),
            moved=shifted,
        )
        return MethodResult(returned, details, diagnostics)

    def _pick(self, key: Key[Array, ""], draws: Draws) -> Int[Array, " samples"]:
        n = draws.n_chains * draws.n_draws
        if self.samples is None:
            return jnp.arange(n)
        if self.samples > n:
            raise InvalidOptionError(f"samples is {self.samples}, of {n} draws.", "use at most all, or None for all.")
        return jax.random.choice(key, n, (self.samples,), replace=False)


class _Moved(NamedTuple):
    params: PyTree
    """All draws after the shift, on their own scale: leaves (n, …)."""
    shift: PyTree
    shift_in_sd: Float[Array, ""]
    left_out: PyTree
    """For each parameter, the share of the gradient's norm that the solver left."""
    solved: Solved
    used: PyTree
    """For each parameter, whether the density depends on it at all."""


@eqx.filter_jit
def _shift(
    solver: Solver,
    curved: LogDensity,
    log_ratio: LogRatio,
    params: PyTree,
    weights: Float[Array, " n"],
    picked: Int[Array, " samples"],
    steps: int,
) -> _Moved:
    model = log_ratio.model
    unconstrained = jax.vmap(model.unconstrain)(params)
    like = jax.tree.map(lambda leaf: leaf[0], unconstrained)
    thetas = ravel_draws(unconstrained)
    weights = weights.astype(thetas.dtype)
    scales = _standard_deviations(thetas, weights)

    sample, share = thetas[picked], weights[picked] / weights[picked].sum()
    push = -mean_gradient(log_ratio, sample, share, like)
    solved = solver(Curvature(curved, sharding.after(sample, push), share, like), push, scales)
    value = solved.value
    if steps > 1:
        # E∇full is zero over the posterior; what it is over these draws is no reason to move.
        drift = push + mean_gradient(curved, sharding.after(sample, value), share, like)
        for _ in range(steps - 1):
            left = drift - mean_gradient(curved, sharding.after(sample - value, drift), share, like)
            solved = solver(Curvature(curved, sharding.after(sample - value, left), share, like), left, scales)
            value = value + solved.value

    unravel = ravel_pytree(like)[1]
    slopes = jax.vmap(lambda theta: gradient(curved, theta, like))(sharding.after(sample[:2], value))
    whole = jnp.linalg.norm(scales * push)
    left_out = jax.tree.map(
        lambda leaf: jnp.linalg.norm(leaf) / jnp.where(whole > 0, whole, 1), unravel(scales * solved.residual)
    )
    return _Moved(
        params=jax.vmap(model.constrain)(unravel_draws(thetas - value, like)),
        shift=unravel(-value),
        shift_in_sd=jnp.sqrt(jnp.mean((value / scales) ** 2)),
        left_out=left_out,
        solved=solved,
        used=jax.tree.map(lambda leaf: jnp.any(leaf != 0), unravel(jnp.abs(slopes).max(axis=0))),
    )


def _standard_deviations(thetas: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, " d"]:
    """Of each parameter over the draws; 1 where the draws do not vary."""
    variances = weights @ (thetas - weights @ thetas) ** 2
    return jnp.sqrt(jnp.where(variances > 0, variances, 1))


def _check_finite(moved: _Moved) -> None:
    if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((moved.params, moved.shift))):
        return
    spectrum = moved.solved.spectrum
    if spectrum is not None:
        problem = f"the Neumann series ended in NaN or infinity: {_series_note(jax.device_get(spectrum))}"
        advice = "use CG() or Cholesky(), or a smaller scale."
    else:
        problem = "the shift is NaN or infinite: the curvature is not positive definite at these draws."
        advice = "use the other hessian ('kept' or 'full'), or remove fewer rows at a time."
    raise NonFiniteResultError(problem, f"{advice} The draws you passed in are untouched.")


def _check_used(draws: Draws, moved: _Moved) -> None:
    unused = [name for name, used in zip(draws.names, jax.tree.leaves(moved.used), strict=True) if not used]
    if unused:
        raise ModelError(
            f"the model's density does not depend on {', '.join(unused)}, so that no shift can be found for it.",
            "leave out what the model computes from its parameters (Draws.from_arviz(…, var_names=…)), and compute it "
            "from the moved draws.",
        )


def _cost(samples: int, d: int, solved: Solved, share: float, steps: int) -> Cost:
    """A product H v costs two gradients of every draw; a matrix takes d of them."""
    made = int(np.asarray(solved.products))
    products = made or d
    gradients = samples * (share + 2 * products) + (steps - 1) * samples * (1 + 2 * products)
    return Cost(gradients=gradients, sequential=steps * (1 + (made or 1)))


def _input_weights(draws: Draws) -> Float[np.ndarray, "chain draw"] | float:
    return 0.0 if draws.log_weights is None else np.asarray(draws.log_weights, np.float64)


def _log_weights_at(
    model: AbstractModel, kept: AbstractModel, shift: PyTree, draws: Draws
) -> Float[np.ndarray, "chain draw"]:
    """Log-weights of moved draws at other draws: kept(θ) − full(θ − shift)."""
    thetas, like = unconstrained(model, draws)
    step = np.asarray(ravel_pytree(shift)[0], np.float64)
    values = evaluate_at(LogDensity(kept), thetas, like) - evaluate_at(LogDensity(model), thetas - step, like)
    return values.reshape(draws.n_chains, draws.n_draws)


def _log_weights(
    model: AbstractModel, kept: AbstractModel, draws: Draws, shifted: Draws
) -> Float[np.ndarray, "chain draw"]:
    """Log-weights of the moved draws: kept(θ + shift) − full(θ); the shift has no Jacobian."""
    log_weights = evaluate(LogDensity(kept), shifted) - evaluate(LogDensity(model), draws)
    if np.isnan(log_weights).any() or not (log_weights < np.inf).all() or not np.isfinite(log_weights).any():
        raise NonFiniteResultError(
            "the log density is NaN or infinite at some of the draws, before or after the shift.",
            "check the model's functions at these draws, and that draws and data belong together.",
        )
    return log_weights


def _series_note(spectrum: Spectrum) -> str:
    """Which directions a Neumann series damped, or that it diverges, in words."""
    seen = spectrum.shares > SMALLEST_SHARE
    diverging = seen & spectrum.diverging
    if diverging.any():
        worst = spectrum.curvatures[diverging][np.argmax(np.abs(spectrum.curvatures[diverging]))]
        return (
            f"it diverges, since {diverging.sum()} of {seen.sum()} curvatures met lie outside (0, 2/scale), "
            f"the farthest {worst:.3g}."
        )
    damped = seen & (spectrum.kept < 0.5)
    return (
        f"directions of curvature below {spectrum.damping:.3g} are damped, {damped.sum()} of {seen.sum()} met by more "
        f"than half, holding {spectrum.shares[damped].sum():.0%} of the gradient's square."
    )
