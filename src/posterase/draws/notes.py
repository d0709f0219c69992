"""Notes of a verdict, and assumptions of a certificate: a kind for programs, a text for people."""

from __future__ import annotations

import dataclasses
from typing import Literal

CONTAINS = "information about the removed rows"
"""What every page and file of diagnostics states that it contains."""

NoteKind = Literal["rows", "input", "output", "container", "model", "preprocessing"]
"""What a note is about.

- rows: removed besides those that were named
- input: the draws that went in
- output: the draws that are returned
- container: what was cut, computed again or dropped
- model: how the model and its data were read, and what stays in them
- preprocessing: what was computed from all rows before the fit
"""

NOT_ERASED: frozenset[NoteKind] = frozenset({"rows", "model", "preprocessing"})
"""Kinds of notes under `not_erased` in a certificate: how rows were read, and what an erasure leaves as it is."""

RESTS_ON: frozenset[NoteKind] = frozenset({"input"})
"""Kinds of notes under `assumptions` in a certificate."""

AssumptionScope = Literal["all", "subjects", "named rows"]
"""Which erasures an assumption is made for.

- all: every erasure
- subjects: erasures for a subject, whose rows a project's column finds
- named rows: erasures whose rows the user named
"""


@dataclasses.dataclass(frozen=True)
class Assumption:
    """Something that a certificate takes for granted."""

    scope: AssumptionScope
    """Which erasures it is made for."""
    text: str

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Note:
    """Something that a reader of a verdict should know."""

    kind: NoteKind
    """What it is about."""
    text: str

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, str]:
        """For certificates, reports and logs."""
        return {"kind": self.kind, "text": self.text}
