"""Every public sampler through one test: independent chains, resumable to the bit, one compilation, saved whole."""

import dataclasses
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase import errors
from posterase.sampling.sampler import map_extra
from tests.oracles import LinearRegression

KNOWN = LinearRegression.make(rows=40, d=2)
STEPS = pe.PolynomialSteps(1e-3)
SAMPLERS = {
    "SGLD": pe.SGLD(STEPS, batch=8),
    "SGHMC": pe.SGHMC(STEPS, batch=8),
    "PSGLD": pe.PSGLD(STEPS, batch=8),
    "SGNHT": pe.SGNHT(STEPS, batch=8),
    "CyclicalSGLD": pe.CyclicalSGLD(pe.CyclicalSteps(1e-3, 4), exploration=0.5, batch=8),
}
THIN = {"CyclicalSGLD": 4}
"""Steps between two draws, where not every state is a draw."""
CARRIED = {
    "SGLD": (),
    "SGHMC": ("velocity",),
    "PSGLD": ("second_moment", "weight"),
    "SGNHT": ("velocity", "thermostat"),
    "CyclicalSGLD": (),
}
some = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("PSGLD", "SGNHT") else [pytest.mark.slow]) for name in SAMPLERS]
)
"""Those that carry the most; the others in `make test-all`."""
every = pytest.mark.parametrize("name", SAMPLERS)


def climbing(sampler):
    """The same after a first phase without noise, which ends where a cycle of four steps would."""
    return dataclasses.replace(sampler, noise_free=pe.NoiseFreePhase(8, 1e-3, 0.9))


def begin(sampler, model=None, chains=3, value=0.3):
    model = KNOWN.model() if model is None else model
    return model, pe.start_chains(0, model, sampler, {"beta": np.broadcast_to(value, (chains, 2))})


def draws_of(model, sampler, state, n, thin):
    sampled = pe.sample(model, sampler, state, n, thin=thin)
    return np.asarray(sampled.draws.params["beta"]), sampled.state


def test_every_sampler_is_here():
    public = {getattr(pe, name) for name in dir(pe) if isinstance(getattr(pe, name), type)}
    samplers = {each for each in public if issubclass(each, pe.Sampler)} - {pe.Sampler}
    assert {type(each) for each in SAMPLERS.values()} == samplers
    assert set(CARRIED) == set(SAMPLERS)


@every
def test_cut_runs_are_the_same_to_the_bit(name, tmp_path):
    """In one piece, in two with a file between them, and thinned; with a phase without noise before."""
    sampler, thin = climbing(SAMPLERS[name]), THIN.get(name, 1)
    model, state = begin(sampler)
    state = pe.sample(model, sampler, state, 1, thin=12).state
    whole, end = draws_of(model, sampler, state, 12, thin)
    first, middle = draws_of(model, sampler, state, 5, thin)
    path = pe.save_state(tmp_path / "run.eqx", middle, model, sampler)
    second, resumed = draws_of(model, sampler, pe.load_state(path, state, model, sampler), 7, thin)
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), whole)
    assert eqx.tree_equal(end, resumed)
    thinned, _ = draws_of(model, sampler, state, 4, 3 * thin)
    np.testing.assert_array_equal(thinned, whole[:, 2::3])
    assert len({tuple(chain[-1]) for chain in whole}) == 3, "chains share their random numbers"


@every
def test_chains_know_nothing_of_each_other(name):
    sampler, thin = SAMPLERS[name], THIN.get(name, 1)
    model, state = begin(sampler)
    _, others = begin(sampler, value=np.array([[0.3, 0.3], [-1.0, 2.0], [4.0, 0.0]]))
    one, _ = draws_of(model, sampler, state, 6, thin)
    two, _ = draws_of(model, sampler, others, 6, thin)
    np.testing.assert_array_equal(one[0], two[0])
    assert not np.isclose(one[1:], two[1:]).any()


@every
def test_other_numbers_do_not_compile_anew(name):
    """The likelihood is traced for the first run only."""
    traced = []

    def log_likelihood(p, row):
        traced.append(None)
        return -0.5 * (row["y"] - row["X"] @ p["beta"]) ** 2

    model = pe.Model(lambda p: -0.5 * jnp.sum(p["beta"] ** 2), log_likelihood, {"X": KNOWN.X, "y": KNOWN.y})
    sampler, thin = SAMPLERS[name], THIN.get(name, 1)
    _, state = begin(sampler, model)
    _, state = draws_of(model, sampler, state, 3, thin)
    before = len(traced)
    draws_of(model, sampler.rescaled(0.5), state, 3, thin)
    assert len(traced) == before > 0


