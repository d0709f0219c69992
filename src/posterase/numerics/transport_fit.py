"""The fit of affine maps that bring draws of the full posterior to the kept one, and the weights that are left.

Two maps are fitted, each to one half of the draws, and each half is moved by the map of the other, so that weights are
scored on draws that the map never saw. `numerics.transport_maps` has the mathematics of a single map.

**Best target.** Given A, the minimum over m′ of KL(T p_S ‖ kept) is where E∇kept(Tθ) = 0 (the paper's Eq. 1, with the
draws stretched too). It is found by steps P′⁻¹ E∇kept(Tθ) over a few draws; E∇full(θ), zero over the full posterior, is
subtracted, turned by A⁻ᵀ as gradients turn, since what a few draws make of it is nearly what they make of E∇kept(Tθ).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from posterase.errors import InvalidOptionError, NonFiniteResultError
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.cost import Cost
from posterase.numerics.curvature import Curvature, gradient_at, mean_gradient
from posterase.numerics.densities import batch_size, evaluate_at
from posterase.numerics.solvers import CG
from posterase.numerics.transport_maps import MATRICES_UP_TO, AffineMap, DenseMap, curvature_map, low_rank_map, matched
from posterase.numerics.weights import Smoothed, first_half, log_of, smooth
from posterase.runtime import sharding
from posterase.runtime.precision import as_jax

CURVATURE_GRADIENTS, CURVATURE_DRAWS = 768, (4, 16)
"""A curvature as a matrix costs two gradients a parameter and draw; it is averaged over as many draws as so many
gradients pay for, within bounds. At a single point, be it the mean, a hierarchy's may be far from its average."""

FAR = 0.3
"""Past a shift of so many standard deviations in each direction (root mean square) the curvature is taken anew."""

RANK = 16
"""Directions of a map where matrices are too large."""

SETTLED = 0.02
"""Quasi-Newton steps end where the push left moves the target by less than this many standard deviations in each
direction (root mean square): below the Monte Carlo error of 2,000 draws."""

GOOD_SHARE = 0.3
"""A map is refined until its weights pass and keep this share of the draws effective."""

POWER_STEPS = 2
"""Products with the curvature that turn random directions into those of its largest eigenvalues."""

LEAST_KEPT = 0.01
"""Where the kept curvature is not positive, this share of the full one is taken for it, in the length of a step."""


class Options(NamedTuple):
    """How maps are fitted; `methods.transport.Transport` says what each is."""

    refinements: int
    newton_steps: int
    samples: int
    split: bool | None


class Fitted(NamedTuple):
    """Draws moved by two maps, and the weights that they have there."""

    maps: tuple[AffineMap, AffineMap]
    """By which the first and the second half of the draws were moved: each fitted to the other half."""
    moved: Float[np.ndarray, "n d"]
    stayed: Bool[np.ndarray, " n"]
    """Which draws were left in place."""
    log_weights: Float[np.ndarray, "chain draw"]
    """Raw: log kept − log density of the moved draws. The weights that the draws came with are not in them."""
    smoothed: Smoothed
    """Those included, and smoothed."""
    residual: float
    """The step that the targets would take next, in standard deviations, root mean square."""
    refinements: int
    cost: Cost


