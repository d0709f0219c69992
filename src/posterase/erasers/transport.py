"""Transport: move every draw by an affine map, mean and covariance together, and weigh what is left.

    θ ← T(θ) = m′ + A(θ − m),        log w = kept(Tθ) − full(θ) + log |det A|

The density of the moved draws is known exactly, so these weights are exact too: with Pareto smoothed weights the moved
draws are draws of the kept posterior wherever k̂ is small, and without the weights already near it. Exact in one step
for a Gaussian.

The map starts from the removed rows alone (`numerics.transport_maps`); then a few quasi-Newton steps bring its target
to the best one, the minimum over m′ of KL(T p_S ‖ kept), where E∇kept(Tθ) = 0; where the weights still do not pass,
moment matching refines it.

**Two folds.** A map fitted to some draws fits these too well. So two maps are fitted, each to one half of the draws,
and each half is moved by the map of the other: k̂ and ε are scored on draws that the map never saw.

**Split.** Where k̂ does not pass, every second draw may stay where it was: the draws are then those of the mixture
½ full(θ) + ½ full(T⁻¹θ)/|det A|, and this is what their weights divide by (Paananen et al. 2021, Section 2.4).

References
----------
Paananen, Piironen, Bürkner, Vehtari (2021), Implicitly adaptive importance sampling, Statistics and Computing 31.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.checks import whole_number
from posterase.draws import Draws
from posterase.erasers.eraser import Erased, Eraser, Result
from posterase.erasers.evidence import Cost, Evidence, Weighed, base_weights, parameter_ess, weigh
from posterase.errors import InvalidOptionError, NonFiniteResultError
from posterase.model import AbstractModel, LogDensity, Removal, RemovedLogLikelihood
from posterase.numerics.curvature import Curvature, gradient
from posterase.numerics.densities import batch_size, constrained, evaluate_at, expectation, unconstrained
from posterase.numerics.solvers import CG
from posterase.numerics.transport_maps import AffineMap, DenseMap, curvature_map, low_rank_map, matched
from posterase.numerics.weights import Estimate, Smoothed, smooth

DENSE_UP_TO = 500
"""Parameters up to which curvatures are matrices."""

CURVATURE_GRADIENTS, CURVATURE_DRAWS = 768, (4, 16)
"""A curvature as a matrix costs two gradients a parameter and draw; it is averaged over as many draws as so many
gradients pay for, within bounds. At a single point, be it the mean, a hierarchy's curvature may be far from its average."""

FAR = 0.3
"""Past a shift of so many standard deviations in each direction (root mean square) the curvature is taken anew."""

RANK = 16
"""Directions of a map where matrices are too large."""

SETTLED = 0.02
"""Quasi-Newton steps end where the push left moves the target by less than this many standard deviations in each
direction (root mean square): below the Monte Carlo error of 2,000 draws."""

GOOD_K, GOOD_SHARE, ENOUGH_SHARE = 0.5, 0.3, 0.8
"""A map is refined until its weights have k̂ below the first and keep the second share of the draws effective, or keep
the third."""


