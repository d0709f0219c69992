"""Files of a project that still hold removed rows: found, and deleted or counted. Their names may name people."""

from __future__ import annotations

import collections
import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePath

from posterase.errors import ProjectError
from posterase.projects.spec import Project

HARMLESS = frozenset(
    [".py", ".pyc", ".pyi", ".toml", ".md", ".rst", ".stan", ".cfg", ".ini", ".yaml", ".yml", ".key", ""]
) | {".lock"}  # the record's own
"""Kinds of files that hold code and settings, not rows."""

LOOKED_AT = 10_000
"""Files of a folder that are looked at."""


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def owned(project: Project) -> dict[str, list[Path]]:
    """What the project owns besides its draws, by its patterns; nothing outside its folder."""
    folder = Path(project.folder).resolve()
    draws = project.draws_path
    found: dict[str, list[Path]] = {}
    for pattern in project.owns:
        if PurePath(pattern).is_absolute() or ".." in PurePath(pattern).parts:
            raise ProjectError(f"owns: {pattern!r} leads out of the project's folder.", "name files inside it.")
        matches = []
        for path in sorted(folder.glob(pattern)):
            place = path.parent.resolve() / path.name  # a link is deleted, not what it leads to
            if place == draws or _new(place, draws):
                continue
            if draws.is_relative_to(place):
                raise ProjectError(f"owns: {pattern!r} holds the draws.", "name what is beside them.")
            if not place.is_relative_to(folder):
                raise ProjectError(f"owns: {pattern!r} leads out of the project's folder.", "name files inside it.")
            matches.append(place)
        found[pattern] = matches
    return found


def delete(project: Project) -> int:
    """Delete what the project owns; how many files and folders could not be."""
    left = 0
    for paths in owned(project).values():
        for path in paths:
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError:
                left += 1
    return left


def others(project: Project, known: Iterable[Path]) -> list[str]:
    """Other files in the project's folder that may hold rows, counted by their kinds, in words."""
    folder, draws = Path(project.folder).resolve(), project.draws_path
    ours = set(known)
    kinds: collections.Counter[str] = collections.Counter()
    looked = 0
    for here, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if Path(here, each) not in ours]
        for name in files:
            path = Path(here, name)
            if path not in ours and path.resolve() != draws and path.suffix.lower() not in HARMLESS:
                kinds[path.suffix.lower()] += 1
        looked += len(files)
        if looked > LOOKED_AT:
            break
    said = [f"{count} {kind} file{'s' if count != 1 else ''}" for kind, count in sorted(kinds.items())]
    told = [f"other files in the project's folder, which may hold the rows: {', '.join(said)}"] if said else []
    if looked > LOOKED_AT:
        told.append(f"the project's folder has more than {LOOKED_AT:,} files; not all were looked at")
    return told


def _new(place: Path, draws: Path) -> bool:
    """Whether these are new draws that wait to take the old ones' place."""
    return place.parent == draws.parent and place.name.startswith(f".{draws.name}.")


def sync(path: Path) -> None:
    """Have a file or folder on the disk, not only on its way there."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
