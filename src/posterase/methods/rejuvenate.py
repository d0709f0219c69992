"""Rejuvenate: walk the draws along a path to the kept posterior, resampling and moving them on the way.

    log p_λ = (1 − λ) start + λ kept,        λ: 0 → 1

`start` is the density that the draws have: full, or full(T⁻¹θ) − log |det A| once an affine map T (`Transport`) has
brought them near. A stage from λ to λ′

    1. weighs the draws of p_λ by (λ′ − λ)(kept − start), λ′ chosen so that a share of the effective draws is kept
    2. resamples them by their Pareto smoothed weights (systematically)
    3. moves them by a kernel that leaves p_λ′ invariant, until they have forgotten where they were

The order matters: a kernel that moves at the new target before the weights are taken deletes the rows twice. With
transported draws one stage is mostly enough. Exact as the number of moves grows.

The product of the mean weights estimates p(S − S′)/p(S), the ratio of evidences.

**Two halves.** Draws are kept in two halves throughout; the map of each is fitted to the other, and its moves are tuned
on the other. Along a single stage what is known of the weighted draws then still holds after the moves: they cannot
raise KL(· ‖ kept). Over several stages nothing such is known, and ε is not measured.

References
----------
Del Moral, Doucet, Jasra (2006), Sequential Monte Carlo samplers, JRSS B 68. Chopin & Papaspiliopoulos (2020), An
introduction to sequential Monte Carlo.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from posterase.draws.draws import Draws, systematic
from posterase.draws.objections import Objection
from posterase.errors import InvalidOptionError, NonFiniteResultError
from posterase.methods.base import Method, MethodResult, Problem, replaced
from posterase.methods.diagnostics import Diagnostics, weigh
from posterase.methods.transport import Transport, TransportDetails, Transported
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.cost import HARD_REFIT_LEAPFROGS, Cost, refit_transitions
from posterase.numerics.densities import constrained, evaluate_at, unconstrained
from posterase.numerics.moves import HMCMoves, Moves, move
from posterase.numerics.paths import Path, next_step
from posterase.numerics.transport_maps import AffineMap
from posterase.numerics.weights import (
    Estimate,
    Smoothed,
    base_weights,
    first_half,
    log_mean,
    log_of,
    parameter_ess,
    pareto_k_threshold,
    smooth,
)
from posterase.runtime.checks import check_int, check_type
from posterase.runtime.precision import as_jax

SHORTEST_STEP = 1e-3
"""A path whose steps are shorter than this share of what is left of it leads nowhere."""

ON_THE_WAY = 0.5
"""Before the end of the path, moves stop at this correlation: the particles will be moved again."""

LEAST_ACCEPTANCE, MOST_CORRELATION, MOST_UNSETTLED = 0.3, 0.5, 0.1
"""Beyond these the moves did not do their work."""


class Stage(NamedTuple):
    """One stage of the path."""

    to: float
    """λ at its end."""
    ess: float
    """Effective draws after weighting, of all."""
    pareto_k: float
    """k̂ of the stage's weights."""
    moves: int
    acceptance: float
    correlation: float
    """Between places before the moves and after them, the largest over parameters."""


@dataclasses.dataclass(frozen=True)
class RejuvenateDetails:
    """How the path went."""

    stages: list[Stage]
    unique_ancestors: int
    """How many of the draws that went in have descendants."""
    ancestors: Int[np.ndarray, "chain draw"]
    """Which draw that went in, chains laid end to end, each returned one descends from."""
    log_evidence_ratio: Estimate
    """log p(S) − log p(S − S′), where prior and likelihood are normalised."""
    epsilon: Estimate | None
    """KL to the kept posterior of a returned draw; None where the path has several stages: not measured."""
    moved_first: bool
    """Whether an affine map came first."""
    n_draws: int
    threshold: float
    """The largest k̂ to trust with this many draws."""

    @property
    def pareto_k(self) -> float:
        """The worst stage's; not a number where there was none."""
        return max((stage.pareto_k for stage in self.stages), default=float("nan"))

    @property
    def brief(self) -> str:
        """The figures that matter most."""
        if not self.stages:
            return "no stage"
        last = self.stages[-1]
        return f"{len(self.stages)} stage(s), acceptance {last.acceptance:.2f}, correlation left {last.correlation:.2f}"

    def __str__(self) -> str:
        start = "from transported draws" if self.moved_first else "from the draws as they were"
        lines = [f"{start}; {self.unique_ancestors} of {self.n_draws} draws have descendants"]
        lines += [
            f"  λ → {stage.to:.3f}: ESS {stage.ess:.0f}, k̂ {stage.pareto_k:.2f}, {stage.moves} moves, acceptance "
            f"{stage.acceptance:.2f}, correlation left {stage.correlation:.2f}"
            for stage in self.stages
        ]
        return "\n".join(lines)


