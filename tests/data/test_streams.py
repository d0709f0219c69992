"""Data larger than memory: the same numbers as in memory, in few blocks, from every kind of file, and clear errors."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import equinox as eqx
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import zarr

import posterase as pe
from posterase.data.selection import table_of
from posterase.data.streams import MOST_BLOCKS
from posterase.errors import DataError, InvalidOptionError, RowsError, StreamError, UnsupportedModelError
from posterase.metrics.forget_sets import row_influence
from posterase.model.densities import LogDensity
from posterase.numerics.densities import evaluate
from posterase.projects.loading import data_digest
from posterase.sampling.resume import digest

ROOT = Path(__file__).parents[2]
ROWS, BLOCK = 103, 20
REMOVED = [0, 7, 42, 102]


def make_columns(rows=ROWS):
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    return {
        "x": x,
        "y": (rng.random(rows) < 1 / (1 + np.exp(-0.3 - x))).astype(np.int64),
        "age": rng.integers(80, size=rows),
    }


def log_prior(params):
    return -0.5 * jnp.sum(params["w"] ** 2)


def log_likelihood(params, data):
    scores = params["w"][0] + params["w"][1] * data["x"]
    return data["y"] * scores - jnp.logaddexp(0, scores)


def model_of(data):
    return pe.Model(log_prior, log_likelihood, data)


def in_memory(rows=ROWS):
    return model_of(make_columns(rows))


def make_draws(count=100):
    noise = np.random.default_rng(1).normal(size=(2, count // 2, 2)) * 0.2
    return pe.Draws({"w": (np.array([0.3, 1.0]) + noise).astype(np.float32)})


def mapped(folder, rows=ROWS):
    paths = {}
    for name, values in make_columns(rows).items():
        np.save(folder / f"{name}.npy", values)
        paths[name] = folder / f"{name}.npy"
    return paths


def of_npy(folder):
    return pe.stream(mapped(folder), block_rows=BLOCK)


def of_memmap(folder):
    arrays = {name: np.load(path, mmap_mode="r") for name, path in mapped(folder).items()}
    return pe.stream(arrays, block_rows=BLOCK)


def of_zarr(folder):
    group = zarr.open_group(folder / "rows.zarr", mode="w")
    for name, values in make_columns().items():
        group.create_array(name, data=values, chunks=(9,))
    return pe.stream(folder / "rows.zarr", block_rows=BLOCK)


def of_parquet(folder):
    table = pyarrow.table({**make_columns(), "name": ["somebody"] * ROWS})
    pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=33)
    return pe.stream(str(folder / "rows.parquet"), columns=["x", "y", "age"], block_rows=BLOCK)


def of_h5py(folder):
    file = h5py.File(folder / "rows.h5", "w")
    for name, values in make_columns().items():
        file[name] = values
    return pe.stream(dict(file.items()), block_rows=BLOCK)


KINDS = {"npy": of_npy, "memmap": of_memmap, "zarr": of_zarr, "parquet": of_parquet, "h5py": of_h5py}


def test_densities_gradients_and_curvatures_are_those_of_rows_in_memory(tmp_path):
    data = of_npy(tmp_path)
    params = {"w": jnp.array([0.2, -0.4])}
    for streamed, memory in zip(pe.split(model_of(data), change(data)), pe.split(in_memory(), change()), strict=True):
        for of in (lambda f: f, jax.grad, jax.hessian):
            found, wanted = (jax.tree.leaves(jax.jit(lambda p: of(f)(p))(params)) for f in (streamed, memory))  # noqa: B023
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert data.n_blocks == 6


@pytest.mark.parametrize("kind", KINDS)
def test_the_kept_density_is_the_same_from_every_kind_of_file(kind, tmp_path):
    data = KINDS[kind](tmp_path)
    params = {"w": jnp.array([0.2, -0.4])}
    found, wanted = (
        eqx.filter_jit(model.without(model.change(remove=REMOVED)).log_joint)(params)
        for model in (model_of(data), in_memory())
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(data.shapes(1))} == {"float32", "int32"}


def change(data=None):
    return (in_memory() if data is None else model_of(data)).change(remove=REMOVED)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_same_from_every_kind_of_file(kind, tmp_path):
    data = KINDS[kind](tmp_path)
    columns = make_columns()
    ids = np.array([[102, 3, 3], [0, 55, 19]])
    found = jax.jit(jax.vmap(data.take))(jnp.asarray(ids))
    blocks = list(data.blocks())
    for name, values in columns.items():
        np.testing.assert_array_equal(found[name], values[ids].astype(np.asarray(found[name]).dtype))
        np.testing.assert_allclose(np.concatenate([block[name] for block in blocks]), values, rtol=1e-6)
    assert [len(block["x"]) for block in blocks] == [20, 20, 20, 20, 20, 3]


def test_64_bit_numbers_stay_64_bit_where_jax_has_them(tmp_path):
    with jax.enable_x64(True):
        data = of_npy(tmp_path)
        value = eqx.filter_jit(model_of(data).log_joint)({"w": jnp.array([0.2, -0.4])})
        wanted = in_memory().log_joint({"w": jnp.array([0.2, -0.4])})
    assert data.shapes(1)["x"].dtype == np.float64
    assert abs(float(value - wanted)) < 1e-12


@pytest.mark.parametrize("method", [pe.Reweight(), pe.Transport()], ids=lambda each: type(each).__name__)
def test_erasers_return_the_draws_they_return_in_memory(method, tmp_path):
    draws, data = make_draws(), of_npy(tmp_path)
    streamed = method(3, model_of(data), draws, change(data)).draws
    memory = method(3, in_memory(), draws, change()).draws
    np.testing.assert_allclose(streamed.params["w"], memory.params["w"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(streamed.log_weights, memory.log_weights, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pe.Rejuvenate(), pe.Refit(warmup=50), pe.InfluenceShift()], ids=lambda each: type(each).__name__
)
def test_slower_erasers_return_the_draws_they_return_in_memory(method, tmp_path):
    """All rows in one block, as they are in memory: a chain goes elsewhere where a sum is rounded in another order."""
    draws, data = make_draws(400), pe.stream(mapped(tmp_path))
    assert data.n_blocks == 1
    streamed = method(3, model_of(data), draws, change(data)).draws
    memory = method(3, in_memory(), draws, change()).draws
    np.testing.assert_allclose(streamed.params["w"], memory.params["w"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_ladder_and_its_assessment_run_on_a_stream(tmp_path):
    draws, data = make_draws(1000), of_npy(tmp_path)
    results = [pe.erase(model, draws, REMOVED, random_seed=1) for model in (model_of(data), in_memory())]
    assert [outcome.name for outcome in results[0].outcomes] == [outcome.name for outcome in results[1].outcomes]
    np.testing.assert_allclose(results[0].draws.log_weights, results[1].draws.log_weights, atol=1e-5)
    tables = [
        pe.assess(model, draws, result, test={n: v[:5] for n, v in make_columns().items()})
        for model, result in zip((model_of(data), in_memory()), results, strict=True)
    ]
    assert str(tables[0]).splitlines()[:3] == str(tables[1]).splitlines()[:3]


def test_mini_batches_are_drawn_from_a_stream(tmp_path):
    data = of_npy(tmp_path)
    sampler = pe.SGLD(pe.PolynomialSteps(1e-3), batch=8)
    found = []
    for model in (model_of(data), in_memory()):
        state = pe.start_chains(0, model, sampler, {"w": np.zeros((2, 2), np.float32)})
        found.append(pe.sample(model, sampler, state, 5)[0])
    np.testing.assert_allclose(*(each.params["w"] for each in found), rtol=1e-5)
    assert data.blocks_read == 0


def test_a_pass_reads_every_block_once_for_many_draws_and_a_gradient_is_one_pass(tmp_path):
    data = of_npy(tmp_path)
    model, draws = model_of(data), make_draws(200)
    evaluate(LogDensity(model), draws)
    assert data.blocks_read == data.n_blocks
    gradients = jax.jit(jax.vmap(jax.value_and_grad(model.log_density)))
    jax.block_until_ready(gradients(draws.flat()))
    assert data.blocks_read == 2 * data.n_blocks
    evaluate(LogDensity(model), make_draws(300))  # more than are evaluated side by side
    assert data.blocks_read == 4 * data.n_blocks


def test_another_request_compiles_nothing_anew(tmp_path):
    traced = []

    def counting(params, data):
        traced.append(1)
        return log_likelihood(params, data)

    model, draws = pe.Model(log_prior, counting, of_npy(tmp_path)), make_draws()
    for rows in ([3], [5, 6]):
        evaluate(LogDensity(model.without(model.change(remove=rows))), draws)
        traced.append(0)
    assert sum(traced[traced.index(0) :]) == 0


def test_removed_rows_do_not_reach_the_likelihood(tmp_path):
    """It is NaN at the removed row, as are its gradients, which a mask alone would not keep away."""
    np.save(tmp_path / "y.npy", np.where(np.arange(50) == 30, -1.0, 2.0))
    model = pe.Model(
        lambda p: -0.5 * p**2,
        lambda p, data: -jnp.log(data["y"]) * p**2,
        pe.stream({"y": tmp_path / "y.npy"}, block_rows=8),
    )
    kept = model.without(model.change(remove=[30]))
    assert np.isnan(model.log_joint(jnp.array(1.0)))
    assert np.isfinite(kept.log_joint(jnp.array(1.0)))
    assert np.isfinite(jax.grad(kept.log_joint)(jnp.array(1.0)))
    assert float(kept.data.take(jnp.array([30]))["y"][0]) == 2.0
    assert all((block["y"] == 2).all() for block in kept.data.blocks())
    again = kept.without(kept.change(remove=[0]))
    assert np.isfinite(again.log_joint(jnp.array(1.0)))
    with pytest.raises(RowsError):
        kept.change(remove=[30])


@pytest.mark.parametrize("where", ["stream", "memory"])
def test_conditions_select_what_is_there(where, tmp_path):
    columns, model = make_columns(), model_of(of_npy(tmp_path)) if where == "stream" else in_memory()
    wanted = np.flatnonzero((columns["age"] > 70) & (columns["y"] == 1))
    np.testing.assert_array_equal(table_of(model.data, model.present).select("age > 70 and y == 1"), wanted)
    last = model.n_rows - 1  # in the last block
    np.testing.assert_array_equal(table_of(model.data, model.present).select(f"row in [3, {last}]"), [3, last])
    kept = model.without(model.change(remove=wanted[:2]))
    ages = columns["age"][[0, 1, wanted[0]]].tolist()  # 0 is what overwrites removed rows
    found = table_of(kept.data, kept.present).select({"age": ages})
    np.testing.assert_array_equal(found, np.setdiff1d(np.flatnonzero(np.isin(columns["age"], ages)), wanted[:2]))
    mask = np.arange(ROWS) == 5
    np.testing.assert_array_equal(table_of(kept.data, kept.present).select(mask), mask)
    with pytest.raises(RowsError, match="'weight', which the rows do not have"):
        table_of(kept.data, kept.present).select("weight > 3")


def test_a_kept_row_that_holds_a_removed_value_goes_along(tmp_path):
    """It is dropped as well, and the result says so, also where it begins the next block."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=5000)
    before = np.r_[0.0, y[:-1]]
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "before.npy", before)
    data = pe.stream({"y": tmp_path / "y.npy", "before": tmp_path / "before.npy"}, block_rows=64)
    model = pe.Model(lambda p: -0.5 * p["w"] ** 2, lambda p, d: -0.5 * (d["y"] - p["w"] * d["before"]) ** 2, data)
    precision = before @ before + 1
    draws = pe.Draws({"w": before @ y / precision + rng.normal(size=(2, 100)) / np.sqrt(precision)})
    for row in (3000, 3007):  # the block of row 3007 ends with it
        result = pe.erase(model, draws, [row])
        assert result.n_removed == 2
        np.testing.assert_array_equal(np.flatnonzero(~np.asarray(result.model.present)), [row, row + 1])
        assert "1 more row dropped, since covariates held removed values (before is y of 1 row before)" in str(result)


