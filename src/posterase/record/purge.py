"""Files of a project that still hold removed rows: found, and deleted or listed."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path, PurePath

from posterase.errors import ProjectError
from posterase.record.project import Project

SUSPECTS = (
    *(".nc", ".nc4", ".h5", ".hdf5", ".zarr", ".npz", ".npy", ".pkl", ".pickle", ".joblib", ".eqx", ".ckpt", ".pt"),
    *(".msgpack", ".csv", ".tsv", ".parquet", ".feather", ".arrow", ".rds", ".rdata"),
)
"""Kinds of files that draws, sampler states and data are kept in."""

LOOKED_AT = 10_000
"""Files of a folder that are looked at."""


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def owned(project: Project) -> list[str]:
    """Files and folders that the project owns besides its draws, by its patterns."""
    folder = Path(project.folder)
    found: set[str] = set()
    for pattern in project.owns:
        if PurePath(pattern).is_absolute() or ".." in PurePath(pattern).parts:
            raise ProjectError(f"owns: {pattern!r} leads out of the project's folder.", "name files inside it.")
        found |= {path.relative_to(folder).as_posix() for path in folder.glob(pattern)}
    return sorted(found - {".", PurePath(project.draws).as_posix()})


def suspects(project: Project, known: list[str]) -> list[str]:
    """Other files in the project's folder that may hold rows, which nothing says the project owns."""
    folder, draws = Path(project.folder), project.draws_path.resolve()
    found: list[str] = []
    looked = 0
    for here, folders, files in os.walk(folder):
        for name in [*files, *folders]:
            looked += 1
            path = Path(here) / name
            relative = path.relative_to(folder).as_posix()
            ours = any(relative == each or relative.startswith(f"{each}/") for each in known)
            if path.suffix.lower() in SUSPECTS and not ours and path.resolve() != draws:
                found.append(relative)
        folders[:] = [each for each in folders if not each.startswith(".") and Path(each).suffix not in SUSPECTS]
        if looked > LOOKED_AT:
            break
    return sorted(found)


def delete(project: Project, names: list[str]) -> list[str]:
    """Delete what the project owns; returns what could not be."""
    left = []
    for name in names:
        path = Path(project.folder) / name
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            left.append(name)
    return left


def sync(path: Path) -> None:
    """Have a file or folder on the disk, not only on its way there."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
