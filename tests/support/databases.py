"""Databases of their own on the shared server, for tests that verify everything in them."""

import psycopg
from psycopg.conninfo import make_conninfo

from tollkeeper.storage.migrations import migrate


def own_database(conninfo: str, name: str) -> str:
    """A new, migrated database beside the shared one."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    own = make_conninfo(conninfo, dbname=name)
    migrate(own)
    return own
