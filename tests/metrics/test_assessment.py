"""assess(): what it says of erasures that are right, and of those that are not; what it leaves out; bad input."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.special import betaln

import posterase as pe
from posterase.errors import DifferentModelError, DrawsShapeError, InvalidOptionError, InvalidTypeError, RowsError
from posterase.metrics import Assessment
from posterase.metrics.comparison import two_sided
from posterase.metrics.samples import rounded_down, sampled
from posterase.metrics.table import Figure, Outcome, with_error
from posterase.numerics.weights import Estimate, parameter_ess
from tests.oracles import BetaBernoulli, LinearRegression

# --- a classifier: 240 rows to fit, 120 to test, 25 wrongly labelled ones to forget

COEFFICIENTS = np.array([0.3, 1.5, -1.0])
GONE = np.arange(25)


def make_rows(n, seed, flipped=0):
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), generator.normal(size=(n, 2))])
    y = (generator.uniform(size=n) < 1 / (1 + np.exp(-x @ COEFFICIENTS))).astype(float)
    y[:flipped] = x[:flipped] @ COEFFICIENTS < 0
    return {"x": x, "y": y}


DATA, TEST = make_rows(240, 0, flipped=25), make_rows(120, 1)


def log_likelihood(params, data):
    score = data["x"] @ params["w"]
    return data["times"] * (data["y"] * score - jnp.logaddexp(0, score))


def make_model(data, times=1.0):
    weights = np.ones(len(data["y"]))
    if len(weights) == len(DATA["y"]):
        weights[GONE] = times
    return pe.Model(lambda p: -0.5 * jnp.sum(p["w"] ** 2) / 4, log_likelihood, {**data, "times": weights})


def predictor(params, data):
    p = jax.nn.sigmoid(data["x"] @ params["w"])
    return jnp.stack([1 - p, p], axis=1)


MODEL = make_model(DATA)
TEST_DATA = {**TEST, "times": np.ones(120)}
CLASSIFIED = {"predictor": predictor, "labels": "y"}


def sample(model, seed):
    """Independent draws, but for what a few dozen Metropolis steps leave, in one batch."""
    sampler = pe.LaplaceFit(model, {"w": np.zeros(3)})
    keys = jax.random.split(jax.random.key(seed), 2000)
    draws = jax.jit(jax.vmap(lambda key: sampler(key, model.present)))(keys)
    return pe.Draws(jax.tree.map(lambda leaf: np.asarray(leaf).reshape(4, 500, *leaf.shape[1:]), draws))


@pytest.fixture(scope="module")
def draws():
    kept = MODEL.without(MODEL.change(remove=GONE))
    return {
        "before": sample(MODEL, 0),
        "refits": [sample(kept, 1), sample(kept, 2)],
        "exact": sample(kept, 3),
        "nothing": sample(MODEL, 4),
        "twice": sample(make_model(DATA, times=-1.0), 5),
    }


def assessed(draws, which, **options):
    after = draws[which] if isinstance(which, str) else which
    given = {"refits": draws["refits"], "test": TEST_DATA, "rows": GONE, **CLASSIFIED, **options}
    return pe.assess(MODEL, draws["before"], after, **given)


@pytest.fixture(scope="module")
def exact_table(draws):
    """An exact erasure, assessed with everything that there is."""
    return assessed(draws, "exact")


SEES = [
    "log-likelihood of removed rows",
    "log-likelihood of a kept row",
    "log-likelihood of a test row",
    "membership attack",
    "error on removed rows",
    "two-sample accuracy",
    "error of means (sd)",
    "Stein discrepancy KSD²",
    "prediction difference, removed rows",
    "KLoM, median (nats)",
    "KLoM, 95th percentile (nats)",
    "U-LiRA, found at 1 %",
    "ε̂ by nearest neighbours (nats)",
]
"""What claims to see these rows: every metric that is judged, but for errors and predictions on rows that the removed
ones hardly matter to, and spreads, which removing a tenth of the rows changes by a twentieth."""


def test_exact_erasures_are_at_the_floor(exact_table):
    """False alarm 1 % over the whole table."""
    assert exact_table.off == []
    assert set(SEES) <= set(exact_table.at_the_floor)


@pytest.mark.parametrize("broken", ["nothing", "twice"])
def test_each_metric_that_claims_to_see_catches_a_broken_erasure(draws, broken):
    found = assessed(draws, broken)
    full = {"membership attack", "error on removed rows"} if broken == "twice" else set()
    assert set(found.at_the_floor) <= full  # a refit gets nearly all of these rows wrong: there is no farther side
    assert set(SEES) - full <= set(found.off)
    removed = found.verdicts["log-likelihood of removed rows"]
    assert ("as far as the untouched" in removed) == (broken == "nothing")
    assert ("past the refits" in removed) == (broken == "twice")


@pytest.mark.slow
def test_an_erasure_of_the_ladder(draws):
    """What pe.erase returned says which rows; its ε and its seconds are told."""
    result = pe.erase(MODEL, draws["before"], GONE, refits=draws["refits"])
    found = pe.assess(MODEL, draws["before"], result, draws["refits"], TEST_DATA, **CLASSIFIED, refit_seconds=9.0)
    assert found.off == []
    metrics = found["metrics"]
    assert float(metrics["erased"].sel(metric="KL from weights (nats)")) == result.verdict.epsilon.value
    assert float(metrics["erased"].sel(metric="seconds a request")) == pytest.approx(result.seconds)
    assert float(metrics["refit"].sel(metric="seconds a request")) == 9.0
    jeffreys = metrics.sel(metric="Jeffreys ε (nats)")
    assert float(jeffreys["origin"]) > 10 * float(jeffreys["floor"])
    assert found.attrs["removed_rows"] == 25


def test_a_shift_is_assessed_with_the_density_of_its_draws(draws, exact_table):
    """Jeffreys of the shifted draws, whose density is known, is judged; PAC-Bayes has the change of the bound."""
    shifted = pe.InfluenceShift()(0, MODEL, draws["before"], MODEL.change(remove=GONE))
    found = assessed(draws, shifted)
    assert "reported" not in found.verdicts["Jeffreys ε (nats)"]
    assert float(found["metrics"]["erased"].sel(metric="PAC-Bayes bound, change")) >= 0
    assert "PAC-Bayes bound, change" in exact_table["left_out"]["metric"].values  # no shift


@pytest.mark.statistical
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(pe.Transport(), id="weighted"),
        pytest.param(pe.InfluenceShift(), id="moved"),
    ],
)
@pytest.mark.slow
def test_the_pac_bayes_bound_where_the_evidence_is_known(method):
    """A coin: KL of its Beta posterior, on the logit scale, to the Laplace prior, by quadrature; the law of the erased
    draws is that posterior where they are weighted, and the shifted one where they are moved."""
    oracle = BetaBernoulli.make()
    rows, left = np.arange(10), np.arange(10, 80)
    model = oracle.model()
    before = pe.Draws(oracle.sample(np.arange(80), (4, 2000), seed=0))
    erased = method(0, model, before, model.change(remove=rows))
    found = pe.assess(
        model,
        before,
        erased,
        rows=rows,
        predictor=lambda p, data: jnp.stack([1 - p["p"] + 0 * data["y"], p["p"] + 0 * data["y"]], axis=1),
        labels="y",
        log_evidence=oracle.log_evidence(np.arange(80)),
    )
    grid = np.linspace(-8, 8, 200_001)
    weighted = erased.draws.log_weights is not None
    a, b = oracle.shapes(left if weighted else np.arange(80))
    law = np.exp(a * -np.logaddexp(0, -grid) + b * -np.logaddexp(0, grid) - betaln(a, b))
    step = grid[1] - grid[0]
    shift = 0.0
    if not weighted:
        logit = [np.log(d.params["p"] / (1 - d.params["p"])) for d in (before, erased.draws)]
        shift = float(np.mean(np.asarray(logit[1]) - np.asarray(logit[0])))
    exact = np.sum(law * (np.log(law) + np.abs(grid + shift) + np.log(2))) * step
    risk = np.mean(oracle.y[left])  # the coin falls on its less likely side
    bound = risk + np.sqrt((exact + np.log(20) + np.log(70) + 2) / 139)
    made = found["metrics"].sel(metric="PAC-Bayes bound")
    assert abs(float(made["erased"]) - bound) < 5 * float(made["erased_error"]) + 2e-3
    assert "without looking at their values" in str(made["note"].values)


def test_it_is_a_tree_that_prints_as_a_table(exact_table, tmp_path):
    found = exact_table
    assert isinstance(found, xr.DataTree)
    text = str(found)
    header = next(line for line in text.splitlines() if line.startswith("metric"))
    assert header.split() == ["metric", "origin", "erased", "refit", "floor", "verdict"]
    assert "nan" not in text.lower()
    assert "it does not see how much weight separated modes have" in text
    assert "Left out" in text
    assert "PAC-Bayes" in text
    assert "<pre>" in found._repr_html_()
    found.to_netcdf(tmp_path / "found.nc", engine="h5netcdf")
    again = xr.open_datatree(tmp_path / "found.nc", engine="h5netcdf")
    assert again["metrics"].to_dataset().identical(found["metrics"].to_dataset())
    assert isinstance(repr(found["metrics"]), str)
    gap = found["metrics"]["gap"].sel(metric="membership attack")
    attack = found["metrics"].sel(metric="membership attack")
    assert float(gap) == pytest.approx(abs(float(attack["erased"]) - float(attack["refit"])))
    assert len(found.plot().axes) == 1


@pytest.mark.slow
def test_the_same_key_gives_the_same_table(draws):
    one, other = (assessed(draws, "exact", random_seed=7) for _ in range(2))
    assert one["metrics"].to_dataset().identical(other["metrics"].to_dataset())


def test_without_refits_the_density_speaks(draws):
    found = pe.assess(MODEL, draws["before"], draws["exact"], rows=GONE)
    assert found.verdicts["Stein discrepancy KSD²"] == "at the floor"
    assert "needs a refit" in found.verdicts["log-likelihood of removed rows"]
    left = dict(zip(found["left_out"]["metric"].values, found["left_out"]["why"].values, strict=True))
    assert "refit" in left["two-sample accuracy"]
    assert "test=" in left["membership attack"]
    assert "predictor=" in left["prediction difference, removed rows"]
    assert "pe.erase" in left["seconds a request"]
    off = pe.assess(MODEL, draws["before"], draws["nothing"], rows=GONE)
    assert off.off == ["Stein discrepancy KSD²"]


def test_metrics_of_ones_own_are_judged_with_ours(draws):
    def weights(work):
        values = {label: np.asarray(each.draws.params["w"][..., 0], float) for label, each in work.sets.items()}
        yield work.level("first weight", {label: work.sets[label].mean(each) for label, each in values.items()})
        yield pe.metrics.NotMeasured("second weight", "nobody asked")

    for case, outcome in (("exact", Outcome.AT_FLOOR), ("nothing", Outcome.OFF)):
        found = pe.assess(MODEL, draws["before"], draws[case], draws["refits"], rows=GONE, metrics={"weights": weights})
        assert found.outcomes["first weight"] is outcome
        assert "second weight: nobody asked" in str(found)


def test_one_refit_gives_no_floor(draws):
    found = assessed(draws, "exact", refits=draws["refits"][0])
    assert "second refit" in found.verdicts["KLoM, median (nats)"]
    assert found.verdicts["two-sample accuracy"] == "at the floor"  # what it is by chance is known
    assert found.off == []


@pytest.mark.slow
def test_weighted_draws(draws):
    """Reweighted draws: exact but for the weights' noise."""
    erased = pe.Reweight()(0, MODEL, draws["before"], MODEL.change(remove=GONE[:6]))
    kept = MODEL.without(MODEL.change(remove=GONE[:6]))
    found = assessed({**draws, "refits": [sample(kept, 6), sample(kept, 7)]}, erased, rows=GONE[:6])
    assert found.off == []
    assert "log-likelihood of removed rows" in found.at_the_floor


