"""Running requests: one erasure for all that wait, exactly once, whatever happens.

1. *Claim*: under the project's lock, the requests become `in_progress` and a run is written down.
2. *Erase*: the union of their rows. Where that is refused, the requests that it fails for are set apart by halving.
   New draws are written beside the old ones.
3. *Prepare*: everything that completing needs is written down. From here on the run is completed, never run again.
4. *Swap*: the new file takes the old one's name, and what else the project owns of the old rows is deleted.
5. *Complete*: states, certificates and entries of the ledger, in one transaction.

A process that dies before 3 leaves the old draws: whoever takes the lock next sets the requests back to `pending`. One
that dies after 3 is completed by whoever takes the lock next; 4 does nothing where it was done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
import json
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from posterase.errors import (
    DataChangedError,
    InputFileError,
    InvalidOptionError,
    MissingExtraError,
    MissingGroupError,
    NeedsDensityError,
    OutputError,
    ProjectError,
    RecordError,
)
from posterase.record import schema
from posterase.record.canonical import canonical
from posterase.record.certificate import NOTHING_HELD, issue
from posterase.record.database import Begin
from posterase.record.privacy import hidden
from posterase.record.project import Project
from posterase.record.purge import delete, digest_of, owned, suspects, sync
from posterase.record.record import Record
from posterase.record.requests import Request
from posterase.record.times import text_of

NOT_REACHED = (
    "backups and copies of the draws, of their data and of anything computed from them, outside the project's folder",
    "the source that the data come from",
)
"""What no erasure here reaches."""

SAFE_TO_TELL = (
    RecordError,
    OutputError,
    InputFileError,
    MissingExtraError,
    MissingGroupError,
    DataChangedError,
    InvalidOptionError,
    NeedsDensityError,
)
"""Errors whose texts hold no data; of others only the kind and the place are told."""

CUT_OFF = "the run was cut off"


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
        """Verdict, rungs with their figures, policy; plain JSON."""

    @property
    def spent(self) -> float:
        """Of the project's budget, with this erasure."""

    @property
    def data(self) -> bytes:
        """A digest of the data that are left."""

    @property
    def not_erased(self) -> tuple[str, ...]:
        """What is still there of the rows, and whatever else is to be known, in words."""

    def save(self, path: Path) -> None:
        """Write the new draws."""


class Fit(Protocol):
    """Draws and their model, opened for erasing."""

    @property
    def facts(self) -> Facts:
        """What certificates tell of it."""

    def rows_of(self, subject: str) -> Sequence[int]:
        """The rows of a subject; none where there are none."""

    def erase(self, rows: Sequence[int], seed: int, spent: float) -> Attempt:
        """Try to erase rows."""


Erased = Callable[[Iterable[Any]], list[bool]]
"""Which of these subjects were erased from the project before."""

Opener = Callable[[Project, Erased], Fit]
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
    report: Report = lambda _: None,
) -> Ran | None:
    """Run the requests of a project that wait: one erasure for all of them.

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
    report
        Is told what goes on.

    Returns
    -------
    What came of it; None where another process is running this project.
    """
    record.project(project)
    with record.database.locked(project) as begin:
        if begin is None:
            return None
        definition = record.project(project)
        _recover(record, definition, begin)
        claim = _claim(record, definition, begin, due_within)
        if not claim.subjects:
            return Ran("", [])
        try:
            prepared = _prepare(record, definition, claim, opener, keep_old, report)
            with begin() as connection:
                sealed = record.keys.sealed(canonical(prepared).decode(), claim.run)
                mine = schema.runs.c.id == claim.run
                connection.execute(schema.runs.update().where(mine).values(prepared=sealed))
        except BaseException as error:
            with contextlib.suppress(RecordError):  # then whoever comes next does it
                _release(record, definition, begin, claim.run, _told(error))
            if isinstance(error, SAFE_TO_TELL) or not isinstance(error, Exception):
                raise
            raise RecordError(f"the run failed: {_told(error)}.", "mend that; the requests wait again.") from None
        _settle(record, definition, begin, prepared)
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
    started_at: str
    subjects: dict[str, str]
    """Of each request, in the order of their dates."""
    seed: int
    version: int
    spent: float
    draws: str | None
    """The digest of the draws that the record knows; None before the first run."""


