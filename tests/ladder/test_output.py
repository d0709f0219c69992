"""What leaves memory has forgotten: no weights, no copies, no clusters of near neighbours, and honest diagnostics."""

import gc
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from arviz_base import from_dict
from arviz_stats import ess
from jax.scipy.special import betaln
from scipy.stats import chi2, kstest, norm

import posterase as pe
from posterase.bridges.shared.groups import with_groups
from posterase.bridges.shared.linear_relations import Summaries, without_functions_of_data
from posterase.data.selection import Block, RowTable
from posterase.errors import RefusedError, WeightedDrawsError
from posterase.ladder import erase, output
from posterase.model.densities import LogDensity
from posterase.numerics import extra_chances, kernels, refresh
from posterase.numerics.densities import unconstrained
from posterase.runtime import prng
from tests.attackers import differences, gaussian_row, leak, signals
from tests.oracles import BetaBernoulli, GammaPoisson, LinearRegression
from tests.runtime.test_compilation import compilations
from tests.statistical import FALSE_ALARM, assert_moments, rejected

REGRESSION = LinearRegression.make(rows=40, d=2)
SKEWED, SHARE = GammaPoisson.make(), BetaBernoulli.make(rows=30)
ORACLES = {
    "regression": (REGRESSION, np.argsort(-np.abs(REGRESSION.X[:, 1]))[:1]),
    "rate": (SKEWED, np.argsort(-SKEWED.y)[:1]),
    "share": (SHARE, np.flatnonzero(SHARE.y)[:2]),
}
MODELS = {id(oracle): oracle.model() for oracle, _ in ORACLES.values()}  # made once, and so compiled once
SEEDS = range(6)
NOISE = 1.3
"""Correlations of neighbours' signals vary by up to this much more than those of independent numbers."""


def request(name, seed, shape=(4, 1000)):
    """An oracle, its removed rows, draws of the source and of a refit."""
    oracle, rows = ORACLES[name]
    everyone = np.arange(oracle.n_rows)
    source = pe.Draws(oracle.sample(everyone, shape, seed=2 * seed))
    return oracle, rows, source, pe.Draws(oracle.sample(np.setdiff1d(everyone, rows), shape, seed=2 * seed + 1))


def file_of(oracle, draws, rows):
    """A file with these draws and the log-likelihoods of some rows."""
    model = MODELS[id(oracle)]
    data = jax.tree.map(lambda column: column[rows], model.data)
    rowwise = jax.vmap(lambda p: jax.vmap(lambda row: model.log_likelihood(p, row))(data))(draws.flat())
    posterior = {name: np.asarray(leaf) for name, leaf in draws.params.items()}
    log_likelihood = np.asarray(rowwise, np.float64).reshape(draws.n_chains, draws.n_draws, -1)
    return from_dict({"posterior": posterior, "log_likelihood": {"y": log_likelihood}})


def erased(name, route, seed, policy=None, shape=(4, 1000)):
    """What `erase` returns: draws that were moved or, from a file of log-likelihoods, selected. And a refit's file."""
    oracle, rows, source, refit = request(name, seed, shape)
    everyone = np.arange(oracle.n_rows)
    subset = route == "subset"
    model, draws = pe.from_arviz(file_of(oracle, source, everyone)) if subset else (MODELS[id(oracle)], source)
    result = pe.erase(model, draws, rows, random_seed=seed, methods=[pe.Reweight()], policy=policy)
    assert result.verdict.draws == route
    refit = first(refit, result.draws.n_draws)
    return oracle, rows, result, file_of(oracle, refit, np.setdiff1d(everyone, rows)) if subset else refit.to_arviz()


def written(draws, path):
    """Everything that the file of these draws holds."""
    with xr.open_datatree(draws.save(path, overwrite=True), engine="h5netcdf") as tree:
        return tree.load()


def leaks(oracle, rows, tree):
    """Every signal's correlation with log p(S′ | θ)."""
    draws = pe.Draws.from_arviz(tree)
    model = MODELS[id(oracle)]
    change = model.change(remove=rows)
    log_removed = -np.asarray(jax.vmap(lambda p: model.log_ratio(p, change))(draws.flat()), np.float64)
    return {name: leak(signal, log_removed) for name, signal in signals(tree, set(draws.names)).items()}


def first(draws, length):
    """As many draws of each chain as the output has: neighbours are nearer where there are more draws."""
    return pe.Draws({name: leaf[:, :length] for name, leaf in draws.params.items()})


