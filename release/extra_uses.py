"""What each extra is for, used on one small posterior that is known exactly.

Run by the Python of an environment that has the wheel and this extra alone; nothing else of the repository is at hand.
`extra_uses.py NAME` uses it, `extra_uses.py NAME --missing` does the first thing that somebody without it would do, and
prints what posterase says. `python -P`, so that libraries and not the files beside this one are imported.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import posterase as pe
from posterase.errors import PosteraseError

ROWS, REMOVED = 100, range(3)
RNG = np.random.default_rng(0)
Y = np.append(RNG.normal(1.5, 1, len(REMOVED)), RNG.normal(size=ROWS - len(REMOVED)))
"""Readings around a level, N(0, 1) beforehand, with noise of standard deviation 1; the removed ones are high."""
LEVEL = Y.sum() / (ROWS + 1) + RNG.normal(size=(4, 1000)) / np.sqrt(ROWS + 1)


def forgets(model: Any, draws: Any, rows: Any = REMOVED) -> Any:
    """Erase, and hold the mean to the exact one, from which that of the draws as they were is far away."""
    result = pe.erase(model, draws, rows=rows)
    assert result.verdict.accepted, result.verdict
    (level,) = result.draws.params.values()
    level, weights = np.asarray(level).ravel(), np.asarray(result.draws.weights).ravel()
    exact = Y[len(REMOVED) :].sum() / (ROWS - len(REMOVED) + 1)
    error = 1 / np.sqrt((ROWS + 1) * level.size / 2)  # weights cost less than half of the draws here
    before, after = (abs(mean - exact) / error for mean in (LEVEL.mean(), weights @ level / weights.sum()))
    assert after < 5 < 10 < before, f"the mean was {before:.1f} and is {after:.1f} errors away from the exact one"
    return result


def of_rows(data: Any) -> tuple[Any, Any]:
    """A model of our own, and its draws."""
    model = pe.Model(lambda p: -0.5 * p["level"] ** 2, lambda p, rows: -0.5 * (rows["y"] - p["level"]) ** 2, data)
    return model, pe.Draws({"level": LEVEL})


def as_file() -> Any:
    """The fit with its log-likelihoods; one person a row."""
    import xarray as xr

    likelihood = -0.5 * (Y - LEVEL[..., None]) ** 2
    groups = {
        "posterior": xr.Dataset({"level": (("chain", "draw"), LEVEL)}),
        "log_likelihood": xr.Dataset({"y": (("chain", "draw", "row"), likelihood)}),
        "constant_data": xr.Dataset({"person": ("row", np.arange(ROWS))}),
    }
    return xr.DataTree.from_dict(groups)


def core() -> None:
    result = forgets(*of_rows({"y": Y}))
    result.draws.save("kept.nc")
    as_file().to_netcdf("fit.nc", engine="h5netcdf")
    forgets(*pe.from_arviz("fit.nc"))
    command("erase", "fit.nc", "--rows", "0,1,2", "--out", "again.nc", "--preprocessing", "none")


def plots() -> None:
    forgets(*of_rows({"y": Y})).plot().savefig("moved.png")
    assert Path("moved.png").read_bytes().startswith(b"\x89PNG")


def numpyro() -> None:
    import numpyro
    import numpyro.distributions as dist

    def readings(y: Any) -> None:
        level = numpyro.sample("level", dist.Normal(0, 1))
        with numpyro.plate("row", ROWS):
            numpyro.sample("y", dist.Normal(level, 1), obs=y)

    forgets(*pe.from_numpyro(readings, Y, draws={"level": LEVEL}, preprocessing="none"))


def pymc() -> None:
    import pymc as pm

    with pm.Model(coords={"row": np.arange(ROWS)}) as model:
        pm.Normal("y", pm.Normal("level", 0, 1), 1, observed=Y, dims="row")
    forgets(*pe.from_pymc(model, pe.Draws({"level": LEVEL}).to_arviz(), preprocessing="none"))


PROGRAM = """
data { int<lower=0> N; vector[N] y; }
parameters { real level; }
model { level ~ normal(0, 1); y ~ normal(level, 1); }
"""


def stan() -> None:
    forgets(*pe.from_stan(PROGRAM, {"N": ROWS, "y": Y}, {"level": LEVEL}, preprocessing="none"))


def library(source: Path, version: str) -> None:
    """A library with BridgeStan's interface, by PyStan's compiler: BridgeStan's own comes from the network."""
    import httpstan

    from posterase.bridges.stan import programs

    Path("program.cpp").write_text(programs._translated(PROGRAM, Path.cwd()))
    lib = Path(httpstan.__file__).parent / "lib"
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    defined = [f"-D{name}={number}" for name, number in numbers]
    sources = ("-shared", "program.cpp", str(source), "-o", "program.so", f"-L{lib}", f"-Wl,-rpath,{lib}")
    programs._run(*defined, *sources, *programs.LIBRARIES)


def bridgestan() -> None:
    forgets(*pe.from_stan(Path("program.so"), {"N": ROWS, "y": Y}, {"level": LEVEL}, preprocessing="none"))


