"""Tests that partitions are beside their tables, whatever schema a session looks into first."""

from datetime import UTC, date, datetime

import psycopg

from tests.support.database_clock import DatabaseClock
from tests.support.databases import own_database
from tests.support.ledger import make_database
from tollkeeper.core.months import Month
from tollkeeper.money.months import store as ledger_months
from tollkeeper.reports.activity import partitions as activity_partitions

_DAY = date(2031, 1, 31)
_MADE = {
    *(f"{table}_203101" for table in ("reservations", "resolutions", "overages")),
    *(f"{table.name}_20310131" for table in activity_partitions.DAILY_TABLES),
}


async def test_partitions_of_months_and_days_are_beside_their_tables(shared_conninfo: str) -> None:
    conninfo = own_database(shared_conninfo, "places")
    with DatabaseClock(conninfo) as clock:
        clock.set(datetime(2031, 1, 31, tzinfo=UTC))
        database = make_database(conninfo)
        await database.open()
        async with database.transaction() as connection:
            await ledger_months.add_month(connection, Month(2031, 1))
            for table in activity_partitions.DAILY_TABLES:
                await activity_partitions.add_day(connection, _DAY, table)
        await database.close()
    with psycopg.connect(conninfo) as plain:
        places = plain.execute(
            "SELECT relname, relnamespace::regnamespace::text FROM pg_class WHERE relname = ANY (%s)",
            (list(_MADE),),
        ).fetchall()
    assert dict(places) == dict.fromkeys(_MADE, "public")