class Rejuvenate(Method):
    """Resample and move draws along a path to the kept posterior.

    Parameters
    ----------
    start
        An affine map that comes first: `Transport()`. None: the path starts from the draws as they are.
    moves
        The kernel: `HMCMoves()`, `MALAMoves()` or `NUTSMoves()`.
    ess_share
        The share of the effective draws that a stage keeps.
    correlation
        Moves at the end of the path stop where no parameter remembers more than this of where it was.
    max_moves, max_stages, max_gradients
        When to give up: moves per stage, stages, gradients per draw. A refit by NUTS takes ten to fifty gradients per
        draw, and paths of more than a hundred have lost a heavy tail on their way.
    most_of_a_refit
        With `HMCMoves` the path is given up, before it starts or on its way, where it is predicted to cost more than
        this share of a refit.
    """

    needs_informed: ClassVar[bool] = True
    takes_many_gradients: ClassVar[bool] = True
    start: Transport | None = Transport(split=False)
    moves: Moves = HMCMoves()
    ess_share: float = eqx.field(default=0.5, static=True)
    correlation: float = eqx.field(default=0.2, static=True)
    max_moves: int = eqx.field(default=32, static=True)
    max_stages: int = eqx.field(default=40, static=True)
    max_gradients: int = eqx.field(default=100, static=True)
    most_of_a_refit: float = eqx.field(default=1.0, static=True)

    def __check_init__(self) -> None:
        if self.start is not None:
            check_type(self.start, Transport, "start", "use Transport(), or None.")
        check_type(self.moves, Moves, "moves", "use HMCMoves(), MALAMoves() or NUTSMoves().")
        for name, value in (("ess_share", self.ess_share), ("correlation", self.correlation)):
            if not 0 < value < 1:
                raise InvalidOptionError(f"{name} is {value!r}.", "use a number between 0 and 1.")
        check_int("max_moves", self.max_moves, 1)
        check_int("max_stages", self.max_stages, 1)
        check_int("max_gradients", self.max_gradients, 1)
        if not self.most_of_a_refit > 0:
            raise InvalidOptionError(f"most_of_a_refit is {self.most_of_a_refit!r}.", "use a positive number.")

    def run(self, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
        key, model, draws, change = problem.parts
        made = None if warm_start is None or self.start is None else warm_start.details
        if (
            isinstance(made, TransportDetails) and made.transported is not None and not made.split
        ):  # the map that this method would begin with
            return self._walk(key, model, draws, change, made.transported)
        first, walk = jax.random.split(key)
        transported = None
        if self.start is not None:
            try:
                transported = self.start.transport(first, model, draws, change)
            except NonFiniteResultError:
                transported = None  # no map can be had: the path starts from the draws as they are
        return self._walk(walk, model, draws, change, transported)

    def _walk(
        self, key: Key[Array, ""], model: AbstractModel, draws: Draws, change: Change, moved: Transported | None
    ) -> MethodResult:
        """The path, from draws that have been transported, or not."""
        walk = _Walk(self, key, model, draws, change, moved)
        while walk.at < 1 and len(walk.stages) < self.max_stages and not walk.is_expensive() and not walk.stuck:
            walk.stage()
        return walk.finish()


class _Walk:
    """Particles on their way, in two halves of equal size."""

    def __init__(
        self,
        options: Rejuvenate,
        key: Key[Array, ""],
        model: AbstractModel,
        draws: Draws,
        change: Change,
        moved: Transported | None,
    ):
        self.options, self.key, self.model, self.draws, self.change = options, key, model, draws, change
        self.kept = model.without(change) if moved is None else moved.kept
        self.n = draws.n_chains * draws.n_draws
        base = base_weights(draws)
        share = change.n_rows / model.n_rows
        if moved is None:
            thetas, self.like = unconstrained(model, draws)
        else:
            thetas, self.like = moved.origin, moved.like
        ratios = evaluate_at(LogRatio(model, change), thetas, self.like).reshape(base.shape)
        self.cost = Cost(densities=share * self.n, sequential=1)
        self.maps: AffineMap | None = None
        if moved is not None and not moved.fitted.stayed.any():
            self.cost = self.cost.plus(moved.fitted.cost)
            if _length(moved.fitted.log_weights, base) < _length(ratios, base):  # the shorter path
                thetas, ratios = moved.fitted.moved, moved.fitted.log_weights
                self.maps = jax.tree.map(lambda *leaves: np.stack(leaves), *moved.fitted.maps)
        self.raw, self.base = ratios, base
        self.at, self.stuck, self.unsettled = 0.0, False, 0.0
        self.passes_moved = 0.0  # moves so far, each counted with its passes over the rows
        transitions = refit_transitions(draws.n_chains, draws.n_draws)
        self.most_moves = options.most_of_a_refit * HARD_REFIT_LEAPFROGS * transitions / self.n
        self.stages: list[Stage] = []
        self.log_ratio: list[Estimate] = []
        self.epsilon: Estimate | None = None
        # Halves of equal size: where they are not, the smaller has draws of weight zero to fill it up.
        first = first_half(draws.n_chains, draws.n_draws)
        members = [np.flatnonzero(first), np.flatnonzero(~first)]
        half = max(map(len, members))
        order = np.stack([np.resize(each, half) for each in members])
        filled = np.arange(half) >= np.array([[len(each)] for each in members])
        order, weights = order.ravel(), np.where(filled, 0, base.ravel()[order]).ravel()
        self.log_weights = log_of(weights).reshape(2, half)
        self.thetas = thetas[order].reshape(2, half, -1)
        self.ratios = ratios.ravel()[order].reshape(2, half)
        self.ancestors = order.reshape(2, half)

    def is_expensive(self) -> bool:
        """Whether the path has cost, or will cost, more than a refit: both in moves of every draw.

        A trajectory of NUTS takes about as many gradients as several of these moves, so that the number of gradients
        per move cancels. What is ahead takes at least one move per stage, and stages are not expected to become longer.
        """
        if self.cost.gradients >= self.options.max_gradients * self.n:
            return True
        if not isinstance(self.options.moves, HMCMoves):
            return False
        ahead = next_step(self.ratios.ravel(), self.log_weights.ravel(), self.at, self.options.ess_share) - self.at
        stages = max(1.0, (1 - self.at) / max(ahead, SHORTEST_STEP))
        each = self.passes_moved / len(self.stages) if self.stages else 1.0
        return self.passes_moved + each * stages > self.most_moves

    def stage(self) -> None:
        number = len(self.stages)
        resample_key, move_key = jax.random.split(jax.random.fold_in(self.key, number))
        ratios, weights = self.ratios.ravel(), self.log_weights.ravel()
        to = next_step(ratios, weights, self.at, self.options.ess_share)
        step, smoothed = self.weights(to)
        shortest = SHORTEST_STEP * (1 - self.at)
        while not smoothed.pareto_k <= smoothed.threshold and to - self.at > 2 * shortest:
            to = (self.at + to) / 2  # enough effective draws, but they rest on a heavy tail
            step, smoothed = self.weights(to)
        self.stuck = to < 1 and to - self.at < shortest
        base = np.exp(self.log_weights - self.log_weights.max())
        self.log_ratio.append(log_mean(step, base / base.sum()))
        if number == 0 and to == 1:
            self.epsilon = weigh(self.raw, self.base, smooth(self.raw + log_of(self.base))).epsilon
        chosen = self.resample(resample_key, np.exp(smoothed.log_weights))
        rows = np.arange(2)[:, None]
        self.thetas, self.ancestors = self.thetas[rows, chosen], self.ancestors[rows, chosen]
        self.log_weights = np.zeros_like(self.log_weights)
        ended = to == 1
        path = Path(self.model, self.kept, self.change, self.maps, as_jax(to, _precision(self.like)), self.like, ended)
        moved = move(
            move_key,
            self.options.moves,
            path,
            self.thetas,
            most=self.options.max_moves,
            enough=self.options.correlation if ended else ON_THE_WAY,
        )
        passes = 1 if ended else 2 if self.maps is not None else 1 + self.change.n_rows / self.model.n_rows
        self.cost = self.cost.plus(Cost(gradients=passes * moved.gradients, sequential=moved.sequential))
        self.passes_moved += passes * moved.moves
        self.thetas, self.at, self.unsettled = moved.thetas, to, moved.unsettled
        self.stages.append(Stage(to, smoothed.ess, smoothed.pareto_k, moved.moves, moved.acceptance, moved.correlation))
        if not ended:
            self.ratios = self.log_ratios()

    def weights(self, to: float) -> tuple[Float[np.ndarray, "2 m"], Smoothed]:
        """Raw log-weights of a step, and smoothed ones of the particles after it."""
        step = np.where(np.isfinite(self.ratios), (to - self.at) * self.ratios, -np.inf)
        return step, smooth(step + self.log_weights)

    def resample(self, key: Key[Array, ""], weights: Float[np.ndarray, "2 m"]) -> Int[np.ndarray, "2 m"]:
        """Within each half, so that what is tuned on the other stays another's."""
        keys = jax.random.split(key)
        return np.stack([np.asarray(systematic(k, as_jax(w), len(w))) for k, w in zip(keys, weights, strict=True)])

    def log_ratios(self) -> Float[np.ndarray, "2 m"]:
        """kept − start at the particles."""
        flat = self.thetas.reshape(-1, self.thetas.shape[-1])
        share = self.change.n_rows / self.model.n_rows
        if self.maps is None:
            self.cost = self.cost.plus(Cost(densities=share * len(flat), sequential=1))
            log_ratio = LogRatio(self.model, self.change)
            return evaluate_at(log_ratio, flat, self.like).reshape(self.thetas.shape[:2])
        self.cost = self.cost.plus(Cost(densities=2 * len(flat), sequential=1))
        maps = [jax.tree.map(lambda leaf: leaf[half], self.maps) for half in range(2)]  # noqa: B023
        back = np.stack([one.inverse(half) for one, half in zip(maps, self.thetas, strict=True)])
        full = evaluate_at(LogDensity(self.model), back.reshape(flat.shape), self.like).reshape(self.thetas.shape[:2])
        kept = evaluate_at(LogDensity(self.kept), flat, self.like).reshape(self.thetas.shape[:2])
        return kept - full + np.array([float(one.log_det) for one in maps])[:, None]

    def finish(self) -> MethodResult:
        shape = self.draws.n_chains, self.draws.n_draws
        # In the order of their ancestors, so that what is left of a chain's autocorrelation can still be seen.
        order = np.argsort(self.ancestors, axis=None, kind="stable")[: self.n]
        thetas = self.thetas.reshape(-1, self.thetas.shape[-1])[order]
        ancestors = self.ancestors.ravel()[order]
        if not np.isfinite(thetas).all():
            raise NonFiniteResultError(
                "the moves ended in NaN or infinity.",
                "check that the model's gradients are finite around the draws. The draws you passed in are untouched.",
            )
        erased = replaced(self.draws, constrained(self.model, thetas, self.like, self.draws), None, "the moves")
        ratio = Estimate(
            -sum(each.value for each in self.log_ratio), float(np.sqrt(sum(each.error**2 for each in self.log_ratio)))
        )
        details = RejuvenateDetails(
            stages=self.stages,
            unique_ancestors=len(np.unique(ancestors)),
            ancestors=ancestors.reshape(shape),
            log_evidence_ratio=ratio,
            epsilon=self.epsilon,
            moved_first=self.maps is not None,
            n_draws=self.n,
            threshold=pareto_k_threshold(self.n),
        )
        diagnostics = Diagnostics(
            ess=parameter_ess(erased, details.ancestors),
            cost=self.cost,
            pareto_k=details.pareto_k if self.stages else None,
            threshold=details.threshold,
            epsilon=self.epsilon,
            log_evidence_ratio=ratio,
            flaw=_flaw(details, self.at, self.unsettled, self.at < 1 and self.is_expensive()),
        )
        return MethodResult(erased, details, diagnostics)


def _length(log_ratios: Float[np.ndarray, "chain draw"], base: Float[np.ndarray, "chain draw"]) -> float:
    """How far apart two densities are along their path: the standard deviation of their log ratio."""
    if not np.isfinite(log_ratios[base > 0]).all():
        return float("inf")
    mean = (base * log_ratios).sum()
    return float(np.sqrt((base * (log_ratios - mean) ** 2).sum()))


def _flaw(details: RejuvenateDetails, at: float, unsettled: float, is_expensive: bool) -> Objection | None:
    if at < 1 and is_expensive:
        begun = f"after {len(details.stages)} stages" if details.stages else "before it started"
        return Objection(
            "cost",
            f"the path is predicted to cost more than a refit, and was given up {begun}",
            "remove fewer rows at a time.",
        )
    last = details.stages[-1]
    if at < 1:
        return Objection(
            "path",
            f"the path got no farther than λ = 1 − {1 - at:.1g} in {len(details.stages)} stages",
            "remove fewer rows at a time, or use more draws.",
        )
    if last.acceptance < LEAST_ACCEPTANCE:
        return Objection(
            "moves",
            f"only {last.acceptance:.0%} of the moves were accepted",
            "use another parametrisation (non-centred), or NUTSMoves().",
        )
    if last.correlation > MOST_CORRELATION:
        return Objection(
            "moves",
            f"after {last.moves} moves the draws still remember where they were (correlation {last.correlation:.2f})",
            "allow more moves (max_moves), or use another parametrisation.",
        )
    if unsettled > MOST_UNSETTLED:
        return Objection(
            "moves",
            f"the draws have not settled: their mean gradient is off by {unsettled:.2g} posterior sd, beyond chance",
            "check that the kept posterior is proper (what is left of the rows, and the prior); allow more moves.",
        )
    return None


def _precision(like: PyTree) -> np.dtype:
    return jnp.result_type(*jax.tree.leaves(like))
