"""Running requests: one erasure for all pending ones, exactly once, whatever happens.

1. *Claim*: under the project's lock, the requests become `in_progress` and a run is written down.
2. *Erase*: the union of their rows. Where that is refused, the requests that it fails for are set apart by halving.
   New draws are written beside the old ones.
3. *Prepare*: everything that completing needs is written down. From here on the run is completed, never run again.
4. *Swap*: the new file takes the old one's name, and what else the project owns of the old rows is deleted.
5. *Complete*: states, certificates and entries of the ledger, in one transaction.

A process that dies before 3 leaves the old draws: whoever takes the lock next sets the requests back to `pending`. One
that dies after 3 is completed by whoever takes the lock next; 4 does nothing where it was done. Where the new file was
lost, or somebody has written other draws since, nothing is overwritten, and the requests are pending again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import glob
import hashlib
import json
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from posterase.draws.notes import NOT_ERASED, RESTS_ON
from posterase.errors import (
    DataChangedError,
    InputFileError,
    InvalidOptionError,
    MissingExtraError,
    NeedsDensityError,
    OutputError,
    ProjectError,
    RecordError,
    RequestError,
)
from posterase.projects.spec import Project, WasErased
from posterase.record.certificate import NOTHING_HELD, issue, notes_about
from posterase.record.consistency import definition_digest
from posterase.record.deadlines import text_of
from posterase.record.ledger.canonical import canonical
from posterase.record.owned_files import delete, digest_of, others, owned, sync
from posterase.record.record import Record, Transaction, definition_of
from posterase.record.redaction import certified, redact
from posterase.record.requests import Request
from posterase.record.store import schema
from posterase.record.store.database import Begin

NOT_REACHED = (
    "backups and copies of the draws, of their data and of anything computed from them",
    "the source that the data come from",
)
"""What no erasure here reaches."""

SAFE_TO_TELL = (
    RecordError,
    OutputError,
    InputFileError,
    MissingExtraError,
    DataChangedError,
    InvalidOptionError,
    NeedsDensityError,
)
"""Errors whose texts hold no data; of others only the kind and the place are told."""

LONGEST_SPAN = dt.timedelta(weeks=100_000)
"""That requests may be due within."""

CUT_OFF = "the run was cut off"
LOST = "what the run had written is not there any more, or the draws were changed since"
NOT_TOGETHER = "alone it would pass; together with the others it did not, so it is pending again"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a certificate tells of a fit."""

    data: bytes
    """A digest of all data; only its keyed hash is told."""
    code: str
    """A digest of the code that builds the model."""
    versions: dict[str, str]
    hardware: dict[str, Any]
    assumptions: tuple[str, ...]


class Attempt(Protocol):
    """An erasure that was tried."""

    @property
    def accepted(self) -> bool:
        """Whether its draws may be used; what follows but the reason is asked only then."""

    @property
    def reason(self) -> str:
        """Why not, without any data in it."""

    @property
    def report(self) -> dict[str, Any]:
        """The public report, as `Result.to_dict` makes it: verdict, methods, policy, the budget spent (rounded up)."""

    @property
    def data(self) -> bytes:
        """A digest of the data that are left."""

    def save(self, path: Path) -> None:
        """Write the new draws."""


class OpenedProject(Protocol):
    """Draws and their model, opened for erasing."""

    @property
    def facts(self) -> Facts:
        """What certificates tell of it."""

    def rows_of(self, subject: str) -> Sequence[int]:
        """The rows of a subject; none where there are none."""

    def erase(self, rows: Sequence[int], seed: int | None, spent: float) -> Attempt:
        """Try to erase rows. Without a seed, random numbers come from the operating system."""


