"""Times by RFC 3339, and the deadlines that laws set."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from typing import Literal, NamedTuple, get_args

from posterase.errors import RequestError

Regulation = Literal["gdpr", "ccpa", "other"]
"""OpenDSR's names."""

RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})")

SPAN = re.compile(r"(\d{1,9})\s*([hdw])")


EARLIEST, LATEST = 1970, 9000
"""Years."""

LONGEST = 100_000
"""Hours, days or weeks of a span."""


class Term(NamedTuple):
    """How long there is to answer."""

    months: int = 0
    days: int = 0

    def after(self, start: dt.datetime) -> dt.datetime:
        """The end of the term: the same day of a later month, or that month's last; so many days later."""
        month = start.month - 1 + self.months
        year, month = start.year + month // 12, month % 12 + 1
        day = min(start.day, calendar.monthrange(year, month)[1])
        return start.replace(year=year, month=month, day=day) + dt.timedelta(days=self.days)


class Law(NamedTuple):
    """The term that a regulation sets, and what it is with an extension; both from when the request was received."""

    term: Term
    extended: Term


LAWS: dict[str, Law] = {
    "gdpr": Law(Term(months=1), Term(months=3)),  # Article 12(3): one month, two more where necessary
    "ccpa": Law(Term(days=45), Term(days=90)),  # § 1798.130(a)(2)(A): 45 days, once 45 more
}


def regulation_of(name: str) -> Regulation:
    """A regulation by its name."""
    if name not in get_args(Regulation):
        raise RequestError(f"there is no regulation {name!r} here.", f"use one of {', '.join(get_args(Regulation))}.")
    return name  # type: ignore[return-value]


def now() -> dt.datetime:
    """The time in UTC, to the second."""
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def text_of(time: dt.datetime) -> str:
    """RFC 3339 in UTC, to the second: such texts sort as their times do."""
    return time.astimezone(dt.UTC).replace(tzinfo=None, microsecond=0).isoformat() + "Z"


def time_of(text: str | dt.datetime, what: str) -> dt.datetime:
    """A time as RFC 3339 writes it, with its zone."""
    advice = "write it as 2026-03-31T12:00:00Z, with its zone."
    if isinstance(text, dt.datetime):
        if text.tzinfo is None:
            raise RequestError(f"{what} has no time zone.", advice)
        if not EARLIEST <= text.year <= LATEST:
            raise RequestError(f"{what} is of the year {text.year}.", advice)
        return text.astimezone(dt.UTC).replace(microsecond=0)
    if not isinstance(text, str) or not RFC3339.fullmatch(text):
        raise RequestError(f"{what} is no time by RFC 3339: {text!r}.", advice)
    try:
        found = dt.datetime.fromisoformat(text.upper()).astimezone(dt.UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        raise RequestError(f"{what} is a time that no calendar has: {text!r}.", advice) from None
    if not EARLIEST <= found.year <= LATEST:
        raise RequestError(f"{what} is of the year {found.year}.", advice)
    return found


def span_of(text: str) -> dt.timedelta:
    """A span like `7d`, `36h` or `2w`."""
    found = SPAN.fullmatch(text.strip())
    if not found:
        raise RequestError(f"{text!r} is no span of time.", "write it as 7d, 36h or 2w.")
    number, unit = int(found[1]), {"h": "hours", "d": "days", "w": "weeks"}[found[2]]
    if number > LONGEST:
        raise RequestError(f"{text!r} is too long.", "use a shorter span.")
    return dt.timedelta(**{unit: number})


def due(regulation: Regulation, received: dt.datetime, extended: bool = False) -> dt.datetime | None:
    """When the answer is due; None where the regulation sets no term."""
    law = LAWS.get(regulation)
    if law is None:
        return None
    return (law.extended if extended else law.term).after(received)