def worst(found, null, n):
    """The largest z-score of the difference between an output's leaks and a refit's; and its limit.

    A correlation over n independent draws has an error of about 1/√n. A signal that a refit's files do not have is
    compared with 0.
    """
    names = {name for one in found for name in one}
    error = NOISE * np.sqrt(2 / len(found) / n)
    gaps = [
        np.mean([one.get(name, 0.0) for one in found]) - np.mean([one.get(name, 0.0) for one in null]) for name in names
    ]
    return max(np.abs(gaps)) / error, norm.isf(FALSE_ALARM / 2 / len(names))


# --- attacks


@pytest.mark.statistical
@pytest.mark.parametrize("route", ["moved", "subset"])
@pytest.mark.parametrize("name", ORACLES)
def test_an_attacker_learns_no_more_than_from_a_refit(name, route, tmp_path):
    found, null = [], []
    for seed in SEEDS:
        oracle, rows, result, refit = erased(name, route, seed, pe.Policy(ess=100.0))
        found.append(leaks(oracle, rows, written(result.draws, tmp_path / "kept.nc")))
        null.append(leaks(oracle, rows, refit))
    score, limit = worst(found, null, 4 * result.draws.n_draws)
    assert score < limit


def _weights(weighted, key):
    return weighted.to_arviz(include_weights=True)


def _resampled(weighted, key):
    return weighted.resample(key).to_arviz()


def _barely_moved(weighted, key):
    """By a hundredth of a standard deviation."""
    copies = weighted.resample(key)
    noise = np.random.default_rng(0)
    return pe.Draws({n: v + 0.01 * np.std(v) * noise.normal(size=v.shape) for n, v in copies.params.items()}).to_arviz()


@pytest.mark.statistical
@pytest.mark.parametrize("twin", [_weights, _resampled, _barely_moved], ids=["weights", "resampled", "barely moved"])
def test_the_attackers_catch_outputs_that_remember(twin, tmp_path):
    found, null = [], []
    for seed in SEEDS:
        oracle, rows, source, refit = request("regression", seed)
        weighted = pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()]).weighted_draws
        found.append(leaks(oracle, rows, twin(weighted, seed)))
        null.append(leaks(oracle, rows, written(refit, tmp_path / "refit.nc")))
    score, limit = worst(found, null, 4000)
    assert score > limit + norm.isf(0.01)


def test_weights_give_the_row_back_and_are_not_written(tmp_path):
    """One least-squares fit on weights in a file gives x and y to four digits: so there are none."""
    oracle, rows, source, _ = request("regression", 0)
    result = pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()])
    weighted = result.weighted_draws
    beta = np.asarray(weighted.flat()["beta"], np.float64)
    log_removed = -np.asarray(weighted.log_weights, np.float64).ravel()
    inside = log_removed > np.quantile(log_removed, 0.3)  # the tail of the weights is smoothed
    x, y = gaussian_row(-log_removed[inside], beta[inside], oracle.noise)
    np.testing.assert_allclose(np.abs(x), np.abs(oracle.X[rows[0]]), rtol=1e-3)
    assert abs(y) == pytest.approx(abs(oracle.y[rows[0]]), rel=1e-3)
    tree = written(result.draws, tmp_path / "kept.nc")
    assert list(tree.children) == ["posterior"]
    assert set(tree["posterior"].data_vars) == {"beta"}
    with pytest.raises(WeightedDrawsError):
        weighted.save(tmp_path / "weighted.nc")


