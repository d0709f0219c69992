"""Output: the draws of an accepted result that may leave memory, verified against the target.

A weight is a function of the removed rows at one draw, and so is how often a draw repeats after resampling: from
either, least squares recovers the rows. And weights can only see where the draws are. What `erase` returns is therefore
always equally weighted draws without copies:

1. *Moved*: resampled by their weights, then moved on the target until every draw has moved, no parameter, nor
   log p(S′ | θ), remembers its value at the ancestor, and nothing drifts (`posterase.numerics.refresh`). Fewer than
   came in where moving all would cost more than a share of a refit; never fewer than the policy's effective draws need.
   They stay in the order of their ancestors, so that what is left of a chain's autocorrelation shows in ArviZ's ESS and
   R̂.
2. *A subset*, where there is no density to move with: each draw kept with probability w / max w, without copies. It
   cannot be verified, and says so.

How many draws come out is itself a function of the weights, so it is rounded down to a coarse share of those that went
in.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from posterase.data.parameters import parameter_names
from posterase.draws.draws import Draws
from posterase.draws.notes import Note
from posterase.draws.objections import Objection
from posterase.draws.origins import Origin
from posterase.errors import NonFiniteDrawsError
from posterase.ladder.policy import Policy
from posterase.methods.base import Method, MethodResult, check_in_support, replaced
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.cost import Cost, least_refit_gradients
from posterase.numerics.densities import constrained, evaluate_at, unconstrained
from posterase.numerics.kernels import Halves
from posterase.numerics.local_mixtures import MOST_DIMENSIONS
from posterase.numerics.refresh import Pace, Plan, Refreshed, Verification, Visits, refresh, visit_modes
from posterase.numerics.weights import BLOCKS_A_CHAIN, PIECE, base_weights, blocks, first_half
from posterase.sampling.effective_draws import effective_draws
from posterase.sampling.warm_nuts import flattened

SHARES = tuple(eighths / 8 * 0.5**power for power in range(12) for eighths in (8, 7, 6, 5))
"""Shares of the draws that went in which may come out."""

MOST_OF_A_REFIT = 0.25
"""What moves may be predicted to cost, as a share of a refit: so many draws are moved."""

GIVEN_UP_AT = 1.0
"""No more moves are begun past this share of a refit: they had to repair draws, or forget slowly."""

MOST_REFITS = 4.0
"""The same for chains of a refit, after which nothing is left to try."""

SPARE = 1.5
"""At least so many times the effective draws that are asked for are moved: moved draws hardly depend on each other."""

FEWEST = 150
"""A smaller demand for effective draws counts as this one: the effective size of few draws is hard to estimate."""

ENOUGH = 2.0
"""No more than about so many times the effective draws that are asked for are moved where gradients are expensive, or
moved on once draws have drifted or forget slowly."""

FEWEST_PIECES = 32
"""The test for drift sums over so many pieces of chains, or more."""

LEAST_HALF = 0.25
"""Of the weights, for each of the two halves that draws are resampled in: what they differ by is chance, unless the two
maps of `Transport` lead to different places."""

MOST_PARAMETERS = 10_000
"""Above this a model is a network, whose chains are not stationary: a kernel of its posterior would train it on."""

NOT_ALL = "moving all draws would cost more than a quarter of a refit"
FEW_ARE_ENOUGH = "gradients of this model are expensive, and so many are enough for the policy's effective draws"
HALVES_DIFFER = Objection("diagnostics", "the weights lie on one half of the draws", "remove fewer rows at a time.")
CANNOT_MOVE = Objection(
    "no output",
    "the draws could not be moved along the kept posterior",
    "remove fewer rows at a time, or use another parametrisation.",
)
NETWORKS = "use the methods for networks, and hold the result against retrainings (pe.match_refits)."
MIRRORED = (
    "the kept posterior has modes that no draw is in, which are images of those that draws are in: components "
    "relabelled, or signs turned"
)
NO_DENSITY = "the model is known by stored log-likelihoods only, which can neither move draws nor verify them"


@dataclasses.dataclass(frozen=True)
class Output:
    """What a request returns."""

    draws: Draws
    """Equally weighted, without copies."""
    model: AbstractModel
    """The model of the kept rows, ready for the next request."""
    origin: Origin
    ess: dict[str, float]
    correlation: float | None = None
    """The largest correlation with the ancestors that is left, where draws were moved."""
    verification: Verification | None = None
    """None where draws were not moved."""
    notes: tuple[Note, ...] = ()

    @property
    def missed(self) -> float | None:
        """The largest error, in standard deviations, that verification may have missed; None without verification."""
        return None if self.verification is None else self.verification.drift.missed

    @property
    def is_verified(self) -> bool | None:
        """Whether the draws were tested not to drift; None for a refit, whose chains are compared with each other."""
        return None if self.origin == "refitted" else self.verification is not None

    @property
    def is_repaired(self) -> bool:
        """Whether the draws drifted at first, and were moved on until they did not."""
        return self.verification is not None and self.verification.drifts > 0


class Attempt(NamedTuple):
    """What was made of a method's draws."""

    result: Output | Objection
    """Draws that may leave memory, or why there are none."""
    cost: Cost = Cost()
    """What the moves took."""
    moved: Draws | None = None
    """Draws that were moved and did not pass: a refit starts from them."""
    pace: Pace | None = None
    """What moves take, as far as trials tell."""


