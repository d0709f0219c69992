"""assess(): every metric that applies, each next to its floor, and what it comes to.

    found = pe.assess(model, before, erasure, refits=[one, other], test={"x": …, "y": …})
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

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Float, Int, Key, PyTree

from posterase.draws.draws import Draws
from posterase.errors import DrawsShapeError, InvalidOptionError, PosteraseError
from posterase.metrics.comparison import NEEDS_REFIT, NEEDS_TWO, Compared, Comparison, compare, spread_out, two_sided
from posterase.metrics.divergence import moved_jeffreys
from posterase.metrics.margins import klom, logit_margin, u_lira
from posterase.metrics.membership import member_shares
from posterase.metrics.moments import moment_errors_of
from posterase.metrics.nearest_neighbours import nearest_neighbour_kl, warning_for
from posterase.metrics.pac_bayes import CONDITION, pac_bayes, pac_bayes_change
from posterase.metrics.predictive import mean_of, prediction_difference
from posterase.metrics.samples import Sample
from posterase.metrics.stein import BLIND, Stein, Whitened, kernel_stein, median_distance
from posterase.metrics.table import Assessment, Figure, NotMeasured
from posterase.metrics.two_sample import tell_apart
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity
from posterase.numerics.curvature import gradients
from posterase.numerics.densities import evaluate, over_draws, unconstrained
from posterase.numerics.failures import entry_point
from posterase.numerics.weights import Estimate, divergence, log_of, smooth
from posterase.runtime import sharding
from posterase.runtime.compilation_cache import suspend_cache
from posterase.runtime.prng import as_key
from posterase.runtime.progress import shown

MOST_EXAMPLES = 200
"""Removed rows whose margins are compared."""
MOST_MODELS = 1000
"""Draws taken for independent models, at most; never more than are effective."""
STEIN_DRAWS = 1000
NEIGHBOUR_DRAWS = 100
"""A run, as in the paper."""
FEWEST_RUNS = 8
"""Of the nearest-neighbour estimator: its error is what runs differ by."""
MOST_COMPARED = 10_000
FEWEST_PICKED = 5
FALSE_POSITIVES = 0.01

NO_SINGLE_ROWS = "the model does not say what a single row's likelihood is"
NEEDS_TEST = "needs rows that were never fitted (test=…)"
NEEDS_PREDICTOR = "needs a predictor (predictor=…)"
NEEDS_LABELS = "needs class probabilities and labels (predictor=…, labels=…)"


class RowLikelihoods(eqx.Module):
    """Log-likelihoods of some rows."""

    model: AbstractModel
    rows: Int[Array, " some"]

    def __call__(self, params: PyTree) -> Float[Array, " some"]:
        return self.model.log_rows(params, self.rows)


@entry_point
def assess(
    model: AbstractModel,
    before: Draws,
    after: Any,
    refits: Draws | Sequence[Draws] | None = None,
    test: Any = None,
    *,
    rows: ArrayLike | Sequence[int] | Change | None = None,
    predictor: Callable[[PyTree, PyTree], Float[Array, "rows outputs"]] | None = None,
    labels: str | Callable[[PyTree], Any] | None = None,
    log_evidence: float | None = None,
    refit_seconds: float | None = None,
    metrics: Mapping[str, Metric] | None = None,
    random_seed: Key[Array, ""] | int | None = None,
    progress: bool | None = None,
    mesh: Mesh | None = None,
) -> Assessment:
    """How well were rows forgotten? Every metric that applies, with its floor; and what was left out, and why.

    Parameters
    ----------
    model
        The model of all rows, removed ones included.
    before
        Draws of its posterior.
    after
        What `pe.erase` returned; or, with `rows`, what a method returned, or draws.
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
        log p(S), where it is known and the model's prior and likelihood are normalised: for the PAC-Bayes bound, which
        needs `labels` too.
    refit_seconds
        What a refit takes, to be shown next to what the erasure took.
    metrics
        More metrics, by name: functions of a `Comparison` that yield a `Figure`, or `NotMeasured`, for each row of
        theirs. Their rows are judged with the others.
    random_seed
        A seed or a jax key, for bootstraps and thinning. None: 0.
    progress
        Whether to show progress. None: on a terminal.
    mesh
        Devices to spread draws and rows over: `pe.mesh(chains=2, rows=4)`. None: one device.

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
    >>> found = pe.assess(model, before, pe.erase(model, before, rows=range(95, 100)), refits)
    >>> found.verdicts["log-likelihood of removed rows"]
    'at the floor'
    """
    if callable(labels) or metrics:
        suspend_cache()  # whatever they compile may hold rows
    typed = as_key(0 if random_seed is None else random_seed, "random_seed")
    work = compare(model, before, after, refits, test, rows, predictor, labels, log_evidence, refit_seconds, typed)
    every = {**METRICS, **_more(metrics)}
    figures: list[Figure] = []
    left_out: dict[str, str] = {}
    with sharding.over(mesh), shown("assessing", len(every), progress) as report:
        work = dataclasses.replace(work, model=work.model.spread())
        for number, (name, metric) in enumerate(every.items()):
            report(name, number)
            try:
                for found in metric(work):
                    told = found.checked() if isinstance(found, Figure) else found
                    if isinstance(told, NotMeasured):
                        left_out[told.name] = told.why
                    else:
                        figures.append(told)
            except PosteraseError as error:
                left_out[name] = error.problem
    about = {"removed_rows": work.change.n_rows, "kept_rows": work.kept_model.n_rows, "refits": len(work.refits)}
    worth = ", ".join(f"{label} {sample.effective:.0f}" for label, sample in work.sets.items())
    return Assessment.of(figures, left_out, {**about, "effective_draws": worth})


def _more(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    found = dict(metrics or {})
    for name, metric in found.items():
        if name in METRICS or not callable(metric):
            raise InvalidOptionError(
                f"metrics has {name!r}, {'which is one of ours' if name in METRICS else 'which is no function'}.",
                "pass functions of a Comparison, each under a name of its own.",
            )
    return found


# --- the metrics

Found = Iterator[Figure | NotMeasured]
Metric = Callable[[Comparison], Iterable[Figure | NotMeasured]]
"""What `assess` runs: the rows that a comparison gives."""


def _likelihoods(work: Comparison) -> Found:
    names = {
        "removed": "log-likelihood of removed rows",
        "kept": "log-likelihood of a kept row",
        "test": "log-likelihood of a test row",
    }
    for part, name in names.items():
        found = work.statistics()
        if part in found["origin"]:
            yield work.level(name, {label: work.sets[label].mean(each[part]) for label, each in found.items()})
        else:
            yield NotMeasured(name, NEEDS_TEST if work.model.rows_factorise else NO_SINGLE_ROWS)


def _attack(work: Comparison) -> Found:
    """On the probability of the true class where there is a classifier, else on the likelihood of a row."""
    name, note = "membership attack", "share of removed rows taken for members"
    if work.test is None:
        yield NotMeasured(name, NEEDS_TEST)
    elif work.labels is not None:
        found = {part: work.confidences(part) for part in ("kept", "test", "removed")}
        shares = {label: member_shares(*(each[label] for each in found.values())) for label in work.sets}
        yield _thinned_level(work, name, shares, note=note)
    elif work.model.rows_factorise:
        values = {label: work.sets[label].mean(each["attack"]) for label, each in work.statistics().items()}
        yield work.level(name, values, note=f"{note}, by their likelihoods")
    else:
        yield NotMeasured(name, NO_SINGLE_ROWS)


def _thinned_level(work: Comparison, name: str, values: dict[str, Float[np.ndarray, " picked"]], **more: Any) -> Figure:
    """A level from distinct, effective draws."""
    size = len(values["erased"])
    if size < FEWEST_PICKED:
        raise DrawsShapeError(f"there are {size} effective draws to predict with.", "sample more.")
    return work.level(name, {label: mean_of(each) for label, each in values.items()}, freedom=size - 1.0, **more)


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
            yield _thinned_level(work, name, wrong)


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
            if len(found["erased"]) < FEWEST_PICKED:
                yield NotMeasured(name, f"there are {len(found['erased'])} effective draws to predict with")
                continue
            yield work.distance(
                name,
                lambda one, other: Compared(prediction_difference(found[one], found[other])),  # noqa: B023
            )


def _jeffreys(work: Comparison) -> Found:
    name = "Jeffreys ε (nats)"
    if not work.refits:
        yield NotMeasured(name, NEEDS_REFIT)
        return
    # J of origin and refit is the difference of their mean log-likelihoods of the removed rows; between refits, noise.
    means = {label: work.sets[label].mean(found["removed"]) for label, found in work.statistics().items()}
    gaps = work.level(name, means)
    assert gaps.refit is not None
    origin = Estimate(
        means["origin"].value - gaps.refit.value, float(np.hypot(means["origin"].error, gaps.refit.error))
    )
    erased = work.jeffreys
    log_weights_at, moved = (getattr(work.diagnostics, field, None) for field in ("log_weights_at", "moved"))
    if erased is None and log_weights_at is not None and moved is not None:
        erased = moved_jeffreys(log_weights_at, moved, work.refits)
    p_value = None if erased is None else two_sided(erased.value, 0.0, [(erased.error, work.sets["erased"].freedom)])
    why = "" if erased is not None else "the density of the erased draws is not known"
    yield Figure(
        name,
        origin,
        erased,
        None,
        gaps.floor,
        gaps.p_origin,
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
    if not work.model.has_density:
        log_ratio = work.model.stored_log_ratio(work.before, work.change)
    else:
        log_ratio = -work.statistics()["origin"]["removed"]
    base = work.sets["origin"].base
    smoothed = smooth(log_of(base) + log_ratio)
    origin = divergence(log_ratio, base) if smoothed.pareto_k <= smoothed.threshold else None
    erased = getattr(work.diagnostics, "epsilon", None)
    if origin is None and erased is None:
        yield NotMeasured(name, f"not measured: k̂ {smoothed.pareto_k:.2f} of the untouched draws does not pass")
        return
    note = "origin not measured, its k̂ does not pass" if origin is None else ""
    yield Figure(name, origin, erased, judged=False, note=note)


def _two_sample(work: Comparison) -> Found:
    picks = work.picks(MOST_COMPARED)

    def compare(one: str, other: str) -> Compared:
        rows = [work.sets[label].values[picks[label]] for label in (one, other)]
        found = tell_apart(work.own_key(f"two-sample {one} {other}"), *rows)
        return Compared(Estimate(found.accuracy, found.error), found.p_value)

    yield work.distance("two-sample accuracy", compare, null=0.5)


def _moments(work: Comparison) -> Found:
    sets = work.sets
    found = functools.cache(lambda one, other: moment_errors_of(sets[one], sets[other]))

    def means(one: str, other: str) -> Compared:
        each = found(one, other)
        return Compared(Estimate(each.mean, each.mean_chance), each.mean_p_value)

    def spreads(one: str, other: str) -> Compared:
        each = found(one, other)
        return Compared(Estimate(each.log_sd, each.log_sd_chance), each.log_sd_p_value)

    yield work.distance("error of means (sd)", means)
    yield work.distance("error of spreads (log sd)", spreads)


def _stein(work: Comparison) -> Found:
    name = "Stein discrepancy KSD²"
    if not work.model.has_density:
        yield NotMeasured(name, "needs the model's density")
        return
    density = LogDensity(work.kept_model)
    thetas, like = unconstrained(work.model, work.before)
    coordinates = Whitened.of(thetas, work.sets["origin"].base.ravel())
    scale = median_distance(coordinates.points(thetas))

    def of(_: str, sample: Sample) -> Stein:
        points, _ = unconstrained(work.model, sample.draws)
        places = np.linspace(0, len(points) - 1, min(len(points), STEIN_DRAWS)).astype(int)
        share, groups = sample.base.ravel()[places], sample.groups[places]
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
    if not work.model.has_density:
        yield from (NotMeasured(name, "needs likelihoods at refitted draws") for name in names)
        return
    found = _margins(work)
    models, examples = found["erased"].shape
    note = f"{models} draws as models, {examples} removed rows"
    divergences = functools.cache(lambda one, other: klom(work.own_key(f"KLoM {one}"), found[one], found[other]))

    def attack(one: str, other: str) -> Compared:
        own = u_lira(work.own_key(f"U-LiRA {one}"), found[one], found[other], false_positives=FALSE_POSITIVES)
        share = own.true_positives
        least = np.sqrt(FALSE_POSITIVES * (1 - FALSE_POSITIVES) / models)
        return Compared(Estimate(share.value, max(share.error, float(least))))

    yield work.distance(names[0], lambda one, other: Compared(divergences(one, other).median), note=note)
    yield work.distance(names[1], lambda one, other: Compared(divergences(one, other).percentile_95), note=note)
    yield work.distance(names[2], attack, null=FALSE_POSITIVES, note=note)


def _margins(work: Comparison) -> dict[str, Float[np.ndarray, "models examples"]]:
    """Of removed rows, at distinct effective draws: of the true class where there is a classifier, else likelihoods."""
    if work.labels is not None:
        confidences = work.confidences("removed")
        some = np.linspace(0, confidences["erased"].shape[1] - 1, min(confidences["erased"].shape[1], MOST_EXAMPLES))
        chosen = {label: np.maximum(each[:, some.astype(int)], 1e-300) for label, each in confidences.items()}
        with jax.enable_x64(True):
            return {label: np.asarray(logit_margin(jnp.log(each))) for label, each in chosen.items()}
    rows = spread_out(np.sort(work.change.row_ids), MOST_EXAMPLES)
    picks = work.picks(MOST_MODELS)
    looked = RowLikelihoods(work.model, rows)

    def of(label: str, sample: Sample) -> Float[np.ndarray, "models examples"]:
        picked = Draws(jax.tree.map(lambda leaf: leaf[picks[label]][None], sample.draws.flat()))
        return over_draws(looked, picked, work.model.elements(len(rows)))[0]

    return work.of_all("margins", of)


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

    refits = work.refit_labels
    by_run = {label: of(label, refits) for label in ("origin", "erased")}
    among = np.mean([of(a, [b]) for a, b in combinations(refits, 2)], axis=0)
    origin, erased, floor = (mean_of(each) for each in (by_run["origin"], by_run["erased"], among))
    # A handful of runs: Welch's t, not a normal.
    from scipy.stats import ttest_ind  # takes a second to import

    before, after = (float(ttest_ind(each, among, equal_var=False).pvalue) for each in by_run.values())
    note = f"{len(among)} runs of {n} draws, paired"
    doubt = warning_for(d, n, floor)
    yield Figure(name, origin, erased, None, floor, before, after, note="; ".join(filter(None, [note, doubt])))


def _runs(work: Comparison) -> dict[str, list[Float[np.ndarray, "n d"]]]:
    """Draws of every set, in as many runs: chains, or parts of chains; of weighted or resampled draws, picks.

    Copies, which a chain leaves where it refuses a step, are left out.
    """
    sets = work.sets
    if any(sample.draws.log_weights is not None for sample in sets.values()) or work.ancestors is not None:
        picks = work.picks(FEWEST_RUNS * NEIGHBOUR_DRAWS)
        return {label: _dealt(sample.values[picks[label]], FEWEST_RUNS) for label, sample in sets.items()}
    shapes = [sample.base.shape for sample in sets.values()]
    chains, length = (min(sizes) for sizes in zip(*shapes, strict=True))
    parts = max(1, min(-(-FEWEST_RUNS // chains), length // NEIGHBOUR_DRAWS))
    size = length // parts
    places = np.linspace(0, size - 1, min(size, NEIGHBOUR_DRAWS)).astype(int)
    runs = {}
    for label, sample in sets.items():
        values = sample.values.reshape(*sample.base.shape, -1)
        kept = (sample.distinct > 0).reshape(sample.base.shape)
        at = [(chain, part * size + places) for chain in range(chains) for part in range(parts)]
        runs[label] = [values[chain, where][kept[chain, where]] for chain, where in at]
    return runs


def _dealt(values: Float[np.ndarray, "n d"], runs: int) -> list[Float[np.ndarray, "m d"]]:
    """In turn to so many runs of one length."""
    return [values[: len(values) // runs * runs][run::runs] for run in range(runs)]


def _pac_bayes(work: Comparison) -> Found:
    bound, change = "PAC-Bayes bound", "PAC-Bayes bound, change"
    if not work.model.has_density:
        yield NotMeasured(bound, "needs the model's density")
        return
    n = work.kept_model.n_rows
    pair = work.sets["origin"], work.sets["erased"]
    thetas = [unconstrained(work.model, sample.draws)[0] for sample in pair]
    norms = [np.abs(values).sum(axis=1).reshape(s.base.shape) for values, s in zip(thetas, pair, strict=True)]
    if work.after.log_weights is None and _is_shift(thetas[0], thetas[1]):
        found = pac_bayes_change(norms[0], norms[1], n)
        note = f"ΔKL {found.divergence}; {CONDITION}"
        yield Figure(change, None, Estimate(found.bound, 0.0), judged=False, note=note)
    else:
        yield NotMeasured(change, "the erased draws are not those before, shifted: E log q is not what it was")
    if work.labels is None:
        yield NotMeasured(bound, NEEDS_LABELS)
        return
    density = _normalised_density(work)
    if density is None:
        yield NotMeasured(
            bound, "needs log_evidence=…, and erased draws whose density, or whose ε and evidence, is known"
        )
        return
    wrong = float((work.predictions("kept")["erased"].argmax(axis=-1) != work.classes("kept")).mean())
    made = pac_bayes(wrong, density, norms[1], thetas[1].shape[1], n, weights=work.sets["erased"].base)
    yield Figure(bound, None, made.bound, judged=False, note=CONDITION)


def _normalised_density(work: Comparison) -> Float[np.ndarray, "chain draw"] | None:
    """log q of the erased draws, normalised, from the evidence; None where it is not known.

    Of moved draws exactly: kept − log-weight − log p(S). Of others kept − log p(S − S′) is the kept posterior's own;
    their ε is what E log q exceeds it by.
    """
    if work.log_evidence is None:
        return None
    kept = evaluate(LogDensity(work.kept_model), work.after)
    log_weights_at, moved = (getattr(work.diagnostics, field, None) for field in ("log_weights_at", "moved"))
    if log_weights_at is not None and moved is not None and _same(moved, work.after):
        return kept - log_weights_at(work.after) - work.log_evidence
    ratio, epsilon = (getattr(work.diagnostics, field, None) for field in ("log_evidence_ratio", "epsilon"))
    return None if ratio is None or epsilon is None else kept - (work.log_evidence - ratio.value) + epsilon.value


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


METRICS: dict[str, Metric] = {
    "log-likelihoods": _likelihoods,
    "membership attack": _attack,
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