def test_sums_of_log_likelihoods_do_not_come_out(tmp_path):
    """A deviance and a log density beside the kept rows' log-likelihoods are those of the removed rows."""
    oracle, rows, source, _ = request("regression", 0)
    beta = np.asarray(source.params["beta"], np.float64)
    rowwise = -0.5 * ((oracle.y - beta @ oracle.X.T) / oracle.noise) ** 2
    prior = -0.5 * (beta**2).sum(axis=-1) / oracle.prior**2
    posterior = {
        "beta": beta,
        "deviance": -2 * rowwise.sum(-1),
        "score": 3 * rowwise.sum(-1) + prior,
        "mean": beta[..., 0] * 2,
    }
    posterior["log_phi"] = np.random.default_rng(0).normal(size=beta.shape[:2])  # a parameter, whatever its name
    tree = from_dict({"posterior": posterior, "log_likelihood": {"y": rowwise}})
    for names in (None, ["beta"]):
        result = pe.erase(*pe.from_arviz(tree, var_names=names), rows, policy=pe.Policy(ess=50.0))
        assert result.verdict.draws == "subset"
        assert result.verdict.verified is False
        demanding = pe.erase(*pe.from_arviz(tree, var_names=names), rows, policy=pe.Policy(ess=2000.0))
        assert demanding.outcomes[-1].objections[0].cause == "ess"  # and not that the draws depend on the old ones
        assert "stored log-likelihoods only" in result.verdict.notes[0].text
        out = written(result.draws, tmp_path / "kept.nc")
        assert not {"deviance", "score"} & set(out["posterior"].data_vars)
        assert ({"mean", "log_phi"} <= set(out["posterior"].data_vars)) == (names is None)
        assert "deviance of the posterior" in " ".join(map(str, result.verdict.notes))


def fit_with_summaries():
    """A file as brms writes it, with what it computed from all rows; its removed row, and its covariates."""
    oracle, rows, source, _ = request("regression", 0)
    beta, rng = np.asarray(source.params["beta"], np.float64), np.random.default_rng(0)
    covariates = oracle.X + np.array([3.2, -1.7])
    county = np.arange(oracle.n_rows) // 8
    intercept = rng.normal(size=beta.shape[:2])
    posterior = {
        "b_Intercept": intercept - beta @ covariates.mean(axis=0),
        "b": beta,
        "slope": beta[..., 0],
        "difference": beta[..., 0] - beta[..., 1] / 2,
        "Intercept": intercept,
        "alpha": rng.normal(size=(*beta.shape[:2], 5)),
    }
    constant = {
        "x": covariates,
        "x_mean": covariates.mean(axis=0),
        "county_idx": county,
        "county_mean": np.array([covariates[county == i, 0].mean() for i in range(5)]),
        "county_rows": np.bincount(county),
        "soil": rng.normal(size=5),
    }
    dims = {"b": ["term"], "x": ["obs", "term"], "x_mean": ["term"], "y": ["obs"], "county_idx": ["obs"]}
    dims |= {name: ["county"] for name in ("alpha", "county_mean", "county_rows", "soil")}
    rowwise = -0.5 * ((oracle.y - beta @ oracle.X.T) / oracle.noise) ** 2
    groups = {"posterior": posterior, "log_likelihood": {"y": rowwise}, "constant_data": constant}
    tree = from_dict(groups, dims=dims, coords={"term": ["income", "age"]})
    for group in tree.children.values():
        group.attrs["x_mean"] = covariates.mean(axis=0)
    return tree, rows, covariates


def nearest(tree, rows, covariates):
    """How near the best guess comes to a covariate of the removed row, and what it was made from."""
    kept = np.delete(covariates, rows, axis=0).sum(axis=0)
    guesses = differences(tree, kept, len(covariates))
    return min((np.abs(values - covariates[rows[0]]).min(), name) for name, values in guesses)


def test_summaries_of_all_rows_do_not_come_out(tmp_path):
    """From means of all rows and the kept rows follow the removed ones: nothing in the file has such a mean."""
    tree, rows, covariates = fit_with_summaries()
    assert nearest(tree, rows, covariates)[0] < 1e-3  # the attack works on the file that went in
    result = pe.erase(*pe.from_arviz(tree), rows, policy=pe.Policy(ess=50.0), random_seed=0)
    out = written(result.draws, tmp_path / "kept.nc")
    assert set(out["posterior"].data_vars) == {"b_Intercept", "b", "slope", "difference", "alpha"}
    assert set(out["constant_data"].data_vars) == {"x", "county_idx", "soil"}
    distance, name = nearest(out, rows, covariates)
    assert distance > 1e-3, name
    told = " ".join(map(str, result.verdict.notes))
    assert "Intercept of the posterior" in told
    assert "computed from all rows: x_mean of constant_data, county_mean of constant_data, county_rows of" in told


CONSTANTS = (1.0372, 20.41, 203.7, 1234.56)
STORED = {
    "float64": lambda values: values,
    "float32": lambda values: values.astype(np.float32),
    "six digits": np.vectorize(lambda value: float(f"{value:.6g}")),
}


