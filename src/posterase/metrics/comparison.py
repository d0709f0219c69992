"""What an assessment compares: sets of draws, parts of the rows, and the two kinds of figures made from them."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree
from scipy.special import stdtr

from posterase.data.parameters import element_names, parameter_names
from posterase.data.row_source import data_of, is_streamed, row_source
from posterase.draws.draws import Draws
from posterase.errors import DifferentModelError, DrawsShapeError, InvalidOptionError
from posterase.metrics.membership import member_share
from posterase.metrics.predictive import check_probabilities, most_predicted, outputs
from posterase.metrics.samples import Sample, rounded_down, sampled
from posterase.metrics.table import Figure, NotMeasured
from posterase.model.base import AbstractModel, with_rows
from posterase.model.change import Change
from posterase.model.factorised import Model
from posterase.model.stored import needs_density
from posterase.numerics.densities import over_draws
from posterase.numerics.weights import Estimate, base_weights
from posterase.runtime.checks import check_type
from posterase.runtime.closures import holds_data
from posterase.runtime.compilation_cache import suspend_cache
from posterase.runtime.prng import as_key

FEWEST_DRAWS = 20
MOST_ROWS = 5000
"""Of kept and test rows at most so many are looked at one by one, evenly spaced."""

ROUNDING = 1e-9
"""Figures nearer to each other than this, relatively, are equal."""

NEEDS_REFIT = "needs a refit to compare with (refits=…)"
NEEDS_TWO = "needs a second refit, for the floor"


class Compared(NamedTuple):
    """One set of draws held against another."""

    value: Estimate
    p_value: float | None = None
    """Where the metric has a null of its own."""


class RowStatistics(eqx.Module):
    """What one draw's parameters say of kept, removed and test rows."""

    model: AbstractModel
    change: Change
    kept: Int[Array, " kept"]
    test: AbstractModel | None
    unseen: Int[Array, " test"]
    attack: bool = eqx.field(static=True)
    """Whether to attack by likelihoods: not where there is a classifier, whose probabilities are attacked."""

    def __call__(self, params: PyTree) -> dict[str, Float[Array, ""]]:
        found = {"removed": -self.model.log_ratio(params, self.change)}
        if not self.model.rows_factorise:
            return found
        kept = self.model.log_rows(params, self.kept)
        found["kept"] = jnp.mean(kept)
        if self.test is not None:
            test = self.test.log_rows(params, self.unseen)
            found["test"] = jnp.mean(test)
            if self.attack:
                removed = self.model.log_rows(params, self.change.padded_ids)
                found["attack"] = member_share(kept, test, removed, self.change.counted)
        return found


