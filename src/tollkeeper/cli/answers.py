"""What a command answers, and how it is shown: a table for people, one JSON document for programs."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

SHOWN_ONCE = "The value is shown this once and is not kept: store it now."
# Where nobody looks at a terminal, nothing is folded: a line is a row.
_PIPE_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class Record:
    """One thing, field by field. `note` is for people only."""

    fields: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Several things: all fields in the JSON, some as columns. `refusal` makes the command fail."""

    rows: Sequence[Mapping[str, Any]]
    columns: tuple[str, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON document that is the answer for people too, so it is laid out for them."""

    content: Any


Answer: TypeAlias = Record | Listing | Document


def show(answer: Answer, *, as_json: bool) -> None:
    match answer:
        case Document():
            _write_json(msgspec.json.format(msgspec.json.encode(answer.content)))
        case Record():
            if as_json:
                _write_json(msgspec.json.encode(answer.fields))
            else:
                _print_record(answer)
        case Listing():
            if as_json:
                _write_json(msgspec.json.encode({**answer.summary, "data": answer.rows}))
            else:
                _print_listing(answer)


def one_line(message: str) -> str:
    """For standard error: one line, whatever a name or a library's message has in it."""
    return printable("; ".join(line.strip() for line in message.splitlines() if line.strip()))


def printable(text: str) -> str:
    """Names come from callers: a terminal must not obey what they hide in them."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def _write_json(document: bytes) -> None:
    # Bytes, because JSON is UTF-8 whatever the terminal speaks.
    sys.stdout.buffer.write(document + b"\n")
    sys.stdout.buffer.flush()


def _print_record(record: Record) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _flat(record.fields):
        table.add_row(name, Text(_cell(name, value)))
    output = console()
    output.print(table)
    if record.note:
        output.print(Text(record.note, style="yellow"))


def _print_listing(listing: Listing) -> None:
    output = console()
    if not listing.rows:
        output.print("There are none.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in listing.columns:
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for row in listing.rows:
        table.add_row(*(Text(_cell(column, row[column])) for column in listing.columns))
    output.print(table)


def console() -> Console:
    """The terminal, or a pipe, in which a line is a row."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False)


def _flat(fields: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested objects become dotted names."""
    found: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_at"):
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        case list() | tuple():
            return ", ".join(printable(str(item)) for item in value) or "-"
        case _:
            return printable(str(value))
