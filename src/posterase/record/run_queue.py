"""Orders: runs that somebody asked for, and that a worker does in a process of its own.

An order outlives whoever placed it and whoever works on it: a worker that dies leaves it open, and the next one takes
it again. That is safe, since a run answers requests exactly once; an order for nothing is done at once.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import sqlalchemy as sa

from posterase.errors import NotFoundError
from posterase.record.deadlines import text_of, time_of
from posterase.record.record import Record
from posterase.record.requests import Request
from posterase.record.store import schema

PENDING = "pending until a worker begins"


@dataclasses.dataclass(frozen=True)
class Order:
    """A run that was asked for."""

    id: int
    project: str
    due_within_s: int | None
    """Only requests that are due so soon; None: all."""
    actor: str
    ordered_at: str
    started_at: str | None
    ended_at: str | None
    attempts: int
    """How many times a worker has begun it."""
    failed: bool
    said: str
    """What goes on, or what came of it."""

    @property
    def due_within(self) -> dt.timedelta | None:
        """As a span."""
        return None if self.due_within_s is None else dt.timedelta(seconds=self.due_within_s)

    def ended_before(self, time: dt.datetime) -> bool:
        """Whether it was over before this time."""
        return self.ended_at is not None and time_of(self.ended_at, "ended_at") <= time

    def takes(self, request: Request) -> bool:
        """Whether a pending request is one of those that it runs."""
        if request.project != self.project or self.ended_at is not None:
            return False
        latest = None if self.due_within is None else time_of(self.ordered_at, "ordered_at") + self.due_within
        return latest is None or time_of(request.due_at, "due_at") <= latest


def place_order(record: Record, project: str, due_within: dt.timedelta | None = None) -> Order:
    """Ask for a run; the same one twice, while it is pending, is one order."""
    record.project(project)
    table, span = schema.orders.c, None if due_within is None else int(due_within.total_seconds())
    waiting = sa.select(schema.orders).where(
        table.ended_at.is_(None), table.started_at.is_(None), table.project == project, table.due_within_s == span
    )
    with record.database.writing() as connection:
        found = connection.execute(waiting).first()
        if found is None:
            now = text_of(record.clock())
            values = {"project": project, "due_within_s": span, "actor": record.actor, "ordered_at": now}
            values |= {"attempts": 0, "failed": False, "said": PENDING}
            insert = schema.orders.insert().values(**values).returning(schema.orders)
            found = connection.execute(insert).one()
        return _order(found)


def open_orders(record: Record) -> list[Order]:
    """Those that are not done: the least tried ones first, then the oldest."""
    table = schema.orders.c
    query = sa.select(schema.orders).where(table.ended_at.is_(None)).order_by(table.attempts, table.id)
    with record.database.reading() as connection:
        return [_order(row) for row in connection.execute(query)]


def order(record: Record, number: int) -> Order:
    """One of them."""
    with record.database.reading() as connection:
        row = connection.execute(sa.select(schema.orders).where(schema.orders.c.id == number)).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no order {number}.", "see the project's newest one.")
    return _order(row)


def newest_order(record: Record, project: str) -> Order | None:
    """The last one of a project."""
    query = sa.select(schema.orders).where(schema.orders.c.project == project).order_by(schema.orders.c.id.desc())
    with record.database.reading() as connection:
        row = connection.execute(query.limit(1)).one_or_none()
    return None if row is None else _order(row)


def begin_order(record: Record, number: int) -> None:
    """A worker takes it."""
    _update(record, number, started_at=text_of(record.clock()), attempts=schema.orders.c.attempts + 1)


def give_back_order(record: Record, number: int) -> None:
    """A worker that was asked to end leaves it to the next one: that was no failed attempt."""
    _update(record, number, started_at=None, attempts=schema.orders.c.attempts - 1, said=PENDING)


def say_of_order(record: Record, number: int, said: str) -> None:
    """What goes on."""
    _update(record, number, said=said)


def end_order(record: Record, number: int, said: str, *, failed: bool = False) -> None:
    """It is done, or cannot be."""
    _update(record, number, ended_at=text_of(record.clock()), said=said, failed=failed)


def order_of(record: Record, request: Request) -> Order | None:
    """The order that a request is being run by, or will be."""
    return next((each for each in open_orders(record) if each.takes(request)), None)


def _update(record: Record, number: int, **values: Any) -> None:
    """Change it, unless it is over."""
    mine = schema.orders.c.id == number, schema.orders.c.ended_at.is_(None)
    with record.database.writing() as connection:
        connection.execute(schema.orders.update().where(*mine).values(**values))


def _order(row: Any) -> Order:
    return Order(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Order)})
