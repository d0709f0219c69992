"""The wheel in an empty environment, with the core's dependencies only: it works, its import is light, and what is
missing is named with the command that brings it.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

from release.environments import CheckError, new, project, pythons, ran, uv, versions, wheel
from release.run_uses import missing, use

MOST = 1.5
"""How many times `import jax, equinox` an `import posterase` may take."""
LIGHT, MEASURE = "import posterase", "import jax, equinox"
FIRST_USE = "import posterase as pe; pe.Model, pe.Draws, pe.erase"
"""What an import puts off; not held to anything, but written down."""
REPEATS = 7


def run() -> dict[str, Any]:
    """Each on every Python."""
    return {version: _on(version) for version in pythons()}


def _on(version: str) -> dict[str, Any]:
    python = new(f"core-{version}", version, wheel())
    uv("pip", "check", "--quiet", "--python", python)
    use("core", python)
    told = {extra: missing(extra, python) for extra in project()["optional-dependencies"] if not _on_another(extra)}
    own, measure = imports(python)
    if own > MOST * measure:
        raise CheckError(f"{LIGHT} takes {own:.2f} s, {MEASURE} {measure:.2f} s: more than {MOST} times.")
    first, again = imports(python, FIRST_USE)
    return {
        "python": ran(python, "-c", "import platform; print(platform.python_version())").strip(),
        "import_ratio": round(own / measure, 3),
        "first_use_ratio": round(first / again, 3),
        "installed": versions(python),
        "missing": told,
    }


def imports(python: Path, code: str = LIGHT, repeats: int = REPEATS) -> tuple[float, float]:
    """Median seconds of an import and of the measure, in new processes in turn, after one each for the disk's cache."""
    times = [(_seconds(python, code), _seconds(python, MEASURE)) for _ in range(repeats + 1)][1:]
    return median(own for own, _ in times), median(measure for _, measure in times)


def _seconds(python: Path, code: str) -> float:
    start = time.perf_counter()
    subprocess.run([python, "-P", "-c", code], check=True)
    return time.perf_counter() - start


def _on_another(extra: str) -> bool:
    """Whether an extra takes another one in, without which that one is what is missing: `extras` asks there."""
    return any(each.startswith("posterase[") for each in project()["optional-dependencies"][extra])
