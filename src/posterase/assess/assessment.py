"""assess(): every metric that applies, each next to its floor, and what it comes to.

    found = pe.assess.assess(model, before, erasure, refits=[one, other], test={"x": …, "y": …})
    print(found)

The target is the refitted model, in both directions: a metric on the far side of the refit's is as wrong as one on the
near side, and lower is better nowhere. Every row of the table has the same figure for four sets of draws,

    origin    the draws before the erasure
    erased    those after it
    refit     refits, where the figure is of one set of draws: their mean
    floor     two refits: how much they differ, or how far they are from each other

and a verdict. *At the floor*: chance explains the erased draws' figure, and does not explain the origin's. *Off*: it
does not; then how much of the way from origin to refit was gone. *Cannot tell*: the untouched draws pass as well, so
that passing means nothing; or there is nothing to compare with. Chance is 1 % over the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key, PyTree
from scipy.stats import norm, ttest_ind

from posterase.assess.comparison import NEEDS_REFIT, NEEDS_TWO, Compared, Comparison, average, compare, spread_out
from posterase.assess.divergence import moved_jeffreys
from posterase.assess.margins import KLoM, klom, logit_margin, u_lira
from posterase.assess.moments import MomentErrors, moment_errors
from posterase.assess.nearest_neighbours import nearest_neighbour_kl, warning_for
from posterase.assess.pac_bayes import CONDITION, pac_bayes, pac_bayes_change
from posterase.assess.predictive import mean_over_chains, prediction_difference
from posterase.assess.stein import BLIND, Stein, Whitened, kernel_stein, median_distance
from posterase.assess.table import Assessment, Figure, NotMeasured
from posterase.assess.two_sample import two_sample
from posterase.draws import Draws
from posterase.errors import PosteraseError
from posterase.model import AbstractModel, LogDensity, Removal
from posterase.numerics.curvature import gradients
from posterase.numerics.densities import evaluate, over_draws, unconstrained
from posterase.numerics.weights import (
    Estimate,
    base_weights,
    blocks,
    divergence,
    jeffreys,
    log_of,
    smooth,
    standard_error,
)
from posterase.progress import shown
from posterase.stored import StoredLikelihoods

MOST_EXAMPLES = 200
"""Removed rows whose margins are compared."""
MOST_MODELS = 1000
"""Draws taken for independent models, at most; never more than are effective."""
STEIN_DRAWS = 1000
NEIGHBOUR_DRAWS = 100
"""A run, as in the paper."""
FEWEST_RUNS = 8
"""Of the nearest-neighbour estimator: its error is what runs differ by."""
FALSE_POSITIVES = 0.01

COMPARED = ("origin", "erased")

NEEDS_TEST = "needs rows that were never fitted (test=…)"
NEEDS_PREDICTOR = "needs a predictor (predictor=…)"
NEEDS_LABELS = "needs class probabilities and labels (predictor=…, labels=…)"


class Margins(eqx.Module):
    """Margins of some rows: of the true class, or log predictive densities."""

    model: AbstractModel
    rows: Int[Array, " some"]
    classes: bool = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Float[Array, " some"]:
        values = self.model.log_rows(params, self.rows)
        return logit_margin(values) if self.classes else values


def assess(
    model: AbstractModel,
    before: Draws,
    after: Any,
    refits: Draws | Sequence[Draws] | None = None,
    test: Any = None,
    *,
    rows: ArrayLike | Sequence[int] | Removal | None = None,
    predictor: Callable[[PyTree, PyTree], Float[Array, "rows outputs"]] | None = None,
    labels: str | Callable[[PyTree], Any] | None = None,
    log_evidence: float | None = None,
    refit_seconds: float | None = None,
    key: Key[Array, ""] | int = 0,
    progress: bool | None = None,
) -> Assessment:
    """How well were rows forgotten? Every metric that applies, with its floor; and what was left out, and why.

    Parameters
    ----------
    model
        The model of all rows, removed ones included.
    before
        Draws of its posterior.
    after
        What `pe.erase` or an eraser returned; or draws, with `rows`.
    refits
        Draws of the kept posterior, sampled anew: two sets or more, since their difference is the floor.
    test
        Rows that were never fitted, as data in the structure of the model's; or a model of them, with the same
        parameters.
    rows
        The rows that were removed. None: those that `after` says.
    predictor
        `predictor(params, data)` → class probabilities of every row; without `labels`, any numbers.
    labels
        Where the classes are: the name of an array of the data, or a function of the data. They are whole numbers.
    log_evidence
        log p(S), normalised, where it is known: for the PAC-Bayes bound, which needs `labels` too.
    refit_seconds
        What a refit takes, to be shown next to what the erasure took.
    key
        A seed or a jax key, for bootstraps and thinning.
    progress
        Whether to show progress. None: on a terminal.

    Returns
    -------
    A DataTree that prints as a table: group `metrics` has the figures (NaN: not measured), `left_out` the reasons.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, posterase as pe
    >>> rng = np.random.default_rng(0)
    >>> y = np.append(rng.normal(size=95), np.full(5, 3.0))
    >>> model = pe.Model(
    ...     lambda p: -0.5 * p["mu"] ** 2, lambda p, data: -0.5 * (data["y"] - p["mu"]) ** 2, {"y": jnp.asarray(y)}
    ... )
    >>> def posterior(y):
    ...     n = len(y) + 1
    ...     return pe.Draws({"mu": y.sum() / n + rng.normal(size=(4, 500)) / np.sqrt(n)})
    >>> before, refits = posterior(y), [posterior(y[:95]), posterior(y[:95])]
    >>> found = pe.assess.assess(model, before, pe.erase(model, before, rows=range(95, 100)), refits)
    >>> found.verdicts["log-likelihood of removed rows"]
    'at the floor'
    """
    work = compare(model, before, after, refits, test, rows, predictor, labels, log_evidence, refit_seconds, key)
    figures: list[Figure] = []
    left_out: dict[str, str] = {}
    with shown("assessing", len(METRICS), progress) as report:
        for number, (name, metric) in enumerate(METRICS.items()):
            report(name, number)
            try:
                for found in metric(work):
                    if isinstance(found, NotMeasured):
                        left_out[found.name] = found.why
                    else:
                        figures.append(found)
            except PosteraseError as error:
                left_out[name] = error.problem
    about = {"removed_rows": work.removal.n_rows, "kept_rows": work.kept_model.n_rows, "refits": len(work.refits)}
    return Assessment.of(figures, left_out, about)


# --- the metrics

Found = Iterator[Figure | NotMeasured]


def _likelihoods(work: Comparison) -> Found:
    names = {
        "removed": "log-likelihood of removed rows",
        "kept": "log-likelihood of a kept row",
        "test": "log-likelihood of a test row",
        "attack": "membership attack",
    }
    statistics = work.statistics()
    for part, name in names.items():
        if part in statistics["origin"]:
            values = {
                label: _mean_over(found[part], base_weights(work.sets[label])) for label, found in statistics.items()
            }
            note = "share of removed rows taken for members" if part == "attack" else ""
            yield work.level(name, values, note=note)
        elif not work.factorises:
            yield NotMeasured(name, "the model does not say what a single row's likelihood is")
        else:
            yield NotMeasured(name, NEEDS_TEST)


def _mean_over(values: Float[np.ndarray, "chain draw"], base: Float[np.ndarray, "chain draw"]) -> Estimate:
    return Estimate(float((base * values).sum()), standard_error(values, base))


def _errors(work: Comparison) -> Found:
    for part in ("kept", "removed", "test"):
        name = f"error on {part} rows"
        if work.predictor is None or work.labels is None:
            yield NotMeasured(name, NEEDS_LABELS)
        elif part not in work.parts:
            yield NotMeasured(name, NEEDS_TEST)
        else:
            classes = work.classes(part)
            wrong = {
                label: (found.argmax(axis=-1) != classes).mean(axis=1)
                for label, found in work.predictions(part).items()
            }
            yield work.level(name, {label: mean_over_chains(each, work.chains(label)) for label, each in wrong.items()})


def _prediction_differences(work: Comparison) -> Found:
    for part in ("kept", "removed", "test"):
        name = f"prediction difference, {part} rows"
        if work.predictor is None:
            yield NotMeasured(name, NEEDS_PREDICTOR)
        elif part not in work.parts:
            yield NotMeasured(name, NEEDS_TEST)
        elif not work.refits:
            yield NotMeasured(name, NEEDS_REFIT)
        else:
            found = work.predictions(part)

            def compared(one: str, other: str) -> Compared:
                chains = work.chains(one), work.chains(other)
                return Compared(prediction_difference(found[one], found[other], chains=chains))  # noqa: B023

            yield work.distance(name, compared)


def _jeffreys(work: Comparison) -> Found:
    name = "Jeffreys ε (nats)"
    if not work.refits:
        yield NotMeasured(name, NEEDS_REFIT)
        return
    removed = {label: -found["removed"] for label, found in work.statistics().items()}
    base = {label: base_weights(draws) for label, draws in work.sets.items()}

    def between(one: str, other: str) -> Compared:
        found = jeffreys(removed[one], base[one], removed[other], base[other])
        return Compared(found, float(norm.sf(found.value / found.error)) if found.error > 0 else None)

    refits = [f"refit {i}" for i in range(len(work.refits))]
    origin = [between("origin", refit) for refit in refits]
    # Between refits the same difference is noise: their ratio of densities is one.
    among = [between(a, b).value for a, b in combinations(refits, 2)]
    floor = None
    if among:
        floor = Estimate(float(np.mean([abs(each.value) for each in among])), float(np.mean([e.error for e in among])))
    erased = work.jeffreys
    resembles, moved = (getattr(work.evidence, field, None) for field in ("resembles", "moved"))
    if erased is None and resembles is not None and moved is not None:
        erased = moved_jeffreys(resembles, moved, work.refits)
    p_value = None if erased is None else float(norm.sf(erased.value / erased.error)) if erased.error > 0 else 1.0
    why = "" if erased is not None else "the density of the erased draws is not known"
    yield Figure(
        name,
        average(origin),
        erased,
        None,
        floor,
        min(1.0, min(each.p_value or 0.0 for each in origin) * len(origin)),
        p_value,
        null=0.0,
        why=why,
        note="of the moved draws, before weights" if erased is not None else "",
        judged=erased is None or (moved is not None and _same(moved, work.after)),
    )


def _same(moved: Draws, after: Draws) -> bool:
    """Whether the erased draws are the moved ones, whose density is known: neither weighted since, nor resampled."""
    return after.log_weights is None and moved.log_weights is None and np.array_equal(moved.matrix(), after.matrix())


def _from_weights(work: Comparison) -> Found:
    name = "KL from weights (nats)"
    removed = work.statistics()["origin"]["removed"]
    base = base_weights(work.before)
    smoothed = smooth(log_of(base) - removed)
    origin = divergence(-removed, base) if smoothed.pareto_k <= smoothed.threshold else None
    erased = getattr(work.evidence, "epsilon", None)
    if origin is None and erased is None:
        yield NotMeasured(name, f"not measured: k̂ {smoothed.pareto_k:.2f} of the untouched draws does not pass")
        return
    note = "origin not measured, its k̂ does not pass" if origin is None else ""
    yield Figure(name, origin, erased, judged=False, note=note)


def _two_sample(work: Comparison) -> Found:
    sets = work.sets

    def compare(one: str, other: str) -> Compared:
        found = two_sample(work.own_key(f"two-sample {one} {other}"), sets[one], sets[other])
        return Compared(Estimate(found.accuracy, found.error), found.p_value)

    yield work.distance("two-sample accuracy", compare, null=0.5)


def _moments(work: Comparison) -> Found:
    sets = work.sets
    cache: dict[tuple[str, str], MomentErrors] = {}

    def found(one: str, other: str) -> MomentErrors:
        if (one, other) not in cache:
            cache[one, other] = moment_errors(sets[one], sets[other])
        return cache[one, other]

    def means(one: str, other: str) -> Compared:
        each = found(one, other)
        return Compared(Estimate(each.mean, each.chance), each.mean_p_value)

    def spreads(one: str, other: str) -> Compared:
        each = found(one, other)
        return Compared(Estimate(each.log_sd, each.log_sd_chance), each.log_sd_p_value)

    yield work.distance("error of means (sd)", means)
    yield work.distance("error of spreads (log sd)", spreads)


def _stein(work: Comparison) -> Found:
    name = "Stein discrepancy KSD²"
    if isinstance(work.model, StoredLikelihoods):
        yield NotMeasured(name, "needs the model's density")
        return
    density = LogDensity(work.kept_model)
    thetas, like = unconstrained(work.model, work.before)
    coordinates = Whitened.of(thetas, base_weights(work.before).ravel())
    scale = median_distance(coordinates.points(thetas))

    def of(draws: Draws) -> Stein:
        points, _ = unconstrained(work.model, draws)
        places = np.linspace(0, len(points) - 1, min(len(points), STEIN_DRAWS)).astype(int)
        share = base_weights(draws).ravel()[places]
        groups = blocks(draws.n_chains, draws.n_draws)[places]
        return kernel_stein(
            work.own_key("Stein"),
            coordinates.points(points[places]),
            coordinates.scores(gradients(density, points[places], like)),
            weights=share / share.sum(),
            groups=groups,
            scale=scale,
        )

    found = work.of_all("stein", of)
    level = work.level(name, {label: each.squared for label, each in found.items()})
    yield level._replace(
        p_origin=found["origin"].p_value, p_erased=found["erased"].p_value, why="", note=BLIND, null=0.0
    )


def _by_example(work: Comparison) -> Found:
    names = ("KLoM, median (nats)", "KLoM, 95th percentile (nats)", "U-LiRA, found at 1 %")
    if not work.refits:
        yield from (NotMeasured(name, NEEDS_REFIT) for name in names)
        return
    if isinstance(work.model, StoredLikelihoods):
        yield from (NotMeasured(name, "needs likelihoods at refitted draws") for name in names)
        return
    rows = spread_out(np.sort(work.removal.row_ids), MOST_EXAMPLES)
    margins = Margins(work.model, rows, work.labels is not None)
    found: dict[str, Float[np.ndarray, "models examples"]] = {}
    picks = work.picks(MOST_MODELS)
    for label, draws in work.sets.items():
        places = picks[label]
        picked = Draws(jax.tree.map(lambda leaf: leaf[places][None], draws.flat()))  # noqa: B023
        found[label] = over_draws(margins, picked, work.model.elements(len(rows)))[0]
    note = f"{len(found['erased'])} draws as models, {len(rows)} removed rows"
    compared: dict[tuple[str, str], KLoM] = {}

    def divergences(one: str, other: str) -> KLoM:
        if (one, other) not in compared:
            compared[one, other] = klom(work.own_key(f"KLoM {one}"), found[one], found[other])
        return compared[one, other]

    def attack(one: str, other: str) -> Compared:
        own = u_lira(work.own_key(f"U-LiRA {one}"), found[one], found[other], false_positives=FALSE_POSITIVES)
        share, models = own.true_positives, min(len(found[one]), len(found[other]))
        least = np.sqrt(FALSE_POSITIVES * (1 - FALSE_POSITIVES) / models)
        return Compared(Estimate(share.value, max(share.error, float(least))))

    yield work.distance(names[0], lambda one, other: Compared(divergences(one, other).median), note=note)
    yield work.distance(names[1], lambda one, other: Compared(divergences(one, other).high), note=note)
    yield work.distance(names[2], attack, null=FALSE_POSITIVES, note=note)


def _knowledge_removal(work: Comparison) -> Found:
    """The paper's estimator between runs, paired by chain; a run is a chain, or a part of one where chains are few."""
    name = "ε̂ by nearest neighbours (nats)"
    if len(work.refits) < 2:
        yield NotMeasured(name, NEEDS_REFIT if not work.refits else NEEDS_TWO)
        return
    runs = _runs(work)
    n, d = runs["erased"][0].shape

    def of(one: str, others: list[str]) -> Float[np.ndarray, " runs"]:
        """By run, averaged over the others."""
        pairs = [[nearest_neighbour_kl(*each).value for each in zip(runs[one], runs[o], strict=True)] for o in others]
        return np.mean(pairs, axis=0)

    refits = [label for label in runs if label.startswith("refit")]
    by_run = {label: of(label, refits) for label in ("origin", "erased")}
    among = np.mean([of(a, [b]) for a, b in combinations(refits, 2)], axis=0)
    origin, erased, floor = (mean_over_chains(each) for each in (by_run["origin"], by_run["erased"], among))
    # A handful of runs: Welch's t, not a normal.
    before, after = (float(ttest_ind(each, among, equal_var=False).pvalue) for each in by_run.values())
    note = f"{len(among)} runs of {n} draws, paired"
    doubt = warning_for(d, n, floor)
    yield Figure(name, origin, erased, None, floor, before, after, note="; ".join(filter(None, [note, doubt])))


