"""New environments, by uv: it is quick enough to make one for every extra, and finds the lowest versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".release"
"""Environments and what is built; nothing in it is kept in the repository."""


class CheckError(Exception):
    """A check that did not pass, in words."""


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def asked() -> list[str]:
    """What the package asks for, with all its extras."""
    extras = project()["optional-dependencies"].values()
    every = [*project()["dependencies"], *(each for extra in extras for each in extra)]
    return [each for each in every if not each.startswith("posterase[")]


def pythons() -> list[str]:
    """The Pythons that the package says it is for: "3.11", …"""
    said = (each.rpartition(" ")[2] for each in project()["classifiers"] if "Python :: 3." in each)
    return sorted(said, key=lambda version: int(version.split(".")[1]))


def ran(*words: object, folder: Path = ROOT, own: Mapping[str, str | None] | None = None) -> str:
    """What a command prints; a failure ends the check. A variable of the environment that is None is taken away."""
    command = [str(word) for word in words]
    environment = {name: value for name, value in {**os.environ, **(own or {})}.items() if value is not None}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise CheckError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def uv(*words: object) -> str:
    """What uv prints."""
    if shutil.which("uv") is None:
        raise CheckError("uv is not on the PATH: install it, or add its folder to the PATH.")
    return ran("uv", *words)


def interpreter(version: str) -> Path:
    """A Python of this version."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    if found is None:
        raise CheckError(f"python{version} is not on the PATH: install it, or add its folder to the PATH.")
    return Path(found)


def new(name: str, version: str, *requirements: object) -> Path:
    """The Python of an empty environment, with these installed."""
    folder = WORK / name
    uv("venv", "--quiet", "--clear", "--python", interpreter(version), folder)
    python = folder / "bin" / "python"
    if requirements:
        uv("pip", "install", "--quiet", "--python", python, *requirements)
    return python


def versions(python: Path) -> dict[str, str]:
    """What is installed for a Python."""
    found = json.loads(ran("uv", "pip", "list", "--quiet", "--format", "json", "--python", python))
    return {each["name"]: each["version"] for each in found}


def wheel() -> Path:
    """The wheel that `build` has made."""
    found = sorted((WORK / "dist").glob("*.whl"))
    if len(found) != 1:
        raise CheckError(f"{len(found)} wheels are in .release/dist: run `python -m release build` first.")
    return found[0]
