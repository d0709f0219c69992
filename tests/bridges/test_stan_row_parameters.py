"""Parameters of single rows in Stan programs: what stands in for a row that is gone."""

import collections

import numpy as np
import pytest
from scipy.stats import norm

import posterase as pe
from posterase.bridges.stan.from_stan import _check_neighbours
from posterase.bridges.stan.model import Host
from posterase.bridges.stan.programs import StanPosterior, StanProgram
from posterase.bridges.stan.row_parameters import Moments, WithAbsentRows, find_row_parameters, moments_of
from posterase.errors import NotFactorisedError
from tests.statistical import assert_moments

ROWS = 5


class Effects(StanPosterior):
    """mu ~ N(0, 1); effect[n, k] ~ N(mu, 1), stored as exp of it: rows are the first axis, columns come first."""

    def __init__(self, rows):
        self.rows, self.calls = rows, collections.Counter()

    def elements(self, kind):
        effects = [f"effect.{row + 1}.{k}" for k in (1, 2) for row in range(self.rows)]
        return ["mu", *effects, *(["total"] if kind == "everything" else [])]

    def log_density(self, thetas, jacobian=True):
        return norm.logpdf(thetas[:, 0]) + norm.logpdf(thetas[:, 1:] - thetas[:, :1]).sum(axis=1)

    def log_density_and_gradient(self, thetas):
        apart = thetas[:, 1:] - thetas[:, :1]
        slopes = np.concatenate([apart.sum(axis=1, keepdims=True) - thetas[:, :1], -apart], axis=1)
        return self.log_density(thetas), slopes

    def constrain(self, thetas, kind="parameters", seed=1):
        own = np.concatenate([thetas[:, :1], np.exp(thetas[:, 1:])], axis=1)
        return np.concatenate([own, own[:, 1:].sum(axis=1, keepdims=True)], axis=1) if kind == "everything" else own

    def unconstrain(self, params):
        return np.concatenate([params[:, :1], np.log(params[:, 1:])], axis=1), ""


THETAS = np.random.default_rng(0).normal(size=(400, 1 + 2 * ROWS)) + np.arange(1 + 2 * ROWS)
FOUND = find_row_parameters(Effects(ROWS), Effects(ROWS - 1), ["mu", "effect"], ROWS)
MASK = np.array([True, False, True, False, True])


def without(mask, present=None):
    present = np.ones(ROWS, bool) if present is None else present
    moments = FOUND.moments(moments_of(THETAS), present, mask)
    return WithAbsentRows(Effects(int(mask.sum())), FOUND, mask, moments)


def test_places_of_rows():
    np.testing.assert_array_equal(FOUND.free, np.column_stack([np.arange(1, 6), np.arange(6, 11)]))
    np.testing.assert_array_equal(FOUND.flat, FOUND.free)
    assert FOUND.axes == {"effect": 0}
    assert find_row_parameters(Effects(ROWS), Effects(ROWS), ["mu", "effect"], ROWS) is None
    assert find_row_parameters(Effects(ROWS), Effects(ROWS - 2), ["mu", "effect"], ROWS) is None


