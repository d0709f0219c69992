"""Files by ArviZ's schema and nothing else: weights from stored log-likelihoods, and what may come out again."""

import gc
import struct
import subprocess
import sys
import weakref

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import posterase as pe
from posterase.bridges.shared.groups import with_groups
from posterase.cli.exit_status import ERROR, REFUSED, STOPPED
from posterase.cli.main import app, main
from posterase.draws import io
from posterase.errors import AmbiguousRowsError
from tests.oracles import LinearRegression

ORACLE = LinearRegression.make()
N = ORACLE.n_rows
EVERYONE = np.arange(N)
PERSON = EVERYONE // 2
REMOVED = np.array([34, 35])  # person 17
KEPT = np.setdiff1d(EVERYONE, REMOVED)
SHAPE = (4, 500)

PLANTED = 98765.4321
NAME = "PLANTED-17"


def log_likelihood(beta):
    return -0.5 * ((ORACLE.y - beta @ ORACLE.X.T) / ORACLE.noise) ** 2


@pytest.fixture(scope="module")
def beta():
    return ORACLE.sample(EVERYONE, SHAPE, seed=1)["beta"]


def tree_of(beta, dim="obs", **more):
    """The least that is enough, and more."""
    coords = {"chain": np.arange(4), "draw": np.arange(SHAPE[1])}
    posterior = xr.Dataset({"beta": (("chain", "draw", "term"), beta)}, coords=coords)
    likelihood = xr.Dataset({"y": (("chain", "draw", dim), log_likelihood(beta))}, coords=coords)
    return xr.DataTree.from_dict({"posterior": posterior, "log_likelihood": likelihood, **more})


def planted_tree(beta):
    """A fit in which person 17's rows, and whatever else may speak of them, hold values that are nowhere else."""
    values = {name: np.random.default_rng(i).normal(size=N) for i, name in enumerate(["y", "x", "z"])}
    for each in values.values():
        each[REMOVED] = PLANTED
    two = np.column_stack([values["x"], values["z"]])
    labels = np.array([f"row {i}" for i in EVERYONE], object)
    labels[REMOVED] = NAME
    coords = {"obs": labels}
    draws = {"chain": np.arange(4), "draw": np.arange(SHAPE[1])}
    of_draws = np.random.default_rng(3).normal(size=(*SHAPE, N))
    of_draws[..., REMOVED] = PLANTED
    likelihood = log_likelihood(beta)
    dims = ("chain", "draw", "obs")
    group = lambda data, **labels: xr.Dataset(data, coords=labels, attrs={"note": NAME})  # noqa: E731
    tree = tree_of(
        beta,
        observed_data=group({"y": ("obs", values["y"], {"about": NAME}), "total": ((), PLANTED)}, **coords),
        constant_data=group(
            {
                "x": ("obs", values["x"]),
                "both": (("obs", "column"), two),
                "turned": (("column", "obs"), two.T),
                "person": ("obs", PERSON.astype(float)),
                "term_scale": ("term", np.ones(3)),
                "unnamed": ("unnamed_dim_0", values["z"]),
                "odds": ("odd", np.full(7, PLANTED)),
                "elsewhere": ("observation", values["x"]),
                "distances": (("obs", "obs2"), np.where(np.isin(EVERYONE, REMOVED), PLANTED, np.ones((N, N)))),
                "age": ("who", np.where(np.arange(30) == 17, PLANTED, 1.0)),
                "who_index": ("obs", PERSON),
            },
            **coords,
            name_of=((), NAME),
        ),
        posterior_predictive=group({"y": (dims, of_draws)}, **coords, **draws),
        prior_predictive=group({"y": (dims, of_draws[:, :5])}, **coords),
        prior=group({"beta": (("chain", "draw", "term"), np.ones((1, 5, 3)))}),
        sample_stats=group({"lp": (("chain", "draw"), np.full(SHAPE, PLANTED))}, **draws),
        predictions=group({"y": (("chain", "draw", "new"), np.full((*SHAPE, 2), PLANTED))}),
        warmup_posterior=group({"beta": (("chain", "draw", "term"), np.full((4, 3, 3), PLANTED))}),
    )
    posterior = tree["posterior"].to_dataset()
    more = {
        "effect": (dims, of_draws),
        "fitted": (("chain", "draw", "fitted_dim_0"), of_draws),
        "step": (("chain", "draw"), np.ones(SHAPE, int)),
    }
    people = np.array([f"person {i}" for i in range(30)], object)
    people[17] = NAME
    more["alpha"] = (("chain", "draw", "who"), np.random.default_rng(4).normal(size=(*SHAPE, 30)))
    posterior = posterior.assign(more).assign_coords(
        obs=labels, whose=NAME, who=people, term=("term", list("abc"), {"note": NAME}), extra=("k", [NAME, NAME])
    )
    posterior["chain"].attrs["note"] = NAME
    tree["posterior"] = xr.DataTree(posterior.assign_attrs(note=NAME, number=PLANTED))
    tree["log_likelihood"] = xr.DataTree(group({"y": (dims, likelihood, {"about": NAME})}, **coords, **draws))
    tree.attrs["note"] = NAME
    return tree


