"""What a record is handed of a project: refusals without data, and assumptions by their scope."""

from types import SimpleNamespace

import pytest

from posterase.errors import PosteraseError, RowsError
from posterase.projects.loading import OF_A_REQUEST, Opened, assumptions


@pytest.mark.parametrize("kind", OF_A_REQUEST)
def test_a_refusal_tells_no_data(kind):
    """Its reason is the class's sentence, never the error's own text."""

    def change(remove):
        raise kind(f"row {remove} of PLANTED-KEY", "ask PLANTED-KEY.")

    tried = Opened(None, SimpleNamespace(change=change), None, None, None, None).erase([3], None, 0.0)
    assert tried.reason == kind.public_reason
    assert not tried.accepted


def test_other_errors_are_no_refusals():
    def change(remove):
        raise RowsError("a mistake of ours.", "mend it.")

    with pytest.raises(PosteraseError):
        Opened(None, SimpleNamespace(change=change), None, None, None, None).erase([3], None, 0.0)


def test_assumptions_by_their_scope():
    subjects, named = set(assumptions("subjects")), set(assumptions("named rows"))
    assert len(subjects & named) == 3
    assert len(subjects - named) == len(named - subjects) == 1
    assert set(assumptions("all")) == subjects & named
