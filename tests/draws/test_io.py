"""Large variables: some of their draws, selected without an index for every element."""

import numpy as np
import pytest
import xarray as xr

from posterase.draws.io import select_draws

RNG = np.random.default_rng(0)
VALUES = xr.Variable(("chain", "draw", "row", "k"), RNG.normal(size=(4, 50, 7, 2)), {"units": "nats"})
CHAIN, DRAW = RNG.integers(0, 4, (3, 20)), RNG.integers(0, 50, (3, 20))
EXPECTED = VALUES.values[CHAIN, DRAW]

KEYS = [
    (slice(None),),
    (slice(1, None), slice(None, None, 3)),
    (2, 4),
    (slice(None), slice(None), 3),
    (0, slice(None), 3, 1),
    (slice(None), [5, 1], slice(2, 5)),
    (slice(None), slice(None), [6, 0]),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_selected_draws_are_those_of_numpy(key):
    selected = select_draws(VALUES, CHAIN, DRAW)
    assert selected.dims == VALUES.dims
    assert selected.attrs == VALUES.attrs
    np.testing.assert_array_equal(selected[key].values, EXPECTED[key])


def test_selections_of_selections():
    selected = select_draws(VALUES, CHAIN, DRAW)[:, :, np.array([5, 1])]
    np.testing.assert_array_equal(selected[:, ::2, 0].values, EXPECTED[:, ::2, 5])


def test_draws_of_a_file_are_read_when_they_are_used(tmp_path):
    xr.Dataset({"log_likelihood": VALUES}).to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "fit.nc", engine="h5netcdf") as file:
        selected = select_draws(file["log_likelihood"].variable, CHAIN, DRAW)
        assert not selected._in_memory
        np.testing.assert_array_equal(selected[:, 3:5].values, EXPECTED[:, 3:5])
