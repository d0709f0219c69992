"""The compilation cache: when it is on, in which folder, for which threads, and with nothing of the data in it."""

import json
import math
import os
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from jax._src import config as jax_config
from jax._src.compilation_cache import decompress_executable
from jax.experimental.compilation_cache import compilation_cache as jax_cache

import posterase as pe
from posterase.errors import InvalidOptionError, OutputError
from posterase.runtime import compilation_cache
from posterase.runtime.closures import holds_data
from posterase.runtime.compilation_cache import (
    compilation_scope,
    compile_in_background,
    enable_compilation_cache,
    find_cache,
    is_suspended,
    suspend_cache,
    wait_for_background,
)
from tests.cli.test_doctor import examined

FIRST_ERASURE = """
import json, sys, collections
import jax, jax.numpy as jnp, numpy as np
import posterase as pe

pe.enable_compilation_cache()
counted = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counted.update([event.split("/")[-1]]))
compiled = "/jax/core/compile/backend_compile_duration"
jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: counted.update([event]))

rng = np.random.default_rng(0)
x, y = rng.normal(size=(60, 3)), rng.normal(size=60)
model = pe.Model(
    lambda p: -0.5 * jnp.sum(p["slope"] ** 2),
    lambda p, data: -0.5 * (data["y"] - data["x"] @ p["slope"]) ** 2,
    {"x": x, "y": y},
)
inverse = np.linalg.inv(x.T @ x + np.eye(3))
normal = rng.normal(size=(4, 200, 3)) @ np.linalg.cholesky(inverse).T
draws = pe.Draws({"slope": inverse @ x.T @ y + normal})
before = counted[compiled]
after = pe.erase(model, draws, [3, 17], **eval(sys.argv[1])).outcomes[-1].erased.draws
jax.jit(lambda a: a + jnp.asarray(y))(1.0)  # the user's own, with data in it
print(json.dumps({
    "programs": counted[compiled] - before,
    "hits": counted["cache_hits"],
    "misses": counted["cache_misses"],
    "draws": np.asarray(after.params["slope"]).tobytes().hex(),
    "weights": np.asarray(after.weights).tobytes().hex(),
}))
"""

WARNINGS = os.environ.get("PYTHONWARNINGS", "error")
"""Of the processes started here: errors, unless the environment of the tests has other ones."""

ALL_RUNGS = "{'methods': [pe.Reweight(), pe.InfluenceShift(), pe.Transport(), pe.Rejuvenate(), pe.Refit()]}"


def first_erasure(folder, options="{}"):
    """What a new process reports of its first erasure, with an empty standard error."""
    own = {**os.environ, compilation_cache.VARIABLE: str(folder), "PYTHONWARNINGS": WARNINGS}
    command = [sys.executable, "-c", FIRST_ERASURE, options]
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def entries(folder):
    return [zlib.decompress(path.read_bytes()) for path in Path(folder).glob("*-cache")]


OPTIONS = compilation_cache.FOLDER, compilation_cache.THRESHOLD, compilation_cache.XLA_CACHES


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """The folder of a user who has chosen nothing; JAX's options are restored afterwards."""
    monkeypatch.delenv(compilation_cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compilation_cache, "_enabled", None)
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    yield tmp_path / "cache" / "posterase" / "programs"
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


@pytest.fixture
def enabled(fresh):
    """The folder of a user who has switched the cache on."""
    assert enable_compilation_cache() == fresh
    return fresh


def switch_off(monkeypatch):
    """Go on as a process that has not enabled the cache."""
    monkeypatch.setattr(compilation_cache, "_enabled", None)
    for name in OPTIONS:
        jax.config.update(name, compilation_cache.JAX_DEFAULTS[name])


def test_the_next_process_compiles_nothing_and_finds_the_same(tmp_path):
    first, second = first_erasure(tmp_path / "programs"), first_erasure(tmp_path / "programs")
    assert first["hits"] < first["misses"] <= first["programs"] <= MOST_PROGRAMS
    assert (second["hits"], second["misses"]) == (first["hits"] + first["misses"], 0)
    without = first_erasure("off")
    assert without["hits"] == without["misses"] == 0
    for name in ("draws", "weights"):
        assert first[name] == second[name] == without[name]
    assert holding_data(tmp_path / "programs") == []