class Request(NamedTuple):
    """The request that output is made for."""

    model: AbstractModel
    kept: AbstractModel
    change: Change
    policy: Policy
    before: Draws
    """The draws that went in."""
    near: Draws | None = None
    """Other draws near the target, with their weights, for chains that do not depend on them."""

    def halves(self, random: np.random.Generator) -> Halves:
        """The draws that went in, raveled and unconstrained, in the halves that draws are resampled in; and as many of
        those near the target.
        """
        thetas, _ = unconstrained(self.kept, self.before)
        first = first_half(self.before.n_chains, self.before.n_draws)
        halves = thetas[first], thetas[~first]
        if self.near is None or self.near is self.before:
            return halves
        near, _ = unconstrained(self.kept, self.near)
        weights = flattened(base_weights(self.near).ravel())
        picked = [near[random.choice(len(near), len(half), p=weights)] for half in halves]
        return np.concatenate([halves[0], picked[0]]), np.concatenate([halves[1], picked[1]])


def make_output(
    key: Key[Array, ""], method: Method, erased: MethodResult, request: Request, *, must_move: bool = False
) -> Attempt:
    """Draws that may leave memory, from what a method returned, or why there are none.

    Chains that ran on the kept rows are returned as they are, unless something speaks against them: then they are moved
    and verified like other draws. In few dimensions, where moves reach everywhere, all are tested for drift.
    """
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    can_move = request.model.has_density and not is_network(erased.draws)
    if method.samples_anew and erased.draws.log_weights is None:
        return _make_output_of_chains(random, method, erased, request, must_move=must_move and can_move)
    if not request.model.has_density:
        return Attempt(_because(_subset(random, method, erased, request), erased.draws, NO_DENSITY))
    if is_network(erased.draws):
        reason = f"moves do not verify more than {MOST_PARAMETERS:,} parameters"
        return Attempt(Objection("not verified", reason, NETWORKS))
    return _moved(random, erased, request, "moved", GIVEN_UP_AT)


def is_network(draws: Draws) -> bool:
    """Whether a posterior has so many parameters that kernels of it do not mix."""
    return _width(draws) > MOST_PARAMETERS


def _width(draws: Draws) -> int:
    return sum(int(np.prod(leaf.shape[2:])) for leaf in jax.tree.leaves(draws.params))


def _make_output_of_chains(
    random: np.random.Generator, method: Method, erased: MethodResult, request: Request, *, must_move: bool
) -> Attempt:
    """Output of chains that ran on the kept rows: they hold nothing of the removed rows, and need not be moved."""
    unmoved = Output(erased.draws, request.kept, "refitted", erased.diagnostics.ess)
    if not request.model.has_density or is_network(erased.draws):
        return Attempt(unmoved)
    visits = _visit_modes(random, erased, request)
    if visits.mirrored:
        unmoved = dataclasses.replace(unmoved, notes=(Note("output", MIRRORED),))
    must_move |= not visits.all_visited
    if not must_move and _width(erased.draws) > MOST_DIMENSIONS:
        return Attempt(unmoved, visits.cost)
    attempt = _moved(random, erased, request, "refitted and moved", MOST_REFITS, is_suspect=must_move)
    made, cost = attempt.result, attempt.cost.plus(visits.cost)
    if not must_move:
        passed = not made.is_repaired if isinstance(made, Output) else made.cause != "drift"
        if passed:
            return Attempt(unmoved, cost, pace=attempt.pace)
    return attempt._replace(cost=cost)


