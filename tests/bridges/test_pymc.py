"""PyMC fits: that a model's densities are PyMC's, which rows and arrays are found, what is refused and why."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import posterase as pe
from posterase.bridges.shared import assembly
from posterase.errors import (
    AmbiguousRowsError,
    CoupledRowsError,
    DataChangedError,
    DifferentModelError,
    InvalidTypeError,
    MissingExtraError,
    UnsupportedModelError,
)
from tests.oracles import LinearRegression
from tests.statistical import assert_moments, rejected

pm = pytest.importorskip("pymc")
pt = pytest.importorskip("pytensor.tensor")
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

RNG = np.random.default_rng(0)
N = 40
X = RNG.normal(size=N)
Y = RNG.normal(size=N) + X
GROUP = np.repeat(np.arange(10), 4)


def tree(model, values=None):
    """Draws of a model and its data by ArviZ's schema: given ones `(chain, draw, …)`, or some near a prior draw."""
    if values is None:
        rng = np.random.default_rng(1)
        points = {each.name: np.asarray(each.eval()) for each in model.free_RVs}
        values = {name: at * (1 + 0.001 * rng.random((2, 50, *[1] * at.ndim))) for name, at in points.items()}
    posterior, observed = {}, {}
    for name, value in values.items():
        named = model.named_vars_to_dims.get(name) or [f"{name}_{i}" for i in range(value.ndim - 2)]
        posterior[name] = ("chain", "draw", *map(str, named)), value
    for each in model.observed_RVs:
        value = np.asarray(model.rvs_to_values[each].eval())
        named = model.named_vars_to_dims.get(each.name) or [f"{each.name}_dim_{i}" for i in range(value.ndim)]
        observed[each.name] = tuple(map(str, named)), value
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior), "observed_data": xr.Dataset(observed)})


@pytest.fixture
def regression():
    with pm.Model(coords={"obs": np.arange(N)}) as model:
        x = pm.Data("x", X, dims="obs")
        slope, noise = pm.Normal("slope"), pm.HalfNormal("noise")
        effect = pm.Normal("effect", 0, 1, shape=10)
        pm.Deterministic("mean", effect[GROUP] + slope * x, dims="obs")
        pm.Normal("y", model["mean"], noise, observed=Y, dims="obs")
    return model


# --- the closed form


def test_an_exact_posterior_through_the_bridge(x64):
    """Densities are those of the hand-written model, and the erased draws have the exact moments."""
    oracle = LinearRegression.make()
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=oracle.X.shape[1])
        pm.Normal("y", oracle.X @ beta, 0.8, observed=oracle.y)
    everyone, removed = np.arange(60), np.array([3, 17, 42, 5])
    exact = oracle.sample(everyone, (4, 2000), seed=1)
    posterior = xr.Dataset({"beta": (("chain", "draw", "column"), exact["beta"])})
    bridged, draws = pe.from_pymc(model, xr.DataTree.from_dict({"posterior": posterior}))
    assert bridged.program.by_rows
    by_hand = oracle.model()
    for ours, theirs in zip(
        pe.split(bridged, bridged.change(remove=removed)),
        pe.split(by_hand, by_hand.change(remove=removed)),
        strict=True,
    ):
        at = [{"beta": jnp.asarray(exact["beta"][0, i])} for i in (0, 1)]
        difference = [float(ours(theta) - theirs(theta)) for theta in at]
        np.testing.assert_allclose(difference[0], difference[1], atol=1e-9)  # the same up to a constant
    result = pe.erase(bridged, draws, rows=removed)
    kept = np.setdiff1d(everyone, removed)
    moments = oracle.mean(kept), oracle.variance(kept)
    assert_moments(result.draws.matrix(), *moments, np.asarray(result.draws.weights).ravel())
    with rejected():  # nothing deleted
        assert_moments(draws.matrix(), *moments)


# --- PyMC's own densities


