"""`extra_uses.py` in an environment of its own: an empty folder, an empty cache and no settings of the user's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from release.environments import CheckError, ran

SCRIPT = Path(__file__).with_name("extra_uses.py")


def use(name: str, python: Path, own: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
    """Use an extra."""
    with tempfile.TemporaryDirectory() as empty:
        script(folder or Path(empty), python, name, own=own)


def missing(name: str, python: Path) -> str:
    """What posterase says to somebody who has not installed an extra; it must say how to."""
    with tempfile.TemporaryDirectory() as empty:
        said = script(Path(empty), python, name, "--missing").strip()
    if f"pip install 'posterase[{name}]'" not in said:
        raise CheckError(f"without [{name}] this is said, and not what to install:\n{said}")
    return said


def script(folder: Path, python: Path, *words: object, own: Mapping[str, str] | None = None) -> str:
    """Run it there."""
    places = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config")}
    clear = {name: None for name in os.environ if name.startswith("POSTERASE_")}
    settings = {**clear, **places, "JAX_PLATFORMS": "cpu", **(own or {})}
    return ran(python, "-P", SCRIPT, *words, folder=folder, own=settings)
