"""Stan fits: that densities are Stan's, that its own sampler refits, how data are cut, what is refused and why.

One program is compiled for all of the fast tests (ten seconds, once: it is kept in the user's cache).
"""

import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.stats import kstest, norm

import posterase as pe
from posterase.bridges.shared import assembly
from posterase.bridges.shared.groups import axes_of, groupings
from posterase.bridges.stan import programs
from posterase.bridges.stan.data import as_arrays, by_length, packed, unpacked
from posterase.bridges.stan.from_stan import clear_pystan_cache
from posterase.bridges.stan.pystan_cache import cached_chains, describe_cached_chains
from posterase.data.selection import Block, RowTable
from posterase.errors import (
    AmbiguousRowsError,
    DataChangedError,
    DataError,
    DifferentModelError,
    DrawsShapeError,
    InputFileError,
    InvalidTypeError,
    MissingExtraError,
    NotFactorisedError,
    OutsideSupportError,
    StanProgramError,
    UnsupportedModelError,
)
from posterase.experiments.posteriors import POSTERIORS
from posterase.experiments.posteriors_stan import PROGRAMS
from posterase.numerics.cost import WARM_WARMUP
from posterase.numerics.input_checks import LOOKED_AT
from tests.bridges.test_arviz import NAME, PLANTED, found_in
from tests.experiments.test_posteriors import FOLDER, arguments, draws_of
from tests.oracles import LinearRegression
from tests.runtime.test_compilation import compilations
from tests.statistical import FALSE_ALARM, assert_moments, rejected

pytest.importorskip("httpstan")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")

REGRESSION = """
data {
  int<lower=0> N;
  int<lower=1> D;
  matrix[N, D] x;
  vector[N] y;
  array[N] int person;
}
parameters {
  vector[D] beta;
  simplex[3] shares;
  real<lower=0> scale;
  matrix<lower=0>[2, 3] table;
}
transformed parameters {
  real twice = 2 * beta[1];
  vector[N] fitted = x * beta;
}
model {
  beta ~ normal(0, 2);
  scale ~ normal(0, 1);
  to_vector(table) ~ exponential(1);
  y ~ normal(x * beta, 0.8);
}
generated quantities {
  real noise = normal_rng(0, 1);
  vector[N] log_lik;
  vector[N] y_rep;
  for (n in 1:N) {
    log_lik[n] = normal_lpdf(y[n] | x[n] * beta, 0.8);
    y_rep[n] = normal_rng(x[n] * beta, 0.8);
  }
}
"""
"""A regression with a Gaussian posterior, beside parameters of every kind of support that keep to their priors."""

ORACLE = LinearRegression.make()
EVERYONE, REMOVED = np.arange(60), np.array([3, 17, 42, 5])
KEPT = np.setdiff1d(EVERYONE, REMOVED)
DATA = {"N": 60, "D": 3, "x": ORACLE.X, "y": ORACLE.y, "person": np.repeat(np.arange(15), 4)}


def exact_draws(shape=(4, 1000), seed=1):
    rng = np.random.default_rng(seed)
    return {
        **ORACLE.sample(EVERYONE, shape, seed),
        "shares": rng.dirichlet(np.ones(3), shape),
        "scale": np.abs(rng.normal(size=shape)),
        "table": rng.exponential(size=(*shape, 2, 3)),
    }


@pytest.fixture(scope="module")
def program():
    return programs.PyStanProgram(REGRESSION)


@pytest.fixture
def fitted(program):
    return pe.from_stan(REGRESSION, DATA, exact_draws(), preprocessing="none")


def gaussian_part(draws):
    return np.asarray(draws.params["beta"], float).reshape(-1, 3)


# --- densities


def test_densities_are_those_of_the_model(x64, fitted):
    """Up to a constant those of the hand-written model and its priors, on Stan's unconstrained scale; and gradients."""
    model, draws = fitted
    by_hand = ORACLE.model()
    change = model.change(remove=REMOVED)
    one, other = both = [jax.tree.map(lambda leaf: leaf[0, at], draws.params) for at in (0, 1)]  # noqa: B023

    def others(params):
        """What the rest of the program adds."""
        return -0.5 * params["scale"] ** 2 - params["table"].sum()

    ours, theirs = pe.split(model, change), pe.split(by_hand, by_hand.change(remove=REMOVED))
    for number in range(3):
        found = [float(ours[number](model.unconstrain(p)) - theirs[number]({"beta": p["beta"]})) for p in both]
        rest = (
            [0.0, 0.0]
            if number == 2
            else [float(others(p) + model.log_det_jacobian(model.unconstrain(p))) for p in (one, other)]
        )
        np.testing.assert_allclose(found[0] - rest[0], found[1] - rest[1], atol=1e-9)
    slope = jax.grad(ours.source)(model.unconstrain(one))["beta"]
    np.testing.assert_allclose(slope, jax.grad(theirs.source)({"beta": one["beta"]})["beta"], rtol=1e-9)
    np.testing.assert_allclose(model.log_joint(one) - model.log_joint(other), _joint(one) - _joint(other), atol=1e-9)


def _joint(params):
    by_hand = ORACLE.model().log_joint({"beta": params["beta"]})
    return by_hand - 0.5 * params["scale"] ** 2 - params["table"].sum()


