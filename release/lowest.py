"""The fast tests with the lowest versions that pyproject.toml allows, on the lowest Python.

What is asked for by name is as low as it may be; what that asks for in turn is as new as it may be, as pip would
install it. Libraries as old as these warn about one another, which is not our doing: deprecations are not errors here.
"""

from __future__ import annotations

from typing import Any

from release.environments import ROOT, WORK, asked, new, pythons, uv
from release.fast_tests import counted

KINDS = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
IN_PROCESSES = ",".join(["error", *(f"ignore::{kind}" for kind in KINDS)])
"""For processes that tests start, which must say nothing."""


def run() -> dict[str, Any]:
    """Resolve, install and test."""
    version = pythons()[0]
    pins = WORK / "lowest.txt"
    pins.unlink(missing_ok=True)  # uv would keep to what it says
    lowest = ("--resolution", "lowest-direct", "--all-extras", "--python-version", version, "--output-file", pins)
    uv("pip", "compile", "--quiet", "--no-header", "--no-annotate", *lowest, ROOT / "pyproject.toml")
    python = new("lowest", version, "--requirement", pins)
    uv("pip", "install", "--quiet", "--python", python, "--requirement", pins, "--group", ROOT / "pyproject.toml:test")
    uv("pip", "install", "--quiet", "--python", python, "--no-deps", "--editable", ROOT)
    uv("pip", "check", "--quiet", "--python", python)
    lenient = [word for kind in KINDS for word in ("-W", f"default::{kind}")]
    return {"asked": asked(), **counted(python, *lenient, own={"PYTHONWARNINGS": IN_PROCESSES})}