Opener = Callable[[Project, WasErased], OpenedProject]
"""Opens a project's draws and model. The record knows no statistics: it is handed this."""

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a run came to."""

    run: str
    requests: list[Request]
    """As they are now."""

    def __str__(self) -> str:
        states = [each.state for each in self.requests]
        parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
        return f"{len(states)} request{'s' if len(states) != 1 else ''}: {', '.join(parts) or 'nothing to do'}"


def run(
    record: Record,
    project: str,
    opener: Opener,
    *,
    due_within: dt.timedelta | None = None,
    keep_old: bool = False,
    begun: Callable[[], None] = lambda: None,
    report: Report = lambda _: None,
) -> Ran | None:
    """Run the pending requests of a project: one erasure for all of them.

    Parameters
    ----------
    record
        The record.
    project
        Its name.
    opener
        Opens the draws and the model.
    due_within
        Only requests that are due so soon. None: all.
    keep_old
        Keep the old draws beside the new ones, and say so in the certificates.
    begun
        Is called once this process alone has the project.
    report
        Is told what goes on.

    Returns
    -------
    What came of it; None where another process is running this project.
    """
    if due_within is not None and not dt.timedelta(0) <= due_within <= LONGEST_SPAN:
        raise RequestError(f"due_within is {due_within}.", "use a span from nothing to some years.")
    record.project(project)
    with record.database.locked(project) as begin:
        if begin is None:
            return None
        begun()
        _recover(record, record.project(project), begin)
        claim = _claim(record, project, begin, due_within)
        if not claim.subjects:
            return Ran("", [])
        failed: Exception | None = None
        try:
            prepared = _prepare(record, claim, opener, keep_old, report)
            _write_down(record, begin, claim.run, prepared)
        except BaseException as error:
            with contextlib.suppress(RecordError):  # then whoever comes next does it
                _release(record, claim.project, begin, claim.run, place_of(error))
            if isinstance(error, SAFE_TO_TELL) or not isinstance(error, Exception):
                raise
            failed = RecordError(
                f"the run failed: {place_of(error)}.", "fix the cause; the requests are pending again."
            )
        if failed is not None:
            raise failed  # here, so that the error itself, whose text may hold data, is not its context
        _settle(record, claim.project, begin, prepared)
    return Ran(claim.run, [record.get(each) for each in claim.subjects])


def recover(record: Record) -> int:
    """Finish or undo what processes that died have left; how many runs that were."""
    with record.database.reading() as connection:
        names = set(connection.scalars(sa.select(schema.runs.c.project)))
    found = 0
    for name in sorted(names):
        with record.database.locked(name) as begin:
            if begin is not None:
                found += _recover(record, record.project(name), begin)
    return found


def _recover(record: Record, project: Project, begin: Begin) -> int:
    """Under the lock, every run that is written down is a dead process's."""
    with record.database.reading() as connection:
        left = connection.execute(sa.select(schema.runs).where(schema.runs.c.project == project.name)).all()
    for row in left:
        if row.prepared is None:
            _release(record, project, begin, row.id, CUT_OFF)
        else:
            _settle(record, project, begin, json.loads(record.keys.unsealed(row.prepared, row.id)))
    return len(left)


# --- 1. claim


@dataclasses.dataclass(frozen=True)
class _Claim:
    run: str
    project: Project
    definition: str
    """The digest of the project's definition, as it is stored."""
    started_at: str
    subjects: dict[str, str]
    """Of each request, in the order of their dates."""
    runs: int
    """How many runs the project has had."""
    version: int
    spent: float
    draws: str | None
    """The digest of the draws that the last erasure left; None before the first one."""
    code: str | None
    """The digest of the code of the last run."""

    @property
    def seed(self) -> int | None:
        """Another seed for each run of a project that sets one; else None."""
        return None if self.project.seed is None else self.project.seed + self.runs


def _claim(record: Record, project: str, begin: Begin, due_within: dt.timedelta | None) -> _Claim:
    table = schema.requests.c
    query = sa.select(schema.requests).where(table.project == project, table.state == "pending")
    with record.transaction(begin) as transaction:
        if due_within is not None:
            query = query.where(table.due_at <= text_of(transaction.time + due_within))
        query = query.order_by(table.due_at, table.id).with_for_update(skip_locked=True)
        rows = transaction.connection.execute(query).all()
        known = transaction.connection.execute(
            sa.select(schema.projects).where(schema.projects.c.name == project)
        ).one()
        name = f"{project}-{transaction.tree.size}"  # no other run begins at this entry
        if rows:
            values = {"id": name, "project": project, "started_at": transaction.now, "actor": record.actor}
            transaction.connection.execute(schema.runs.insert().values(**values))
        for row in rows:
            transaction.update(row.id, state="in_progress", run=name)
            transaction.append("request.started", {"run": name}, project=project, request=row.id)
        return _Claim(
            name,
            definition_of(known.definition),
            definition_digest(json.loads(known.definition)),
            transaction.now,
            {row.id: record.keys.unsealed(row.sealed, row.id) for row in rows},
            known.runs,
            known.version,
            known.spent,
            known.draws_digest,
            known.code,
        )


