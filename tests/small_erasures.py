"""A posterior of rows that are only counted: the smallest thing that the record can erase from.

Its draws are a file that lists the rows they rest on and every row that was ever erased from them. What the record
promises (once, all or nothing) is about files and databases, and shows there as it would in a file of real draws;
`test_record_commands.py` has those.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posterase.projects.spec import Project, WasErased
from posterase.record.runs import Facts

ROWS_EACH = 3


@dataclasses.dataclass
class Counted:
    """Three rows for each of some subjects, `s0`, `s1`, …"""

    kept: list[int]
    erased: list[int]
    refuses: frozenset[int] = frozenset()
    """Rows that no erasure with them is accepted for."""
    most: int = 10**9
    """Rows that one erasure may remove."""
    attempts: list[int] = dataclasses.field(default_factory=list)

    @property
    def facts(self) -> Facts:
        return Facts(_digest(self.kept), "sha256:" + "0" * 64, {"posterase": "0"}, {}, ("rows are counted",))

    def rows_of(self, subject: str) -> list[int]:
        if not re.fullmatch(r"s\d+", subject):
            return []
        first = int(subject[1:]) * ROWS_EACH
        return [row for row in range(first, first + ROWS_EACH) if row in self.kept]

    def erase(self, rows: Sequence[int], seed: int | None, spent: float) -> Removed:
        assert set(rows) <= set(self.kept)
        self.attempts.append(len(rows))
        wrong = bool(self.refuses & set(rows)) or len(rows) > self.most
        kept = [row for row in self.kept if row not in rows]
        return Removed(not wrong, "k̂ is above its limit." if wrong else "", kept, [*self.erased, *rows], spent + 0.05)


@dataclasses.dataclass
class Removed:
    """An erasure from it."""

    accepted: bool
    reason: str
    kept: list[int]
    erased: list[int]
    spent: float

    @property
    def report(self) -> dict[str, Any]:
        verdict = {
            "accepted": True,
            "kind": "measured",
            "method": "Reweight",
            "margin": "wide",
            "reason": "the diagnostics passed with a wide margin",
            "advice": None,
            "draws": "moved",
            "verified": True,
            "notes": [],
        }
        return {
            "posterase": "0",
            "removed_rows": len(self.erased),
            "kept_rows": len(self.kept),
            "verdict": verdict,
            "methods": [{"name": "Reweight", "passed": True, "objections": []}],
            "returned": {"chains": 4, "draws": 500},
            "policy": {"epsilon": 0.05, "budget": 1.0},
            "spent": self.spent,
            "seconds": 0.5,
        }

    @property
    def data(self) -> bytes:
        return _digest(self.kept)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"kept": self.kept, "erased": self.erased}))


def new_draws(folder: Path, subjects: int) -> None:
    """The draws before any erasure."""
    (folder / "draws.nc").write_text(json.dumps({"kept": list(range(subjects * ROWS_EACH)), "erased": []}))


def read_draws(folder: Path) -> dict[str, list[int]]:
    """What is in the file."""
    return json.loads((folder / "draws.nc").read_text())


def opener(delay: float = 0.0, **options: Any):
    """Opens the draws; an erasure takes some time."""

    def opened(project: Project, erased: WasErased) -> Counted:
        values = json.loads(project.draws_path.read_text())
        time.sleep(delay)
        return Counted(**values, **options)

    return opened


def _digest(rows: list[int]) -> bytes:
    return hashlib.sha256(json.dumps(rows).encode()).digest()
