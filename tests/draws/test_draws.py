"""Draws: labels kept on the way to ArviZ, to netCDF and back; weights; thinning; resampling."""

import types

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings

import posterase as pe
from posterase.draws.draws import systematic
from posterase.errors import WeightedDrawsError
from tests.statistical import assert_moments, rejected

COUNTIES = ["AITKIN", "ANOKA", "BECKER"]


def labelled(weighted: bool = False) -> pe.Draws:
    rng = np.random.default_rng(0)
    return pe.Draws(
        {"alpha": rng.normal(size=(2, 6, 3)), "sigma": rng.uniform(1, 2, size=(2, 6))},
        rng.normal(size=(2, 6)) if weighted else None,
        dims={"alpha": ["county"]},
        coords={"county": COUNTIES, "draw": np.arange(100, 106)},
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_to_arviz_and_back(weighted, precision):
    draws = labelled(weighted)
    tree = draws.to_arviz(include_weights=weighted)
    assert tree["posterior"]["alpha"].dims == ("chain", "draw", "county")
    assert list(tree["posterior"].coords["county"].values) == COUNTIES
    assert ("sample_stats" in tree.children) == weighted
    back = pe.Draws.from_arviz(tree)
    assert eqx.tree_equal(draws, back)
    assert back.labels == draws.labels


def test_weights_are_for_memory_only(tmp_path):
    with pytest.raises(WeightedDrawsError, match="function of the removed rows"):
        labelled(weighted=True).to_arviz()
    with pytest.raises(WeightedDrawsError):
        labelled(weighted=True).save(tmp_path / "draws.nc")
    assert list(tmp_path.iterdir()) == []


def test_netcdf_keeps_everything(precision, tmp_path):
    draws = labelled()
    path = draws.save(tmp_path / "draws.nc")
    back = pe.Draws.load(path)
    assert eqx.tree_equal(draws, back)
    assert list(tmp_path.iterdir()) == [path]
    other = tmp_path / "other"
    other.write_text("")
    assert path.stat().st_mode == other.stat().st_mode


def test_non_index_coordinates_and_other_dimension_orders_survive():
    posterior = xr.Dataset(
        {"alpha": (("county", "draw", "chain"), np.random.default_rng(0).normal(size=(3, 6, 2)))},
        coords={"county": COUNTIES, "state": ("county", ["MN", "MN", "WI"])},
    )
    draws = pe.Draws.from_arviz(posterior)
    assert draws.params["alpha"].shape == (2, 6, 3)
    again = draws.to_arviz()["posterior"]
    assert list(again["alpha"].coords["state"].values) == ["MN", "MN", "WI"]


def test_arviz_reads_what_we_write():
    from arviz_base import convert_to_datatree, extract

    flat = extract(convert_to_datatree(labelled().to_arviz()), combined=True)
    assert flat["alpha"].sizes == {"county": 3, "sample": 12}


def test_inference_data_of_the_older_kind():
    old = types.SimpleNamespace(posterior=labelled().to_arviz()["posterior"].to_dataset())
    assert eqx.tree_equal(pe.Draws.from_arviz(old), labelled())


def test_var_names_pick_parameters():
    assert pe.Draws.from_arviz(labelled().to_arviz(), var_names=["sigma"]).names == ["sigma"]


def test_a_file_will_do(tmp_path):
    picked = pe.Draws.from_arviz(labelled().save(tmp_path / "draws.nc"), var_names=["sigma"])
    assert picked.names == ["sigma"]
    assert eqx.tree_equal(pe.Draws.from_arviz(str(tmp_path / "draws.nc")), labelled())


def test_default_labels_are_those_of_arviz():
    from arviz_base import from_dict

    values = {"beta": np.zeros((2, 5, 3, 4), np.float32), "mu": np.zeros((2, 5), np.float32)}
    theirs = from_dict({"posterior": values})["posterior"].to_dataset()
    ours = pe.Draws(values).to_arviz()["posterior"].to_dataset()
    xr.testing.assert_equal(ours, theirs)


def test_trees_of_any_structure_get_names():
    draws = pe.Draws({"layers": [{"w": np.zeros((1, 2, 3))}, {"w": np.zeros((1, 2))}]})
    assert draws.names == ["layers.0.w", "layers.1.w"]
    assert set(draws.to_arviz()["posterior"].data_vars) == {"layers.0.w", "layers.1.w"}
    assert pe.Draws(np.zeros((1, 2, 3))).names == ["theta"]


def test_nested_trees_come_back_from_a_file(tmp_path):
    params = {"layers": [{"w": np.ones((1, 2, 3))}, {"w": np.zeros((1, 2))}]}
    draws = pe.Draws(params)
    assert eqx.tree_equal(pe.Draws.load(draws.save(tmp_path / "net.nc"), like=params), draws)


def test_draws_are_a_pytree():
    draws = labelled(weighted=True)
    doubled = jax.jit(lambda d: jax.tree.map(lambda leaf: 2 * leaf, d))(draws)
    assert isinstance(doubled, pe.Draws)
    assert doubled.labels == draws.labels
    np.testing.assert_allclose(doubled.params["sigma"], 2 * draws.params["sigma"])
    assert hash(draws.labels) == hash(labelled().labels)


def test_thinning_keeps_coordinates():
    thinned = labelled(weighted=True).thin(2)
    assert thinned.n_draws == 3
    assert list(thinned.labels.coords["draw"].values) == [100, 102, 104]
    np.testing.assert_array_equal(thinned.log_weights, labelled(weighted=True).log_weights[:, ::2])


@given(seed=st.integers(0, 2**31 - 1), logs=st.lists(st.floats(-8, 3), min_size=12, max_size=12))
@settings(max_examples=25, deadline=None)
def test_systematic_resampling_picks_each_draw_its_share_of_times(seed, logs):
    weights = jax.nn.softmax(jnp.array(logs))
    counts = np.bincount(systematic(jax.random.key(seed), weights, 100), minlength=12)
    assert counts.sum() == 100
    assert (np.abs(counts - 100 * np.asarray(weights)) < 1 + 1e-3).all()


def test_resampling_keeps_shape_and_labels():
    resampled = labelled(weighted=True).resample(0)
    assert resampled.log_weights is None
    assert resampled.labels == labelled().labels
    assert np.isin(resampled.params["sigma"], labelled().params["sigma"]).all()


def test_draws_without_weights_need_no_resampling():
    draws = labelled()
    assert draws.resample(0) is draws


@pytest.mark.statistical
def test_resampling_follows_the_weights():
    """N(0, 1) draws weighted to N(0.5, 1); unweighted they must be rejected."""
    x = np.random.default_rng(0).normal(size=(4, 5000))
    draws = pe.Draws({"x": x}, 0.5 * x)
    resampled = np.asarray(draws.resample(1).params["x"]).ravel()
    # Resampled draws are as good as the weighted ones: effective size n / (1 + var w) = n·exp(−0.25).
    assert_moments(resampled[: int(20_000 * np.exp(-0.25))], np.array(0.5), np.array(1.0))
    with rejected():
        assert_moments(x.ravel(), np.array(0.5), np.array(1.0))


def test_weights_sum_to_one(precision):
    draws = labelled(weighted=True)
    np.testing.assert_allclose(draws.weights.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(labelled().weights, 1 / 12, rtol=1e-6)
    shifted = draws.replace(draws.params, draws.log_weights + 1000)
    np.testing.assert_allclose(shifted.weights, draws.weights, rtol=1e-3)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_becomes_float32(dtype):
    assert pe.Draws({"a": jnp.ones((2, 5), dtype)}).params["a"].dtype == jnp.float32


def test_repr():
    assert repr(labelled()) == "Draws: 2 chains × 6 draws, equal weights\n  alpha: float32[3]\n  sigma: float32"


def test_effective_sizes_are_known_by_the_names_of_parameters():
    """Two sets of draws may share their arrays."""
    from posterase.sampling.effective_draws import effective_draws

    first = pe.Draws({"a": np.random.default_rng(0).normal(size=(4, 100))})
    second = pe.Draws({"b": first.params["a"]})
    assert second.params["b"] is first.params["a"], "the case at hand"
    assert set(effective_draws(first)) == {"a"}
    assert effective_draws(second) == {"b": effective_draws(first)["a"]}