def _claim(record: Record, project: Project, begin: Begin, due_within: dt.timedelta | None) -> _Claim:
    table = schema.requests.c
    query = sa.select(schema.requests).where(table.project == project.name, table.state == "pending")
    with record.change(begin) as change:
        if due_within is not None:
            query = query.where(table.due_at <= text_of(change.time + due_within))
        query = query.order_by(table.due_at, table.id).with_for_update(skip_locked=True)
        rows = change.connection.execute(query).all()
        known = change.connection.execute(
            sa.select(schema.projects).where(schema.projects.c.name == project.name)
        ).one()
        name = f"{project.name}-{change.tree.size}"  # no other run begins at this entry
        if rows:
            values = {"id": name, "project": project.name, "started_at": change.now, "actor": record.actor}
            change.connection.execute(schema.runs.insert().values(**values))
        for row in rows:
            change.update(row.id, state="in_progress", run=name)
            change.append("request.started", {"run": name}, project=project.name, request=row.id)
        subjects = {row.id: record.keys.unsealed(row.sealed, row.id) for row in rows}
        seed = project.seed + known.runs
        return _Claim(name, change.now, subjects, seed, known.version, known.spent, known.draws_digest)


# --- 2. erase


def _prepare(
    record: Record, project: Project, claim: _Claim, opener: Opener, keep_old: bool, report: Report
) -> dict[str, Any]:
    """Erase, write the new draws beside the old ones, and put down all that completing will need."""
    before = _known_draws(project, claim)
    purged = owned(project)
    others = [f"{each}, in the project's folder: it may hold the rows" for each in suspects(project, purged)]
    report("opening the model and its draws")
    fit = opener(project, _erased(record, project))
    rows = {each: sorted(set(map(int, fit.rows_of(subject)))) for each, subject in claim.subjects.items()}
    union = _Union(fit, rows, claim, report)
    union.take([each for each in rows if rows[each]])
    subjects = list(claim.subjects.values())
    attempt = union.best
    swap = None if attempt is None else _beside(project, claim.run, attempt, before, keep_old)
    kept = [] if swap is None or swap["kept_as"] is None else [f"the draws before, kept as {swap['kept_as']}"]
    not_erased = [*kept, *others, *(attempt.not_erased if attempt else ()), *project.beyond, *NOT_REACHED]
    after = fit.facts.data if attempt is None else attempt.data
    return {
        "run": {
            "id": claim.run,
            "requests": len(rows),
            "rows": len(union.rows),
            "seed": claim.seed,
            "started_at": claim.started_at,
            "actor": record.actor,
        },
        "project": {"name": project.name, "version": claim.version, "definition": project.digest},
        "answers": {each: _answer(record, project, union, each) for each in rows},
        "swap": swap,
        "purge": [] if attempt is None else purged,
        "spent": claim.spent if attempt is None else attempt.spent,
        "subjects": subjects,
        "document": hidden(
            {
                "erasure": None if attempt is None else attempt.report,
                "fingerprints": {
                    "data": {
                        "before": record.keys.pseudonym("data", fit.facts.data),
                        "after": record.keys.pseudonym("data", after),
                    },
                    "draws": {"before": before, "after": before if swap is None else swap["after"]},
                    "code": {"before": fit.facts.code, "after": fit.facts.code},
                },
                "versions": fit.facts.versions,
                "hardware": fit.facts.hardware,
                "assumptions": list(fit.facts.assumptions),
                "not_erased": not_erased,
            },
            subjects,
        ),
    }


def _known_draws(project: Project, claim: _Claim) -> str:
    if not project.draws_path.is_file():
        raise ProjectError(f"there is no file {str(project.draws_path)!r}.", "put the draws back there.")
    found = digest_of(project.draws_path)
    if claim.draws is not None and claim.draws != found:
        raise ProjectError(
            f"the draws of {project.name!r} are not those that the last run left.",
            "restore them; or, where the model was fitted anew, say so: posterase requests project FILE --refitted.",
        )
    return found


def _erased(record: Record, project: Project) -> Erased:
    """Which subjects were erased since the model was fitted."""
    table, known = schema.requests.c, schema.projects.c
    fitted = sa.select(known.fitted_at).where(known.name == project.name).scalar_subquery()
    query = sa.select(table.subject).where(
        table.project == project.name, table.state == "completed", table.rows > 0, table.answered_at >= fitted
    )
    with record.database.reading() as connection:
        hashes = set(connection.scalars(query))
    named = functools.cache(lambda subject: record.pseudonym(project.name, subject) in hashes)
    return lambda subjects: [named(str(each)) for each in subjects]