def supports():
    """A variable for every kind of support, and several likelihoods of the same rows."""
    with pm.Model(coords={"obs": np.arange(N), "item": ["a", "b", "c"], "two": [0, 1]}) as model:
        real = pm.Normal("real", 0, 1, dims="item")
        positive, unit = pm.HalfCauchy("positive", 1), pm.Beta("unit", 2, 2)
        pm.Uniform("between", np.array([-1.0, 0.0]), np.array([2.0, 5.0]))
        pm.TruncatedNormal("above", 0, 1, lower=-2)
        simplex = pm.Dirichlet("simplex", np.ones(3))
        pm.Normal("ordered", 0, 1, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0])
        pm.LKJCholeskyCov("covariance", 2.0, 2, sd_dist=pm.HalfNormal.dist(1.0), compute_corr=False)
        x = pm.Data("x", X, dims="obs")
        pm.Normal("y", real[0] + unit * x, positive, observed=Y, dims="obs")
        pm.Poisson("calls", pt.exp(0.1 * real[1] * x), observed=np.arange(N) % 3, dims="obs")
        means = pt.stack([real[0] * x, real[2] * x], axis=1)
        pm.MvNormal("pair", means, np.eye(2), observed=np.column_stack([X, Y]), dims=("obs", "two"))
        pm.Categorical("kind", simplex, observed=np.arange(N) % 3, dims="obs")
    return model


INSIDE = {
    "real": [0.1, -0.2, 0.3],
    "positive": 0.7,
    "unit": 0.4,
    "between": [0.5, 3.0],
    "above": -1.0,
    "simplex": [0.2, 0.3, 0.5],
    "ordered": [-1.0, 0.1, 0.9],
    "covariance": [0.8, 0.1, 1.2],
}


@pytest.mark.slow
def test_densities_and_gradients_are_pymcs(x64):
    """Of all rows, with Jacobians, at unconstrained points."""
    model = supports()
    inside = {name: np.tile(value, (2, 3, *[1] * np.ndim(value))) for name, value in INSIDE.items()}
    bridged, draws = pe.from_pymc(model, tree(model, inside))
    assert bridged.program.blocks == (("obs", N),)
    assert bridged.program.by_rows
    names = {each.name: model.rvs_to_values[each].name for each in model.free_RVs}
    logp, slope = model.compile_logp(mode="FAST_COMPILE"), model.compile_dlogp(mode="FAST_COMPILE")
    density = jax.jit(jax.value_and_grad(bridged.log_density))
    theta = bridged.unconstrain({name: leaf[0, 0] for name, leaf in draws.params.items()})
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        moved = {name: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape) for name, leaf in theta.items()}
        point = {names[name]: leaf for name, leaf in moved.items()}
        ours = {name: jnp.asarray(leaf) for name, leaf in moved.items()}
        value, gradient = density(ours)
        np.testing.assert_allclose(value, logp(point), rtol=1e-9)
        theirs = dict(zip([v.name for v in model.value_vars], _pieces(slope(point), model, point), strict=True))
        for name, leaf in gradient.items():
            np.testing.assert_allclose(leaf, theirs[names[name]], rtol=1e-6, atol=1e-8)


def _pieces(vector, model, point):
    ends = np.cumsum([np.size(point[v.name]) for v in model.value_vars])[:-1]
    return [
        each.reshape(np.shape(point[v.name])) for each, v in zip(np.split(vector, ends), model.value_vars, strict=True)
    ]


def test_kept_rows_are_those_of_a_model_without_the_others(regression, x64):
    bridged, draws = pe.from_pymc(regression, tree(regression))
    gone = np.array([0, 5, 39])
    kept = np.setdiff1d(np.arange(N), gone)
    with pm.Model() as fewer:
        slope, noise = pm.Normal("slope"), pm.HalfNormal("noise")
        effect = pm.Normal("effect", 0, 1, shape=10)
        pm.Normal("y", effect[GROUP[kept]] + slope * X[kept], noise, observed=Y[kept])
    other, _ = pe.from_pymc(fewer, tree(fewer))
    one = {name: leaf[0, 3] for name, leaf in draws.params.items()}
    without = bridged.without(bridged.change(remove=gone))
    found, expected, before = (jax.jit(lambda at, m=each: m.log_joint(at))(one) for each in (without, other, bridged))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert abs(before - expected) > 1e-3


# --- rows


