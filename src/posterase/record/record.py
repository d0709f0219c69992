"""The record: requests, who did what and when, and the ledger of it, in one database.

Every change is one transaction that also writes to the ledger; there is no change without an entry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import getpass
import itertools
import json
import os
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from posterase.errors import KeyFileError, LedgerError, NotFoundError, RecordError, RequestError, WrongStateError
from posterase.projects.spec import NAME as PROJECT
from posterase.projects.spec import Project
from posterase.record.consistency import check_tables, definition_digest, folder_digest
from posterase.record.deadlines import due, now, regulation_of, text_of, time_of
from posterase.record.ledger import ledger
from posterase.record.ledger.canonical import canonical
from posterase.record.ledger.keyring import Keys
from posterase.record.ledger.merkle import Tree
from posterase.record.ledger.signed_note import PublicKey, Signer
from posterase.record.owned_files import owned
from posterase.record.redaction import mentions, written
from posterase.record.requests import OPEN, Added, Request, State, request_id
from posterase.record.store import schema
from posterase.record.store.database import HEAD, Begin, Database
from posterase.runtime.files import written_whole

TOLERANCE = dt.timedelta(minutes=5)
"""How far clocks of several machines may be apart. An entry is never earlier than the one before it."""

LONGEST = 1024
"""Characters of a subject's key, a reason, the name of who acts."""


@dataclasses.dataclass
class Transaction:
    """A transaction and what it adds to the ledger."""

    connection: sa.Connection
    keys: Keys
    actor: str
    origin: str
    tree: Tree
    time: dt.datetime

    @property
    def now(self) -> str:
        """When it happens."""
        return text_of(self.time)

    @property
    def answered(self) -> dict[str, Any]:
        """When and where the next entry answers a request."""
        return {"answered_at": self.now, "entry": self.tree.size}

    def append(
        self,
        kind: ledger.Kind,
        body: dict[str, Any],
        *,
        project: str | None = None,
        request: str | None = None,
        also: Sequence[Signer] = (),
    ) -> None:
        """Add an entry and sign the tree after it."""
        entry = ledger.Entry(self.tree.size, self.now, kind, self.actor, project, request, body)
        leaf = entry.to_bytes()
        self.tree = self.tree.appended(leaf)
        note = ledger.checkpoint(self.origin, self.tree, self.keys.signer, *also)
        values = {"index": entry.index, "request": request, "leaf": leaf, "checkpoint": note}
        self.connection.execute(schema.entries.insert().values(values))

    def request(self, found: str) -> Any:
        """A request's row, locked."""
        query = sa.select(schema.requests).where(schema.requests.c.id == found).with_for_update()
        row = self.connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"there is no request {found}.", "list them: posterase requests list.")
        return row

    def update(self, found: str, **values: Any) -> None:
        """Change a request's row."""
        self.connection.execute(schema.requests.update().where(schema.requests.c.id == found).values(**values))


