"""Errors: their sentences, and what of them may be published."""

import inspect
import pickle
import re
import subprocess
import sys

import pytest

from posterase import errors

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, errors.PosteraseError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_states_its_own_public_reason(kind):
    """One sentence, which is not inherited and not read out of a docstring."""
    assert re.fullmatch(r"[A-Z][^\n`]{10,110}\.", vars(kind)["public_reason"])


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_says_what_to_do_wherever_it_goes(kind):
    made = kind("it is broken.", "mend it.")
    copy = pickle.loads(pickle.dumps(made))
    assert str(made) == str(copy) == "it is broken.\n  What to do: mend it."
    assert (copy.problem, copy.advice) == ("it is broken.", "mend it.")
    assert "broken" not in made.public_reason


def test_reasons_do_not_come_from_docstrings():
    """Python -OO removes docstrings."""
    code = "from posterase.errors import NothingKeptError as E; assert E.__doc__ is None; print(E.public_reason)"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == errors.NothingKeptError.public_reason