@dataclasses.dataclass(frozen=True)
class TransportDiagnostics:
    """How the draws were moved, and how far their weights can be trusted."""

    pareto_k: float
    """k̂ of the moved draws' exact weights, on draws that the map was not fitted to."""
    threshold: float
    """The largest k̂ to trust with this many draws."""
    ess: float
    """Effective number of draws after weighting."""
    n_draws: int
    epsilon: Estimate
    """KL to the kept posterior of a returned (weighted) draw."""
    before_weights: Estimate
    """KL to the kept posterior of the moved draws without their weights."""
    log_evidence_ratio: Estimate
    """log p(S) − log p(S − S′), where prior and likelihood are normalised."""
    shift_in_sd: float
    """How far the mean moved, in posterior standard deviations: root of the mean square over directions."""
    log_stretch: float
    """Mean over directions of the log factor by which the spread grew."""
    residual: float
    """What the quasi-Newton steps left: the step they would take next, in standard deviations, root mean square."""
    refinements: int
    """How often the map was refined by moment matching."""
    split: bool
    """Whether every second draw stayed where it was."""
    maps: tuple[AffineMap, AffineMap]
    """The map of the first half of the draws (fitted to the second), and of the second half (fitted to the first)."""
    ancestors: Int[np.ndarray, "chain draw"] | None
    """Where draws were resampled: which draw, chains laid end to end, each one came from."""

    @property
    def brief(self) -> str:
        """The one figure that matters most."""
        return f"k̂ {self.pareto_k:.2f}"

    def __str__(self) -> str:
        return (
            f"k̂ {self.pareto_k:.2f} (trusted up to {self.threshold:.2f}), ESS {self.ess:.0f} of {self.n_draws}; "
            f"mean moved {self.shift_in_sd:.2g} posterior sd, spread × {np.exp(self.log_stretch):.2f}"
            + (", every second draw left in place" if self.split else "")
        )


class Transport(Eraser):
    """An affine map of all draws, with exact weights.

    Parameters
    ----------
    refinements
        How often, at most, the map is refined by moment matching where its weights do not pass.
    newton_steps
        How many quasi-Newton steps, at most, bring the target to the best one.
    samples
        How many draws of each half the map's first form is computed from.
    split
        Whether every second draw stays where it was. None: where the weights pass only so.
    resample
        Whether to resample the moved draws to equal weights.
    """

    refinements: int = eqx.field(default=2, static=True)
    newton_steps: int = eqx.field(default=8, static=True)
    samples: int = eqx.field(default=32, static=True)
    split: bool | None = eqx.field(default=None, static=True)
    resample: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        whole_number("refinements", self.refinements, 0)
        whole_number("newton_steps", self.newton_steps, 0)
        whole_number("samples", self.samples, 2)
        if self.split not in (None, True, False):
            raise InvalidOptionError(f"split is {self.split!r}.", "use True, False, or None to let the weights decide.")

    def _erase(self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal) -> Erased:
        pick, deal = jax.random.split(key)
        transported = self.transport(pick, model, draws, removal)
        moved = draws.replace(
            constrained(model, transported.thetas, transported.like, draws),
            transported.weighed.smoothed.log_weights,
        )
        _check_support(model, moved)
        diagnostics = transported.diagnose()
        ess = parameter_ess(moved)
        if self.resample:
            ancestors = moved.ancestors(deal)
            moved = moved.take(ancestors)
            diagnostics = dataclasses.replace(diagnostics, ancestors=np.asarray(ancestors))
        evidence = Evidence(
            ess=ess,
            cost=transported.cost,
            pareto_k=diagnostics.pareto_k,
            threshold=diagnostics.threshold,
            epsilon=diagnostics.epsilon,
            before_weights=diagnostics.before_weights,
            log_evidence_ratio=diagnostics.log_evidence_ratio,
            weighted=True,
            resembles=transported.log_weights_at,
        )
        return Erased(moved, _judge(diagnostics), diagnostics, evidence)

    def transport(
        self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal
    ) -> Transported:
        """The moved draws with all that is known of them; `Rejuvenate` goes on from here."""
        return _Fit(self, key, model, draws, removal).run()


