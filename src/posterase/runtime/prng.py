"""Random keys: a jax key, a seed that makes one, or entropy of the operating system."""

from __future__ import annotations

import hashlib
import secrets

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree, UInt32

from posterase.errors import InvalidTypeError
from posterase.runtime.fast_compilation import NONE, quick_jit
from posterase.runtime.precision import as_jax


def fresh_key() -> Key[Array, ""]:
    """A key that nobody can guess.

    Whoever knows the key of an erasure can replay its random numbers. Moves are reversible, so such a person could go
    back from the new draws to the old ones.
    """
    return jax.random.wrap_key_data(as_jax([secrets.randbits(32), secrets.randbits(32)], np.uint32))


def key_of(arrays: PyTree) -> Key[Array, ""]:
    """A key that is a function of these arrays: random numbers that go with them, and are the same every time."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(arrays):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return jax.random.wrap_key_data(as_jax(np.frombuffer(digest.digest()[:8], np.uint32)))


def numbered(key: Key[Array, ""], number: int) -> Key[Array, ""]:
    """`jax.random.fold_in(key, number)`, compiled fast."""
    return _fold_in(key, as_jax(number, np.uint32))


@quick_jit(NONE)
def _fold_in(key: Key[Array, ""], number: UInt32[Array, ""]) -> Key[Array, ""]:
    return jax.random.fold_in(key, number)


def as_key(key: object, name: str = "key") -> Key[Array, ""]:
    """A typed jax key from a seed (`0`), a typed key, or a key of the old kind (two uint32)."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and -(2**63) <= key < 2**63:
        return jax.random.key(int(key))
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return key
    if isinstance(key, (jax.Array, np.ndarray)) and key.dtype == np.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key))
    raise InvalidTypeError(
        f"{name} is {_describe(key)}, which is not a random key.",
        f"pass a whole number ({name}=0) or one key from jax.random.key(0).",
    )


def _describe(key: object) -> str:
    if isinstance(key, (jax.Array, np.ndarray)):
        return f"an array of {key.dtype} with shape {key.shape}"
    return f"{key!r} ({type(key).__name__})"
