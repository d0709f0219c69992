"""NumPyro fits: what is found in a model, that its densities are NumPyro's, what is refused and why."""

import functools
import pickle
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from arviz_base import from_numpyro as to_tree
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density, potential_energy

import posterase as pe
from posterase.bridges.shared import assembly, discovery
from posterase.data.selection import Block, RowTable
from tests.oracles import LinearRegression
from tests.statistical import assert_moments, rejected

RNG = np.random.default_rng(0)
N = 40
X = RNG.normal(size=N)
Y = RNG.normal(size=N) + X
GROUP = np.repeat(np.arange(10), 4)


def flat_draws(**shapes):
    """Draws whose values do not matter much."""
    return {name: 0.1 + np.random.default_rng(1).random((2, 50, *shape)) for name, shape in shapes.items()}


def slope_draws(x, y):
    """Exact draws of the slope b ~ N(0, 1) of y ~ N(b x, 1)."""
    precision = 1 + x @ x
    return {"b": x @ y / precision + np.random.default_rng(1).normal(size=(4, 500)) / np.sqrt(precision)}


def regression(x, y=None, noise=0.8):
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("obs", len(x)):
        numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)


# --- the closed form


def test_an_exact_posterior_through_the_bridge(x64):
    """Densities are those of the hand-written model, and the erased draws have the exact moments."""
    oracle = LinearRegression.make()
    everyone, removed = np.arange(60), np.array([3, 17, 42, 5])
    exact = oracle.sample(everyone, (4, 2000), seed=1)
    model, draws = pe.from_numpyro(regression, oracle.X, draws=exact, y=oracle.y)
    assert model.program.by_rows
    by_hand = oracle.model()
    change = model.change(remove=removed)
    for ours, theirs in zip(pe.split(model, change), pe.split(by_hand, by_hand.change(remove=removed)), strict=True):
        at = [{"beta": jnp.asarray(exact["beta"][0, i])} for i in (0, 1)]
        difference = [float(ours(theta) - theirs(theta)) for theta in at]
        np.testing.assert_allclose(difference[0], difference[1], atol=1e-9)  # the same up to a constant
    result = pe.erase(model, draws, rows=removed)
    kept = np.setdiff1d(everyone, removed)
    moments = oracle.mean(kept), oracle.variance(kept)
    assert_moments(result.draws.matrix(), *moments, np.asarray(result.draws.weights).ravel())
    with rejected():  # nothing deleted
        assert_moments(draws.matrix(), *moments)


# --- a model of everything


def supports(x, y=None):
    """One site for every kind of support."""
    numpyro.sample("real", dist.Normal(0, 1).expand([2]).to_event(1))
    positive = numpyro.sample("positive", dist.Gamma(2, 1))
    numpyro.sample("unit", dist.Beta(2, 3).expand([2, 2]).to_event(2))
    numpyro.sample("between", dist.Uniform(-1, 4))
    numpyro.sample("above", dist.TruncatedNormal(0, 1, low=-2.0))
    simplex = numpyro.sample("simplex", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("ordered", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
    numpyro.factor("prior_of_ordered", dist.Normal(0, 1).log_prob(jnp.ones(3)).sum())
    root = numpyro.sample("root", dist.LKJCholesky(3, 2.0))
    with numpyro.plate("obs", len(x)), handlers.scale(scale=0.7):
        numpyro.sample("y", dist.Normal(x * simplex[0] + root[1, 0], positive), obs=y)


def prior_draws(function, *args):
    """Independent draws of the prior, `(1, 3, …)`; of a flat one, of ordered normals."""
    improper = {"ordered": np.sort(np.random.default_rng(0).normal(size=(3, 3)))}
    draws = []
    for i in range(3):
        fixed = handlers.substitute(function, data={name: values[i] for name, values in improper.items()})
        trace = handlers.trace(handlers.seed(fixed, i)).get_trace(*args)
        sampled = {n: site for n, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}
        draws.append({name: site["value"] for name, site in sampled.items()})
    return {name: np.stack([each[name] for each in draws])[None] for name in draws[0]}


@pytest.fixture(scope="module")
def of_supports():
    with jax.enable_x64(True):
        x, y = np.array(X), np.array(Y)
        return pe.from_numpyro(supports, x, y=y, draws=prior_draws(supports, x, y))


@pytest.mark.slow
def test_densities_jacobians_and_gradients(x64, of_supports):
    """Against NumPyro's own potential, and finite differences."""
    model, draws = of_supports
    args = np.array(X), np.array(Y)
    for i in (0, 2):
        params = jax.tree.map(lambda leaf: leaf[0, i], draws.params)  # noqa: B023
        assert_densities(model, params, supports, args)


def assert_densities(model, params, function, args, kwargs=None):
    """The bridge's log density is NumPyro's potential, and its gradient that of finite differences."""
    theta = model.unconstrain(params)
    potential = potential_energy(function, args, kwargs or {}, theta)
    np.testing.assert_allclose(model.log_density(theta), -potential, rtol=1e-10, atol=1e-10)
    vector, unravel = ravel_pytree(theta)
    at = jax.jit(lambda u: model.log_density(unravel(u)))
    gradient, numeric = np.asarray(jax.grad(at)(vector)), finite_differences(at, vector)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6 * max(1, np.abs(gradient).max()))


def finite_differences(function, at, step=1e-5):
    """Central differences of fourth order."""
    steps = step * np.eye(len(at))
    values = {k: np.array([float(function(at + k * one)) for one in steps]) for k in (-2, -1, 1, 2)}
    return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)


