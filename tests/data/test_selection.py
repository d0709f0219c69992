"""Rows as people name them, and what is refused of it."""

import re

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import posterase as pe
from posterase.data.leakage import lagged
from posterase.data.selection import Block, RowTable, blanked

COUNTY = np.array(["AITKIN", "ANOKA", "ANOKA", "BECKER", "AITKIN"])
FLOOR = np.array([0, 1, 0, 1, 1])
TABLE = RowTable(
    (
        Block("home", 5, ("radon",), {"home": np.array(list("abcde")), "county": COUNTY, "floor": FLOOR}),
        Block("visit", 3, ("blood",), {"person": np.array([17, 3, 17]), "county": np.array(["ANOKA", "X", "X"])}),
    )
)


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        ([3, 1], [3, 1]),
        ({"county": "ANOKA"}, [1, 2, 5]),
        ({"county": ["AITKIN", "BECKER"]}, [0, 3, 4]),
        ({"county": "ANOKA", "floor": 1}, [1]),
        ({"person": 17}, [5, 7]),
        ({"radon": [0, 4], "blood": np.array([False, True, False])}, [0, 4, 6]),
        ({"visit": [2]}, [7]),
        (["b", "e"], [1, 4]),
        ('county == "ANOKA"', [1, 2, 5]),
        ("county != 'ANOKA' and floor == 1", [3, 4]),
        ("floor < 1 or county in ['BECKER']", [0, 2, 3]),
        ("(floor == 1) & ~(county == 'ANOKA')", [3, 4]),
        ("not person > 3", [6]),
        ("visit == 2", [7]),
        ("visit > 0 and county == 'X'", [6, 7]),
        ({"visit": 1}, [6]),
        ("person not in [17]", [6]),
        (np.array([True, False, False, False, True]), [0, 4]),
        (xr.DataArray([False, True, True], dims="visit"), [6, 7]),
        (xr.DataArray(COUNTY, dims="home") == "ANOKA", [1, 2]),
        (pd.Series(COUNTY) == "BECKER", [3]),
        ({"home": np.array([False, True, False, False, True])}, [1, 4]),
        ({"floor": pd.Series([True, False, False, False, False])}, [0]),
        ({"floor": range(1)}, [0, 2]),
        ({"county": pd.Index(["BECKER"])}, [3]),
        (jnp.array([True, False, True]), [5, 7]),
        (xr.DataArray([True, False, False, False, False], dims="home", coords={"home": list("edcba")}), [4]),
        (pd.Series([True, False, False, False, False], index=list("edcba")), [4]),
        (pd.array([True, False, False, False, True], dtype="boolean"), [0, 4]),
    ],
    ids=str,
)
def test_selections(selection, ids):
    np.testing.assert_array_equal(TABLE.select(selection), ids)


@pytest.mark.parametrize(
    ("selection", "error", "said"),
    [
        ({"count": "ANOKA"}, pe.errors.RowsError, "did you mean 'county'"),
        ("count == 3", pe.errors.RowsError, "did you mean 'county'"),
        ({"county": "ANOK"}, pe.errors.EmptyRemovalError, "no row has county == 'ANOK'"),
        ("county == 'ANOK'", pe.errors.EmptyRemovalError, "check the spelling"),
        ("floor == 'one'", pe.errors.EmptyRemovalError, "no row has"),
        (["b", "z"], pe.errors.EmptyRemovalError, "the label 'z'"),
        ({}, pe.errors.EmptyRemovalError, "empty dict"),
        ("county", pe.errors.RowsError, "not a condition"),
        ("county ==", pe.errors.RowsError, "not a condition"),
        ("__import__('os').system('true')", pe.errors.RowsError, "not a condition"),
        ("county == open('x')", pe.errors.RowsError, "not a condition"),
        ("county.upper() == 'A'", pe.errors.RowsError, "not a condition"),
        ("person in 17", pe.errors.RowsError, "not a condition"),
        ("county < 3", pe.errors.RowsError, "compare text with text"),
        ("floor == 1 and person == 17", pe.errors.RowsError, "no observed variable has all of floor, person"),
        ({"radon": [7]}, pe.errors.RowsError, "ids from 0 to 4"),
        ({"radon": [True]}, pe.errors.RowsError, "'radon' has 5 rows"),
        (np.ones(4, bool), pe.errors.RowsError, "'home' 5, 'visit' 3"),
        ("floor == [0, 1]", pe.errors.RowsError, "not a condition"),
        ("not " * 3000 + "floor == 1", pe.errors.RowsError, "not a condition"),
        ([[1], [2, 3]], pe.errors.RowsError, "give row ids"),
        (pd.array([True, None, False, False, True], dtype="boolean"), pe.errors.RowsError, "missing values"),
        ({"radon": [1], "county": "ANOKA"}, pe.errors.RowsError, "mixes"),
    ],
    ids=str,
)
def test_selections_that_mean_nothing(selection, error, said):
    with pytest.raises(error, match=re.escape(said)):
        TABLE.select(selection)