# --- what draws are worth

REGRESSION = LinearRegression.make(rows=100, d=3)
LEFT = np.arange(6, 100)


def chains(rows, shape, memory, seed):
    """Exact draws of the regression of some rows, as chains with this autocorrelation."""
    noise = np.random.default_rng(seed).normal(size=(*shape, 3))
    for i in range(1, shape[1]):
        noise[:, i] = memory * noise[:, i - 1] + np.sqrt(1 - memory**2) * noise[:, i]
    root = np.linalg.cholesky(np.linalg.inv(REGRESSION.precision(rows)))
    return pe.Draws({"beta": REGRESSION.mean(rows) + noise @ root.T})


def resampled(seed, memory=0.5):
    before = chains(np.arange(100), (4, 400), memory, 10 * seed)
    model = REGRESSION.model()
    weighted = pe.Reweight()(seed, model, before, model.change(remove=np.arange(6))).draws
    ancestors = weighted.ancestors(seed)
    return before, SimpleNamespace(
        draws=weighted.take(ancestors), ancestors=np.asarray(ancestors), ess=parameter_ess(weighted)
    )


NULLS = {
    "chains that remember": lambda seed: (
        chains(np.arange(100), (4, 500), 0.9, 10 * seed),
        chains(LEFT, (4, 500), 0.9, 10 * seed + 1),
        [chains(LEFT, (4, 500), 0.9, 10 * seed + k) for k in (2, 3)],
    ),
    "one chain": lambda seed: (
        chains(np.arange(100), (1, 1000), 0.9, 10 * seed),
        chains(LEFT, (1, 1000), 0.9, 10 * seed + 1),
        [chains(LEFT, (1, 1000), 0.9, 10 * seed + k) for k in (2, 3)],
    ),
    "resampled": lambda seed: (*resampled(seed), [chains(LEFT, (4, 2000), 0.0, 10 * seed + k) for k in (2, 3)]),
    "resampled, nobody says so": lambda seed: (
        resampled(seed, memory=0.0)[0],
        resampled(seed, memory=0.0)[1].draws,
        [chains(LEFT, (4, 2000), 0.0, 10 * seed + k) for k in (2, 3)],
    ),
}


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("null", NULLS.values(), ids=NULLS)
def test_false_alarms_over_many_tables(null):
    """20 tables of exact erasures at 1 % each: at most 3 with an alarm (false alarm of this test 4e-5)."""
    tables = []
    for seed in range(20):
        before, after, refits = null(seed)
        found = pe.assess(
            REGRESSION.model(),
            before,
            after,
            refits,
            rows=np.arange(6),
            predictor=lambda p, data: data["X"] @ p["beta"],
        )
        tables.append(found.off)
    assert sum(bool(each) for each in tables) <= 3, tables