# --- reading


def test_the_next_block_is_read_ahead_and_no_thread_stays(tmp_path):
    data = of_npy(tmp_path)
    data.source.block(np.array(0))
    for thread in [each for each in threading.enumerate() if each.name.startswith("posterase")]:
        thread.join()
    assert data.blocks_read == 2
    assert list(data.source._ahead) == [1]
    for index in range(1, data.n_blocks):
        data.source.block(np.array(index))
    assert data.blocks_read == data.n_blocks
    assert not data.source._ahead
    assert not [each for each in threading.enumerate() if each.name.startswith("posterase")]


def test_a_pass_that_was_given_up_leaves_at_most_two_blocks(tmp_path):
    data = of_npy(tmp_path)
    for index in (0, 2, 4, 0, 3):
        data.source.block(np.array(index))
    assert len(data.source._ahead) <= 2


def test_changes_in_a_private_mapping_are_not_lost(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros(100_000))
    y = np.load(tmp_path / "y.npy", mmap_mode="c")
    y[50_000] = 7
    data = pe.stream({"y": y}, block_rows=30_000)
    for _ in range(2):
        assert sum(block["y"].sum() for block in data.blocks()) == 7


def test_arrays_laid_out_by_columns_and_views_of_mapped_arrays_are_read_right(tmp_path):
    values = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", np.asfortranarray(values))
    whole = np.load(tmp_path / "x.npy", mmap_mode="r")
    for array, wanted in ((whole, values), (whole[100::3, 1:], values[100::3, 1:]), (np.asarray(whole), values)):
        found = np.concatenate(list(pe.stream(array, block_rows=700).blocks()))
        np.testing.assert_array_equal(found, wanted)


