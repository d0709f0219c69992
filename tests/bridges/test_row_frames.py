"""Data frames and labels that name rows: people, counties and dates that the model never reads."""

import re

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from arviz_base import from_dict

import posterase as pe
from posterase.bridges.shared.group_labels import find_group_labels, stem_of
from posterase.bridges.shared.row_frames import read_frames, with_frames
from posterase.data.selection import Block, RowTable
from posterase.errors import (
    AmbiguousRowsError,
    DataChangedError,
    DataError,
    EmptyRemovalError,
    InvalidTypeError,
    RowsError,
)
from tests.oracles import LinearRegression

ORACLE = LinearRegression.make()
N = ORACLE.n_rows
FIRM = np.array(["IBM", "Zoë & Söhne", "名古屋", "Acme"])[np.arange(N) % 4]
DAY = pd.date_range("2024-01-01", periods=N, freq="D")
FRAME = pd.DataFrame(
    {
        "firm": FIRM,
        "day": DAY,
        "branch": pd.Categorical(np.where(np.arange(N) < 7, "north", "south")),
        "score": pd.array([None, *range(1, N)], dtype="Int64"),
        "vip": pd.array([True, None, *[False] * (N - 2)], dtype="boolean"),
        "date": [each.date() for each in DAY],
        "when": DAY.tz_localize("Europe/Berlin"),
        "month": DAY.to_period("M"),
        "note": ["late", None, *["on time"] * (N - 2)],
    },
    index=pd.Index([f"person {i}" for i in range(N)], name="person"),
)
TABLE = RowTable((Block("obs", N, ("y",), {"y": ORACLE.y}),))


def table(frame, blocks=TABLE):
    return with_frames(blocks, read_frames(frame))


@pytest.mark.parametrize(
    ("rows", "ids"),
    [
        ({"firm": "IBM"}, np.arange(0, N, 4)),
        ({"firm": "名古屋"}, np.arange(2, N, 4)),
        ("firm == 'Zoe\u0308 & So\u0308hne'", np.arange(1, N, 4)),  # accents apart from their letters
        ('day >= "2024-02-28"', np.arange(58, N)),
        ('date < "2024-01-03"', [0, 1]),
        ('when == "2024-01-05"', [4]),
        ('month == "2024-02-01"', np.arange(31, 60)),
        ({"branch": "north"}, np.arange(7)),
        ("score < 3", [1, 2]),
        ("vip == True", [0]),
        ("note != 'on time' and score > 0", [1]),
        ("note == 'late'", [0]),
        ({"person": ["person 5", "person 3"]}, [3, 5]),
        (["person 5"], [5]),
        (FRAME["firm"] == "Acme", np.arange(3, N, 4)),
        ((FRAME["firm"] == "Acme").sample(frac=1, random_state=0), np.arange(3, N, 4)),
    ],
    ids=str,
)
def test_rows_by_columns_of_a_frame(rows, ids):
    found = table(FRAME).select(rows)
    np.testing.assert_array_equal(np.flatnonzero(found) if found.dtype == bool else np.sort(found), ids)


class Polars:
    """The face of another library's data frame."""

    columns = ("firm", "day")

    def __getitem__(self, name):
        return {"firm": FIRM.astype(object), "day": DAY.to_numpy()}[name]


@pytest.mark.parametrize("frame", [{"firm": FIRM}, {"firm": list(FIRM)}, Polars(), FRAME["firm"], {"obs": FRAME}])
def test_kinds_of_frames(frame):
    np.testing.assert_array_equal(table(frame).select({"firm": "IBM"}), np.arange(0, N, 4))


def test_levels_of_an_index_are_columns():
    several = FRAME.reset_index().set_index(["firm", "person"])
    np.testing.assert_array_equal(table(several).select({"firm": "IBM", "person": "person 8"}), [8])
    unnamed = table(FRAME.reset_index(drop=True))
    np.testing.assert_array_equal(unnamed.select("index == 3"), [3])
    np.testing.assert_array_equal(unnamed.select([3]), [3])  # numbers from 0 are the rows' own
    with pytest.raises(RowsError, match="'index == 3' for the label"):
        table(FRAME.set_index(pd.Index(np.arange(1, N + 1)))).select([3])