def fit_of_a_mean(n=60):
    """Values with a mean far from zero, draws of their centred mean, and log-likelihoods."""
    rng = np.random.default_rng(7)
    y = rng.normal(170, 8, n)
    y[17] = 201.3
    mu = rng.normal(0, 1, size=(4, 500))
    return y, mu, -0.5 * ((y - y.mean() - mu[..., None]) / 8) ** 2


def stored_fit(y, rowwise, posterior):
    groups = {"posterior": posterior, "log_likelihood": {"y": rowwise}, "observed_data": {"y": y}}
    return from_dict(groups, dims={"y": ["obs"]})


def test_a_constant_from_all_rows_does_not_come_out(tmp_path):
    """A centred mean beside the mean gives the removed row back to seven digits."""
    y, mu, rowwise = fit_of_a_mean()
    posterior = {"mu": mu, "km": mu / 1000, "flip": 1 - mu, "mu_cm": mu + y.mean(), "scaled": mu * y.std()}
    posterior["centre"] = np.full(mu.shape, y.mean())
    tree = stored_fit(y, rowwise, posterior)

    def attack(found):
        centre = float((found["posterior"]["mu_cm"] - found["posterior"]["mu"]).mean())
        return len(y) * centre - np.delete(y, 17).sum()

    assert attack(tree) == pytest.approx(y[17], abs=1e-6)  # on the file that went in
    result = pe.erase(*pe.from_arviz(tree), [17], policy=pe.Policy(ess=50.0))
    out = written(result.draws, tmp_path / "kept.nc")
    assert set(out["posterior"].data_vars) == {"mu", "km", "flip"}
    assert "from all rows: mu_cm, scaled, centre (" in " ".join(map(str, result.verdict.notes))
    named = pe.from_arviz(tree, var_names=["mu", "mu_cm"])
    twin = written(pe.erase(*named, [17], policy=pe.Policy(ess=50.0)).draws, tmp_path / "twin.nc")
    assert attack(twin) == pytest.approx(y[17], abs=1e-2)  # float32


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_and_coefficients_of_any_size_are_found(constant, stored):
    rng = np.random.default_rng(0)
    for spread in (0.1, 1.0, 10.0):
        mu, groups = spread * rng.normal(size=(4, 500)), spread * rng.normal(size=(4, 500, 6))
        posterior = {"mu": mu, "groups": groups, "sum": mu + constant, "groups_sum": groups + constant}
        posterior["product"] = mu * constant
        kept = without_functions_of_data(list(posterior), as_stored(posterior, stored), NO_DATA)
        assert kept == ["mu", "groups"]


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_what_a_model_computes_itself_stays(stored):
    rng = np.random.default_rng(0)
    mu, groups, scale = rng.normal(5, 1, (4, 500)), rng.normal(size=(4, 500, 50)), np.exp(rng.normal(0, 0.1, (4, 500)))
    shares = rng.dirichlet(np.ones(5), size=(4, 500))
    posterior = {
        "mu": mu,
        "groups": groups,
        "scale": scale,
        "shares": shares,
        "twice": 2 * mu,
        "third": mu / 3,
        "thousand": 1000 * mu,
        "flip": 1 - mu,
        "unit": (mu + 1) / 2,
        "difference": groups[..., 0] - groups[..., 1] / 2,
        "mean": groups.mean(axis=-1),
        "from_mean": groups - groups.mean(axis=-1, keepdims=True),
        "total": groups.sum(axis=-1),
        "walk": np.cumsum(groups[..., :10], axis=-1),
        "log_scale": np.log(scale),
        "effects": mu[..., None] + scale[..., None] * groups[..., :10],
        "correlation": np.stack([np.ones((4, 500)), np.tanh(mu), np.tanh(mu), np.ones((4, 500))], axis=-1),
    }
    assert without_functions_of_data(list(posterior), as_stored(posterior, stored), NO_DATA) == list(posterior)
    tight = np.exp(rng.normal(1, 7e-4, (4, 500)))
    nearly = {"scale": tight, "log_scale": np.log(tight)}  # all but linear
    assert without_functions_of_data(list(nearly), as_stored(nearly, lambda each: each), NO_DATA) == list(nearly)


def test_a_fraction_that_is_a_mean_of_the_data_is_data():
    """A treatment that half of all rows had: its mean is 1/2, and gives away what the removed row had."""
    a, b = np.random.default_rng(0).normal(size=(2, 4, 500))
    posterior = as_stored({"a": a, "b": b, "centred": a + b / 2, "sum": a + b}, lambda each: each)
    table = RowTable((Block("obs", 40, columns={"treated": np.arange(40) % 2, "first": np.arange(40) == 0}),))
    assert without_functions_of_data(list(posterior), posterior, Summaries.of(table)) == ["a", "b", "sum"]
    assert without_functions_of_data(list(posterior), posterior, NO_DATA) == list(posterior)


