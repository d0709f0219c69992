"""The tables of the record. Whatever changes here gets a migration."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "fk": "fk_%(table_name)s_%(column_0_name)s"}
)

TIME = sa.String(20)
"""RFC 3339 in UTC, to the second: sorts as time does."""

log = sa.Table(
    "log",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("peaks", sa.LargeBinary, nullable=False),
    sa.Column("time", TIME, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column(
        "secret", sa.Text, nullable=False, comment="A keyed hash of nothing: tells whether a secret is the right one."
    ),
    comment="One row: the Merkle tree as it stands, its newest time, and the key that signs.",
)

entries = sa.Table(
    "entries",
    metadata,
    sa.Column("index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("request", sa.String(36), index=True),
    sa.Column("leaf", sa.LargeBinary, nullable=False),
    sa.Column("checkpoint", sa.Text, nullable=False),
    comment="The ledger: every entry as it was hashed, and the checkpoint after it.",
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("definition", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("since", sa.Integer, nullable=False, comment="Who was erased before this entry has come back."),
    sa.Column("code", sa.Text, comment="A digest of the code that built the model in the last run."),
    sa.Column("draws_digest", sa.String(71)),
    sa.Column("spent", sa.Float, nullable=False),
    sa.Column("runs", sa.Integer, nullable=False),
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("project", sa.String(64), sa.ForeignKey("projects.name"), nullable=False),
    sa.Column("regulation", sa.String(8), nullable=False),
    sa.Column("subject", sa.String(76), nullable=False),
    sa.Column("sealed", sa.LargeBinary, comment="The subject's key, encrypted; gone when the request is answered."),
    sa.Column("received_at", TIME, nullable=False),
    sa.Column("due_at", TIME, nullable=False),
    sa.Column("extended_because", sa.Text),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("run", sa.String(80)),
    sa.Column("rows", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Column("answered_at", TIME),
    sa.Column("entry", sa.Integer, comment="The entry of its answer."),
    sa.Column("certificate", sa.String(71)),
    sa.Index(None, "state", "due_at", "id"),
    sa.Index(None, "project", "state", "due_at", "id"),
    sa.Index(None, "project", "subject"),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.String(80), primary_key=True),
    sa.Column("project", sa.String(64), sa.ForeignKey("projects.name"), nullable=False),
    sa.Column("started_at", TIME, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column(
        "prepared", sa.LargeBinary, comment="All that completing it needs; from then on it is completed, not run again."
    ),
    comment="Runs that are not over: under way, or cut off.",
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("roles", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(71), nullable=False, comment="Of the token, which is kept nowhere."),
    sa.Column("made_at", TIME, nullable=False),
    sa.Column("expires_at", TIME),
    sa.Column("revoked_at", TIME),
    comment="Who may do what over HTTP.",
)

ended_sessions = sa.Table(
    "ended_sessions",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("until", sa.BigInteger, nullable=False, comment="When it would have ended by itself, in Unix seconds."),
    comment="Sign-ins to the dashboard that were ended before their time.",
)

orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("project", sa.String(64), sa.ForeignKey("projects.name"), nullable=False),
    sa.Column("due_within_s", sa.BigInteger, comment="Only requests that are due so soon; null: all."),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("ordered_at", TIME, nullable=False),
    sa.Column("started_at", TIME),
    sa.Column("ended_at", TIME),
    sa.Column("attempts", sa.Integer, nullable=False, comment="How many times a worker has begun it."),
    sa.Column("failed", sa.Boolean, nullable=False),
    sa.Column("said", sa.Text, nullable=False, comment="What goes on, or what came of it."),
    sa.Index(None, "ended_at", "id"),
    sa.Index(None, "project", "id"),
    comment="Runs that somebody has ordered and a worker does.",
)

certificates = sa.Table(
    "certificates",
    metadata,
    sa.Column("request", sa.String(36), sa.ForeignKey("requests.id"), primary_key=True),
    sa.Column("document", sa.LargeBinary, nullable=False),
)