@pytest.mark.slow
def test_every_support_is_left_and_entered(x64, of_supports):
    model, draws = of_supports
    model.check(draws)
    params = jax.tree.map(lambda leaf: leaf[0, 0], draws.params)
    theta = model.unconstrain(params)
    assert theta["simplex"].shape == (2,)
    assert theta["root"].shape == (3,)
    for name, back in model.constrain(theta).items():
        np.testing.assert_allclose(back, params[name], atol=1e-8)
    outside = {**draws.params, "between": draws.params["between"] + 9}
    with pytest.raises(pe.errors.OutsideSupportError, match="between must be in the support of its site"):
        model.check(pe.Draws(outside))


# --- rows


def no_plate(x, y=None):
    numpyro.sample("y", dist.Normal(numpyro.sample("b", dist.Normal(0, 1)) * x, 1), obs=y)


def two_plates(x, y, z):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("visit", len(y)):
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)
    with numpyro.plate("call", len(z)):
        numpyro.sample("z", dist.Poisson(jnp.exp(b)), obs=z)


def masked(x, y, known):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y)), handlers.mask(mask=known):
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)


def own_effects(x, y):
    s = numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("obs", len(y)):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(s * effect + x, 1), obs=y)


def counts_its_groups(group, y):
    with numpyro.plate("group", len(np.unique(group))):
        a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(a[group], 1), obs=y)


def items(y):
    with numpyro.plate("item", 5, dim=-2):
        b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("person", 8, dim=-1):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("item", 5, dim=-2):
            numpyro.sample("y", dist.Bernoulli(logits=a - b), obs=y)


def state_space(y):
    s = numpyro.sample("s", dist.HalfNormal(1))

    def step(before, now):
        h = numpyro.sample("h", dist.Normal(before, s))
        numpyro.sample("y", dist.Normal(h, 1), obs=now)
        return h, None

    scan(step, 0.0, y)


def fixed_size(n, x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", n):
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)


def decentred(group, y):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 1)), numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("group", 10):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(a[group], 1), obs=y)


def factor_of_rows(y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.factor("prior", -jnp.abs(b) * jnp.ones(3))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b, 1), obs=y)
        numpyro.factor("more", b * jnp.ones(len(y)))


def censored_factor(time, event):
    rate = jnp.exp(numpyro.sample("b", dist.Normal(0, 1)))
    numpyro.factor("ll", jnp.where(event, jnp.log(rate), 0.0) - rate * time)


REPARAMETRISED = handlers.reparam(decentred, config={"a": LocScaleReparam(0)})
Z = RNG.poisson(2, size=15)
ANSWERS = RNG.integers(2, size=(5, 8))


