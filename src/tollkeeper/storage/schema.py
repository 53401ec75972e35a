"""What must hold before anything is served: a durable server and this code's own schema."""

from pathlib import Path
from typing import LiteralString

import psycopg

from tollkeeper.domain.errors import StateConflict, Unavailable

_VERSIONS = Path(__file__).parent / "migrations" / "versions"
# Settings without which a commit that PostgreSQL acknowledged may be lost or torn.
_DURABILITY: tuple[LiteralString, ...] = ("fsync", "full_page_writes")


def code_revision() -> str:
    """The newest step that this code knows; the files are named by their revision."""
    return max(path.name.split("_")[0] for path in _VERSIONS.glob("[0-9]*.py"))


def check_database(conninfo: str) -> None:
    """Raises with one clear line where the database cannot be trusted or does not fit this code."""
    try:
        with psycopg.connect(conninfo, connect_timeout=5) as connection:
            _check_durability(connection)
            _check_revision(connection)
    except (psycopg.OperationalError, psycopg.ProgrammingError) as exc:
        # A malformed address is a ProgrammingError of the driver.
        raise Unavailable(f"The database cannot be reached: {_reason(exc)}") from exc


def _reason(exc: psycopg.Error) -> str:
    """The last line that says what failed, without the driver's indented advice about it."""
    lines = [line for line in str(exc).splitlines() if line and not line.startswith("\t")]
    return lines[-1] if lines else type(exc).__name__


def _check_durability(connection: psycopg.Connection) -> None:
    for name in _DURABILITY:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
        assert row is not None
        if row[0] != "on":
            raise StateConflict(
                f"The database runs with {name}={row[0]}: settled money could be lost. Set it to on."
            )


def _check_revision(connection: psycopg.Connection) -> None:
    known = code_revision()
    found = database_revision(connection)
    if found is None or found < known:
        raise StateConflict(
            f"The database's schema is at {found or 'nothing'}, this code needs {known}: "
            "run `tollkeeper migrate`."
        )
    if found > known:
        raise StateConflict(
            f"The database's schema is at {found}, newer than this code's {known}: "
            "run a newer tollkeeper."
        )


def database_revision(connection: psycopg.Connection) -> str | None:
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except psycopg.errors.UndefinedTable:
        connection.rollback()
        return None
    return None if row is None else str(row[0])
