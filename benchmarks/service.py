"""The service under load: 64 clients for a minute, on SQLite and on PostgreSQL.

Every client submits requests, asks for their state over and over, submits some again, lists and cancels; pairs of
clients submit the same request at the same time. At the end every request must be there once, in the state that its
client knows, in a record that verifies. What is printed is the 99th percentile of reading a state beside its median: a
reader who has to wait for writers would show there. `SECONDS=5 python -m benchmarks service` is a look.
"""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.databases import missing, new_database, postgresql_server

from benchmarks.harness import Ratio
from posterase.projects.spec import Project
from posterase.record.ledger.keyring import new_keys
from posterase.record.record import Record
from posterase.record.tokens import make_token

CLIENTS = 64
SECONDS = float(os.environ.get("SECONDS", "60"))
READS = 12
"""Of its state, for each request."""
MOST = 20.0
"""How many times its median the 99th percentile of a read may take."""


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _loaded("SQLite", f"sqlite:///{folder}/record.db", Path(folder))
    if not missing():
        with postgresql_server() as server, tempfile.TemporaryDirectory() as folder:
            yield from _loaded("PostgreSQL", new_database(server, "load"), Path(folder))


def _loaded(what: str, url: str, folder: Path) -> Iterator[Ratio]:
    record = Record.open(url, new_keys(folder / "keys", "benchmark"), actor="benchmark")
    record.register(Project(name="visits", draws="draws.nc", bridge="arviz", folder=str(folder)))
    _, secret = make_token(record, "load", ["operate"])
    with served(url, folder) as address:
        load = asyncio.run(Load(address, secret).run())
    load.check(record)
    record.close()
    reads = np.array(load.seconds["read"])
    median, high = float(np.median(reads)), float(np.quantile(reads, 0.99))
    rate = sum(map(len, load.seconds.values())) / SECONDS
    said = f"{what}, {CLIENTS} clients, {rate:.0f} answers a second, {len(load.known)} requests, none lost, none twice"
    yield Ratio(f"{said}: 99 % of reads beside their median", 1e3 * high, 1e3 * median, " ms")
    submits = 1e3 * float(np.median(load.seconds["submit"]))
    yield Ratio(f"{what}: a submission beside a read", submits, 1e3 * median, " ms")
    assert high < MOST * median, f"99 % of reads took {high / median:.1f} times their median"


@contextmanager
def served(url: str, folder: Path) -> Iterator[str]:
    """The service in a process of its own, without a worker."""
    words = ["serve", "--port", "0", "--workers", "0", "--rate", "1000000", "--json", "--record", url]
    command = [sys.executable, "-m", "posterase.cli.main", *words, "--keys", str(folder / "keys")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        told = ""
        while not told.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the service did not start"
            told += line
        yield json.loads(told)["address"]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class Answer(NamedTuple):
    """What came back."""

    code: int
    body: bytes

    def json(self) -> Any:
        """What it says."""
        return json.loads(self.body)


class Line:
    """A connection that is kept: as little as HTTP needs, so that clients do not take the server's processor."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str):
        self.reader, self.writer, self.secret = reader, writer, secret

    async def ask(self, method: str, path: str, content: Any = None) -> Answer:
        """One request, and its answer."""
        body = b"" if content is None else json.dumps(content).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        return Answer(int(status.split()[1]), await self.reader.readexactly(length))


class Load:
    """Clients, what they know, and how long they waited."""

    def __init__(self, address: str, secret: str):
        self.host, self.port = address.removeprefix("http://").split(":")
        self.secret = secret
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self.known: dict[str, str] = {}
        """The state of every request, as its client knows it."""

    async def run(self) -> Load:
        """All clients, until the time is over."""
        async with asyncio.TaskGroup() as group:
            ends = time.monotonic() + SECONDS
            for number in range(CLIENTS):
                group.create_task(self._client(number, ends))
        return self

    async def _client(self, number: int, ends: float) -> None:
        reader, writer = await asyncio.open_connection(self.host, int(self.port))
        line, turn = Line(reader, writer, self.secret), 0
        while time.monotonic() < ends:
            asked = _submission(number, turn)
            identity = asked["subject_request_id"]
            first = await self._timed("submit", line.ask("POST", "/requests", asked))
            assert first.code in (200, 201), first
            self.known.setdefault(identity, "pending")
            for _ in range(READS):
                status = await self._timed("read", line.ask("GET", f"/requests/{identity}"))
                assert status.code == 200, status
                assert status.json()["request_status"] in ("pending", "cancelled")
            if turn % 4 == 1:
                again = await self._timed("again", line.ask("POST", "/requests", asked))
                assert again.code == 200, again
            if turn % 4 == 2:
                listed = await self._timed("list", line.ask("GET", "/requests?limit=50"))
                assert len(listed.json()["requests"]) <= 50
            if turn % 4 == 3 and number % 2 == 0:
                gone = await self._timed("cancel", line.ask("DELETE", f"/requests/{identity}"))
                assert gone.code == 202, gone
                self.known[identity] = "cancelled"
            turn += 1
        writer.close()
        await writer.wait_closed()

    async def _timed(self, what: str, asked: Awaitable[Answer]) -> Answer:
        start = time.perf_counter()
        answer = await asked
        self.seconds[what].append(time.perf_counter() - start)
        return answer

    def check(self, record: Record) -> None:
        """Every request is in the record, once, as its client knows it."""
        found = record.find(states=("pending", "cancelled"), limit=10**7)
        assert len(found) == len(self.known), f"{len(found)} of {len(self.known)} requests"
        assert {each.subject_request_id: each.state for each in found} == self.known
        record.verify()


SPACE, DAY = uuid.uuid4(), dt.datetime.now(dt.UTC).replace(microsecond=0).isoformat()


def _submission(number: int, turn: int) -> dict[str, Any]:
    """Two clients beside each other submit the same; only the first of them cancels."""
    drawn = uuid.UUID(bytes=uuid.uuid5(SPACE, f"{number // 2} {turn}").bytes, version=4)
    return {
        "regulation": "gdpr",
        "subject_request_id": str(drawn),
        "subject_request_type": "erasure",
        "submitted_time": DAY,
        "subject_identities": [{"identity_type": "controller_customer_id", "identity_value": f"person {drawn}"}],
        "property_id": "visits",
    }
