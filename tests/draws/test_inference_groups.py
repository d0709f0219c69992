"""What comes out beside the parameters: variables, log-likelihoods and predictions are those of the moved draws."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr

import posterase as pe
from posterase.draws.notes import NOT_ERASED, RESTS_ON
from posterase.errors import DataChangedError
from posterase.record.certificate import notes_about
from posterase.record.redaction import certified

N, GONE = 40, [3, 4, 5]
KEPT = np.delete(np.arange(N), GONE)
RNG = np.random.default_rng(0)
X = RNG.normal(size=N)
Y = 1 + 0.5 * X + RNG.normal(size=N)


def regression(x, y=None, reads_their_number=False):
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    mean = numpyro.deterministic("mean", intercept + slope * x)
    numpyro.deterministic("average", mean.mean())
    numpyro.deterministic("centred", mean - mean.mean())
    numpyro.deterministic("total", jnp.sum(intercept * jnp.ones(len(x))))
    numpyro.deterministic("twice", 2 * intercept)
    if reads_their_number:
        assert len(x) == N
    with numpyro.plate("person", len(x)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


@pytest.fixture(scope="module")
def tree():
    """Draws of the exact posterior, with log-likelihoods, predictions, data, and statistics that must not come out."""
    design = np.stack([np.ones(N), X], axis=1)
    precision = design.T @ design + np.eye(2)
    theta = RNG.multivariate_normal(np.linalg.solve(precision, design.T @ Y), np.linalg.inv(precision), (2, 400))
    mean = theta @ design.T
    likelihood = -0.5 * (Y - mean) ** 2 - 0.5 * np.log(2 * np.pi)
    centred = mean - mean.mean(axis=-1, keepdims=True)
    of_draws, of_rows = ("chain", "draw"), ("chain", "draw", "person")
    posterior = {
        "intercept": (of_draws, theta[..., 0]),
        "slope": (of_draws, theta[..., 1]),
        "mean": (of_rows, mean),
        "average": (of_draws, mean.mean(axis=-1)),
        "centred": (of_rows, centred),
        "total": (of_draws, N * theta[..., 0]),
        "twice": (of_draws, 2 * theta[..., 0]),
    }
    groups = {
        "posterior": xr.Dataset(posterior, attrs={"removed_mean": float(Y[GONE].mean())}),
        "log_likelihood": xr.Dataset({"y": (of_rows, likelihood), "elsewhere": (of_rows, likelihood)}),
        "posterior_predictive": xr.Dataset({"y": (of_rows, mean + RNG.normal(size=mean.shape))}),
        "sample_stats": xr.Dataset({"lp": (of_draws, likelihood.sum(axis=-1)), "energy": (of_draws, mean[..., 3])}),
        "warmup_posterior": xr.Dataset({"intercept": (of_draws, theta[..., 0])}),
        "unconstrained_posterior": xr.Dataset({"intercept": (of_draws, theta[..., 0])}),
        "observed_data": xr.Dataset({"y": (("person",), Y)}),
        "constant_data": xr.Dataset({"x": (("person",), X)}),
    }
    return xr.DataTree.from_dict(groups)


@pytest.fixture(scope="module")
def erased(tree):
    model, draws = pe.from_numpyro(regression, X, Y, draws=tree, preprocessing="none")
    return pe.erase(model, draws, rows=GONE)


def test_variables_are_those_of_the_kept_rows_at_the_moved_draws(erased):
    """Also those that are computed from several rows: a mean is over the kept ones only."""
    after = erased.to_arviz()["posterior"]
    mean = after.intercept.values[..., None] + after.slope.values[..., None] * X[KEPT].astype(np.float32)
    assert after.sizes["person"] == len(KEPT)
    np.testing.assert_allclose(after["mean"], mean, atol=1e-5)
    np.testing.assert_allclose(after["average"], mean.mean(axis=-1), atol=1e-5)
    np.testing.assert_allclose(after["centred"], mean - mean.mean(axis=-1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(after["total"], len(KEPT) * after.intercept, rtol=1e-5)
    np.testing.assert_allclose(after["twice"], 2 * after.intercept, rtol=1e-6)


def test_log_likelihoods_and_predictions_are_those_of_the_moved_draws(erased):
    after = erased.to_arviz()
    mean = after["posterior"]["mean"].values
    likelihood = after["log_likelihood"]["y"]
    np.testing.assert_allclose(likelihood, -0.5 * (Y[KEPT] - mean) ** 2 - 0.5 * np.log(2 * np.pi), atol=1e-3)
    assert list(after["log_likelihood"].data_vars) == ["y"]
    assert "elsewhere of log_likelihood" in " ".join(map(str, erased.verdict.notes))
    errors = after["posterior_predictive"]["y"].values - mean
    n = errors.size
    assert abs(errors.mean()) < 5 / np.sqrt(n)
    assert abs(errors.std() - 1) < 5 / np.sqrt(2 * n)
    np.testing.assert_array_equal(after["posterior_predictive"]["y"], erased.to_arviz()["posterior_predictive"]["y"])
    for name in ("log_likelihood", "posterior_predictive"):
        np.testing.assert_array_equal(after[name]["draw"], after["posterior"]["draw"])


def test_nothing_else_comes_out(erased):
    """The sampler's log densities and energies, the warm-up and unconstrained draws give log p(S′ | θ) away."""
    after = erased.to_arviz()
    assert set(after.children) == {
        "posterior",
        "log_likelihood",
        "posterior_predictive",
        "observed_data",
        "constant_data",
    }
    for group in ("observed_data", "constant_data"):
        assert not np.isin(after[group].to_dataset().to_array().values, [*X[GONE], *Y[GONE]]).any()
    assert "removed_mean" not in after["posterior"].attrs
    dropped = next(note.text for note in erased.verdict.notes if note.text.startswith("dropped"))
    assert all(name in dropped for name in ("sample_stats", "warmup_posterior", "unconstrained_posterior"))