# --- 2. erase


def _prepare(record: Record, claim: _Claim, opener: Opener, keep_old: bool, report: Report) -> dict[str, Any]:
    """Erase, write the new draws beside the old ones, and put together all that completing will need."""
    project = claim.project
    before = _known_draws(claim)
    own = owned(project)
    beside = others(project, [*record.database.files(), *(path for paths in own.values() for path in paths)])
    report("opening the model and its draws")
    fit = opener(project, record.erased(project.name))
    union = _Union(fit, claim, report)
    union.take_all()
    attempt, subjects = union.best, list(claim.subjects.values())
    swap = None if attempt is None else _beside(project, claim.run, attempt, before, keep_old)
    kept = [] if swap is None or swap["kept_as"] is None else [f"the draws before, kept as {swap['kept_as']}"]
    prints = record.keys.pseudonym("data", fit.facts.data), fit.facts.code
    erasure = None if attempt is None else certified(attempt.report, subjects)
    draws_before = record.keys.pseudonym("draws", before.encode())  # a plain digest would let others confirm a guess
    return {
        "run": {
            "id": claim.run,
            "requests": len(union.accepted) + sum(not rows for rows in union.of.values()),
            "rows": len(union.rows),
            "started_at": claim.started_at,
            "actor": record.actor,
        },
        "project": {"name": project.name, "version": claim.version, "definition": claim.definition},
        "answers": {each: _answer(record, union, each, subjects) for each in claim.subjects},
        "swap": swap,
        "draws": claim.draws if swap is None else swap["after"],
        "spent": claim.spent if erasure is None else erasure["spent"],
        "document": {
            "erasure": erasure,
            "fingerprints": {
                "data": {
                    "before": prints[0],
                    "after": prints[0] if attempt is None else record.keys.pseudonym("data", attempt.data),
                },
                "draws": {"before": draws_before, "after": draws_before if swap is None else swap["after"]},
                "code": {"before": claim.code or prints[1], "after": prints[1]},
            },
            "versions": fit.facts.versions,
            "hardware": fit.facts.hardware,
            "assumptions": [*fit.facts.assumptions, *notes_about(erasure, RESTS_ON)],
            "purged": [f"{len(paths)} by {pattern}" for pattern, paths in own.items() if paths],
            "not_erased": [
                *kept,
                *beside,
                *notes_about(erasure, NOT_ERASED),
                *project.beyond,
                *NOT_REACHED,
            ],
        },
    }


def _known_draws(claim: _Claim) -> str:
    project = claim.project
    if not project.draws_path.is_file():
        raise ProjectError(f"there is no file {str(project.draws_path)!r}.", "put the draws back there.")
    found = digest_of(project.draws_path)
    if claim.draws is not None and claim.draws != found:
        raise ProjectError(
            f"the draws of {project.name!r} are not those that the last run left.",
            "restore them; or, where the model was fitted anew, say so: posterase requests register FILE --refitted.",
        )
    return found