def found_in(path):
    """Everywhere in a file that the planted values are: in variables, attributes, and the bytes themselves."""
    places = []

    def look(name, value):
        array = np.asarray(value)
        if array.dtype.kind in "fiu":
            hit = bool(np.isclose(array.astype(float), PLANTED, rtol=1e-6).any())
        else:
            hit = NAME in str(array.tolist())
        if hit:
            places.append(name)

    def visit(name, item):
        for key, value in item.attrs.items():
            look(f"{name}@{key}", "" if isinstance(value, h5py.Reference) or value is None else _plain(value))
        if isinstance(item, h5py.Dataset):
            look(name, item.asstr()[()] if h5py.check_string_dtype(item.dtype) else item[()])

    with h5py.File(path) as file:
        visit("/", file)
        file.visititems(visit)
    raw = path.read_bytes()
    patterns = [NAME.encode(), struct.pack("<d", PLANTED), struct.pack("<f", PLANTED)]
    places += [f"bytes: {pattern!r}" for pattern in patterns if pattern in raw]
    return places


def _plain(value):
    return "" if getattr(value, "dtype", None) is not None and value.dtype.kind in "OV" else value


def test_what_comes_out_does_not_hold_the_person(beta, tmp_path):
    planted_tree(beta).to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    assert len(found_in(tmp_path / "fit.nc")) > 25  # the scan sees what is there
    model, draws = pe.from_arviz(tmp_path / "fit.nc")
    result = pe.erase(model, draws, rows="person == 17")
    assert result.n_removed == 2
    result.draws.save(tmp_path / "kept.nc")
    shape = result.draws.n_chains, result.draws.n_draws
    assert shape[1] < SHAPE[1]  # a subset
    assert found_in(tmp_path / "kept.nc") == []
    told = " ".join(map(str, result.verdict.notes))
    for name in ("sample_stats", "predictions", "warmup_posterior", "total of observed_data", "odds of constant_data"):
        assert name in told
    with xr.open_datatree(tmp_path / "kept.nc", engine="h5netcdf") as tree:
        groups = {"posterior", "observed_data", "constant_data", "prior", "prior_predictive", "log_likelihood"}
        assert set(tree.children) == groups | {"posterior_predictive"}
        assert tree["observed_data"]["obs"].values.tolist() == [f"row {i}" for i in KEPT]
        cut = {"x", "both", "turned", "person", "unnamed", "elsewhere", "distances", "who_index"}
        assert set(tree["constant_data"].data_vars) == cut | {"term_scale", "age"}
        assert tree["constant_data"]["distances"].shape == (N - 2, N - 2)
        assert tree["posterior"]["alpha"].shape == (*shape, 29)
        assert tree["constant_data"]["turned"].shape == (2, N - 2)
        expected = log_likelihood(np.asarray(tree["posterior"]["beta"]))[..., KEPT]
        np.testing.assert_allclose(tree["log_likelihood"]["y"], expected, rtol=1e-2, atol=1e-4)
        assert tree["posterior"]["effect"].shape == (*shape, N - 2)


def test_nothing_is_left_in_memory(beta):
    model, draws = pe.from_arviz(planted_tree(beta))
    result = pe.erase(model, draws, rows=REMOVED)
    container = result.draws.container
    everything = [*container.groups.values(), container.companions, result.before.labels.coords]
    for group in everything:
        assert NAME not in str({name: values.values.tolist() for name, values in group.variables.items()})
        assert NAME not in str(group.attrs)
    for block in container.table.blocks:
        assert NAME not in str({name: values.tolist() for name, values in block.columns.items()})
    for draws in (result.before, result.draws):
        assert NAME not in str(draws.labels.coords)
        assert not any(np.isclose(leaf, PLANTED).any() for leaf in draws.params.values())
    block = result.model.blocks[0]
    assert block.rows.tolist() == KEPT.tolist()
    chosen = np.asarray(draws.params["beta"])
    np.testing.assert_allclose(block.variables[0].values, log_likelihood(chosen)[..., KEPT], rtol=1e-2, atol=1e-4)


