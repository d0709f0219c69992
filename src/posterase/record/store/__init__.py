"""The database that the record is kept in, and its migrations."""