def test_zarr_is_read_in_whole_chunks(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(5000, 4), chunks=(300, 4), dtype="float32")
    assert pe.stream(array, block_bytes=16 * 700).block_rows == 600
    assert pe.stream(array, block_bytes=16).block_rows == 300


# --- errors


def spoil(folder, how):
    path = folder / "x.npy"
    if how == "gone":
        path.unlink()
    elif how == "cut off":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.write_bytes(path.read_bytes() + bytes(8))


@pytest.mark.parametrize("warm", [False, True], ids=["compiled", "run before"])
@pytest.mark.parametrize("how", ["gone", "cut off", "longer"])
def test_files_that_change_are_an_error_that_says_so(how, warm, tmp_path, caplog):
    """Whether the programs that read them were run before, or not."""
    model, draws = model_of(of_npy(tmp_path)), make_draws()
    removed = model.change(remove=REMOVED)
    methods = [pe.Reweight(), pe.Transport()] if how == "gone" else [pe.Transport()]
    for method in methods if warm else ():
        method(0, model, draws, removed)
    spoil(tmp_path, how)
    for method in methods:
        with caplog.at_level(logging.ERROR), pytest.raises(StreamError, match=r"x\.npy.*(cannot be read|has changed)"):
            method(0, model, draws, removed)
    assert not caplog.records


