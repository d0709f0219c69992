"""Compiled programs are kept for the next process: in which folder, for whom, and with nothing of the data in them."""

import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest

from posterase import compilation
from posterase.compilation import programs, programs_kept
from tests.test_doctor import examined

FIRST_ERASURE = """
import json, sys, collections
import jax, jax.numpy as jnp, numpy as np
import posterase as pe

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
after = pe.erase(model, draws, [3, 17], **eval(sys.argv[1])).rungs[-1].erased.draws
jax.jit(lambda a: a + jnp.asarray(y))(1.0)  # the user's own, with data in it
print(json.dumps({
    "programs": counted[compiled] - before,
    "hits": counted["cache_hits"],
    "misses": counted["cache_misses"],
    "draws": np.asarray(after.params["slope"]).tobytes().hex(),
    "weights": np.asarray(after.weights).tobytes().hex(),
    "left": [jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs],
}))
"""

WARNINGS = os.environ.get("PYTHONWARNINGS", "error")
"""Of the processes started here: errors, unless who runs the tests says otherwise."""

ALL_RUNGS = "{'rungs': [pe.Reweight(), pe.InfluenceShift(), pe.Transport(), pe.Rejuvenate(), pe.Refit()]}"


def first_erasure(folder, options="{}"):
    """What a new process says of its first erasure; nothing may be said on its standard error."""
    own = {**os.environ, compilation.VARIABLE: str(folder), "PYTHONWARNINGS": WARNINGS}
    command = [sys.executable, "-c", FIRST_ERASURE, options]
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def entries(folder):
    return [zlib.decompress(path.read_bytes()) for path in Path(folder).glob("*-cache")]


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No choice made, and a user's cache that is empty."""
    monkeypatch.delenv(compilation.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "_ready", set())
    return tmp_path / "cache" / "posterase" / "programs"


def test_the_next_process_compiles_nothing_and_finds_the_same(tmp_path):
    first, second = first_erasure(tmp_path / "programs"), first_erasure(tmp_path / "programs")
    assert first["hits"] < first["misses"] <= first["programs"] <= MOST_PROGRAMS
    assert (second["hits"], second["misses"]) == (first["hits"] + first["misses"], 0)
    without = first_erasure("off")
    assert without["hits"] == without["misses"] == 0
    for name in ("draws", "weights"):
        assert first[name] == second[name] == without[name]
    assert first["left"] == without["left"] == [None, 1.0]
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
    first_erasure(tmp_path / "programs", ALL_RUNGS[:-1] + ", 'policy': pe.Policy(refit=True, ess=1e9)}")
    assert holding_data(tmp_path / "programs") == []


def test_a_program_that_holds_data_would_be_seen(fresh):
    """The twin of the tests above: were the bytes not as we look for them, they could not fail."""
    rng = np.random.default_rng(0)
    x = jax.numpy.asarray(rng.normal(size=(60, 3)))
    with programs_kept():
        jax.jit(lambda a: a + x)(1.0)
    assert len(holding_data(fresh)) == 1


def test_only_what_is_compiled_inside_is_kept(fresh):
    jax.jit(lambda a: a + 17.0)(1.0)
    assert not fresh.exists()
    with programs_kept(), programs_kept():
        jax.jit(lambda a: a + 18.0)(1.0)
    kept = len(entries(fresh))
    assert kept > 0
    assert fresh.stat().st_mode & 0o777 == 0o700
    jax.jit(lambda a: a + 19.0)(1.0)
    assert len(entries(fresh)) == kept