class Transported(NamedTuple):
    """Draws moved by two maps, and their exact weights."""

    model: AbstractModel
    kept: AbstractModel
    like: PyTree
    origin: Float[np.ndarray, "n d"]
    """Unconstrained draws before they were moved."""
    thetas: Float[np.ndarray, "n d"]
    """The same after it."""
    maps: tuple[AffineMap, AffineMap]
    """By which the first and the second half of the draws were moved."""
    stayed: Bool[np.ndarray, " n"]
    base: Float[np.ndarray, "chain draw"]
    log_weights: Float[np.ndarray, "chain draw"]
    """Raw: log kept − log density of the moved draws. Their own weights, `base`, are not in them."""
    weighed: Weighed
    residual: float
    refinements: int
    cost: Cost

    def diagnose(self) -> TransportDiagnostics:
        """Figures for the record."""
        smoothed = self.weighed.smoothed
        deviation = np.sqrt(np.maximum(self.origin.var(axis=0), np.finfo(float).tiny))
        shift = (self.thetas - self.origin)[~self.stayed].mean(axis=0) / deviation
        return TransportDiagnostics(
            pareto_k=smoothed.pareto_k,
            threshold=smoothed.threshold,
            ess=smoothed.ess,
            n_draws=len(self.thetas),
            epsilon=self.weighed.epsilon,
            before_weights=self.weighed.before_weights,
            log_evidence_ratio=self.weighed.log_evidence_ratio,
            shift_in_sd=float(np.sqrt(np.mean(shift**2))),
            log_stretch=float(np.mean([one.log_det for one in self.maps]) / self.thetas.shape[1]),
            residual=self.residual,
            refinements=self.refinements,
            split=bool(self.stayed.any()),
            maps=self.maps,
            ancestors=None,
        )

    def log_weights_at(self, draws: Draws) -> Float[np.ndarray, "chain draw"]:
        """log kept − log density of the moved draws, at other draws: those of a refit, say."""
        thetas, _ = unconstrained(self.model, draws)
        full = LogDensity(self.model)
        parts = []
        for one in self.maps:
            back = evaluate_at(full, np.asarray(one.inverse(thetas)), self.like) - float(one.log_det)
            parts.append(np.logaddexp(back, evaluate_at(full, thetas, self.like)) - np.log(2) if self.stayed.any() else back)
        density = np.logaddexp(*parts) - np.log(2)  # half of the draws were moved by each map
        return (evaluate_at(LogDensity(self.kept), thetas, self.like) - density).reshape(draws.n_chains, draws.n_draws)


