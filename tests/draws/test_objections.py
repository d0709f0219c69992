"""Every cause of a refusal has a public text, and a section of a page that explains it."""

import re
from pathlib import Path
from typing import get_args

import pytest

from posterase.draws.objections import PAGE, PUBLIC_CAUSES, SECTIONS, Cause, Objection

ROOT = Path(__file__).parents[2]


def anchors():
    """Of the page's headings, as MkDocs makes them: small letters, hyphens, nothing else."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("cause", get_args(Cause))
def test_a_cause_has_a_text_and_a_section(cause):
    assert PUBLIC_CAUSES[cause]
    assert SECTIONS[cause] in anchors()
    assert SECTIONS[cause].isascii(), "sites write other letters in different ways"
    assert Objection(cause, "why", "what to do").page == f"{PAGE}#{SECTIONS[cause]}"


def test_no_cause_is_left_over():
    assert set(PUBLIC_CAUSES) == set(SECTIONS) == set(get_args(Cause))