MOST_PROGRAMS = 30
"""What the first erasure by `Reweight` may compile."""


def holding_data(folder):
    """Programs that hold a row or a draw of `FIRST_ERASURE`, in either precision."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    values = [*x.ravel(), *y]
    looked_for = [np.asarray(value, dtype).tobytes() for value in values for dtype in (np.float32, np.float64)]
    found = entries(folder)
    assert found
    return [index for index, entry in enumerate(found) if any(value in entry for value in looked_for)]


@pytest.mark.slow
def test_no_program_of_any_rung_holds_data(tmp_path):
    first_erasure(tmp_path / "programs", ALL_RUNGS[:-1] + ", 'policy': pe.Policy(refit=True, ess=800)}")
    assert holding_data(tmp_path / "programs") == []


def test_a_program_that_holds_data_would_be_seen(enabled):
    """The twin of the tests above: were the bytes not as we look for them, they could not fail."""
    rng = np.random.default_rng(0)
    x = jax.numpy.asarray(rng.normal(size=(60, 3)))
    with compilation_scope():
        jax.jit(lambda a: a + x)(1.0)
    assert len(holding_data(enabled)) == 1


# --- rows outside of a model's data

ROWS_IN_CLOSURES = """
import sys
import jax, jax.numpy as jnp, numpy as np
import posterase as pe
import posterase.model.base

rows, places = np.random.default_rng(1).normal(size=(5, 40)), np.arange(40)
named, held, array = jnp.asarray(rows[3]), {"y": jnp.asarray(rows[2])}, jnp.asarray(rows[1])

def look_up(places):
    return jnp.take(named, places)

def from_numpy(y):
    return lambda p, data: -0.5 * (y[data["place"]] - p["mean"]) ** 2

FUNCTIONS = {
    "numpy": from_numpy(rows[0]),
    "jax": lambda p, data: -0.5 * (array[data["place"]] - p["mean"]) ** 2,
    "dict": lambda p, data: -0.5 * (jnp.take(held["y"], data["place"]) - p["mean"]) ** 2,
    "global": lambda p, data: -0.5 * (look_up(data["place"]) - p["mean"]) ** 2,
    "argument": lambda p, data: -0.5 * (data["y"] - p["mean"]) ** 2,
}

folder = pe.enable_compilation_cache()
if sys.argv[1] == "without the gate":
    posterase.model.base.suspend_cache = lambda: None
refits = sys.argv[2] == "refit"
policy = pe.Policy(refit=refits, ess=200)
for name in sys.argv[3:]:
    y = rows[list(FUNCTIONS).index(name)]
    data = {"y": y} if name == "argument" else {"place": places}
    model = pe.Model(lambda p: -0.5 * p["mean"] ** 2, FUNCTIONS[name], data)
    draws = pe.Draws({"mean": y.sum() / 41 + np.random.default_rng(2).normal(size=(4, 50)) / np.sqrt(41)})
    pe.erase(model, draws, [3, 17], methods=[pe.Reweight()])
    jax.clear_caches()
    # Of this kind of model everything is known, and all is compiled again.
    methods = [pe.Reweight(), pe.Refit(warmup=20)][: 1 + refits]
    tried = pe.erase(model, draws, [5], methods=methods, policy=policy).outcomes
    assert [outcome.name for outcome in tried if outcome.erased] == ["Reweight", "Refit"][: 1 + refits]
    assert jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir == str(folder)
"""
"""Erases from models of the same form whose rows are in closures, and in the one named last in its data."""

KINDS = ("numpy", "jax", "dict", "global", "argument")


def rows_written(folder, gate, *kinds, refit=False):
    """Which of the models' rows are in the files that a process left in its folder; and whether it left programs."""
    own = {**os.environ, compilation_cache.VARIABLE: str(folder), "PYTHONWARNINGS": WARNINGS}
    command = [sys.executable, "-c", ROWS_IN_CLOSURES, gate, "refit" if refit else "no refit", *kinds]
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    files = [_content(path) for path in Path(folder).rglob("*") if path.is_file()]
    rows = np.random.default_rng(1).normal(size=(5, 40))
    found = set()
    for kind, own_rows in zip(KINDS, rows, strict=True):
        single = own_rows.astype(np.float32)
        looked_for = {each.tobytes() for values in (own_rows, single, single.astype(float)) for each in values}
        # Four bytes turn up by chance now and then in some megabytes of programs; many of them do not.
        if sum(any(each in content for content in files) for each in looked_for) >= 10:
            found.add(kind)
    return found, any("-cache" in path.name for path in Path(folder).iterdir())