class _Fit:
    """The fit of two maps: what it needs at every step, and what it has spent."""

    def __init__(self, options: Transport, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal):
        self.options, self.key, self.model, self.removal = options, key, model, removal
        self.kept = model.without(removal)
        self.share = removal.n_rows / model.n_rows
        self.thetas, self.like = unconstrained(model, draws)
        self.shape = draws.n_chains, draws.n_draws
        self.base = base_weights(draws)
        self.n, self.d = self.thetas.shape
        if self.n < 4:
            raise InvalidOptionError(f"there are {self.n} draws.", "Transport needs some hundred.")
        self.folds = np.arange(self.n) < self.n // 2, np.arange(self.n) >= self.n // 2
        self.cost = Cost()
        self.full = evaluate_at(LogDensity(model), self.thetas, self.like)
        self.spend(densities=self.n)
        if not np.isfinite(self.full[self.base.ravel() > 0]).all():
            raise NonFiniteResultError(
                "the log density of all rows is NaN or infinite at some draws.",
                "check the model's functions at these draws, and that draws and data belong together.",
            )

    def spend(self, gradients: float = 0.0, densities: float = 0.0, sequential: int = 1) -> None:
        self.cost = self.cost.plus(Cost(gradients, densities, sequential))

    def run(self) -> Transported:
        fitted = [self.start(fold, key) for fold, key in zip(self.folds, jax.random.split(self.key), strict=True)]
        maps, residual = [one for one, _ in fitted], max(left for _, left in fitted)
        best, tried = self.score(maps), 0
        current = best
        while tried < self.options.refinements and not _is_good(best.smoothed):
            maps = self.refine(maps)
            if maps is None:
                break
            tried += 1
            current = self.score(maps)
            if _order(current.smoothed) < _order(best.smoothed):
                best = current
        passes = best.smoothed.pareto_k <= best.smoothed.threshold
        if self.options.split or (self.options.split is None and not passes):
            halved = self.score_split(best)
            if self.options.split or _order(halved.smoothed) < _order(best.smoothed):
                best = halved
        return Transported(
            model=self.model,
            kept=self.kept,
            like=self.like,
            origin=self.thetas,
            thetas=best.moved,
            maps=(best.maps[1], best.maps[0]),
            stayed=best.stayed,
            base=self.base,
            log_weights=best.raw,
            weighed=weigh(best.raw, self.base, best.smoothed),
            residual=residual,
            refinements=tried,
            cost=self.cost,
        )

    # --- the first form of a map

    def start(self, fold: Bool[np.ndarray, " n"], key: Key[Array, ""]) -> tuple[AffineMap, float]:
        """A map fitted to one half of the draws, and what its quasi-Newton steps left."""
        rows, weights = self.thetas[fold], self.base.ravel()[fold]
        if not weights.sum() > 0:
            raise NonFiniteResultError("half of the draws have weight zero.", "resample the draws first.")
        weights = weights / weights.sum()
        sample = rows[self.pick(key, weights)]
        if self.d > DENSE_UP_TO:
            return self.start_low_rank(rows, weights, sample)
        mean = weights @ rows
        points = sample[: int(np.clip(CURVATURE_GRADIENTS // (2 * self.d), *CURVATURE_DRAWS))]
        removed = RemovedLogLikelihood(self.model, self.removal)
        curvatures = self.curvature(LogDensity(self.model), points), self.curvature(removed, points, self.share)
        slopes = self.slopes(LogDensity(self.model), sample)
        push = self.slopes(removed, sample, self.share).mean(axis=0)
        full, kept = curvatures[0], curvatures[0] - curvatures[1]
        try:
            step = np.linalg.solve(_definite(kept), push)
            first = curvature_map(mean, mean - step, full, kept)
        except np.linalg.LinAlgError:
            return self.start_low_rank(rows, weights, sample)
        settled, left = self.settle(first, sample, slopes, kept)
        moved = np.asarray(settled.target - settled.centre)
        if moved @ full @ moved > FAR**2 * self.d:
            # The curvature of the kept rows is another one there.
            kept = self.curvature(LogDensity(self.kept), np.asarray(settled.forward(points)))
            settled, left = self.settle(curvature_map(mean, settled.target, full, kept), sample, slopes, kept)
        return settled, left

    def curvature(
        self, density: LogDensity | RemovedLogLikelihood, points: Float[np.ndarray, "p d"], share: float = 1.0
    ) -> Float[np.ndarray, "d d"]:
        self.spend(gradients=share * len(points) * 2 * self.d)
        return _finite(_curvature(density, self.narrow(points), self.like))

    def slopes(
        self, density: LogDensity | RemovedLogLikelihood, points: Float[np.ndarray, "p d"], share: float = 1.0
    ) -> Float[np.ndarray, "p d"]:
        self.spend(gradients=share * len(points))
        return _finite(_gradients(density, self.narrow(points), self.like))

    def settle(
        self,
        first: DenseMap,
        sample: Float[np.ndarray, "m d"],
        slopes: Float[np.ndarray, "m d"],
        kept: Float[np.ndarray, "d d"],
    ) -> tuple[DenseMap, float]:
        """Bring the target to where the kept gradient vanishes on average, by steps with the kept curvature.

        E∇full = 0 over the full posterior, and what a few draws make of it is nearly what they make of E∇kept(Tθ): it
        is subtracted, turned by A⁻ᵀ as the gradient turns.
        """
        drift = np.asarray(first.inverse_matrix).T @ slopes.mean(axis=0)
        precision = _definite(kept)
        target, left, steps = jax.device_get(
            _settle(
                LogDensity(self.kept),
                self.narrow(first.target),
                self.narrow(np.asarray(first.linear(sample - first.centre))),
                self.narrow(drift),
                self.narrow(np.linalg.inv(precision)),
                self.narrow(precision),
                self.like,
                jnp.asarray(self.options.newton_steps),
            )
        )
        self.spend(gradients=len(sample) * (int(steps) + 1), sequential=int(steps) + 1)
        return eqx.tree_at(lambda one: one.target, first, np.asarray(target, float)), float(left)

    def narrow(self, array: Float[np.ndarray, "..."]) -> Array:
        """In the precision of the draws: gradients need no more."""
        return jnp.asarray(array, jnp.result_type(*jax.tree.leaves(self.like)))

    def start_low_rank(
        self,
        rows: Float[np.ndarray, "m d"],
        weights: Float[np.ndarray, " m"],
        sample: Float[np.ndarray, "s d"],
    ) -> tuple[AffineMap, float]:
        mean = weights @ rows
        variances = weights @ (rows - mean) ** 2
        scales = np.sqrt(np.where(variances > 0, variances, 1))
        rank = min(RANK, self.d)
        shift, losses, basis, steps, left = jax.device_get(
            _low_rank(
                LogDensity(self.kept),
                RemovedLogLikelihood(self.model, self.removal),
                self.narrow(sample),
                self.narrow(scales),
                self.like,
                self.narrow(np.random.default_rng(0).normal(size=(self.d, rank))),
            )
        )
        products = len(sample) * 2 * (int(steps) + self.share * rank * (POWER_STEPS + 1))
        self.spend(gradients=products, sequential=int(steps) + POWER_STEPS + 1)
        if not (np.isfinite(shift).all() and np.isfinite(losses).all()):
            raise NonFiniteResultError(
                "the curvature of the kept rows is not positive definite at these draws.",
                "remove fewer rows at a time, or refit.",
            )
        wide = (np.asarray(each, float) for each in (shift, losses, basis))
        return low_rank_map(mean, scales, *wide), float(left)

    def pick(self, key: Key[Array, ""], weights: Float[np.ndarray, " m"]) -> Int[np.ndarray, " samples"]:
        seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
        size = min(self.options.samples, int((weights > 0).sum()))
        return np.random.default_rng(seed).choice(len(weights), size, replace=False, p=weights)

    # --- what the weights say of it

    def score(self, maps: list[AffineMap]) -> _Scored:
        """Each half moved by the map of the other, and the weights that it has there."""
        return self._weights(maps, maps[::-1])

    def refine(self, maps: list[AffineMap]) -> list[AffineMap] | None:
        """Each map matched to the moments of its own half's weights; None where these say nothing."""
        own = self._weights(maps, maps)
        refined = []
        for fold, one in zip(self.folds, maps, strict=True):
            log_weights = (own.raw + _log(self.base)).ravel()[fold]
            if not np.isfinite(log_weights).any():
                return None
            smoothed = smooth(log_weights[None])
            base = self.base.ravel()[fold] / self.base.ravel()[fold].sum()
            try:
                refined.append(matched(one, own.moved[fold], base, np.exp(smoothed.log_weights[0]), smoothed.ess))
            except np.linalg.LinAlgError:
                return None
        return refined

    def _weights(self, maps: list[AffineMap], used: list[AffineMap]) -> _Scored:
        moved, log_det = np.empty_like(self.thetas), np.empty(self.n)
        for fold, one in zip(self.folds, used, strict=True):
            moved[fold], log_det[fold] = one.forward(self.thetas[fold]), float(one.log_det)
        density = evaluate_at(LogDensity(self.kept), moved, self.like)
        self.spend(densities=self.n)
        raw = _nowhere(density - self.full + log_det).reshape(self.shape)
        return _Scored(maps, moved, np.zeros(self.n, bool), raw, self.smoothed(raw))

    def score_split(self, scored: _Scored) -> _Scored:
        """Every second draw left in place: weights against the mixture of moved and unmoved draws."""
        stayed = np.arange(self.n) % 2 == 1
        removed = RemovedLogLikelihood(self.model, self.removal)
        thetas = np.where(stayed[:, None], self.thetas, scored.moved)
        at_removed = evaluate_at(removed, thetas, self.like)
        back, log_det = np.empty_like(thetas), np.empty(self.n)
        for fold, one in zip(self.folds, scored.maps[::-1], strict=True):
            back[fold], log_det[fold] = one.inverse(thetas[fold]), float(one.log_det)
        at_back = np.where(stayed, evaluate_at(LogDensity(self.model), back, self.like), self.full)
        self.spend(densities=(1 + self.share) * self.n)
        moved_kept = scored.raw.ravel() + self.full - log_det
        kept = np.where(stayed, self.full - at_removed, moved_kept)
        full = np.where(stayed, self.full, moved_kept + at_removed)
        with np.errstate(invalid="ignore"):
            raw = _nowhere(kept - np.logaddexp(full, at_back - log_det) + np.log(2)).reshape(self.shape)
        return _Scored(scored.maps, thetas, stayed, raw, self.smoothed(raw))

    def smoothed(self, raw: Float[np.ndarray, "chain draw"]) -> Smoothed:
        log_weights = raw + _log(self.base)
        if not np.isfinite(log_weights).any():
            raise NonFiniteResultError(
                "the kept density is NaN or zero at every moved draw.",
                "the map leads out of the model's support: remove fewer rows at a time, or refit.",
            )
        return smooth(log_weights)


class _Scored(NamedTuple):
    maps: list[AffineMap]
    """Fitted to the first and to the second half."""
    moved: Float[np.ndarray, "n d"]
    stayed: Bool[np.ndarray, " n"]
    raw: Float[np.ndarray, "chain draw"]
    smoothed: Smoothed


POWER_STEPS = 2
"""Products with the curvature that turn random directions into those of its largest eigenvalues."""


@eqx.filter_jit
def _curvature(
    density: LogDensity | RemovedLogLikelihood, points: Float[Array, "p d"], like: PyTree
) -> Float[Array, "d d"]:
    return Curvature(density, points, jnp.full(len(points), 1 / len(points), points.dtype), like).dense()


@eqx.filter_jit
def _gradients(
    density: LogDensity | RemovedLogLikelihood, points: Float[Array, "p d"], like: PyTree
) -> Float[Array, "p d"]:
    size = batch_size(density.elements, len(points))
    return jax.lax.map(lambda theta: gradient(density, theta, like), points, batch_size=size)


@eqx.filter_jit
def _settle(
    kept: LogDensity,
    target: Float[Array, " d"],
    deviations: Float[Array, "m d"],
    drift: Float[Array, " d"],
    covariance: Float[Array, "d d"],
    precision: Float[Array, "d d"],
    like: PyTree,
    most: Int[Array, ""],
) -> tuple[Float[Array, " d"], Float[Array, ""], Int[Array, ""]]:
    """Quasi-Newton steps on the target: its last place, the step left in standard deviations, steps taken."""
    share = jnp.full(len(deviations), 1 / len(deviations), deviations.dtype)

    def step_at(target: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        push = expectation(lambda one: gradient(kept, target + one, like), deviations, share, kept.elements)
        step = covariance @ (push - drift)
        return step, jnp.sqrt(step @ (precision @ step) / step.size)

    Carry = tuple[Array, Array, Array, Array, Array]

    def goes_on(carry: Carry) -> Bool[Array, ""]:
        _, _, length, _, i = carry
        return (i < most) & (length > SETTLED)

    def advance(carry: Carry) -> Carry:
        target, step, length, factor, i = carry
        proposal = target + factor * step
        new_step, new_length = step_at(proposal)
        better = new_length < length  # NaN is not
        pick = lambda new, old: jnp.where(better, new, old)  # noqa: E731
        return (
            pick(proposal, target),
            pick(new_step, step),
            pick(new_length, length),
            jnp.where(better, jnp.minimum(2 * factor, 1), factor / 3).astype(factor.dtype),
            i + 1,
        )

    step, length = step_at(target)
    one = jnp.ones((), target.dtype)
    target, _, length, _, steps = jax.lax.while_loop(goes_on, advance, (target, step, length, one, jnp.zeros((), jnp.int32)))
    return target, length, steps


@eqx.filter_jit
def _low_rank(
    kept: LogDensity,
    removed: RemovedLogLikelihood,
    sample: Float[Array, "m d"],
    scales: Float[Array, " d"],
    like: PyTree,
    directions: Float[Array, "d r"],
) -> tuple[Float[Array, " d"], Float[Array, " r"], Float[Array, "d r"], Array, Float[Array, ""]]:
    """Newton shift by CG, and the largest eigenvalues of the removed rows' curvature in units of the scales."""
    share = jnp.full(len(sample), 1 / len(sample), sample.dtype)
    push = expectation(lambda theta: gradient(removed, theta, like), sample, share, removed.elements)
    solved = CG(rtol=1e-3)(Curvature(kept, sample, share, like), push, scales)
    lost = Curvature(removed, sample, share, like)
    products = jax.vmap(lambda v: scales * lost.mv(scales * v), in_axes=1, out_axes=1)

    def power(basis: Float[Array, "d r"], _: None) -> tuple[Float[Array, "d r"], None]:
        return jnp.linalg.qr(products(basis))[0], None

    basis, _ = jax.lax.scan(power, jnp.linalg.qr(directions)[0], length=POWER_STEPS)
    losses, vectors = jnp.linalg.eigh(basis.T @ products(basis))
    return -solved.value, losses, basis @ vectors, solved.steps, solved.relative_residual


def _definite(matrix: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """The matrix with eigenvalues that are not positive, in units of its diagonal, raised to a hundredth."""
    scale = np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    if values[0] > 0:
        return matrix
    return np.outer(scale, scale) * ((vectors * np.maximum(values, 0.01)) @ vectors.T)


def _finite(array: Array) -> Float[np.ndarray, "..."]:
    values = np.asarray(array, np.float64)
    if not np.isfinite(values).all():
        raise NonFiniteResultError(
            "a gradient or curvature of the log density is not finite at some draws.",
            "check that the model's functions are differentiable there.",
        )
    return values


def _is_good(smoothed: Smoothed) -> bool:
    share = smoothed.ess / smoothed.log_weights.size
    return smoothed.pareto_k <= smoothed.threshold and (
        share >= ENOUGH_SHARE or (smoothed.pareto_k <= GOOD_K and share >= GOOD_SHARE)
    )


def _order(smoothed: Smoothed) -> tuple[bool, float]:
    """Passing first; among those that pass the larger ESS, among the others the smaller k̂."""
    passes = smoothed.pareto_k <= smoothed.threshold
    return not passes, -smoothed.ess if passes else smoothed.pareto_k


def _nowhere(log_weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """A draw moved to where the density is not defined has weight zero."""
    return np.where(np.isfinite(log_weights), log_weights, -np.inf)


def _log(weights: Float[np.ndarray, "chain draw"]) -> Float[np.ndarray, "chain draw"]:
    with np.errstate(divide="ignore"):
        return np.log(weights)


def _check_support(model: AbstractModel, moved: Draws) -> None:
    from posterase.errors import OutsideSupportError

    try:
        model.check(moved)
    except OutsideSupportError as error:
        raise NonFiniteResultError(
            f"after the map {error.problem}",
            "it leads too far for this precision: remove fewer rows at a time, or switch on 64-bit numbers in jax.",
        ) from error


def _judge(diagnostics: TransportDiagnostics) -> Result:
    k, limit = diagnostics.pareto_k, diagnostics.threshold
    if k <= limit:
        return Result(True, f"the moved draws are near the kept posterior, and weights mend the rest (k̂ {k:.2f}).")
    return Result(
        False,
        f"no affine map brings the draws near enough (k̂ {k:.2f}, above {limit:.2f}).",
        "move them on by MCMC (Rejuvenate), remove fewer rows at a time, or refit.",
    )