def test_nothing_of_a_removed_row_is_left_in_the_model(regression):
    bridged, _ = pe.from_pymc(regression, tree(regression))
    assert {argument.name for argument in bridged.program.arguments.values()} == {"x", "y", "array 3 (40)"}
    assert all(argument.block == 0 for argument in bridged.program.arguments.values())
    kept = bridged.without(bridged.change(remove=[7]))
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(kept)])
    assert not np.isin(np.float32([X[7], Y[7]]), values).any()


def test_what_comes_out_is_cut_and_computed_anew(regression):
    rng = np.random.default_rng(3)
    values = {"slope": rng.normal(1, 0.1, (4, 500)), "noise": rng.uniform(0.9, 1.1, (4, 500))}
    values["effect"] = rng.normal(0, 0.1, (4, 500, 10))
    given = {name: xr.DataArray(v, dims=("chain", "draw", "effect_0")[: v.ndim]) for name, v in values.items()}
    mean = values["effect"][..., GROUP] + values["slope"][..., None] * X
    given["mean"] = xr.DataArray(mean, dims=("chain", "draw", "obs"))
    observed = tree(regression)["observed_data"].to_dataset()
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset(given), "observed_data": observed})
    bridged, draws = pe.from_pymc(regression, idata, preprocessing="none")
    erased = pe.Reweight()(0, bridged, draws, bridged.change(remove=[2, 3])).draws
    out = erased.to_arviz(include_weights=True)
    assert out["observed_data"]["y"].shape == (N - 2,)
    np.testing.assert_allclose(out["posterior"]["mean"], np.delete(mean, [2, 3], axis=-1), atol=1e-5)