NO_DATA = Summaries(np.zeros(0), np.zeros(0))


def as_stored(posterior, stored):
    return from_dict({"posterior": {name: stored(each) for name, each in posterior.items()}})["posterior"].to_dataset()


def holds(root, old):
    """Whether values of the old draws can be reached from an object: what is pickled with it."""
    seen, queue = set(), [root]
    while queue:
        each = queue.pop()
        if id(each) in seen or isinstance(each, (str, bytes, int, float, type, types.FunctionType, types.ModuleType)):
            continue
        seen.add(id(each))
        if isinstance(each, (np.ndarray, jax.Array)):
            array = np.asarray(each)
            if array.dtype.kind == "f" and np.isin(old, array).mean() > 0.01:  # float32 may coincide
                return True
            continue
        queue += gc.get_referents(each)
    return False


def test_nothing_of_the_old_draws_is_reachable_from_the_new_ones():
    oracle, rows, source, _ = request("regression", 0)
    given = with_groups(source, {"observed_data": xr.Dataset({"y": ("row", oracle.y)})}, "row")
    result = pe.erase(MODELS[id(oracle)], given, rows, methods=[pe.Reweight()])
    old = np.asarray(source.params["beta"])
    assert not holds(result.draws, old)
    unsettled = result.weighted_draws.replace(result.draws.params)  # the twin: new values in the old container
    assert holds(unsettled, old)


# --- what is returned


@pytest.mark.statistical
@pytest.mark.parametrize("route", ["moved", "subset"])
@pytest.mark.parametrize("name", ORACLES)
def test_what_is_returned_is_of_the_kept_posterior(name, route):
    oracle, rows, result, _ = erased(name, route, 1, shape=(4, 20_000 if route == "subset" else 5000))
    (leaf,) = result.draws.flat().values()
    everyone = np.arange(oracle.n_rows)
    kept = np.setdiff1d(everyone, rows)
    assert_moments(np.asarray(leaf), oracle.mean(kept), oracle.variance(kept), efficiency=0.5)
    with rejected():
        assert_moments(np.asarray(leaf), oracle.mean(everyone), oracle.variance(everyone), efficiency=0.5)


def test_draws_are_moved_and_counted(x64):
    oracle, rows, source, _ = request("regression", 0)
    result = pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()])
    draws = np.asarray(result.draws.flat()["beta"])
    assert result.draws.log_weights is None
    assert len(np.unique(draws[:, 0])) == len(draws)
    assert not np.isin(draws, np.asarray(source.flat()["beta"])).any()
    assert result.outcomes[-1].output.correlation < refresh.MOST_CORRELATION
    assert result.outcomes[-1].cost.gradients > len(draws)
    assert result.to_dict()["returned"] == {"chains": 4, "draws": result.draws.n_draws}


def test_draws_are_fewer_where_moves_would_cost_much_of_a_refit(monkeypatch):
    oracle, rows, source, _ = request("share", 0)
    monkeypatch.setattr(output, "MOST_OF_A_REFIT", 0.1)
    few = pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()])
    assert few.draws.n_draws in {int(1000 * share) for share in output.SHARES}
    assert few.draws.n_draws < 1000
    assert "moving all draws would cost more than a quarter of a refit" in few.verdict.notes[0].text
    monkeypatch.setattr(output, "MOST_OF_A_REFIT", np.inf)
    assert pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()]).draws.n_draws == 1000
    monkeypatch.setattr(output, "MOST_OF_A_REFIT", 0.0)
    least = pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()], policy=pe.Policy(ess=600.0))
    assert 150 * output.SPARE <= least.draws.n_draws < 400  # not below what the policy asks for
    demanding = pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()], policy=pe.Policy(ess=4000.0))
    assert not demanding.verdict.accepted
    with pytest.raises(RefusedError):
        demanding.to_arviz()


def test_draws_that_cannot_be_moved_are_not_returned(monkeypatch):
    monkeypatch.setattr(refresh, "MOST_CORRELATION", 1e-6)
    oracle, rows, source, _ = request("regression", 0)
    for method in (pe.Reweight(), pe.Transport()):
        result = pe.erase(MODELS[id(oracle)], source, rows, methods=[method])
        assert not result.verdict.accepted
        assert "could not be moved" in result.verdict.reason