def test_nothing_is_remembered_of_stored_likelihoods(beta):
    model, draws = pe.from_arviz(planted_tree(beta))
    kept = pe.erase(model, draws, rows=REMOVED).draws
    block = weakref.ref(model.blocks[0])
    del model, draws, kept
    gc.collect()
    assert block() is None


# --- weights


@pytest.mark.parametrize("kind", ["netcdf", "zarr", "tree", "inference data"])
def test_stored_likelihoods_give_the_models_weights(beta, tmp_path, kind):
    tree = tree_of(beta)
    if kind == "netcdf":
        tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
        source = tmp_path / "fit.nc"
    elif kind == "zarr":
        tree.to_zarr(tmp_path / "fit.zarr", consolidated=False)
        source = tmp_path / "fit.zarr"
    else:
        source = tree if kind == "tree" else InferenceData(tree)
    model, draws = pe.from_arviz(source)
    by_hand = ORACLE.model()
    exact = pe.Reweight()(0, by_hand, pe.Draws({"beta": beta}), by_hand.change(remove=REMOVED))
    stored = pe.Reweight()(0, model, draws, model.change(remove=REMOVED))
    np.testing.assert_allclose(stored.draws.log_weights, exact.draws.log_weights, atol=1e-4)
    assert stored.details.pareto_k == pytest.approx(exact.details.pareto_k, abs=1e-3)


class InferenceData:
    """The face of ArviZ's older container."""

    def __init__(self, tree):
        self._names = list(tree.children)
        for name in self._names:
            setattr(self, name, tree[name].to_dataset())

    def groups(self):
        return self._names


def test_a_piece_at_a_time_is_the_same(beta, tmp_path, monkeypatch):
    whole = pe.from_arviz(tree_of(beta))
    weights = pe.Reweight()(0, *whole, whole[0].change(remove=REMOVED)).draws.log_weights
    monkeypatch.setattr(io, "PIECE_ELEMENTS", 1000)
    model, draws = pe.from_arviz(tree_of(beta))
    result = pe.erase(model, draws, rows=REMOVED)
    np.testing.assert_array_equal(result.weighted_draws.log_weights, weights)
    result.draws.save(tmp_path / "kept.nc")
    with xr.open_datatree(tmp_path / "kept.nc", engine="h5netcdf") as tree:
        kept = log_likelihood(np.asarray(tree["posterior"]["beta"]))[..., KEPT]
        np.testing.assert_allclose(tree["log_likelihood"]["y"], kept, rtol=1e-2, atol=1e-4)
        assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "obs")


def test_the_next_request_from_the_written_file(beta, tmp_path):
    model, draws = pe.from_arviz(tree_of(beta))
    first = pe.erase(model, draws, rows=[34, 35], random_seed=0)
    in_memory = first.erase(rows=[3]).weighted_draws
    first.draws.save(tmp_path / "kept.nc")
    model, draws = pe.from_arviz(tmp_path / "kept.nc")
    assert model.n_rows == N - 2
    again = pe.erase(model, draws, rows=[3]).weighted_draws
    np.testing.assert_allclose(again.weights, in_memory.weights, rtol=1e-4)


def test_axes_that_nobody_named_are_the_same_rows(beta):
    """CmdStan's names: `log_lik_dim_0`, `y_dim_0`."""
    tree = tree_of(beta, "log_lik_dim_0", observed_data=xr.Dataset({"y": ("y_dim_0", ORACLE.y)}))
    result = pe.erase(*pe.from_arviz(tree), rows=REMOVED)
    np.testing.assert_array_equal(result.draws.to_arviz()["observed_data"]["y"], ORACLE.y[KEPT])


