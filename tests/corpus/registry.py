"""All cases, by name."""

from __future__ import annotations

import importlib
import pkgutil

import tests.corpus as package
from tests.corpus.case import Case


def all_cases() -> dict[str, Case]:
    """The cases of every module whose name ends in `_models`, in the order of the modules."""
    found: dict[str, Case] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(package.__path__)):
        if module.endswith("_models"):
            for case in importlib.import_module(f"tests.corpus.{module}").CASES:
                assert case.name not in found, f"two cases are called {case.name}"
                found[case.name] = case
    return found