def test_methods_that_would_cost_more_than_a_refit_are_not_tried(monkeypatch):
    monkeypatch.setattr(refresh, "MOST_CORRELATION", 1e-6)  # moves go on until they have cost as much as a refit
    oracle, rows, source, _ = request("regression", 0)
    stopped = pe.erase(MODELS[id(oracle)], source, rows, policy=pe.Policy(refit=False))
    assert [outcome.name for outcome in stopped.outcomes] == ["Reweight", "Transport"]
    assert stopped.outcomes[0].cost.gradients > 10 * stopped.outcomes[1].cost.evaluations
    assert "Transport: not tried, since a refit costs less" in stopped.verdict.reason
    assert "could not be moved" in stopped.verdict.reason
    refitted = pe.erase(MODELS[id(oracle)], source, rows)
    assert [outcome.name for outcome in refitted.outcomes] == ["Reweight", "Transport", "Refit"]
    assert refitted.verdict.method == "Refit"


def test_a_request_says_what_happened_to_its_draws():
    oracle, rows, source, _ = request("regression", 0)
    policy = pe.Policy(refit=True)
    for method, origin, is_verified in [(pe.Transport(), "moved", True), (pe.Refit(warmup=100), "refitted", None)]:
        verdict = pe.erase(MODELS[id(oracle)], source, rows, methods=[method], policy=policy).verdict
        assert (verdict.draws, verdict.verified) == (origin, is_verified)
        assert verdict.to_dict()["verified"] is is_verified
    refused = pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()], policy=pe.Policy(ess=1e6))
    assert refused.verdict.verified is None


def test_the_next_request_compiles_nothing():
    oracle, _, source, _ = request("regression", 0)
    model = MODELS[id(oracle)]
    pe.erase(model, source, [3], methods=[pe.Reweight()])
    assert compilations(lambda: pe.erase(model, source, [5], methods=[pe.Reweight()])) == 0


def test_entropy_is_fresh_unless_a_key_is_given(monkeypatch):
    monkeypatch.setattr(erase, "fresh_key", prng.fresh_key)
    oracle, rows, source, _ = request("regression", 0)
    a, b = (pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()]).draws.params["beta"] for _ in range(2))
    assert not np.allclose(a[:, :100], b[:, :100])


@pytest.mark.statistical
def test_arviz_sees_what_is_left_of_a_chains_memory():
    """Chains with autocorrelation 0.9: the mean's error, by ArviZ's effective sizes, is as large as it really is."""
    oracle, rows, _, _ = request("regression", 0)
    everyone = np.arange(oracle.n_rows)
    kept = np.setdiff1d(everyone, rows)
    root = np.linalg.cholesky(np.linalg.inv(oracle.precision(everyone)))
    scores = []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=(4, 1000, 2))
        for i in range(1, 1000):
            noise[:, i] = 0.9 * noise[:, i - 1] + np.sqrt(1 - 0.9**2) * noise[:, i]
        source = pe.Draws({"beta": oracle.mean(everyone) + noise @ root.T})
        result = pe.erase(MODELS[id(oracle)], source, rows, random_seed=seed, methods=[pe.Reweight()])
        tree = from_dict({"posterior": {"beta": np.asarray(result.draws.params["beta"])}})
        worth = ess(tree, method="mean")["beta"].values
        error = np.sqrt(oracle.variance(kept) / worth)
        scores.append((np.asarray(result.draws.flat()["beta"]).mean(axis=0) - oracle.mean(kept)) / error)
    # Squared scores average 1 where the errors are right, less where they are pessimistic.
    assert np.sum(np.square(scores)) < chi2.isf(FALSE_ALARM, np.size(scores))


