"""What the pages say, in words: deadlines, states, what happened."""

from __future__ import annotations

import datetime as dt

from posterase.record.deadlines import time_of
from posterase.record.ledger.ledger import Entry
from posterase.record.requests import OPEN, Request

HAPPENED = {
    "request.received": "Received",
    "request.extended": "Given more time",
    "request.started": "A run began",
    "request.released": "Pending again",
    "request.completed": "Completed",
    "request.refused": "Refused",
    "request.cancelled": "Cancelled",
}


def deadline(request: Request, now: dt.datetime) -> str:
    """How long there is, or was: `3 days late`, `due in 12 days`."""
    if request.state not in OPEN:
        return f"answered {day(request.answered_at)}"
    left = time_of(request.due_at, "due_at") - now
    if left < dt.timedelta(0):
        return f"{_span(-left)} late"
    return "due within the hour" if left < dt.timedelta(hours=1) else f"due in {_span(left)}"


def urgency(request: Request, now: dt.datetime) -> str:
    """How a page should show it: late, soon, or calm."""
    if request.state not in OPEN:
        return "calm"
    left = time_of(request.due_at, "due_at") - now
    return "late" if left < dt.timedelta(0) else "soon" if left < dt.timedelta(days=7) else "calm"


def _span(span: dt.timedelta) -> str:
    number, unit = (span.days, "day") if span.days else (max(1, span.seconds // 3600), "hour")
    return f"{number} {unit}{'s' if number != 1 else ''}"


def day(time: str | None) -> str:
    """The day of a time."""
    return (time or "")[:10]


def moment(time: str) -> str:
    """A time to the minute."""
    return f"{time[:10]} {time[11:16]} UTC"


def detail(entry: Entry) -> str:
    """What else an entry tells."""
    body = entry.body
    if entry.kind == "request.received":
        return f"under {body['regulation'].upper()}, due {day(body['due_at'])}"
    if entry.kind == "request.extended":
        return f"until {day(body['due_at'])}: {body['reason']}"
    if entry.kind == "request.completed":
        rows = body["rows"]
        return f"{rows} row{'s' if rows != 1 else ''} erased" if rows else str(body["reason"])
    return str(body.get("reason") or "")
