"""CITATION.cff by its schema, with the version of the package."""

from __future__ import annotations

from typing import Any

from posterase.version import __version__
from release.environments import ROOT, CheckError, new, pythons, ran, versions


def run() -> dict[str, Any]:
    """Validate it with cffconvert, which is too old to live beside what posterase needs."""
    python = new("citation", pythons()[0], "cffconvert", "setuptools<81")
    said = ran(python.with_name("cffconvert"), "--validate", "--infile", ROOT / "CITATION.cff").strip()
    if f"version: {__version__}\n" not in (ROOT / "CITATION.cff").read_text():
        raise CheckError(f"CITATION.cff has another version than {__version__}.")
    return {"cffconvert": versions(python)["cffconvert"], "said": said}