def test_numbers_from_all_rows_in_the_graph_do_not_come_out(monkeypatch):
    """A constant of the graph gives the removed outcome back; and what reads a certain row is not another row's."""
    with pm.Model(coords={"obs": np.arange(N)}) as model:
        x, y = pm.Data("x", X, dims="obs"), pm.Data("outcome", Y, dims="obs")
        mu, slope = pm.Normal("mu", 0, 3), pm.Normal("slope", 0, 3)
        pm.Deterministic("mu_centred", mu - Y.mean())
        pm.Deterministic("flip", 1 - mu)
        pm.Deterministic("at_mean", mu + slope * x.mean())
        pm.Deterministic("resid5", y[5] - mu - slope * x[5])
        pm.Normal("y", mu + slope * x, 1, observed=y, dims="obs")
    columns = np.stack([np.ones(N), X], axis=1)
    covariance = np.linalg.inv(columns.T @ columns)
    drawn = np.random.default_rng(2).multivariate_normal(covariance @ columns.T @ Y, covariance, (4, 500))
    mu, slope = drawn[..., 0], drawn[..., 1]
    computed = {"mu_centred": mu - Y.mean(), "flip": 1 - mu, "at_mean": mu + slope * X.mean()}
    given = tree(model, {"mu": mu, "slope": slope, **computed, "resid5": Y[5] - mu - slope * X[5]})

    def erased():
        result = pe.erase(*pe.from_pymc(model, given, preprocessing="none"), [5], policy=pe.Policy(ess=50.0))
        return result.to_arviz()["posterior"], " ".join(map(str, result.verdict.notes))

    kept = np.setdiff1d(np.arange(N), [5])
    posterior, notes = erased()
    assert set(posterior.data_vars) == {"mu", "slope", "flip", "at_mean"}
    assert "may be from all rows: mu_centred (" in notes
    assert "on the order or the number of the rows): resid5" in notes
    at_mean = posterior["mu"] + posterior["slope"] * X[kept].mean()
    np.testing.assert_allclose(posterior["at_mean"], at_mean, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(assembly, "without_functions_of_data", lambda names, *_: list(names))
    posterior, _ = erased()
    centre = float((posterior["mu"].astype(float) - posterior["mu_centred"].astype(float)).mean())
    assert N * centre - Y[kept].sum() == pytest.approx(Y[5], abs=1e-3)


def test_rows_by_the_name_of_their_axis():
    with pm.Model(coords={"person": np.arange(8), "item": np.arange(5)}) as model:
        ability = pm.Normal("ability", dims="person")
        difficulty = pm.Normal("difficulty", dims="item")
        answers = (np.arange(40).reshape(8, 5) % 3 == 0).astype(int)
        pm.Bernoulli("answer", logit_p=ability[:, None] - difficulty[None], observed=answers, dims=("person", "item"))
    with pytest.raises(AmbiguousRowsError, match="row_dim='person' or row_dim='item'"):
        pe.from_pymc(model, tree(model))
    bridged, draws = pe.from_pymc(model, tree(model), row_dim="person")
    assert bridged.program.blocks == (("person", 8),)
    assert bridged.program.row_latents == {"ability": (0, -1)}
    one = {name: leaf[0, 0] for name, leaf in draws.params.items()}
    logits = np.asarray(one["ability"])[:, None] - np.asarray(one["difficulty"])
    expected = (answers * logits - np.log1p(np.exp(logits))).sum(axis=1)
    np.testing.assert_allclose(bridged.log_rows(one, jnp.arange(8)), expected, rtol=1e-5)


def test_an_index_goes_by_the_name_of_the_dimension_that_it_picks_from():
    """Rows are named by the labels of their group, and an emptied group is cut out, without `pm.Data`."""
    with pm.Model(coords={"county": list("abcdefghij")}) as model:
        level, slope = pm.Normal("level", dims="county"), pm.Normal("slope")
        pm.Normal("y", level[GROUP] + slope * X, 1, observed=Y)
    idata = tree(model)
    idata["posterior"] = idata["posterior"].to_dataset().assign_coords(county=list("abcdefghij"))
    bridged, draws = pe.from_pymc(model, idata)
    assert {argument.name for argument in bridged.program.arguments.values()} == {"y", "county", "array 2 (40)"}
    rows = draws.container.table.select({"county": "c"})
    np.testing.assert_array_equal(rows, np.arange(8, 12))
    out = draws.without(rows, bridged.without(bridged.change(remove=rows))).to_arviz()["posterior"]
    assert list(out["county"].values) == list("abdefghij")


def test_variables_come_in_the_order_they_were_written():
    """So that bare row numbers are those of the first."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("visits", mu, 1, observed=Y)
        pm.Normal("surveys", mu, 1, observed=Y[:20])
        pm.Normal("alone", mu, 1, observed=np.array([123.456]))
    bridged, _ = pe.from_pymc(model, tree(model))
    assert bridged.program.blocks == (("visits_dim_0", N), ("surveys_dim_0", 20), ("alone_dim_0", 1))
    kept = bridged.without(bridged.change(remove=[0, 1, 60]))
    assert kept.observed({"mu": 0.0})["visits"][0] == np.float32(Y[2])
    assert kept.observed({"mu": 0.0})["alone"] != np.float32(123.456)


def test_an_array_in_no_likelihood_goes_by_the_name_of_its_axis():
    with pm.Model(coords={"woman": np.arange(N), "man": np.arange(N), "item": np.arange(N)}) as model:
        mu = pm.Normal("mu")
        age = pm.Data("age", 20.0 + np.arange(N), dims="man")
        pm.Deterministic("risk", mu * age, dims="man")
        pm.Normal("first", mu, 1, observed=Y, dims="woman")
        pm.Normal("second", mu, 1, observed=X, dims="man")
    bridged, _ = pe.from_pymc(model, tree(model))
    assert {argument.name: argument.block for argument in bridged.program.arguments.values()}["age"] == 1
    with pm.Model(coords={"woman": np.arange(N), "man": np.arange(N)}) as unnamed:
        mu = pm.Normal("mu")
        pm.Deterministic("risk", mu * pm.Data("age", 20.0 + np.arange(N)))
        pm.Normal("first", mu, 1, observed=Y, dims="woman")
        pm.Normal("second", mu, 1, observed=X, dims="man")
    with pytest.raises(AmbiguousRowsError, match="'age' is in no likelihood"):
        pe.from_pymc(unnamed, tree(unnamed))


def test_unnamed_rows_of_one_length_are_the_same_and_it_is_said():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("men", mu, 1, observed=X)
        pm.Normal("women", mu, 1, observed=Y)
    _, draws = pe.from_pymc(model, tree(model))
    assert any("taken for the same rows" in each and "men, women" in each for each in draws.container.remarks)


def test_a_graph_of_one_length_only(x64):
    """Logits of several classes are reshaped inside: the model is then evaluated on all rows."""
    with pm.Model() as model:
        slope = pm.Normal("slope", shape=3)
        pm.Categorical("kind", logit_p=X[:, None] * slope, observed=np.arange(N) % 3)
    bridged, draws = pe.from_pymc(model, tree(model))
    one = {name: leaf[0, 0] for name, leaf in draws.params.items()}
    logits = X[:, None] * np.asarray(one["slope"])
    expected = logits[np.arange(N), np.arange(N) % 3] - np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(bridged.log_rows(one, jnp.arange(N)), expected, rtol=1e-8)


# --- Potentials and missing values


def log_density(model, inside, **parameters):
    """The log density of all rows but these, at these parameters."""
    values = {name: np.tile(value, (2, 3, *[1] * np.ndim(value))) for name, value in parameters.items()}
    bridged, draws = pe.from_pymc(model, tree(model, values), **inside.pop("bridge", {}))
    removed = inside.pop("without", [])
    kept = bridged.without(bridged.change(remove=removed)) if removed else bridged
    return float(kept.log_joint({name: jnp.asarray(value) for name, value in parameters.items()})), bridged, draws


def normal(value, mean, sd):
    return np.sum(-0.5 * ((np.asarray(value) - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi))


def test_a_soft_constraint_is_part_of_the_prior(x64):
    with pm.Model() as model:
        slope = pm.Normal("slope", shape=2)
        pm.Potential("equal", -50 * (slope[0] - slope[1]) ** 2)
        pm.Normal("y", slope[0] * X + slope[1], 1, observed=Y)
    value = np.array([0.4, 0.1])
    found, _, draws = log_density(model, {"without": [3, 5]}, slope=value)
    kept = np.delete(np.arange(N), [3, 5])
    expected = normal(value, 0, 1) - 50 * 0.3**2 + normal(Y[kept], 0.4 * X[kept] + 0.1, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert "Potentials are part of the prior: equal" in draws.container.remarks


def test_a_potential_with_an_entry_per_row_is_a_likelihood(x64):
    """In one vector with the observed rows; alone; and as rows of their own, which the user names."""
    with pm.Model() as model:
        slope = pm.Normal("slope")
        pm.Potential("positive", -pt.softplus(-slope * X))
        pm.Normal("y", slope * X, 1, observed=Y)
    kept = np.delete(np.arange(N), [3, 5])
    softplus = np.log1p(np.exp(-0.4 * X[kept])).sum()
    found, bridged, _ = log_density(model, {"without": [3, 5]}, slope=0.4)
    assert bridged.program.blocks == (("y_dim_0", N),)
    np.testing.assert_allclose(found, normal(0.4, 0, 1) + normal(Y[kept], 0.4 * X[kept], 1) - softplus, rtol=1e-9)

    with pm.Model() as alone:
        pm.Potential("rows", pm.logp(pm.Normal.dist(pm.Normal("slope") * X, 1), Y))
    found, bridged, _ = log_density(alone, {"without": [3, 5]}, slope=0.4)
    assert bridged.program.blocks == (("rows_dim_0", N),)
    np.testing.assert_allclose(found, normal(0.4, 0, 1) + normal(Y[kept], 0.4 * X[kept], 1), rtol=1e-9)

    with pm.Model() as two:
        slope = pm.Normal("slope")
        pm.Normal("seen", slope, 1, observed=Y[:30])
        pm.Potential("hidden", -slope * np.abs(X[:9]))
    of_rows = {"bridge": {"row_dim": ["seen_dim_0", "hidden_dim_0"]}, "without": [0, 30, 38]}
    found, bridged, _ = log_density(two, of_rows, slope=0.4)
    assert bridged.program.blocks == (("seen_dim_0", 30), ("hidden_dim_0", 9))
    expected = normal(0.4, 0, 1) + normal(Y[1:30], 0.4, 1) - 0.4 * np.abs(X[1:8]).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:Data in .* contains missing values")
def test_rows_with_missing_outcomes(x64):
    """Rows keep their numbers; a missing value's density stays in the prior, and its draws go with the row."""
    gone = np.isin(np.arange(N), [3, 7])
    with pm.Model(coords={"obs": np.arange(N)}) as model:
        slope = pm.Normal("slope")
        pm.Normal("y", slope * X, 1, observed=np.where(gone, np.nan, Y), dims="obs")
    imputed = np.array([0.2, -0.3])
    found, bridged, draws = log_density(model, {"without": [5, 7]}, slope=0.4, y_unobserved=imputed)
    kept = np.delete(np.arange(N), [3, 5, 7])
    expected = normal(0.4, 0, 1) + normal(Y[kept], 0.4 * X[kept], 1) + normal(imputed, 0.4 * X[gone], 1)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert any("covariates of rows with missing values of y" in each for each in draws.container.remarks)
    erased = draws.without(np.array([5, 7]), bridged.without(bridged.change(remove=[5, 7])))
    out = erased.to_arviz()["posterior"]
    assert out["y_unobserved"].shape == (2, 3, 1)
    assert float(out["y_unobserved"][0, 0, 0]) == np.float32(0.2)
    joined = bridged.computed("posterior", draws.params, ["y"])["y"][0, 0]
    np.testing.assert_allclose(np.asarray(joined)[gone], imputed)


@pytest.mark.filterwarnings("ignore:Data in .* contains missing values")
def test_rows_with_missing_covariates(x64):
    gone = np.isin(np.arange(N), [3, 7])
    with pm.Model() as model:
        slope = pm.Normal("slope")
        x = pm.Normal("x", 0, 2, observed=np.where(gone, np.nan, X))
        pm.Normal("y", slope * x, 1, observed=Y)
    imputed = np.array([0.2, -0.3])
    found, _, _ = log_density(model, {"without": [5, 7]}, slope=0.4, x_unobserved=imputed)
    kept, filled = np.delete(np.arange(N), [5, 7]), X.copy()
    filled[gone] = imputed
    expected = normal(0.4, 0, 1) + normal(Y[kept], 0.4 * filled[kept], 1)
    expected += normal(X[np.delete(np.arange(N), [3, 5, 7])], 0, 2) + normal(imputed, 0, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


# --- what PyTensor does not translate


def test_normal_tails_and_interpolated_priors(x64):
    """`pm.Censored` needs erfcx, `pm.Interpolated` a spline."""
    points = np.linspace(-3, 3, 31)
    with pm.Model() as model:
        mean = pm.Interpolated("mean", points, np.exp(-(points**2)))
        pm.Censored("y", pm.Normal.dist(mean, 0.5), lower=-1, upper=1, observed=np.clip(Y, -1, 1))
    found, _, _ = log_density(model, {}, mean=0.25)
    values = {
        "mean_interval__": model.rvs_to_transforms[model["mean"]].forward(0.25, *model["mean"].owner.inputs).eval()
    }
    expected = model.compile_logp(jacobian=False, mode="FAST_COMPILE")(values)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# --- what is refused


def with_model(write):
    def made():
        with pm.Model() as model:
            write()
        return model

    made.__name__ = write.__name__
    return made


@with_model
def summed_potential():
    mu = pm.Normal("mu")
    pm.Potential("penalty", pm.logp(pm.Normal.dist(mu, 1), X).sum())
    pm.Normal("y", mu, 1, observed=Y)


@with_model
def only_a_sum():
    pm.Potential("likelihood", pm.logp(pm.Normal.dist(pm.Normal("mu"), 1), Y).sum())


@with_model
def one_count():
    pm.Binomial("y", 50, pm.Beta("p", 1, 1), observed=12)


@with_model
def series():
    pm.AR("y", [pm.Normal("rho")], init_dist=pm.Normal.dist(), observed=Y)


@with_model
def discrete_gaps():
    counts = np.ma.masked_array(np.arange(N) % 3, np.arange(N) == 3)
    pm.Poisson("y", pm.math.exp(pm.Normal("mu")), observed=counts)


@with_model
def gaps_within_rows():
    pm.MvNormal("y", pm.Normal("mu", shape=2), np.eye(2), observed=np.array([[0.0, np.nan], [1.0, 2.0]]))


@with_model
def discrete():
    pm.Normal("y", pm.Poisson("count", 3.0), 1, observed=Y)


@with_model
def no_rows():
    pm.Normal("mu")


@with_model
def nothing_free():
    pm.Normal("y", 0, 1, observed=Y)


@with_model
def one_likelihood():
    mu = pm.Normal("mu")
    pm.MvNormal("y", mu * np.ones(N), np.eye(N), observed=Y)


@with_model
def moving_bounds():
    high = pm.HalfNormal("high")
    pm.Normal("y", pm.Uniform("below", 0, high), 1, observed=Y)


@with_model
def subsampled():
    pm.Normal("y", pm.Normal("mu"), 1, observed=pm.Minibatch(Y, batch_size=8), total_size=N)


@with_model
def subsampled_unscaled():
    pm.Normal("y", pm.Normal("mu"), 1, observed=pm.Minibatch(Y, batch_size=8))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (subsampled_unscaled, "random numbers at every call"),
        (summed_potential, r"Potential 'penalty' is computed from .*\n.*\.sum\(\)"),
        (only_a_sum, r"no entry of the Potentials 'likelihood' belongs to one row.*\n.*\.sum\(\)"),
        (one_count, "'y' has a single observed value.*\n.*Bernoulli"),
        (series, "'y' has one likelihood for 40 values.*\n.*latent"),
        (discrete_gaps, "missing values of 'y' are discrete"),
        (gaps_within_rows, "rows of 'y' have several values"),
        (discrete, "'count' is discrete"),
        (no_rows, "no observed variable"),
        (nothing_free, "no parameters"),
        (one_likelihood, "'y' has one likelihood for 40 values"),
        (moving_bounds, "bounds of the variable 'below'"),
        (subsampled, "'y' .* is an estimate"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
@pytest.mark.filterwarnings("ignore:total_size not provided", "ignore:Data in .* contains missing values")
def test_what_cannot_be_erased_from_is_refused_by_name(made, said):
    model = made()
    shapes = {name: np.zeros((1, 1, *shape)) for name, shape in ({"mu": ()} | model.eval_rv_shapes()).items()}
    posterior = {
        name: (["chain", "draw", *(f"{name}_{i}" for i in range(v.ndim - 2))], v) for name, v in shapes.items()
    }
    with pytest.raises(UnsupportedModelError, match=said):
        pe.from_pymc(model, xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)}))


