"""posteriordb's posteriors through the NumPyro bridge: densities, reference draws, and erasures against refits."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density
from typer.testing import CliRunner

import posterase as pe
from posterase.cli.main import app
from posterase.experiments import posterior_bench
from posterase.experiments.posteriors import POSTERIORS, arguments, reference_draws
from tests.bridges.test_numpyro import assert_densities

FOLDER = Path(__file__).parents[1] / "posteriordb"


def draws_of(posterior):
    """Reference draws; for the hierarchy, which has none, points near its mode."""
    if posterior.data:
        return reference_draws(posterior, FOLDER)
    rng = np.random.default_rng(0)
    at = {"mu": 1.4, "beta": -0.7, "sigma_alpha": 0.3, "sigma_y": 0.7, "alpha": np.zeros(85)}
    return {name: value + 0.05 * rng.random((2, 50, *np.shape(value))) for name, value in at.items()}


def bridged(posterior):
    data = arguments(posterior, FOLDER)
    return data, *pe.from_numpyro(posterior.model, draws=draws_of(posterior), shared=posterior.shared, **data)


def dear(posteriors, cheap):
    """All of them in the full run; the cheap ones in `make test` too."""
    marks = {True: [], False: [pytest.mark.slow]}
    return [pytest.param(each, marks=marks[each.name.split("-")[0] in cheap], id=each.name) for each in posteriors]


@pytest.mark.parametrize("posterior", dear(POSTERIORS, {"radon_mn"}))
def test_densities_and_gradients(x64, posterior):
    """NumPyro's potential; finite differences; and, on the kept rows, NumPyro's density of the cut data."""
    data, model, draws = bridged(posterior)
    params = jax.tree.map(lambda leaf: leaf[1, 3], draws.params)
    assert_densities(model, params, posterior.model, (), data)
    change = model.change(remove=posterior.group(data))
    model.check_additivity(draws, change, samples=1)
    if model.program.row_latents or model.held:
        return  # called on fewer rows it would be a model of fewer parameters
    kept = np.setdiff1d(np.arange(model.n_rows), change.row_ids)
    cut = {name: values[kept] for name, values in data.items()}
    expected, _ = log_density(posterior.model, (), cut, params)
    np.testing.assert_allclose(model.without(change).log_joint(params), expected, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.slow
def test_jacobians(x64):
    """log |det| of NumPyro's transforms against the determinant of their derivative."""
    _, model, draws = bridged(POSTERIORS[3])
    theta = model.unconstrain(jax.tree.map(lambda leaf: leaf[0, 0], draws.params))
    vector, unravel = jax.flatten_util.ravel_pytree(theta)
    jacobian = jax.jacobian(lambda u: jax.flatten_util.ravel_pytree(model.constrain(unravel(u)))[0])(vector)
    np.testing.assert_allclose(model.log_det_jacobian(theta), np.linalg.slogdet(jacobian)[1], rtol=1e-10)


@pytest.mark.parametrize("posterior", dear(POSTERIORS[:6], set()))
@pytest.mark.statistical
def test_own_draws_agree_with_the_reference(x64, posterior):
    data, _, draws = bridged(posterior)
    own = posterior_bench.sampled(posterior, data)
    assert posterior_bench.agreement(draws, own) < 1.01
    shifted = {name: leaf + 0.3 * leaf.std(axis=(0, 1)) for name, leaf in draws.params.items()}
    assert posterior_bench.agreement(pe.Draws(shifted), own) > 1.01  # what does not agree is seen


def test_a_school_without_its_row_returns_to_its_prior(x64):
    """Eight schools: the removed school's effect has its prior's moments, the others' posterior stays theirs."""
    _, model, draws = bridged(POSTERIORS[2])
    result = pe.erase(model, draws, rows=[0], policy=pe.Policy(ess=100.0))
    weights = np.asarray(result.draws.weights)[..., None]
    effects = np.asarray(result.draws.params["theta_trans"])
    mean = (weights * effects).sum(axis=(0, 1))
    sd = np.sqrt((weights * (effects - mean) ** 2).sum(axis=(0, 1)))
    before = np.asarray(draws.params["theta_trans"])[..., 0].mean()
    assert abs(mean[0]) < 0.15 < before
    assert abs(sd[0] - 1) < 0.15


