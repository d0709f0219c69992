"""A PostgreSQL server for tests: started from nothing in a folder of its own, reached by a socket, gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def missing() -> str:
    """Why there can be no server here; empty where there can."""
    for name in ("initdb", "pg_ctl"):
        if shutil.which(name) is None:
            return f"PostgreSQL's {name} is not on the PATH"
    if os.geteuid() == 0 and (shutil.which("runuser") is None or not _unprivileged()):
        return "PostgreSQL does not run as root, and there is no other user"
    return ""


@contextmanager
def postgresql_server() -> Iterator[str]:
    """The URL of a server, without a database's name: `f"{url}"` % name."""
    user = _unprivileged() if os.geteuid() == 0 else ""
    # Short: a socket's path has at most 107 characters. Another user may be unable to enter root's TMPDIR.
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp" if user else None))
    if user:
        shutil.chown(folder, user)
    data = folder / "data"
    try:
        _as(user, "initdb", "--pgdata", data, "--auth", "trust", "--username", "posterase", "--no-sync")
        options = f"-c listen_addresses='' -k {folder} -c fsync=off -c shared_buffers=16MB"
        _as(user, "pg_ctl", "start", "--pgdata", data, "--wait", "--log", folder / "log", "--options", options)
        try:
            yield f"postgresql://posterase@/%s?host={folder}"
        finally:
            _as(user, "pg_ctl", "stop", "--pgdata", data, "--mode", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server: str, name: str) -> str:
    """An empty database."""
    import psycopg

    with psycopg.connect(server % "postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return server % name


def _unprivileged() -> str:
    import pwd

    names = {each.pw_name for each in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), "")


def _as(user: str, *command: object) -> None:
    words = [shutil.which(str(command[0])) or str(command[0]), *map(str, command[1:])]
    if user:
        words = ["runuser", "-u", user, "--", *words]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/")
