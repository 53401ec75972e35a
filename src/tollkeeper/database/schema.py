"""Checks before use that commits are durable and this code works with the schema."""

from typing import LiteralString

import psycopg

from tollkeeper.core.errors import StateConflict, Unavailable
from tollkeeper.database.compatibility import SchemaState, read_schema_state
from tollkeeper.database.reachability import unreachable_detail
from tollkeeper.database.revisions import code_revision
from tollkeeper.database.sessions import (
    check_pooler,
    check_session,
    current_settings,
    session_conninfo,
    session_conventions,
    session_settings,
)

__all__ = ["SchemaTooOld", "check_database", "code_revision", "find_outdated"]

_STATEMENT_TIMEOUT_S = 5.0
# Without these, a crash may lose or corrupt acknowledged commits.
_DURABILITY = ("fsync", "full_page_writes")

# Only settings that differ from their defaults.
_CONNECTIONS_ALLOWED: LiteralString = """
    SELECT min(allowed) FROM (
        SELECT current_setting('max_connections')::int AS allowed
        UNION ALL SELECT datconnlimit FROM pg_database WHERE datname = current_database()
        UNION ALL SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user
    ) AS limits
    WHERE allowed >= 0
"""
_RECOVERY_TARGETS: LiteralString = """
    SELECT name FROM pg_settings
    WHERE name IN ('recovery_target', 'recovery_target_action', 'recovery_target_lsn',
            'recovery_target_name', 'recovery_target_time', 'recovery_target_xid')
        AND setting <> boot_val AND NOT pending_restart AND NOT pg_is_in_recovery()
    ORDER BY name
"""


class SchemaTooOld(StateConflict):
    """Raised if the schema was not migrated to this version yet. Everything else was checked."""


def check_database(conninfo: str, *, before_serving: bool = False) -> SchemaState:
    """Raises a one-line error if a check fails or the database can't be reached. Only
    `before_serving`: the pooler, as it needs a second connection, and whether you can write, as
    only serving must."""
    try:
        address = session_conninfo(conninfo)
        # As on the gateway's connections.
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(session_settings(_STATEMENT_TIMEOUT_S).encode())
            check_session(connection)
            if before_serving:
                check_pooler(address, connection)
                _check_writable(connection)
            _check_durability(connection)
            return _check_schema(connection)
    except (psycopg.OperationalError, psycopg.ProgrammingError) as exc:
        # That's what the driver raises for a malformed address.
        raise Unavailable(unreachable_detail(conninfo, exc)) from exc


def _check_writable(connection: psycopg.Connection) -> None:
    row = connection.execute(
        "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')"
    ).fetchone()
    assert row is not None
    is_standby, read_only = row
    if is_standby:
        raise StateConflict("The database is read-only: this server is a standby.")
    if read_only == "on":
        raise StateConflict(
            "The database is read-only: default_transaction_read_only is on for this server, database "
            "or role."
        )


def _check_durability(connection: psycopg.Connection) -> None:
    for name, value in current_settings(connection, _DURABILITY):
        if value != "on":
            raise StateConflict(
                f"The database runs with {name}={value}, so that settled money could be lost. "
                "Set it to on."
            )


def _check_schema(connection: psycopg.Connection) -> SchemaState:
    state = read_schema_state(connection)
    if state.refusal is not None:
        raise (SchemaTooOld if state.is_older else StateConflict)(state.refusal)
    return state


def find_recovery_targets(conninfo: str) -> tuple[str, ...]:
    """What a restore left in a writable server's settings, except those that the next restart will
    change: a new standby reads the changed files."""
    with psycopg.connect(session_conninfo(conninfo), autocommit=True) as connection:
        rows = connection.execute(_RECOVERY_TARGETS).fetchall()
    return tuple(row[0] for row in rows)


def connections_allowed(conninfo: str) -> int:
    """By the server, the database and the role."""
    with psycopg.connect(session_conninfo(conninfo), autocommit=True) as connection:
        row = connection.execute(_CONNECTIONS_ALLOWED).fetchone()
    assert row is not None
    return int(row[0])


def find_outdated(conninfo: str) -> str | None:
    """In one line, if the schema is too new for this code. None if it can't be read."""
    try:
        with psycopg.connect(session_conninfo(conninfo), autocommit=True) as connection:
            connection.execute(session_conventions().encode())
            state = read_schema_state(connection)
    except psycopg.Error:
        return None
    return state.refusal if state.is_newer else None