@pytest.mark.parametrize("made", [subsampled, subsampled_unscaled], ids=lambda made: made.__name__)
@pytest.mark.filterwarnings("ignore:total_size not provided")
def test_mini_batches_are_refused_by_name_beside_all_observed_values(made):
    """PyMC may store all values as observed, or those of one batch: their shape is not what is wrong."""
    idata = {"posterior": xr.Dataset({"mu": (["chain", "draw"], np.zeros((1, 4)))})}
    idata["observed_data"] = xr.Dataset({"y": ("y_dim_0", Y)})
    with pytest.raises(UnsupportedModelError, match=r"(?i)mini-?batch.*\n.*pass the model of all rows"):
        pe.from_pymc(made(), xr.DataTree.from_dict(idata))


def test_rows_that_look_at_each_other_are_refused_by_name():
    with pm.Model() as model:
        x = pm.Data("x", X)
        pm.Normal("y", pm.Normal("slope") * (x - x.mean()), 1, observed=Y)
    with pytest.raises(CoupledRowsError, match="'x'"):
        pe.from_pymc(model, tree(model))
    bridged, _ = pe.from_pymc(model, tree(model), shared="x")
    assert list(bridged.held) == ["x"]


def test_draws_of_another_model_or_other_data_are_refused(regression):
    idata = tree(regression)
    short = xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset()[["slope"]]})
    with pytest.raises(DifferentModelError, match="noise"):
        pe.from_pymc(regression, short)
    idata["observed_data"]["y"] = idata["observed_data"]["y"] + 1
    with pytest.raises(DataChangedError, match="differs in 40 of 40"):
        pe.from_pymc(regression, idata)


