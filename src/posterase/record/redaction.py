"""What the record keeps for ever: nothing that names a subject, and no figure that the removed rows can be read from.

Names of files and texts of errors may hold anything, and are not kept at all. Texts about a model's parameters are
kept without the labels of single elements; a text that still names a subject is withheld as a whole. Of an erasure's
figures (k̂, ESS, ε, the evidence ratio) none is kept: log p(removed | kept) alone can give one person's outcome away.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from posterase.runtime.text import written as written

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


def redact(text: str, subjects: Iterable[str]) -> str:
    """Cut labels of single elements from a text, and withhold a text that still names a subject."""
    cut = ELEMENT.sub("[…]", text)
    return WITHHELD if any(mentions(cut, each) for each in subjects if len(each) >= SHORTEST) else cut


def certified(report: Mapping[str, Any], subjects: list[str]) -> dict[str, Any]:
    """Select from an erasure's report what a certificate needs, with its texts redacted.

    Fields are listed here one by one, so that a figure that a report gets later stays out of certificates.
    """
    verdict = {name: report["verdict"][name] for name in ("accepted", "kind", "method", "margin", "draws", "verified")}
    verdict["reason"] = redact(report["verdict"]["reason"], subjects)
    notes = report["verdict"]["notes"]
    verdict["notes"] = [{"kind": note["kind"], "text": redact(note["text"], subjects)} for note in notes]
    methods = [
        {
            "name": each["name"],
            "passed": each["passed"],
            "objections": [redact(objection, subjects) for objection in each["objections"]],
        }
        for each in report["methods"]
    ]
    names = "posterase", "removed_rows", "kept_rows", "returned", "policy", "spent", "seconds"
    return {"verdict": verdict, "methods": methods, **{name: report[name] for name in names}}


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
