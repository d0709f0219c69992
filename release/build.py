"""Wheel and sdist, built with warnings as errors; the sdist makes the same wheel as the tree."""

from __future__ import annotations

import email
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata

from posterase.version import __version__
from release.environments import WORK, CheckError, ran

LARGEST = 20 * 2**20
"""Bytes of an archive. More is a folder that should not be in it."""


def run() -> dict[str, Any]:
    """Build both, and look into them."""
    dist = WORK / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    said = _built(Path(), dist)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    unpacked = WORK / "sdist"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
        n_files = len(archive.getnames())
    (tree,) = unpacked.iterdir()
    said += _built(tree, unpacked / "dist", "-t", "wheel")
    (again,) = (unpacked / "dist").glob("*.whl")
    if contents(wheel) != contents(again):
        raise CheckError("the wheel built from the sdist differs from the wheel built from the tree.")
    if "warning" in said.lower():
        raise CheckError(f"the build warns:\n{said}")
    for each in (wheel, sdist):
        if each.stat().st_size > LARGEST:
            raise CheckError(f"{each.name} has {each.stat().st_size:,} bytes.")
    metadata = metadata_of(wheel)
    if str(metadata.version) != __version__:
        raise CheckError(f"the wheel says version {metadata.version}, version.py {__version__}.")
    return {
        wheel.name: {"files": len(contents(wheel)), "bytes": wheel.stat().st_size},
        sdist.name: {"files": n_files, "bytes": sdist.stat().st_size},
        "warnings": 0,
    }


def contents(wheel: Path) -> dict[str, int]:
    """The files of a wheel, with a checksum each."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


def metadata_of(wheel: Path) -> Metadata:
    """Its metadata; an entry that is not as the standard has it is an error."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        content = archive.read(name)
    if email.message_from_bytes(content).defects:
        raise CheckError(f"{name} cannot be read.")
    return Metadata.from_email(content, validate=True)


def _built(tree: Path, target: Path, *kinds: str) -> str:
    words = (sys.executable, "-W", "error", "-m", "hatchling", "build", *kinds, "-d", target.resolve())
    return ran(*words, folder=(WORK.parent / tree))
