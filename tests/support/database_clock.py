"""Provides a database whose clock stands at the time that a test sets, for tests about midnight."""

from datetime import UTC, datetime, timedelta
from typing import LiteralString, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tollkeeper.database.sessions import CONVENTIONS

# Where the program's sessions find functions and tables: first in the schema of the clock, if the database
# has one.
_SEARCH_PATH = "test_clock, pg_catalog, public"
# The program reads the time with these functions.
_CLOCK: LiteralString = """
    CREATE SCHEMA test_clock;
    CREATE TABLE test_clock.hands (now timestamptz NOT NULL);
    INSERT INTO test_clock.hands VALUES (pg_catalog.clock_timestamp());
    CREATE FUNCTION test_clock.clock_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
        AS 'SELECT now FROM test_clock.hands';
    CREATE FUNCTION test_clock.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
        AS 'SELECT now FROM test_clock.hands';
"""


class DatabaseClock:
    """Sets the clock of one database. Only connections that are opened in the `with` block use it."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.now = datetime.now(UTC)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(_CLOCK)
        # For connections of tests, which do not set the program's conventions.
        self._alter(sql.SQL("SET search_path = {}").format(sql.SQL(_SEARCH_PATH)))

    def __enter__(self) -> Self:
        self._search_path = CONVENTIONS["search_path"]
        CONVENTIONS["search_path"] = _SEARCH_PATH
        return self

    def __exit__(self, *_: object) -> None:
        """Lets later sessions find tables where they are in every other database."""
        CONVENTIONS["search_path"] = self._search_path
        self._alter(sql.SQL("RESET search_path"))

    def _alter(self, change: sql.Composable) -> None:
        name = sql.Identifier(str(conninfo_to_dict(self.conninfo)["dbname"]))
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER DATABASE {} {}").format(name, change))

    def set(self, now: datetime) -> None:
        self.now = now
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute("UPDATE test_clock.hands SET now = %s", (now,))

    def pass_time(self, **by: int) -> None:
        self.set(self.now + timedelta(**by))
