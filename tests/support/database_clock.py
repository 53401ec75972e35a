"""Provides a database whose clock stands at the time that a test sets, for tests about midnight."""

from datetime import UTC, datetime, timedelta
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

# The program reads the time with these functions. The `search_path` finds this schema before
# PostgreSQL's own.
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
    """Sets the clock of one database. Only connections that are opened later use it."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.now = datetime.now(UTC)
        name = str(conninfo_to_dict(conninfo)["dbname"])
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(_CLOCK)
            connection.execute(
                sql.SQL(
                    "ALTER DATABASE {} SET search_path = test_clock, pg_catalog, public"
                ).format(sql.Identifier(name))
            )

    def set(self, now: datetime) -> None:
        self.now = now
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute("UPDATE test_clock.hands SET now = %s", (now,))

    def pass_time(self, **by: int) -> None:
        self.set(self.now + timedelta(**by))