def test_a_group_without_which_nothing_is_known():
    """With flat priors: nobody over 64 is left to tell their coefficient."""
    data, model, draws = bridged(POSTERIORS[1])
    with pytest.raises(pe.errors.ImproperPosteriorError, match="does not depend on beta"):
        pe.erase(model, draws, rows=posterior_bench.POSTERIORS[1].group(data))


def test_a_group_without_which_a_sum_is_all_that_is_known():
    """Only mothers with a high school degree left: its coefficient and the intercept cannot be told apart."""
    _, model, draws = bridged(POSTERIORS[0])
    with pytest.raises(pe.errors.ImproperPosteriorError, match="a combination of beta"):
        pe.erase(model, draws, rows="mom_hs == 0")


def test_the_bench_without_its_data(tmp_path, monkeypatch):
    monkeypatch.delenv("POSTERASE_DATA", raising=False)
    out = tmp_path / "table.md"
    done = CliRunner().invoke(app, ["bench", "posteriors", "--out", str(out)])
    assert "name it: --posteriordb" in str(done.exception)
    done = CliRunner().invoke(app, ["bench", "posteriors", "--out", str(out), "--posteriordb", str(tmp_path)])
    assert "cannot be read" in str(done.exception)
    assert not out.exists()


@pytest.mark.parametrize("text", ["{}{", "[1]", '{"a": 1}', '[{"posterior": "a", "rhat": 1.0, "cells": [{}]}]', "3"])
def test_the_bench_goes_on_from_its_own_file_only(tmp_path, text):
    (tmp_path / "table.json").write_text(text)
    words = ["bench", "posteriors", "--out", str(tmp_path / "table.md"), "--posteriordb", str(tmp_path), "--resume"]
    done = CliRunner().invoke(app, words)
    assert "does not hold a run that was cut" in str(done.exception)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_a_cell_of_the_bench(x64, monkeypatch):
    """At the floor through every bridge; and a twin that deletes nothing is called wrong."""
    monkeypatch.setattr(posterior_bench, "DRAWS", 1000)
    fitted = posterior_bench.fit(POSTERIORS[0], FOLDER)
    rows = fitted.posterior.group(fitted.data)
    cells = posterior_bench.measure(fitted, "a group", rows)
    assert [(cell.bridge, cell.outcome) for cell in cells] == [
        (name, "at the floor") for name in posterior_bench.BRIDGES
    ]
    kept = np.setdiff1d(np.arange(fitted.model.n_rows), rows)
    refits = posterior_bench.refit(fitted, rows, kept)
    assert posterior_bench.apart(fitted.draws, refits).wrong
    assert jnp.isfinite(fitted.rhat)
    said = posterior_bench.summary([posterior_bench.Done(fitted.posterior.name, fitted.rhat, cells)])
    assert "3 were accepted and are at the floor, 0 were accepted and are wrong" in said
    assert "times faster than a refit (NumPyro" in said


@pytest.mark.slow
def test_refusals_are_judged(x64, monkeypatch):
    """Without those over 64 nothing is known of their coefficient: the refits say so too."""
    monkeypatch.setattr(posterior_bench, "DRAWS", 500)
    fitted = posterior_bench.fit(POSTERIORS[1], FOLDER, ["NumPyro"])
    (cell,) = posterior_bench.measure(fitted, "everybody over 64", fitted.posterior.group(fitted.data))
    assert cell.outcome == "refused, rightly"
    assert posterior_bench._judged(None, [fitted.draws, fitted.draws], fitted.draws) == posterior_bench.THOUGH_RIGHT
    done = posterior_bench.Done(fitted.posterior.name, fitted.rhat, [cell])
    assert posterior_bench.Done.from_dict(json.loads(json.dumps(done.to_dict()))) == done
