"""Tests how the program shows the result of a command."""

import json

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tests.support.tables import each
from tollkeeper.entry.commands.output import Document, Listing, Record, one_line, show, show_picture


def test_record_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {
        "name": "x",
        "created_at": 0,
        "archived_at": None,
        "ready": True,
        "permissions": ["a", "b"],
        "owner": {"id": 7},
    }
    show(Record(fields, note="Mind this."), as_json=False)
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [[word.strip() for word in line] for line in shown] == [
        ["name", "x"],
        ["created_at", "1970-01-01 00:00:00 UTC"],
        ["archived_at", "-"],
        ["ready", "yes"],
        ["permissions", "a, b"],
        ["owner.id", "7"],
        ["Mind", "this."],
    ]


def test_notes_are_for_people_only(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    show(Record({"name": "é"}, note="Mind this."), as_json=True)
    assert json.loads(capsysbinary.readouterr().out) == {"name": "é"}


def test_listing(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    listing = Listing([{"id": 1, "name": "x"}], columns=("name",), summary={"ok": True})
    show(listing, as_json=True)
    assert json.loads(capsysbinary.readouterr().out) == {
        "ok": True,
        "data": [{"id": 1, "name": "x"}],
    }
    show(listing, as_json=False)
    assert b"1" not in capsysbinary.readouterr().out


def test_document_is_the_same_for_both(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    show(Document({"openapi": "3.1.0"}), as_json=True)
    first = capsysbinary.readouterr().out
    show(Document({"openapi": "3.1.0"}), as_json=False)
    assert capsysbinary.readouterr().out == first


@each(
    ("message", "shown"),
    [("a\n  b\n", "a; b"), ("\x1b[0m", r"\x1b[0m"), ("é", "é"), ("a\u2028b", "a; b")],
)
def test_a_refusal_is_one_line(message: str, shown: str) -> None:
    assert one_line(message) == shown


def test_a_table_in_a_pipe_has_neither_lines_nor_bars(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("day", "", box=SIMPLE_HEAD, title="Costs", show_footer=True)
    table.columns[0].footer = "total"
    table.add_column("USD", justify="right", footer="3")
    table.add_row("Monday", "█" * 9, Text("[1]"))
    table.add_row("Tuesday", "█", "[bold]2[/]")
    show_picture(Group(table, Text("One call is missing.", style="yellow")))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "Costs",
        "day\tUSD",
        "Monday\t[1]",
        "Tuesday\t2",
        "total\t3",
        "",
        "One call is missing.",
    ]


def test_a_record_in_a_pipe_is_not_padded(capsys: pytest.CaptureFixture[str]) -> None:
    show(Record({"id": 1, "organization_id": 22}), as_json=False)
    assert capsys.readouterr().out == "id\t1\norganization_id\t22\n"


def test_objects_in_a_list_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [{"mode": "enforcing", "matched": True}, {"mode": "monitoring", "matched": None}]
    show(Record({"verdicts": verdicts, "names": ["a", "b"], "none": []}), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "verdicts.1.mode\tenforcing",
        "verdicts.1.matched\tyes",
        "verdicts.2.mode\tmonitoring",
        "verdicts.2.matched\t-",
        "names\ta, b",
        "none\t-",
    ]
