"""The package as its users meet it: names, examples, what it imports, what it ships."""

import datetime
import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr

import posterase as pe

ROOT = Path(__file__).parent.parent
MODULES = [module.name for module in pkgutil.walk_packages(pe.__path__, "posterase.")]


DEAR = {"posterase.metrics.assessment": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=DEAR.get(name, ())) for name in ["posterase", *MODULES]])
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_file_says_what_it_is_for(name):
    assert len(importlib.import_module(name).__doc__ or "") > 30


def of_the_readme():
    """Its Python: the first screen's, and a model of one's own."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readmes_first_lines(capsys):
    code, _ = of_the_readme()
    rng = np.random.default_rng(0)
    survey = {"person": np.repeat(np.arange(40), 3), "y": rng.normal(2.0, 1.5, size=120)}

    def level(y):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        with numpyro.plate("visits", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.5), obs=y)

    chains = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False}
    mcmc = numpyro.infer.MCMC(numpyro.infer.NUTS(level), num_warmup=200, num_samples=200, **chains)
    mcmc.run(jax.random.key(0), y=survey["y"])
    names = {"mcmc": mcmc, "survey": survey}
    exec(code, names)
    assert "accepted by" in capsys.readouterr().out
    assert names["kept"].observed_data["y"].size == 117
    assert len(code.splitlines()) <= 6


def test_the_readmes_model(capsys):
    _, code = of_the_readme()
    rng = np.random.default_rng(0)
    y = rng.normal(2.0, 1.5, size=500)
    posterior = {
        "mu": y.mean() + 0.067 * rng.normal(size=(4, 500)),
        "sigma": y.std() + 0.047 * rng.normal(size=(4, 500)),
    }
    names = {"y": y, "idata": pe.Draws(posterior).to_arviz()}
    exec(code, names)
    assert "accepted by Reweight" in capsys.readouterr().out
    assert len(code.splitlines()) <= 16


@pytest.mark.slow
def test_the_page_on_evidence(capsys):
    """Its code runs as it stands."""
    first, second = code_of("diagnostics.md")
    names = {}
    exec(first, names)
    assert "20 rows removed, 180 kept, 2 refits" in capsys.readouterr().out
    assert names["found"].off == []
    exec(second, names)
    assert "10 simulated data sets" in capsys.readouterr().out


def code_of(page):
    """The Python blocks of a page."""
    return blocks_of(page, "python")


def blocks_of(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_the_page_on_bridges_with_pymc():
    names = {}
    exec(code_of("bridges.md")[1], names)
    assert names["result"].draws.to_arviz()["observed_data"]["response"].shape == (116,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_on_bridges_with_stan(tmp_path, monkeypatch):
    pytest.importorskip("stan")
    monkeypatch.chdir(tmp_path)  # PyStan leaves a folder `build` where it runs
    names = {}
    exec(code_of("bridges.md")[2], names)
    assert names["result"].n_removed == 4
    assert names["result"].verdict.accepted


def test_the_page_on_bridges(tmp_path, monkeypatch, capsys):
    """Its code runs as it stands: the last block on what the first one made, as a file."""
    monkeypatch.chdir(tmp_path)
    numpyro_code, *_, file_code, frame_code = code_of("bridges.md")
    names = {}
    exec(numpyro_code, names)
    said = capsys.readouterr().out
    exec(frame_code, names)
    assert "4 rows of 120: accepted by" in said
    assert "dropped, since they saw the removed rows or may have: sample_stats" in said
    county = np.where(np.arange(120) < 4, "ANOKA", "AITKIN")
    samples = names["mcmc"].get_samples(group_by_chain=True)
    slope, noise = (np.asarray(samples[name])[..., None] for name in ("slope", "noise"))
    values = -0.5 * ((names["response"] - slope * names["dose"]) / noise) ** 2 - np.log(noise)
    rows = {"response": (("chain", "draw", "visit"), values)}
    tree = xr.DataTree.from_dict(
        {
            "posterior": pe.Draws(samples).to_arviz()["posterior"].to_dataset(),
            "log_likelihood": xr.Dataset(rows, coords={"county": ("visit", county)}),
        }
    )
    tree.to_netcdf("fit.nc", engine="h5netcdf")
    exec(file_code, names)
    assert pe.from_arviz("kept.nc")[0].n_rows == 116


def test_version_is_stated_once():
    assert f"## {pe.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {pe.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_extras_are_not_imported():
    """The core alone: heavy or optional libraries are imported where they are used."""
    extras = "matplotlib", "arviz_stats", "numpyro", "zarr", "pymc", "pytensor", "flax"
    code = f"import posterase, sys; print([m for m in {extras} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith("[]"), done.stdout


def test_the_lock_covers_what_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    for group in project["dependency-groups"].values():
        wanted += group
    lock = (ROOT / "requirements.lock").read_text()
    for requirement in wanted:
        name = re.match(r"[A-Za-z0-9_.-]+", requirement).group()
        if name == "posterase":  # an extra that takes another one in
            continue
        assert re.search(rf"(?m)^{re.escape(name)}==", lock), name
    assert "--hash=sha256" in lock
    assert "://" not in lock  # no addresses: whoever installs knows their own index


@pytest.mark.slow
def test_the_wheel_holds_types_and_data(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ROOT,
    ]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "posterase/py.typed" in names
    assert {"posterase/experiments/diabetes.csv", "posterase/bridges/stan/library.cpp"} <= set(names)
    assert {"posterase/bridges/stan/sampler.cpp", "posterase/bridges/stan/model_base.hpp"} <= set(names)
    assert {"posterase/record/certificate.schema.json", "posterase/record/store/migrations/env.py"} <= set(names)
    service = "posterase/service"
    assert {f"{service}/templates/base.html", f"{service}/static/style.css", f"{service}/static/live.js"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests") for name in names)


def test_the_record_of_the_last_full_run(request):
    if request.config.getoption("--record"):
        pytest.skip("this run writes the record")
    record = json.loads((ROOT / "tests" / "last_full_run.json").read_text())
    assert record["counts"]["failed"] == record["counts"]["error"] == 0
    assert record["counts"]["passed"] > 200
    assert datetime.date.fromisoformat(record["date"]) <= datetime.datetime.now(datetime.UTC).date()
    assert not record["uncommitted_changes"]
    assert re.fullmatch(r"(?!0{40})[0-9a-f]{40}", record["commit"])  # not looked up: a clone may be shallow


def test_every_public_name_can_be_imported():
    assert {"erase", "Model", "errors", "metrics"} <= set(dir(pe))
    assert all(hasattr(pe, name) for name in dir(pe))
    with pytest.raises(AttributeError, match="nothing"):
        _ = pe.nothing


def test_nothing_heavy_is_imported_before_it_is_used():
    heavy = "jax", "equinox", "scipy", "xarray", "pandas", "sqlalchemy", "fastapi"
    code = f"import posterase, posterase.cli.main, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_public_names():
    """What DESIGN promises under `pe.`; a change here is a change of the interface."""
    expected = {"Model", "MaskedModel", "Draws", "Change", "split", "erase", "Policy", "Verdict", "CG", "Cholesky"}
    expected |= {
        "Reweight",
        "InfluenceShift",
        "Transport",
        "Rejuvenate",
        "Refit",
        "ContinueSampling",
        "CorrectedContinuation",
        "Rewind",
        "match_refits",
    }
    assert expected <= set(dir(pe))
    assert jnp.exp(0.0) == pe.positive.forward(jnp.array(0.0))
