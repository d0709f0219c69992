"""How alembic runs: in the connection that it is handed, in one transaction."""

from __future__ import annotations

from alembic import context

from posterase.record.store.database import VERSIONS
from posterase.record.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, version_table=VERSIONS)
context.run_migrations()