def test_what_draws_are_worth():
    """Chains that remember, copies dealt at random, and chains that refuse steps."""
    plain = chains(LEFT, (4, 500), 0.0, 1)
    assert sampled(plain).effective > 1000
    slow = sampled(chains(LEFT, (4, 500), 0.95, 1))
    assert slow.effective < 150
    assert len(np.unique(slow.groups)) < len(np.unique(sampled(plain).groups))
    _, erased = resampled(0)
    assert sampled(erased.draws).effective < 3 * min(erased.ess.values())  # found without being told
    assert sampled(erased.draws, erased.ancestors).effective < 3 * min(erased.ess.values())
    stuck = np.repeat(np.asarray(plain.params["beta"])[:, ::2], 2, axis=1)  # every step refused once
    assert 400 < sampled(pe.Draws({"beta": stuck})).effective < 1500
    assert (sampled(pe.Draws({"beta": stuck})).distinct > 0).sum() == 1000
    assert [rounded_down(size) for size in (1, 7, 9, 100, 1023)] == [1, 7, 8, 96, 896]


def test_equal_figures_are_equal():
    """Rounding is no evidence; nor is what is known to the last digit but for it."""
    assert two_sided(0.3, 0.3 + 1e-17, [(1e-18, 10.0)]) == 1.0
    assert two_sided(0.3, 0.3, [(0.0, 10.0)]) == 1.0
    assert two_sided(0.3, 0.4, [(0.0, 10.0)]) == 0.0
    assert two_sided(2.0, 0.0, [(1.0, np.inf)]) == pytest.approx(0.0455, abs=1e-4)
    assert two_sided(2.0, 0.0, [(1.0, 3.0)]) > 0.13  # few groups: Student's t


