"""The ledger played again: what it says of every request and project, against what the tables say."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa

from posterase.errors import LedgerError
from posterase.projects.spec import Project
from posterase.record.ledger.canonical import canonical
from posterase.record.ledger.ledger import Entry
from posterase.record.store import schema

STATES = {
    "request.received": "pending",
    "request.started": "in_progress",
    "request.released": "pending",
    "request.completed": "completed",
    "request.refused": "refused",
    "request.cancelled": "cancelled",
}

OF_REQUESTS = (
    *("project", "regulation", "subject", "received_at", "due_at", "extended_because", "state", "rows", "reason"),
    *("answered_at", "entry", "certificate"),
)
OF_TOKENS = ("name", "roles", "hash", "made_at", "expires_at", "revoked_at")
OF_PROJECTS = ("definition", "folder", "version", "since", "draws_digest", "spent", "runs", "code")


def check_tables(connection: sa.Connection) -> None:
    """Refuse tables that say anything else than the ledger does."""
    requests: dict[str, dict[str, Any]] = {}
    projects: dict[str, dict[str, Any]] = {}
    tokens: dict[str, dict[str, Any]] = {}
    entries = sa.select(schema.entries.c.leaf).order_by(schema.entries.c.index).execution_options(yield_per=1000)
    with connection.execute(entries) as found:
        for (leaf,) in found:
            entry = Entry.parse(leaf)
            if entry.request is not None:
                _replay_request(requests.setdefault(entry.request, dict.fromkeys(OF_REQUESTS)), entry)
            elif entry.project is not None:
                _replay_project(projects.setdefault(entry.project, dict.fromkeys(OF_PROJECTS)), entry)
            elif entry.kind in ("token.made", "token.revoked"):
                _replay_token(tokens, entry)
    _check_requests(connection, requests)
    _check_projects(connection, projects)
    _check_tokens(connection, tokens)


def _replay_request(known: dict[str, Any], entry: Entry) -> None:
    known["project"] = entry.project
    known["state"] = STATES.get(entry.kind, known["state"])
    body = entry.body
    for name in ("regulation", "subject", "received_at", "due_at", "rows", "certificate"):
        if name in body:
            known[name] = body[name]
    if entry.kind == "request.extended":
        known["extended_because"] = body["reason"]
    if entry.kind in ("request.completed", "request.refused", "request.cancelled"):
        known |= {"reason": body.get("reason"), "answered_at": entry.time, "entry": entry.index}


def _replay_project(known: dict[str, Any], entry: Entry) -> None:
    body = entry.body
    if entry.kind == "run.completed":
        known |= {
            "draws_digest": body["draws"],
            "spent": body["spent"],
            "runs": known["runs"] + 1,
            "code": body["code"],
        }
        return
    known |= {name: body[name] for name in ("definition", "folder", "version")}
    if entry.kind == "project.registered":
        known |= {"since": entry.index, "spent": 0.0, "runs": 0}
    if body.get("refitted"):
        known |= {"draws_digest": None, "spent": 0.0}
    if body.get("returned"):
        known["since"] = entry.index


def _replay_token(known: dict[str, dict[str, Any]], entry: Entry) -> None:
    if entry.kind == "token.made":
        said = {name: entry.body[name] for name in ("name", "roles", "hash", "expires_at")}
        known[entry.body["id"]] = {**said, "made_at": entry.time, "revoked_at": None}
    else:
        known[entry.body["id"]]["revoked_at"] = entry.time


def _check_requests(connection: sa.Connection, expected: dict[str, dict[str, Any]]) -> None:
    table = sa.select(schema.requests, schema.certificates.c.document)
    joined = table.select_from(schema.requests.outerjoin(schema.certificates)).execution_options(yield_per=1000)
    with connection.execute(joined) as found:
        for row in found:
            _compare(f"request {row.id}", row._mapping, expected.pop(row.id, {}), OF_REQUESTS)
            digest = None if row.document is None else f"sha256:{hashlib.sha256(row.document).hexdigest()}"
            if digest != row.certificate:
                raise _differs(f"request {row.id}", "its certificate is not the one that the ledger names")
    for missing in expected:
        raise _differs(f"request {missing}", "it is in the ledger and not in the table")


def _check_projects(connection: sa.Connection, expected: dict[str, dict[str, Any]]) -> None:
    for row in connection.execute(sa.select(schema.projects)):
        try:
            stored = json.loads(row.definition)
            project = Project.from_dict(stored)
        except (ValueError, TypeError, AttributeError):
            raise _differs(f"project {row.name!r}", "its definition cannot be read") from None
        said = {**row._mapping, "definition": definition_digest(stored), "folder": folder_digest(project)}
        _compare(f"project {row.name!r}", said, expected.pop(row.name, {}), OF_PROJECTS)
    for missing in expected:
        raise _differs(f"project {missing!r}", "it is in the ledger and not in the table")


def _check_tokens(connection: sa.Connection, expected: dict[str, dict[str, Any]]) -> None:
    for row in connection.execute(sa.select(schema.tokens)):
        _compare(f"token {row.id}", row._mapping, expected.pop(row.id, {}), OF_TOKENS)
    for missing in expected:
        raise _differs(f"token {missing}", "it is in the ledger and not in the table")


def definition_digest(definition: dict[str, Any]) -> str:
    """Digest of a project's definition as it is stored, without the folder that it is in."""
    return f"sha256:{hashlib.sha256(canonical(definition | {'folder': ''})).hexdigest()}"


def folder_digest(project: Project) -> str:
    """Of where a project is: the ledger tells when that was changed, and not where."""
    return f"sha256:{hashlib.sha256(project.folder.encode(errors='surrogateescape')).hexdigest()}"


def _compare(what: str, said: Any, known: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if name not in known or known[name] != said[name]:
            raise _differs(what, f"its {name} is not what the ledger says")


def _differs(what: str, problem: str) -> LedgerError:
    return LedgerError(
        f"{what}: {problem}.", "somebody changed the table: restore it from a backup, and ask for the reason."
    )