@some
def test_parameters_of_any_shape(name, x64):
    """One number, a tree, a tree of two precisions and a vector: the same chains, as far as the numbers go."""
    sampler, thin = SAMPLERS[name].rescaled(0.1), 4
    y = KNOWN.y

    def chain(model, initial):
        sampled = pe.sample(model, sampler, pe.start_chains(0, model, sampler, initial), 3, thin=thin)
        before = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), pe.start_chains(0, model, sampler, initial))
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), sampled.state) == before
        return sampled.draws.params

    def model(mean):
        return pe.Model(lambda p: 0.0 * mean(p), lambda p, row: -0.5 * (row - mean(p)) ** 2, y)

    one = chain(model(lambda p: p), np.zeros(2))
    assert one.shape == (2, 3)
    vector = chain(model(jnp.sum), np.zeros((2, 3)))
    tree = chain(model(lambda p: p["a"] + jnp.sum(p["b"])), {"a": np.zeros(2), "b": np.zeros((2, 2))})
    np.testing.assert_allclose(np.concatenate([tree["a"][..., None], tree["b"]], axis=-1), vector, rtol=1e-12)
    narrow = {"a": jnp.zeros(2, jnp.float32), "b": jnp.zeros((2, 2))}
    mixed = chain(model(lambda p: p["a"] + jnp.sum(p["b"])), narrow)
    assert mixed["a"].dtype == np.float32
    assert np.isfinite(mixed["b"]).all()


@every
def test_what_a_chain_carries_is_made_anew_by_name(name):
    """What saw the removed rows does not reach the chain after a request, and is named."""
    sampler = climbing(SAMPLERS[name])
    model, state = begin(sampler)
    state = pe.sample(model, sampler, state, 1, thin=12).state
    assert sampler.renewable_parts(state.theta) == (*CARRIED[name], "momentum")
    assert SAMPLERS[name].renewable_parts(state.theta) == CARRIED[name]
    extra, momentum = jax.tree.map(lambda leaf: leaf + 7, (state.extra, state.theta))
    tainted = state._replace(extra=extra, momentum=momentum)
    renew = jax.vmap(sampler.renew)
    assert eqx.tree_equal(renew(tainted), renew(state))
    assert len(jax.tree.leaves(state.extra)) == len(CARRIED[name])
    live = pe.LiveInfluenceShift(order=1, scale=0.05, diverged_above=1e9)(model, sampler, state, [[3, 8]])
    assert live.dropped == (*CARRIED[name], "momentum")
    assert eqx.tree_equal(live.state.extra, renew(live.state).extra, rtol=1e-6)


@every
def test_the_first_phase_climbs_whatever_the_sampler(name, x64):
    """θ after it is that of gradient ascent with momentum, and the extra state begins when sampling does."""
    sampler = dataclasses.replace(climbing(SAMPLERS[name]), batch=None)
    model, state = begin(sampler, chains=1)

    def ascent(_, theta):
        return jax.grad(model.log_density)(theta)

    chain = jax.tree.map(lambda leaf: leaf[0], state)
    theta, momentum = chain.theta["beta"], jnp.zeros(2)
    for _ in range(8):
        chain = sampler.step(chain, ascent, 40)
        momentum = 0.9 * momentum + 1e-3 * ascent(None, {"beta": theta})["beta"]
        theta = theta + momentum
        np.testing.assert_allclose(chain.theta["beta"], theta, rtol=1e-10)
        np.testing.assert_allclose(chain.momentum["beta"], momentum, rtol=1e-9)
    expected = sampler.renew(chain)
    other = chain._replace(extra=jax.tree.map(lambda leaf: leaf + 7, chain.extra))
    after, same = sampler.step(chain, ascent, 40), sampler.step(other, ascent, 40)
    assert eqx.tree_equal(after, same)
    assert not np.any(after.momentum["beta"])
    assert jax.tree.structure(after.extra) == jax.tree.structure(expected.extra)


@every
def test_files_and_pickles_hold_everything(name, tmp_path):
    sampler = climbing(SAMPLERS[name])
    model, state = begin(sampler)
    state = pe.sample(model, sampler, state, 1, thin=12).state
    assert eqx.tree_equal(pickle.loads(pickle.dumps(sampler)), sampler)
    path = pe.save_state(tmp_path / "run.eqx", state, model, sampler)
    _, fresh = begin(sampler)
    assert eqx.tree_equal(pe.load_state(path, fresh, model, pickle.loads(pickle.dumps(sampler))), state)
    assert [each.name for each in tmp_path.iterdir()] == ["run.eqx"]


@every
def test_every_setting_is_compared_when_a_run_is_resumed(name, tmp_path):
    """Another number anywhere in the sampler, its schedule or its first phase is another run."""
    sampler = climbing(SAMPLERS[name])
    model, state = begin(sampler)
    path = pe.save_state(tmp_path / "run.eqx", state, model, sampler)
    leaves, structure = jax.tree.flatten(sampler)
    assert len(leaves) >= 5
    for at, value in enumerate(leaves):
        other = jax.tree.unflatten(structure, [*leaves[:at], value + 1 if value == 0 else value * 2, *leaves[at + 1 :]])
        with pytest.raises(errors.InputFileError, match=r"is of another run: sampler\.[a-z_.]+ was"):
            pe.load_state(path, state, model, other)
    for other, words in (
        (SAMPLERS[name], "sampler.noise_free was 'NoiseFreePhase' there and is None here"),
        (next(each for each in SAMPLERS.values() if type(each) is not type(sampler)), f"sampler was '{name}' there"),
    ):
        with pytest.raises(errors.InputFileError, match=words):
            pe.load_state(path, state, model, other)