@pytest.mark.slow
def test_what_is_infinite_is_left_out(draws):
    model = make_model(DATA)
    hopeless = pe.Model(
        model.log_prior,
        lambda p, data: jnp.where(data["x"][:, 0] > 5, -jnp.inf, log_likelihood(p, data)),
        model.data,
    )
    test = {**TEST_DATA, "x": np.where(np.arange(120)[:, None] == 0, 9.0, TEST["x"])}
    found = pe.assess(hopeless, draws["before"], draws["exact"], draws["refits"], test, rows=GONE)
    assert "infinite" in str(found["left_out"]["why"].sel(metric="log-likelihood of a test row").values)
    assert "inf" not in str(found).replace("infinite", "")
    assert found.off == []


# --- other models


@pytest.mark.slow
def test_a_regression_has_no_classes():
    """Margins are log predictive densities; a predictor may give any number."""
    oracle = LinearRegression.make()
    rows = np.arange(12)
    left = np.arange(12, oracle.n_rows)
    draws = [pe.Draws(oracle.sample(left, (4, 500), seed=seed)) for seed in range(3)]
    before = pe.Draws(oracle.sample(np.arange(oracle.n_rows), (4, 500), seed=9))
    found = pe.assess(
        oracle.model(), before, draws[0], draws[1:], rows=rows, predictor=lambda p, data: data["X"] @ p["beta"]
    )
    assert found.off == []
    assert "prediction difference, removed rows" in found.verdicts
    assert "KLoM, median (nats)" in found.verdicts
    assert "error on removed rows" in found["left_out"]["metric"].values