@pytest.mark.parametrize("observed_data", [False, True], ids=["covariates", "outcomes_too"])
def test_data_set_for_predictions_are_those_of_the_fit_again(observed_data):
    """`pm.set_data` with other rows, as for out-of-sample predictions: the data of the fit come from the draws."""
    with pm.Model(coords={"obs": np.arange(N)}) as model:
        x = pm.Data("x", X, dims="obs")
        y = pm.Data("y_data", Y, dims="obs") if observed_data else Y
        pm.Normal("y", pm.Normal("slope") * x, 1, observed=y, shape=x.shape, dims="obs")
    idata = tree(model)
    idata["constant_data"] = xr.DataTree(xr.Dataset({"x": ("obs", X)}))
    before, _ = pe.from_pymc(model, idata)
    with model:
        pm.set_data(
            {"x": np.zeros(7)} | ({"y_data": np.zeros(7)} if observed_data else {}), coords={"obs": np.arange(7)}
        )
    after, draws = pe.from_pymc(model, idata)
    one = {"slope": jnp.asarray(0.3)}
    np.testing.assert_allclose(after.log_joint(one), before.log_joint(one))
    assert any("the model holds others of x" in each for each in draws.container.remarks)
    assert model["x"].get_value().shape == (7,)
    with pytest.raises(DataChangedError, match=r"had|was \(40,\).*\n.*pm\.set_data"):  # the twin: not stored
        pe.from_pymc(
            model, xr.DataTree.from_dict({"posterior": idata["posterior"], "observed_data": idata["observed_data"]})
        )


