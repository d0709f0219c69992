"""Keeping subjects out of what is kept for ever.

Names of files and texts of errors may hold anything, and are not kept at all. What is left are figures and texts about
a model's parameters; labels of single elements are cut from those, and a text that names a subject all the same is
withheld as a whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from posterase.spelling import written as written

WITHHELD = "withheld: it named the subject"

SHORTEST = 3
"""Shorter keys are parts of too many words: they count as named only where they stand alone."""

ELEMENT = re.compile(r"\[[^\]]*\]")
"""Which element of a parameter: `a[ANOKA]`."""


def mentions(text: str, subject: str) -> bool:
    """Whether a text names a subject, in any spelling of the same letters."""
    text, subject = _folded(text), _folded(subject)
    if len(subject) >= SHORTEST:
        return subject in text
    return re.search(rf"(?<![\w.]){re.escape(subject)}(?!\w|\.\d)", text) is not None


def told(text: str, subjects: Iterable[str]) -> str:
    """A text that may be kept."""
    cut = ELEMENT.sub("[…]", text)
    return WITHHELD if any(mentions(cut, each) for each in subjects if len(each) >= SHORTEST) else cut


def report_told(report: Mapping[str, Any], subjects: list[str]) -> dict[str, Any]:
    """An erasure's report with its free texts as they may be kept: reasons, advice, notes, names of parameters."""
    verdict = dict(report["verdict"])
    for name in ("reason", "advice"):
        verdict[name] = None if verdict[name] is None else told(verdict[name], subjects)
    verdict["notes"] = [told(note, subjects) for note in verdict["notes"]]
    rungs = []
    for rung in report["rungs"]:
        kept = {**rung, "objections": [told(each, subjects) for each in rung["objections"]]}
        if "ess" in rung:
            kept["ess"] = {told(name, subjects): value for name, value in rung["ess"].items()}
        rungs.append(kept)
    return {**report, "verdict": verdict, "rungs": rungs}


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
