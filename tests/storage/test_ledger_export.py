"""The export of a month leaves nothing out: the rows may be dropped after it."""

from tests.support.ledger import rows
from tollkeeper.storage.database import Database
from tollkeeper.storage.ledger_export import _COLUMNS, COLUMNS

# The process means nothing after the month; the rest stands in the export under another name, or as
# the reservation's own.
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