def test_several_axes_of_rows():
    two = RowTable((Block("home", N, ("y",)), Block("visit", 3, ("z",))))
    np.testing.assert_array_equal(table(FRAME, two).select({"firm": "IBM"}), np.arange(0, N, 4))
    both = table({"home": FRAME, "visit": {"firm": ["IBM", "IBM", "Acme"]}}, two)
    np.testing.assert_array_equal(both.select({"firm": "IBM"}), [*range(0, N, 4), N, N + 1])
    alike = RowTable((Block("home", 3, ("y",)), Block("visit", 3, ("z",))))
    with pytest.raises(AmbiguousRowsError, match=re.escape("frame={'home': df}")):
        table({"firm": ["a", "b", "c"]}, alike)
    with pytest.raises(AmbiguousRowsError, match="not an axis of rows"):
        table({"county": {"firm": ["a", "b", "c"]}}, alike)
    with pytest.raises(AmbiguousRowsError, match="two frames"):
        table({"home": {"firm": ["a", "b", "c"]}, "y": {"firm": ["a", "b", "c"]}}, alike)
    with pytest.raises(DataError, match="2 rows; the model has 3 along 'home'"):
        table({"home": {"firm": ["a", "b"]}}, alike)


@pytest.mark.parametrize(
    ("frame", "error", "said"),
    [
        (FRAME.iloc[:-1], DataError, f"frame has {N - 1} rows; the model has {N} along 'obs'"),
        (pd.concat([FRAME, FRAME[["firm"]]], axis=1), DataError, "two columns called 'firm'"),
        (FRAME.assign(person=1), DataError, "two columns called 'person' (one is its index)"),
        (FRAME.assign(**{"1": 0}).assign(other=0).rename(columns={"other": 1}), DataError, "two columns called '1'"),
        ({"a": np.zeros(N), "b": np.zeros(3)}, DataError, "different lengths: 'a' 60, 'b' 3"),
        ({"a": np.zeros((N, 2))}, DataError, "has 2 axes"),
        ({}, DataError, "no columns"),
        ("people.csv", InvalidTypeError, "frame is a str"),
        (np.zeros(N), InvalidTypeError, "frame is a ndarray"),
        ({"y": ORACLE.y[::-1]}, DataChangedError, "'y' of frame holds the values of the model's 'y' in another order"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_frames_that_describe_no_rows(frame, error, said):
    with pytest.raises(error, match=re.escape(said)):
        table(frame)


def test_other_persons_are_never_suggested():
    for rows in (
        {"person": "person 555"},
        "person == 'persn 5'",
        ["person 600"],
        {"firm": "IBMM"},
        "day == '1999-01-01'",
    ):
        with pytest.raises(EmptyRemovalError) as error:
            table(FRAME).select(rows)
        told = f"{error.value.problem} {error.value.advice}"
        assert not re.search(r"did you mean|person \d{1,2}\b|IBM\b", told)
    with pytest.raises(RowsError, match="did you mean 'person'"):
        table(FRAME).select("persn == 3")  # names of columns are nobody's data


# --- through bridges


def reweighted(model, draws, rows):
    return pe.erase(model, draws, rows, methods=[pe.Reweight()], policy=pe.Policy(ess=50.0), random_seed=0)


def test_a_frame_is_not_in_what_comes_out(tmp_path):
    beta = ORACLE.sample(np.arange(N), (4, 500), seed=1)["beta"]
    likelihood = -0.5 * ((ORACLE.y - beta @ ORACLE.X.T) / ORACLE.noise) ** 2
    tree = from_dict(
        {"posterior": {"beta": beta}, "log_likelihood": {"y": likelihood}, "observed_data": {"y": ORACLE.y}}
    )
    model, draws = pe.from_arviz(tree, frame=FRAME)
    result = reweighted(model, draws, {"person": "person 5"})
    assert result.n_removed == 1
    path = result.draws.save(tmp_path / "kept.nc")
    raw = path.read_bytes()
    assert not any(name in raw for name in (b"person 5", b"person 6", b"IBM", b"north"))
    (block,) = result.draws.container.table.blocks
    assert "person 5" not in set(block.frame["person"])
    assert block.frame["firm"][5] in ("", None)
    assert np.isnat(block.frame["day"][5])
    with pytest.raises(EmptyRemovalError):
        result.erase({"person": "person 5"})
    assert result.erase({"person": "person 6"}, methods=[pe.Reweight()]).n_removed == 1
    with pytest.raises(DataError, match="frame has 3 rows"):
        pe.from_arviz(tree, frame=FRAME.iloc[:3])


def test_a_frame_beside_a_log_density():
    data = {"X": ORACLE.X, "y": ORACLE.y}
    model = ORACLE.model()
    states = pe.Draws(ORACLE.sample(np.arange(N), (4, 500), seed=1))
    pair = pe.from_blackjax(model.log_prior, model.log_likelihood, data, states, frame=FRAME, preprocessing="none")
    result = reweighted(*pair, 'day >= "2024-02-28" and firm == "Acme"')
    assert result.n_removed == 1
    assert result.erase({"firm": "IBM"}, methods=[pe.Reweight()]).n_removed == 15
    with pytest.raises(DataError, match="frame has 3 rows"):
        pe.from_blackjax(model.log_prior, model.log_likelihood, data, states, frame=FRAME.iloc[:3])


# --- labels of groups that are numbered


@pytest.mark.parametrize(
    ("names", "stem"),
    [
        (["firm_idx", "firms", "firm_id", "firm", "idx_firm", "FirmIndex"], "firm"),
        (["county_code", "counties"], "county"),
        (["class_no", "class", "classes"], "class"),
        (["bus"], "bus"),
    ],
)
def test_names_of_numbered_groups(names, stem):
    assert {stem_of(name) for name in names} == {stem}


def tree_of(columns, coords, of_rows=None):
    """A fit with one effect per firm, whose rows have these columns.

    The weights without a quarter of the rows select 2 % of the draws: there must be enough of them.
    """
    beta = ORACLE.sample(np.arange(N), (4, 2000), seed=1)["beta"]
    likelihood = -0.5 * ((ORACLE.y - beta @ ORACLE.X.T) / ORACLE.noise) ** 2
    sample = {"chain": np.arange(4), "draw": np.arange(2000)}
    effects = np.random.default_rng(0).normal(size=(4, 2000, 4))
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {"beta": (("chain", "draw", "term"), beta), "alpha": (("chain", "draw", "firm"), effects)},
                coords=sample | coords,
            ),
            "log_likelihood": xr.Dataset({"y": (("chain", "draw", "obs"), likelihood)}, coords=sample),
            "constant_data": xr.Dataset({name: ("obs", each) for name, each in columns.items()}, coords=of_rows),
        }
    )