class Fit:
    """The fit of two maps: what every step of it needs, and what it has spent."""

    def __init__(
        self,
        options: Options,
        key: Key[Array, ""],
        model: AbstractModel,
        kept: AbstractModel,
        change: Change,
        thetas: Float[np.ndarray, "n d"],
        like: PyTree,
        base: Float[np.ndarray, "chain draw"],
    ):
        self.options, self.key, self.model, self.kept, self.change = options, key, model, kept, change
        self.thetas, self.like, self.base = thetas, like, base
        self.share = change.n_rows / model.n_rows
        self.n, self.d = thetas.shape
        if self.n < 4:
            raise InvalidOptionError(f"there are {self.n} draws.", "an affine map needs some hundred.")
        self.folds = first_half(*base.shape), ~first_half(*base.shape)
        self.cost = Cost()
        self.full = evaluate_at(LogDensity(model), thetas, like)
        self.spend(densities=self.n)
        if not np.isfinite(self.full[base.ravel() > 0]).all():
            raise NonFiniteResultError(
                "the log density of all rows is NaN or infinite at some draws.",
                "check the model's functions at these draws, and that draws and data belong together.",
            )

    def spend(self, gradients: float | int = 0.0, densities: float | int = 0.0, sequential: int = 1) -> None:
        """Count evaluations."""
        self.cost = self.cost.plus(Cost(gradients, densities, sequential))

    def run(self) -> Fitted:
        """Fit, refine while the weights ask for it, split where they pass only so."""
        maps, residual = self.start()
        best, tried = self.score(maps), 0
        while tried < self.options.refinements and not _is_good(best.smoothed):
            refined = self.refine(maps)
            if refined is None:
                break
            maps, tried = refined, tried + 1
            try:
                current = self.score(maps)
            except NonFiniteResultError:
                break  # matched to too few draws, it leads out of the support: what there was stands
            if _order(current.smoothed) < _order(best.smoothed):
                best = current
        passes = best.smoothed.pareto_k <= best.smoothed.threshold
        if self.options.split or (self.options.split is None and not passes):
            halved = self.score_split(best)
            if self.options.split or _order(halved.smoothed) < _order(best.smoothed):
                best = halved
        maps_used = best.maps[1], best.maps[0]
        return Fitted(maps_used, best.moved, best.stayed, best.raw, best.smoothed, residual, tried, self.cost)

    # --- the first form of the maps

    def start(self) -> tuple[list[AffineMap], float]:
        """A map fitted to each half of the draws, and what their quasi-Newton steps left."""
        means, samples = self.samples()
        if self.d > MATRICES_UP_TO:
            return self.start_low_rank(means, samples)
        points = samples[:, : int(np.clip(CURVATURE_GRADIENTS // (2 * self.d), *CURVATURE_DRAWS))]
        look = _finite(_look(self.model, self.change, self.narrow(samples), self.narrow(points), self.like))
        a_curvature = 2 * points.shape[0] * points.shape[1] * self.d
        self.spend(gradients=(1 + self.share) * (samples.shape[0] * samples.shape[1] + a_curvature), sequential=2)
        kept = look.full + look.ratio
        if any(_cancels(*each) for each in zip(look.full, kept, strict=True)):
            kept = _finite(_curvatures(LogDensity(self.kept), self.narrow(points), self.like))
            self.spend(gradients=a_curvature)
        try:
            precision = _definite(kept, look.full)
            steps = [np.linalg.solve(one, push) for one, push in zip(precision, look.push, strict=True)]
            firsts = _between(means, means - np.stack(steps), look.full, kept)
        except np.linalg.LinAlgError:
            return self.start_low_rank(means, samples)
        settled, left = self.settle(firsts, samples, look.slopes, precision)
        shifts = np.stack([one.target - one.centre for one in settled])
        if np.einsum("fi,fij,fj->f", shifts, look.full, shifts).max() > FAR**2 * self.d:
            # The curvature of the kept rows is another one there.
            there = np.stack([one.forward(each) for one, each in zip(settled, points, strict=True)])
            kept = _finite(_curvatures(LogDensity(self.kept), self.narrow(there), self.like))
            self.spend(gradients=a_curvature)
            firsts = _between(means, np.stack([one.target for one in settled]), look.full, kept)
            settled, left = self.settle(firsts, samples, look.slopes, _definite(kept, look.full))
        return list(settled), left

    def samples(self) -> tuple[Float[np.ndarray, "2 d"], Float[np.ndarray, "2 m d"]]:
        """The mean of each half of the draws, and a few of them."""
        seed = np.asarray(jax.random.key_data(self.key))
        rng = np.random.default_rng(seed)
        means, samples = [], []
        for fold in self.folds:
            weights = self.base.ravel()[fold]
            if not weights.sum() > 0:
                raise NonFiniteResultError("half of the draws have weight zero.", "resample the draws first.")
            weights = weights / weights.sum()
            means.append(weights @ self.thetas[fold])
            places = rng.choice(len(weights), min(self.options.samples, self.n // 2), p=weights)
            samples.append(self.thetas[fold][places])
        return np.stack(means), np.stack(samples)

    def settle(
        self,
        firsts: list[DenseMap],
        samples: Float[np.ndarray, "2 m d"],
        slopes: Float[np.ndarray, "2 m d"],
        precision: Float[np.ndarray, "2 d d"],
    ) -> tuple[list[DenseMap], float]:
        """Bring the targets to where the kept gradient vanishes on average, by steps with the kept curvature."""
        drift = [one.inverse_matrix.T @ each.mean(axis=0) for one, each in zip(firsts, slopes, strict=True)]
        deviations = [one.linear(each - one.centre) for one, each in zip(firsts, samples, strict=True)]
        halves = _Halves(
            self.narrow(np.stack([one.target for one in firsts])),
            self.narrow(np.stack(deviations)),
            self.narrow(np.stack(drift)),
            self.narrow(np.linalg.inv(precision)),
            self.narrow(precision),
        )
        most = as_jax(self.options.newton_steps)
        targets, left, steps = jax.device_get(_settle(LogDensity(self.kept), halves, self.like, most))
        self.spend(gradients=samples.shape[1] * float((steps + 1).sum()), sequential=int(steps.max()) + 1)
        places = targets.astype(float)
        moved = [eqx.tree_at(lambda m: m.target, one, at) for one, at in zip(firsts, places, strict=True)]
        return moved, float(left.max())

    def start_low_rank(
        self, means: Float[np.ndarray, "2 d"], samples: Float[np.ndarray, "2 m d"]
    ) -> tuple[list[AffineMap], float]:
        rank = min(RANK, self.d)
        maps: list[AffineMap] = []
        worst = 0.0
        for fold, mean, sample in zip(self.folds, means, samples, strict=True):
            variances = self.thetas[fold].var(axis=0)
            scales = np.sqrt(np.where(variances > 0, variances, 1))
            out = _low_rank(
                LogDensity(self.kept),
                LogRatio(self.model, self.change),
                self.narrow(sample),
                self.narrow(scales),
                rank,
                self.like,
            )
            shift, losses, basis, steps, left = (np.asarray(each, float) for each in out)
            if not (np.isfinite(shift).all() and np.isfinite(losses).all()):
                raise NonFiniteResultError(
                    "the curvature of the kept rows is not positive definite at these draws.",
                    "remove fewer rows at a time.",
                )
            products = len(sample) * 2 * (float(steps) + self.share * rank * (POWER_STEPS + 1))
            self.spend(gradients=products, sequential=int(steps) + POWER_STEPS + 1)
            maps.append(low_rank_map(mean, scales, shift, losses, basis))
            worst = max(worst, float(left))
        return maps, worst

    def narrow(self, array: Float[np.ndarray, "..."]) -> Array:
        """In the precision of the draws: gradients need no more."""
        with np.errstate(over="ignore"):  # what is infinite then is refused where it shows
            return as_jax(array, jnp.result_type(*jax.tree.leaves(self.like)))

    # --- what the weights say of it

    def score(self, maps: list[AffineMap]) -> _Scored:
        """Each half moved by the map of the other, and the weights that it has there."""
        return self._weights(maps, maps[::-1])

    def refine(self, maps: list[AffineMap]) -> list[AffineMap] | None:
        """Each map matched to the moments of its own half's weights; None where these say nothing."""
        own = self._weights(maps, maps)
        refined = []
        for fold, one in zip(self.folds, maps, strict=True):
            log_weights = (own.raw + log_of(self.base)).ravel()[fold]
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
        raw = _nowhere(density - self.full + log_det).reshape(self.base.shape)
        return _Scored(maps, moved, np.zeros(self.n, bool), raw, self.smoothed(raw))

    def score_split(self, scored: _Scored) -> _Scored:
        """Every second draw left in place: weights against the mixture of moved and unmoved draws."""
        stayed = np.arange(self.n) % 2 == 1
        log_ratio = LogRatio(self.model, self.change)
        thetas = np.where(stayed[:, None], self.thetas, scored.moved)
        ratio = evaluate_at(log_ratio, thetas, self.like)
        back, log_det = np.empty_like(thetas), np.empty(self.n)
        for fold, one in zip(self.folds, scored.maps[::-1], strict=True):
            back[fold], log_det[fold] = one.inverse(thetas[fold]), float(one.log_det)
        at_back = np.where(stayed, evaluate_at(LogDensity(self.model), back, self.like), self.full)
        self.spend(densities=(1 + self.share) * self.n)
        moved_kept = scored.raw.ravel() + self.full - log_det
        kept = np.where(stayed, self.full + ratio, moved_kept)
        with np.errstate(invalid="ignore", over="ignore"):  # a moved draw may be where either density is zero
            full = np.where(stayed, self.full, moved_kept - ratio)
            raw = _nowhere(kept - np.logaddexp(full, at_back - log_det) + np.log(2)).reshape(self.base.shape)
        return _Scored(scored.maps, thetas, stayed, raw, self.smoothed(raw))

    def smoothed(self, raw: Float[np.ndarray, "chain draw"]) -> Smoothed:
        log_weights = raw + log_of(self.base)
        if not np.isfinite(log_weights).any():
            raise NonFiniteResultError(
                "the kept density is NaN or zero at every moved draw.",
                "the map leads out of the model's support: remove fewer rows at a time.",
            )
        return smooth(log_weights)


class _Scored(NamedTuple):
    maps: list[AffineMap]
    """Fitted to the first and to the second half."""
    moved: Float[np.ndarray, "n d"]
    stayed: Bool[np.ndarray, " n"]
    raw: Float[np.ndarray, "chain draw"]
    smoothed: Smoothed


class _Look(NamedTuple):
    """Curvatures and gradients at draws of the full posterior, for each half."""

    full: Any
    ratio: Any
    slopes: Any
    """∇source at each draw."""
    push: Any
    """−E∇log_ratio."""


@eqx.filter_jit
def _look(
    model: AbstractModel, change: Change, samples: Float[Array, "2 m d"], points: Float[Array, "2 p d"], like: PyTree
) -> _Look:
    full, log_ratio = LogDensity(model), LogRatio(model, change)

    def slopes(density: LogDensity | LogRatio, samples: Float[Array, "2 m d"]) -> Float[Array, "2 m d"]:
        size = batch_size(density.elements, samples.shape[1])
        return jax.lax.map(lambda half: sharding.map_draws(gradient_at, half, size, (density, like)), samples)

    of_full = _curvatures(full, points, like)
    of_ratio = _curvatures(log_ratio, sharding.after(points, of_full), like)
    at_full = slopes(full, sharding.after(samples, of_ratio))
    push = -slopes(log_ratio, sharding.after(samples, at_full)).mean(axis=1)
    return _Look(of_full, of_ratio, at_full, push)


@eqx.filter_jit
def _curvatures(density: LogDensity | LogRatio, points: Float[Array, "2 p d"], like: PyTree) -> Float[Array, "2 d d"]:
    share = jnp.full(points.shape[1], 1 / points.shape[1], points.dtype)
    return jax.lax.map(lambda half: Curvature(density, half, share, like).dense(), points)


class _Halves(NamedTuple):
    """What quasi-Newton steps need, of both halves or of one."""

    target: Float[Array, "*halves d"]
    deviations: Float[Array, "*halves m d"]
    """A(θ − m) of a few draws."""
    drift: Float[Array, "*halves d"]
    covariance: Float[Array, "*halves d d"]
    precision: Float[Array, "*halves d d"]


@eqx.filter_jit
def _settle(
    kept: LogDensity, halves: _Halves, like: PyTree, most: Int[Array, ""]
) -> tuple[Float[Array, "2 d"], Float[Array, " 2"], Int[Array, " 2"]]:
    """Quasi-Newton steps on both targets: their last place, the step left in standard deviations, steps taken."""
    return jax.lax.map(lambda half: _settle_one(kept, half, like, most), halves)


def _settle_one(
    kept: LogDensity, half: _Halves, like: PyTree, most: Int[Array, ""]
) -> tuple[Float[Array, " d"], Float[Array, ""], Int[Array, ""]]:
    target, deviations, drift, covariance, precision = half
    share = jnp.full(len(deviations), 1 / len(deviations), deviations.dtype)

    def step_at(target: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        push = mean_gradient(kept, target + deviations, share, like)
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
    first = (target, step, length, jnp.ones((), target.dtype), jnp.zeros((), jnp.int32))
    target, _, length, _, steps = jax.lax.while_loop(goes_on, advance, first)
    return target, length, steps


@eqx.filter_jit
def _low_rank(
    kept: LogDensity,
    log_ratio: LogRatio,
    sample: Float[Array, "m d"],
    scales: Float[Array, " d"],
    rank: int,
    like: PyTree,
) -> tuple[Float[Array, " d"], Float[Array, " r"], Float[Array, "d r"], Array, Float[Array, ""]]:
    """Newton shift by CG, and the largest eigenvalues of the removed rows' curvature in units of the scales."""
    share = jnp.full(len(sample), 1 / len(sample), sample.dtype)
    push = -mean_gradient(log_ratio, sample, share, like)
    solved = CG(rtol=1e-3)(Curvature(kept, sharding.after(sample, push), share, like), push, scales)
    gained = Curvature(log_ratio, sharding.after(sample, solved.value), share, like)
    directions = jax.random.normal(jax.random.key(0), (scales.size, rank), scales.dtype)

    def products(basis: Float[Array, "d r"]) -> Float[Array, "d r"]:
        return jax.lax.map(
            lambda v: -scales * gained.mv(scales * v), basis.T
        ).T  # side by side they would be r × draws × d

    def power(basis: Float[Array, "d r"], _: None) -> tuple[Float[Array, "d r"], None]:
        return jnp.linalg.qr(products(basis))[0], None

    basis, _ = jax.lax.scan(power, jnp.linalg.qr(directions)[0], length=POWER_STEPS)
    losses, vectors = jnp.linalg.eigh(basis.T @ products(basis))
    return -solved.value, losses, basis @ vectors, jnp.asarray(solved.products), solved.relative_residual


def _definite(kept: Float[np.ndarray, "2 d d"], full: Float[np.ndarray, "2 d d"]) -> Float[np.ndarray, "2 d d"]:
    """The kept curvatures; where one is not positive definite, with its eigenvalues raised to `LEAST_KEPT` of the full.

    Raises `LinAlgError` where the full one is not positive definite either.
    """
    return np.stack([_raised(*each) for each in zip(kept, full, strict=True)])


def _raised(kept: Float[np.ndarray, "d d"], full: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    try:
        np.linalg.cholesky(kept)
        return kept
    except np.linalg.LinAlgError:
        unroot = np.linalg.cholesky(full).T
        root = np.linalg.inv(unroot)
        values, vectors = np.linalg.eigh(root.T @ kept @ root)
        return unroot.T @ ((vectors * np.maximum(values, LEAST_KEPT)) @ vectors.T) @ unroot


def _cancels(full: Float[np.ndarray, "d d"], kept: Float[np.ndarray, "d d"]) -> bool:
    """Whether full − removed leaves so little along a parameter that rounding matters."""
    return bool((np.diag(kept) < 1e-3 * np.diag(full)).any())


def _between(
    centres: Float[np.ndarray, "2 d"],
    targets: Float[np.ndarray, "2 d"],
    full: Float[np.ndarray, "2 d d"],
    kept: Float[np.ndarray, "2 d d"],
) -> list[DenseMap]:
    return [curvature_map(*each) for each in zip(centres, targets, full, kept, strict=True)]


def _finite(arrays: Any) -> Any:
    """Arrays on the host, in float64, and finite."""
    values = jax.tree.map(lambda array: np.asarray(array, np.float64), arrays)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values)):
        raise NonFiniteResultError(
            "a gradient or curvature of the log density is not finite at some draws.",
            "check that the model's functions are differentiable there.",
        )
    return values


def _is_good(smoothed: Smoothed) -> bool:
    return smoothed.pareto_k <= smoothed.threshold and smoothed.ess >= GOOD_SHARE * smoothed.log_weights.size


def _order(smoothed: Smoothed) -> tuple[bool, float]:
    """Passing first; among those that pass the larger ESS, among the others the smaller k̂."""
    passes = smoothed.pareto_k <= smoothed.threshold
    return not passes, -smoothed.ess if passes else smoothed.pareto_k


def _nowhere(log_weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """A draw moved to where the density is not defined has weight zero."""
    return np.where(np.isfinite(log_weights), log_weights, -np.inf)
