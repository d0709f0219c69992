"""The record at a glance: how many requests are in which state, how many are late, how projects stand."""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa

from posterase.projects.spec import Project
from posterase.record.deadlines import text_of
from posterase.record.record import Record, definition_of
from posterase.record.requests import OPEN, State
from posterase.record.store import schema


@dataclasses.dataclass(frozen=True)
class Standing:
    """A project and what was done with it."""

    project: Project
    version: int
    runs: int
    spent: float
    """Of its budget."""
    counts: dict[State, int]
    """Requests in each state."""


def counts(record: Record, project: str | None = None) -> dict[State, int]:
    """Requests in each state."""
    table = schema.requests.c
    query = sa.select(table.state, sa.func.count().label("number")).group_by(table.state)
    if project is not None:
        query = query.where(table.project == project)
    with record.database.reading() as connection:
        return {row.state: row.number for row in connection.execute(query)}


def late(record: Record, project: str | None = None) -> int:
    """Requests that are open and past their dates."""
    table = schema.requests.c
    query = sa.select(sa.func.count()).where(table.state.in_(OPEN), table.due_at < text_of(record.clock()))
    if project is not None:
        query = query.where(table.project == project)
    with record.database.reading() as connection:
        return connection.scalar(query) or 0


def standings(record: Record) -> list[Standing]:
    """All projects."""
    table = schema.requests.c
    query = sa.select(table.project, table.state, sa.func.count()).group_by(table.project, table.state)
    with record.database.reading() as connection:
        numbers: dict[str, Any] = {}
        for project, state, number in connection.execute(query):
            numbers.setdefault(project, {})[state] = number
        rows = connection.execute(sa.select(schema.projects).order_by(schema.projects.c.name)).all()
    return [
        Standing(definition_of(row.definition), row.version, row.runs, row.spent, numbers.get(row.name, {}))
        for row in rows
    ]
