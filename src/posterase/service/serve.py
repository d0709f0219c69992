"""`posterase serve`: a web server, and workers in processes of their own, kept alive as long as it is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import uvicorn

from posterase.errors import InvalidOptionError, PosteraseError
from posterase.record.opening import open_record
from posterase.record.runs import recover
from posterase.service.app import create_app
from posterase.service.async_record import Keeper
from posterase.service.connections import Connection
from posterase.service.settings import Settings

AGAIN_S = 2.0
"""Until a worker that ended is started anew; longer each time, where it ends again and again."""
LONGEST_WAIT_S = 60.0
BEYOND_GRACE_S = 10.0
"""For a worker to hand back what it could not finish."""


class Workers:
    """Processes that run orders; one that ends is started anew."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], number: int):
        self.command, self.environment, self.number = command, environment, number
        self.running: list[subprocess.Popen[bytes]] = []
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._keep_alive, daemon=True)

    def start(self) -> None:
        """Start them all."""
        self.running = [self._new() for _ in range(self.number)]
        self._watch.start()

    def alive(self) -> int:
        """How many there are."""
        return sum(each.poll() is None for each in self.running)

    def stop(self, grace_s: float) -> None:
        """Let them finish or hand back what they have; whoever does neither is ended."""
        self._over.set()
        self._watch.join()
        for each in self.running:
            each.terminate()
        latest = time.monotonic() + grace_s + BEYOND_GRACE_S
        for each in self.running:
            try:
                each.wait(max(0.0, latest - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()

    def _new(self) -> subprocess.Popen[bytes]:
        """In a session of its own: Ctrl-C and the end of the terminal are not for it. What models print is nobody's."""
        return subprocess.Popen(
            self.command,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _keep_alive(self) -> None:
        wait = AGAIN_S
        while not self._over.wait(wait):
            ended = [place for place, each in enumerate(self.running) if each.poll() is not None]
            for place in ended:
                self.running[place] = self._new()
            wait = min(2 * wait, LONGEST_WAIT_S) if ended else AGAIN_S


def serve(
    url: str,
    folder: Path,
    *,
    host: str,
    port: int,
    workers: int,
    due_within: str | None,
    grace_s: float,
    settings: Settings,
    certificate: Path | None = None,
    key: Path | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until a signal comes.

    Parameters
    ----------
    url, folder
        The record and its keys.
    host, port
        Where to listen.
    workers
        Processes that run requests.
    due_within
        Requests that are due so soon are run by themselves; None: only where somebody orders it.
    grace_s
        How long what runs may go on at the end.
    settings
        What the service allows.
    certificate, key
        Files for HTTPS.
    ready
        Is told the address once the service listens.
    """
    listening = _bound(host, port)
    keeper = Keeper(url, folder)
    own = {"POSTERASE_RECORD": url, "POSTERASE_KEYS": str(folder)}  # not as arguments: a URL may hold a password
    helpers = Workers(worker_command(due_within, grace_s), own, workers)
    app = create_app(keeper, settings, helpers.alive)
    server = _Server(
        uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=10,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            http=Connection,
            proxy_headers=settings.https and certificate is None,
        ),
        ready,
    )
    try:
        server.config.load()
    except OSError as error:  # as errors of SSL are
        said = error.strerror or str(error)
        raise InvalidOptionError(
            f"the files for HTTPS cannot be used: {said}.", "check them and their paths."
        ) from None
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # else the server would end us with itself
    helpers.start()
    try:
        server.run(sockets=[listening])
    finally:
        helpers.stop(grace_s)
        _hand_back(url, folder)
        listening.close()
        signal.signal(signal.SIGTERM, before)


def _bound(host: str, port: int) -> socket.socket:
    """The socket to listen on; a port that is taken is told before anything is started."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((place[0], place[1]), family=family)
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise InvalidOptionError(
            f"{host}:{port} cannot be listened on: {said}.", "choose another --host or --port."
        ) from None


def worker_command(due_within: str | None, grace_s: float) -> list[str]:
    """What starts a worker of this process."""
    options = ["--grace", f"{grace_s:g}", "--parent", str(os.getpid())]
    due = [] if due_within is None else ["--run-due-within", due_within]
    return [sys.executable, "-m", "posterase.cli.main", "requests", "work", *options, *due]


def _hand_back(url: str, folder: Path) -> None:
    """What a worker could not, because it was ended: its requests are pending again, or its run is completed."""
    try:
        record = open_record(url, folder)
    except PosteraseError:
        return
    try:
        recover(record)
    except PosteraseError:
        pass  # whoever opens it next is told
    finally:
        record.close()


class _Server(uvicorn.Server):
    """Tells when it listens, and on which port."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None]):
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self.ready(f"{'https' if self.config.ssl_certfile else 'http'}://{shown}:{port}")
