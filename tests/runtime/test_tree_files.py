"""Trees of arrays in files: what comes back, and what is refused."""

import json
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterase.errors import InputFileError
from posterase.runtime.tree_files import read_header, read_tree, write_tree

TREE = {
    "a": jnp.arange(6.0).reshape(2, 3),
    "b": (jnp.zeros((), jnp.int32), None),
    "key": jax.random.split(jax.random.key(3), 2),
    "narrow": jnp.ones(3, jnp.bfloat16),
}
WORDS = "a saved tree", "write it again."


@pytest.fixture
def path(tmp_path):
    write_tree(tmp_path / "tree.eqx", TREE, {"notes": {"seconds": 1.5}})
    return tmp_path / "tree.eqx"


def test_a_tree_comes_back_with_its_header(path):
    like = {**TREE, "a": jnp.zeros((2, 3)), "key": jax.random.split(jax.random.key(0), 2)}
    assert eqx.tree_equal(read_tree(path, like, *WORDS), TREE)
    assert read_header(path, *WORDS)["notes"] == {"seconds": 1.5}
    assert [each.name for each in path.parent.iterdir()] == ["tree.eqx"]


def test_a_file_appears_whole_or_not_at_all(path):
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_tree(path, TREE, {"notes": object()})
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["tree.eqx"]


def test_other_files_are_refused(path):
    whole = path.read_bytes()
    header, arrays = whole.split(b"\n", 1)
    version = json.dumps({**json.loads(header), "version": 2}).encode()
    contents = {
        "cut": whole[:-10],
        "nothing": b"",
        "text": b"nothing",
        "more": whole + b"x",
        "another version": version + b"\n" + arrays,
        "a pickle": header + b"\n" + pickle.dumps({"a": 1}),
    }
    for name, content in contents.items():
        path.write_bytes(content)
        with pytest.raises(InputFileError, match=r"is not a saved tree(.|\n)*write it again"):
            read_tree(path, TREE, *WORDS)
        assert name
    path.unlink()
    with pytest.raises(InputFileError, match="no file"):
        read_header(path, *WORDS)


def test_objects_in_arrays_are_not_unpickled(path):
    header = path.read_bytes().split(b"\n", 1)[0]
    with path.open("wb") as file:
        file.write(header + b"\n")
        np.save(file, np.array([object], dtype=object), allow_pickle=True)
    with pytest.raises(InputFileError, match="is not a saved tree"):
        read_tree(path, {"a": jnp.zeros(1)}, *WORDS)


def test_another_shape_or_structure_is_refused(path):
    for like in ({**TREE, "a": jnp.zeros((3, 2))}, {"a": TREE["a"]}, {**TREE, "z": jnp.zeros(1)}):
        with pytest.raises(InputFileError, match="is not a saved tree"):
            read_tree(path, like, *WORDS)