def test_numbers_where_labels_are_other_numbers():
    """After an erasure was saved and read again: is row 10 the tenth, or the one called 10?"""
    table = RowTable((Block("obs", 4, columns={"obs": np.array([0, 1, 3, 4])}),))
    with pytest.raises(pe.errors.RowsError, match="'obs == 3' for the label"):
        table.select([3])
    np.testing.assert_array_equal(table.select("obs == 3"), [2])
    whole = RowTable((Block("obs", 4, columns={"obs": np.arange(4)}),)).without(np.array([True, False, True, True]))
    np.testing.assert_array_equal(whole.select([3]), [3])


def test_removed_rows_are_not_selected_again():
    table = TABLE.without(np.arange(8) != 1)
    np.testing.assert_array_equal(table.select("floor != 7"), [0, 2, 3, 4])
    np.testing.assert_array_equal(table.select("not county == 'X'"), [0, 2, 3, 4, 5])


def test_dates():
    days = np.array(["1970-01-02", "1970-01-03", "1970-01-04"], "datetime64[ns]")
    table = RowTable((Block("day", 3, columns={"day": days}),))
    for selection in ("day == '1970-01-03'", ["1970-01-03"], [pd.Timestamp("1970-01-03")], days[1:2]):
        np.testing.assert_array_equal(table.select(selection), [1])
    np.testing.assert_array_equal(table.select("day > '1970-01-02'"), [1, 2])


def test_labels_where_there_are_none():
    with pytest.raises(pe.errors.RowsError, match="have none"):
        RowTable((Block("row", 3),)).select(["a"])


@given(st.lists(st.integers(0, 4), min_size=5, max_size=5), st.integers(0, 4))
def test_a_condition_is_the_comparison(values, wanted):
    table = RowTable((Block("row", 5, columns={"x": np.array(values)}),))
    expected = np.flatnonzero(np.array(values) <= wanted)
    if len(expected):
        np.testing.assert_array_equal(table.select(f"x <= {wanted}"), expected)
    else:
        with pytest.raises(pe.errors.EmptyRemovalError):
            table.select(f"x <= {wanted}")


@pytest.mark.parametrize(
    "values",
    [
        np.arange(4.0),
        np.arange(4),
        np.array(list("abcd")),
        np.array(["a", 1, None, 2], object),
        np.arange(4) > 2,
        np.arange(4).astype("datetime64[D]"),
        np.arange(4).astype("uint8"),
        np.array([b"a", b"b", b"c", b"d"]),
    ],
    ids=lambda values: values.dtype.name,
)
def test_what_is_blanked_says_nothing(values):
    present = np.array([True, False, True, True])
    left = blanked(values, present)
    assert left.dtype == values.dtype
    assert list(left[present]) == list(values[present])
    assert left[1] != values[1] or left[1] is None or values.dtype.kind == "b"
    assert blanked(values, np.ones(4, bool)) is values


def test_plain_models_take_names_of_their_data():
    rng = np.random.default_rng(0)
    data = {"y": rng.normal(size=60), "county": np.repeat([0, 1, 2], 20)}
    model = pe.Model(lambda p: -0.5 * p["mu"] ** 2, lambda p, d: -0.5 * (d["y"] - p["mu"]) ** 2, data)
    draws = pe.Draws({"mu": data["y"].sum() / 61 + rng.normal(size=(4, 500)) / 61**0.5})
    by_name = pe.erase(model, draws, rows={"county": 2})
    by_mask = pe.erase(model, draws, rows=data["county"] == 2)
    assert by_name.n_removed == 20
    np.testing.assert_array_equal(by_name.draws.params["mu"], by_mask.draws.params["mu"])


RNG = np.random.default_rng(0)
SERIES = RNG.normal(size=40)
COUNTS = RNG.poisson(20, size=40)
PANEL = RNG.normal(size=(8, 6))