def networks() -> None:
    from flax import nnx

    module = nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0))
    states = {"kernel": LEVEL[..., None, None]}
    data = {"x": np.ones((ROWS, 1)), "y": Y[:, None]}
    forgets(*pe.from_flax(module, data, states, log_likelihood="normal", prior_sd=1.0))


def zarr() -> None:
    import zarr

    zarr.open_group("rows.zarr", mode="w").create_array("y", data=Y, chunks=(30,))
    forgets(*of_rows(pe.stream("rows.zarr")))
    as_file().to_zarr("fit.zarr")
    forgets(*pe.from_arviz("fit.zarr"))


def parquet() -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"y": Y}), "rows.parquet")
    forgets(*of_rows(pe.stream("rows.parquet")))


def data() -> None:
    import pooch

    from posterase.experiments.datasets import load

    digits = load("digits")
    assert digits.test is not None
    assert len(digits.train.y) + len(digits.test.y) == 1797
    assert pooch.file_hash(__file__)  # fetching itself needs the network: tests/experiments/test_datasets.py


def record() -> str:
    """From a request to its certificate; the request's id."""
    as_file().to_netcdf("fit.nc", engine="h5netcdf")
    project = 'name = "readings"\ndraws = "fit.nc"\nbridge = "arviz"\nsubject = "person"\npreprocessing = "none"\n'
    Path("readings.toml").write_text(project)
    command("keys", "new", "example.org/erasures", "--keys", "keys")
    os.environ["POSTERASE_KEYS"] = "keys"
    command("requests", "register", "readings.toml")
    added = json.loads(command("requests", "add", "readings", "3", "--regulation", "gdpr", "--json"))
    identity = str(added["subject_request_id"])
    command("requests", "run", "readings")
    command("requests", "show", identity, "--certificate", "certificate.json")
    command("requests", "export", "ledger.jsonl")
    command("verify", "ledger.jsonl", "--key", "keys/public.key", "--certificate", "certificate.json")
    return identity


def postgresql() -> None:
    """With the address of a server in POSTERASE_RECORD."""
    assert os.environ["POSTERASE_RECORD"].startswith("postgresql:")
    record()


def service() -> None:
    identity = record()
    token = json.loads(command("tokens", "new", "auditor", "--role", "audit", "--json"))["token"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = subprocess.Popen([program(), "serve", "--port", str(port)])
    try:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/requests/{identity}", headers=headers)
        assert json.loads(answered(asked, 120))["request_status"] == "completed"
    finally:
        serving.send_signal(signal.SIGINT)
        assert serving.wait(90) in (0, 130)


def answered(asked: urllib.request.Request, seconds: float) -> str:
    """The answer of a server that is about to start."""
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(asked) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def program() -> str:
    return str(Path(sys.executable).with_name("posterase"))


def command(*words: str) -> str:
    """What a command of posterase prints; where it refuses, that is our error too."""
    done = subprocess.run([program(), *words], capture_output=True, text=True)
    if done.returncode:
        problem, _, advice = (done.stderr + done.stdout).strip().partition("What to do: ")
        raise PosteraseError(problem.strip(), advice.strip())
    return done.stdout


def no_library() -> None:
    Path("program.so").touch()
    bridgestan()


def no_zarr() -> None:
    Path("rows.zarr").mkdir()
    Path("rows.zarr", "zarr.json").touch()
    pe.stream("rows.zarr")


def no_parquet() -> None:
    Path("rows.parquet").touch()
    pe.stream("rows.parquet")


def no_data() -> None:
    from posterase.experiments.datasets import load

    load("digits")


def no_postgresql() -> None:
    from posterase.record.store.database import Database

    Database("postgresql://posterase@/readings")


USES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "plots": (plots, plots),
    "numpyro": (numpyro, lambda: pe.from_numpyro(None)),
    "pymc": (pymc, lambda: pe.from_pymc(None, None)),
    "stan": (stan, stan),
    "bridgestan": (bridgestan, no_library),
    "networks": (networks, lambda: pe.from_flax(None, {}, {})),
    "zarr": (zarr, no_zarr),
    "parquet": (parquet, no_parquet),
    "data": (data, no_data),
    "record": (record, lambda: command("requests", "list")),
    "postgresql": (postgresql, no_postgresql),
    "service": (service, lambda: command("serve")),
}
"""What an extra is used for, and what is tried without it."""


def main() -> None:
    """Use one, or find it missing."""
    parser = argparse.ArgumentParser(prog="extra_uses.py", description=__doc__)
    parser.add_argument("name", choices=["core", "library", *USES])
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--source", type=Path, help="bridgestan_library.cpp, for library")
    parser.add_argument("--version", help="of BridgeStan, for library")
    given = parser.parse_args()
    if given.name == "core":
        core()
    elif given.name == "library":
        library(given.source, given.version)
    elif given.missing:
        try:
            USES[given.name][1]()
        except PosteraseError as error:
            print(error)
            return
        sys.exit(f"nothing is missing without [{given.name}]")
    else:
        USES[given.name][0]()


if __name__ == "__main__":
    main()
