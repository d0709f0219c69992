"""Chains and rows over 8 virtual devices, and over two real processes: the same draws as on one device."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import posterase as pe
from posterase.errors import InvalidOptionError
from posterase.runtime import sharding
from tests import mesh_programs

ROOT = Path(__file__).parents[2]


def environment(n_devices, **more):
    """For a process with so many virtual devices."""
    own = os.environ.get("XLA_FLAGS", "")
    flags = f"{own} --xla_force_host_platform_device_count={n_devices} {sharding.THREADS_OFF}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | more


def start(what, target, chains, rows, **options):
    command = [sys.executable, "-W", "ignore", "-m", "tests.mesh_programs", what, str(target), str(chains), str(rows)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def made(what, folder, chains, rows):
    """What a process with chains × rows devices makes."""
    target = folder / f"{what}-{chains}-{rows}.json"
    process = start(what, target, chains, rows, env=environment(chains * rows))
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return json.loads(target.read_text())


def peers():
    """Environments of two processes, one device each, that know of each other."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    names = sharding.COORDINATOR, sharding.PROCESSES, sharding.PROCESS
    return [environment(1, **dict(zip(names, (address, "2", str(i)), strict=True))) for i in (0, 1)]


def same(found, expected, exact):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if name in exact:
            np.testing.assert_array_equal(found[name], values, name)
        else:
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


EXACT = {"Reweight", "SGLD", "kept rows"}
"""What is made chain by chain, or not moved at all, is the same to the bit; elsewhere sums have another order."""


@pytest.fixture(scope="module")
def some():
    """What a few methods and samplers make without a mesh."""
    return mesh_programs.some(None)


def test_8_devices_make_the_draws_of_one(tmp_path, some):
    same(made("some", tmp_path, 2, 4), some, exact={"Reweight"})


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """What one device makes."""
    return made("everything", tmp_path_factory.mktemp("one"), 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("chains", "rows"), [(8, 1), (1, 8), (2, 4)])
def test_8_devices_make_everything_that_one_makes(tmp_path, everything, chains, rows):
    exact = EXACT if rows == 1 else {"Reweight", "kept rows"}
    same(made("everything", tmp_path, chains, rows), everything, exact)


def test_a_gradient_takes_one_sum_between_devices_however_many_blocks_of_rows(tmp_path):
    """Not one a block, which devices would spend their time waiting for."""
    found = made("talk", tmp_path, 1, 2)
    for derivative in ("gradients", "products"):
        assert len(found[derivative]) == 1
        assert found[derivative][0].startswith("main")
    assert any(not place.startswith("main") for place in found["gradients, left to jax"])


def test_two_processes_make_the_draws_of_one(tmp_path, some):
    processes = [start("few", tmp_path / "two.json", 2, 1, env=own) for own in peers()]
    for process in processes:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    expected = {name: values for name, values in some.items() if not name.startswith("Transport")}
    same(json.loads((tmp_path / "two.json").read_text()), expected, exact={"Reweight", "SGLD"})


@pytest.mark.slow
@pytest.mark.parametrize(("chains", "rows"), [(2, 1), (1, 2)])
def test_two_processes_make_everything_that_one_makes(tmp_path, everything, chains, rows):
    processes = [start("everything", tmp_path / "two.json", chains, rows, env=own) for own in peers()]
    for process in processes:
        said, _ = process.communicate(timeout=900)
        assert process.returncode == 0, said
    found = json.loads((tmp_path / "two.json").read_text())
    same(found, everything, exact=EXACT if rows == 1 else {"Reweight", "kept rows"})


def test_a_stream_is_not_read_for_several_devices(tmp_path):
    assert "a stream's rows are read by one process" in made("streamed", tmp_path, 2, 1)[0]


def test_one_device_takes_no_copy_of_the_data():
    model, _ = mesh_programs.problem(rows=11)
    with sharding.over(pe.mesh()):
        assert model.spread() is model


def test_a_mesh_that_cannot_be_made_is_refused():
    with pytest.raises(InvalidOptionError, match="of 1 device"):
        pe.mesh(chains=3)
    model, draws = mesh_programs.problem(rows=20)
    other = jax.make_mesh((1,), ("data",))
    with pytest.raises(InvalidOptionError, match="chains"):
        pe.Reweight()(0, model, draws, model.change(remove=[1]), mesh=other)