def test_a_variable_that_was_observed_twice_is_one(regression):
    """PyMC enters a variable a second time when it draws predictions for new data."""
    regression.observed_RVs.append(regression["y"])
    bridged, _ = pe.from_pymc(regression, tree(regression))
    assert [site.name for site in bridged.program.sites] == ["y"]


def test_draws_that_the_model_cannot_have_made(regression):
    with pytest.raises(DifferentModelError, match="log prior of the first draw"):
        pe.from_pymc(
            regression, tree(regression).map_over_datasets(lambda group: -group if "noise" in group else group)
        )


def test_what_is_no_model_and_no_draws(regression):
    with pytest.raises(InvalidTypeError, match=r"pm\.Model"):
        pe.from_pymc(lambda: None, tree(regression))
    with pytest.raises(InvalidTypeError):
        pe.from_pymc(regression, 3)


def test_without_pymc(monkeypatch, regression):
    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(MissingExtraError, match="pymc"):
        pe.from_pymc(regression, None)


@pytest.mark.parametrize("wide", [False, True])
def test_the_precision_of_the_process_stays_as_it_was(wide):
    """In a process of its own: PyTensor sets it when its translation to jax is first imported."""
    code = (
        f"import jax; jax.config.update('jax_enable_x64', {wide})\n"
        "from posterase.bridges.pymc.model import _dispatch\n"
        f"with jax.enable_x64({not wide}): _dispatch()\n"
        "print(jax.config.jax_enable_x64)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == str(wide)


# --- a real fit


def test_a_fit_by_pymc_forgets_rows():
    """pm.sample, then three lines; the erased draws against the exact answer of a model that has one."""
    oracle = LinearRegression.make()
    with pm.Model() as model:
        x = pm.Data("x", oracle.X)
        pm.Normal("y", x @ pm.Normal("beta", 0, 2, shape=3), 0.8, observed=oracle.y)
        idata = pm.sample(
            1500, tune=500, chains=2, cores=1, progressbar=False, random_seed=1, compute_convergence_checks=False
        )
    bridged, draws = pe.from_pymc(model, idata, preprocessing="none")
    gone = np.arange(6)
    result = pe.erase(bridged, draws, rows=gone)
    kept = np.setdiff1d(np.arange(60), gone)
    sd = np.sqrt(np.diag(np.linalg.inv(oracle.precision(kept))))
    found = np.average(result.draws.matrix(), axis=0, weights=np.asarray(result.draws.weights).ravel())
    assert (np.abs(found - oracle.mean(kept)) < 5 * sd / np.sqrt(500)).all()
    assert result.draws.to_arviz()["constant_data"]["x"].shape == (54, 3)
