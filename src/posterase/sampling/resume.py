"""States of chains in a file, to go on from another day.

The file is a line of JSON and the state's arrays (`posterase.runtime.tree_files`). The JSON describes the run: every
setting of the sampler and of its schedule, the parameters, a digest of the rows. A file of another run is refused, with
what differs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from posterase.data.parameters import parameter_names
from posterase.data.row_source import row_source
from posterase.errors import InputFileError, InvalidOptionError
from posterase.model.base import AbstractModel
from posterase.numerics.failures import entry_point
from posterase.runtime.files import check_writable
from posterase.runtime.tree_files import read_header, read_tree, write_tree
from posterase.sampling.sampler import Sampler, State

WRONG_FILE = "a saved state", "use a file that save_state wrote."
ABSENT = "absent"
"""What a setting is that one of two runs does not have."""


@entry_point
def save_state(path: str | os.PathLike[str], state: State, model: AbstractModel, sampler: Sampler) -> Path:
    """Write the state of a run. The file appears whole or not at all."""
    check_writable(Path(path))
    write_tree(path, state, {"run": describe(state, model, sampler), "log_density": probe(state, model)})
    return Path(path)


@entry_point
def load_state(path: str | os.PathLike[str], like: State, model: AbstractModel, sampler: Sampler) -> State:
    """Read the state of this very run; `like` is a state of it (what `start_chains` gives), for the structure."""
    header = read_header(path, *WRONG_FILE)
    saved, expected = dict(header.get("run", {})), describe(like, model, sampler)
    for what in [*expected, *(name for name in saved if name not in expected)]:
        there, here = saved.get(what, ABSENT), expected.get(what, ABSENT)
        if there != here:
            raise InputFileError(
                f"{os.fspath(path)!r} is of another run: {what} was {there!r} there and is {here!r} here.",
                "resume with the model, data and sampler the run was started with, or start a new one.",
            )
    state = read_tree(path, like, *WRONG_FILE)
    if not np.isclose(probe(state, model), header.get("log_density", np.nan), rtol=1e-4, atol=1e-3):
        raise InputFileError(
            f"{os.fspath(path)!r} is of another run: the model has another log density at the saved parameters.",
            "resume with the very prior, likelihood and data the run was started with, or start a new one.",
        )
    return state


def describe(state: State, model: AbstractModel, sampler: Sampler) -> dict[str, Any]:
    """What makes a run this run and no other."""
    return {
        **settings("sampler", sampler),
        "parameters": _shapes(state.theta),
        "the sampler's own state": _shapes(state.extra),
        "transforms": {name: transform.describe() for name, transform in sorted(model.transforms.items())},
        "key": str(jax.random.key_impl(state.key)),
        "rows": model.n_rows,
        "data": digest(model),
    }


def settings(name: str, value: Any) -> dict[str, Any]:
    """Every setting of a sampler as JSON, by its name: `sampler.schedule.a`. Modules are walked field by field."""
    inside: Mapping[str, Any]
    if isinstance(value, eqx.Module):
        kind = type(value).__name__
        inside = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        kind, inside = type(value).__name__, {str(key): each for key, each in value.items()}
    elif isinstance(value, (list, tuple)):
        kind, inside = type(value).__name__, {str(at): each for at, each in enumerate(value)}
    else:
        return {name: _as_json(name, value)}
    return functools.reduce(lambda found, key: found | settings(f"{name}.{key}", inside[key]), inside, {name: kind})


def _as_json(name: str, value: Any) -> Any:
    """A setting that has no parts."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, complex, np.generic, np.ndarray, jax.Array)):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            # As jax sees it: 0.1 and its array are the same setting.
            return array.astype(jax.dtypes.canonicalize_dtype(array.dtype)).tolist()
    path = getattr(value, "__qualname__", "<>")
    if callable(value) and "<" not in path:
        return f"{value.__module__}.{path}"
    raise InvalidOptionError(
        f"the setting {name} is {value!r}: whether another run has the same cannot be told.",
        "make it a number, an array, a string, a named function of a module, or an equinox module of such.",
    )


def _shapes(tree: PyTree) -> dict[str, str]:
    """The type and shape of every array of a tree, by its name."""
    shapes = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(tree)]
    return dict(zip(parameter_names(tree), shapes, strict=True))


def probe(state: State, model: AbstractModel) -> float:
    """The first chain's log density: another prior or likelihood gives another."""
    theta = jax.tree.map(lambda leaf: leaf[0], state.theta)
    model.check_functions(jax.eval_shape(model.constrain, theta))  # suspends the cache where they hold data
    return float(model.log_density(theta))


def digest(model: AbstractModel) -> str:
    """SHA-256 of the present rows' values: the same data give the same digest."""
    sha = hashlib.sha256(np.asarray(model.present).tobytes())
    for leaf in (leaf for block in row_source(model.data).blocks() for leaf in jax.tree.leaves(block)):
        array = np.ascontiguousarray(leaf)
        sha.update(f"{array.dtype}{array.shape}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