def test_there_and_back(x64, fitted):
    model, draws = fitted
    params = jax.tree.map(lambda leaf: leaf[2, 7], draws.params)
    theta = model.unconstrain(params)
    assert {name: leaf.shape for name, leaf in theta.items()} == {
        "beta": (3,),
        "shares": (2,),
        "scale": (1,),
        "table": (6,),
    }
    for name, leaf in model.constrain(theta).items():
        np.testing.assert_allclose(leaf, params[name], rtol=1e-10)
    np.testing.assert_allclose(theta["table"], np.log(params["table"]).T.ravel(), rtol=1e-10)  # columns first


def test_curvature_is_that_of_the_draws(x64, fitted):
    """Finite differences of Stan's gradients: the closed form to six digits, one over the draws' covariance within
    what so many draws can tell.
    """
    model, draws = fitted
    theta = model.unconstrain(jax.tree.map(lambda leaf: leaf[0, 0], draws.params))
    curvature = -jax.hessian(model.log_density)(theta)["beta"]["beta"]
    np.testing.assert_allclose(curvature, ORACLE.precision(EVERYONE), rtol=1e-6, atol=1e-5)
    sampled = np.linalg.inv(np.cov(gaussian_part(draws).T))
    np.testing.assert_allclose(curvature, sampled, atol=0.1 * np.abs(np.diag(curvature)).max())


def test_simplexes_that_went_through_float32(fitted):
    """Without 64-bit numbers a simplex sums to one within 1e-7 only, which Stan refuses: it is put back on it."""
    model, draws = fitted
    assert draws.params["shares"].dtype == np.float32
    theta = jax.vmap(model.unconstrain)(draws.flat())
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in theta.values())


# --- erasing


def test_an_exact_posterior_through_the_bridge(fitted):
    model, draws = fitted
    moments = ORACLE.mean(KEPT), ORACLE.variance(KEPT)
    for methods in ([pe.Reweight()], [pe.Transport()]):
        result = pe.erase(model, draws, rows=REMOVED, methods=methods)
        assert_moments(gaussian_part(result.draws), *moments, np.asarray(result.draws.weights).ravel())
    with rejected():  # nothing deleted
        assert_moments(gaussian_part(draws), *moments)
    assert result.verdict.method == "Transport"


def test_the_last_rung_is_a_refit_by_stan(fitted):
    """From transported draws, where none of the others may pass; no draw of it is one of ours."""
    model, draws = fitted
    policy = pe.Policy(refit=True, epsilon=0.0, ess=3000.0)
    result = pe.erase(model, draws, rows=np.arange(20), policy=policy)
    assert [outcome.name for outcome in result.outcomes] == ["Reweight", "Transport", "Refit"]  # no Rejuvenate
    kept = np.arange(20, 60)
    assert model.calls["sample"] == 4 * (1000 + WARM_WARMUP)
    gradients = result.outcomes[-1].diagnostics.cost.gradients  # of the chains, without the moves that verify them
    assert gradients < 12.5 * 4300, "14.7 a step with the metric in another order"
    refitted = result.outcomes[-1].erased.draws
    assert_moments(gaussian_part(refitted), ORACLE.mean(kept), ORACLE.variance(kept), efficiency=0.5)
    with rejected():
        assert_moments(gaussian_part(refitted), ORACLE.mean(EVERYONE), ORACLE.variance(EVERYONE), efficiency=0.5)


def log_likelihood(beta, rows):
    return norm.logpdf(ORACLE.y[rows], np.asarray(beta, float) @ ORACLE.X[rows].T, 0.8)


def with_quantities(given):
    """Draws with everything that the program computes, and a variable that it does not."""
    rng, fitted = np.random.default_rng(0), given["beta"] @ ORACLE.X.T
    return given | {
        "twice": 2 * given["beta"][..., 0],
        "fitted": fitted,
        "noise": rng.normal(size=given["scale"].shape),
        "log_lik": log_likelihood(given["beta"], EVERYONE),
        "y_rep": fitted + 0.8 * rng.normal(size=fitted.shape),
        "energy": given["scale"],
    }