class Record:
    """Requests and their ledger.

    Parameters
    ----------
    database
        Where it is kept.
    keys
        What it is signed and sealed with.
    actor
        Who acts, for the ledger.
    clock
        What tells the time.
    """

    def __init__(self, database: Database, keys: Keys, actor: str, clock: Callable[[], dt.datetime] = now):
        self.database, self.keys, self.clock = database, keys, clock
        self.actor = text(actor, "who acts")

    @classmethod
    def open(cls, url: str, keys: Keys, *, actor: str | None = None, clock: Callable[[], dt.datetime] = now) -> Record:
        """Open the record at a URL, or begin it; its tables are brought up to date."""
        database = Database(url)
        try:
            revision = database.revision()
            if revision is not None and revision > HEAD:
                raise RecordError(f"the record is of a newer posterase (tables {revision}).", "update posterase.")
            if revision != HEAD:
                database.upgrade()
            record = cls(database, keys, _user() if actor is None else actor, clock)
            record._begin()
        except BaseException:
            database.close()
            raise
        return record

    def acting_as(self, actor: str) -> Record:
        """The same record in the hands of somebody else."""
        return Record(self.database, self.keys, actor, self.clock)

    def close(self) -> None:
        """Give connections back."""
        self.database.close()

    @property
    def origin(self) -> str:
        """The ledger's name."""
        return self.keys.public.name

    # --- changes

    @contextmanager
    def transaction(self, begin: Begin | None = None) -> Iterator[Transaction]:
        """A transaction with its entries of the ledger: all of it, or nothing."""
        with (begin or self.database.writing)() as connection:
            row = connection.execute(sa.select(schema.log).with_for_update()).one()
            self._check_keys(row)
            tree = Tree.from_bytes(row.size, row.peaks)
            transaction = Transaction(connection, self.keys, self.actor, row.origin, tree, self._time(row.time))
            yield transaction
            if transaction.tree.size > row.size:
                values = {"size": transaction.tree.size, "peaks": transaction.tree.to_bytes(), "time": transaction.now}
                connection.execute(schema.log.update().values(key=str(transaction.keys.public), **values))

    def _begin(self) -> None:
        """The first entry, where there is none."""
        with self.database.reading() as connection:
            row = connection.execute(sa.select(schema.log)).one_or_none()
        if row is not None:
            self._check_keys(row)
            return

        @contextmanager
        def first() -> Iterator[sa.Connection]:
            """A transaction that finds an empty tree, where no other process was faster."""
            with self.database.writing() as connection:
                self.database.alone(connection)
                if connection.execute(sa.select(schema.log)).one_or_none() is None:
                    own = {"origin": self.origin, "key": str(self.keys.public), "secret": self.keys.check}
                    connection.execute(schema.log.insert().values(id=1, size=0, peaks=b"", time="", **own))
                yield connection

        with self.transaction(first) as transaction:
            if transaction.tree.size == 0:
                transaction.append("ledger.created", {"key": str(self.keys.public)})

    def check_keys(self) -> None:
        """Refuse keys that are not those of this record, or not any more."""
        with self.database.reading() as connection:
            self._check_keys(connection.execute(sa.select(schema.log)).one())

    def _check_keys(self, row: Any) -> None:
        if row.key != str(self.keys.public):
            theirs = PublicKey.parse(row.key)
            raise KeyFileError(
                f"this ledger is signed by key {theirs.id} of {theirs.name!r}; yours is {self.keys.public.id} of "
                f"{self.origin!r}.",
                "use the keys of this record.",
            )
        if row.secret != self.keys.check:
            raise KeyFileError("pseudonyms.key is not that of this record.", "use the keys of this record.")

    def _time(self, last: str) -> dt.datetime:
        time = self.clock()
        if not last or time >= time_of(last, "time"):
            return time
        if time_of(last, "time") - time > TOLERANCE:
            raise RecordError(
                f"the clock shows {text_of(time)}, and the last entry of the ledger is of {last}.",
                "set the clock right; nothing was changed.",
            )
        return time_of(last, "time")

    def register(self, project: Project, *, refitted: bool = False, returned: bool = False) -> None:
        """Bind a project, or what has changed of it.

        Parameters
        ----------
        project
            The project.
        refitted
            Its draws were fitted anew: other draws than the last run left are taken, and the budget begins again.
        returned
            People who were erased came back, and their rows are no mistake.
        """
        owned(project)
        definition = canonical(project.to_dict()).decode()
        with self.transaction() as transaction:
            mine = schema.projects.c.name == project.name
            found = transaction.connection.execute(sa.select(schema.projects).where(mine)).one_or_none()
            body: dict[str, Any] = {
                "definition": definition_digest(project.to_dict()),
                "folder": folder_digest(project),
            }
            if found is None:
                values = {"name": project.name, "version": 1, "spent": 0.0, "runs": 0, "since": transaction.tree.size}
                transaction.connection.execute(schema.projects.insert().values(definition=definition, **values))
                transaction.append("project.registered", {**body, "version": 1}, project=project.name)
                return
            if definition_of(found.definition) == project and not (refitted or returned):
                return
            self._idle(transaction, project.name)
            changed: dict[str, Any] = {"version": found.version + 1, "definition": definition}
            if refitted:
                changed |= {"draws_digest": None, "spent": 0.0}
            if returned:
                changed |= {"since": transaction.tree.size}
            transaction.connection.execute(schema.projects.update().where(mine).values(**changed))
            body |= {"version": found.version + 1, "refitted": refitted, "returned": returned}
            transaction.append("project.changed", body, project=project.name)

    def _idle(self, transaction: Transaction, project: str) -> None:
        """Refuse to change what a run is using."""
        if transaction.connection.execute(sa.select(schema.runs).where(schema.runs.c.project == project)).first():
            raise RecordError(f"project {project!r} is being run.", "wait until that is over.")

    def add(
        self,
        project: str,
        subject: str,
        regulation: str,
        *,
        subject_request_id: str | None = None,
        received_at: str | dt.datetime | None = None,
        due_at: str | dt.datetime | None = None,
    ) -> Added:
        """Hand in a request.

        Parameters
        ----------
        project
            Whose draws to erase from.
        subject
            The subject's key, as the project's column has it. It is kept encrypted, and only until the answer.
        regulation
            `gdpr`, `ccpa` or `other`.
        subject_request_id
            A UUID of version 4; made where there is none. The same request twice is one request.
        received_at
            When it was received, by RFC 3339; now where not said.
        due_at
            When it is due, where no law or an earlier date than the law's applies.
        """
        identity = str(uuid.uuid4()) if subject_request_id is None else request_id(subject_request_id)
        law = regulation_of(regulation)
        text(subject, "subject")
        text(project, "project")
        with self.transaction() as transaction:
            if self._definition(transaction.connection, project) is None:
                raise NotFoundError(
                    f"there is no project {project!r}.", "register it: posterase requests register FILE."
                )
            before = transaction.connection.execute(
                sa.select(schema.requests).where(schema.requests.c.id == identity)
            ).one_or_none()
            received = transaction.time if received_at is None else time_of(received_at, "received_at")
            told: dict[str, Any] = {"project": project, "regulation": law, "subject": self.pseudonym(project, subject)}
            if before is not None:
                if received_at is not None:
                    told["received_at"] = text_of(received)
                if due_at is not None and before.extended_because is None:
                    told["due_at"] = text_of(time_of(due_at, "due_at"))
                same = all(getattr(before, name) == value for name, value in told.items())
                return Added("duplicate" if same else "conflict", _request(before))
            if received > transaction.time + TOLERANCE:
                raise RequestError("received_at is in the future.", "check the time and its zone.")
            values = {
                **told,
                "id": identity,
                "sealed": self.keys.sealed(subject, identity),
                "received_at": text_of(received),
                "due_at": text_of(_due(law, received, due_at, transaction.time)),
                "state": "pending",
            }
            transaction.connection.execute(schema.requests.insert().values(**values))
            body = {name: values[name] for name in ("regulation", "subject", "received_at", "due_at")}
            transaction.append("request.received", body, project=project, request=identity)
            return Added("received", _request(transaction.request(identity)))

    def extend(self, subject_request_id: str, reason: str) -> Request:
        """The longer term that the law allows, once, with the reason that the subject was told."""
        identity = request_id(subject_request_id)
        text(reason, "the reason")
        with self.transaction() as transaction:
            row = transaction.request(identity)
            self._open(row, "extended")
            self._anonymous(row, reason)
            until = due(row.regulation, time_of(row.received_at, "received_at"), extended=True)
            if until is None:
                raise RequestError("no law sets its term.", "hand it in with another due_at.")
            if row.extended_because is not None:
                raise WrongStateError(f"request {identity} was extended before.", "once is what the law allows.")
            if time_of(row.due_at, "due_at") < transaction.time:
                raise WrongStateError(
                    f"request {identity} was due {row.due_at}.", "an extension is told before that date."
                )
            transaction.update(identity, due_at=text_of(until), extended_because=reason)
            body = {"due_at": text_of(until), "reason": reason}
            transaction.append("request.extended", body, project=row.project, request=identity)
            return _request(transaction.request(identity))

    def cancel(self, subject_request_id: str, reason: str) -> Request:
        """Cancel a pending request."""
        identity = request_id(subject_request_id)
        text(reason, "the reason")
        with self.transaction() as transaction:
            row = transaction.request(identity)
            if row.state == "cancelled":
                return _request(row)
            self._open(row, "cancelled")
            self._anonymous(row, reason)
            transaction.update(identity, state="cancelled", reason=reason, sealed=None, **transaction.answered)
            transaction.append("request.cancelled", {"reason": reason}, project=row.project, request=identity)
            return _request(transaction.request(identity))

    @staticmethod
    def _open(row: Any, what: str) -> None:
        if row.state != "pending":
            raise WrongStateError(f"request {row.id} is {row.state}.", f"only one that is pending can be {what}.")

    def _anonymous(self, row: Any, reason: str) -> None:
        """The ledger keeps a reason for ever: it may not name the subject."""
        if mentions(reason, self.keys.unsealed(row.sealed, row.id)):
            raise RequestError("the reason names the subject, and the ledger keeps it.", "say it without the name.")

    def rotate(self, signer: Signer, begin: Begin | None = None) -> None:
        """Sign with another key from now on: an entry says so, and both keys sign the checkpoint after it."""
        if signer.name != self.origin:
            raise KeyFileError(f"the new key is for {signer.name!r}.", f"make one for {self.origin!r}.")
        with self.transaction(begin) as transaction:
            old, transaction.keys = self.keys, dataclasses.replace(self.keys, signer=signer)
            body = {"old": str(old.public), "new": str(signer.public)}
            transaction.append("key.rotated", body, also=(old.signer,))
        self.keys = transaction.keys

    # --- questions

    def get(self, subject_request_id: str) -> Request:
        """One request."""
        identity = request_id(subject_request_id)
        with self.database.reading() as connection:
            row = connection.execute(sa.select(schema.requests).where(schema.requests.c.id == identity)).one_or_none()
        if row is None:
            raise NotFoundError(f"there is no request {identity}.", "list them: posterase requests list.")
        return _request(row)

    def find(
        self,
        *,
        project: str | None = None,
        states: Iterable[State] = OPEN,
        due_before: dt.datetime | None = None,
        after: Request | None = None,
        limit: int = 100,
        latest_first: bool = False,
    ) -> list[Request]:
        """Requests by their dates, the earliest first; `after` the last one of a page is the next page."""
        if project is not None and not PROJECT.fullmatch(project):
            return []
        table = schema.requests.c
        order = [each.desc() if latest_first else each for each in (table.due_at, table.id)]
        query = sa.select(schema.requests).order_by(*order).limit(limit)
        if project is not None:
            query = query.where(table.project == project)
        if due_before is not None:
            query = query.where(table.due_at <= text_of(due_before))
        if after is not None:
            place, last = sa.tuple_(table.due_at, table.id), (after.due_at, after.subject_request_id)
            query = query.where(place < last if latest_first else place > last)
        with self.database.reading() as connection:  # a query a state: each is the beginning of an index
            each_state = [
                connection.execute(query.where(table.state == state)).all() for state in dict.fromkeys(states)
            ]
        found = sorted(itertools.chain(*each_state), key=lambda row: (row.due_at, row.id), reverse=latest_first)
        return [_request(row) for row in found[:limit]]

    def history(self, subject_request_id: str) -> list[ledger.Entry]:
        """What happened to a request, by whom and when."""
        identity = request_id(subject_request_id)
        query = sa.select(schema.entries.c.leaf).where(schema.entries.c.request == identity)
        with self.database.reading() as connection:
            return [ledger.Entry.parse(leaf) for leaf in connection.scalars(query.order_by(schema.entries.c.index))]

    def newest_entries(self, limit: int) -> list[ledger.Entry]:
        """The last entries of the ledger, the newest first."""
        query = sa.select(schema.entries.c.leaf).order_by(schema.entries.c.index.desc()).limit(limit)
        with self.database.reading() as connection:
            return [ledger.Entry.parse(leaf) for leaf in connection.scalars(query)]

    def certificate(self, subject_request_id: str) -> bytes:
        """The certificate of a request that was completed."""
        request = self.get(subject_request_id)
        query = sa.select(schema.certificates.c.document).where(
            schema.certificates.c.request == request.subject_request_id
        )
        with self.database.reading() as connection:
            found = connection.scalar(query)
        if found is None:
            raise WrongStateError(
                f"request {request.subject_request_id} is {request.state}: it has no certificate.",
                "only a completed request has one.",
            )
        return found

    def projects(self) -> list[Project]:
        """All that are registered."""
        with self.database.reading() as connection:
            found = connection.scalars(sa.select(schema.projects.c.definition).order_by(schema.projects.c.name))
            return [definition_of(each) for each in found]

    def project(self, name: str) -> Project:
        """One of them."""
        with self.database.reading() as connection:
            found = self._definition(connection, name)
        if found is None:
            raise NotFoundError(f"there is no project {name!r}.", "register it: posterase requests register FILE.")
        return found

    @staticmethod
    def _definition(connection: sa.Connection, name: str) -> Project | None:
        if not PROJECT.fullmatch(name):
            return None
        found = connection.scalar(sa.select(schema.projects.c.definition).where(schema.projects.c.name == name))
        return None if found is None else definition_of(found)

    def erased(self, project: str) -> Callable[[Iterable[Any]], list[bool]]:
        """A function that tells of subjects whether they were erased from a project before."""
        table, known = schema.requests.c, schema.projects.c
        since = sa.select(known.since).where(known.name == project).scalar_subquery()
        query = sa.select(table.subject).where(
            table.project == project, table.state == "completed", table.rows > 0, table.entry >= since
        )
        with self.database.reading() as connection:
            hashes = set(connection.scalars(query))
        named = functools.cache(lambda subject: self.pseudonym(project, subject) in hashes)
        return lambda subjects: [named(written(each)) for each in subjects]

    def pseudonym(self, project: str, subject: str) -> str:
        """What a subject is called in the record; another name in every project."""
        return self.keys.pseudonym(f"subject of {project}", subject.encode())

    # --- the ledger

    def checkpoint(self) -> str:
        """The newest signed checkpoint, to be kept somewhere else."""
        query = sa.select(schema.entries.c.checkpoint).order_by(schema.entries.c.index.desc()).limit(1)
        with self.database.reading() as connection:
            return connection.scalar(query) or ""

    def ledger_lines(self, within: sa.Connection | None = None) -> Generator[bytes]:
        """The lines of an exported ledger."""
        with self.database.reading() if within is None else contextlib.nullcontext(within) as connection:
            size, origin = connection.execute(sa.select(schema.log.c.size, schema.log.c.origin)).one()
            columns = schema.entries.c
            query = sa.select(columns.leaf, columns.checkpoint).where(columns.index < size).order_by(columns.index)
            with connection.execute(query.execution_options(yield_per=1000)) as rows:
                pairs = ((row.leaf, row.checkpoint) for row in rows)
                yield from ledger.exported(origin, pairs, self.keys.signer, text_of(self.clock()))

    def export(self, path: Path) -> ledger.Verified:
        """Write the ledger to a file, and verify what was written."""
        with written_whole(path) as beside:
            with beside.open("wb") as file:
                file.writelines(self.ledger_lines())
            with beside.open("rb") as file:
                return ledger.verify(file, [self.keys.public])

    def verify(self) -> ledger.Verified:
        """Verify the ledger as it is in the database, and that requests and certificates are what it says."""
        with self.database.reading() as connection:
            row = connection.execute(sa.select(schema.log)).one()
            with contextlib.closing(self.ledger_lines(connection)) as lines:
                found = ledger.verify(lines, [self.keys.public])
            if (found.size, found.root) != (row.size, Tree.from_bytes(row.size, row.peaks).root):
                raise LedgerError("the tree that the database keeps is not that of its entries.", "restore a backup.")
            check_tables(connection)
        return found