def test_several_observed_variables(beta):
    """Two axes of rows; a condition on a column of both takes the person out of both."""
    likelihood = log_likelihood(beta)
    tree = tree_of(beta)
    group = tree["log_likelihood"].to_dataset().assign(calls=(("chain", "draw", "call"), likelihood[..., :10]))
    tree["log_likelihood"] = xr.DataTree(group)
    tree["constant_data"] = xr.DataTree(xr.Dataset(coords={"person": ("obs", PERSON)}))
    tree["observed_data"] = xr.DataTree(xr.Dataset(coords={"person": ("call", np.arange(10) + 10)}))
    model, draws = pe.from_arviz(tree)
    assert model.n_rows == N + 10
    assert pe.erase(model, draws, rows="person == 17").n_removed == 3
    both = pe.erase(model, draws, rows={"y": REMOVED, "calls": [7]})
    expected = -(likelihood[..., REMOVED].sum(-1) + likelihood[..., 7])
    raw = np.asarray(both.weighted_draws.log_weights)
    assert np.corrcoef(raw.ravel(), expected.ravel())[0, 1] > 0.99


def test_two_axes_of_rows_that_nobody_named(beta):
    """CmdStan with two log_liks: what is as long as one of them is cut with it."""
    likelihood = log_likelihood(beta)
    dims = ("chain", "draw")
    tree = tree_of(beta, "log_lik_dim_0")
    group = tree["log_likelihood"].to_dataset().assign(other=((*dims, "other_dim_0"), likelihood[..., :10]))
    tree["log_likelihood"] = xr.DataTree(group)
    tree["posterior"] = xr.DataTree(tree["posterior"].to_dataset().assign(fit=((*dims, "fit_dim_0"), likelihood)))
    result = pe.erase(*pe.from_arviz(tree), rows=REMOVED)
    assert result.draws.to_arviz()["posterior"]["fit"].shape == (SHAPE[0], result.draws.n_draws, N - 2)
    assert "taken for rows by their length: the axes fit_dim_0" in " ".join(map(str, result.verdict.notes))


def test_labels_of_several_levels(beta, tmp_path):
    index = pd.MultiIndex.from_arrays([PERSON, np.arange(N) % 2], names=["person", "visit"])
    tree = tree_of(beta)
    group = tree["log_likelihood"].to_dataset().assign_coords(xr.Coordinates.from_pandas_multiindex(index, "obs"))
    tree["log_likelihood"] = xr.DataTree(group)
    result = pe.erase(*pe.from_arviz(tree), rows={"person": 17})
    assert result.n_removed == 2
    result.draws.save(tmp_path / "kept.nc")
    assert 17 not in xr.open_datatree(tmp_path / "kept.nc", engine="h5netcdf")["log_likelihood"]["person"]


def test_only_weights_can_be_had(beta):
    model, draws = pe.from_arviz(tree_of(beta))
    with pytest.raises(pe.errors.NeedsDensityError, match="Transport needs"):
        pe.Transport()(0, model, draws, model.change(remove=[3]))
    with pytest.raises(pe.errors.DifferentModelError, match="beta is not as it was"):
        pe.Reweight()(0, model, draws.take(draws.ancestors(0)), model.change(remove=[3]))
    result = pe.erase(model, draws, rows=np.arange(40))
    assert not result.verdict.accepted
    assert "pe.from_numpyro" in result.verdict.advice
    assert [outcome.name for outcome in result.outcomes] == ["Reweight"]


# --- bad input


NINE = np.arange(2000).reshape(SHAPE) < 9