@dataclasses.dataclass
class _Union:
    """The largest set of requests, found by halving, that an erasure is accepted for."""

    fit: OpenedProject
    claim: _Claim
    report: Report
    of: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    """Rows of each request."""
    best: Attempt | None = None
    accepted: list[str] = dataclasses.field(default_factory=list)
    rows: set[int] = dataclasses.field(default_factory=set)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why, of each request that is refused."""
    waits: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why, of each request that could not be answered this time: an error is no answer."""
    error: Exception | None = None

    def take_all(self) -> None:
        """All requests; where none could be answered because of errors, the last one is raised."""
        for request, subject in self.claim.subjects.items():
            try:
                self.of[request] = sorted(set(map(int, self.fit.rows_of(subject))))
            except Exception as error:  # whatever it is, it is this request's
                self._wait(request, error)
        self.take([each for each, rows in self.of.items() if rows])
        if self.error is not None and len(self.waits) == len(self.claim.subjects):
            raise self.error

    def take(self, group: list[str]) -> None:
        """Add a group of requests to those that were accepted; where it fails, one half after the other."""
        asked = self.rows.union(*(self.of[each] for each in group))
        tried = self._tried(asked, group) if asked != self.rows else self.best
        if tried is not None and tried.accepted:
            self.best, self.rows = tried, asked
            self.accepted += group
        elif len(group) > 1:
            middle = len(group) // 2
            self.take(group[:middle])
            self.take(group[middle:])
        elif tried is not None:
            self._set_apart(group[0], tried)

    def _set_apart(self, request: str, tried: Attempt) -> None:
        """Refused, but where it fails only together with others that were accepted: then it stays pending."""
        alone = self._tried(set(self.of[request]), [request]) if self.rows else tried
        if alone is not None and alone.accepted:
            self.waits[request] = NOT_TOGETHER
        elif alone is not None:
            self.refused[request] = alone.reason

    def _tried(self, rows: set[int], group: list[str]) -> Attempt | None:
        """An erasure; None where it ended in an error."""
        self.report(f"erasing {len(rows)} rows")
        try:
            return self.fit.erase(sorted(rows), self.claim.seed, self.claim.spent)
        except Exception as error:
            if len(group) == 1:
                self._wait(group[0], error)
            return None

    def _wait(self, request: str, error: Exception) -> None:
        self.waits[request], self.error = place_of(error), error


def _beside(project: Project, run: str, attempt: Attempt, before: str, keep_old: bool) -> dict[str, Any]:
    path = project.draws_path
    beside = path.with_name(f".{path.name}.{run}.new{path.suffix}")
    attempt.save(beside)
    shutil.copymode(path, beside)  # a file that others could not read stays one
    sync(beside)
    kept = f"{path.stem}.before-{run}{path.suffix}" if keep_old else None
    return {"beside": beside.name, "before": before, "after": digest_of(beside), "kept_as": kept}


def _answer(record: Record, union: _Union, request: str, subjects: list[str]) -> dict[str, Any]:
    rows = union.of.get(request, [])
    selector = record.keys.pseudonym(f"rows of {union.claim.project.name}", canonical(rows)) if rows else None
    refused = redact(union.refused[request], subjects) if request in union.refused else None
    return {"rows": len(rows), "selector": selector, "refused": refused, "waits": union.waits.get(request)}


def place_of(error: BaseException) -> str:
    """An error's kind and place. Its text may hold data."""
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(where[-1].filename).name}, line {where[-1].lineno})" if where else ""
    return f"{type(error).__name__}{place}"


# --- 3. prepare


def _write_down(record: Record, begin: Begin, run: str, prepared: dict[str, Any]) -> None:
    """From here on the run is completed."""
    sealed = record.keys.sealed(canonical(prepared).decode(), run)
    with begin() as connection:
        changed = connection.execute(schema.runs.update().where(schema.runs.c.id == run).values(prepared=sealed))
        if changed.rowcount != 1:
            raise RecordError("another process has ended this run.", "see what became of its requests; run again.")


def _release(record: Record, project: Project, begin: Begin, run: str, reason: str) -> None:
    """Undo a run: its requests are pending again, and the draws are the old ones."""
    path = project.draws_path
    with _files_told(project):
        for stray in path.parent.glob(f"*{glob.escape(f'{path.name}.{run}.new')}*"):
            stray.unlink(missing_ok=True)
    table = schema.requests.c
    with record.transaction(begin) as transaction:
        query = (
            sa.select(table.id).where(table.run == run, table.state == "in_progress").order_by(table.due_at, table.id)
        )
        for each in transaction.connection.scalars(query).all():
            _set_pending(transaction, project.name, run, each, reason)
        transaction.connection.execute(schema.runs.delete().where(schema.runs.c.id == run))