@pytest.mark.parametrize(
    ("function", "args", "shapes", "options", "blocks", "by_rows"),
    [
        (no_plate, (X, Y), {"b": ()}, {}, {"y_dim_0": N}, True),
        (two_plates, (X, Y, Z), {"b": ()}, {}, {"visit": N, "call": 15}, True),
        (masked, (X, Y, GROUP > 2), {"b": ()}, {}, {"obs": N}, True),
        (own_effects, (X, Y), {"s": (), "effect": (N,)}, {}, {"obs": N}, True),
        (counts_its_groups, (GROUP, Y), {"a": (10,)}, {}, {"obs": N}, False),
        pytest.param(
            *(items, (ANSWERS,), {"a": (8,), "b": (5, 1)}, {"row_dim": "person"}, {"person": 8}, False),
            marks=pytest.mark.slow,
        ),
        (state_space, (Y,), {"s": (), "h": (N,)}, {}, {"y_dim_0": N}, False),
        (fixed_size, (N, X, Y), {"b": ()}, {}, {"obs": N}, False),
        (functools.partial(fixed_size, N), (X, Y), {"b": ()}, {}, {"obs": N}, False),
        (handlers.mask(no_plate, mask=True), (X, Y), {"b": ()}, {}, {"y_dim_0": N}, True),
        (factor_of_rows, (Y,), {"b": ()}, {}, {"obs": N}, True),
        (censored_factor, (np.abs(Y), GROUP > 2), {"b": ()}, {}, {"ll_dim_0": N}, True),
        (REPARAMETRISED, (GROUP, Y), {"mu": (), "tau": (), "a_decentered": (10,)}, {}, {"obs": N}, True),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_rows_are_found(x64, function, args, shapes, options, blocks, by_rows):
    """And what they add to the density is what NumPyro's log density loses when they are masked out."""
    args = tuple(
        np.array(each) if isinstance(each, np.ndarray) else each for each in args
    )  # see posterase.runtime.precision
    model, draws = pe.from_numpyro(function, *args, draws=flat_draws(**shapes), **options)
    assert dict(model.program.blocks) == blocks
    assert model.program.by_rows == by_rows
    change = model.change(remove=[1, 4] if sum(blocks.values()) < 50 else [1, N + 4])
    params = jax.tree.map(lambda leaf: leaf[0, 0], draws.params)
    whole, _ = log_density(function, args, {}, params)
    np.testing.assert_allclose(model.log_joint(params), whole, rtol=1e-12)
    difference = model.without(change).log_joint(params) - model.log_joint(params)
    np.testing.assert_allclose(difference, model.log_ratio(params, change), rtol=1e-9)
    by_site = {site.name: site for site in model.program.sites}
    trace = handlers.trace(handlers.substitute(handlers.seed(function, 0), data=params)).get_trace(*args)
    at = 0.0
    for name, site in by_site.items():
        rows = np.moveaxis(np.asarray(trace[name]["fn"].log_prob(trace[name]["value"])), site.axis, 0)
        start = model.program.places()[site.block].start
        at += sum(rows[i - start].sum() for i in change.row_ids if start <= i < start + len(rows))
    np.testing.assert_allclose(difference, -at, rtol=1e-9)
    model.check_additivity(draws, change)


def coin(flips):
    heads = numpyro.sample("heads", dist.Beta(1, 1))
    numpyro.sample("flip", dist.Bernoulli(heads, validate_args=True), obs=flips)


def mixture(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    means = numpyro.sample("means", dist.ZeroSumNormal(1.0, (2,)))
    with numpyro.plate("obs", len(y)):
        parts = dist.Categorical(probs=weights, validate_args=True), dist.Normal(means, 1)
        numpyro.sample("y", dist.MixtureSameFamily(*parts), obs=y)


@pytest.mark.parametrize(
    ("function", "args", "draws"),
    [
        (coin, (GROUP % 2,), {"heads": np.full((1, 20), 0.9)}),
        (
            mixture,
            (Y,),
            {
                "weights": np.broadcast_to([0.9, 0.1], (1, 20, 2)),
                "means": np.broadcast_to([-0.5, 0.5], (1, 20, 2)),
            },
        ),
    ],
)
def test_parameters_are_moved_inside_their_support(function, args, draws):
    """A model that refuses values outside of it is never called there."""
    model, _ = pe.from_numpyro(function, *args, draws=draws)
    assert model.n_rows == N


def test_nothing_of_a_removed_row_is_left_in_the_model():
    planted = 7654.321
    x, y, z = X.copy(), Y.copy(), Z.copy()
    x[3] = y[3] = planted
    z[2] = 7654
    model, _ = pe.from_numpyro(two_plates, x, y, z, draws=flat_draws(b=()))
    holds = lambda each: any(np.isclose(leaf, planted, atol=1).any() for leaf in jax.tree.leaves(each))  # noqa: E731
    assert holds(model)
    assert not holds(model.without(model.change(remove=[3, N + 2])))
    nobody_left = model.without(model.change(remove=[3, *range(N, N + 15)]))  # of a whole plate
    assert not holds(nobody_left)
    assert np.isfinite(nobody_left.log_joint({"b": jnp.asarray(0.3)}))


def test_arguments_that_decide_the_shape_stay_and_are_named():
    model, draws = pe.from_numpyro(counts_its_groups, GROUP, Y, draws=flat_draws(a=(10,)))
    assert list(model.held) == ["group"]
    assert any("group of the removed rows" in remark for remark in draws.container.remarks)
    assert draws.container.table.select("group == 3").tolist() == [12, 13, 14, 15]


def divides_by_its_largest(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b * x / jnp.max(x), 1), obs=y)


@pytest.mark.parametrize("largest", [0, 1, 5, 39])
def test_a_single_row_that_others_depend_on_is_found(largest):
    x = np.abs(X)
    x[largest] = 9.0
    with pytest.raises(pe.errors.CoupledRowsError, match="argument 'x'"):
        pe.from_numpyro(divides_by_its_largest, x, Y, draws=flat_draws(b=()))


def counts_its_rows(x, y):
    b = numpyro.sample("b", dist.Normal(0, 10 / len(y)))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)


def with_a_param(x, y):
    s = numpyro.param("s", 2.0)
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b * x, s), obs=y)


def two_without_plates(y, z):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(b, 1), obs=y)
    numpyro.sample("z", dist.Normal(b, 1), obs=z)


