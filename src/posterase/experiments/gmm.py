"""The paper's Gaussian mixture (Section 5.1, Appendix C): 800 of 2,000 points are erased from its posterior.

Data: 2,000 points in the plane, 500 from each of 4 clusters. The centres are drawn with standard deviation 2 and two of
them displaced; these two are stretched (variances 1 and 0.05 along the axes) though the model takes all clusters for
round. The model:

    μ_k ~ N(0, σ² I), k = 1 … K,        z_i ~ (1/K) Σ_k N(μ_k, I),        K = 4, σ = 1

The removed points are not a random sample of their clusters: those farther along the long axis are likelier to go, so
that the centres have somewhere to move to.

Three posteriors, all from one initial point: the original one of all points; the processed one, from which 400 points
of each displaced cluster are erased in batches of 4 along the live chain; and the target, retrained on the kept points.
Several chains of each are run side by side; a draw is one state of one chain from the last part of its run. Centres
are matched to the target's by assignment, since a mixture does not number its components.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import linear_sum_assignment

from posterase.draws.draws import Draws
from posterase.experiments.clock import Clock, Report, named
from posterase.experiments.recipes import SamplerName, sampler_of
from posterase.methods.live_influence_shift import LiveInfluenceShift, LiveResult
from posterase.model.factorised import Model
from posterase.sampling.sample import Sampled, sample, start_chains
from posterase.sampling.sampler import Sampler
from posterase.sampling.schedules import PolynomialSteps

PIECE = 10
"""Draws a compiled piece of a run: one size, so that all runs share one compilation."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every number of the experiment; the defaults are the paper's, but for the number of chains and draws."""

    seed: int = 0
    sampler: SamplerName = "sgld"
    points: int = 2000
    components: int = 4
    prior_sd: float = 1.0
    centre_sd: float = 2.0
    displacement: float = 3.0
    """How far the two clusters that lose points are moved outwards along each axis."""
    thin_variance: float = 0.05
    """Variance of these two along their short axis; all others are 1."""
    removed_per_cluster: int = 400
    removal_tilt: float = 1.0
    """The log-odds of being removed rise by this much a standard deviation along a cluster's long axis, so that what is
    left of the cluster has another centre; at 0 a random sample is removed, and the centres hardly move."""
    iterations: int = 4000
    batch: int = 64
    step_scale: float = 4.0
    step_decay: float = 0.5005
    friction: float = 0.9
    request_rows: int = 4
    neumann_order: int = 32
    neumann_scale: float = 1.0
    monte_carlo: int = 5
    hvp_batch: int = 64
    along: Literal["full", "kept"] = "full"
    request_step: Literal["fixed", "rescaled"] = "fixed"
    """Whether step sizes follow the points that are left; the paper's mixture leaves them as they are."""
    initial: Literal["farthest kept points"] = "farthest kept points"
    chains: int = 8
    draws: int = 50
    thin: int = 20
    retrain_step: Literal["full N", "kept N"] = "full N"
    """The paper divides the retraining's step size by the number of all points too."""
    ablation: bool = True
    """Whether to run the sampler's steps alone too, without the shift."""


class Points(NamedTuple):
    """The synthetic data."""

    z: Float[np.ndarray, "points 2"]
    cluster: Int[np.ndarray, " points"]
    removed: Int[np.ndarray, " removed"]
    """Ids in the order in which they are asked to be removed."""


class Comparison(NamedTuple):
    """How far draws are from the target's."""

    name: str
    distance: float
    """Root mean square distance of mean centres, in units of the data (a cluster's standard deviation is 1)."""
    in_sd: float
    """The same in the target's standard deviations, root mean square over coordinates."""
    spread: float
    """Root mean square log ratio of standard deviations."""


class Outcome(NamedTuple):
    """One sampler's run of the experiment."""

    settings: Settings
    points: Points
    draws: dict[str, Draws]
    """`original`, `processed`, `target`, and the rest of `comparisons`."""
    comparisons: list[Comparison]
    last_term: float
    """Largest ratio of the series' last term to its first, over all requests and chains: below 1 it converged."""
    still_there: list[str]
    """Sampler state that saw the removed points and is still there."""
    seconds: dict[str, float]
    """A retraining and a request, all chains together, without compilation."""

    @property
    def requests(self) -> int:
        """How many requests remove all points."""
        return len(self.points.removed) // self.settings.request_rows


