"""The service for tests: a real server on a port of its own, over a real database, and a worker's process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import uvicorn

from posterase.projects.spec import Project
from posterase.record.ledger.keyring import new_keys
from posterase.record.record import Record
from posterase.service.app import create_app
from posterase.service.async_record import Keeper
from posterase.service.connections import Connection
from posterase.service.settings import Settings
from tests.small_erasures import new_draws

NAME = "example.org/erasures"


def new_record(folder: Path, url: str, subjects: int = 20, name: str = NAME) -> Record:
    """A record with keys and a project of rows that are counted."""
    keys = new_keys(folder / "keys", name)
    (folder / "visits").mkdir()
    new_draws(folder / "visits", subjects)
    record = Record.open(url, keys, actor="a test")
    record.register(Project(name="visits", draws="draws.nc", model="nowhere:build", folder=str(folder / "visits")))
    return record


@contextlib.contextmanager
def serving(url: str, folder: Path, settings: Settings | None = None, workers: int = 1) -> Iterator[str]:
    """The address of a service that runs."""
    app = create_app(Keeper(url, folder / "keys"), settings or Settings(), lambda: workers)
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", ws="none", http=Connection, proxy_headers=False)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def client(address: str, secret: str | None = None) -> httpx.Client:
    """Somebody with a token, or without."""
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    return httpx.Client(base_url=address, headers=headers, timeout=30)


WORKER = """
import sys
from pathlib import Path
from posterase.service.worker import Worker
from tests.small_erasures import opener
url, folder, delay, grace, parent = sys.argv[1:]
print("ready", flush=True)
Worker(url, Path(folder), opener(float(delay)), grace_s=float(grace), parent=int(parent)).work()
"""


@contextlib.contextmanager
def working(
    url: str, folder: Path, delay: float = 0.0, grace: float = 30.0, parent: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own; its erasures take a while."""
    words = [sys.executable, "-c", WORKER, url, str(folder / "keys"), str(delay), str(grace), str(parent)]
    root = Path(__file__).parent.parent
    process = subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def until(holds, seconds: float = 20.0):
    """What it returns, once that is something."""
    latest = time.monotonic() + seconds
    while time.monotonic() < latest:
        found = holds()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")