def test_errors_in_reading_are_told_by_whatever_reads(tmp_path):
    model, draws = model_of(of_npy(tmp_path)), make_draws()
    sampler = pe.SGLD(pe.PolynomialSteps(1e-4, 1.0, 0.55), batch=8)
    state = pe.start_chains(0, model, sampler, jax.tree.map(lambda leaf: leaf[:, 0], draws.params))
    spoil(tmp_path, "longer")
    for reads in (
        lambda: pe.LiveInfluenceShift(order=1, scale=1.0, batch=8)(model, sampler, state, [[3]]),
        lambda: pe.metrics.divergence(model, draws, model.change(remove=REMOVED)),
        lambda: row_influence(model, draws),
    ):
        with pytest.raises(StreamError, match="has changed"):
            reads()


@pytest.mark.parametrize("how", ["gone", "rewritten"])
def test_chunks_of_zarr_that_change_are_an_error(how, tmp_path):
    """zarr itself reads a chunk that is gone as the fill value."""
    data = of_zarr(tmp_path)
    chunk = tmp_path / "rows.zarr" / "x" / "c" / "5"
    if how == "gone":
        chunk.unlink()
    else:
        zarr.open_array(tmp_path / "rows.zarr" / "x", mode="r+")[46] = 7.0
    data.source.part(0, 0, 40), data.take(jnp.array([3, 17]))
    with pytest.raises(StreamError, match=r"c/5.*(cannot be read|has changed)"):
        list(data.blocks())
    with pytest.raises(StreamError, match="c/5"):
        model_of(data).check_additivity(make_draws(), model_of(data).change(remove=[46]), samples=1)