def make_points(settings: Settings) -> Points:
    """The synthetic set, from the seed."""
    rng = np.random.default_rng(settings.seed)
    each = settings.points // settings.components
    centres = rng.normal(scale=settings.centre_sd, size=(settings.components, 2))
    centres[-2:] += settings.displacement * np.sign(centres[-2:])  # the two that lose points stand apart
    spread = np.ones((settings.components, 2))
    spread[-2, 1] = spread[-1, 0] = settings.thin_variance
    cluster = np.repeat(np.arange(settings.components), each)
    z = centres[cluster] + np.sqrt(spread[cluster]) * rng.normal(size=(len(cluster), 2))
    lost = []
    for k, long_axis in ((settings.components - 2, 0), (settings.components - 1, 1)):
        rows = np.flatnonzero(cluster == k)
        # The largest of tilt · coordinate + Gumbel noise: a sample without replacement, with weights exp(tilt · z).
        order = settings.removal_tilt * (z - centres[k])[rows, long_axis] + rng.gumbel(size=len(rows))
        lost.append(rows[np.argsort(-order)[: settings.removed_per_cluster]])
    return Points(z, cluster, rng.permutation(np.concatenate(lost)))


def initial_centres(z: Float[np.ndarray, "points 2"], components: int) -> Float[np.ndarray, "k 2"]:
    """One point for all chains to start from: points of the data, each the farthest from those before it.

    From a draw of the prior, near the origin, chains end in local modes with two centres in one cluster and none in
    another, and which one then depends on the sampler's noise more than on the points that are removed.
    """
    centres = [z[np.argmin(np.sum((z - z.mean(axis=0)) ** 2, axis=1))]]
    for _ in range(components - 1):
        nearest = np.min([np.sum((z - centre) ** 2, axis=1) for centre in centres], axis=0)
        centres.append(z[np.argmax(nearest)])
    return np.stack(centres)


class LogPrior(eqx.Module):
    """Log density of the centres' prior; a module, so that models of one width share their compilations."""

    sd: float = eqx.field(static=True)

    def __call__(self, centres: Float[Array, "k 2"]) -> Float[Array, ""]:
        return -0.5 * jnp.sum(centres**2) / self.sd**2


def log_likelihood(centres: Float[Array, "k 2"], z: Float[Array, "rows 2"]) -> Float[Array, " rows"]:
    """Log of the mixture's density, by logsumexp, since exp-then-log underflows far from all centres."""
    squares = jnp.sum((z[:, None] - centres) ** 2, axis=-1)
    return jax.nn.logsumexp(-0.5 * squares, axis=-1)


def make_model(settings: Settings, points: Points) -> Model:
    """The mixture."""
    example = np.zeros((settings.components, 2))
    return Model(LogPrior(settings.prior_sd), log_likelihood, points.z, params=example)


def make_sampler(settings: Settings, n_rows: int) -> Sampler:
    """The paper's sampler, with step sizes 4 · t^−0.5005 / N."""
    schedule = PolynomialSteps(settings.step_scale / n_rows, 0.0, settings.step_decay)
    return sampler_of(settings.sampler, schedule, batch=settings.batch, friction=settings.friction)


def make_method(settings: Settings) -> LiveInfluenceShift:
    """The paper's shift along the live chain, with step sizes left as they are."""
    return LiveInfluenceShift(
        order=settings.neumann_order,
        scale=settings.neumann_scale,
        samples=settings.monte_carlo,
        batch=settings.hvp_batch,
        along=settings.along,
        rescale_steps=settings.request_step == "rescaled",
    )


