"""Checks the database before anything is served: durable settings, and the schema of this code."""

from pathlib import Path
from typing import LiteralString

import psycopg

from tollkeeper.domain.errors import StateConflict, Unavailable
from tollkeeper.storage.sessions import (
    check_pooler,
    check_session,
    session_conninfo,
    session_settings,
)

_VERSIONS = Path(__file__).parent / "migrations" / "versions"
_STATEMENT_TIMEOUT_S = 5.0
# Without these settings, a crash may lose or corrupt a commit that PostgreSQL has acknowledged.
_DURABILITY: tuple[LiteralString, ...] = ("fsync", "full_page_writes")


def code_revision() -> str:
    """The newest migration of this code. The names of the files begin with their revision."""
    return max(path.name.split("_")[0] for path in _VERSIONS.glob("[0-9]*.py"))


def check_database(conninfo: str, *, before_serving: bool = False) -> None:
    """Raises an error of one line where a check fails or the database cannot be reached. A pooler is
    looked for only `before_serving`, because that takes a second connection."""
    try:
        asked = session_conninfo(conninfo)
        # Each statement is a transaction of its own, as it is for the gateway.
        with psycopg.connect(asked, autocommit=True) as connection:
            connection.execute(session_settings(_STATEMENT_TIMEOUT_S).encode())
            check_session(connection)
            if before_serving:
                check_pooler(asked, connection)
            _check_durability(connection)
            _check_revision(connection)
    except (psycopg.OperationalError, psycopg.ProgrammingError) as exc:
        # The driver raises a ProgrammingError for a malformed address.
        raise Unavailable(f"The database cannot be reached: {_reason(exc)}") from exc


def _reason(exc: psycopg.Error) -> str:
    """The last line of the driver's message that is not indented: indented lines are advice."""
    lines = [line for line in str(exc).splitlines() if line and not line.startswith("\t")]
    return lines[-1] if lines else type(exc).__name__


def _check_durability(connection: psycopg.Connection) -> None:
    for name in _DURABILITY:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
        assert row is not None
        if row[0] != "on":
            raise StateConflict(
                f"The database runs with {name}={row[0]}, so that settled money could be lost. "
                "Set it to on."
            )


def _check_revision(connection: psycopg.Connection) -> None:
    needed = code_revision()
    current = database_revision(connection)
    if current is None or current < needed:
        raise StateConflict(
            f"The database's schema is at {current or 'nothing'}, this code needs {needed}: "
            "run `tollkeeper migrate`."
        )
    if current > needed:
        raise StateConflict(
            f"The database's schema is at {current}, newer than this code's {needed}: "
            "run a newer tollkeeper."
        )


def database_revision(connection: psycopg.Connection) -> str | None:
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except psycopg.errors.UndefinedTable:
        connection.rollback()
        return None
    return None if row is None else str(row[0])
