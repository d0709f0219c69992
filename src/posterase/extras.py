"""Optional dependencies: imported where they are used, and asked for by name where they are not there."""

from __future__ import annotations

import importlib

from posterase.errors import MissingExtraError


def need(module: str, what: str, extra: str) -> None:
    """Refuse, before any work, what an optional dependency is missing for."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs {module}, which is not installed.", f"pip install 'posterase[{extra}]'"
        ) from error