@dataclasses.dataclass
class _Union:
    """The largest set of requests, found by halving, that an erasure is accepted for."""

    fit: Fit
    of: dict[str, list[int]]
    """Rows of each request."""
    claim: _Claim
    report: Report
    best: Attempt | None = None
    rows: set[int] = dataclasses.field(default_factory=set)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why, of each request that was set apart."""

    def take(self, group: list[str]) -> None:
        """Add a group of requests to those that were accepted; where it fails, one half after the other."""
        asked = self.rows.union(*(self.of[each] for each in group))
        if asked == self.rows:
            return
        self.report(f"erasing {len(asked)} rows")
        tried = self.fit.erase(sorted(asked), self.claim.seed, self.claim.spent)
        if tried.accepted:
            self.best, self.rows = tried, asked
        elif len(group) == 1:
            self.refused[group[0]] = tried.reason
        else:
            middle = len(group) // 2
            self.take(group[:middle])
            self.take(group[middle:])


def _beside(project: Project, run: str, attempt: Attempt, before: str, keep_old: bool) -> dict[str, Any]:
    path = project.draws_path
    beside = path.with_name(f".{path.name}.{run}.new{path.suffix}")
    attempt.save(beside)
    sync(beside)
    kept = f"{path.stem}.before-{run}{path.suffix}" if keep_old else None
    return {"beside": beside.name, "before": before, "after": digest_of(beside), "kept_as": kept}


def _answer(record: Record, project: Project, union: _Union, request: str) -> dict[str, Any]:
    rows = union.of[request]
    selector = record.keys.pseudonym(f"rows of {project.name}", canonical(rows)) if rows else None
    return {"rows": len(rows), "selector": selector, "refused": union.refused.get(request)}


def _told(error: BaseException) -> str:
    """An error's kind and place. Its text may hold data."""
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(where[-1].filename).name}, line {where[-1].lineno})" if where else ""
    return f"{type(error).__name__}{place}"


def _release(record: Record, project: Project, begin: Begin, run: str, reason: str) -> None:
    """Undo a run that was not prepared: its requests wait again, and the draws are the old ones."""
    path = project.draws_path
    for stray in path.parent.glob(f"*{path.name}.{run}.new*"):
        stray.unlink(missing_ok=True)
    table = schema.requests.c
    with record.change(begin) as change:
        query = (
            sa.select(table.id).where(table.run == run, table.state == "in_progress").order_by(table.due_at, table.id)
        )
        for each in change.connection.scalars(query).all():
            change.update(each, state="pending", run=None)
            change.append("request.released", {"run": run, "reason": reason}, project=project.name, request=each)
        change.connection.execute(schema.runs.delete().where(schema.runs.c.id == run))


# --- 4. swap, 5. complete


def _settle(record: Record, project: Project, begin: Begin, prepared: dict[str, Any]) -> None:
    """Put the new draws in place and complete the requests; what was done already is not done again."""
    _swap(project, prepared["swap"])
    left = delete(project, prepared["purge"])
    document = prepared["document"] | {
        "run": prepared["run"],
        "project": prepared["project"],
        "purged": hidden([each for each in prepared["purge"] if each not in left], prepared["subjects"]),
    }
    document["not_erased"] = [
        *(f"{each}, which could not be deleted" for each in hidden(left, prepared["subjects"])),
        *document["not_erased"],
    ]
    run = prepared["run"]["id"]
    with record.change(begin) as change:
        for identity, answer in prepared["answers"].items():
            row = change.request(identity)
            common = {"sealed": None, "run": None, "rows": answer["rows"], "answered_at": change.now}
            if answer["refused"] is not None:
                reason = hidden(answer["refused"], prepared["subjects"])
                change.update(identity, state="refused", reason=reason, **common)
                body = {"run": run, "reason": reason, "rows": answer["rows"]}
                change.append("request.refused", body, project=project.name, request=identity)
                continue
            made = issue(record.keys, change.tree, change.now, row, answer, document)
            change.connection.execute(schema.certificates.insert().values(request=identity, document=made))
            digest = f"sha256:{hashlib.sha256(made).hexdigest()}"
            reason = None if answer["rows"] else NOTHING_HELD
            change.update(identity, state="completed", reason=reason, certificate=digest, **common)
            body = {"run": run, "certificate": digest, "rows": answer["rows"]}
            change.append("request.completed", body, project=project.name, request=identity)
        known = schema.projects.c
        values = {"spent": prepared["spent"], "runs": known.runs + 1}
        values["draws_digest"] = document["fingerprints"]["draws"]["after"]
        change.connection.execute(schema.projects.update().where(known.name == project.name).values(**values))
        change.connection.execute(schema.runs.delete().where(schema.runs.c.id == run))


def _swap(project: Project, swap: dict[str, Any] | None) -> None:
    """The new file takes the old one's name, which also deletes the old one."""
    if swap is None:
        return
    path = project.draws_path
    beside = path.with_name(swap["beside"])
    if beside.exists():
        if swap["kept_as"] is not None and not (kept := path.with_name(swap["kept_as"])).exists():
            os.link(path, kept)
        beside.replace(path)
        sync(path.parent)
    elif digest_of(path) != swap["after"]:
        raise RecordError(
            f"neither the new draws of {project.name!r} nor the file they were to replace are there.",
            "restore the project's folder from before this run, with the record of the same time.",
        )