def _content(path):
    try:
        return decompress_executable(path.read_bytes())
    except Exception:  # no program
        return path.read_bytes()


@pytest.mark.parametrize("refit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_of_closures_are_not_written(tmp_path, refit):
    assert rows_written(tmp_path / "programs", "with the gate", *KINDS[:-1], refit=refit)[0] == set()


@pytest.mark.slow
def test_without_the_gate_they_would_be(tmp_path):
    """The twin of the test above."""
    assert rows_written(tmp_path / "programs", "without the gate", *KINDS[:-1])[0] == set(KINDS[:-1])


def test_programs_of_a_model_whose_rows_are_its_data_are_written(tmp_path):
    assert rows_written(tmp_path / "programs", "with the gate", "argument") == (set(), True)


HELD = jnp.asarray(np.random.default_rng(3).normal(size=40))
"""Rows that a model's functions use beside their arguments."""


def model_of_places(held=True, **more):
    """Rows of one number each: in a global array, which the model's data point to, or in the data."""
    data = {"place": np.arange(40), "y": np.zeros(40) if held else np.array(HELD)}
    return pe.Model(
        lambda p: -0.5 * p["mean"] ** 2,
        (lambda p, data: -0.5 * (HELD[data["place"]] - p["mean"]) ** 2)
        if held
        else (lambda p, data: -0.5 * (data["y"] - p["mean"]) ** 2),
        data,
        **more,
    )


def some_draws(seed=0):
    return pe.Draws({"mean": float(HELD.sum()) / 41 + np.random.default_rng(seed).normal(size=(4, 25)) / np.sqrt(41)})


SAMPLER = pe.SGLD(pe.PolynomialSteps(1e-3))


def live_shift(model):
    state = pe.start_chains(0, model, SAMPLER, {"mean": np.zeros(2)})
    pe.LiveInfluenceShift(order=2, diverged_above=10.0)(model, SAMPLER, state, [[3]])


def assessed(**more):
    return pe.assess(model_of_places(held=False), some_draws(), some_draws(1), rows=[3], **more)


ENTRIES = {
    "erase": lambda: pe.erase(model_of_places(), some_draws(), [3], methods=[pe.Reweight()]),
    "method": lambda: pe.Reweight()(0, model_of_places(), some_draws(), model_of_places().change(remove=[3])),
    "nuts": lambda: pe.nuts(0, model_of_places(), {"mean": np.zeros(4)}, 20, warmup=50),
    "sample": lambda: pe.sample(
        model_of_places(), SAMPLER, pe.start_chains(0, model_of_places(), SAMPLER, {"mean": np.zeros(2)}), 4
    ),
    "divergence": lambda: pe.metrics.divergence(model_of_places(), some_draws(), model_of_places().change(remove=[3])),
    "row influence": lambda: pe.metrics.forget_sets(0, model_of_places(), some_draws(), 3),
    "live": lambda: live_shift(model_of_places()),
    "assess": lambda: pe.assess(model_of_places(), some_draws(), some_draws(1), rows=[3]),
    "predictor": lambda: assessed(predictor=lambda p, data: p["mean"] + HELD[data["place"]]),
    "labels": lambda: assessed(
        predictor=lambda p, data: jnp.stack([jnp.full(data["y"].shape, 0.5)] * 2, axis=1),
        labels=jax.jit(lambda data: (HELD[data["place"]] > 0).astype(int)),
    ),
    "metric": lambda: assessed(metrics={"own": lambda _: [jax.jit(lambda a: a + HELD)(1.0)][:0]}),
}


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("entry", ENTRIES)
def test_no_call_writes_rows_of_closures(enabled, monkeypatch, entry, gate):
    """Whatever compiles a user's functions; and the twin, in which nothing holds the programs back."""
    if not gate:
        monkeypatch.setattr(compilation_cache, "suspend_cache", lambda: None)
        for module in ("model.base", "metrics.assessment", "metrics.comparison"):
            monkeypatch.setattr(f"posterase.{module}.suspend_cache", lambda: None)
    jax.clear_caches()
    ENTRIES[entry]()
    looked_for = [each.astype(dtype).tobytes() for each in np.array(HELD) for dtype in (np.float32, np.float64)]
    found = any(each in _content(path) for each in looked_for for path in enabled.rglob("*") if path.is_file())
    assert found != gate


def test_programs_of_a_predictor_without_arrays_are_written(enabled):
    assessed(predictor=lambda p, data: p["mean"] + data["y"])
    assert entries(enabled)


@jax.custom_vjp
def with_own_derivative(mean):
    return mean**2


with_own_derivative.defvjp(lambda mean: (mean**2, mean), lambda mean, slope: (slope * (2 * mean + 0 * jnp.sum(HELD)),))


@pytest.mark.parametrize(
    ("held", "function"),
    [
        (True, lambda a: a + HELD),
        (True, lambda a: a + np.array([1.0, 2.0])),
        (True, lambda a: jnp.take(jnp.arange(3.0) * a, np.array([2, 0]))),
        (True, lambda a: jax.jit(lambda b: b + HELD[:3])(a)),
        (True, lambda a: jax.lax.scan(lambda c, _: (c + HELD.sum(), None), a, length=3)[0]),
        (True, lambda a: jax.lax.cond(a > 0, lambda: HELD.sum(), lambda: a)),
        (True, lambda a: jax.vmap(jax.checkpoint(lambda b: b * HELD))(jnp.ones((2, 1)) * a)),
        (True, lambda a: HELD),
        (True, jax.grad(lambda a: with_own_derivative(a))),
        (True, lambda a: float(a)),  # cannot be traced
        (False, with_own_derivative),
        (False, lambda a: a * 2 + np.float32(3) + jnp.asarray(4.0) + np.array([5.0])),
        (False, lambda a: jax.scipy.special.gammaln(a) + jax.random.normal(jax.random.key(0), (7,))),
        (False, lambda a: jnp.arange(9) * a + jnp.linspace(0, 1, 9) + jnp.eye(9)),
    ],
)
def test_arrays_in_functions_are_found(held, function):
    shape = jax.ShapeDtypeStruct((), np.float32)
    assert holds_data(function, shape) == held
    if held and jax.config.jax_use_simplified_jaxpr_constants is False:
        jax.config.update("jax_use_simplified_jaxpr_constants", True)
        try:
            assert holds_data(lambda a: function(a), shape)
        finally:
            jax.config.update("jax_use_simplified_jaxpr_constants", False)


def test_arrays_in_rules_for_derivatives_are_found():
    """Programs have slopes in them; and a model that was checked before suspends the cache each time."""
    shape = {"mean": jax.ShapeDtypeStruct((), np.float32)}

    def model(square):
        rows = {"y": np.arange(4.0)}
        return pe.Model(lambda p: -square(p["mean"]), lambda p, data: -0.5 * (data["y"] - p["mean"]) ** 2, rows)

    held, clean = model(with_own_derivative), model(jnp.square)
    for _ in range(2):
        for each, expected in ((clean, False), (held, True)):
            with compilation_scope():
                each.check_functions(shape)
                assert is_suspended() is expected
    assert not is_suspended()


def numpyro_fit(offset):
    numpyro = pytest.importorskip("numpyro")

    def program(x, y=None):
        mean = numpyro.sample("mean", numpyro.distributions.Normal(0, 5))
        numpyro.sample("y", numpyro.distributions.Normal(mean * x + offset(x), 1), obs=y)

    return pe.from_numpyro(program, np.array(HELD), y=np.array(HELD), draws=some_draws())


def pymc_fit():
    pm = pytest.importorskip("pymc")
    with pm.Model() as program:
        mean = pm.Normal("mean", 0, 5, shape=3)
        pm.Normal("y", mean[np.arange(40) % 3] * np.array(HELD), 1, observed=np.array(HELD))
    posterior = {"mean": (("chain", "draw", "group"), np.random.default_rng(0).normal(size=(4, 25, 3)))}
    return pe.from_pymc(program, xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)}))


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
@pytest.mark.parametrize(
    ("fit", "expected"),
    [
        (lambda: numpyro_fit(lambda x: 0.0), False),
        (lambda: numpyro_fit(lambda x: HELD.mean() * x), True),
        (pymc_fit, False),
    ],
    ids=["numpyro", "numpyro, a closure", "pymc"],
)
def test_programs_of_bridged_fits_are_written(fit, expected):
    """Their rows are arguments, unless the program takes them from elsewhere."""
    model, draws = fit()
    with compilation_scope():
        model.check(draws)
        assert is_suspended() is expected


