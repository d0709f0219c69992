"""A request to erase, in OpenDSR's words: an id, a regulation, times, and a state."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from posterase.errors import RequestError
from posterase.record.deadlines import Regulation, time_of

State = Literal["pending", "in_progress", "completed", "refused", "cancelled"]

OPEN: tuple[State, ...] = ("pending", "in_progress")
"""States without an answer."""

API_VERSION = "2.0"
"""Of OpenDSR."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A request as the record holds it. Whose it is, is known by a pseudonym only."""

    subject_request_id: str
    project: str
    regulation: Regulation
    subject: str
    """A keyed hash."""
    received_at: str
    due_at: str
    state: State
    extended_because: str | None = None
    rows: int | None = None
    """How many rows it was about; known when it is answered."""
    reason: str | None = None
    """Why it was refused or cancelled."""
    answered_at: str | None = None
    certificate: str | None = None
    """The digest of its certificate."""

    def late(self, now: dt.datetime) -> bool:
        """Whether it is open and past its date."""
        return self.state in OPEN and time_of(self.due_at, "due_at") < now

    def to_opendsr(self) -> dict[str, Any]:
        """Its status, as OpenDSR answers."""
        return {
            "api_version": API_VERSION,
            "controller_id": self.project,
            "subject_request_id": self.subject_request_id,
            "subject_request_type": "erasure",
            "regulation": self.regulation,
            "received_time": self.received_at,
            "expected_completion_time": self.due_at,
            "request_status": self.state,
            "results_count": self.rows,
        }


class Added(NamedTuple):
    """What came of handing in a request."""

    outcome: Literal["received", "duplicate", "conflict"]
    """A duplicate was handed in before; a conflict has the id of one that says something else, and changes nothing."""
    request: Request
    """As it is in the record."""


def states_of(names: Sequence[str]) -> list[State]:
    """States by their names."""
    for name in names:
        if name not in get_args(State):
            raise RequestError(f"there is no state {name!r}.", f"use {', '.join(get_args(State))}.")
    return list(names)  # type: ignore[arg-type]


def request_id(text: str) -> str:
    """An id, as OpenDSR has them: a UUID of version 4."""
    try:
        found = uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        found = None
    if found is None or found.version != 4 or str(found) != str(text).lower():
        raise RequestError(
            "subject_request_id is not a UUID of version 4.",
            "give the id that it was received with; for a new one: python -c 'import uuid; print(uuid.uuid4())'.",
        )
    return str(found)