def compare(
    model: Any,
    before: Any,
    after: Any,
    refits: Any,
    test: Any,
    rows: Any,
    predictor: Any,
    labels: Any,
    log_evidence: float | None,
    refit_seconds: float | None,
    key: Any,
) -> Comparison:
    """Check everything before any work starts."""
    check_type(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
    check_type(before, Draws, "before", "wrap them: pe.Draws({'name': array}).")
    result = None if isinstance(after, Draws) else after  # of a method, or of pe.erase: it knows more of its draws
    draws: Any = after if result is None else getattr(result, "draws", None)
    check_type(draws, Draws, "after", "pass what pe.erase returned, or draws: pe.Draws({'name': array}).")
    others = [refits] if isinstance(refits, Draws) else list(refits or [])
    for each in others:
        check_type(each, Draws, "refits", "pass draws of the kept posterior: pe.Draws, or a list of them.")
    named = {"before": before, "after": draws, **{f"refits[{i}]": each for i, each in enumerate(others)}}
    _check_alike(named)
    change = _change_of(model, result, rows)
    if model.has_density:
        for each in named.values():
            model.check(each)
    for name, number in (("log_evidence", log_evidence), ("refit_seconds", refit_seconds)):
        if number is not None and not (isinstance(number, (int, float, np.number)) and np.isfinite(number)):
            raise InvalidOptionError(f"{name} is {number!r}.", "pass a number.")
    if predictor is None and labels is not None:
        raise InvalidOptionError("labels are given, and no predictor.", "pass predictor=f, f(params, data).")
    comparison = Comparison(
        model=model,
        change=change,
        before=before,
        after=draws,
        refits=others,
        test=_test(model, test, draws),
        predictor=predictor,
        labels=_labels_of(labels),
        log_evidence=log_evidence,
        seconds=(getattr(result, "seconds", None), refit_seconds),
        diagnostics=getattr(result, "diagnostics", None),
        jeffreys=getattr(result, "jeffreys", None),
        ancestors=getattr(result, "ancestors", None),
        key=as_key(key),
    )
    if comparison.predictor is not None:
        for part in comparison.parts:
            comparison.check_predictor(part)
    return comparison


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """The checked input of an assessment, and what several metrics look at, computed once."""

    model: AbstractModel
    change: Change
    before: Draws
    after: Draws
    refits: list[Draws]
    test: AbstractModel | None
    predictor: Callable[[PyTree, PyTree], Array] | None
    labels: Callable[[PyTree], Int[np.ndarray, " rows"]] | None
    log_evidence: float | None
    seconds: tuple[float | None, float | None]
    """Of the erasure and of a refit, where they are known."""
    diagnostics: Any
    """What the method showed of its draws; None where only draws were given."""
    jeffreys: Estimate | None
    """Of the erased draws from refits, where the method measured it."""
    ancestors: Any
    """Of the erased draws, where they were resampled and it is known from which."""
    key: Key[Array, ""]
    cache: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def kept_model(self) -> AbstractModel:
        """The model of the kept rows."""
        return self.model.without(self.change)

    # --- sets of draws

    @property
    def refit_labels(self) -> list[str]:
        """Labels of the refits among `sets`: refit 0, refit 1 …"""
        return [f"refit {i}" for i in range(len(self.refits))]

    @functools.cached_property
    def sets(self) -> dict[str, Sample]:
        """Every set of draws, by label: origin, erased, and `refit_labels`."""
        refits = dict(zip(self.refit_labels, map(sampled, self.refits), strict=True))
        return {"origin": sampled(self.before), "erased": sampled(self.after, self.ancestors), **refits}

    def own_key(self, name: str) -> Key[Array, ""]:
        """Random numbers of a metric: the same whichever others are run."""
        return jax.random.fold_in(self.key, zlib.crc32(name.encode()))

    def of_all(self, name: str, compute: Callable[[str, Sample], Any]) -> dict[str, Any]:
        """A value of every set of draws, computed once."""
        if name not in self.cache:
            self.cache[name] = {label: compute(label, sample) for label, sample in self.sets.items()}
        return self.cache[name]

    def picks(self, most: int) -> dict[str, Int[np.ndarray, " picked"]]:
        """Places of distinct draws of every set, in proportion to their weights: as many of each, all effective."""
        size = rounded_down(min(sample.most_picks(most) for sample in self.sets.values()))
        return {label: sample.pick(self.own_key(f"picks {label}"), size) for label, sample in self.sets.items()}

    # --- rows

    def statistics(self) -> dict[str, dict[str, Float[np.ndarray, "chain draw"]]]:
        """Per draw: log-likelihoods and the membership attack, of every set of draws."""
        if not self.model.has_density:
            raise needs_density("the likelihood at other draws than the fit's")
        unseen = jnp.zeros(0, jnp.int32) if self.test is None else spread_out(self.test.row_ids)
        kept = spread_out(self.kept_model.row_ids)
        looked = RowStatistics(self.model, self.change, kept, self.test, unseen, self.labels is None)
        elements = self.model.elements(len(kept) + len(unseen) + self.change.padded_ids.shape[0])
        return self.of_all("statistics", lambda _, sample: over_draws(looked, sample.draws, elements))

    @functools.cached_property
    def parts(self) -> dict[str, PyTree]:
        """Data of some kept, removed and test rows; these where there are any."""
        ids = {"kept": self.kept_model.row_ids, "removed": np.sort(self.change.row_ids)}
        found = {name: (spread_out(rows), self.model.data) for name, rows in ids.items()}
        if self.test is not None:
            found["test"] = spread_out(self.test.row_ids), self.test.data
        return {name: row_source(data).take(rows) for name, (rows, data) in found.items()}

    def classes(self, part: str) -> Int[np.ndarray, " rows"]:
        """Of the rows of a part."""
        assert self.labels is not None
        return self.labels(self.parts[part])

    def check_predictor(self, part: str) -> None:
        """Refuse labels and predictions that are none, from one draw, before any work starts."""
        assert self.predictor is not None
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), self.before.params)
        if holds_data(self.predictor, one, self.parts[part]):
            suspend_cache()
        found = self._predicted(jax.tree.map(lambda leaf: leaf[:1], self.before.flat()), part)
        if self.labels is not None:
            classes = self.classes(part)
            if len(classes) != found.shape[1] or classes.max() >= found.shape[2]:
                raise InvalidOptionError(
                    f"predictor returns {found.shape[2]} classes for {found.shape[1]} {part} rows, whose "
                    f"{len(classes)} labels go up to {classes.max()}.",
                    "return one probability for each class, one row for each row.",
                )

    def predictions(self, part: str) -> dict[str, Float[np.ndarray, "draws rows outputs"]]:
        """Of every set of draws, at distinct effective ones of them; probabilities, where there are labels."""
        rows = max(len(jax.tree.leaves(data)[0]) for data in self.parts.values())
        picks = self.picks(most_predicted(rows))

        def of(label: str, sample: Sample) -> Float[np.ndarray, "draws rows outputs"]:
            return self._predicted(jax.tree.map(lambda leaf: leaf[picks[label]], sample.draws.flat()), part)

        return self.of_all(f"predictions {part}", of)

    def _predicted(self, params: PyTree, part: str) -> Float[np.ndarray, "draws rows outputs"]:
        assert self.predictor is not None
        found = outputs(self.predictor, params, self.parts[part])
        return found if self.labels is None else check_probabilities(found)

    def confidences(self, part: str) -> dict[str, Float[np.ndarray, "draws rows"]]:
        """Probabilities of the true classes, of every set of draws."""
        classes = self.classes(part)
        return {label: each[:, np.arange(len(classes)), classes] for label, each in self.predictions(part).items()}

    # --- figures

    def level(self, name: str, values: dict[str, Estimate], freedom: float | None = None, **more: Any) -> Figure:
        """A figure of one set of draws: erased against refits, two-sided.

        `freedom` are the degrees of freedom of the errors; None: those of errors over groups of draws.
        """
        labels = [label for label in self.refit_labels if label in values]
        refits = [values[label] for label in labels]
        if not refits:
            return Figure(name, values["origin"], values["erased"], why=NEEDS_REFIT, **more)
        count = len(refits)
        spread = float(np.std([each.value for each in refits], ddof=1)) if count > 2 else 0.0
        sampling = float(np.sqrt(sum(each.error**2 for each in refits))) / count
        between = spread > sampling * np.sqrt(count)
        target = Estimate(
            float(np.mean([each.value for each in refits])), max(sampling, spread / float(np.sqrt(count)))
        )
        gaps = [abs(a.value - b.value) for a, b in combinations(refits, 2)]
        errors = [float(np.hypot(a.error, b.error)) for a, b in combinations(refits, 2)]
        floor = Estimate(float(np.mean(gaps)), float(np.mean(errors))) if gaps else None
        p_values = {}
        for label in ("origin", "erased"):
            own = values[label]
            groups = {each: freedom or self.sets[each].freedom for each in (label, *labels)}
            terms = [(max(own.error, spread), groups[label]), (target.error, sum(groups[each] for each in labels))]
            if between:  # what refits differ by beyond their own errors is known from a few refits only
                terms = [(error, min(df, count - 1.0)) for error, df in terms]
            p_values[label] = two_sided(own.value, target.value, terms)
        return Figure(
            name, values["origin"], values["erased"], target, floor, p_values["origin"], p_values["erased"], **more
        )

    def distance(
        self,
        name: str,
        compare: Callable[[str, str], Compared],
        null: float | None = None,
        **more: Any,
    ) -> Figure | NotMeasured:
        """A figure of two sets of draws: erased against refits, held against refits among each other."""
        refits = self.refit_labels
        if not refits:
            return NotMeasured(name, NEEDS_REFIT)
        sides = {label: [compare(label, refit) for refit in refits] for label in ("origin", "erased")}
        among = [compare(a, b) for a, b in combinations(refits, 2)]
        floor = average(among) if among else None
        means = {label: average(found) for label, found in sides.items()}
        lowest = floor if floor is not None else None if null is None else Estimate(null, 0.0)
        p_values: dict[str, float | None] = {}
        for label, found in sides.items():
            own = [each.p_value for each in found if each.p_value is not None]
            if own:
                p_values[label] = min(1.0, min(own) * len(own))
            elif lowest is None:
                p_values[label] = None
            else:
                errors = [(each.error, np.inf) for each in (means[label], lowest)]
                p_values[label] = two_sided(means[label].value, lowest.value, errors)
        why = NEEDS_TWO if p_values["erased"] is None else ""
        return Figure(
            name,
            means["origin"],
            means["erased"],
            None,
            floor,
            p_values["origin"],
            p_values["erased"],
            null=null,
            why=why,
            **more,
        )


