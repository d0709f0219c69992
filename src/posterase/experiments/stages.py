"""Finished stages of a long experiment, in a folder, so that a run that was cut goes on at the last of them.

A stage's file is named by a digest of the settings it depends on: other settings find no file and run anew. Files are
numpy archives without pickles, and appear whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from posterase.errors import InputFileError
from posterase.runtime.files import make_folder, written_whole
from posterase.sampling.sampler import State
from posterase.version import __version__


class Stage(NamedTuple):
    """Chains at the end of a stage, and what there is to say of it."""

    state: State
    notes: dict[str, Any]


class Stages:
    """A folder of finished stages; None: nothing is kept."""

    def __init__(self, folder: Path | None):
        self.folder = None if folder is None else make_folder(folder)

    def path(self, name: str, settings: dict[str, Any]) -> Path | None:
        """The file of a stage with such settings."""
        if self.folder is None:
            return None
        text = json.dumps({"settings": settings, "version": __version__}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self.folder / f"{name.replace(' ', '-')}-{digest}.npz"

    def tree(self, name: str, settings: dict[str, Any], make: Callable[[], PyTree]) -> PyTree:
        """A tree of arrays in nested dicts."""
        path = self.path(name, settings)
        if path is not None and path.exists():
            return read(path)[0]
        tree = make()
        if path is not None:
            write(path, tree, {})
        return tree

    def state(self, name: str, settings: dict[str, Any], make: Callable[[], Stage]) -> Stage:
        """The state of chains, with notes."""
        path = self.path(name, settings)
        if path is not None and path.exists():
            tree, notes = read(path)
            return Stage(State(**{**tree, "key": jax.random.wrap_key_data(tree["key"])}), notes)
        stage = make()
        if path is not None:
            write(path, {**stage.state._asdict(), "key": jax.random.key_data(stage.state.key)}, stage.notes)
        return stage


def write(path: Path, tree: PyTree, notes: dict[str, Any]) -> None:
    """Nested dicts of arrays, with notes."""
    arrays = {f"/{'/'.join(key.key for key in keys)}": leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    with written_whole(path) as beside, beside.open("wb") as file:
        np.savez(file, notes=np.array(json.dumps(notes)), **jax.tree.map(np.asarray, arrays))


def read(path: Path) -> tuple[PyTree, dict[str, Any]]:
    """What `write` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        notes = dict(json.loads(str(arrays.pop("notes"))))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputFileError(
            f"{str(path)!r} is not a finished stage: {error}", "delete the file; the stage then runs anew."
        ) from error
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, leaf = name.strip("/").split("/")
        at = tree
        for folder in folders:
            at = at.setdefault(folder, {})
        at[leaf] = jnp.asarray(array)
    return tree, notes