FIT_BY_PYMC = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np, posterase as pe, pymc as pm, xarray as xr

rows = np.random.default_rng(3).normal(size=(2, 40))
with pm.Model() as program:
    mean = pm.Normal("mean", 0, 5)
    pm.Normal("y", mean * rows[0], 1, observed=rows[1])
if sys.argv[1] == "by PyMC":
    program.compile_logp()(program.initial_point())
posterior = xr.Dataset({"mean": (("chain", "draw"), np.random.default_rng(0).normal(size=(4, 25)))})
model, draws = pe.from_pymc(program, xr.DataTree.from_dict({"posterior": posterior}))
pe.erase(model, draws, [3], methods=[pe.Reweight()])
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["by PyMC", "by us"])
def test_pytensors_cache_gets_rows_from_pymc_only(tmp_path, compiled):
    """Numba's functions hold a model's arrays, and PyTensor keeps them: a twin shows that they are found."""
    pytest.importorskip("pymc")
    own = {**os.environ, "PYTENSOR_FLAGS": f"base_compiledir={tmp_path},linker=numba"}
    subprocess.run([sys.executable, "-c", FIT_BY_PYMC, compiled], env=own, check=True, capture_output=True)
    looked_for = [each.tobytes() for each in np.random.default_rng(3).normal(size=80)]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert any(each in content for each in looked_for for content in files) == (compiled == "by PyMC")


