"""Tests that the export of a month omits no column that is needed after the rows were dropped."""

from tests.support.ledger import rows
from tollkeeper.database.database import Database
from tollkeeper.money.months.export import _COLUMNS, COLUMNS

# The process and the overage limit have no meaning after the month. The other columns are exported
# from the reservation's own row.
_LEFT_OUT = {
    "reservations": {"process_id", "overage_max"},
    "resolutions": {"organization_id", "reservation_id", "hold"},
}
_ALIASES = {"reservations": "r.", "resolutions": "d."}


async def test_every_column_is_exported(ledger_database: Database) -> None:
    exported = " ".join(expression for _, expression in _COLUMNS)
    for table, alias in _ALIASES.items():
        found = await rows(
            ledger_database,
            """
            SELECT column_name FROM information_schema.columns
            WHERE table_schema = current_schema() AND table_name = %s
            """,
            table,
        )
        names = {name for (name,) in found}
        assert names, table
        missing = {name for name in names if alias + name not in exported}
        assert missing == _LEFT_OUT[table]


def test_every_column_has_a_name_of_its_own() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS)
    expressions = [expression for _, expression in _COLUMNS]
    assert len(set(expressions)) == len(expressions)