def _visit_modes(random: np.random.Generator, erased: MethodResult, request: Request) -> Visits:
    """Which modes chains visit."""
    thetas, like = unconstrained(request.kept, erased.draws)
    half = len(thetas) // 2
    halves = thetas[: 2 * half].reshape(2, half, -1)

    def log_ratio_at(flat: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        return evaluate_at(LogRatio(request.model, request.change), flat, like)

    return visit_modes(random, LogDensity(request.kept), like, halves, request.halves(random), log_ratio_at)


def _moved(
    random: np.random.Generator,
    erased: MethodResult,
    request: Request,
    origin: Origin,
    most_refits: float,
    *,
    is_suspect: bool = False,
) -> Attempt:
    """The draws resampled, moved and verified, or what speaks against them."""
    draws, least = erased.draws, max(request.policy.least_ess, FEWEST) * (SPARE if is_suspect else 1)
    is_expensive = request.model.gradients_are_expensive
    chains, length = draws.n_chains, draws.n_draws
    thetas, like = unconstrained(request.kept, draws)
    weights, half = base_weights(draws).ravel(), first_half(chains, length)
    if not LEAST_HALF <= weights[half].sum() / weights.sum() <= 1 - LEAST_HALF:
        return Attempt(HALVES_DIFFER)
    ancestors = _resampled(random, weights, half)
    # Methods that map draws leave their order, and what a chain remembers.
    groups = _pieces(draws, request.before if origin == "moved" else draws)[ancestors]
    counts = [chains * int(length * share) for share in SHARES if chains * int(length * share) >= SPARE * least]
    if is_expensive:
        counts = counts[-sum(count < ENOUGH * least for count in counts) - 1 :]
    fewest = min(counts, default=chains * length)
    fewer = sorted(count for count in counts if count >= ENOUGH * least) or [max(counts, default=fewest)]

    def choose(pace: Pace) -> Plan:
        hard = least_refit_gradients(chains, length, pace.steps, is_hard=True)
        refit = hard if pace.sweeps > 1 else least_refit_gradients(chains, length, pace.steps)
        affordable = [count for count in counts if count * pace.gradients_per_draw <= MOST_OF_A_REFIT * refit]
        count = max(affordable, default=fewest)
        places = np.linspace(0, ancestors.shape[1], -(-count // 2), endpoint=False).astype(int)
        halves = tuple(-(-each // 2) for each in fewer)
        return Plan(np.stack([places, places]), halves, most_refits * refit, most_refits * hard)

    def log_ratio_at(flat: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        # Of as many draws as there are, so that one shape is compiled.
        padded = flat if is_expensive else np.resize(flat, (ancestors.size, flat.shape[1]))
        return evaluate_at(LogRatio(request.model, request.change), padded, like)[: len(flat)]

    found = thetas[ancestors]
    known = request.halves(random)
    moved = refresh(random, LogDensity(request.kept), like, found, groups, choose, log_ratio_at, known, is_suspect)
    objection = _objection(moved, like)
    if objection is not None:
        near = _as_draws(moved, request.kept, like, draws) if objection.cause in ("drift", "not verified") else None
        return Attempt(objection, moved.cost, near, moved.pace)
    places = ancestors[np.arange(2)[:, None], moved.places]
    order = np.argsort(places, axis=None, kind="stable")
    shape = chains, min(len(order) // chains, length)
    flat = moved.thetas.reshape(len(order), -1)[order[: shape[0] * shape[1]]]
    fresh = replaced(draws, constrained(request.kept, flat, like, draws, shape), None, "the output moves")
    check_in_support(request.kept, fresh, "the output moves")
    ess, first = effective_draws(fresh), draws.first_places().ravel()
    if draws.n_distinct < len(first):
        ess = _without_copies(ess, first[places.ravel()[order]], moved.correlation)
    output = Output(fresh, request.kept, origin, ess, moved.correlation, moved.verification)
    if moved.mirrored:
        output = dataclasses.replace(output, notes=(Note("output", MIRRORED),))
    if shape[1] < length:
        because = _because(output, draws, FEW_ARE_ENOUGH if is_expensive else NOT_ALL)
        return Attempt(because, moved.cost, pace=moved.pace)
    return Attempt(output, moved.cost, pace=moved.pace)


def _as_draws(moved: Refreshed, kept: AbstractModel, like: PyTree, draws: Draws) -> Draws | None:
    """Moved draws that did not pass, for a refit to start from; None where they are no numbers."""
    flat = moved.thetas.reshape(-1, moved.thetas.shape[-1])
    try:
        return Draws(constrained(kept, flat, like, draws, moved.thetas.shape[:2]))
    except NonFiniteDrawsError:
        return None


def _objection(moved: Refreshed, like: PyTree) -> Objection | None:
    """What speaks against moved draws."""
    seen = moved.verification
    if seen is None:
        return CANNOT_MOVE
    own = np.repeat(parameter_names(like), [leaf.size for leaf in jax.tree.leaves(like)])
    names = [*own, "the log-likelihood of the removed rows", "the log density"]
    if seen.drift.is_doubtful:
        where = f"{names[seen.drift.column]} ({seen.drift.function})"
        still = "still drift" if seen.drift.is_detected else "may still drift"
        reason = f"moved along the kept posterior, the draws {still} in {where} after {seen.looks} rounds"
        return Objection("drift", reason, "remove fewer rows at a time.")
    if not seen.is_passed:
        reason = (
            f"not verified: the moves could have missed an error of {seen.drift.missed:.2f} standard deviations in "
            f"{names[seen.drift.missed_column]}"
        )
        return Objection("not verified", reason, "use more draws.")
    if not moved.forgot or not np.isfinite(moved.thetas).all():
        return CANNOT_MOVE
    return None


def _without_copies(ess: dict[str, float], ancestors: Int[np.ndarray, " n"], correlation: float) -> dict[str, float]:
    """Effective sizes of moved draws, where several descend from copies of one draw and are still correlated with it.

    The variance of a mean is then σ² ((1 − r²)/n + r² Σc²/n²), c the numbers of descendants.
    """
    copies, n = np.unique(ancestors, return_counts=True)[1], len(ancestors)
    most = 1 / ((1 - correlation**2) / n + correlation**2 * float((copies**2).sum()) / n**2)
    return {name: min(size, most) for name, size in ess.items()}


def _pieces(draws: Draws, like: Draws) -> Int[np.ndarray, " n"]:
    """For each draw, chains laid end to end, a piece of its chain that is several times as long as the chain remembers.

    `like` are draws of the same autocorrelation, whose effective sizes may be known already.

    Pieces are shorter where there would be too few of them: their sums are then more alike than they should be, and
    drift is detected too often, which costs moves and no mistake.
    """
    chains, length = draws.n_chains, draws.n_draws
    memory = like.n_chains * like.n_draws / max(min(effective_draws(like).values()), 1.0)
    least = -(-FEWEST_PIECES // chains)
    return blocks(chains, length, int(np.clip(length / (PIECE * memory), least, max(BLOCKS_A_CHAIN, least))))


def _resampled(
    random: np.random.Generator, weights: Float[np.ndarray, " n"], first: np.ndarray
) -> Int[np.ndarray, "2 half"]:
    """Places of draws picked in proportion to their weights, in order: systematically, within each of two halves.

    The halves are every second piece of every chain, so that their weights differ by Monte Carlo error only.
    """
    members = [np.flatnonzero(first), np.flatnonzero(~first)]
    size = max(map(len, members))
    halves = []
    for own in members:
        edges = np.cumsum(weights[own])
        points = (np.arange(size) + random.uniform()) / size * edges[-1]
        halves.append(own[np.minimum(np.searchsorted(edges, points, side="right"), len(own) - 1)])
    return np.stack(halves)


def _subset(random: np.random.Generator, method: Method, erased: MethodResult, request: Request) -> Output | Objection:
    """Draws as they are, each kept with probability w / max w."""
    draws = erased.draws
    n = draws.n_chains * draws.n_draws
    weights = base_weights(draws).ravel()
    kept = np.flatnonzero(random.uniform(size=n) < weights / weights.max())
    length = next((int(draws.n_draws * s) for s in SHARES if draws.n_chains * int(draws.n_draws * s) <= len(kept)), 0)
    count = draws.n_chains * length
    if not count:
        return Objection("ess", f"only {len(kept)} draws are left after selection by their weights", "use more draws.")
    places = np.sort(random.choice(kept, count, replace=False)).reshape(draws.n_chains, length)
    params = jax.tree.map(lambda leaf: leaf[places], draws.flat())
    subset = draws.replace(params)
    if draws.container is not None and not draws.container.moved(draws.params):
        own = draws.container.at_draws(places, subset.params)
        subset = Draws(subset.params, dims=subset.labels.dims, coords=subset.labels, container=own)
    model = request.kept
    if not model.has_density:
        model = model.at_draws(places, subset)
    ess = effective_draws(subset)
    few = request.policy.too_few(ess)
    if few:
        reason = f"of a subset selected by the weights: {few[0].reason}"
        return Objection("ess", reason, "use more draws.")
    return Output(subset, model, "subset", ess)


def _because(output: Output | Objection, draws: Draws, why: str) -> Output | Objection:
    """The output with a note that says why it is not all draws, moved."""
    if isinstance(output, Objection):
        return output
    returned, before = (f"{each.n_chains} × {each.n_draws}" for each in (output.draws, draws))
    note = why if returned == before else f"{returned} of {before} draws are returned: {why}"
    return dataclasses.replace(output, notes=(*output.notes, Note("output", note)))