# --- scopes and threads


def in_a_thread(function, *args):
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join()
    return results[0]


def test_jax_has_options_of_single_threads(tmp_path, monkeypatch):
    """What `compilation_cache._apply` needs of JAX's private modules; and what JAX reads when it writes a program."""
    states = jax_config.persistent_cache_min_compile_time_secs, jax_config.persistent_cache_enable_xla_caches
    assert [state.name for state in states] == [compilation_cache.THRESHOLD, compilation_cache.XLA_CACHES]
    before = [getattr(jax.config, state.name) for state in states]
    with states[0](math.inf), states[1](""):
        assert [state.value for state in states] == [math.inf, ""]
        assert in_a_thread(lambda: [state.value for state in states]) == before
    assert [state.value for state in states] == before


@pytest.mark.parametrize("option", compilation_cache.JAX_DEFAULTS)
def test_jax_has_these_defaults(option):
    """In a process without JAX they are what its options will be."""
    assert jax_config.config_states[option].get_global() == compilation_cache.JAX_DEFAULTS[option]


def test_only_what_is_compiled_in_a_scope_is_written(enabled):
    """What users compile themselves may hold data."""
    jax.jit(lambda a: a + 17.0)(1.0)
    assert entries(enabled) == []
    with compilation_scope(), compilation_scope():
        jax.jit(lambda a: a + 18.0)(1.0)
        written = len(entries(enabled))
        in_a_thread(lambda: jax.jit(lambda a: a + 18.5)(1.0))
        assert len(entries(enabled)) == written > 0
        in_a_thread(lambda: compilation_scope()(jax.jit(lambda a: a + 18.75))(1.0))
        assert len(entries(enabled)) > written
    written = len(entries(enabled))
    jax.jit(lambda a: a + 19.0)(1.0)
    assert len(entries(enabled)) == written
    assert enabled.stat().st_mode & 0o777 == 0o700


