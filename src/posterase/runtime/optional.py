"""Optional dependencies: imported where they are used, and asked for by name where they are not there."""

from __future__ import annotations

import importlib
import threading

from posterase.errors import MissingExtraError


def need(module: str, what: str, extra: str) -> None:
    """Refuse, before any work, what an optional dependency is missing for."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs {module}, which is not installed.", f"pip install 'posterase[{extra}]'"
        ) from error


def import_in_background(module: str) -> None:
    """Import a module while XLA compiles, which does not hold Python's global lock. Whoever needs it imports it too."""
    threading.Thread(target=_import, args=(module,), daemon=True).start()


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception:  # whoever needs it meets the error where it can be caught
        return