def _check_alike(named: dict[str, Draws]) -> None:
    """Draws of the same parameters, enough of them, none with all the weight, none that stand still in one set only."""
    first, *_ = named.values()
    shapes = {name: [leaf.shape[2:] for leaf in jax.tree.leaves(each.params)] for name, each in named.items()}
    for name, each in named.items():
        if parameter_names(each.params) != parameter_names(first.params) or shapes[name] != shapes["before"]:
            raise DifferentModelError(
                f"{name} has the parameters {_listed(each)}, and before has {_listed(first)}.",
                "pass draws of the same model.",
            )
        n = each.n_chains * each.n_draws
        if n < FEWEST_DRAWS:
            raise DrawsShapeError(
                f"{name} has {n} draw{'s' if n != 1 else ''}.", "figures with an error need some hundred: sample more."
            )
        heaviest = float(base_weights(each).max())
        if heaviest > 0.5:
            raise DrawsShapeError(
                f"one draw of {name} has {heaviest:.0%} of all weight.", "nothing can be averaged over: use more draws."
            )
    still = {name: np.ptp(each.matrix(), axis=0) == 0 for name, each in named.items()}
    for name, each in still.items():
        odd = np.flatnonzero(each & ~np.all(list(still.values()), axis=0))
        if odd.size:
            raise DrawsShapeError(
                f"{element_names(first.params)[odd[0]]} never changes in {name}, and does elsewhere.",
                "has a chain stood still? Leave it out.",
            )