def test_suspended_until_the_outermost_scope_of_the_thread_ends(enabled):
    with compilation_scope():
        jax.jit(lambda a: a + 22.0)(1.0)
        written = len(entries(enabled))
        with compilation_scope():
            suspend_cache()
            jax.jit(lambda a: a + 23.0)(1.0)
        jax.jit(lambda a: a + 23.5)(1.0)
        assert len(entries(enabled)) == written > 0
        in_a_thread(lambda: compilation_scope()(jax.jit(lambda a: a + 24.0))(1.0))
        assert len(entries(enabled)) > written  # of a thread that is not suspended
    written = len(entries(enabled))
    suspend_cache()  # outside of a scope: nothing
    with compilation_scope():
        jax.jit(lambda a: a + 25.0)(1.0)
    assert len(entries(enabled)) > written


@pytest.mark.parametrize("is_held", [True, False])
def test_what_compiles_in_the_background_is_suspended_too(enabled, is_held):
    lowered = jax.jit(lambda a, scale=26.5 + is_held: a * scale).lower(1.0)
    with compilation_scope():
        if is_held:
            suspend_cache()
        compile_in_background(lowered)
        wait_for_background()
        assert bool(entries(enabled)) is not is_held


def test_a_scope_waits_for_its_own_thread_only():
    class Slow:
        def __init__(self):
            self.may_end, self.ended = threading.Event(), False

        def compile(self):
            assert self.may_end.wait(30)
            self.ended = True

    slow, other = Slow(), Slow()
    other.may_end.set()
    with compilation_scope():
        compile_in_background(slow)
        in_a_thread(lambda: compilation_scope()(compile_in_background)(other))
        assert other.ended
        assert not slow.ended
        slow.may_end.set()
    assert slow.ended


@pytest.mark.parametrize("is_on", [True, False])
def test_library_calls_change_no_option_of_jax(fresh, monkeypatch, is_on):
    if is_on:
        enable_compilation_cache()
    changed = []
    update = jax.config.update
    monkeypatch.setattr(jax.config, "update", lambda name, value: (changed.append(name), update(name, value)))
    before = dict(jax.config.values)
    jax.clear_caches()
    for held in (False, True):
        pe.erase(model_of_places(held=held), some_draws(), [3], methods=[pe.Reweight()])
    assert dict(jax.config.values) == before
    # JAX sets its own default when it opens its cache.
    assert set(changed) <= {"jax_persistent_cache_min_entry_size_bytes"}
    assert fresh.exists() is is_on


def test_an_error_in_a_scope_ends_it(enabled):
    @compilation_scope()
    def fails():
        suspend_cache()
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not is_suspended()
    assert jax.config.jax_persistent_cache_min_compile_time_secs == math.inf
    with compilation_scope():
        assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0