def test_a_users_choice_stays(fresh, monkeypatch, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    try:
        with programs_kept():
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
            assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    assert programs().folder is None
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv(compilation.VARIABLE, "off")
    with programs_kept():
        assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv(compilation.VARIABLE, "~nobody-of-that-name/programs")
    assert "no such user" in programs().said
    with programs_kept():
        assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv(compilation.VARIABLE, str(tmp_path / "named"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    try:
        with programs_kept():
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "named")
            assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.5
        assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.5
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    assert not fresh.exists()


def test_an_error_inside_leaves_jax_as_it_was(fresh):
    with pytest.raises(ZeroDivisionError), programs_kept():
        _ = 1 / 0
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_that_cannot_be_used_is_not_used(fresh, monkeypatch, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "posterase").write_text("a file where the folder should be")
    with programs_kept():
        assert jax.config.jax_compilation_cache_dir is None
    found = examined("--keys", tmp_path / "keys", "--record", tmp_path / "record.db", status=1)["compiled programs"]
    assert found["state"] == "wrong"
    assert compilation.VARIABLE in found["advice"]


def test_a_folder_that_others_can_write_to_is_not_used(fresh, tmp_path):
    """They could put programs there."""
    fresh.mkdir(parents=True)
    fresh.chmod(0o770)
    with programs_kept():
        assert jax.config.jax_compilation_cache_dir is None
    found = examined("--keys", tmp_path / "keys", "--record", tmp_path / "record.db", status=1)["compiled programs"]
    assert "chmod go-w" in found["advice"]


def test_doctor_says_where_they_are(fresh, monkeypatch, tmp_path):
    with programs_kept():
        jax.jit(lambda a: a + 20.0)(1.0)
    words = "--keys", tmp_path / "keys", "--record", tmp_path / "record.db"
    found = examined(*words)["compiled programs"]
    assert found["state"] == "ok"
    assert found["said"].startswith(f"{len(entries(fresh))} in {fresh}, 0.0 MiB")
    monkeypatch.setenv(compilation.VARIABLE, "off")
    assert examined(*words)["compiled programs"]["said"] == f"not kept: {compilation.VARIABLE} is off"


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
    monkeypatch.setattr(compilation, "MOST_BYTES", 1800)
    with programs_kept():
        pass
    assert {path.name for path in fresh.glob("*-cache")} == {"whole-cache", "being-written-cache"}
    (fresh / "empty-cache").write_bytes(b"")
    os.utime(fresh / "empty-cache", (now - 3600, now - 3600))
    compilation._ready.clear()
    with programs_kept():
        pass
    assert (fresh / "empty-cache").exists()


def test_a_broken_program_is_compiled_anew(fresh, monkeypatch):
    def compiled(a):
        return a * 3.0 + 21.0

    with programs_kept():
        jax.jit(compiled)(1.0)
    for path in fresh.glob("*-cache"):
        path.write_bytes(path.read_bytes()[:40])
    jax.clear_caches()
    compilation._ready.clear()
    with programs_kept():
        assert jax.jit(compiled)(1.0) == 24.0


def test_several_processes_at_once(tmp_path):
    script = (
        "import jax, sys\n"
        "from posterase.compilation import programs_kept\n"
        "with programs_kept():\n"
        "    print(sum(float(jax.jit(lambda a, k=k: a * k + 1)(2.0)) for k in range(1, 9)))\n"
    )
    own = {**os.environ, compilation.VARIABLE: str(tmp_path / "programs"), "PYTHONWARNINGS": WARNINGS}
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
        "from posterase.compilation import programs_kept\n"
        "factor = float(sys.argv[1])\n"
        "def called(a):\n"
        "    shape = jax.ShapeDtypeStruct((), np.float32)\n"
        "    first = jax.pure_callback(lambda v: np.float32(v * factor), shape, a)\n"
        "    return first + jax.pure_callback(lambda v: np.float32(v + 100 * factor), shape, a)\n"
        "for _ in range(2):\n"
        "    with programs_kept():\n"
        "        print(jax.jit(called)(np.float32(4)), jax.jit(lambda a: a + 1)(np.float32(4)))\n"
        "    jax.clear_caches()\n"
    )
    own = {**os.environ, compilation.VARIABLE: str(tmp_path / "programs"), "PYTHONWARNINGS": WARNINGS}
    for factor, expected in ((2, "212.0 5.0\n"), (3, "316.0 5.0\n"), (5, "524.0 5.0\n")):
        command = [sys.executable, "-c", script, str(factor)]
        done = subprocess.run(command, env=own, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (2 * expected, "")
    assert entries(tmp_path / "programs")
