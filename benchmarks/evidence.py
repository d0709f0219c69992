"""Which metrics tell a broken erasure from the floor, and from how many removed rows on.

Logistic regression on scikit-learn's breast-cancer data: 455 rows to fit, 114 to test, 31 parameters; malignant rows
are removed. Every set of draws is of NUTS, 4 chains of 1,000 draws; two refits are the floor. *Not deleted*: another
fit of all rows. *Deleted twice*: the removed rows count with the opposite sign. *Shift only*: the paper's shift, with
the kept Hessian. *Exact*: a third refit, which must pass.

A cell is the smallest number of removed rows from which on the metric says "off", up to the largest; a dash: it never
does; not judged: it has nothing to go by, as Jeffreys ε of draws whose density is not known. Metrics are those of
`posterase.assess`, at 1 % false alarms over a whole table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree

import posterase as pe
from benchmarks.harness import compare, write_whole
from benchmarks.problems import breast_cancer
from posterase.experiments.machine import machine
from posterase.metrics import forget_sets, klom, logit_margin, nearest_neighbour_kl, shadow_models, u_lira

REMOVED = (1, 3, 10, 30, 57, 100, 160)
METHODS = ("not deleted", "deleted twice", "shift only", "exact")
TEST_ROWS = 114
FORGET, MODELS = 20, 256
DRAWS, DIMENSIONS = 100, 725_962
"""Of the paper's CIFAR-10 network."""
TARGET = Path(__file__).parent.parent / "docs" / "results" / "evidence.md"


class Split(NamedTuple):
    """Rows to fit and rows to test."""

    model: pe.Model
    test: dict[str, Any]
    initial: Any
    malignant: Any
    """Row ids, in random order."""


def split() -> Split:
    problem = breast_cancer()
    mixed = np.random.default_rng(1).permutation(problem.model.n_rows)
    data = {**problem.model.data, "times": jnp.ones(problem.model.n_rows)}
    fitted, test = (
        {name: leaf[np.sort(ids)] for name, leaf in data.items()} for ids in (mixed[TEST_ROWS:], mixed[:TEST_ROWS])
    )
    plain = problem.model.log_likelihood
    model = pe.Model(problem.model.log_prior, lambda p, rows: rows["times"] * plain(p, rows), fitted)
    malignant = np.random.default_rng(2).permutation(np.flatnonzero(np.asarray(fitted["y"]) == 0))
    return Split(model, test, problem.initial, malignant)


def probabilities(params: Any, data: Any) -> Any:
    p = jax.nn.sigmoid(data["x"] @ params)
    return jnp.stack([1 - p, p], axis=1)


def opposite(model: pe.Model, rows: Any) -> pe.Model:
    """The removed rows taken out twice."""
    times = model.data["times"].at[jnp.asarray(rows)].set(-1.0)
    return pe.Model(model.log_prior, model.log_likelihood, {**model.data, "times": times})


def verdicts(problem: Split, before: pe.Draws, number: int) -> dict[str, dict[str, str]]:
    """By method and metric, with so many rows removed."""
    model, rows = problem.model, problem.malignant[:number]
    change = model.change(remove=rows)
    kept = model.without(change)

    def sample(seed: int, of: pe.Model) -> pe.Draws:
        return pe.nuts(seed, of, problem.initial, 1000).draws

    refits = [sample(1, kept), sample(2, kept)]
    after: dict[str, Any] = {
        "not deleted": sample(3, model),
        "deleted twice": sample(4, opposite(model, rows)),
        "shift only": pe.InfluenceShift()(0, model, before, change),
        "exact": sample(5, kept),
    }
    options: dict[str, Any] = {"predictor": probabilities, "labels": "y", "rows": rows}
    return {
        method: pe.assess(model, before, draws, refits, problem.test, **options).verdicts
        for method, draws in after.items()
    }


def begins(found: dict[int, dict[str, dict[str, str]]], method: str, metric: str) -> str:
    """From which number of rows on, up to the largest, a metric says that a method is off."""
    said = [each[method].get(metric, "") for each in found.values()]
    if all(not verdict or verdict.startswith("told") or "is not known" in verdict for verdict in said):
        return "not judged"
    from_here = "–"
    for number in sorted(found, reverse=True):
        if not found[number][method].get(metric, "").startswith("off"):
            break
        from_here = str(number)
    return from_here


def not_deleted(key: Any, params: Any, present: Any, gone: Any) -> Any:
    return params


def worlds_table(problem: Split, before: pe.Draws) -> Iterator[str]:
    """The field's protocol: models fitted to random halves of the rows, three kinds of forget sets."""
    model = problem.model
    sampler = pe.LaplaceFit(model, np.zeros(31, np.float32), newton_steps=10, langevin_steps=10)

    def margin(params: Any, ids: Any) -> Any:
        return logit_margin(model.log_rows(params, ids))

    def newton_step(key: Any, params: Any, present: Any, gone: Any) -> Any:
        slope = jax.grad(sampler.log_density)
        push = slope(params, present) - slope(params, present & ~gone)
        root = sampler.inverse_root(params, present & ~gone)
        return params - root @ (root.T @ push)

    yield "| forgotten | erasure | U-LiRA, found at 1 % | KLoM, median | KLoM, 95th percentile |\n|---|---|---|---|---|"
    for name, rows in forget_sets(0, model, before, FORGET)._asdict().items():
        for erasure, erase in (("not deleted", not_deleted), ("a Newton step", newton_step)):
            made = shadow_models(0, sampler, erase, margin, model.n_rows, rows, models=MODELS)
            if erasure == "not deleted":
                yield _world_line(name, "refit (floor)", made.again, made.never)
            yield _world_line(name, erasure, made.erased, made.never)


