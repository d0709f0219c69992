"""Trees of arrays in a file: a line of JSON, then the leaves as `equinox.tree_serialise_leaves` writes them.

The file holds no pickles. It does not hold the structure of the tree either: who reads it passes a tree like it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from posterase.errors import InputFileError
from posterase.runtime.files import written_whole

FORMAT = "posterase arrays"
VERSION = 1
LONGEST = 2**24
"""Bytes of a header; a file of something else might have no end of line."""


def write_tree(path: str | os.PathLike[str], tree: PyTree, header: dict[str, Any]) -> None:
    """Write a tree of arrays, random keys among them, with a header. The file appears whole or not at all."""
    with written_whole(path) as beside, beside.open("wb") as file:
        file.write(json.dumps({"format": FORMAT, "version": VERSION, **header}).encode() + b"\n")
        eqx.tree_serialise_leaves(file, tree, filter_spec=_write_leaf)


def read_header(path: str | os.PathLike[str], what: str, advice: str) -> dict[str, Any]:
    """The header of a file. `what` it should be, and `advice`, are the words of the error for another file."""
    with _refusing(path, what, advice), Path(path).open("rb") as file:
        return _header(file)


def read_tree(path: str | os.PathLike[str], like: PyTree, what: str, advice: str) -> PyTree:
    """The tree of a file, with the structure, shapes and types of `like`."""
    with _refusing(path, what, advice), Path(path).open("rb") as file:
        _header(file)
        tree = eqx.tree_deserialise_leaves(file, like, filter_spec=_read_leaf)
        if file.read(1):
            raise ValueError("it has more arrays than expected")
        return tree


def _header(file: BinaryIO) -> dict[str, Any]:
    header = dict(json.loads(file.readline(LONGEST)))
    if (header.get("format"), header.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"it is not a file of {FORMAT!r}, version {VERSION}")
    return header


@contextmanager
def _refusing(path: str | os.PathLike[str], what: str, advice: str) -> Iterator[None]:
    """What goes wrong with a file's content is an error of its own."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputFileError(f"there is no file {os.fspath(path)!r}.", "check the path.") from error
    except (OSError, ValueError, TypeError, EOFError, RuntimeError) as error:  # RuntimeError: equinox's
        raise InputFileError(f"{os.fspath(path)!r} is not {what}: {error}", advice) from error


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _write_leaf(file: BinaryIO, leaf: Any) -> None:
    eqx.default_serialise_filter_spec(file, jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _read_leaf(file: BinaryIO, like: Any) -> Any:
    if not _is_key(like):
        return eqx.default_deserialise_filter_spec(file, like)
    data = eqx.default_deserialise_filter_spec(file, jax.random.key_data(like))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
