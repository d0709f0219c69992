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
from posterase.record import schema
from posterase.record.record import Record
from posterase.record.requests import Request
from posterase.record.times import text_of

WAITS = "waits for a worker"


@dataclasses.dataclass(frozen=True)
class Order:
    """A run that was asked for."""

    id: int
    project: str
    within_s: int | None
    """Only requests that are due so soon; None: all."""
    actor: str
    ordered_at: str
    started_at: str | None
    ended_at: str | None
    failed: bool
    said: str
    """What goes on, or what came of it."""

    @property
    def within(self) -> dt.timedelta | None:
        """As a span."""
        return None if self.within_s is None else dt.timedelta(seconds=self.within_s)


def place_order(record: Record, project: str, within: dt.timedelta | None = None) -> Order:
    """Ask for a run; the same one twice, while it waits, is one order."""
    record.project(project)
    table, span = schema.orders.c, None if within is None else int(within.total_seconds())
    waiting = sa.select(schema.orders).where(
        table.ended_at.is_(None), table.started_at.is_(None), table.project == project, table.within_s == span
    )
    with record.database.writing() as connection:
        found = connection.execute(waiting).first()
        if found is None:
            now = text_of(record.clock())
            values = {"project": project, "within_s": span, "actor": record.actor, "ordered_at": now}
            insert = schema.orders.insert().values(**values, failed=False, said=WAITS).returning(schema.orders)
            found = connection.execute(insert).one()
        return _order(found)


def open_orders(record: Record) -> list[Order]:
    """Those that are not done, the oldest first."""
    query = sa.select(schema.orders).where(schema.orders.c.ended_at.is_(None)).order_by(schema.orders.c.id)
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
    _update(record, number, started_at=text_of(record.clock()))


def say_of_order(record: Record, number: int, said: str) -> None:
    """What goes on."""
    _update(record, number, said=said)


def end_order(record: Record, number: int, said: str, *, failed: bool = False) -> None:
    """It is done, or cannot be."""
    _update(record, number, ended_at=text_of(record.clock()), said=said, failed=failed)


def order_of(record: Record, request: Request) -> Order | None:
    """The order that a waiting request is being run by, or will be."""
    found = newest_order(record, request.project)
    return found if found is not None and found.ended_at is None else None


def _update(record: Record, number: int, **values: Any) -> None:
    with record.database.writing() as connection:
        connection.execute(schema.orders.update().where(schema.orders.c.id == number).values(**values))


def _order(row: Any) -> Order:
    return Order(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Order)})