def test_a_users_own_folder_gets_no_rows_either(fresh, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    assert enable_compilation_cache() == tmp_path / "theirs"
    with compilation_scope():
        suspend_cache()
        jax.jit(lambda a: a + 26.0)(1.0)
    assert entries(tmp_path / "theirs") == []
    jax.jit(lambda a: a + 27.0)(1.0)
    assert entries(tmp_path / "theirs")


# --- where programs are written


def test_nothing_is_written_unless_the_cache_is_enabled(fresh):
    with compilation_scope():
        jax.jit(lambda a: a + 27.5)(1.0)
    assert not fresh.exists()


def test_a_users_choice_is_respected(fresh, monkeypatch, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    assert enable_compilation_cache() == tmp_path / "theirs"
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0
    with compilation_scope():
        assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0
    with pytest.raises(InvalidOptionError, match=r"jax_compilation_cache_dir is '.*theirs' already"):
        enable_compilation_cache(tmp_path / "named")
    switch_off(monkeypatch)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    assert enable_compilation_cache() is None
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv(compilation_cache.VARIABLE, "off")
    assert enable_compilation_cache() is enable_compilation_cache(tmp_path / "named") is None
    monkeypatch.setenv(compilation_cache.VARIABLE, "~nobody-of-that-name/programs")
    assert "no such user" in find_cache().reason
    assert enable_compilation_cache() is None
    assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv(compilation_cache.VARIABLE, str(tmp_path / "named"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    assert enable_compilation_cache() == tmp_path / "named"
    with compilation_scope():
        assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.5
    assert not fresh.exists()


def test_a_folder_can_be_passed(fresh, tmp_path):
    for folder in (tmp_path / "first", tmp_path / "second"):  # the last call counts
        assert enable_compilation_cache(str(folder)) == enable_compilation_cache(folder) == folder
        with compilation_scope():
            jax.jit(lambda a, name=folder.name: a + 28.0 + len(name))(1.0)
        assert entries(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        enable_compilation_cache(tmp_path / "file" / "folder")


def test_a_process_without_a_home_folder(monkeypatch, fresh):
    def fails():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compilation_cache, "cache_folder", fails)
    assert enable_compilation_cache() is None
    assert "home directory" in find_cache().reason


BEFORE_JAX = """
import os, subprocess, sys
import posterase as pe

folder = pe.enable_compilation_cache()
assert "jax" not in sys.modules
if sys.argv[1] == "start another process":
    sys.exit(subprocess.run([sys.executable, "-c", sys.argv[2], ""]).returncode)
import jax
from posterase.runtime.compilation_cache import compilation_scope

assert jax.config.jax_compilation_cache_dir == str(folder)
jax.jit(lambda a: a + 1)(1.0)
assert not list(folder.glob("*-cache"))
with compilation_scope():
    jax.jit(lambda a: a + 2)(1.0)
assert list(folder.glob("*-cache"))
"""


@pytest.mark.parametrize("how", ["", "start another process"])
def test_jax_need_not_be_imported(tmp_path, how):
    """JAX's environment variables are inherited; a process that is started with them does as its parent does."""
    own = {**os.environ, compilation_cache.VARIABLE: str(tmp_path / "programs"), "PYTHONWARNINGS": WARNINGS}
    command = [sys.executable, "-c", BEFORE_JAX, how, BEFORE_JAX]
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_enables_it(tmp_path):
    script = (
        "import os, sys\n"
        "from posterase.cli.main import app, main\n"
        "sys.argv = ['posterase', '--version']\n"
        "try:\n"
        "    main() if os.environ['HOW'] == 'main' else app(standalone_mode=False)\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(os.environ.get('JAX_COMPILATION_CACHE_DIR'), 'jax' in sys.modules)\n"
    )
    own = {**os.environ, compilation_cache.VARIABLE: str(tmp_path / "programs")}
    for how, folder in (("main", str(tmp_path / "programs")), ("app", "None")):
        done = subprocess.run(
            [sys.executable, "-c", script], env={**own, "HOW": how}, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == f"{folder} False"


def test_a_folder_that_cannot_be_used_is_not_used(fresh, monkeypatch, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "posterase").write_text("a file where the folder should be")
    assert enable_compilation_cache() is None
    assert jax.config.jax_compilation_cache_dir is None
    found = examined("--keys", tmp_path / "keys", "--record", tmp_path / "record.db", status=1)["compiled programs"]
    assert found["state"] == "wrong"
    assert compilation_cache.VARIABLE in found["advice"]


def test_a_folder_that_others_can_write_to_is_not_used(fresh, tmp_path):
    """They could put programs there."""
    fresh.mkdir(parents=True)
    fresh.chmod(0o770)
    assert enable_compilation_cache() is None
    assert jax.config.jax_compilation_cache_dir is None
    found = examined("--keys", tmp_path / "keys", "--record", tmp_path / "record.db", status=1)["compiled programs"]
    assert "chmod go-w" in found["advice"]


def test_doctor_says_where_they_are(fresh, monkeypatch, tmp_path):
    words = "--keys", tmp_path / "keys", "--record", tmp_path / "record.db"
    assert examined(*words)["compiled programs"]["said"].startswith(f"0 in {fresh}")
    assert jax.config.jax_compilation_cache_dir is None  # it switches nothing on
    enable_compilation_cache()
    with compilation_scope():
        jax.jit(lambda a: a + 20.0)(1.0)
    found = examined(*words)["compiled programs"]
    assert found["state"] == "ok"
    assert found["said"].startswith(f"{len(entries(fresh))} in {fresh}, 0.0 MiB")
    switch_off(monkeypatch)
    monkeypatch.setenv(compilation_cache.VARIABLE, "off")
    assert examined(*words)["compiled programs"]["said"] == f"not written to disk: {compilation_cache.VARIABLE} is off"


def test_half_written_files_and_old_ones_go(fresh, monkeypatch):
    """Once a day; and a file that another process may still be writing stays."""
    fresh.mkdir(parents=True, mode=0o700)
    whole = zlib.compress(np.random.default_rng(0).bytes(1000))
    contents = {"whole": whole, "old": whole, "half": whole[:500], "empty": b"", "being-written": whole[:500]}
    now = time.time()
    for name, content in contents.items():
        path = fresh / f"{name}-cache"
        path.write_bytes(content)
        age = {"old": 5e5, "being-written": 0}.get(name, 3600)
        os.utime(path, (now - age, now - age))
    monkeypatch.setattr(compilation_cache, "MOST_BYTES", 1800)
    enable_compilation_cache()
    assert {path.name for path in fresh.glob("*-cache")} == {"whole-cache", "being-written-cache"}
    (fresh / "empty-cache").write_bytes(b"")
    os.utime(fresh / "empty-cache", (now - 3600, now - 3600))
    switch_off(monkeypatch)
    enable_compilation_cache()
    assert (fresh / "empty-cache").exists()


def test_a_broken_program_is_compiled_anew(enabled):
    def compiled(a):
        return a * 3.0 + 21.0

    with compilation_scope():
        jax.jit(compiled)(1.0)
    for path in enabled.glob("*-cache"):
        path.write_bytes(path.read_bytes()[:40])
    jax.clear_caches()
    with compilation_scope():
        assert jax.jit(compiled)(1.0) == 24.0


def test_several_processes_at_once(tmp_path):
    script = (
        "import jax, sys\n"
        "from posterase.runtime.compilation_cache import compilation_scope, enable_compilation_cache\n"
        "enable_compilation_cache()\n"
        "with compilation_scope():\n"
        "    print(sum(float(jax.jit(lambda a, k=k: a * k + 1)(2.0)) for k in range(1, 9)))\n"
    )
    own = {**os.environ, compilation_cache.VARIABLE: str(tmp_path / "programs"), "PYTHONWARNINGS": WARNINGS}
    command = [sys.executable, "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for _ in range(2):
        running = [subprocess.Popen(command, env=own, **pipes) for _ in range(3)]
        assert [each.communicate() for each in running] == [("80.0\n", "")] * 3
    assert len(entries(tmp_path / "programs")) >= 8


def test_a_callback_is_that_of_the_process_that_calls(tmp_path):
    """What bridges to other programs do. Newer versions of jax keep programs with callbacks, and bind them anew; one
    that called what it was compiled with would call into another process's memory.
    """
    script = (
        "import jax, numpy as np, sys\n"
        "from posterase.runtime.compilation_cache import compilation_scope, enable_compilation_cache\n"
        "enable_compilation_cache()\n"
        "factor = float(sys.argv[1])\n"
        "def called(a):\n"
        "    shape = jax.ShapeDtypeStruct((), np.float32)\n"
        "    first = jax.pure_callback(lambda v: np.float32(v * factor), shape, a)\n"
        "    return first + jax.pure_callback(lambda v: np.float32(v + 100 * factor), shape, a)\n"
        "for _ in range(2):\n"
        "    with compilation_scope():\n"
        "        print(jax.jit(called)(np.float32(4)), jax.jit(lambda a: a + 1)(np.float32(4)))\n"
        "    jax.clear_caches()\n"
    )
    own = {**os.environ, compilation_cache.VARIABLE: str(tmp_path / "programs"), "PYTHONWARNINGS": WARNINGS}
    for factor, expected in ((2, "212.0 5.0\n"), (3, "316.0 5.0\n"), (5, "524.0 5.0\n")):
        command = [sys.executable, "-c", script, str(factor)]
        done = subprocess.run(command, env=own, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (2 * expected, "")
    assert entries(tmp_path / "programs")
