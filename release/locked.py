"""The fast tests on every Python that the package is for, each with what the lock file has for it."""

from __future__ import annotations

from typing import Any

from release.environments import WORK, interpreter, pythons, ran
from release.fast_tests import counted


def run() -> dict[str, Any]:
    """Environments are made by the Makefile, as for everybody, and kept while the lock file stays as it is."""
    return {version: _on(version) for version in pythons()}


def _on(version: str) -> dict[str, Any]:
    folder = WORK / f"locked-{version}"
    ran("make", "install", f"VENV={folder}", f"PYTHON={interpreter(version)}")
    found = counted(folder / "bin" / "python")
    print(f"  {version}: {found['passed']} passed, {found['skipped']} skipped", flush=True)
    return found
