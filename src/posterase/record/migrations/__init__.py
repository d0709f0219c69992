"""Versions of the tables, by alembic."""
