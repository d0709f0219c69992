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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tests.databases import missing, new_database, postgresql_server

from benchmarks.harness import Ratio
from posterase.record.keyring import new_keys
from posterase.record.project import Project
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
    record.register(Project("visits", "draws.nc", bridge="arviz", folder=str(folder)))
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
    command = [sys.executable, "-m", "posterase.interfaces.cli", *words, "--keys", str(folder / "keys")]
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


class Load:
    """Clients, what they know, and how long they waited."""

    def __init__(self, address: str, secret: str):
        limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
        headers = {"Authorization": f"Bearer {secret}"}
        self.http = httpx.AsyncClient(base_url=address, headers=headers, limits=limits, timeout=60)
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self.known: dict[str, str] = {}
        """The state of every request, as its client knows it."""

    async def run(self) -> Load:
        """All clients, until the time is over."""
        async with self.http, asyncio.TaskGroup() as group:
            ends = time.monotonic() + SECONDS
            for number in range(CLIENTS):
                group.create_task(self._client(number, ends))
        return self

    async def _client(self, number: int, ends: float) -> None:
        turn = 0
        while time.monotonic() < ends:
            asked = _submission(number, turn)
            identity = asked["subject_request_id"]
            first = await self._call("submit", "POST", "/requests", json=asked)
            assert first.status_code in (200, 201), first.text
            self.known.setdefault(identity, "pending")
            for _ in range(READS):
                status = await self._call("read", "GET", f"/requests/{identity}")
                assert status.status_code == 200, status.text
                assert status.json()["request_status"] in ("pending", "cancelled")
            if turn % 4 == 1:
                again = await self._call("again", "POST", "/requests", json=asked)
                assert again.status_code == 200, again.text
            if turn % 4 == 2:
                listed = await self._call("list", "GET", "/requests", params={"limit": 50})
                assert len(listed.json()["requests"]) <= 50
            if turn % 4 == 3 and number % 2 == 0:
                gone = await self._call("cancel", "DELETE", f"/requests/{identity}")
                assert gone.status_code == 202, gone.text
                self.known[identity] = "cancelled"
            turn += 1

    async def _call(self, what: str, method: str, path: str, **options: Any) -> httpx.Response:
        start = time.perf_counter()
        answer = await self.http.request(method, path, **options)
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