def test_more_devices_than_cores_need_threads_of_their_own(monkeypatch):
    """They would wait for each other's for ever."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    with pytest.raises(InvalidOptionError, match="8 devices are made of a CPU with 2 core") as caught:
        sharding._check_threads(8, "cpu")
    assert sharding.THREADS_OFF in str(caught.value)
    sharding._check_threads(2, "cpu")
    sharding._check_threads(8, "gpu")
    monkeypatch.setenv("XLA_FLAGS", sharding.THREADS_OFF)
    sharding._check_threads(8, "cpu")


def test_rows_that_the_user_has_cut_stay_so(tmp_path):
    """No device ever holds all of them, in the model and in that of the kept rows."""
    found = made("cut", tmp_path, 1, 8)
    assert found.pop("difference") < 1e-5
    assert found == {"model": [[8, 3]] * 8, "spread": [[8, 3]] * 8, "kept": [[8, 3]] * 8}


@pytest.mark.slow
@pytest.mark.parametrize(("chains", "rows"), [(2, 1), (1, 2)])
def test_two_processes_add_up_several_blocks_of_rows(tmp_path, chains, rows):
    expected = made("blocks", tmp_path, 1, 1)
    processes = [start("blocks", tmp_path / "two.json", chains, rows, env=own) for own in peers()]
    for process in processes:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    same(json.loads((tmp_path / "two.json").read_text()), expected, exact=set())


def test_a_jax_mesh_does_as_well():
    """Whatever kind of axes it was made with."""
    model, draws = mesh_programs.problem(rows=20)
    change = model.change(remove=[1])
    found = pe.Reweight()(0, model, draws, change, mesh=jax.make_mesh((1,), ("chains",)))
    np.testing.assert_array_equal(found.draws.log_weights, pe.Reweight()(0, model, draws, change).draws.log_weights)


def test_half_named_peers_are_refused(monkeypatch):
    monkeypatch.setenv(sharding.COORDINATOR, "localhost:1")
    with pytest.raises(InvalidOptionError, match="only some are set"):
        pe.join_processes()


def test_alone_there_is_nobody_to_join():
    assert (
        subprocess.run([sys.executable, "-c", "import posterase as pe; assert pe.join_processes() == 1"]).returncode
        == 0
    )


def test_a_process_that_dies_ends_the_others_with_a_reason(tmp_path):
    processes = [start("endless", tmp_path / "none.json", 2, 1, env=own) for own in peers()]
    for process in processes:
        while "begun" not in process.stdout.readline():
            assert process.poll() is None
    processes[1].kill()
    killed = time.monotonic()
    said, _ = processes[0].communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert processes[0].returncode != 0
    assert "PeerLostError: another process of this run ended" in said
    processes[1].communicate()


JOB = """
draws = "fit.nc"
model = "fitted:build"
rows = [1, 2, 3]
out = "kept.nc"
verdict = "verdict.json"
mesh = "auto"
policy = {ess = 100}
"""

FITTED = """
import os, threading
import posterase as pe
from tests.mesh_programs import problem


def build(path):
    if os.environ.get("DIES"):
        threading.Timer(float(os.environ["DIES"]), os._exit, [3]).start()
    return problem()[0], pe.Draws.load(path)
"""


def command(folder):
    (folder / "job.toml").write_text(JOB)
    (folder / "fitted.py").write_text(FITTED)
    mesh_programs.problem()[1].save(folder / "fit.nc")
    return [str(Path(sys.executable).parent / "posterase"), "erase", "job.toml", "--seed", "0"]


@pytest.mark.slow
def test_the_command_line_runs_on_two_processes_as_on_one(tmp_path):
    typed = command(tmp_path)
    own = peers()
    processes = [
        subprocess.Popen(typed, cwd=tmp_path, env=each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for each in own
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "accepted by Reweight" in said[0]
    assert "accepted" not in said[1]  # one of them speaks, and writes
    two = pe.Draws.load(tmp_path / "kept.nc")
    done = subprocess.run([*typed, "--out", "one.nc", "--force"], cwd=tmp_path, env=environment(1), capture_output=True)
    assert done.returncode == 0, done.stderr
    one = pe.Draws.load(tmp_path / "one.nc")
    np.testing.assert_allclose(two.params["beta"], one.params["beta"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("after", ["0.01", "4"])
def test_nothing_is_written_where_a_process_dies(tmp_path, victim, after):
    """Before the processes have talked to each other, and when they have: the others end within seconds."""
    typed = command(tmp_path)
    own = peers()
    own[victim] |= {"DIES": after}
    processes = [
        subprocess.Popen(
            [*typed, "--policy", "refit=true", "--ess", "100000"],  # it would take long
            cwd=tmp_path,
            env=each,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for each in own
    ]
    said = [None, None]
    said[victim] = processes[victim].communicate(timeout=120)[0]
    died = time.monotonic()
    said[1 - victim] = processes[1 - victim].communicate(timeout=60)[0]
    assert time.monotonic() - died < 30
    assert processes[1 - victim].returncode != 0
    # Where the first one is gone, by which they know each other, or one that was not waited for, jax itself ends them.
    reasons = "another process of this run ended", "JAX distributed service detected fatal errors"
    assert any(reason in said[1 - victim] for reason in reasons), said[1 - victim]
    assert not (tmp_path / "kept.nc").exists()
    assert not (tmp_path / "verdict.json").exists()
