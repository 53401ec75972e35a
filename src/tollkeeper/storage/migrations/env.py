"""Alembic's entry point: runs the migrations on the connection of `migrate`, under one lock."""

from alembic import context
from sqlalchemy import Connection, text

# The key of an advisory lock. It must differ from every other one in this database.
MIGRATION_LOCK = 7461_0001

connection: Connection = context.config.attributes["connection"]
connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
context.configure(connection=connection)
context.run_migrations()
