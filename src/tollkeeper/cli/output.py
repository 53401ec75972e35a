"""The output of a command: a table for people, or one JSON document for programs."""

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

SHOWN_ONCE = "The value is shown this once: it is not stored, so keep it now."
# Wide enough that no line is folded, if the output is not a terminal: one line is one row.
_PIPE_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class Record:
    """One object, shown field by field. `note` is not part of the JSON."""

    fields: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Several objects. The JSON has all their fields, the table has `columns`. With a `refusal` the
    command prints it and fails. `note` is for people."""

    rows: Sequence[Mapping[str, Any]]
    columns: tuple[str, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON document that is shown to people too, so it is indented."""

    content: Any


CommandOutput: TypeAlias = Record | Listing | Document


def show(answer: CommandOutput, *, as_json: bool) -> None:
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
    """Makes one line for standard error from a message that may contain line breaks."""
    return printable("; ".join(line.strip() for line in message.splitlines() if line.strip()))


def printable(text: str) -> str:
    """Escapes control characters: names come from callers and could carry terminal commands."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def _write_json(document: bytes) -> None:
    # Bytes, because JSON is UTF-8 whatever the encoding of the terminal.
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
    if listing.note:
        output.print(Text(listing.note, style="yellow"))


def console() -> Console:
    """Standard output. Lines are folded only on a terminal."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False)


def _flat(fields: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested objects become dotted names."""
    flat: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{name}.")
        else:
            flat.append((prefix + name, value))
    return flat


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if name == "at" or name.endswith("_at"):
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        case list() | tuple():
            return ", ".join(printable(str(item)) for item in value) or "-"
        case _:
            return printable(str(value))
