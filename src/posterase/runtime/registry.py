"""Named objects of posterase and of other packages, imported when they are asked for.

Other packages register theirs as entry points of a group (https://packaging.python.org/specifications/entry-points).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from posterase.errors import InvalidOptionError
from posterase.runtime.text import did_you_mean


class Registry:
    """Objects by name: those of posterase, `module:name`, and the entry points of a group."""

    def __init__(self, group: str, own: Mapping[str, str]):
        self.group, self.own = group, dict(own)

    def names(self) -> list[str]:
        """Return all names, those of posterase first."""
        return [*self.own, *(each.name for each in entry_points(group=self.group) if each.name not in self.own)]

    def load(self, name: str, kind: str) -> Any:
        """Import what a name stands for; an unknown name is an error that suggests the closest match."""
        if name in self.own:
            return EntryPoint(name, self.own[name], self.group).load()
        for each in entry_points(group=self.group):
            if each.name == name:
                return each.load()
        known = self.names()
        raise InvalidOptionError(f"there is no {kind} {name!r}.", did_you_mean(name, known, f"use {', '.join(known)}."))