def _set_pending(transaction: Transaction, project: str, run: str, request: str, reason: str) -> None:
    transaction.update(request, state="pending", run=None)
    transaction.append("request.released", {"run": run, "reason": reason}, project=project, request=request)


# --- 4. swap, 5. complete


def _settle(record: Record, project: Project, begin: Begin, prepared: dict[str, Any]) -> None:
    """Put the new draws in place and complete the requests; what was done already is not done again."""
    run, swap, document = prepared["run"]["id"], prepared["swap"], dict(prepared["document"])
    left = 0
    if swap is not None:
        with _files_told(project):
            there = _swap(project, swap)
        if not there:
            _release(record, project, begin, run, LOST)
            return
        left = delete(project)
    if left:
        document["not_erased"] = [f"{left} of the files to delete, which could not be", *document["not_erased"]]
    document |= {"run": prepared["run"], "project": prepared["project"]}
    with record.transaction(begin) as transaction:
        for identity, answer in prepared["answers"].items():
            if answer["waits"] is not None:
                _set_pending(transaction, project.name, run, identity, answer["waits"])
            else:
                _complete(record, transaction, identity, answer, document)
        known, draws, code = schema.projects.c, prepared["draws"], document["fingerprints"]["code"]["after"]
        values = {"spent": prepared["spent"], "runs": known.runs + 1, "draws_digest": draws, "code": code}
        transaction.connection.execute(schema.projects.update().where(known.name == project.name).values(**values))
        body = {"run": run, "draws": draws, "spent": prepared["spent"], "code": code}
        transaction.append("run.completed", body, project=project.name)
        transaction.connection.execute(schema.runs.delete().where(schema.runs.c.id == run))


def _complete(
    record: Record, transaction: Transaction, request: str, answer: dict[str, Any], document: dict[str, Any]
) -> None:
    row, run, project = transaction.request(request), document["run"]["id"], document["project"]["name"]
    common = {"sealed": None, "run": None, "rows": answer["rows"], **transaction.answered}
    if answer["refused"] is not None:
        transaction.update(request, state="refused", reason=answer["refused"], **common)
        body = {"run": run, "reason": answer["refused"], "rows": answer["rows"]}
        transaction.append("request.refused", body, project=project, request=request)
        return
    made = issue(record.keys, transaction.tree, transaction.now, row, answer, document)
    transaction.connection.execute(schema.certificates.insert().values(request=request, document=made))
    digest = f"sha256:{hashlib.sha256(made).hexdigest()}"
    reason = None if answer["rows"] else NOTHING_HELD
    transaction.update(request, state="completed", reason=reason, certificate=digest, **common)
    body = {"run": run, "certificate": digest, "rows": answer["rows"], "reason": reason}
    transaction.append("request.completed", body, project=project, request=request)


def _swap(project: Project, swap: dict[str, Any]) -> bool:
    """The new file takes the old one's name, which also deletes the old one. False where it cannot be: see `LOST`."""
    path = project.draws_path
    beside = path.with_name(swap["beside"])
    if not path.parent.is_dir():
        raise ProjectError(
            f"the folder {str(path.parent)!r} is not there.", "put it back: a run has still to be completed."
        )
    now = digest_of(path) if path.exists() else swap["before"]
    if now == swap["after"]:
        beside.unlink(missing_ok=True)
        return True
    if now != swap["before"] or not beside.exists() or digest_of(beside) != swap["after"]:
        return False
    if swap["kept_as"] is not None and path.exists() and not (kept := path.with_name(swap["kept_as"])).exists():
        half = beside.with_name(f"{beside.name}.old")
        shutil.copy2(path, half)
        half.replace(kept)
    beside.replace(path)
    sync(path.parent)
    return True


@contextlib.contextmanager
def _files_told(project: Project) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, RecordError):
            raise
        raise ProjectError(
            f"files of {project.name!r} cannot be changed: {error.strerror or type(error).__name__}.",
            "fix the cause, and run again: what was begun is finished then.",
        ) from None
