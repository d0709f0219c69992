"""Names of the leaves of a parameter tree, as people write them: `beta`, `layers.0.weight`."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np
from jaxtyping import PyTree

from posterase.errors import InvalidOptionError
from posterase.runtime.text import did_you_mean

BARE_ARRAY = "theta"
"""The name of the parameter where the whole tree is one array."""


def parameter_names(params: PyTree) -> list[str]:
    """One name a leaf, in the order of `jax.tree.leaves`."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return [jax.tree_util.keystr(path, simple=True, separator=".") or BARE_ARRAY for path in paths]


def element_names(params: PyTree) -> list[str]:
    """One name a number of a draw, `beta[2]`, where leaves are shaped `(chain, draw, …)`."""
    return [
        f"{name}[{', '.join(map(str, at))}]" if at else name
        for name, leaf in zip(parameter_names(params), jax.tree.leaves(params), strict=True)
        for at in np.ndindex(*leaf.shape[2:])
    ]


def check_known(given: Iterable[str], names: list[str], argument: str) -> None:
    """Refuse names that no parameter has, and say which one was probably meant."""
    for name in given:
        if name not in names:
            known = f"The parameters are {', '.join(map(repr, names))}."
            raise InvalidOptionError(
                f"{argument} names {name!r}, which is not a parameter.", f"{did_you_mean(name, names)} {known}".strip()
            )
