"""The ledger played again: what it says of every request, against what the tables say."""

from __future__ import annotations

import hashlib
from typing import Any

import sqlalchemy as sa

from posterase.errors import LedgerError
from posterase.record import schema
from posterase.record.ledger import Entry

STATES = {
    "request.received": "pending",
    "request.started": "in_progress",
    "request.released": "pending",
    "request.completed": "completed",
    "request.refused": "refused",
    "request.cancelled": "cancelled",
}

TOLD = ("regulation", "subject", "received_at", "due_at", "rows", "certificate")
"""What entries tell of a request besides its state."""


def check_requests(connection: sa.Connection) -> None:
    """Refuse tables that say anything else of a request than the ledger does."""
    expected: dict[str, dict[str, Any]] = {}
    entries = sa.select(schema.entries.c.leaf).where(schema.entries.c.request.is_not(None))
    rows = entries.order_by(schema.entries.c.index).execution_options(yield_per=1000)
    with connection.execute(rows) as found:
        for (leaf,) in found:
            entry = Entry.parse(leaf)
            assert entry.request is not None
            known = expected.setdefault(entry.request, dict.fromkeys(TOLD) | {"project": entry.project})
            known |= {name: entry.body[name] for name in TOLD if name in entry.body}
            known["state"] = STATES.get(entry.kind, known.get("state"))
    table = sa.select(schema.requests, schema.certificates.c.document)
    joined = table.select_from(schema.requests.outerjoin(schema.certificates)).execution_options(yield_per=1000)
    with connection.execute(joined) as found:
        for row in found:
            known = expected.pop(row.id, {})
            for name in (*TOLD, "project", "state"):
                if name not in known or known[name] != getattr(row, name):
                    raise _differs(row.id, f"its {name} is not what the ledger says")
            digest = None if row.document is None else f"sha256:{hashlib.sha256(row.document).hexdigest()}"
            if digest != row.certificate:
                raise _differs(row.id, "its certificate is not the one that the ledger names")
    for missing in expected:
        raise _differs(missing, "it is in the ledger and not in the table")


def _differs(request: str, problem: str) -> LedgerError:
    return LedgerError(
        f"request {request}: {problem}.",
        "somebody changed the table: restore it from a backup, and ask for the reason.",
    )
