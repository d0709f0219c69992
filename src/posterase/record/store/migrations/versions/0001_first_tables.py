"""The record's first tables"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "entries",
        sa.Column("index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("request", sa.String(length=36), nullable=True),
        sa.Column("leaf", sa.LargeBinary(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("index"),
        comment="The ledger: every entry as it was hashed, and the checkpoint after it.",
    )
    with op.batch_alter_table("entries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_entries_request"), ["request"], unique=False)

    op.create_table(
        "log",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("peaks", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.String(length=20), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column(
            "secret",
            sa.Text(),
            nullable=False,
            comment="A keyed hash of nothing: tells whether a secret is the right one.",
        ),
        sa.PrimaryKeyConstraint("id"),
        comment="One row: the Merkle tree as it stands, its newest time, and the key that signs.",
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("since", sa.Integer(), nullable=False, comment="Who was erased before this entry has come back."),
        sa.Column(
            "code", sa.Text(), nullable=True, comment="A digest of the code that built the model in the last run."
        ),
        sa.Column("draws_digest", sa.String(length=71), nullable=True),
        sa.Column("spent", sa.Float(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("regulation", sa.String(length=8), nullable=False),
        sa.Column("subject", sa.String(length=76), nullable=False),
        sa.Column(
            "sealed",
            sa.LargeBinary(),
            nullable=True,
            comment="The subject's key, encrypted; gone when the request is answered.",
        ),
        sa.Column("received_at", sa.String(length=20), nullable=False),
        sa.Column("due_at", sa.String(length=20), nullable=False),
        sa.Column("extended_because", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("run", sa.String(length=80), nullable=True),
        sa.Column("rows", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("answered_at", sa.String(length=20), nullable=True),
        sa.Column("entry", sa.Integer(), nullable=True, comment="The entry of its answer."),
        sa.Column("certificate", sa.String(length=71), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_requests_project")),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("requests", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_requests_project_state_due_at_id"), ["project", "state", "due_at", "id"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_requests_project_subject"), ["project", "subject"], unique=False)
        batch_op.create_index(batch_op.f("ix_requests_state_due_at_id"), ["state", "due_at", "id"], unique=False)

    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.String(length=20), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column(
            "prepared",
            sa.LargeBinary(),
            nullable=True,
            comment="All that completing it needs; from then on it is completed, not run again.",
        ),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_runs_project")),
        sa.PrimaryKeyConstraint("id"),
        comment="Runs that are not over: under way, or cut off.",
    )
    op.create_table(
        "certificates",
        sa.Column("request", sa.String(length=36), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["request"], ["requests.id"], name=op.f("fk_certificates_request")),
        sa.PrimaryKeyConstraint("request"),
    )
