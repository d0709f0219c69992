"""Finished stages of a long experiment, in a folder, so that a run that was cut goes on at the last of them.

A stage's file is named by a digest of the settings it depends on: other settings find no file and run anew. Files hold
no pickles (`posterase.runtime.tree_files`), and appear whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import PyTree

from posterase.runtime.files import make_folder
from posterase.runtime.tree_files import read_header, read_tree, write_tree
from posterase.sampling.sampler import State
from posterase.version import __version__

WRONG_FILE = "a finished stage", "delete the file; the stage then runs anew."


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
        return self.folder / f"{name.replace(' ', '-')}-{digest}.eqx"

    def tree(
        self, name: str, settings: dict[str, Any], make: Callable[[], PyTree], like: Callable[[], PyTree]
    ) -> PyTree:
        """A tree of arrays; `like` makes one of the same structure, shapes and types."""
        path = self.path(name, settings)
        if path is not None and path.exists():
            return read_tree(path, like(), *WRONG_FILE)
        tree = make()
        if path is not None:
            write_tree(path, tree, {})
        return tree

    def state(self, name: str, settings: dict[str, Any], make: Callable[[], Stage], like: Callable[[], State]) -> Stage:
        """The state of chains, with notes; `like` makes a state of the same structure, shapes and types."""
        path = self.path(name, settings)
        if path is not None and path.exists():
            notes = dict(read_header(path, *WRONG_FILE).get("notes", {}))
            return Stage(read_tree(path, like(), *WRONG_FILE), notes)
        stage = make()
        if path is not None:
            write_tree(path, stage.state, {"notes": stage.notes})
        return stage