def run(settings: Settings, report: Report = lambda *_: None) -> Outcome:
    """The whole experiment for one sampler."""
    points = make_points(settings)
    model = make_model(settings, points)
    kept = model.without(model.change(remove=points.removed))
    keys = jax.random.split(jax.random.key(settings.seed), 3)
    initial = initial_centres(points.z[kept.row_ids], settings.components)  # the start must not know the others
    sampler = make_sampler(settings, model.n_rows)
    retrainer = make_sampler(settings, model.n_rows if settings.retrain_step == "full N" else kept.n_rows)

    original = _train(keys[0], settings, model, sampler, initial, named(report, "training"))
    target = _train(keys[1], settings, kept, retrainer, initial, named(report, "retraining"))
    retraining = Clock(named(report, "retraining again, for the floor"))
    floor = _train(keys[2], settings, kept, retrainer, initial, retraining)

    erase = make_method(settings)
    batches = points.removed.reshape(-1, settings.request_rows)
    erasing = Clock(named(report, "erasing, request by request"))
    erased = erase(model, sampler, original.state, batches, report=erasing)
    draws = {
        "original": original.draws,
        "processed": erased.moved(original.draws),
        "processed, then sampled on": _sample_on(settings, erased),
        "target": target.draws,
    }
    if settings.ablation:
        steps_alone = dataclasses.replace(erase, shift=False)
        heard = named(report, "the sampler's steps alone")
        alone = steps_alone(model, sampler, original.state, batches, report=heard)
        draws["sampler's steps alone, then sampled on"] = _sample_on(settings, alone)
    draws["floor"] = floor.draws
    matched = {name: match(each, target.draws) for name, each in draws.items()}
    comparisons = [compare(name, each, matched["target"]) for name, each in matched.items() if name != "target"]
    steps = settings.iterations // settings.thin
    seconds = {"retraining": steps * retraining.seconds(), "a request": erasing.seconds()}
    return Outcome(
        settings, points, matched, comparisons, float(erased.last_term.max()), list(erased.still_there), seconds
    )


def to_dict(outcome: Outcome) -> dict[str, object]:
    """Settings, seed and results, without timings: the same seed gives the same bytes."""
    return {
        "settings": dataclasses.asdict(outcome.settings),
        "comparisons": {
            each.name: {"distance": each.distance, "in_target_sd": each.in_sd, "log_spread_ratio": each.spread}
            for each in outcome.comparisons
        },
        "mean_centres": {name: np.mean(each.params, axis=(0, 1)).tolist() for name, each in outcome.draws.items()},
        "largest_last_term": outcome.last_term,
        "not_erased": outcome.still_there,
    }


def match(draws: Draws, target: Draws) -> Draws:
    """Each chain's centres in the order of the target's, by the assignment of their means that is nearest."""
    reference = np.asarray(target.params).mean(axis=(0, 1))
    chains = []
    for chain in np.asarray(draws.params):
        distances = np.linalg.norm(reference[:, None] - chain.mean(axis=0), axis=-1)
        chains.append(chain[:, linear_sum_assignment(distances)[1]])
    return draws.replace(np.stack(chains))


def compare(name: str, draws: Draws, target: Draws) -> Comparison:
    """Distances of draws to the target's, over all chains."""
    ours, theirs = (np.asarray(each.params, float).reshape(-1, *each.params.shape[2:]) for each in (draws, target))
    off = ours.mean(axis=0) - theirs.mean(axis=0)
    return Comparison(
        name,
        distance=float(np.sqrt(np.mean(np.sum(off**2, axis=-1)))),
        in_sd=float(np.sqrt(np.mean((off / theirs.std(axis=0)) ** 2))),
        spread=float(np.sqrt(np.mean(np.log(ours.std(axis=0) / theirs.std(axis=0)) ** 2))),
    )


def _train(
    key: Array,
    settings: Settings,
    model: Model,
    sampler: Sampler,
    initial: Float[np.ndarray, "k 2"],
    report: Callable[[int, int], None],
) -> Sampled:
    """All chains from the same point; the last states of each, thinned, are its draws."""
    state = start_chains(key, model, sampler, np.broadcast_to(initial, (settings.chains, *initial.shape)))
    steps = settings.iterations // settings.thin
    sampled = sample(model, sampler, state, steps, thin=settings.thin, report=report, piece=PIECE)
    return Sampled(Draws(sampled.draws.params[:, -settings.draws :]), sampled.state)


def _sample_on(settings: Settings, erased: LiveResult) -> Draws:
    """Draws of the live chains after the requests, on the kept points: more training, and it counts as such."""
    return sample(erased.model, erased.sampler, erased.state, settings.draws, thin=settings.thin, piece=PIECE).draws