def censored(bound):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", len(bound)):
        numpyro.sample("above", dist.Bernoulli(logits=b - bound), obs=1)


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        (counts_its_rows, (X, Y), "it uses their number"),
        (no_plate, (list(X), Y), "in a closure, a list, or text"),
        (functools.partial(no_plate, X), (), "in a closure, a list, or text"),
        (two_without_plates, (X, Y), "taken for the same rows.*y, z"),
        (with_a_param, (X, Y), None),
        (two_without_plates, (X, Y[:30]), None),
        (censored, (X,), None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_a_verdict_must_say_of_a_model(function, args, said):
    if isinstance(function, functools.partial):
        args, function = (Y,), lambda y: no_plate(jnp.asarray(X), y)
    elif isinstance(args[0], list):
        function, args = lambda x, y: no_plate(jnp.asarray(x), y), args
    model, draws = pe.from_numpyro(function, *args, draws=flat_draws(b=()), preprocessing="none")
    remarks = " ".join(draws.container.remarks)
    if said is None:
        assert "erased" not in remarks
    else:
        assert re.search(said, remarks), remarks
    assert "taken for the same rows" not in remarks or said is not None
    assert model.n_rows == (N + 30 if len(args[-1]) == 30 else N)


def test_arguments_in_a_dict_and_tables():
    def of_dict(data):
        no_plate(data["x"], data["y"])

    _, draws = pe.from_numpyro(of_dict, {"x": X, "y": Y, "person": GROUP}, draws=flat_draws(b=()))
    for condition in ("person == 3", "data.person == 3", {"data.person": 3}):
        np.testing.assert_array_equal(draws.container.table.select(condition), [12, 13, 14, 15])
    table = pd.DataFrame({"x": X, "y": Y})
    assert pe.from_numpyro(no_plate, table.x, table.y, draws=flat_draws(b=()))[0].n_rows == N
    with pytest.raises(pe.errors.UnsupportedModelError, match="as numpy arrays"):
        pe.from_numpyro(lambda x, y: no_plate(x.values, y), table.x, table.y, draws=flat_draws(b=()))


def test_groups_without_rows_are_cut_out(fitted):
    """All homes of ANOKA: the county's label and effect do not come out."""
    model, draws = pe.from_numpyro(fitted, coords=COORDS)
    result = pe.erase(model, draws, rows={"county": 1}, policy=pe.Policy(ess=20.0))
    tree = result.draws.to_arviz()
    assert tree["posterior"]["county"].values.tolist() == [name for name in COUNTIES if name != "ANOKA"]
    assert tree["posterior"]["level"].sizes["county"] == 4
    assert "ANOKA" not in str(result.draws.labels.coords["county"].values)
    assert "cut out, since none of its rows is left: 1 of county" in " ".join(map(str, result.verdict.notes))


def test_parameters_as_many_as_rows_are_not_cut():
    def wide(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("obs", len(y)):
            numpyro.sample("y", dist.Normal(x @ beta, 1), obs=y)

    x = np.random.default_rng(0).normal(size=(20, 20))
    model, draws = pe.from_numpyro(wide, x, Y[:20], draws=flat_draws(beta=(20,)))
    erased = pe.Reweight()(0, model, draws, model.change(remove=[3])).draws.to_arviz(include_weights=True)
    assert erased["posterior"]["beta"].shape == (2, 50, 20)


def test_a_written_file_does_not_hold_the_person(fitted, tmp_path):
    """A tree with groups of its own, given with the model; draws that moved."""
    tree = to_tree(fitted, coords=COORDS, constant_data={"x": X}, dims={"x": ["home"], "mean": ["home"]})
    planted, name = 1.23456789, "PLANTED-17"
    labels = np.array(HOMES, object)
    labels[3] = name
    y = np.array(Y)
    y[3] = planted
    groups = {group: tree[group].to_dataset() for group in tree.children}
    groups["observed_data"] = groups["observed_data"].assign(y=("home", y)).assign_coords(home=labels)
    groups["posterior"] = groups["posterior"].assign_attrs(note=name)
    tree = xr.DataTree.from_dict(groups)
    model, draws = pe.from_numpyro(hierarchy, GROUP % 5, X, y=y, draws=tree)
    draws.save(tmp_path / "before.nc")
    moved = pe.Transport()(0, model, draws, model.change(remove=[3])).draws
    moved.replace(moved.params).save(tmp_path / "after.nc")
    for pattern in (name.encode(), np.float64(planted).tobytes(), np.float32(planted).tobytes()):
        assert pattern not in (tmp_path / "after.nc").read_bytes()
    assert name.encode() in (tmp_path / "before.nc").read_bytes()


def test_a_person_in_several_variables_is_removed_from_all():
    person = {"visit": GROUP, "call": np.arange(15) % 10}
    model, draws = pe.from_numpyro(
        two_plates, X, Y, Z, draws=flat_draws(b=()), coords={d: np.arange(len(v)) for d, v in person.items()}
    )
    blocks = [Block(b.dim, b.size, b.variables, {"person": person[b.dim]}) for b in draws.container.table.blocks]
    ids = RowTable(tuple(blocks)).select({"person": 3})
    np.testing.assert_array_equal(ids, [12, 13, 14, 15, N + 3, N + 13])
    assert model.change(remove=ids).n_rows == 6


# --- what is refused, by name


def subsampled(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y), subsample_size=10) as i:
        numpyro.sample("y", dist.Normal(b * x[i], 1), obs=y[i])


def discrete(y):
    with numpyro.plate("obs", len(y)):
        k = numpyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(k, 1), obs=y)


def series(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("b", dist.Normal(0, 1)) * y[:-1], 1), obs=y[1:])


def series_by_scan(y):
    b = numpyro.sample("b", dist.Normal(0, 1))

    def step(before, now):
        numpyro.sample("y", dist.Normal(b * before, 1), obs=now)
        return now, None

    scan(step, jnp.zeros(()), y)


def joint(x, y):
    s = numpyro.sample("s", dist.HalfNormal(1))
    cov = jnp.exp(-((x[:, None] - x[None]) ** 2)) + s * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(0.0, cov), obs=y)


def enclosed():
    numpyro.sample("y", dist.Normal(numpyro.sample("b", dist.Normal(0, 1)) * X, 1), obs=Y)


