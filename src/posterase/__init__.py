"""Erase data from a posterior.

Somebody asks for their rows to be deleted; the model was fitted by MCMC; posterase turns draws of p(θ | S) into draws
of p(θ | S − S′), and says how far to trust them.

Nothing heavy is imported before it is used: `import posterase` alone does not import jax.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from posterase.runtime.garbage import rare_collections
from posterase.version import __version__ as __version__

_import, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    with rare_collections():
        return _import(name)