NAMES = np.array(["Acme", "IBM", "Zoë", "名古屋"], object)
CODES = np.arange(N) % 4


@pytest.mark.parametrize("kind", ["memory", "netcdf", "zarr"])
def test_labels_of_index_variables(kind, tmp_path):
    tree = tree_of({"firm_idx": CODES}, {"firm": NAMES})
    if kind == "netcdf":
        tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    elif kind == "zarr":
        tree.to_zarr(tmp_path / "fit.zarr", consolidated=False)
    source = {"memory": tree, "netcdf": tmp_path / "fit.nc", "zarr": tmp_path / "fit.zarr"}[kind]
    model, draws = pe.from_arviz(source, var_names=["beta"])
    select = draws.container.table.select
    for rows in ({"firm": "IBM"}, {"firm_idx": "IBM"}, {"firm_idx": 1}, "firm == 'IBM'", "firm in ['IBM']"):
        np.testing.assert_array_equal(select(rows), np.arange(1, N, 4))
    np.testing.assert_array_equal(select({"firm": ["Zoë", "名古屋"]}), np.flatnonzero(CODES > 1))
    result = reweighted(model, draws, {"firm": "名古屋"})
    assert "名古屋" not in str(result.draws.container.table.blocks[0].columns["firm"].tolist())
    with pytest.raises(EmptyRemovalError):
        result.erase({"firm": "名古屋"})


def test_labels_of_rows_in_several_levels(tmp_path):
    index = pd.MultiIndex.from_arrays([NAMES[CODES], DAY], names=["firm", "day"])
    tree = tree_of({"x": ORACLE.y}, {}, xr.Coordinates.from_pandas_multiindex(index, "obs"))
    for source in (tree, tmp_path / "fit.nc"):
        _, draws = pe.from_arviz(source if source is tree else _flat(tree, source), var_names=["beta"])
        select = draws.container.table.select
        np.testing.assert_array_equal(select({"firm": "IBM"}), np.arange(1, N, 4))
        np.testing.assert_array_equal(select("firm == 'IBM' and day < '2024-01-09'"), [1, 5])


