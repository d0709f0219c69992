"""Tokens of the service, and runs that were ordered"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("roles", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=71), nullable=False, comment="Of the token, which is kept nowhere."),
        sa.Column("made_at", sa.String(length=20), nullable=False),
        sa.Column("expires_at", sa.String(length=20), nullable=True),
        sa.Column("revoked_at", sa.String(length=20), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        comment="Who may do what over HTTP.",
    )
    op.create_table(
        "ended_sessions",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column(
            "until",
            sa.BigInteger(),
            nullable=False,
            comment="When it would have ended by itself, in Unix seconds.",
        ),
        sa.PrimaryKeyConstraint("id"),
        comment="Sign-ins to the dashboard that were ended before their time.",
    )
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column(
            "due_within_s", sa.BigInteger(), nullable=True, comment="Only requests that are due so soon; null: all."
        ),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("ordered_at", sa.String(length=20), nullable=False),
        sa.Column("started_at", sa.String(length=20), nullable=True),
        sa.Column("ended_at", sa.String(length=20), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False, comment="How many times a worker has begun it."),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("said", sa.Text(), nullable=False, comment="What goes on, or what came of it."),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_orders_project")),
        sa.PrimaryKeyConstraint("id"),
        comment="Runs that somebody has ordered and a worker does.",
    )
    with op.batch_alter_table("orders", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_orders_ended_at_id"), ["ended_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_orders_project_id"), ["project", "id"], unique=False)