def without(tree, name):
    del tree[name]
    return tree


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            lambda tree: without(tree, "posterior"),
            pe.errors.InputFileError,
            "no group 'posterior'; there are log_lik",
        ),
        (lambda tree: without(tree, "log_likelihood"), pe.errors.InputFileError, "no group 'log_likelihood'"),
        (
            lambda tree: without(tree.assign({"warmup_posterior": tree["posterior"]}), "posterior"),
            pe.errors.DifferentModelError,
            "from the warm-up only",
        ),
        (
            lambda tree: tree.assign({"sample_stats": xr.DataTree(xr.Dataset({"tune": (("chain", "draw"), NINE)}))}),
            pe.errors.DifferentModelError,
            "9 of the draws",
        ),
        (
            lambda tree: tree.assign({"log_likelihood": xr.DataTree(tree["log_likelihood"].to_dataset().sum("obs"))}),
            pe.errors.AmbiguousRowsError,
            "summed over rows",
        ),
        (
            lambda tree: tree.assign(
                {"log_likelihood": xr.DataTree(tree["log_likelihood"].to_dataset().expand_dims(item=2, axis=-1))}
            ),
            pe.errors.AmbiguousRowsError,
            "'obs'.*'item'|'item'.*'obs'",
        ),
        (
            lambda tree: tree.assign(
                {"log_likelihood": xr.DataTree(tree["log_likelihood"].to_dataset().isel(draw=slice(9)))}
            ),
            pe.errors.DrawsShapeError,
            "4 chains × 9 draws",
        ),
        (
            lambda tree: tree.assign(
                {"log_likelihood": xr.DataTree(tree["log_likelihood"].to_dataset().isel(draw=0, drop=True))}
            ),
            pe.errors.DrawsShapeError,
            "needs a chain and a draw",
        ),
        (
            lambda tree: tree.assign({"posterior": xr.DataTree(tree["posterior"].to_dataset().astype(int))}),
            pe.errors.InvalidTypeError,
            "no real parameters",
        ),
        (lambda tree: 3, pe.errors.InvalidTypeError, "pass a netCDF file"),
        (lambda tree: "nowhere.nc", pe.errors.InputFileError, "there is no file"),
    ],
)
def test_trees_that_will_not_do(beta, change, error, said):
    with pytest.raises(error, match=said):
        pe.from_arviz(change(tree_of(beta)))


def test_the_axis_can_be_named(beta):
    tree = tree_of(beta)
    wide = tree["log_likelihood"].to_dataset().expand_dims(item=2, axis=-1) / 2
    tree["log_likelihood"] = xr.DataTree(wide)
    model, draws = pe.from_arviz(tree, row_dim="obs")
    whole = pe.from_arviz(tree_of(beta))
    np.testing.assert_allclose(
        model.stored_log_ratio(draws, model.change(remove=[3])),
        whole[0].stored_log_ratio(whole[1], whole[0].change(remove=[3])),
        rtol=1e-6,
    )


def test_files_of_other_kinds(tmp_path):
    (tmp_path / "draws.nc").write_text("chain,draw,beta\n")
    with pytest.raises(pe.errors.InputFileError, match="cannot be read as netCDF 4"):
        pe.from_arviz(tmp_path / "draws.nc")
    with pytest.raises(pe.errors.InputFileError, match="cannot be read as zarr"):
        pe.from_arviz(tmp_path)