@pytest.mark.parametrize(
    ("columns", "lag"),
    [
        ({"y": SERIES[2:], "before": SERIES[:-2]}, 2),
        ({"y": COUNTS[1:], "before": COUNTS[:-1]}, 1),
        ({"y": SERIES[2:], "L[0]": SERIES[1:-1], "L[1]": SERIES[:-2]}, 1),
        ({"y": PANEL[:, 1:].ravel(), "before": PANEL[:, :-1].ravel()}, 1),
    ],
    ids=["a series", "counts", "a matrix of lags", "a panel"],
)
def test_values_that_kept_rows_go_on_holding(columns, lag):
    size = len(columns["y"])
    table = RowTable((Block("t", size, ("y",), columns=columns),))
    holding = lagged(table, np.array([5]))
    assert 5 + lag in holding.rows
    assert f"is y of {lag} row" in holding.how
    assert not lagged(table, np.arange(5, size)).rows.size


def table(**columns):
    return RowTable((Block("t", len(columns["y"]), ("y",), columns=columns),))


def walk(n, seed=0):
    return np.cumsum(np.random.default_rng(seed).normal(size=n))


@pytest.mark.parametrize(
    ("y", "before"),
    [
        (SERIES[1:], (SERIES[:-1] - 1) / 2),
        (SERIES[1:], (-3e4 * SERIES[:-1] + 7).astype(np.float32)),
        (COUNTS[1:], (COUNTS[:-1] - COUNTS.mean()) / COUNTS.std()),
        (PANEL[:, 1:].ravel(), 100 * PANEL[:, :-1].ravel()),
        (walk(5000)[1:], 1 - walk(5000)[:-1]),
    ],
    ids=["standardised", "float32", "counts", "a panel", "a random walk"],
)
def test_scaled_and_shifted_values_that_kept_rows_go_on_holding(y, before):
    noise = np.random.default_rng(9).normal(size=len(y))
    holding = lagged(table(y=y, x=noise, before=before), np.array([17]))
    assert holding.rows.tolist() == [18]
    assert holding.how == "before is y of 1 row before, scaled or shifted"
    again = table(y=y, x=noise, before=before).without(np.arange(len(y)) != 30)  # after an earlier request
    assert lagged(again, np.array([17])).rows.tolist() == [18]
    before = before + 1e-3 * np.abs(before).max() * noise  # no function of them any more
    assert not lagged(table(y=y, x=noise, before=before), np.array([17])).rows.size


RANDOM = np.random.default_rng(5)
TIME = np.arange(200.0)
MONTHS = np.sin(2 * np.pi * TIME / 12)
LEVELS = np.repeat(np.random.default_rng(6).normal(size=20), 10)


@pytest.mark.parametrize(
    "columns",
    [
        {"y": TIME, "x": 2 * TIME + 3},
        {"y": 1.01**TIME, "x": 3 - 1.01**TIME},
        {"y": walk(200), "time": TIME, "constant": np.ones(200)},
        {"y": RANDOM.integers(0, 2, 200), "x": RANDOM.integers(0, 2, 200), "z": 1.0 - RANDOM.integers(0, 2, 200)},
        {"y": RANDOM.poisson(3, 200), "x": RANDOM.poisson(3, 200), "z": RANDOM.integers(0, 15, 200)},
        {"y": RANDOM.poisson(30, 200), "x": RANDOM.poisson(30, 200), "z": RANDOM.poisson(30, 200)},
        {"y": np.where(RANDOM.random(200) < 0.8, 0, RANDOM.normal(size=200)), "x": RANDOM.normal(size=200)},
        {"y": MONTHS, "x": 2 * MONTHS},
        {"y": LEVELS, "fahrenheit": 1.8 * LEVELS + 32},
        {"y": np.round(walk(200)), "twice": 2 * np.round(walk(200))},
    ],
    ids=["trend", "growth", "walk", "binary", "few", "counts", "zeros", "season", "levels", "steps"],
)
def test_columns_that_are_no_scaled_lags(columns):
    for row in (5, 17, 100):
        assert not lagged(table(**columns), np.array([row])).rows.size


def test_what_is_no_series():
    grid = np.arange(40.0)
    steps = {"a": (grid > 20) * 1.0, "b": (grid > 21) * 1.0}
    for columns in (
        steps,
        {"t": grid, "t3": grid - 3},
        {"y": SERIES, "x": SERIES**2},
        {"y": grid % 2, "x": (grid + 1) % 2},
    ):
        assert not lagged(RowTable((Block("t", 40, columns=columns),)), np.array([5])).rows.size