def _listed(draws: Draws) -> str:
    leaves = zip(draws.names, jax.tree.leaves(draws.params), strict=True)
    return ", ".join(f"{name} {list(leaf.shape[2:]) or ''}".strip() for name, leaf in leaves)


def _change_of(model: AbstractModel, result: Any, rows: Any) -> Change:
    left = getattr(getattr(result, "model", None), "present", None)
    if rows is not None:
        named = model.change(remove=rows.row_ids if isinstance(rows, Change) else rows)
        if left is not None and not np.array_equal(np.asarray(model.without(named).present), np.asarray(left)):
            raise DifferentModelError(
                "rows are others than those that after was erased of.", "leave rows out: after says which."
            )
        return named
    if left is None:
        raise InvalidOptionError(
            "it is not said which rows were removed.", "pass rows=[…], or as after what pe.erase returned."
        )
    present = np.asarray(model.present)
    if left.shape != present.shape or np.array_equal(np.asarray(left), present):
        raise DifferentModelError(
            "after belongs to another model, or the model has lost its rows already.",
            "pass the model that the erasure began with: the one of all rows.",
        )
    return model.change(remove=np.flatnonzero(present & ~np.asarray(left)))


def _test(model: AbstractModel, test: Any, draws: Draws) -> AbstractModel | None:
    if test is None:
        return None
    if isinstance(test, AbstractModel):
        test.check(draws)
        return test
    if not isinstance(model, Model):
        raise InvalidOptionError(
            f"test is data, and the model is a {type(model).__name__}, which knows its own rows only.",
            "pass a model of the test rows with the same parameters.",
        )
    own_shapes = row_source(model.data).shapes(1)
    shapes = row_source(test).shapes(1) if is_streamed(test) else test
    if parameter_names(shapes) != parameter_names(own_shapes):
        raise InvalidOptionError(
            "test is not built as the model's data are.", f"pass {jax.tree.structure(own_shapes)}, rows first."
        )
    for own, other in zip(jax.tree.leaves(own_shapes), jax.tree.leaves(shapes), strict=True):
        if np.ndim(other) == 0 or np.shape(other)[1:] != own.shape[1:]:
            raise InvalidOptionError(
                f"test has rows of shape {np.shape(other)[1:]}, the model's data of {own.shape[1:]}.",
                "pass rows of the same kind.",
            )
        if np.shape(other)[0] == 0:
            raise InvalidOptionError("test holds no rows.", "pass rows that were never fitted, or leave it out.")
    return with_rows(model, *data_of(test))