def test_without_zarr(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(pe.errors.MissingExtraError, match=r"posterase\[zarr\]"):
        pe.from_arviz(tmp_path)


# --- the command line


@pytest.fixture
def fit(beta, tmp_path):
    planted_tree(beta).to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    return tmp_path / "fit.nc"


def run(*arguments):
    return CliRunner().invoke(app, ["erase", *map(str, arguments)])


def test_from_file_to_file(fit, tmp_path):
    out, verdict, report = (tmp_path / name for name in ("kept.nc", "verdict.json", "report.html"))
    files = ("--out", out, "--verdict", verdict, "--report", report)
    done = run(fit, "--rows", "person == 17", *files, "--preprocessing", "none")
    assert done.exit_code == 0, done.output
    assert "2 rows of 60: accepted by Reweight" in done.output
    assert found_in(out) == []
    assert '"accepted": true' in verdict.read_text()
    assert NAME not in verdict.read_text()
    assert "Accepted: 2 rows of 60" in report.read_text()
    assert NAME not in report.read_text()
    by_ids = run(fit, "--rows", "34-35", "--out", tmp_path / "again.nc")
    assert by_ids.exit_code == 0
    assert "preprocessing" in by_ids.output
    for path in (out, tmp_path / "again.nc"):
        model, draws = pe.from_arviz(path)
        assert model.n_rows == 58
        assert draws.log_weights is None


def ended(monkeypatch, *words):
    """The exit status that a shell sees."""
    monkeypatch.setattr("sys.argv", ["posterase", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_exit_statuses(fit, tmp_path, monkeypatch, capsys):
    out = ("--out", tmp_path / "kept.nc")
    assert ended(monkeypatch, "erase", fit, "--rows", "0-44", *out) == REFUSED == 2
    assert ended(monkeypatch, "erase", fit, "--rows", "person == 99", *out) == ERROR == 1
    assert ended(monkeypatch, "erase", fit, "--rwos", "3", *out) == ERROR
    said = capsys.readouterr().err
    assert "no row has" in said
    assert "--rows" in said
    assert "Traceback" not in said
    assert ended(monkeypatch, "erase", fit, "--rows", "3", *out) == 0
    assert ended(monkeypatch, "--version") == 0

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("posterase.projects.builders.from_arviz", interrupted)
    assert ended(monkeypatch, "erase", fit, "--rows", "3", "--out", tmp_path / "b.nc") == STOPPED == 130
    assert not (tmp_path / "b.nc").exists()


def test_a_refusal_writes_nothing(fit, tmp_path):
    done = run(fit, "--rows", "0-44", "--out", tmp_path / "kept.nc")
    assert done.exit_code == REFUSED
    assert "refused" in done.output
    assert not (tmp_path / "kept.nc").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rows", "person == 99"), "no row has"),
        (("--rows", "9-3"), "no row id"),
        (("--rows", "3", "--row-dim", "item"), "say which of them is the rows"),
    ],
)
def test_commands_that_mean_nothing(fit, tmp_path, arguments, said):
    done = run(fit, *arguments, "--out", tmp_path / "kept.nc")
    assert said in str(done.exception)
    assert not (tmp_path / "kept.nc").exists()


def test_nothing_is_overwritten_by_chance(fit, tmp_path):
    done = run(fit, "--rows", "3", "--out", fit)
    assert "already exists" in str(done.exception)
    assert run(fit, "--rows", "3", "--out", fit, "--force").exit_code == 0
    assert pe.from_arviz(fit)[0].n_rows == N - 1


def test_draws_of_a_bridge_of_ones_own_beside_their_data(beta):
    """Rows by a column of the data; what comes out is without them; remarks are in the verdict."""
    groups = {
        "observed_data": xr.Dataset({"y": ("visit", ORACLE.y)}),
        "constant_data": xr.Dataset({"person": ("visit", PERSON), "X": (("visit", "term"), ORACLE.X)}),
    }
    draws = with_groups(
        pe.Draws({"beta": beta}, dims={"beta": ["term"]}), groups, "visit", preprocessing="none", remarks=("so it is",)
    )
    result = pe.erase(ORACLE.model(), draws, rows="person == 17", methods=[pe.Reweight()])
    assert pe.Note("model", "so it is") in result.verdict.notes
    tree = result.draws.to_arviz()
    np.testing.assert_array_equal(tree["observed_data"]["y"], ORACLE.y[KEPT])
    np.testing.assert_array_equal(tree["constant_data"]["person"], PERSON[KEPT])
    with pytest.raises(AmbiguousRowsError, match="no group has an axis 'visits'"):
        with_groups(pe.Draws({"beta": beta}), groups, "visits")


@pytest.mark.slow
def test_four_thousand_draws_of_ten_thousand_rows(tmp_path):
    """In seconds, from file to file, never holding rows × draws (320 MB)."""
    code = """
import time, resource, numpy as np, xarray as xr, posterase as pe, h5netcdf, pathlib, sys
folder = pathlib.Path(sys.argv[1])
rng = np.random.default_rng(0)
with h5netcdf.File(folder / "fit.nc", "w") as file:
    file.dimensions = {}
    for name, shape in (("posterior", (4, 1000)), ("log_likelihood", (4, 1000, 10_000))):
        group = file.create_group(name)
        dims = ("chain", "draw", "obs")[: len(shape)]
        for dim, size in zip(dims, shape):
            group.dimensions[dim] = size
        values = group.create_variable("mu" if name == "posterior" else "y", dims, "f8")
        for chain in range(4):
            for start in range(0, 1000, 100):
                values[chain, start : start + 100] = 0.01 * rng.normal(size=(100, *shape[2:]))
pe.erase(*pe.from_arviz(xr.DataTree.from_dict({
    "posterior": xr.Dataset({"mu": (("chain", "draw"), rng.normal(size=(4, 1000)))}),
    "log_likelihood": xr.Dataset({"y": (("chain", "draw", "obs"), 0.01 * rng.normal(size=(4, 1000, 4)))})})), rows=[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
model, draws = pe.from_arviz(folder / "fit.nc")
result = pe.erase(model, draws, rows=np.arange(100))
result.draws.save(folder / "kept.nc")
taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(result.verdict.accepted, time.perf_counter() - start, taken)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    accepted, seconds, megabytes = done.stdout.split()
    assert accepted == "True"
    assert float(seconds) < 30
    assert float(megabytes) < 200
