"""The fast tests, as `make test` runs them, in another environment; counts and versions come from the run itself."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import browsers, databases

from release.environments import WORK, CheckError, asked, ran, versions

FAST = ("-m", "not slow and not gpu")


def counted(python: Path, *options: str, own: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run them; failures end the check, and so does a tool whose tests would be skipped. `own`: of the environment."""
    if missing := not_here():
        raise CheckError(f"fast tests would be skipped: {'; '.join(missing)}.")
    record = WORK / "fast_tests.json"
    record.unlink(missing_ok=True)
    environment = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_PLATFORMS": "cpu", **(own or {})}
    try:
        ran(python, "-m", "pytest", *FAST, *options, "--record", record, own=environment)
    except CheckError as error:
        (WORK / "fast_tests.log").write_text(str(error))
        failed = re.findall(r"(?m)^(?:FAILED|ERROR) .*$", str(error))
        raise CheckError("\n".join([*failed, "all of it: .release/fast_tests.log"])) from error
    found = json.loads(record.read_text())
    return {"python": found["python"], **found["counts"], "versions": direct(python)}


def not_here() -> list[str]:
    """What whole files of tests need, and is missing."""
    found = [databases.missing()]
    if shutil.which("g++") is None:
        found.append("g++ is not on the PATH")
    if shutil.which(browsers.chromium() or "") is None:
        found.append("there is no Chromium")
    return [each for each in found if each]


def direct(python: Path) -> dict[str, str]:
    """Versions of what pyproject.toml asks for, as installed."""
    names = {re.split(r"[^\w-]", each)[0].lower() for each in asked()}
    return {name: version for name, version in versions(python).items() if name.lower() in names}