def _flat(tree, path):
    """Written as xarray can write it: an index of several levels has no netCDF form."""
    flat = {name: child.to_dataset() for name, child in tree.children.items()}
    flat["constant_data"] = flat["constant_data"].reset_index("obs")
    xr.DataTree.from_dict(flat).to_netcdf(path, engine="h5netcdf")
    return path


def found(columns, coords, first=0):
    group = xr.Dataset({name: (("chain", "draw", name), np.zeros((1, 1, len(each)))) for name, each in coords.items()})
    return find_group_labels(columns, [group.assign_coords(coords)], ["obs"], first)


def test_columns_that_number_groups():
    teams = {"team": np.array(["A", "B", "C"])}
    home, away = np.array([0, 1, 2]), np.array([1, 2, 0])
    named = found({"home_team_idx": home, "away_team_idx": away}, teams).columns
    assert {name: each.tolist() for name, each in named.items()} == {
        "home_team": ["A", "B", "C"],
        "away_team": ["B", "C", "A"],
    }
    assert found({"team_idx": home, "team_id": away}, teams).columns == {}  # nobody knows which is meant
    assert found({"steam": home}, teams).columns == {}
    assert found({"team_idx": home + 1}, teams).columns == {}
    assert found({"team": home + 1}, teams, first=1).of_numbers["team"].tolist() == ["A", "B", "C"]
    years = {"year": np.array([2001, 2002, 2003])}
    assert found({"year_idx": home}, years).columns["year"].tolist() == [2001, 2002, 2003]
    assert found({"year_idx": np.array([1, 2, 2])}, {"year": np.array([1, 2, 3])}).columns == {}
    assert found({"x": home}, {"x": np.arange(3)}).columns == {}


def test_labels_through_numpyro():
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions as dist

    def model(firm, y):
        with numpyro.plate("firm", 4):
            alpha = numpyro.sample("alpha", dist.Normal(0, 1))
        with numpyro.plate("obs", len(y)):
            numpyro.sample("y", dist.Normal(alpha[firm], 1), obs=y)

    given = {"alpha": np.random.default_rng(0).normal(size=(4, 200, 4))}
    arguments = {"firm": jnp.asarray(CODES), "y": jnp.asarray(ORACLE.y)}
    _, draws = pe.from_numpyro(model, draws=given, coords={"firm": NAMES}, frame=FRAME[["day"]], **arguments)
    select = draws.container.table.select
    np.testing.assert_array_equal(select({"firm": "IBM"}), np.arange(1, N, 4))
    np.testing.assert_array_equal(select({"firm": 1}), np.arange(1, N, 4))
    np.testing.assert_array_equal(select('firm == "IBM" and day < "2024-01-09"'), [1, 5])
    with pytest.raises(DataError, match=f"the model has {N} along 'obs'"):
        pe.from_numpyro(model, draws=given, frame=FRAME.iloc[:5], **arguments)
    with pytest.raises(DataError, match="two columns"):
        pe.from_numpyro(None, draws=given, frame=FRAME.assign(person=1), **arguments)


def test_labels_through_pymc():
    pm = pytest.importorskip("pymc")
    with pm.Model(coords={"firm": NAMES, "obs": np.arange(N)}) as model:
        firm = pm.Data("firm_idx", CODES, dims="obs")
        alpha = pm.Normal("alpha", 0, 1, dims="firm")
        pm.Normal("y", alpha[firm], 1, observed=ORACLE.y, dims="obs")
    posterior = {"alpha": np.random.default_rng(0).normal(size=(4, 200, 4))}
    tree = from_dict({"posterior": posterior}, coords={"firm": NAMES}, dims={"alpha": ["firm"]})
    _, draws = pe.from_pymc(model, tree, frame=FRAME)
    select = draws.container.table.select
    np.testing.assert_array_equal(select({"firm_idx": "IBM"}), np.arange(1, N, 4))
    np.testing.assert_array_equal(select({"branch": "north"}), np.arange(7))
    _, draws = pe.from_pymc(model, tree)
    np.testing.assert_array_equal(draws.container.table.select({"firm": "IBM"}), np.arange(1, N, 4))