def test_a_second_erasure_computes_them_again(erased):
    again = erased.erase([9]).to_arviz()
    kept = np.delete(np.arange(N), [*GONE, 9])
    mean = again["posterior"]["mean"].values
    assert again["log_likelihood"]["y"].shape == mean.shape
    np.testing.assert_allclose(mean.mean(axis=-1), again["posterior"]["average"], atol=1e-5)
    np.testing.assert_allclose(
        again["log_likelihood"]["y"], -0.5 * (Y[kept] - mean) ** 2 - 0.5 * np.log(2 * np.pi), atol=1e-3
    )


def test_notes_have_a_kind(erased):
    kinds = {note.kind for note in erased.verdict.notes}
    assert "container" in kinds
    certificate = certified(erased.to_dict(), [])
    left = notes_about(certificate, NOT_ERASED)
    assert not any(text.startswith(("cut", "computed", "dropped")) for text in left)
    assert set(left) == {note.text for note in erased.verdict.notes if note.kind in ("rows", "model", "preprocessing")}
    assert notes_about(certificate, RESTS_ON) == [note.text for note in erased.verdict.notes if note.kind == "input"]
    assert erased.verdict.to_dict()["notes"][0].keys() == {"kind", "text"}


def test_what_cannot_be_computed_again_is_left_out(tree):
    """A model that cannot be called on fewer rows computes no mean over the kept ones."""
    model, draws = pe.from_numpyro(regression, X, Y, draws=tree, reads_their_number=True, preprocessing="none")
    assert not model.program.by_rows
    result = pe.erase(model, draws, rows=GONE)
    after = result.to_arviz()["posterior"]
    assert not {"average", "centred"} & set(after.data_vars)
    assert {"mean", "twice"} <= set(after.data_vars)
    assert "average" in " ".join(map(str, result.verdict.notes))


def test_rows_in_another_order_than_the_log_likelihoods(tree):
    """Sums over rows do not see it: the draws are of these data, but the ids name other rows."""
    without_data = tree.filter(lambda node: node.name not in ("observed_data", "constant_data"))
    shuffled = np.random.default_rng(1).permutation(N)
    with pytest.raises(DataChangedError, match="rows in the same order"):
        pe.from_numpyro(regression, X[shuffled], Y[shuffled], draws=without_data)
    pe.from_numpyro(regression, X, Y, draws=without_data)
