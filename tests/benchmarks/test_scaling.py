"""The shapes of cost curves, not seconds: operations, temporary memory and passes against rows, removed rows and draws.

XLA counts the body of a loop once. So operations of programs that loop over blocks of rows are counted from the jaxpr.
"""

import gc
import json
import weakref

import benchmarks.scaling
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.scaling import Curve, measured, problem
from jax.extend.core import ClosedJaxpr, Jaxpr

import posterase as pe
import posterase.data.leakage as column_checks_file
import posterase.model.factorised as model_file
import posterase.numerics.propriety as propriety_file
from posterase.data import row_source
from posterase.data.leakage import lagged
from posterase.data.selection import table_of
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.densities import _evaluate_at

COLUMNS, DRAWS = 4, 50
LIKE = np.zeros(COLUMNS, np.float32)
FEW, MANY = 400_000, 1_600_000
"""Rows that are evaluated in several blocks."""


def regression(rows):
    x = jax.random.normal(jax.random.key(0), (rows, COLUMNS))
    return pe.Model(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, data: data["y"] * (data["x"] @ p) - jnp.logaddexp(0, data["x"] @ p),
        {"x": x, "y": jnp.ones(rows)},
    )


def draws_of(n=DRAWS):
    return pe.Draws(np.random.default_rng(1).normal(size=(2, n // 2, COLUMNS)).astype(np.float32))


def compiled(function, *args):
    lowered = function.lower(*args).compile()
    return getattr(lowered, "compiled", lowered)


def density_program(density, draws=DRAWS):
    """The program that evaluates a density at draws, in float64 as weights are."""
    with jax.enable_x64(True):
        return compiled(_evaluate_at, density, jnp.zeros((draws, COLUMNS)), LIKE, True)


def flops(program):
    return program.cost_analysis()["flops"]


def temporary(program):
    return program.memory_analysis().temp_size_in_bytes


def operations(function, *args):
    """Numbers computed, loops of known length counted as often as they run."""
    return _operations(jax.make_jaxpr(function)(*args).jaxpr)


def _operations(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
        inner = [
            each.jaxpr if isinstance(each, ClosedJaxpr) else each
            for each in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr))
            if isinstance(each, Jaxpr | ClosedJaxpr)
        ]
        own = 0 if inner else sum(out.aval.size for out in equation.outvars)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            own *= int(np.prod([equation.invars[0].aval.shape[axis] for axis in contracted]))
        total += equation.params.get("length", 1) * (own + sum(map(_operations, inner)))
    return total


# --- rows


def test_reweight_computes_and_holds_the_same_however_many_rows_are_kept():
    programs = []
    for rows in (2_000, 20_000):
        model = regression(rows)
        programs.append(density_program(LogRatio(model, model.change(remove=range(100)))))
    assert flops(programs[0]) == flops(programs[1])
    assert temporary(programs[0]) == temporary(programs[1])


def test_the_density_of_all_rows_does_not_and_the_count_sees_it():
    """The twin: evaluating all rows grows with them."""
    small, large = (density_program(LogDensity(regression(rows))) for rows in (2_000, 20_000))
    assert flops(large) > 5 * flops(small)


def refuse(*_):
    raise AssertionError("a copy of the data was made")


def test_reweight_makes_no_copy_of_the_data(monkeypatch):
    model, draws = regression(200), draws_of(200)
    change = model.change(remove=range(5))
    monkeypatch.setattr(row_source.RowsInMemory, "without", refuse)
    pe.Reweight()(0, model, draws, change)
    with pytest.raises(AssertionError, match="a copy of the data"):  # the twin: Transport moves draws by the kept rows
        pe.Transport()(0, model, draws, change)


def test_reweight_evaluates_as_many_rows_whatever_is_kept():
    found = []
    for rows in (200, 2_000):
        model = regression(rows)
        found.append(pe.Reweight()(0, model, draws_of(200), model.change(remove=range(5))).diagnostics.cost)
    assert found[0].densities * 200 == pytest.approx(found[1].densities * 2_000)
    assert found[0].sequential == found[1].sequential == 1


def test_a_pass_over_the_data_is_linear_in_rows_and_holds_a_block():
    few, many = LogDensity(regression(FEW)), LogDensity(regression(MANY))
    theta = jnp.zeros(COLUMNS)
    assert operations(many, theta) == pytest.approx(MANY / FEW * operations(few, theta), rel=0.05)
    assert operations(jax.grad(many), theta) == pytest.approx(MANY / FEW * operations(jax.grad(few), theta), rel=0.05)
    held = [temporary(density_program(each)) for each in (few, many)]
    assert held[1] == pytest.approx(held[0], rel=0.05)
    assert held[1] < MANY * DRAWS * 8 / 10
    slopes = [temporary(compiled(jax.jit(jax.grad(each)), theta)) for each in (few, many)]
    assert slopes[1] == pytest.approx(slopes[0], rel=0.05, abs=2**16)


def test_a_pass_that_holds_rows_times_draws_is_seen(monkeypatch):
    """The twin: all rows in one block, all draws side by side."""
    monkeypatch.setattr(model_file, "BLOCK_ELEMENTS", 2**40)
    monkeypatch.setattr("posterase.numerics.densities.BATCH_ELEMENTS", 2**60)
    few, many = (temporary(density_program(LogDensity(regression(rows)), draws=10)) for rows in (FEW, MANY))
    assert many > 3 * few
    assert many > MANY * 10 * 8 / 2


@pytest.mark.slow
def test_transport_passes_over_the_data_as_often_however_many_rows():
    found = []
    for rows in (500, 5_000):
        model, draws, _ = problem(rows, COLUMNS, 2, 100)
        found.append(pe.Transport()(0, model, draws, model.change(remove=range(5))).diagnostics.cost)
    assert found[0].densities == found[1].densities == 2 * 200
    assert found[1].gradients == pytest.approx(found[0].gradients, rel=0.25)
    assert abs(found[1].sequential - found[0].sequential) <= 2


# --- what a request holds


def test_one_copy_of_the_kept_rows_serves_a_request_and_is_let_go():
    model = regression(100)
    change = model.change(remove=[3])
    kept = model.without(change)
    assert model.without(change) is kept
    assert model.without(model.change(remove=[4])) is not kept  # the twin: another request
    gone = weakref.ref(kept)
    del kept
    gc.collect()
    assert gone() is None
    assert not model.without(change).present[3]


def test_a_kept_model_made_inside_compiled_code_does_not_leak_out():
    model = regression(100)
    change = model.change(remove=[3])
    inside = jax.jit(lambda theta: LogDensity(model.without(change))(theta))(jnp.ones(COLUMNS))
    outside = LogDensity(model.without(change))(jnp.ones(COLUMNS))
    assert float(inside) == pytest.approx(float(outside), rel=1e-5)


def test_the_check_of_additivity_makes_no_copy_of_the_kept_rows():
    model = regression(FEW)
    rows = jnp.arange(FEW - 100)
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(model.data))

    @eqx.filter_jit
    def copied(model, rows, params):
        alone = jax.tree.map(lambda leaf: jnp.sort(leaf[rows], axis=0), model.data)  # sorted: no copy is fused away
        return jnp.sum(model.log_likelihood(params, alone))

    streamed = eqx.filter_jit(lambda model, rows, params: model_file._Alone(model, rows)(params))
    held, twin = (temporary(compiled(each, model, rows, jnp.zeros(COLUMNS))) for each in (streamed, copied))
    assert held < 0.6 * data
    assert twin > 0.9 * data


def test_whole_columns_are_searched_for_a_series_only_where_a_kept_row_holds_a_removed_value(monkeypatch):
    values = np.random.default_rng(0).normal(size=(500, 3))
    monkeypatch.setattr(column_checks_file, "_lag", refuse)
    assert not lagged(table_of({"x": values}, np.ones(500, bool)), np.arange(5)).rows.size
    values[1:, 1] = values[:-1, 0]
    with pytest.raises(AssertionError):
        lagged(table_of({"x": values}, np.ones(500, bool)), np.arange(5))


@pytest.mark.parametrize(("prior", "passes"), [(1.0, 0), (1e-5, 1)])
def test_the_kept_rows_are_passed_over_only_where_the_removal_leaves_little(monkeypatch, prior, passes):
    group = np.arange(100) >= 95
    model = pe.Model(
        lambda p: -0.5 * p[0] ** 2 - 0.5 * prior * p[1] ** 2,
        lambda p, data: -0.5 * (data["y"] - p[0] - data["group"] * p[1]) ** 2,
        {"y": np.random.default_rng(0).normal(size=100), "group": group.astype(float)},
    )
    of_kept_rows = []
    plain = propriety_file.gradients

    def counted(density, points, like):
        of_kept_rows.append(isinstance(density, LogDensity))
        return plain(density, points, like)

    monkeypatch.setattr(propriety_file, "gradients", counted)
    monkeypatch.setattr(propriety_file, "FEW_ELEMENTS", 0)  # so that these rows are many
    change = model.change(remove=np.flatnonzero(group))
    thetas = np.random.default_rng(1).normal(size=(50, 2)) * [0.1, 0.4]
    kept, log_ratio = LogDensity(model.without(change)), LogRatio(model, change)
    propriety_file.check_informed(kept, log_ratio, thetas, np.zeros(2, np.float32))
    assert sum(of_kept_rows) == passes


# --- removed rows


def test_the_cost_of_reweight_follows_the_bucket_of_removed_rows():
    model = regression(20_000)
    cost = {n: flops(density_program(LogRatio(model, model.change(remove=range(n))))) for n in (1_000, 8_000)}
    assert cost[8_000] == pytest.approx(8 * cost[1_000], rel=0.1)
    assert cost[1_000] == flops(density_program(LogRatio(model, model.change(remove=range(1_024)))))
    assert cost[1_000] < flops(density_program(LogRatio(model, model.change(remove=range(1_025)))))  # the twin


# --- draws


def test_what_is_held_does_not_grow_with_the_draws():
    density = LogDensity(regression(FEW))
    few, many = (density_program(density, draws) for draws in (800, 1_600))  # in batches of the same size
    results = 800 * (COLUMNS + 2) * 8  # the draws themselves, and their values
    assert temporary(many) < temporary(few) + 2 * results
    of_all = jax.jit(jax.vmap(lambda theta: density.model.log_rows(theta, jnp.arange(1_000))))
    one, other = (compiled(of_all, jnp.zeros((n, COLUMNS))).memory_analysis() for n in (100, 1_600))
    assert other.output_size_in_bytes == 16 * one.output_size_in_bytes  # the twin: a value for every row and draw


# --- the benchmarks themselves


def test_a_curve_is_written_with_its_figures_and_its_plot(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks.scaling, "DOCS", tmp_path)
    model, draws, pareto_k = problem(400, 3, 2, 100)
    assert pareto_k < 0.7
    points = [
        measured(size, "Reweight", lambda: pe.Reweight()(0, model, draws, model.change(remove=range(size))))  # noqa: B023
        for size in (1, 3)
    ]
    Curve("small", "Small", "How it was measured.", "removed rows", "python -m benchmarks small").write(
        points, ["Said."]
    )
    kept = json.loads((tmp_path / "results" / "small.json").read_text())
    assert [point["size"] for point in kept["points"]] == [1, 3]
    assert all(point["says"].startswith("passed") and point["seconds"] > 0 for point in kept["points"])
    page = (tmp_path / "results" / "small.md").read_text()
    assert "| 3 | Reweight |" in page
    assert kept["machine"] in page
    assert (tmp_path / "figures" / "small.svg").read_text().startswith("<?xml")
