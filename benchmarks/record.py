"""The record with 10,000 requests against one with 100: handing one in, a page by deadline, and verifying, a request.

A PostgreSQL server is started where its programs are on the PATH; else only SQLite is measured.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.databases import missing, new_database, postgresql_server

from benchmarks.harness import Ratio, compare
from posterase.projects.spec import Project
from posterase.record.ledger.keyring import new_keys
from posterase.record.record import Record

FEW, MANY = 100, 10_000
AT_ONCE = 50
"""Requests handed in in one measurement."""

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _both("SQLite", [f"sqlite:///{folder}/{name}.db" for name in ("few", "many")], Path(folder))
        if not missing():
            with postgresql_server() as server:
                urls = [new_database(server, name) for name in ("few", "many")]
                yield from _both("PostgreSQL", urls, Path(folder) / "postgresql")


def _both(what: str, urls: list[str], folder: Path) -> Iterator[Ratio]:
    keys = new_keys(folder / "keys", "benchmark")
    few, many = (Record.open(url, keys, actor="benchmark", clock=lambda: START) for url in urls)
    for record, size in ((few, FEW), (many, MANY)):
        record.register(Project(name="radon", draws="draws.nc", bridge="arviz"))
        _add(record, size)
        with record.database.writing() as connection:
            connection.exec_driver_sql("ANALYZE")  # PostgreSQL does so by itself within a minute
    beside = f"{what}, {MANY:,} requests beside {FEW}"
    yield compare(f"{beside}: {AT_ONCE} handed in", lambda: _add(many, AT_ONCE), lambda: _add(few, AT_ONCE), 5)
    yield compare(f"{beside}: 50 by deadline", lambda: many.find(limit=50), lambda: few.find(limit=50), 25)
    verified = compare(f"{beside}: verified", many.verify, few.verify, 3)
    entries = [record.verify().size for record in (many, few)]
    yield verified._replace(
        what=f"{beside}: verified, an entry",
        first=1e6 * verified.first / entries[0],
        second=1e6 * verified.second / entries[1],
        unit=" µs",
    )
    few.close()
    many.close()


def _add(record: Record, number: int) -> None:
    for _ in range(number):
        record.add("radon", f"person {uuid.uuid4()}", "gdpr")
