"""Rows as people name them, and what is refused of it."""

import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import posterase as pe
from posterase.rows import Block, RowTable, blanked, lagged

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
        ("person not in [17]", [6]),
        (np.array([True, False, False, False, True]), [0, 4]),
        (xr.DataArray([False, True, True], dims="visit"), [6, 7]),
        (xr.DataArray(COUNTY, dims="home") == "ANOKA", [1, 2]),
        (pd.Series(COUNTY) == "BECKER", [3]),
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
        ({"county": "ANOK"}, pe.errors.EmptyRemovalError, "did you mean 'ANOKA'"),
        ("county == 'ANOK'", pe.errors.EmptyRemovalError, "did you mean 'ANOKA'"),
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
    ],
    ids=str,
)
def test_selections_that_mean_nothing(selection, error, said):
    with pytest.raises(error, match=re.escape(said)):
        TABLE.select(selection)


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


def test_values_that_kept_rows_go_on_holding():
    y = np.random.default_rng(0).normal(size=40)
    table = RowTable((Block("t", 38, columns={"y": y[2:], "before": y[:-2], "other": y[2:] ** 2}),))
    assert "row 7, which is kept, holds y of row 5, which is removed" in lagged(table, np.array([5]))
    assert lagged(table, np.array([5, 7, 36])) == "" or "row 9" in lagged(table, np.array([5, 7, 36]))
    assert lagged(table, np.array([36, 37])) == ""
    assert lagged(table, np.array([5, *range(7, 38, 2)])) == ""


def test_categories_that_repeat_are_no_series():
    table = RowTable((Block("t", 40, columns={"a": (np.arange(40) > 20) * 1.0, "b": (np.arange(40) > 21) * 1.0}),))
    assert lagged(table, np.array([5])) == ""