@pytest.mark.slow
def test_a_masked_model_says_what_it_cannot_tell():
    y = np.r_[np.random.default_rng(0).normal(size=40), 4.0, 4.5]
    model = pe.MaskedModel(
        lambda p, data, present: -0.5 * p["mu"] ** 2 - 0.5 * jnp.sum(jnp.where(present, data["y"] - p["mu"], 0) ** 2),
        {"y": y},
    )

    def posterior(n, seed):
        noise = np.random.default_rng(seed).normal(size=(2, 500))
        return pe.Draws({"mu": y[:n].sum() / (n + 1) + noise / np.sqrt(n + 1)})

    found = pe.assess(model, posterior(42, 0), posterior(40, 1), [posterior(40, 2), posterior(40, 3)], rows=[40, 41])
    assert found.off == []
    assert "log-likelihood of removed rows" in found.at_the_floor
    assert "KLoM, median (nats)" in found.verdicts
    assert "single row" in str(found["left_out"]["why"].sel(metric="log-likelihood of a kept row").values)


@pytest.mark.slow
def test_a_numpyro_fit_and_a_model_of_its_test_rows():
    """Rows of a NumPyro model have likelihoods of their own; test rows come as a model of them."""
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def program(X, y):
        beta = numpyro.sample("beta", dist.Normal(0, 2.0).expand([3]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(X @ beta, 0.8), obs=y)

    rows = np.arange(6)
    sets = [chains(np.arange(100), (4, 300), 0.0, 1), *(chains(LEFT, (4, 300), 0.0, seed) for seed in (2, 3, 4))]
    model, before = pe.from_numpyro(program, REGRESSION.X, REGRESSION.y, draws=sets[0])
    unseen = LinearRegression.make(rows=40, d=3, seed=9)
    test, _ = pe.from_numpyro(program, unseen.X, unseen.y, draws=sets[0])
    found = pe.assess(model, before, sets[1], sets[2:], test, rows=rows)
    assert found.off == []
    assert {"log-likelihood of a test row", "membership attack", "U-LiRA, found at 1 %"} <= set(found.verdicts)


def test_stored_likelihoods_tell_what_they_can(tmp_path):
    """A file with log-likelihoods: KL from weights, moments, two samples; the rest is left out, with the reason."""
    before = chains(np.arange(100), (4, 300), 0.0, 1)
    beta = np.asarray(before.params["beta"])
    values = -0.5 * ((REGRESSION.y - beta @ REGRESSION.X.T) / REGRESSION.noise) ** 2
    tree = xr.DataTree.from_dict(
        {
            "posterior": before.to_arviz()["posterior"].to_dataset(),
            "log_likelihood": xr.Dataset({"y": (("chain", "draw", "row"), values)}),
        }
    )
    model, stored = pe.from_arviz(tree)
    erasure = pe.erase(model, stored, rows=[0, 1])
    left = np.arange(2, 100)
    found = pe.assess(model, stored, erasure, [chains(left, (4, 300), 0.0, seed) for seed in (2, 3)])
    assert found.off == []
    assert float(found["metrics"]["origin"].sel(metric="KL from weights (nats)")) >= 0
    assert "two-sample accuracy" in found.verdicts
    assert "only stored log-likelihoods" in str(found["left_out"]["why"].sel(metric="log-likelihoods").values)


# --- bad input, before any work


def test_bad_input(draws):
    before, exact, refits = draws["before"], draws["exact"], draws["refits"]

    def check(after=exact, **options):
        return pe.assess(MODEL, before, after, **{"rows": GONE, "refits": refits, **options})

    for wrong, said in (({"errors": print}, "one of ours"), ({"mine": 3.0}, "no function")):
        with pytest.raises(InvalidOptionError, match=said):
            check(metrics=wrong)
    other = pe.Draws({"w": np.zeros((2, 50, 4)) + np.random.default_rng(0).normal(size=(2, 50, 4))})
    with pytest.raises(DifferentModelError, match=r"after has the parameters w \[4\], and before has w \[3\]"):
        check(other)
    with pytest.raises(DifferentModelError, match="refits"):
        check(refits=[refits[0], pe.Draws({"v": np.asarray(exact.params["w"])})])
    with pytest.raises(DrawsShapeError, match="after has 1 draw"):
        check(pe.Draws({"w": np.ones((1, 1, 3))}))
    still = np.array(exact.params["w"])
    still[..., 1] = 0.5
    with pytest.raises(DrawsShapeError, match=r"w\[1\] never changes in after"):
        check(pe.Draws({"w": still}))
    weights = np.full((4, 500), -50.0)
    weights[0, 0] = 0
    with pytest.raises(DrawsShapeError, match="one draw of after has 100% of all weight"):
        check(exact.replace(exact.params, weights))
    with pytest.raises(InvalidOptionError, match="test holds no rows"):
        check(test=jax.tree.map(lambda leaf: leaf[:0], TEST_DATA))
    with pytest.raises(InvalidOptionError, match="not built as"):
        check(test={"x": TEST["x"]})
    with pytest.raises(InvalidOptionError, match="rows of shape"):
        check(test={**TEST_DATA, "x": TEST["x"][:, :2]})
    with pytest.raises(InvalidOptionError, match="sum to one"):
        check(predictor=lambda p, data: 2 * predictor(p, data), labels="y")
    with pytest.raises(InvalidOptionError, match="no classes"):
        check(predictor=predictor, labels=lambda data: data["y"] + 0.5)
    with pytest.raises(InvalidOptionError, match="labels go up to"):
        check(predictor=predictor, labels=lambda data: 7 * data["y"])
    with pytest.raises(InvalidOptionError, match="which the data have not"):
        check(predictor=predictor, labels="z")
    with pytest.raises(InvalidOptionError, match="no predictor"):
        check(labels="y")
    with pytest.raises(InvalidOptionError, match="which rows"):
        check(rows=None)
    with pytest.raises(RowsError):
        check(rows=[1000])
    with pytest.raises(DifferentModelError, match="others than"):
        check(pe.erase(MODEL, before, GONE), rows=[50, 51])
    with pytest.raises(InvalidOptionError, match="log_evidence"):
        check(log_evidence=float("nan"))
    with pytest.raises(InvalidOptionError, match="rows of shape"):
        check(test={**TEST_DATA, "y": 5.0})
    with pytest.raises(InvalidTypeError, match="after"):
        check(np.zeros(3))
    kept = MODEL.without(MODEL.change(remove=GONE))
    with pytest.raises(DifferentModelError, match="the one of all rows"):
        pe.assess(kept, before, pe.erase(MODEL, before, GONE))


# --- verdicts, and how numbers are written


def test_verdicts():
    def verdict(erased, p_origin, p_erased, **more):
        values = (Estimate(value, 1.0) for value in (10.0, erased, 0.0))
        made = Figure("f", *values, None, p_origin, p_erased, **more)
        judged = made.judge(10)
        assert judged.text.startswith(judged.outcome) or judged.outcome is Outcome.NOT_JUDGED
        return judged.text

    assert verdict(0.1, 1e-9, 0.9) == "at the floor"
    assert verdict(0.1, 0.5, 0.9).startswith("cannot tell: the untouched")
    assert verdict(9.9, 1e-9, 1e-9) == "off: as far as the untouched draws"
    assert verdict(2.0, 1e-9, 1e-9) == "off: 80% of the way"
    assert verdict(-5.0, 1e-9, 1e-9) == "off: past the refits, by 50% of the way"
    assert verdict(30.0, 1e-9, 1e-9) == "off: 3.0 times as far as the untouched draws"
    assert verdict(5.0, 0.5, 1e-9) == "off: the untouched draws pass, these do not"
    assert verdict(5.0, None, None, why="needs a refit") == "cannot tell: needs a refit"
    assert verdict(5.0, None, None, judged=False) == "reported, not judged"
    assert verdict(0.1, 1e-9, 0.0011) == "at the floor"  # one of ten: 1 % over all of them is 0.1 % each


def test_numbers_are_written_as_finely_as_they_are_known():
    assert with_error(-45.321, 0.2) == "-45.32 ± 0.20"
    assert with_error(12345.6, 30.0) == "12,346 ± 30"
    assert with_error(float("nan"), float("nan")) == "–"
    assert with_error(3.0, 0.0) == "3"


def test_an_empty_assessment_prints():
    assert "0 at the floor" in str(Assessment.of([], {}, {"removed_rows": 1, "kept_rows": 2, "refits": 0}))