def test_a_file_of_h5py_that_changes_is_an_error(tmp_path):
    of_h5py(tmp_path)
    with h5py.File(tmp_path / "rows.h5", "r") as file:
        data = pe.stream(dict(file.items()), block_rows=BLOCK)
        (tmp_path / "rows.h5").touch()
        with pytest.raises(StreamError, match=r"rows\.h5.*has changed"):
            list(data.blocks())


def test_series_of_pandas_are_read_by_position():
    columns = make_columns()
    labelled = {name: pd.Series(values, index=np.arange(ROWS)[::-1]) for name, values in columns.items()}
    data = pe.stream(labelled, block_rows=BLOCK)
    np.testing.assert_allclose(data.take(jnp.array([3, 17]))["x"], columns["x"][[3, 17]], rtol=1e-6)


def test_a_file_with_a_single_number_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array(3.0))
    with pytest.raises(DataError, match="single number"):
        pe.stream(tmp_path / "x.npy")


def test_zarr_and_parquet_files_that_are_gone_are_an_error(tmp_path):
    model = model_of(of_zarr(tmp_path))
    (tmp_path / "rows.zarr" / "x" / "zarr.json").unlink()
    with pytest.raises(StreamError, match=r"zarr\.json"):
        pe.Reweight()(0, model, make_draws(), model.change(remove=[3]))
    model = model_of(of_parquet(tmp_path))
    (tmp_path / "rows.parquet").unlink()
    with pytest.raises(StreamError, match=r"rows\.parquet"):
        pe.Reweight()(0, model, make_draws(), model.change(remove=[3]))


def test_a_broken_chunk_is_an_error_that_names_rows_and_array(tmp_path):
    of_zarr(tmp_path)
    chunk = tmp_path / "rows.zarr" / "x" / "c" / "5"
    chunk.write_bytes(chunk.read_bytes()[:7])
    data = pe.stream(tmp_path / "rows.zarr", block_rows=BLOCK)
    with pytest.raises(StreamError, match=r"rows 40 to 59 of data\['x'\] cannot be read"):
        list(data.blocks())
    model = model_of(data)
    with pytest.raises(StreamError, match=r"rows of data\['x'\] cannot be read"):
        model.check_additivity(make_draws(), model.change(remove=[3]), samples=1)


def test_nan_is_refused_where_it_is_first_read_and_named_by_its_row(tmp_path):
    paths = mapped(tmp_path)
    x = make_columns()["x"]
    x[77] = np.nan
    np.save(paths["x"], x)
    model = model_of(pe.stream(paths, block_rows=BLOCK))
    with pytest.raises(DataError, match=r"data\['x'\] is NaN at \[77\]"):
        model.check_additivity(make_draws(), model.change(remove=[3]), samples=1)
    with pytest.raises(DataError, match=r"data\['x'\] is NaN at \[77\]"):
        pe.Reweight()(0, model, make_draws(), model.change(remove=[5, 77]))


def test_what_cannot_be_streamed_is_refused_before_any_work(tmp_path):
    paths = mapped(tmp_path)
    of_parquet(tmp_path)
    (tmp_path / "x.txt").write_text("1 2 3")
    (tmp_path / "x.parquet").write_text("1 2 3")
    for source, kind, said in (
        ({**paths, "z": np.zeros(7)}, DataError, r"103 rows and data\['z'\] has 7"),
        (tmp_path / "rows.parquet", DataError, "'name' .* is of type string"),
        (tmp_path / "nothing.npy", StreamError, "no file"),
        (tmp_path / "x.txt", DataError, "no file that can be streamed"),
        (tmp_path / "x.parquet", StreamError, "cannot be opened"),
        ({"y": np.array(["a", "b"])}, DataError, "not real numbers"),
        ({"y": np.float64(3)}, DataError, "single number"),
        ({"y": 3}, DataError, "a source is a int"),
        ({"y": np.zeros(1)}, DataError, "1 row"),
        ({}, DataError, "no arrays"),
    ):
        with pytest.raises(kind, match=said):
            pe.stream(source)
    with pytest.raises(DataError, match="no column 'w'"):
        pe.stream(tmp_path / "rows.parquet", columns=["w"])
    with pytest.raises(InvalidOptionError, match="block_rows is 0"):
        pe.stream({"y": np.zeros(3)}, block_rows=0)