@pytest.mark.parametrize("mask", [MASK, np.arange(ROWS) == 2], ids=["two absent", "more absent than kept"])
def test_a_program_with_places_for_absent_rows(mask):
    """The kept rows' density times one that integrates to one; the same parameters on both scales; its own gradient."""
    posterior = without(mask)
    here = np.concatenate([[True], mask, mask])
    rest = THETAS[:, ~here]
    beside = norm.logpdf(rest, posterior.means, posterior.sds).sum(axis=1)
    np.testing.assert_allclose(posterior.log_density(THETAS), Effects(3).log_density(THETAS[:, here]) + beside)
    values = posterior.constrain(THETAS)
    np.testing.assert_allclose(values, Effects(ROWS).constrain(THETAS))
    np.testing.assert_allclose(posterior.unconstrain(values)[0], THETAS)
    one, step = THETAS[:1], 1e-5 * np.eye(1 + 2 * ROWS)
    slopes = (posterior.log_density(one + step) - posterior.log_density(one - step)) / 2e-5
    values, found = posterior.log_density_and_gradient(one)
    np.testing.assert_allclose(found[0], slopes, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(values, posterior.log_density(one))
    total = posterior.constrain(THETAS, "everything")[:, -1]
    np.testing.assert_allclose(total, np.exp(THETAS[:, 1:][:, here[1:]]).sum(axis=1))
    assert posterior.elements("everything") == Effects(ROWS).elements("everything")


def test_what_stands_in_holds_nothing_of_the_row():
    """Another draw of the absent rows' parameters, the same density for them; and it stays in later requests."""
    before = without(MASK)
    changed = THETAS.copy()
    changed[:, FOUND.free[~MASK].ravel()] += 7
    after = FOUND.moments(moments_of(changed), np.ones(ROWS, bool), MASK)
    gone = FOUND.free[~MASK]
    np.testing.assert_allclose(after.means[gone].ravel(), before.means.reshape(2, 2).T.ravel())
    np.testing.assert_allclose(after.means[gone], THETAS.mean(axis=0)[FOUND.free[MASK]].mean(axis=0)[None].repeat(2, 0))
    first = FOUND.moments(moments_of(THETAS), np.ones(ROWS, bool), MASK)
    second = FOUND.moments(first, MASK, np.array([True, False, False, False, True]))
    np.testing.assert_array_equal(second.means[gone], first.means[gone])
    np.testing.assert_array_equal(second.sds[gone], first.sds[gone])
    pooled = first.means[FOUND.free[[0, 4]]]
    np.testing.assert_allclose(second.means[FOUND.free[2]], pooled.mean(axis=0))


def test_draws_for_absent_rows():
    posterior = without(MASK)
    kept = THETAS[:, np.concatenate([[True], MASK, MASK])].repeat(50, axis=0)
    whole = posterior.with_absent(kept, np.random.default_rng(1))
    np.testing.assert_array_equal(posterior.of_kept(whole), kept)
    np.testing.assert_allclose(whole[:, FOUND.free[1]].mean(axis=0), posterior.means[[0, 2]], atol=0.1)
    assert isinstance(moments_of(THETAS), Moments)


class Series(Effects):
    """A posterior in which a row's density looks at the row before."""

    def __init__(self, y, lag):
        super().__init__(len(y))
        self.y, self.lag = y, lag

    def log_density(self, thetas, jacobian=True):
        return thetas[:, 0] * (self.y.sum() + self.lag * (self.y[1:] * self.y[:-1]).sum())


class SeriesProgram(StanProgram):
    samples = False

    def __init__(self, lag):
        super().__init__()
        self.lag = lag

    def with_data(self, data):
        return Series(data["y"], self.lag)


@pytest.mark.parametrize("size", [3, 10])
def test_rows_that_look_at_each_other(size):
    data = {"y": np.random.default_rng(0).normal(size=size)}
    theta = np.arange(1.0, 2.0 + 2 * size)

    def check(lag, rows=None):
        host = Host(SeriesProgram(lag), lambda data, rows: {"y": data["y"][rows]}, [])
        return _check_neighbours(host, data, rows, theta, size)

    assert check(lag=0.0) == ()
    assert "rows depend on one another in this program" in check(lag=0.5)[0]
    every = find_row_parameters(Effects(size), Effects(size - 1), ["mu", "effect"], size)
    assert check(lag=0.0, rows=every) == ()
    with pytest.raises(NotFactorisedError, match="effect has an axis of rows: without a row its neighbours would be"):
        check(lag=0.5, rows=every)


@pytest.mark.slow
def test_schools_that_are_rows():
    """A hierarchy with one effect per row: erased, erased again, and refitted by Stan, with Gaussian moments."""
    pytest.importorskip("httpstan")
    rng = np.random.default_rng(3)
    y, n = rng.normal(size=12) * 1.4, 12
    program = """
data { int<lower=1> J; vector[J] y; }
parameters { real mu; vector[J] theta; }
transformed parameters { vector[J] effect = theta - mu; }
model { mu ~ std_normal(); theta ~ normal(mu, 1); y ~ normal(theta, 1); }
"""

    def moments(rows):
        """Of mu and the effects of these rows: theta integrates out to y ~ N(mu, 2)."""
        variance = 1 / (1 + len(rows) / 2)
        return variance * y[rows].sum() / 2, variance

    def sample(rows, shape):
        mean, variance = moments(rows)
        mu = mean + np.sqrt(variance) * rng.normal(size=shape)
        return {"mu": mu, "theta": (mu[..., None] + y[rows]) / 2 + np.sqrt(0.5) * rng.normal(size=(*shape, len(rows)))}

    given = sample(np.arange(n), (4, 1000))
    given["effect"] = given["theta"] - given["mu"][..., None]
    model, draws = pe.from_stan(program, {"J": n, "y": y}, given, preprocessing="none")
    result = pe.erase(model, draws, [2], random_seed=0)
    again = result.erase([7], random_seed=1)
    policy = pe.Policy(refit=True)
    refitted = pe.erase(model, draws, [2, 7], methods=[pe.Refit()], policy=policy, random_seed=2)
    for found, gone in ((result, [2]), (again, [2, 7]), (refitted, [2, 7])):
        kept = np.setdiff1d(np.arange(n), gone)
        out = found.to_arviz()["posterior"]
        assert out["theta"].shape[-1] == out["effect"].shape[-1] == len(kept)
        mean, variance = moments(kept)
        assert_moments(out["mu"].values.reshape(-1, 1), np.array([mean]), np.array([variance]), efficiency=0.2)
        of_row = (mean + y[kept]) / 2, np.full(len(kept), variance / 4 + 0.5)
        assert_moments(out["theta"].values.reshape(-1, len(kept)), *of_row, efficiency=0.2)
        np.testing.assert_allclose(out["effect"], out["theta"] - out["mu"], rtol=1e-4, atol=1e-4)
    assert not any(y[row].tobytes() in np.asarray(again.model.data).tobytes() for row in (2, 7))
