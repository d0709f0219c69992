"""States of chains in a file, to go on from another day.

The file is a numpy archive without pickles: the state's arrays, and a description of the run (sampler and settings,
parameters, a digest of the rows). Loading it for another run is refused, with what differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterase.data.parameters import parameter_names
from posterase.data.row_source import row_source
from posterase.data.streams import raises_read_errors
from posterase.errors import InputFileError, ResumeError
from posterase.model.base import AbstractModel
from posterase.runtime.files import written_whole
from posterase.runtime.precision import numbers_as_arrays
from posterase.sampling.sampler import Sampler, State


@raises_read_errors
def save_state(path: str | os.PathLike[str], state: State, model: AbstractModel, sampler: Sampler) -> Path:
    """Write the state of a run. The file appears whole or not at all."""
    plain = state._replace(key=jax.random.key_data(state.key))
    arrays: dict[str, Any] = {f"leaf{at}": np.asarray(leaf) for at, leaf in enumerate(jax.tree.leaves(plain))}
    with written_whole(path) as beside, beside.open("wb") as file:
        run = {**describe(state, model, sampler), "log_density": probe(state, model)}
        np.savez(file, run=np.array(json.dumps(run)), **arrays)
    return Path(path)


@raises_read_errors
def load_state(path: str | os.PathLike[str], like: State, model: AbstractModel, sampler: Sampler) -> State:
    """Read the state of this very run; `like` is a state of it (what `start_chains` gives), for the structure."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        saved = dict(json.loads(str(arrays.pop("run"))))
        leaves = [jnp.asarray(arrays[f"leaf{at}"]) for at in range(len(jax.tree.leaves(like)))]
    except FileNotFoundError as error:
        raise InputFileError(f"there is no file {os.fspath(path)!r}.", "check the path.") from error
    except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise InputFileError(
            f"{os.fspath(path)!r} is not a saved state: {error}", "use a file that save_state wrote."
        ) from error
    expected = describe(like, model, sampler)
    for what, value in expected.items():
        if saved.get(what) != value:
            raise ResumeError(
                f"{os.fspath(path)!r} is of another run: {what} was {saved.get(what)!r} there and is {value!r} here.",
                "resume with the model, data and sampler the run was started with, or start a new one.",
            )
    plain = like._replace(key=jax.random.key_data(like.key))
    loaded = jax.tree.unflatten(jax.tree.structure(plain), leaves)
    state = loaded._replace(key=jax.random.wrap_key_data(loaded.key, impl=jax.random.key_impl(like.key)))
    if not np.isclose(probe(state, model), saved.get("log_density", np.nan), rtol=1e-4, atol=1e-3):
        raise ResumeError(
            f"{os.fspath(path)!r} is of another run: the model has another log density at the saved parameters.",
            "resume with the very prior, likelihood and data the run was started with, or start a new one.",
        )
    return state


def describe(state: State, model: AbstractModel, sampler: Sampler) -> dict[str, Any]:
    """What makes a run this run and no other."""
    names = parameter_names(state.theta)
    shapes = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(state.theta)]
    settings = {
        name: [float(leaf) for leaf in jax.tree.leaves(numbers_as_arrays(getattr(sampler, name)))]
        for name in ("schedule", "noise_free")
    }
    return {
        "sampler": type(sampler).__name__,
        "schedule": [type(sampler.schedule).__name__, *settings["schedule"]],
        "friction": float(np.float32(getattr(sampler, "friction", 0.0))),
        "batch": sampler.batch,
        "noise_free": settings["noise_free"],
        "parameters": dict(zip(names, shapes, strict=True)),
        "transforms": {name: transform.describe() for name, transform in sorted(model.transforms.items())},
        "key": str(jax.random.key_impl(state.key)),
        "rows": model.n_rows,
        "data": digest(model),
    }


def probe(state: State, model: AbstractModel) -> float:
    """The first chain's log density: another prior or likelihood gives another."""
    return float(model.log_density(jax.tree.map(lambda leaf: leaf[0], state.theta)))


def digest(model: AbstractModel) -> str:
    """SHA-256 of the present rows' values: the same data give the same digest."""
    sha = hashlib.sha256(np.asarray(model.present).tobytes())
    for leaf in (leaf for block in row_source(model.data).blocks() for leaf in jax.tree.leaves(block)):
        array = np.ascontiguousarray(leaf)
        sha.update(f"{array.dtype}{array.shape}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