def test_what_comes_out(program):
    """What the program computes, at the draws that come out and with the kept rows; nothing else."""
    given = with_quantities(exact_draws((4, 500)))
    model, draws = pe.from_stan(REGRESSION, DATA, given, preprocessing="none")
    result = pe.erase(model, draws, rows="person == 3", methods=[pe.Transport()], policy=pe.Policy(ess=50.0))
    kept = np.setdiff1d(EVERYONE, np.arange(12, 16))
    for _ in range(2):
        out = result.to_arviz()["posterior"]
        assert set(out.data_vars) == {"beta", "shares", "scale", "table", *given} - {"energy"}
        np.testing.assert_allclose(out["twice"], 2 * out["beta"][..., 0], rtol=1e-5)
        np.testing.assert_allclose(out["fitted"], out["beta"].values @ ORACLE.X[kept].T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(out["log_lik"], log_likelihood(out["beta"], kept), rtol=1e-4, atol=1e-4)
        left = ((out["y_rep"].values - out["fitted"].values) / 0.8).ravel()
        for noise in (left, out["noise"].values.ravel()):
            assert kstest(noise, "norm").pvalue > FALSE_ALARM
        assert not np.isin(out["y_rep"], given["y_rep"].astype(np.float32)).any()
    np.testing.assert_array_equal(out["y_rep"], result.to_arviz()["posterior"]["y_rep"])
    assert any("left out of the posterior: energy; the program does not" in note.text for note in result.verdict.notes)
    assert result.n_removed == 4
    again = result.erase(rows=[0], methods=[pe.Reweight()]).to_arviz()["posterior"]
    np.testing.assert_allclose(again["log_lik"], log_likelihood(again["beta"], kept[1:]), rtol=1e-4, atol=1e-4)


NUMBERS = """
data { int<lower=1> N; vector[N] y; real centre; }
transformed data { real y_mean = mean(y); }
parameters { real mu; }
model { mu ~ normal(0, 2); y - centre ~ normal(mu, 1); }
generated quantities {
  real raw = mu + centre;
  real from_mean = mu - y_mean;
  real flip = 1 - mu;
  real resid5 = y[6] - mu;
}
"""


def test_numbers_from_all_rows_in_the_data_do_not_come_out(monkeypatch):
    """A mean that is passed as data stays that of all rows; what reads a certain row would read another one."""
    y = 170 + ORACLE.y
    precision = 60 + 0.25
    mu = (y - y.mean()).sum() / precision + np.random.default_rng(0).normal(size=(4, 500)) / np.sqrt(precision)
    given = {"mu": mu, "raw": mu + y.mean(), "from_mean": mu - y.mean(), "flip": 1 - mu, "resid5": y[5] - mu}
    data = {"N": 60, "y": y, "centre": y.mean()}

    def erased():
        result = pe.erase(*pe.from_stan(NUMBERS, data, given, preprocessing="none"), [5], policy=pe.Policy(ess=50.0))
        return result.to_arviz()["posterior"], " ".join(map(str, result.verdict.notes))

    kept = np.delete(y, 5)
    posterior, notes = erased()
    assert set(posterior.data_vars) == {"mu", "from_mean", "flip"}
    assert "may be from all rows: raw (" in notes
    assert "left out of the posterior: resid5; the program" in notes
    np.testing.assert_allclose(posterior["from_mean"], posterior["mu"] - kept.mean(), rtol=1e-5)
    monkeypatch.setattr(assembly, "without_functions_of_data", lambda names, *_: list(names))
    posterior, _ = erased()
    centre = float((posterior["raw"].astype(float) - posterior["mu"].astype(float)).mean())
    assert 60 * centre - kept.sum() == pytest.approx(y[5], abs=1e-2)


def test_groups_of_arviz_come_out(program):
    """Log-likelihoods under the name of the outcome, predictions under their own; rows in another order are refused."""
    given = with_quantities(exact_draws((4, 500)))
    log_lik, y_rep = (given.pop(name) for name in ("log_lik", "y_rep"))
    tree = pe.Draws({name: given[name] for name in ("beta", "shares", "scale", "table")}).to_arviz()
    tree["log_likelihood"] = pe.Draws({"y": log_lik}, dims={"y": ["obs"]}).to_arviz()["posterior"].to_dataset()
    predicted = pe.Draws({"y_rep": y_rep}, dims={"y_rep": ["obs"]}).to_arviz()["posterior"]
    tree["posterior_predictive"] = predicted.to_dataset()
    result = pe.erase(*pe.from_stan(REGRESSION, DATA, tree), [3], methods=[pe.Transport()], policy=pe.Policy(ess=50.0))
    out, kept = result.to_arviz(), np.setdiff1d(EVERYONE, [3])
    beta = out["posterior"]["beta"]
    np.testing.assert_allclose(out["log_likelihood"]["y"], log_likelihood(beta, kept), rtol=1e-4, atol=1e-4)
    assert out["posterior_predictive"]["y_rep"].shape == (4, result.draws.n_draws, 59)
    turned = tree["posterior"].to_dataset().assign(log_lik=(("chain", "draw", "obs"), log_lik[..., ::-1]))
    tree["posterior"] = turned
    with pytest.raises(DataChangedError, match="'log_lik' of the posterior is not what the program computes"):
        pe.from_stan(REGRESSION, DATA, tree)


def test_every_group_and_attribute_is_free_of_the_removed_row(program, tmp_path):
    """What CmdStan's converters write beside the draws, with values that only the removed row has."""
    given = exact_draws((4, 500))
    names = np.array([f"row {i}" for i in EVERYONE], object)
    names[3] = NAME
    of_rows = np.where(EVERYONE == 3, PLANTED, ORACLE.y)
    of_draws = np.broadcast_to(of_rows, (4, 500, 60))
    dims = ("chain", "draw", "obs")
    group = lambda variables, **coords: xr.Dataset(variables, coords=coords, attrs={"note": NAME, "number": PLANTED})  # noqa: E731
    tree = pe.Draws(given).to_arviz()
    posterior = tree["posterior"].to_dataset()
    tree["posterior"] = posterior.assign(mu=(dims, of_draws)).assign_attrs(note=NAME, number=PLANTED)
    more = {
        "observed_data": group({"y": ("obs", ORACLE.y), "raw": ("obs", of_rows)}, obs=names),
        "constant_data": group({"total": ((), PLANTED), "z": (("k", "obs"), of_rows[None])}, obs=names, by=((), NAME)),
        "posterior_predictive": group({"replicate": (dims, of_draws)}, obs=names),
        "log_likelihood": group({"unknown": (dims, of_draws)}, obs=names),
        "sample_stats": group({"energy": (("chain", "draw"), of_draws[..., 3])}),
        "warmup_posterior": group({"beta": (("chain", "draw", "d"), np.full((4, 3, 3), PLANTED))}),
        "warmup_sample_stats": group({"lp": (("chain", "draw"), np.full((4, 3), PLANTED))}),
        "unconstrained_posterior": group({"scale": (("chain", "draw"), of_draws[..., 3])}),
        "predictions": group({"y": (dims, of_draws)}),
    }
    for name, each in more.items():
        tree[name] = each
    tree.attrs["note"] = NAME
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    assert len(found_in(tmp_path / "fit.nc")) > 20
    pair = pe.from_stan(REGRESSION, DATA, tmp_path / "fit.nc", preprocessing="none", frame={"name": names})
    policy = pe.Policy(ess=50.0)
    for methods in ([pe.Transport()], [pe.Reweight()]):
        result = pe.erase(*pair, {"name": NAME}, methods=methods, policy=policy)
        assert result.n_removed == 1
        assert found_in(result.draws.save(tmp_path / f"{result.verdict.method}.nc")) == []
        told = " ".join(map(str, result.verdict.notes))
        for name in ("mu", "sample_stats", "warmup_posterior", "unconstrained_posterior", "predictions", "total"):
            assert name in told


def test_nothing_of_the_removed_rows_is_left_and_nothing_compiles_again(fitted):
    model, draws = fitted
    erase = lambda own, rows: pe.erase(own, draws, rows, methods=[pe.Transport()])  # noqa: E731
    first = erase(model, [0, 1, 2])
    kept = unpacked(np.asarray(first.model.data))
    assert not np.isin(ORACLE.y[:3], kept["y"]).any()
    assert not any(ORACLE.y[at].tobytes() in np.asarray(first.model.data).tobytes() for at in range(3))
    assert kept["N"] == 57
    assert compilations(lambda: erase(model, [7, 8, 9, 30])) == 0
    again = first.erase([5, 6], methods=[pe.Reweight()])
    np.testing.assert_array_equal(np.flatnonzero(~np.asarray(again.model.present)), [0, 1, 2, 5, 6])
    np.testing.assert_array_equal(unpacked(np.asarray(again.model.data))["y"], np.delete(ORACLE.y, [0, 1, 2, 5, 6]))


def test_calls_are_counted_and_few(fitted):
    model, draws = fitted
    n = draws.n_chains * draws.n_draws
    before = dict(model.calls)
    result = pe.erase(model, draws, rows=REMOVED)
    assert result.verdict.method == "Reweight"
    spent = {name: count - before.get(name, 0) for name, count in model.calls.items()}
    moved = result.draws.n_chains * result.draws.n_draws
    assert 400 <= result.verdict.ess < moved < 900  # no more than the policy's effective draws need
    assert spent["log_density"] < 2.1 * n + 30 * moved  # all draws with all rows and with the kept ones; moves
    assert spent["gradient"] < 20 * moved + LOOKED_AT  # the draws are held against the model at so many
    refitted = pe.erase(model, draws, rows=REMOVED, methods=[pe.Refit(warm=0)])
    in_gradients = spent["gradient"] + (spent["log_density"] - 2 * n) / 3
    assert in_gradients < refitted.outcomes[-1].cost.evaluations / 4


def test_subset_of_ones_own(program):
    """Whole persons: the places that it is given are those among the rows that are there."""
    asked = []

    def subset(data, rows):
        asked.append(np.array(rows))
        assert len(data["y"]) == data["N"]
        return {**data, "N": len(rows), **{name: data[name][rows] for name in ("x", "y", "person")}}

    model, draws = pe.from_stan(REGRESSION, DATA, exact_draws((4, 200)), subset=subset, n_rows="N")
    default, _ = pe.from_stan(REGRESSION, DATA, exact_draws((4, 200)))
    change = model.change(remove=[0, 9])
    theta = model.unconstrain(jax.tree.map(lambda leaf: leaf[0, 0], draws.params))
    np.testing.assert_allclose(
        model.log_density_ratio(theta, change), default.log_density_ratio(theta, change), rtol=1e-5
    )
    next_one = model.without(change)
    asked.clear()
    next_one.without(next_one.change(remove=[2]))
    np.testing.assert_array_equal(asked[-1], [0, *range(2, 58)])  # row 2 is the second of those left
    by_number, _ = pe.from_stan(REGRESSION, DATA, exact_draws((4, 200)), subset=subset, n_rows=60)
    assert by_number.n_rows == 60


def test_a_subset_that_edits_what_it_is_given(program):
    """It is given copies."""

    def subset(data, rows):
        for name in ("x", "y", "person"):
            data[name] = data[name][rows]
        data["N"] = len(rows)
        return data

    model, _ = pe.from_stan(REGRESSION, DATA, exact_draws((4, 50)), subset=subset, n_rows="N")
    assert unpacked(np.asarray(model.data))["N"] == 60
    assert unpacked(np.asarray(model.without(model.change(remove=[3])).data))["N"] == 59


def test_draws_in_every_form(program):
    """By name, as a Dataset in another order of axes, a tree with data beside it; data that differ are refused."""
    given = exact_draws((4, 50))
    tree = pe.Draws(given).to_arviz()
    turned = tree["posterior"].to_dataset().transpose("draw", "chain", ...)
    for form in (given, pe.Draws(given), tree, turned):
        _, draws = pe.from_stan(REGRESSION, DATA, form)
        np.testing.assert_allclose(draws.params["beta"], given["beta"], rtol=1e-6)
    tree["observed_data"] = xr.Dataset({"y": ("row", DATA["y"])})
    pe.from_stan(REGRESSION, DATA, tree)
    tree["observed_data"] = xr.Dataset({"y": ("row", DATA["y"][::-1])})
    with pytest.raises(DataChangedError, match="data y"):
        pe.from_stan(REGRESSION, DATA, tree)
    with pytest.raises(InvalidTypeError, match="draws is None"):
        pe.from_stan(REGRESSION, DATA, None)
    with pytest.raises(DrawsShapeError, match="different leading axes"):
        pe.from_stan(REGRESSION, DATA, {**given, "scale": given["scale"][:, :20]})


def test_groups_are_counted_from_one():
    """Stan's own numbers: a school none of whose rows is left is cut out, and not its neighbour."""
    table = RowTable((Block("row", 6, (), {"school": np.array([1, 1, 2, 3, 3, 4])}),))
    groups = {"posterior": xr.Dataset({"effect": (("chain", "draw", "school"), np.zeros((1, 4, 4)))})}
    axes = axes_of({"row": 0}, [("row", 6)], groups, frozenset({"school"}))
    from_one, from_zero = (groupings(table, axes, groups, first) for first in (1, 0))
    without_the_second = np.array([True, True, False, True, True, True])
    np.testing.assert_array_equal(from_one["school"].left(without_the_second), [True, False, True, True])
    assert not from_zero
    named = {"posterior": groups["posterior"].assign_coords(school=list("abcd"))}
    left = groupings(table, axes, named, 1)["school"].left(without_the_second)
    np.testing.assert_array_equal(left, [True, False, True, True])


# --- data


def test_data_as_bytes():
    data = as_arrays({"N": 3, "y": [1.5, np.pi, -0.0], "i": np.array([[1, 2], [3, 4]]), "none": np.zeros((0, 2))})
    whole = packed(data, 1000)
    assert whole.size == 1000
    for name, values in unpacked(whole).items():
        np.testing.assert_array_equal(values, data[name])
        assert values.dtype == data[name].dtype
        assert values.shape == data[name].shape


def test_whole_numbers_that_stan_has_not_as_such():
    """Beyond 32 bits they go in as real ones, which Stan takes where it wants those."""
    found = as_arrays({"n": [1, 2], "large": np.array([5_000_000_000]), "huge": np.array([2**63 + 5], np.uint64)})
    assert [values.dtype.kind for values in found.values()] == ["i", "f", "f"]
    assert found["huge"][0] == 2.0**63


@pytest.mark.parametrize("bad", ["words", [[1, 2], [3]], [None, 1.0], np.ma.masked_array([1.0, 2.0], [False, True])])
def test_data_that_are_no_numbers(bad):
    with pytest.raises(DataError, match="'y'"):
        as_arrays({"N": 2, "y": bad})


@pytest.mark.parametrize(
    ("data", "rows", "said"),
    [
        ({"N": 4, "K": 3, "y": np.zeros(4), "u": np.zeros(3)}, None, r"several .* N \(y\); K \(u\)"),
        ({"N": 5, "y": np.zeros(4)}, None, "no number in the data counts the rows"),
        ({"N": 4, "y": np.zeros(4), "far": np.zeros((4, 4))}, None, "far has an axis as long as N"),
        ({"N": 4, "J": 4, "y": np.zeros(4)}, "N", "N and J are both 4"),
        ({"N": 4, "y": np.zeros(4)}, "M", "rows is 'M'"),
        ({"N": 4, "M": 7, "y": np.zeros(4)}, "M", "no array in the data is that long"),
    ],
)
def test_data_that_the_default_subset_cannot_cut(data, rows, said):
    with pytest.raises(AmbiguousRowsError, match=said) as error:
        by_length(as_arrays(data), rows)
    assert "n_rows=" in error.value.advice or "subset=" in error.value.advice or "name a whole" in error.value.advice


def test_the_default_subset():
    data = as_arrays({"N": 4, "K": 2, "y": np.arange(4.0), "x": np.arange(8.0).reshape(4, 2), "u": np.zeros(2)})
    cut = by_length(data, "N")(data, np.array([0, 3]))
    assert cut["N"] == 2
    np.testing.assert_array_equal(cut["x"], [[0, 1], [6, 7]])
    assert cut["u"].shape == (2,)


# --- bad input


def test_draws_of_another_program(program):
    given = exact_draws((2, 50))
    with pytest.raises(DifferentModelError, match="scale"):
        pe.from_stan(REGRESSION, DATA, {name: leaf for name, leaf in given.items() if name != "scale"})
    with pytest.raises(DifferentModelError, match="beta"):
        pe.from_stan(REGRESSION, DATA, {**given, "beta": given["beta"][..., :2]})
    with pytest.raises(OutsideSupportError, match="100 of 100 draws"):
        pe.from_stan(REGRESSION, DATA, {**given, "shares": given["shares"] * 2})
    with pytest.raises(InvalidTypeError, match="draws of scale"):
        pe.from_stan(REGRESSION, DATA, {**given, "scale": np.ones(100)})


def test_data_of_another_fit(program):
    """Log densities that Stan noted with the draws tell."""
    rng = np.random.default_rng(0)
    start = {name: leaf[0, 0] for name, leaf in exact_draws((1, 1)).items()}
    chains = program.sample(as_arrays(DATA), 3, [start] * 2, 100, 100)
    tree = pe.Draws(chains.params).to_arviz()
    tree["sample_stats"] = pe.Draws({"lp": chains.log_density}).to_arviz()["posterior"].to_dataset()
    _, draws = pe.from_stan(REGRESSION, DATA, tree)
    assert not any("could not be checked" in remark for remark in draws.container.remarks)
    with pytest.raises(DataChangedError, match="log densities"):
        pe.from_stan(REGRESSION, {**DATA, "y": rng.permutation(DATA["y"])}, tree)


def test_subsets_that_are_none(program):
    given = exact_draws((2, 50))
    with pytest.raises(UnsupportedModelError, match="every row"):
        pe.from_stan(REGRESSION, DATA, given, subset=lambda data, rows: {**data, "y": data["y"] + 1}, n_rows=60)
    with pytest.raises(UnsupportedModelError, match="leaves the data as they are"):
        pe.from_stan(REGRESSION, DATA, given, subset=lambda data, rows: data, n_rows="N")
    names = ("x", "y", "person")
    first = lambda data, rows: {**data, "N": len(rows), **{name: data[name][: len(rows)] for name in names}}  # noqa: E731
    with pytest.raises(UnsupportedModelError, match="not to the rows that it is given"):
        pe.from_stan(REGRESSION, DATA, given, subset=first, n_rows="N")
    forgot = lambda data, rows: {**data, "N": len(rows), "y": data["y"][rows]}  # noqa: E731
    with pytest.raises(UnsupportedModelError, match=r"one row less .* name=x"):
        pe.from_stan(REGRESSION, DATA, given, subset=forgot, n_rows="N")
    columns = lambda data, rows: {**data, "D": len(rows), "x": data["x"][:, rows]}  # noqa: E731
    with pytest.raises(NotFactorisedError, match="beta has an axis of rows"):
        pe.from_stan(REGRESSION, DATA, given, subset=columns, n_rows="D")
    for rows in (True, 0, "M"):
        with pytest.raises(AmbiguousRowsError, match="rows is"):
            pe.from_stan(REGRESSION, DATA, given, subset=first, n_rows=rows)
    with pytest.raises(AmbiguousRowsError, match="rows is 60"):
        pe.from_stan(REGRESSION, DATA, given, n_rows=60)
    with pytest.raises(AmbiguousRowsError, match="how many rows"):
        pe.from_stan(REGRESSION, {**DATA, "M": 60}, given, subset=lambda data, rows: data)


def test_programs_and_data_that_stan_refuses(tmp_path, monkeypatch, program):
    given = exact_draws((2, 50))
    with pytest.raises(StanProgramError, match="does not compile"):
        pe.from_stan("parameters { real x }\n", DATA, given)
    with pytest.raises(AmbiguousRowsError):
        pe.from_stan(REGRESSION, {"D": 3}, given)
    with pytest.raises(StanProgramError, match=r"Stan refuses.*person"):
        pe.from_stan(REGRESSION, {name: each for name, each in DATA.items() if name != "person"}, given)
    with pytest.raises(InputFileError, match="no file"):
        pe.from_stan(tmp_path / "model.stan", DATA, given)
    with pytest.raises(InvalidTypeError, match="program is a int"):
        pe.from_stan(3, DATA, given)
    with pytest.raises(InvalidTypeError, match="data is a NoneType"):
        pe.from_stan(REGRESSION, None, given)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(StanProgramError, match="no C\\+\\+ compiler"):
        pe.from_stan(f"{REGRESSION}\n// another\n", DATA, given)
    monkeypatch.delenv("CXX")
    (tmp_path / "model.stan").write_text(REGRESSION)
    model, _ = pe.from_stan(tmp_path / "model.stan", DATA, given)
    assert model.n_rows == 60


def test_without_pystan(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpstan", None)
    with pytest.raises(MissingExtraError, match="posterase\\[stan\\]"):
        pe.from_stan(REGRESSION, DATA, exact_draws((2, 50)))
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    library = FOLDER / "program.so"
    monkeypatch.setattr(type(library), "is_file", lambda self: True)
    with pytest.raises(MissingExtraError, match="posterase\\[bridgestan\\]"):
        pe.from_stan(library, DATA, exact_draws((2, 50)))


# --- programs that are refused

BOUNDED = """
data { int<lower=1> N; vector<lower=0>[N] time; }
parameters { real mu; real<lower=0> sigma; real<lower=0, upper=min(time)> shift; unit_vector[2] way; }
model { time - shift ~ lognormal(mu, sigma); mu ~ normal(0, 1); sigma ~ normal(0, 1); }
"""


@pytest.mark.slow
def test_scales_that_depend_on_the_data():
    """Bounds by the removed row: its unconstrained scale is another one without it. And unit vectors, whose length on
    Stan's scale no draw tells.
    """
    rng = np.random.default_rng(0)
    data = {"N": 50, "time": 0.3 + rng.lognormal(-1, 0.5, 50)}
    angle, shape = rng.uniform(0, 6, (2, 100)), (2, 100)
    given = {
        "mu": rng.normal(size=shape),
        "sigma": rng.random(shape) + 0.5,
        "shift": rng.random(shape) * 0.2,
        "way": np.stack([np.cos(angle), np.sin(angle)], axis=-1),
    }
    with pytest.raises(UnsupportedModelError, match="way, as of a unit_vector"):
        pe.from_stan(BOUNDED, data, given)
    program = BOUNDED.replace(" unit_vector[2] way;", "")
    model, draws = pe.from_stan(program, data, {name: leaf for name, leaf in given.items() if name != "way"})
    fastest = int(np.argmin(data["time"]))
    with pytest.raises(NotFactorisedError, match="shift has another scale"):
        model.check_additivity(draws, model.change(remove=[fastest]))
    model.check_additivity(draws, model.change(remove=[(fastest + 1) % 50]))  # bounds stay where they were


# --- BridgeStan


@pytest.mark.slow
def test_a_library_by_bridgestan(x64, fitted, tmp_path):
    """BridgeStan's package on a program behind its C interface: what comes of it is what our own library gives."""
    bridgestan = pytest.importorskip("bridgestan")
    source, library = Path(__file__).parents[1] / "bridgestan_library.cpp", tmp_path / "program.so"
    version = zip(("MAJOR", "MINOR", "PATCH"), bridgestan.__version__.split("."), strict=True)
    (tmp_path / "program.cpp").write_text(programs._translated(REGRESSION, tmp_path))
    lib = Path(sys.modules["httpstan"].__file__).parent / "lib"
    sources = ("-shared", str(tmp_path / "program.cpp"), str(source), "-o", str(library), f"-L{lib}")
    defined = [f"-D{name}={number}" for name, number in version]
    programs._run(*defined, *sources, f"-Wl,-rpath,{lib}", *programs.LIBRARIES)
    given = exact_draws()
    model, draws = pe.from_stan(library, DATA, given, preprocessing="none")
    ours, _ = fitted
    change = model.change(remove=REMOVED)
    theta = model.unconstrain(jax.tree.map(lambda leaf: leaf[0, 0], draws.params))
    for function in ("log_density", "log_det_jacobian"):
        np.testing.assert_allclose(getattr(model, function)(theta), getattr(ours, function)(theta), rtol=1e-12)
    np.testing.assert_allclose(model.log_density_ratio(theta, change), ours.log_density_ratio(theta, change), rtol=1e-9)
    for name, leaf in jax.grad(model.log_density)(theta).items():
        np.testing.assert_allclose(leaf, jax.grad(ours.log_density)(theta)[name], rtol=1e-9)
    moments = ORACLE.mean(KEPT), ORACLE.variance(KEPT)
    result = pe.erase(model, draws, rows=REMOVED, methods=[pe.Transport()])
    assert_moments(gaussian_part(result.draws), *moments, np.asarray(result.draws.weights).ravel())
    few = pe.Draws({name: leaf[:, :100] for name, leaf in given.items()})
    text = programs.as_json(as_arrays(DATA)).decode()
    _, short = pe.from_stan(bridgestan.StanModel(str(library), text, warn=False), DATA, few)
    assert model.sampled(1, short.flat(), 10, 10) is None  # BridgeStan has no sampler: a refit is by our own NUTS
    refitted = pe.Refit(warmup=200)(0, model, short, change)
    assert_moments(gaussian_part(refitted.draws), *moments, efficiency=0.5)
    with pytest.raises(StanProgramError, match="Stan refuses"):
        pe.from_stan(library, {**DATA, "y": DATA["y"][:5]}, given, n_rows="N", subset=lambda data, rows: data)


# --- what PyStan keeps


@pytest.fixture
def pystan_cache(monkeypatch, tmp_path):
    """An empty cache of PyStan's."""
    monkeypatch.setattr("httpstan.cache.cache_directory", lambda: tmp_path)
    return tmp_path


def put_chains(code, names):
    """Files as httpstan writes them, and the program that it compiled beside them."""
    import httpstan.cache
    import httpstan.models

    model = httpstan.models.calculate_model_name(code)
    for name in names:
        httpstan.cache.dump_fit(b"draws", f"{model}/fits/{name}")
    httpstan.cache.dump_stanc_warnings("", model)
    return httpstan.cache.model_directory(model)


def test_a_verdict_says_that_pystan_keeps_draws(program, pystan_cache):
    """Of this program, and only while they are there; what deletes them leaves all else alone."""
    ours, others = (put_chains(code, ("aaaa", "bbbb")) for code in (REGRESSION, "another program"))

    def notes():
        model, draws = pe.from_stan(REGRESSION, DATA, exact_draws((4, 200)), preprocessing="none")
        found = pe.erase(model, draws, rows=[3], methods=[pe.Reweight()], policy=pe.Policy(ess=50.0)).verdict.notes
        return [note.text for note in found if "PyStan" in note.text]

    (note,) = notes()
    assert "draws of 2 chains" in note
    assert str(ours / "fits") in note
    assert clear_pystan_cache(REGRESSION) == 2
    assert notes() == []
    assert [path.name for path in ours.rglob("*") if path.is_file()] == ["stanc.log"]
    assert len(list((others / "fits").iterdir())) == 2
    assert clear_pystan_cache(REGRESSION) == 0


def test_the_home_folder_is_not_spelt_out(pystan_cache, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: pystan_cache.parent)
    put_chains(REGRESSION, ["aaaa"])
    (note,) = describe_cached_chains(REGRESSION)
    assert f"draws of 1 chain of this program, in ~/{pystan_cache.name}/models/" in note


def test_stan_as_we_sample_leaves_no_file(program, pystan_cache, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    start = {name: each[0, 0] for name, each in exact_draws((1, 1)).items()}
    program.sample(as_arrays(DATA), 1, [start], 20, 20)
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_place_in_pystans_cache(tmp_path):
    library = tmp_path / "model.so"
    library.touch()
    for wrong in (library, 3):
        with pytest.raises(InvalidTypeError, match="pass"):
            clear_pystan_cache(wrong)


# --- the real posteriors


@pytest.mark.slow
@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda each: each.name)
def test_real_posteriors_are_the_same_in_every_library(x64, posterior):
    """Unconstrained scales agree, log densities up to a constant, gradients to 1e-6, and what removed rows add."""
    pytest.importorskip("pymc")
    from posterase.experiments.posteriors_pymc import MODELS

    data, given, written = arguments(posterior, FOLDER), draws_of(posterior), PROGRAMS[posterior.name]
    arrays = {name: np.asarray(leaf, float) for name, leaf in given.items()}
    fits = [
        pe.from_numpyro(posterior.model, draws=given, shared=posterior.shared, **data),
        pe.from_pymc(MODELS[posterior.name](**data), pe.Draws(arrays).to_arviz(), shared=posterior.shared),
        pe.from_stan(written.program, written.data(data), arrays, subset=written.subset, n_rows="N"),
    ]
    found = []
    for model, draws in fits:
        thetas = [model.unconstrain(jax.tree.map(lambda leaf: leaf[1, at], draws.params)) for at in (3, 20, 40)]  # noqa: B023
        change = model.change(remove=posterior.group(data))
        names = sorted(thetas[0])
        vector = lambda tree: np.concatenate([np.ravel(tree[name]) for name in names])  # noqa: B023, E731
        densities = np.array([float(model.log_density(theta)) for theta in thetas])
        ratios = np.array([float(model.log_density_ratio(theta, change)) for theta in thetas])
        slopes = [vector(jax.grad(model.log_density)(theta)) for theta in thetas]
        found.append((np.array([vector(theta) for theta in thetas]), densities, ratios, np.array(slopes)))
    for theta, densities, ratios, slopes in found[1:]:
        np.testing.assert_allclose(theta, found[0][0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(densities - densities[0], found[0][1] - found[0][1][0], atol=1e-7)
        np.testing.assert_allclose(ratios - ratios[0], found[0][2] - found[0][2][0], atol=1e-7)
        np.testing.assert_allclose(slopes, found[0][3], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_pystan_itself_samples(tmp_path, monkeypatch):
    """`stan.build` and `sample`, as people use them: the fit and the model go in as they are."""
    stan = pytest.importorskip("stan")
    monkeypatch.chdir(tmp_path)  # PyStan leaves a folder `build` where it runs
    data = {name: each.tolist() if isinstance(each, np.ndarray) else each for name, each in DATA.items()}
    built = stan.build(REGRESSION, data=data, random_seed=1)
    clear_pystan_cache(built)  # of earlier runs of this test
    fit = built.sample(num_chains=4, num_samples=500, num_warmup=600, save_warmup=True)
    assert len(cached_chains(REGRESSION)) == 4
    model, draws = pe.from_stan(built, None, fit, preprocessing="none")
    assert draws.n_draws == 500
    assert_moments(gaussian_part(draws), ORACLE.mean(EVERYONE), ORACLE.variance(EVERYONE), efficiency=0.3)
    np.testing.assert_allclose(np.asarray(draws.params["table"]).mean(axis=(0, 1)), 1, atol=0.2)
    result = pe.erase(model, draws, rows=REMOVED, policy=pe.Policy(ess=200.0))
    weights = np.asarray(result.draws.weights).ravel()
    assert_moments(gaussian_part(result.draws), ORACLE.mean(KEPT), ORACLE.variance(KEPT), weights, efficiency=0.3)
    assert not any("could not be checked" in note.text for note in result.verdict.notes)
    assert any("PyStan's cache held draws of 4 chains" in note.text for note in result.verdict.notes)
    assert clear_pystan_cache(built) == 4
    model, draws = pe.from_stan(built, None, fit, preprocessing="none")
    result = pe.erase(model, draws, rows=REMOVED, methods=[pe.Refit()], policy=pe.Policy(refit=True, ess=200.0))
    assert model.calls["sample"] > 0
    assert not any("PyStan" in note.text for note in result.verdict.notes)
    assert cached_chains(REGRESSION) == []  # a refit of ours is in no file