def standardises(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b * (x - x.mean()) / x.std(), 1), obs=y)


def meta_analysis(dose, y):
    slope = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("study", len(y)):
        theta = numpyro.sample("theta", dist.Normal(slope * dose, 1))
        numpyro.sample("y", dist.Normal(theta, 1), obs=y)


def moving_bounds(y):
    a = numpyro.sample("a", dist.HalfNormal(1))
    b = numpyro.sample("b", dist.Uniform(0, a))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b, 1), obs=y)


def factor_only(y):
    numpyro.factor("ll", dist.Normal(numpyro.sample("b", dist.Normal(0, 1)), 1).log_prob(y).sum())


def with_gaps(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y, obs_mask=GROUP > 2)


def matrix(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("b", dist.Normal(0, 1)), 1), obs=y)


def looks_at_real_values(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1) if float(x.sum()) > 0 else dist.Normal(0, 2))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b * x, 1), obs=y)


def no_parameters(y):
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


@pytest.mark.parametrize(
    ("function", "args", "options", "error", "said"),
    [
        (subsampled, (X, Y), {}, pe.errors.UnsupportedModelError, "plate 'obs' draws a subsample of 10"),
        (discrete, (Y,), {}, pe.errors.UnsupportedModelError, r"site 'k' is discrete \(Bernoulli.*\n.*enumerate"),
        (series, (Y,), {}, pe.errors.CoupledRowsError, "site 'y' do not come from an argument.*time series"),
        (series_by_scan, (Y,), {}, pe.errors.CoupledRowsError, r"'y' holds the observed values.*\n.*before=y\[:-1\]"),
        (enclosed, (), {}, pe.errors.CoupledRowsError, "site 'y' do not come from an argument"),
        (joint, (X, Y), {}, pe.errors.UnsupportedModelError, r"site 'y' \(MultivariateNormal\) has one likelihood"),
        (standardises, (X, Y), {}, pe.errors.CoupledRowsError, "argument 'x'.*\n.*shared='x'"),
        (meta_analysis, (X, Y), {}, pe.errors.CoupledRowsError, r"own parameters \(theta\).*\n.*shared='dose'"),
        (moving_bounds, (Y,), {}, pe.errors.UnsupportedModelError, "bounds of site 'b'"),
        (factor_only, (Y,), {}, pe.errors.UnsupportedModelError, r"only factors \(ll\).*\n.*one value per row"),
        (with_gaps, (X, Y), {}, pe.errors.UnsupportedModelError, "site 'y' has an obs_mask"),
        (matrix, (Y.reshape(8, 5),), {}, pe.errors.AmbiguousRowsError, "which axis is the rows"),
        (items, (ANSWERS,), {}, pe.errors.AmbiguousRowsError, "row_dim='item' or row_dim='person'"),
        (
            items,
            (ANSWERS,),
            {"row_dim": "people"},
            pe.errors.AmbiguousRowsError,
            r"row_dim names 'people', which[^:]*: the plates are item, person",
        ),
        (looks_at_real_values, (X, Y), {}, pe.errors.UnsupportedModelError, "looks at the values of its data"),
        (no_parameters, (Y,), {}, pe.errors.UnsupportedModelError, "no parameters"),
        (no_plate, (X,), {}, pe.errors.UnsupportedModelError, "no observed site"),
        (no_plate, (), {}, pe.errors.UnsupportedModelError, "cannot be called on these arguments"),
        (no_plate, (X, Y), {"shared": "w"}, pe.errors.UnsupportedModelError, "the arguments are x, y"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_models_that_rows_cannot_be_taken_out_of(function, args, options, error, said):
    shapes = {"a": (8,), "b": (5, 1)} if function is items else {"a": (), "b": (), "s": (), "k": (), "theta": (N,)}
    with pytest.raises(error, match=said):
        pe.from_numpyro(function, *args, draws=flat_draws(**shapes), **options)


def of_persons(age, person, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(b * age[person], 1), obs=y)


def test_arguments_of_groups_are_named():
    _, draws = pe.from_numpyro(of_persons, X[:10], GROUP, Y, draws=flat_draws(b=()))
    assert any("no rows stay whole in the model in memory: age" in remark for remark in draws.container.remarks)


def test_what_may_stay_is_named():
    model, draws = pe.from_numpyro(standardises, X, Y, draws=flat_draws(b=()), shared="x")
    assert list(model.held) == ["x"]
    model.check_additivity(draws, model.change(remove=[3]))
    assert any("x of the removed rows" in remark for remark in draws.container.remarks)


def after_the_last(before, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("t", len(y)):
        numpyro.sample("y", dist.Normal(b * before, 1), obs=y)


def test_a_series_whose_next_row_holds_the_value():
    model, draws = pe.from_numpyro(after_the_last, Y[:-1], Y[1:], draws=slope_draws(Y[:-1], Y[1:]))
    result = pe.erase(model, draws, rows=[5, 6, 20], methods=[pe.Reweight()], policy=pe.Policy(ess=1.0))
    assert np.setdiff1d(np.arange(N - 1), result.model.row_ids).tolist() == [5, 6, 7, 20, 21]
    assert "2 more rows dropped, since covariates held removed values (before is y of 1 row before)" in str(result)
    assert not any(
        np.isin(np.float32(Y[[6, 7, 21]]), np.asarray(leaf)).any() for leaf in jax.tree.leaves(result.model.data)
    )


def in_place(y):
    """Covariates and groups are arrays of this module."""
    with numpyro.plate("group", 10):
        a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(a[GROUP] * X, 1), obs=y)


@pytest.mark.parametrize("function", [in_place, handlers.mask(in_place, mask=True)], ids=["a function", "in a handler"])
def test_models_and_draws_are_pickled(function):
    """The bridge calls a copy of the function, with jax arrays; pickle finds the user's own by its name."""
    model, draws = pe.from_numpyro(function, Y, draws=flat_draws(a=(10,)))
    again, same = (pickle.loads(pickle.dumps(each)) for each in (model, draws))
    params = jax.tree.map(lambda leaf: leaf[0, 0], draws.params)
    np.testing.assert_allclose(again.log_joint(params), model.log_joint(params), rtol=1e-6)
    assert set(same.to_arviz().children) == set(draws.to_arviz().children)


# --- draws and data that do not belong to the model


@pytest.mark.parametrize(
    "draws", [flat_draws(c=()), flat_draws(b=(2,)), {}], ids=["another name", "another shape", "nothing"]
)
def test_draws_of_another_model(draws):
    with pytest.raises((pe.errors.DifferentModelError, pe.errors.DrawsShapeError)) as caught:
        pe.from_numpyro(no_plate, X, Y, draws=draws)
    if draws:
        assert "The draws have" in str(caught.value)
        assert "The model has:\n    b: a number" in str(caught.value)


def in_a_table(table):
    no_plate(table["x"].to_numpy(), table["y"].to_numpy())


def in_a_scope(x, y):
    with handlers.scope(prefix="inner"):
        no_plate(x, y)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: pe.from_numpyro(regression, X[:, None], Y, -1.0, draws=flat_draws(beta=(1,))),
            pe.errors.UnsupportedModelError,
            "cannot be called on these arguments.*scale",
        ),
        (
            lambda: pe.from_numpyro(
                decentred, GROUP, Y, draws={**flat_draws(mu=(), a=(10,)), "tau": -np.ones((2, 50))}
            ),
            pe.errors.DifferentModelError,
            "refuses the first draw: Normal distribution got invalid scale",
        ),
        (
            lambda: pe.from_numpyro(no_plate, X, np.where(GROUP > 7, np.nan, Y), draws=flat_draws(b=())),
            pe.errors.DifferentModelError,
            "row 32 is -inf at the first draw, and that of 7 other rows",
        ),
        (
            lambda: pe.from_numpyro(in_a_table, pd.DataFrame({"x": X, "y": Y}), draws=flat_draws(b=())),
            pe.errors.UnsupportedModelError,
            "columns as arguments",
        ),
        (
            lambda: pe.from_numpyro(in_a_scope, X, Y, draws={"inner/b": np.zeros((2, 50))}),
            pe.errors.UnsupportedModelError,
            "another divider",
        ),
        (lambda: pe.from_numpyro(no_plate, X, Y), pe.errors.InvalidOptionError, "there are no draws"),
        (lambda: pe.from_numpyro(3, X), pe.errors.InvalidTypeError, "pass an MCMC object"),
        (
            lambda: pe.from_numpyro(lambda draws: None, draws=flat_draws(b=())),
            pe.errors.InvalidOptionError,
            "also an option",
        ),
        (
            lambda: pe.from_numpyro(no_plate, X, Y, draws={"b": np.zeros(50)}),
            pe.errors.DrawsShapeError,
            "for one chain",
        ),
        (
            lambda: pe.from_numpyro(MCMC(NUTS(no_plate), num_warmup=5, num_samples=5), X, Y),
            pe.errors.DrawsShapeError,
            "has not run",
        ),
        (
            lambda: pe.from_numpyro(no_plate, X, Y, draws="nowhere.nc"),
            pe.errors.InputFileError,
            "there is no file",
        ),
    ],
)
def test_calls_that_cannot_be_meant(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_without_numpyro(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(pe.errors.MissingExtraError, match=r"posterase\[numpyro\]"):
        pe.from_numpyro(no_plate, X, Y)


# --- a fit, from the MCMC object to the tree


def hierarchy(county, x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("county", 5):
        alpha = numpyro.sample("alpha", dist.Normal(0, 1))
        level = numpyro.deterministic("level", mu + tau * alpha)
    with numpyro.plate("home", len(x)):
        mean = numpyro.deterministic("mean", level[county] + x)
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


COUNTIES = ["AITKIN", "ANOKA", "BECKER", "BELTRAMI", "BENTON"]
HOMES = [f"home {i}" for i in range(N)]
COORDS = {"county": COUNTIES, "home": HOMES}


@pytest.fixture(scope="module")
def fitted():
    chains = {"num_chains": 2, "chain_method": "vectorized"}
    mcmc = MCMC(NUTS(hierarchy), num_warmup=200, num_samples=500, progress_bar=False, **chains)
    mcmc.run(jax.random.key(0), GROUP % 5, np.array(X), y=np.array(Y))
    return mcmc


def test_three_lines(fitted):
    """Rows by a condition; out comes what went in, deterministic sites computed anew, cut to the kept rows."""
    model, draws = pe.from_numpyro(fitted, coords=COORDS)
    result = pe.erase(model, draws, rows=GROUP == 3, policy=pe.Policy(ess=50.0))
    tree = result.draws.to_arviz()
    before = to_tree(fitted, coords=COORDS)
    assert set(tree["posterior"].data_vars) == set(before["posterior"].data_vars)
    for name, values in tree["posterior"].data_vars.items():
        assert values.dims == before["posterior"][name].dims
    kept = np.flatnonzero(GROUP != 3)
    assert tree["posterior"]["county"].values.tolist() == COUNTIES
    for group in ("posterior", "observed_data"):
        assert tree[group]["home"].values.tolist() == [HOMES[i] for i in kept]
    np.testing.assert_allclose(tree["observed_data"]["y"], Y[kept], rtol=1e-6)
    mean = tree["posterior"]["level"].values[..., (GROUP % 5)[kept]] + X[kept]
    np.testing.assert_allclose(tree["posterior"]["mean"], mean, rtol=1e-4, atol=1e-4)
    assert "sample_stats" not in tree.children
    told = " ".join(map(str, result.verdict.notes))
    assert "cut to the kept rows: observed_data" in told
    assert "dropped, since they saw the removed rows or may have: sample_stats" in told
    assert "say what was (preprocessing='…')" in told


CENTRE = float(Y.mean())  # of all rows, in the closure of the model


def with_numbers(x, y):
    mu, b = numpyro.sample("mu", dist.Normal(0, 3)), numpyro.sample("b", dist.Normal(0, 2))
    numpyro.deterministic("mu_centred", mu - CENTRE)
    numpyro.deterministic("scaled", b * 1.2345)
    numpyro.deterministic("twice", 2 * b)
    numpyro.deterministic("at_mean", mu + b * x.mean())
    numpyro.deterministic("worst", jnp.max(y - mu - b * x))
    numpyro.deterministic("resid5", y[5] - mu - b * x[5])
    with numpyro.plate("obs", len(x)):
        mean = numpyro.deterministic("mean", mu + b * x)
        numpyro.deterministic("step", jnp.diff(mean, prepend=0.0))
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def draws_with_numbers():
    precision = np.stack([np.ones(N), X], axis=1)
    covariance = np.linalg.inv(precision.T @ precision)
    rng = np.random.default_rng(2)
    mu, b = np.moveaxis(rng.multivariate_normal(covariance @ precision.T @ Y, covariance, (4, 500)), -1, 0)
    mean = mu[..., None] + b[..., None] * X
    of_rows = {"mean": mean, "step": np.diff(mean, prepend=0.0), "worst": np.max(Y - mean, axis=-1)}
    of_numbers = {"mu_centred": mu - CENTRE, "scaled": b * 1.2345, "twice": 2 * b, "at_mean": mu + b * X.mean()}
    return {"mu": mu, "b": b, **of_rows, **of_numbers, "resid5": Y[5] - mean[..., 5]}


def erased_with_numbers(rows):
    model, draws = pe.from_numpyro(with_numbers, X, Y, draws=draws_with_numbers(), preprocessing="none")
    result = pe.erase(model, draws, rows=rows, methods=[pe.Reweight()], policy=pe.Policy(ess=50.0))
    return result.to_arviz()["posterior"], " ".join(map(str, result.verdict.notes))


def removed_outcome(posterior, kept):
    """The outcome of the removed row, from the mean of all rows and the kept ones."""
    centre = float((posterior["mu"].astype(float) - posterior["mu_centred"].astype(float)).mean())
    return N * centre - Y[kept].sum()


def test_numbers_from_all_rows_in_the_closure_do_not_come_out(monkeypatch):
    kept = np.setdiff1d(np.arange(N), [5])
    posterior, notes = erased_with_numbers([5])
    assert set(posterior.data_vars) == {"mu", "b", "mean", "twice", "at_mean", "worst"}
    assert "may be from all rows: mu_centred, scaled (compute them from the draws" in notes
    mu, b = posterior["mu"].values[..., None], posterior["b"].values[..., None]
    np.testing.assert_allclose(posterior["mean"], mu + b * X[kept], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(posterior["at_mean"], (mu + b * X[kept].mean())[..., 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(posterior["worst"], (Y[kept] - mu - b * X[kept]).max(axis=-1), rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(assembly, "without_functions_of_data", lambda names, *_: list(names))
    assert removed_outcome(erased_with_numbers([5])[0], kept) == pytest.approx(Y[5], abs=1e-3)


def test_a_value_of_a_certain_row_is_not_another_ones(monkeypatch):
    """With row 5 gone `y[5]` is the row after it."""
    posterior, notes = erased_with_numbers([5])
    assert not {"resid5", "step"} & set(posterior.data_vars)
    assert re.search("not from the kept rows alone .*: (step, resid5|resid5, step)", notes)
    monkeypatch.setattr(discovery, "_ordered", lambda *_: set())
    posterior, _ = erased_with_numbers([5])
    of_row_6 = Y[6] - posterior["mu"] - posterior["b"] * X[6]
    np.testing.assert_allclose(posterior["resid5"], of_row_6, rtol=1e-4, atol=1e-4)


def test_untouched_draws_go_out_as_they_came(fitted):
    _, draws = pe.from_numpyro(fitted, coords=COORDS)
    tree, before = draws.to_arviz(), to_tree(fitted, coords=COORDS)
    assert set(tree.children) == set(before.children)
    for group in ("posterior", "observed_data", "sample_stats"):
        for name, values in before[group].data_vars.items():
            np.testing.assert_array_equal(tree[group][name], values)


def test_labels_of_removed_rows_are_gone_from_memory_too(fitted):
    model, draws = pe.from_numpyro(fitted, coords=COORDS)
    erased = pe.Reweight()(0, model, draws, model.change(remove=[3])).draws
    assert "home 3" not in erased.container.table.blocks[0].columns["home"]
    assert "home 3" not in erased.container.companions["home"].values
    assert "home 3" not in erased.to_arviz(include_weights=True)["posterior"]["home"].values
    assert "home 3" in draws.container.table.blocks[0].columns["home"]  # the draws that went in are untouched


def test_the_next_request(fitted):
    model, draws = pe.from_numpyro(fitted, coords=COORDS)
    policy = pe.Policy(ess=20.0)
    one = pe.erase(model, draws, rows={"home": "home 3"}, policy=policy)
    two = one.erase(rows=["home 7"])
    assert two.draws.to_arviz()["observed_data"].sizes["home"] == N - 2
    with pytest.raises(pe.errors.EmptyRemovalError, match="no row has"):
        two.erase(rows=["home 3"])
    with pytest.raises(pe.errors.RowsError):
        two.erase(rows=[3])


@pytest.mark.slow
def test_data_that_changed_since_the_fit(fitted, tmp_path):
    changed = Y + (np.arange(N) == 3)
    with pytest.raises(pe.errors.DataChangedError, match="argument y differs in 1 of 40 values"):
        pe.from_numpyro(fitted, GROUP % 5, X, y=changed)
    with pytest.raises(pe.errors.DataChangedError, match="others, or of another kind"):
        pe.from_numpyro(fitted, GROUP % 5, X)
    for args, kwargs in (((GROUP % 5, X), {"y": Y}), ((GROUP % 5, X, Y), {}), ((GROUP % 5, jnp.asarray(X), Y), {})):
        assert pe.from_numpyro(fitted, *args, **kwargs)[0].n_rows == N
    with pytest.raises(pe.errors.DataChangedError, match="observed variable y differs in 1"):
        pe.from_numpyro(hierarchy, GROUP % 5, X, y=changed, draws=to_tree(fitted))
    # Without observed data, by the fingerprint that a saved file carries.
    tree = pe.from_numpyro(fitted)[1].to_arviz()
    del tree["observed_data"]
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    pe.from_numpyro(hierarchy, GROUP % 5, X, y=Y, draws=tmp_path / "fit.nc")
    with pytest.raises(pe.errors.DataChangedError, match="fingerprints differ"):
        pe.from_numpyro(hierarchy, GROUP % 5, X, y=changed, draws=tmp_path / "fit.nc")
    samples = fitted.get_samples(group_by_chain=True)
    _, draws = pe.from_numpyro(hierarchy, GROUP % 5, X, y=Y, draws=samples)
    assert any("could not be checked" in remark for remark in draws.container.remarks)


@pytest.mark.slow
def test_draws_from_warm_up():
    mcmc = MCMC(NUTS(no_plate), num_warmup=20, num_samples=20, progress_bar=False)
    mcmc.warmup(jax.random.key(0), np.array(X), y=np.array(Y), collect_warmup=True)
    with pytest.raises(pe.errors.DifferentModelError, match="from the warm-up"):
        pe.from_numpyro(mcmc)
    mcmc.run(jax.random.key(0), np.array(X), y=np.array(Y))
    assert pe.from_numpyro(mcmc)[1].n_draws == 20


def test_a_potential_has_no_rows():
    kernel = NUTS(potential_fn=lambda z: 0.5 * z**2)
    mcmc = MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(0), init_params=jnp.zeros(()))
    with pytest.raises(pe.errors.UnsupportedModelError, match="potential_fn"):
        pe.from_numpyro(mcmc)


@pytest.mark.parametrize(
    ("x", "said", "told"),
    [
        (X, None, "if means, scales or categories"),
        ((X - X.mean()) / X.std(), None, "x looks standardised with all rows; if means"),
        (X - X.mean(), None, "x looks centred with all rows; if means"),
        (X, "x scaled by its maximum", "not erased: preprocessing that used all rows.*x scaled by its maximum"),
        ((X - X.mean()) / X.std(), "none", "x looks standardised with all rows, though"),
    ],
)
def test_preprocessing_is_asked_about(x, said, told):
    model, draws = pe.from_numpyro(no_plate, x, Y, draws=slope_draws(x, Y), preprocessing=said)
    notes = pe.erase(model, draws, rows=[3]).verdict.notes
    assert any(re.search(told, note.text) for note in notes), notes
    _, quiet = pe.from_numpyro(no_plate, X, Y, draws=draws, preprocessing="none")
    assert not any("preprocessing" in note.text for note in pe.erase(model, quiet, rows=[3]).verdict.notes)
