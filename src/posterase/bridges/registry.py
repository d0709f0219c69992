"""Bridges by name, for job and project files: those that read a file without code of the user's.

A package registers a bridge in its pyproject.toml,

    [project.entry-points."posterase.bridges"]
    my-format = "my_package:from_my_format"

and `bridge = "my-format"` in a job or project finds it. It is called with the path of the draws, and returns a model
and draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posterase.runtime.registry import Registry

BRIDGES = Registry("posterase.bridges", {"arviz": "posterase.bridges.arviz:from_arviz"})


def bridge_names() -> list[str]:
    """Return the names of all registered bridges."""
    return BRIDGES.names()


def find_bridge(name: str) -> Callable[..., Any]:
    """Return a registered bridge."""
    found: Callable[..., Any] = BRIDGES.load(name, "bridge")
    return found