def test_the_step_is_numbered_as_the_schedule_counts_and_knows_the_rows():
    class Looks(pe.Sampler):
        schedule: pe.Schedule
        batch: int | None = eqx.field(default=None, static=True)
        noise_free: pe.NoiseFreePhase | None = None

        def start_extra(self, key, theta, step_size):
            return {"numbers": jnp.zeros((2, 3), jnp.int32), "keys": key, "parts": [theta, None]}

        def update(self, theta, extra, ascent, step):
            numbers = extra["numbers"].at[0].add(step.number).at[1].set(step.rows)
            return theta, {**extra, "numbers": numbers, "keys": jax.random.split(extra["keys"])[0]}

    sampler = climbing(Looks(STEPS))
    model, state = begin(sampler)
    kept = model.without(model.change(remove=[1, 2, 3]))
    state = pe.sample(kept, sampler, state, 1, thin=8 + 4).state
    seen = np.asarray(state.extra["numbers"])
    assert seen.shape == (3, 2, 3)
    assert (seen[:, 0] == 1 + 2 + 3 + 4).all()
    assert (seen[:, 1] == 37).all()
    assert sampler.renewable_parts(state.theta) == ("keys", "numbers", "parts.0", "momentum")
    doubled = map_extra(lambda theta: jax.tree.map(lambda leaf: 2 * leaf, theta), sampler, state.theta, state.extra)
    np.testing.assert_array_equal(doubled["parts"][0]["beta"], 2 * state.extra["parts"][0]["beta"])
    np.testing.assert_array_equal(doubled["numbers"], state.extra["numbers"])


def test_random_keys_in_the_extra_state_are_saved(tmp_path):
    class Keyed(pe.SGLD):
        def start_extra(self, key, theta, step_size):
            return {"key": key}

        def update(self, theta, extra, ascent, step):
            return super().update(theta, None, ascent, step)[0], {"key": jax.random.fold_in(extra["key"], step.number)}

    sampler = Keyed(STEPS)
    model, fresh = begin(sampler)
    state = pe.sample(model, sampler, fresh, 5).state
    path = pe.save_state(tmp_path / "run.eqx", state, model, sampler)
    assert eqx.tree_equal(pe.load_state(path, fresh, model, sampler), state)


def test_settings_that_cannot_be_compared_are_refused(tmp_path):
    class Shaped(pe.Schedule):
        shape: object = eqx.field(static=True)

        def __call__(self, t):
            return self.shape(t)

        def scaled(self, factor):
            return self

    def saved(shape):
        sampler = pe.SGLD(Shaped(shape))
        model, state = begin(sampler)
        return pe.save_state(tmp_path / "run.eqx", state, model, sampler), (state, model)

    with pytest.raises(errors.InvalidOptionError, match=r"sampler\.schedule\.shape"):
        saved(lambda t: 1e-3 / t)
    path, rest = saved(jnp.reciprocal)
    with pytest.raises(errors.InputFileError, match=r"sampler\.schedule\.shape was '.*reciprocal' there"):
        pe.load_state(path, *rest, pe.SGLD(Shaped(jnp.sqrt)))


def test_options():
    for kind, options, words in (
        (pe.PSGLD, {"decay": 1.0}, "decay"),
        (pe.PSGLD, {"damping": 0.0}, "damping"),
        (pe.SGNHT, {"diffusion": 0.0}, "diffusion"),
        (pe.SGNHT, {"diffusion": 1.0}, "diffusion"),
    ):
        with pytest.raises(errors.InvalidOptionError, match=words):
            kind(STEPS, **options)
    with pytest.raises(errors.InvalidOptionError, match="exploration"):
        pe.CyclicalSGLD(pe.CyclicalSteps(1e-3, 10), exploration=1.0)
    with pytest.raises(errors.InvalidOptionError, match="cycle"):
        pe.CyclicalSteps(1e-3, 1)
    with pytest.raises(errors.InvalidOptionError, match="step size"):
        pe.CyclicalSteps(0.0, 10)


def test_states_of_an_exploration_stage_are_no_draws():
    sampler = pe.CyclicalSGLD(pe.CyclicalSteps(1e-3, 10), exploration=0.3)
    model, state = begin(sampler)
    with pytest.raises(errors.InvalidOptionError, match=r"the state after step 1 of a chain(.|\n)* pass thin=10"):
        pe.sample(model, sampler, state, 20)
    with pytest.raises(errors.InvalidOptionError, match="after step 12 "):
        pe.sample(model, sampler, state, 3, thin=4)
    pe.sample(model, sampler, state, 2, thin=4)
    pe.sample(model, sampler, state, 3, thin=10)
    np.testing.assert_array_equal(sampler.is_exploring(jnp.arange(1, 13)), [1, 1, 1, *[0] * 7, 1, 1])