def _world_line(name: str, erasure: str, margins: Any, never: Any) -> str:
    attack, divergence = u_lira(0, margins, never), klom(0, margins, never)
    cells = attack.true_positives, divergence.median, divergence.percentile_95
    return f"| {name} | {erasure} | {' | '.join(map(str, cells))} |"


def tree_kl(one: Any, other: Any) -> float:
    """The same estimate with scipy's k-d trees."""
    own = KDTree(one).query(one, k=2)[0][:, 1]
    across = KDTree(other).query(one, k=1)[0]
    return float(one.shape[1] * np.mean(np.log(across / own)) + np.log(len(other) / (len(one) - 1)))


def speed(problem: Split) -> Iterator[str]:
    """A batch of refits against the same ones one after the other, and an assessment against the refits it needs."""
    model = problem.model
    sampler = pe.LaplaceFit(model, np.zeros(31, np.float32), newton_steps=10, langevin_steps=10)
    one = jax.jit(sampler.__call__)
    keys = jax.random.split(jax.random.key(0), 3 * MODELS)

    def loop() -> Any:
        return [one(key, model.present) for key in keys]

    def batch() -> Any:
        return shadow_models(0, sampler, not_deleted, model.log_rows, model.n_rows, np.arange(8), models=MODELS)

    yield str(compare(f"{3 * MODELS} refits in a Python loop / in a batch", loop, batch, repeats=2))
    chains = np.random.default_rng(0).normal(size=(2, DRAWS, DIMENSIONS)).astype(np.float32)
    what = f"ε̂ of {DRAWS} draws in {DIMENSIONS:,} dimensions: a k-d tree / blocked distances"
    yield str(compare(what, lambda: tree_kl(*chains), lambda: nearest_neighbour_kl(*chains), repeats=2))
    before = pe.nuts(0, model, problem.initial, 1000).draws
    rows = problem.malignant[:57]
    kept = model.without(model.change(remove=rows))
    refits = [pe.nuts(seed, kept, problem.initial, 1000).draws for seed in (1, 2)]
    yield str(
        compare(
            "a refit by NUTS / an assessment of 57 rows",
            lambda: pe.nuts(3, kept, problem.initial, 1000).draws.params,
            lambda: (
                pe.assess(
                    model, before, refits[0], refits, problem.test, rows=rows, predictor=probabilities, labels="y"
                ).attrs
            ),
            repeats=2,
        )
    )


def run() -> Iterator[str]:
    problem = split()
    before = pe.nuts(0, problem.model, problem.initial, 1000).draws
    found: dict[int, dict[str, dict[str, str]]] = {}
    for number in REMOVED:
        found[number] = verdicts(problem, before, number)
        counts = [sum(each.startswith("off") for each in found[number][method].values()) for method in METHODS]
        told = ", ".join(f"{method} {count}" for method, count in zip(METHODS, counts, strict=True))
        yield f"{number} rows removed, metrics that say off: {told}"
    judged = [
        metric
        for metric in found[REMOVED[-1]]["exact"]
        if not all(found[n][m].get(metric, "told").startswith("told") for n in REMOVED for m in METHODS)
    ]
    head = f"| metric | {' | '.join(METHODS)} |\n|---|{'---|' * len(METHODS)}"
    lines = [f"| {metric} | {' | '.join(begins(found, m, metric) for m in METHODS)} |" for metric in judged]
    alarms = sum(each.startswith("off") for number in REMOVED for each in found[number]["exact"].values())
    table = [head, *lines]
    yield "\n".join(table)
    false = f"Exact erasures called off: {alarms} of {len(REMOVED)} tables of about {len(judged)} judged rows each."
    yield false
    attacks = list(worlds_table(problem, before))
    yield "\n".join(attacks)
    ratios = list(speed(problem))
    yield "\n".join(ratios)
    intro = f"# What each metric sees\n\nFrom `python -m benchmarks evidence`: {machine()}.\n\n{__doc__}"
    second = (
        f"## Example by example, as the field tests it\n\n{MODELS} models of each kind, fitted to random halves of the "
        f"rows; {FORGET} rows to forget, chosen in three ways (`posterase.metrics.forget_sets`). Found at 1 %: 0.01 "
        "where nothing can be told. *A Newton step*: every model is moved by its own, as a shift of single draws."
    )
    third = "## Speed\n\n" + "\n".join(f"- {ratio}" for ratio in ratios)
    removed = f"Numbers of removed rows tried: {', '.join(map(str, REMOVED))}."
    text = [intro, removed, "", *table, "", false, "", second, "", *attacks, "", third]
    write_whole(TARGET, "\n".join(text) + "\n")
