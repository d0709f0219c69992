"""SQLite or PostgreSQL: connections, transactions that write, locks that a dead process gives back, migrations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from posterase.errors import RecordError
from posterase.runtime.optional import need

HEAD = "0002"
"""The revision of the tables that this code knows."""

VERSIONS = "posterase_version"
"""The table that says which revision is there; of our own, since a database may be shared."""

WAIT_S = 30
"""How long a transaction waits for another one's lock."""

Begin = Callable[[], AbstractContextManager[sa.Connection]]
"""Begins a transaction that writes: committed at its end, undone by an error."""


class Database:
    """A database by its URL; `sqlite:///record.db`, `postgresql://user@host/name`."""

    def __init__(self, url: str):
        self.url = _url(url)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        try:
            self.engine = sa.create_engine(self.url, **({} if self.sqlite else {"pool_pre_ping": True}))
        except sa.exc.ArgumentError:
            raise RecordError("the URL of the record cannot be read.", _URLS) from None
        if self.sqlite:
            sa.event.listen(self.engine, "connect", _sqlite_options)
            sa.event.listen(self.engine, "begin", _sqlite_begin)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that only reads, and sees one state of the database however long it takes."""
        with _told(), self.engine.connect() as connection:
            if not self.sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that writes; on SQLite the only one."""
        with _told(), self.engine.connect() as connection, _begun(connection):
            yield connection

    @contextmanager
    def locked(self, name: str) -> Iterator[Begin | None]:
        """A lock that only one process holds, and that ends with it; None where another has it.

        What it gives begins transactions. On PostgreSQL they run in the connection that holds the lock: where that
        is lost, so is the lock, and nothing more is written.
        """
        with self._sqlite_lock(name) if self.sqlite else self._postgresql_lock(name) as held:
            yield held

    @contextmanager
    def _sqlite_lock(self, name: str) -> Iterator[Begin | None]:
        """Lock a file beside the database. The operating system unlocks it when the process ends."""
        path = f"{self.url.database}.{name}.lock"
        lock: BaseFileLock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            pass
        except (OSError, NotImplementedError):
            raise _no_lock(path) from None
        try:
            if isinstance(lock, SoftFileLock):  # without flock: such a lock would outlive a process that dies
                raise _no_lock(path)
            yield self.writing if lock.is_locked else None
        finally:
            lock.release()

    @contextmanager
    def _postgresql_lock(self, name: str) -> Iterator[Begin | None]:
        with _told(), self.engine.connect() as connection:
            number = sa.func.hashtextextended(f"posterase {name}", 0)
            if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(number))):
                yield None
                return
            process = connection.scalar(_PROCESS)
            connection.commit()
            try:
                yield lambda: _begun_with_lock(connection, process)
            finally:
                connection.invalidate()  # closes it, and gives the lock back whatever state it is in

    def revision(self) -> str | None:
        """Which version of the tables is there; None: no tables."""
        with self.reading() as connection:
            if not sa.inspect(connection).has_table(VERSIONS):
                return None
            return connection.scalar(sa.text(f"SELECT version_num FROM {VERSIONS}"))

    def upgrade(self) -> None:
        """Make the tables, or bring them to this version."""
        from alembic import command
        from alembic.config import Config

        settings = Config()
        settings.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self.writing() as connection:
            self.alone(connection)
            settings.attributes["connection"] = connection
            command.upgrade(settings, "head")

    def files(self) -> list[Path]:
        """Its own files, where it is one."""
        if not self.sqlite or self.url.database is None:
            return []
        return [Path(self.url.database + ending) for ending in ("", "-wal", "-shm", "-journal")]

    def alone(self, connection: sa.Connection) -> None:
        """Let two processes that open a new record at once begin it one after the other."""
        if not self.sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtextextended('posterase begins', 0))"))

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


_PROCESS = sa.select(sa.func.pg_backend_pid())
"""The server's process that serves a connection."""