@pytest.mark.statistical
def test_a_support_that_grows_is_reached_by_moves():
    """y ~ Uniform(0, θ) without its largest rows: weights at the old draws say nothing of θ below their maximum."""
    y = np.sort(np.random.default_rng(0).uniform(size=40))
    model = pe.Model(
        lambda p: -p["theta"],
        lambda p, data: jnp.where(data["y"] < p["theta"], -jnp.log(p["theta"]), -jnp.inf),
        {"y": y},
        transforms={"theta": pe.positive},
    )

    def posterior(rows):
        grid = np.linspace(y[rows].max() + 1e-6, 3, 200_000)
        log_density = -grid - len(rows) * np.log(grid)
        density = np.exp(log_density - log_density.max())
        return grid, density / density.sum()

    grid, density = posterior(np.arange(40))
    source = pe.Draws({"theta": np.random.default_rng(1).choice(grid, (4, 1000), p=density)})
    result = pe.erase(model, source, [37, 38, 39], random_seed=0, methods=[pe.Reweight()])
    assert result.outcomes[-1].output.is_repaired
    grid, density = posterior(np.arange(37))
    mean = (grid * density).sum()
    variance = ((grid - mean) ** 2 * density).sum()
    assert_moments(np.asarray(result.draws.flat()["theta"])[:, None], mean, variance, efficiency=0.5)
    with rejected():  # what weights alone make of the old draws
        weighted = np.asarray(result.weighted_draws.resample(0).flat()["theta"])
        assert_moments(weighted[:, None], mean, variance, efficiency=0.5)


def test_odd_numbers_of_draws():
    oracle, rows, _, _ = request("regression", 0)
    everyone = np.arange(oracle.n_rows)
    for shape in ((1, 1001), (3, 333)):
        source = pe.Draws(oracle.sample(everyone, shape, seed=1))
        draws = pe.erase(MODELS[id(oracle)], source, rows, methods=[pe.Reweight()]).draws
        assert draws.n_chains == shape[0]
        assert draws.n_draws <= shape[1]


# --- the kernel


