"""Tests that the statement that every call runs, which is written out, has every column and the
heartbeat that other code defines."""

import re

import msgspec
import pytest

from tollkeeper.database.processes import HEARTBEAT
from tollkeeper.money.holds import statements as ledger
from tollkeeper.money.holds.price_columns import PRICE_COLUMNS

_HOLDS = ledger._WRITE_HOLDS.sql
_STATES = ledger._WRITE_STATES.sql


def _names(pattern: str, sql: str) -> list[str]:
    (found,) = re.findall(pattern, sql, re.DOTALL)
    return [entry.split()[0] for entry in found.split(",")]


def test_every_column_of_a_hold_is_written_and_read() -> None:
    shared, own = ledger._HoldGroup.__struct_fields__, ledger._OwnColumns.__struct_fields__
    assert set(PRICE_COLUMNS) <= set(shared)
    assert _names(r"AS g \((.*?)\),", _HOLDS) == [
        *(name for name in shared if name not in ("holds", "price_variants")),
        "price_variants",
        "holds",
    ]
    assert _names(r"AS h \((.*?)\)\s*$", _HOLDS) == list(own)
    inserted = _names(r"INSERT INTO reservations \((.*?)\)", _HOLDS)
    assert sorted(inserted) == sorted({"process_id", "held_at", *shared, *own} - {"holds"})
    # The values come in the order of the columns.
    (values,) = re.findall(r"SELECT %s::uuid, to_timestamp.*?, (h\.id.*?)FROM", _HOLDS, re.DOTALL)
    assert (
        re.findall(r"(?:h\.)?([a-z]\w+)(?=[,\s])", values.replace("coalesce(", "")) == inserted[2:]
    )


@pytest.mark.parametrize(
    ("struct", "table"),
    [(ledger._AccountColumns, "accounts"), (ledger._ProjectColumns, "project_accounts")],
)
def test_every_column_of_a_state_is_written(struct: type[msgspec.Struct], table: str) -> None:
    fields = struct.__struct_fields__
    update = rf"UPDATE {table} a SET (.*?)\s+FROM"
    assigned = re.search(update, _STATES, re.DOTALL)
    assert assigned is not None
    values = [name for name in fields if name not in ("organization_id", "project_id")]
    assert re.findall(r"(\w+) = v\.\1", assigned[1]) == values
    typed = rf"UPDATE {table} a SET .*?AS v \((.*?)\)\s+WHERE"
    assert _names(typed, _STATES) == list(fields)


def test_the_statement_renews_the_lease_as_a_heartbeat_does() -> None:
    assert " ".join(HEARTBEAT.split()) in " ".join(_HOLDS.split())