_URLS = "write it as sqlite:///record.db, or postgresql://user@host/database."


def _url(text: str) -> sa.URL:
    try:
        url = sa.make_url(text if "://" in text else f"sqlite:///{text}")
    except (sa.exc.ArgumentError, ValueError):
        raise RecordError("the URL of the record cannot be read.", _URLS) from None
    backend = url.get_backend_name()
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise RecordError("a record in memory is lost with its process.", "name a file: sqlite:///record.db.")
        folder = Path(url.database).parent
        if not folder.is_dir():
            raise RecordError(f"there is no folder {str(folder)!r} for the record.", "make it first.")
        return url.set(drivername="sqlite+pysqlite", database=os.path.realpath(url.database))  # one file, one lock
    if backend in ("postgresql", "postgres"):
        need("psycopg", "a record in PostgreSQL", "postgresql")
        return url.set(drivername="postgresql+psycopg")
    raise RecordError(f"a record cannot be kept in {backend}.", _URLS)


@contextmanager
def _begun(connection: sa.Connection) -> Iterator[sa.Connection]:
    connection.info["writes"] = True
    try:
        with connection.begin():
            yield connection
    finally:
        connection.info.pop("writes", None)


@contextmanager
def _begun_with_lock(connection: sa.Connection, process: int | None) -> Iterator[sa.Connection]:
    """In the connection that holds the lock, and in no other that has silently taken its place."""
    with _told(), _begun(connection):
        if connection.scalar(_PROCESS) != process:
            raise RecordError(
                "the connection to the database was lost, and with it the lock.",
                "run again: what was begun is finished then.",
            )
        yield connection


def _no_lock(path: str) -> RecordError:
    return RecordError(
        f"the file {path!r} cannot be locked.", "check your permissions, and that the file system has locks (flock)."
    )


def _sqlite_options(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={WAIT_S * 1000}", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.info.get("writes") else "BEGIN")


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the database in our words. They are not passed on: their texts hold statements and values."""
    try:
        yield
    except sa.exc.NoResultFound:
        raise RecordError(
            "the record is damaged: a row is missing.", "restore it from a backup, and verify that."
        ) from None
    except sa.exc.TimeoutError:
        raise RecordError("too many ask the record at once.", "try again.") from None
    except sa.exc.DBAPIError as error:
        said = str(error.orig).splitlines()[0].lower() if error.orig else ""
        name = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None) or "no code"
        for pattern, problem, advice in _FAULTS:
            if pattern in said or pattern == name:
                raise RecordError(problem, advice) from None
        raise RecordError(
            f"the database answered with an error ({type(error.orig).__name__}, {name}).",
            "see the database's own log; what was not finished is undone.",
        ) from None


_FAULTS = (
    ("SQLITE_FULL", "the disk with the record is full.", "make room; nothing was changed."),
    ("database or disk is full", "the disk with the record is full.", "make room; nothing was changed."),
    ("disk i/o error", "the record cannot be written: the disk is full or broken.", "make room; nothing was changed."),
    ("53100", "the disk with the record is full.", "make room; nothing was changed."),
    ("readonly", "the record may not be written by you.", "ask for the permission, or use another account."),
    ("42501", "the record may not be written by you.", "ask for the permission, or use another account."),
    ("25006", "the record may not be written by you.", "connect to the server that takes writes."),
    ("unable to open", "the record's file cannot be opened.", "check its path and your permissions."),
    ("not a database", "the file is not a record, or it is damaged.", "restore it from a backup, and verify that."),
    ("malformed", "the record's file is damaged.", "restore it from a backup, and verify that."),
    ("SQLITE_CORRUPT", "the record's file is damaged.", "restore it from a backup, and verify that."),
    ("locked", "another process holds the record for too long.", "try again; nothing was changed."),
    ("connection", "the database cannot be reached.", "check the server and the URL; what was not finished is undone."),
)