def halves(draws, model):
    thetas, like = unconstrained(model, draws)
    return thetas.reshape(2, len(thetas) // 2, -1), like


def run(model, draws, seed=0):
    """All draws moved."""
    thetas, like = halves(draws, model)
    every = np.tile(np.arange(thetas.shape[1]), (2, 1))
    plan = refresh.Plan(every, (every.shape[1],), np.inf, np.inf)
    return thetas, refresh.refresh(
        np.random.default_rng(seed),
        LogDensity(model),
        like,
        thetas,
        np.arange(thetas[..., 0].size).reshape(2, -1) // 10,
        lambda _: plan,
        lambda flat: (flat**2).sum(axis=1),
    )


LOG_GAMMA = pe.Model(
    lambda p: 2.0 * p["x"] - jnp.exp(p["x"]), lambda p, data: 0.0 * data["y"] * p["x"], {"y": np.zeros(2)}
)


def log_gamma(seed, shape=(4, 5000)):
    return pe.Draws({"x": np.log(np.random.default_rng(seed).gamma(2.0, size=shape))})


@pytest.mark.statistical
def test_moves_leave_a_skewed_density_invariant():
    """log of Gamma(2) draws; the twin, which accepts whatever is proposed, does not."""
    _, moved = run(LOG_GAMMA, log_gamma(0))
    assert moved.forgot
    assert kstest(np.exp(moved.thetas.ravel()), "gamma", args=(2.0,)).pvalue > FALSE_ALARM


@pytest.mark.statistical
def test_moves_that_accept_everything_are_found_out(monkeypatch):
    monkeypatch.setattr(extra_chances, "_energy", lambda momentum, value: jnp.zeros_like(value))
    jax.clear_caches()
    _, moved = run(LOG_GAMMA, log_gamma(0))
    jax.clear_caches()
    assert kstest(np.exp(moved.thetas.ravel()), "gamma", args=(2.0,)).pvalue < FALSE_ALARM / 100


def test_an_overflow_is_never_accepted():
    """A density that is a number nowhere but near the draws, and grows without bound where it overflows."""
    model = pe.Model(
        lambda p: jnp.where(jnp.abs(p["x"]) < 4, -0.5 * p["x"] ** 2, jnp.inf),
        lambda p, data: 0.0 * data["y"] * p["x"],
        {"y": np.zeros(2)},
    )
    draws = pe.Draws({"x": np.clip(np.random.default_rng(0).normal(size=(4, 500)), -3.9, 3.9)})
    _, moved = run(model, draws)
    assert np.isfinite(moved.thetas).all()
    assert np.abs(moved.thetas).max() < 4


def test_draws_without_a_gradient_are_not_moved():
    """Accepted trajectories from them would start at an energy that nobody knows."""
    model = pe.Model(
        lambda p: -0.5 * p["x"] ** 2 - jnp.sqrt(jnp.maximum(p["x"] + 1.5, 0.0)),
        lambda p, data: 0.0 * data["y"] * p["x"],
        {"y": np.zeros(2)},
    )
    draws = pe.Draws({"x": np.random.default_rng(0).normal(size=(4, 500))})
    thetas, moved = run(model, draws)
    assert not moved.forgot
    np.testing.assert_array_equal(moved.thetas, thetas)


def test_extra_chances_move_what_first_proposals_leave():
    """And a trajectory costs about its steps divided by the acceptance rate."""
    thetas, like = halves(log_gamma(1, (4, 1000)), LOG_GAMMA)
    own = kernels.Kernels(LogDensity(LOG_GAMMA), jax.tree.map(jnp.asarray, like), thetas)
    random, every = np.random.default_rng(0), np.ones(thetas.shape[:2], bool)
    tuned = own.tune(random)
    state = own.start(own.whiten(thetas), every)
    before = own.gradients
    sweeps = [own.sweep(random, state, every, tuned) for _ in range(5)]
    rate, left = np.mean([(swept.rates.mean(), 1 - swept.moved.mean()) for _, swept in sweeps], axis=0)
    assert 0.8 < rate < 0.97
    assert own.gradients - before < 1.2 * 5 * 4000 * tuned.steps.mean() / rate
    once = [own.sweep(random, state, every, tuned, chances=1)[1] for _ in range(5)]  # the twin, without them
    assert left < np.mean([1 - each.moved.mean() for each in once]) / 1.5
    moved, swept = sweeps[0]
    stays = ~swept.moved
    np.testing.assert_array_equal(np.asarray(moved.z)[stays], np.asarray(state.z)[stays])


def test_gradients_that_xla_miscompiles_side_by_side_are_taken_one_by_one():
    """That of betaln, at more than 4,096 draws × rows (jax 0.10.2 on a CPU); a draw at a time it is right."""
    rng = np.random.default_rng(0)
    size, treated = rng.integers(5, 14, size=60), np.arange(60) % 2

    def log_likelihood(p, data):
        chance = jax.nn.sigmoid(p["b"][0] + p["b"][1] * data["treated"])
        a, b = chance * jnp.exp(p["c"]), (1 - chance) * jnp.exp(p["c"])
        return betaln(data["y"] + a, data["size"] - data["y"] + b) - betaln(b, a)

    data = {"y": rng.binomial(size, rng.beta(2, 4, size=60)), "size": size, "treated": treated}
    model = pe.Model(lambda p: -0.5 * (jnp.sum(p["b"] ** 2) + (p["c"] - 2) ** 2), log_likelihood, data)
    rough = pe.Draws({"b": rng.normal([-0.7, 0], [0.2, 0.3], (4, 500, 2)), "c": rng.normal(1.8, 0.3, (4, 500))})
    thetas, like = halves(rough, model)
    own = kernels.Kernels(LogDensity(model), jax.tree.map(jnp.asarray, like), thetas)
    tuned = own.tune(np.random.default_rng(1))
    assert tuned is not None
    assert tuned.acceptance > 0.5


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["stretch", "jump"])
def test_cheap_moves_leave_a_skewed_density_invariant(name, monkeypatch):
    """Each alone, many times. The twins: stretches without their Jacobian, jumps that are always accepted."""
    thetas, like = halves(log_gamma(2), LOG_GAMMA)
    own = kernels.Kernels(LogDensity(LOG_GAMMA), jax.tree.map(jnp.asarray, like), thetas)
    every = np.ones(thetas.shape[:2], bool)

    def pvalue():
        random, state = np.random.default_rng(1), own.start(own.whiten(thetas), every)
        for _ in range(20):
            state, _ = getattr(own, name)(random, state, every)
        return kstest(np.exp(own.unwhiten(np.asarray(state.z, np.float64)).ravel()), "gamma", args=(2.0,)).pvalue

    assert pvalue() > FALSE_ALARM
    propose, wrong = own._propose, 0.0 if name == "stretch" else np.inf
    monkeypatch.setattr(own, "_propose", lambda *args: propose(*args[:3], np.full_like(args[3], wrong), args[4]))
    assert pvalue() < FALSE_ALARM / 100


def test_columns_that_never_change_count_as_forgotten():
    values = np.random.default_rng(0).normal(size=(100, 2))
    assert kernels.largest_correlation(values * [1, 0], values[::-1] * [1, 0]) < 0.5
    assert kernels.largest_correlation(values, values) == pytest.approx(1)