def _runs(work: Comparison) -> dict[str, list[Float[np.ndarray, "n d"]]]:
    """Draws of every set, in as many runs of as many draws: chains, or parts of chains; of weighted draws, picks."""
    sets = work.sets
    if any(draws.log_weights is not None for draws in sets.values()):
        picks = work.picks(FEWEST_RUNS * NEIGHBOUR_DRAWS)
        return {label: _dealt(draws.matrix()[picks[label]], FEWEST_RUNS) for label, draws in sets.items()}
    chains, length = (min(getattr(draws, size) for draws in sets.values()) for size in ("n_chains", "n_draws"))
    parts = max(1, min(-(-FEWEST_RUNS // chains), length // NEIGHBOUR_DRAWS))
    size = length // parts
    places = np.linspace(0, size - 1, min(size, NEIGHBOUR_DRAWS)).astype(int)
    return {
        label: [
            draws.matrix().reshape(draws.n_chains, draws.n_draws, -1)[chain, part * size + places]
            for chain in range(chains)
            for part in range(parts)
        ]
        for label, draws in sets.items()
    }


def _dealt(values: Float[np.ndarray, "n d"], runs: int) -> list[Float[np.ndarray, "m d"]]:
    """In turn to so many runs of one length."""
    return [values[: len(values) // runs * runs][run::runs] for run in range(runs)]


def _pac_bayes(work: Comparison) -> Found:
    bound, change = "PAC-Bayes bound", "PAC-Bayes bound, change"
    if isinstance(work.model, StoredLikelihoods):
        yield NotMeasured(bound, "needs the model's density")
        return
    n = work.kept_model.n_rows
    thetas = {label: unconstrained(work.model, draws)[0] for label, draws in work.sets.items() if label in COMPARED}
    shapes = {label: (draws.n_chains, draws.n_draws) for label, draws in work.sets.items()}
    norms = {label: np.abs(values).sum(axis=1).reshape(shapes[label]) for label, values in thetas.items()}
    if work.after.log_weights is None and _is_shift(*thetas.values()):
        found = pac_bayes_change(norms["origin"], norms["erased"], n)
        note = f"ΔKL {found.divergence}; {CONDITION}"
        yield Figure(change, None, Estimate(found.bound, 0.0), judged=False, note=note)
    else:
        yield NotMeasured(change, "the erased draws are not those before, shifted: E log q is not what it was")
    ratio = getattr(work.evidence, "log_evidence_ratio", None)
    if work.labels is None or work.predictor is None:
        yield NotMeasured(bound, NEEDS_LABELS)
    elif work.log_evidence is None or ratio is None:
        yield NotMeasured(bound, "needs the evidence: log_evidence=…, and its ratio from an eraser that measures it")
    else:
        classes = work.classes("kept")
        wrong = (work.predictions("kept")["erased"].argmax(axis=-1) != classes).mean()
        density = evaluate(LogDensity(work.kept_model), work.after) - (work.log_evidence - ratio.value)
        d = thetas["erased"].shape[1]
        made = pac_bayes(float(wrong), density, norms["erased"], d, n, weights=base_weights(work.after))
        yield Figure(bound, None, made.bound, judged=False, note=CONDITION)


def _is_shift(before: Float[np.ndarray, "n d"], after: Float[np.ndarray, "m d"]) -> bool:
    """Whether every draw was moved by the same vector, up to float32's rounding."""
    if before.shape != after.shape:
        return False
    return bool((np.ptp(after - before, axis=0) <= 1e-5 * (1 + np.abs(before).max(axis=0))).all())


def _time(work: Comparison) -> Found:
    name = "seconds a request"
    own, refit = (None if each is None else Estimate(float(each), 0.0) for each in work.seconds)
    if own is None and refit is None:
        yield NotMeasured(name, "pass as after what pe.erase returned")
    else:
        yield Figure(name, None, own, refit, judged=False)


METRICS: dict[str, Callable[[Comparison], Found]] = {
    "log-likelihoods and membership attack": _likelihoods,
    "errors": _errors,
    "Jeffreys ε (nats)": _jeffreys,
    "KL from weights (nats)": _from_weights,
    "two-sample accuracy": _two_sample,
    "moments": _moments,
    "Stein discrepancy KSD²": _stein,
    "prediction differences": _prediction_differences,
    "KLoM and U-LiRA": _by_example,
    "ε̂ by nearest neighbours (nats)": _knowledge_removal,
    "PAC-Bayes": _pac_bayes,
    "seconds a request": _time,
}