def _labels_of(labels: Any) -> Callable[[PyTree], Int[np.ndarray, " rows"]] | None:
    if labels is None:
        return None

    def find(data: PyTree) -> Int[np.ndarray, " rows"]:
        if callable(labels):
            found = labels(data)
        elif isinstance(data, dict) and labels in data:
            found = data[labels]
        else:
            raise InvalidOptionError(
                f"labels is {labels!r}, which the data have not.",
                "name an array of the data, or pass a function of it.",
            )
        values = np.asarray(found)
        whole = values.astype(int) if np.isfinite(values).all() else values
        if values.ndim != 1 or not np.array_equal(whole, values) or (values < 0).any():
            raise InvalidOptionError("labels are no classes.", "give one whole number a row, from 0.")
        return whole

    return find


def spread_out(ids: Int[np.ndarray, " rows"], most: int = MOST_ROWS) -> Int[Array, " some"]:
    """Some of the rows, evenly spaced."""
    return jnp.asarray(ids[np.linspace(0, len(ids) - 1, min(len(ids), most)).astype(int)])


def two_sided(value: float, target: float, errors: list[tuple[float, float]]) -> float:
    """The p-value of a difference, from standard errors and their degrees of freedom (Welch and Satterthwaite)."""
    gap = abs(value - target)
    if gap <= ROUNDING * max(abs(value), abs(target), 1e-300):
        return 1.0
    variance = sum(error**2 for error, _ in errors)
    if not variance > 0:
        return 0.0
    freedom = (
        variance**2 / sum(error**4 / df for error, df in errors) if min(df for _, df in errors) < np.inf else np.inf
    )
    return float(2 * stdtr(freedom, -gap / np.sqrt(variance)))


def average(found: list[Compared]) -> Estimate:
    """Over refits. Comparisons share draws: their errors do not average out, and are not below the spread."""
    values = [each.value.value for each in found]
    error = float(np.mean([each.value.error for each in found]))
    spread = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 2 else 0.0
    return Estimate(float(np.mean(values)), max(error, spread))
