"""What the decorator of public calls adds: one frame, and errors as users can read them."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from posterase.errors import NonFiniteResultError
from posterase.numerics.failures import entry_point


@entry_point
def divide(number, by=0):
    """A function."""
    return number / by


def test_it_is_the_function():
    assert (divide.__name__, divide.__doc__) == ("divide", "A function.")
    assert divide(6, by=3) == 2


USERS_MISTAKE = """
import sys, traceback
import posterase as pe

try:
    pe.erase("a model", None, [3]) if sys.argv[1] == "erase" else pe.Reweight()(0, "a model", None, None)
except TypeError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
"""


@pytest.mark.parametrize(("call", "name"), [("erase", "erase"), ("Reweight", "__call__")])
def test_the_traceback_of_a_users_mistake(call, name):
    """One frame above the function. (The tests' type checks have frames, too: a process without them.)"""
    done = subprocess.run([sys.executable, "-c", USERS_MISTAKE, call], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["<module>", "call", name, "check_type"])


def invert(matrix):
    return np.linalg.inv(matrix)


def test_failures_are_converted_on_request():
    singular = np.zeros((2, 2))
    with pytest.raises(np.linalg.LinAlgError):
        entry_point(invert)(singular)
    with pytest.raises(NonFiniteResultError, match="Singular matrix"):
        entry_point(converts_failures=True)(invert)(singular)
    with pytest.raises(TypeError):  # a mistake of the caller
        entry_point(converts_failures=True)(lambda a: jnp.sum(a) + "a")(singular)