def test_what_needs_all_rows_at_once_is_refused(tmp_path):
    data = of_npy(tmp_path)
    with pytest.raises(DataError, match="masked model"):
        pe.MaskedModel(lambda p, d, present: -0.5 * p["w"] @ p["w"], data)
    with pytest.raises(UnsupportedModelError, match="stream"):
        pe.metrics.forget_sets(0, model_of(data), make_draws(), 3)


def test_missing_values_of_parquet_are_refused(tmp_path):
    table = pyarrow.table({"y": pyarrow.array([1.0, 2.0, None, 4.0])})
    pyarrow.parquet.write_table(table, tmp_path / "y.parquet")
    with pytest.raises(DataError, match="y has no value in some of the rows from 0 on"):
        list(pe.stream(tmp_path / "y.parquet").blocks())


def test_digests_of_streams_see_a_changed_value(tmp_path):
    paths = mapped(tmp_path)

    def digests():
        model = model_of(pe.stream(paths, block_rows=BLOCK))
        return digest(model), data_digest(model, make_draws())

    first = digests()
    assert digests() == first
    x = make_columns()["x"]
    x[50] += 1
    np.save(paths["x"], x)
    assert all(now != was for now, was in zip(digests(), first, strict=True))


# --- memory


MEASURE = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
import posterase as pe
from posterase.metrics.forget_sets import row_influence
from benchmarks.memory import status

path, kind = sys.argv[1:]
x = pe.stream(path)

def make(data):
    def log_likelihood(p, rows):
        mean = sum(leaf.reshape(len(leaf), -1).mean(axis=1) for leaf in jax.tree.leaves(rows))
        return -0.5 * (8 * mean - p["m"]) ** 2 * jnp.exp(-2 * p["s"]) - p["s"]
    return pe.Model(lambda p: -0.5 * (p["m"] ** 2 + p["s"] ** 2), log_likelihood, data)

rng = np.random.default_rng(1)
draws = pe.Draws({name: (rng.normal(size=(4, 64)) * x.n_rows ** -0.5).astype(np.float32) for name in "ms"})
small = make(pe.stream(jax.tree.map(lambda leaf: leaf[:1000], next(x.blocks()))))
pe.Transport()(0, small, draws, small.change(remove=np.arange(100)))  # what jax itself takes is not the data's
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
data = pe.stream(path) if kind == "stream" else jax.tree.map(lambda *parts: np.concatenate(parts), *x.blocks())
model = make(data)
pe.Transport()(0, model, draws, model.change(remove=np.arange(100)))
held, masks = (status("VmHWM") - before) * 2**20 / x.block_bytes, 8 * x.n_rows / x.block_bytes
print(json.dumps({"blocks": held, "data": x.n_blocks, "of masks": masks}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("kind", ["npy", "zarr", "parquet"])
def test_transport_holds_fewer_than_ten_blocks_of_thirty(kind, tmp_path):
    """And eight bytes a row. The twin, with the same rows in memory, holds them all."""
    path = tmp_path / f"x.{kind}"
    x = np.random.default_rng(0).normal(size=(2**17 * 15, 64)).astype(np.float32)
    if kind == "npy":
        np.save(path, x)
    elif kind == "zarr":
        zarr.create_array(path, data=x, chunks=(2**14, 64))
    else:
        table = pyarrow.table({f"x{i}": x[:, 8 * i : 8 * i + 8].ravel() for i in range(8)})
        pyarrow.parquet.write_table(table, path, row_group_size=2**17)
        del table
    del x
    found = {}
    for way in ("stream", "memory") if kind == "npy" else ("stream",):
        done = subprocess.run([sys.executable, "-c", MEASURE, str(path), way], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found[way] = json.loads(done.stdout.splitlines()[-1])
    assert found["stream"]["data"] >= 29
    assert found["stream"]["blocks"] < MOST_BLOCKS + found["stream"]["of masks"]
    if kind == "npy":
        assert found["memory"]["blocks"] > found["memory"]["data"]


# --- the docs


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path):
    page = (ROOT / "docs/large-data.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "accepted by" in done.stdout
