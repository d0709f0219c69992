"""How the package is built: files, layers, import depth, lines, and the files that two walks through it touch.

    python -m benchmarks.structure [FOLDER]

FOLDER is a checkout (default: this one), so that two of them can be compared. A walk touches a file where it calls one
of its functions. The first goes from a NumPyro fit through `erase` to a container; the second from a request in the
record to its certificate.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

FIRST = """
import numpy as np, numpyro, numpyro.distributions as dist, posterase as pe
def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)
rng = np.random.default_rng(0)
y = rng.normal(size=100)
draws = {"mu": y.sum() / 100.01 + rng.normal(size=(4, 250)) / np.sqrt(100.01)}
pe.erase(*pe.from_numpyro(model, y, draws=draws), rows=[3], progress=False).to_arviz()
"""

SECOND = """
import pathlib, numpy as np, xarray as xr
rng = np.random.default_rng(0)
person, values = np.repeat([f"person-{i:02}" for i in range(20)], 3), rng.normal(size=60)
mu = values.sum() / 61 + rng.normal(size=(4, 500)) / np.sqrt(61)
xr.DataTree.from_dict({
    "posterior": xr.Dataset({"mu": (("chain", "draw"), mu)}),
    "log_likelihood": xr.Dataset({"y": (("chain", "draw", "visit"), -0.5 * (values - mu[..., None]) ** 2)}),
    "constant_data": xr.Dataset({"person": ("visit", person)}),
}).to_netcdf("draws.nc", engine="h5netcdf")
pathlib.Path("project.toml").write_text('name = "p"\\ndraws = "draws.nc"\\nbridge = "arviz"\\n'
                                        'subject = "person"\\npreprocessing = "none"\\n')
for words in (["keys", "new", "example.org"], ["requests", "register", "project.toml"],
              ["requests", "add", "p", "person-03", "--regulation", "gdpr"], ["requests", "run", "p"]):
    command(*words)
"""

TRACED = """
import json, runpy, sys, threading
touched = set()
def note(frame, event, _):
    name = frame.f_code.co_filename
    if event == "call" and "/posterase/" in name and frame.f_code.co_name != "<module>":
        touched.add(name.rsplit("/posterase/", 1)[1])
def command(*words):
    sys.argv = ["posterase", *words]
    try:
        runpy.run_module("posterase", run_name="__main__")
    except SystemExit as done:
        assert not done.code, done.code
threading.setprofile(note)
sys.setprofile(note)
"""


def files_touched(walk: str, source: Path) -> int:
    """How many files of the package a walk calls functions of."""
    code = TRACED + walk + "\nsys.setprofile(None)\nprint('\\n' + json.dumps(sorted(touched)))"
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "cwd": folder,
            "env": {**os.environ, "PYTHONPATH": str(source), "XDG_CONFIG_HOME": folder, "XDG_DATA_HOME": folder},
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, **options
        )  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(done.stderr)
    return len(json.loads(done.stdout.splitlines()[-1]))


def import_depth(source: Path) -> int:
    """The longest chain of imports within the package."""
    code = """
import functools, grimp
graph = grimp.build_graph("posterase", exclude_type_checking_imports=True, cache_dir=None)
@functools.cache
def depth(module):
    return 1 + max(map(depth, graph.find_modules_directly_imported_by(module) - {"posterase"}), default=0)
print(max(map(depth, graph.modules - {"posterase"})))
"""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


def structure(folder: Path) -> dict[str, int]:
    """Return the figures of a checkout."""
    source = folder / "src"
    package = source / "posterase"
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in settings if each["type"] == "layers")
    modules = list(package.rglob("*.py"))
    return {
        "files at the top": len([path for path in package.glob("*.py") if not path.name.startswith("__")]),
        "folders at the top": len([path for path in package.iterdir() if (path / "__init__.py").exists()]),
        "layers": len(layers),
        "import depth": import_depth(source),
        "lines": sum(len(path.read_text().splitlines()) for path in modules),
        "error classes": len(re.findall(r"(?m)^class \w+", (package / "errors.py").read_text())),
        "files that from_numpyro, erase and to_arviz touch": files_touched(FIRST, source),
        "files that a request touches up to its certificate": files_touched(SECOND, source),
    }


if __name__ == "__main__":
    for label, figure in structure(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()).items():
        print(f"{label}: {figure:,}")
