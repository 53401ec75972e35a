"""Alembic's entry: runs the steps on the connection that `migrate` opened, under one lock."""

from alembic import context
from sqlalchemy import Connection, text

# Any number that nothing else in this database locks on.
MIGRATION_LOCK = 7461_0001

connection: Connection = context.config.attributes["connection"]
connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
context.configure(connection=connection)
context.run_migrations()