def definition_of(text: str) -> Project:
    """A project from its row."""
    try:
        return Project.from_dict(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise RecordError("the record is damaged: a project cannot be read.", "restore it from a backup.") from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}"


def _request(row: Any) -> Request:
    names = [field.name for field in dataclasses.fields(Request)][1:]
    return Request(row.id, **{name: getattr(row, name) for name in names})


def _due(law: Any, received: dt.datetime, asked: str | dt.datetime | None, time: dt.datetime) -> dt.datetime:
    """When it is due: the date that was asked for, which is no later than the law's; else the law's."""
    latest = due(law, received)
    if asked is None:
        if latest is None:
            raise RequestError(f"{law!r} sets no term.", "say when it is due: due_at.")
        return latest
    found = time_of(asked, "due_at")
    if found < time:
        raise RequestError(f"due_at is in the past: {text_of(found)}.", "check the time and its zone.")
    if latest is not None and found > latest:
        raise RequestError(
            f"due_at is after what {law} allows, {text_of(latest)}.",
            "leave it out, or extend the request with a reason.",
        )
    return found


def text(value: Any, what: str) -> str:
    """A short text, as it is."""
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST or "\0" in value:
        raise RequestError(f"{what} is empty, longer than {LONGEST} characters or no text.", "use a short text.")
    if value != value.strip():
        raise RequestError(f"{what} begins or ends with a blank.", "leave it out.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{what} is not Unicode.", "use UTF-8.") from None
    return value
