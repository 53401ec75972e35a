"""Prints a command's output: one JSON document with `--json`, otherwise text, whose tables are
tab-separated in a pipe."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from tollkeeper.core.errors import StateConflict

# rich takes longer to import than most commands run.
if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table

SHOWN_ONCE = "Copy the value now: it is not stored and cannot be shown again."
_LONG_TIME = "%Y-%m-%d %H:%M:%S UTC"
# For tables, which have little space. In UTC.
_SHORT_TIME = "%Y-%m-%d %H:%M"
# For listings in a pipe.
_ISO_TIME = "%Y-%m-%dT%H:%M:%SZ"
# Of an id in a table; and a whole one's length.
_ID_BEGINNING_MIN = 8
_ID_LENGTH = 36
# Each row must be one line.
_PIPE_WIDTH = 10_000


def confirm(question: str) -> bool:
    """Without a terminal, the answer is no."""
    return sys.stdin.isatty() and typer.confirm(question, err=True)


@dataclass(frozen=True, slots=True)
class Record:
    """A line for each field. `note` follows, but not in the JSON."""

    fields: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The JSON has all fields, the table only `columns`. `summary` is only in the JSON, `note` only
    after the table. A `refusal` is printed as an error, and the command fails.

    On a narrow terminal, ids in `short_ids` are cut to a beginning that commands accept. If that's
    not enough, `optional` columns are omitted, the last first.
    """

    rows: Sequence[Mapping[str, Any]]
    columns: tuple[str, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""
    note: str = ""
    short_ids: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """Always indented."""

    content: Any


CommandOutput: TypeAlias = Record | Listing | Document


def show(output: CommandOutput, *, as_json: bool) -> None:
    import msgspec

    match output:
        case Document():
            _write_json(msgspec.json.format(msgspec.json.encode(output.content)))
        case Record():
            if as_json:
                _write_json(msgspec.json.encode(output.fields))
            else:
                _print_record(output)
        case Listing():
            if as_json:
                _write_json(msgspec.json.encode({**output.summary, "data": output.rows}))
            else:
                _print_listing(output)


def one_line(message: str) -> str:
    """For standard error."""
    return printable("; ".join(line.strip() for line in message.splitlines() if line.strip()))


def printable(text: str) -> str:
    """Clients choose names, which could contain escape sequences that control the terminal."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def write_new_file(path: "Path", text: str) -> None:
    """Raises StateConflict if it exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise StateConflict(f"{path} exists already and was not changed.") from None


def _write_json(document: bytes) -> None:
    # JSON is UTF-8, even if the terminal isn't.
    sys.stdout.buffer.write(document + b"\n")
    sys.stdout.buffer.flush()


def _print_record(record: Record) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _flat(record.fields):
        table.add_row(name, Text(_cell(name, value)))
    show_picture(table)
    if record.note:
        console().print(Text(record.note, style="yellow"))


def _print_listing(listing: Listing) -> None:
    if not listing.rows:
        sys.stdout.write("There are none.\n")
        return
    if sys.stdout.isatty():
        output = console()
        output.print(fitting_table(listing, output.width))
    else:
        for line in _plain_lines(listing):
            sys.stdout.write(line + "\n")
    if listing.note:
        from rich.text import Text

        console().print(Text(listing.note, style="yellow"))


def show_picture(picture: "RenderableType") -> None:
    """Without lines and bars in a pipe, which programs read."""
    if sys.stdout.isatty():
        console().print(picture)
        return
    for line in _lines_of(picture):
        sys.stdout.write(line + "\n")


def _lines_of(picture: "RenderableType") -> Iterator[str]:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    match picture:
        case Group():
            for number, part in enumerate(picture.renderables):
                if number:
                    yield ""
                yield from _lines_of(part)
        case Table():
            # Bars have no heading, nor do a record's columns.
            columns = [one for one in picture.columns if one.header or not picture.show_header]
            if picture.title:
                yield from _lines_of(picture.title)
            rows = list(zip(*(column.cells for column in columns), strict=True))
            if picture.show_header:
                rows.insert(0, tuple(column.header for column in columns))
            if picture.show_footer:
                rows.append(tuple(column.footer for column in columns))
            for row in rows:
                yield "\t".join(" ".join(_lines_of(cell)) for cell in row)
        case str():
            yield Text.from_markup(picture).plain
        case Text():
            yield picture.plain
        case _:
            raise AssertionError(f"a {type(picture).__name__} has no form for pipes")


def _plain_lines(listing: Listing) -> Iterator[str]:
    yield "\t".join(listing.columns)
    for row in listing.rows:
        yield "\t".join(_cell(column, row[column], _ISO_TIME) for column in listing.columns)


def fitting_table(listing: Listing, width: int) -> "Table":
    """If it's wider than `width`, cuts ids and then omits columns (see `Listing`). May still be too
    wide."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    columns = {
        column: [_cell(column, row[column], _SHORT_TIME) for row in listing.rows]
        for column in listing.columns
    }
    if _table_width(columns) > width:
        for column in listing.short_ids:
            columns[column] = _beginnings(columns[column])
    for column in reversed(listing.optional):
        if _table_width(columns) > width:
            del columns[column]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _table_width(columns: Mapping[str, Sequence[str]]) -> int:
    """With three spaces between columns, and one at the end."""
    from rich.cells import cell_len

    widths = [max(cell_len(cell) for cell in (column, *cells)) for column, cells in columns.items()]
    return sum(widths) + 3 * (len(widths) - 1) + 1


def _beginnings(ids: Sequence[str]) -> list[str]:
    """To the smallest length, at least `_ID_BEGINNING_MIN`, at which they differ."""
    length = next(
        (
            length
            for length in range(_ID_BEGINNING_MIN, _ID_LENGTH)
            if len({object_id[:length] for object_id in ids}) == len(set(ids))
        ),
        _ID_LENGTH,
    )
    return [object_id[:length] for object_id in ids]


def console() -> "Console":
    """Wraps lines only on a terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False)


def _flat(fields: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested fields get dotted names, and objects in lists numbers: `verdicts.1.mode`."""
    flat: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{name}.")
        elif value and isinstance(value, list | tuple) and isinstance(value[0], Mapping):
            for number, item in enumerate(value, start=1):
                flat += _flat(item, f"{prefix}{name}.{number}.")
        else:
            flat.append((prefix + name, value))
    return flat


def _cell(name: str, value: Any, time_form: str = _LONG_TIME) -> str:
    """An integer in a field named `at` or `…_at` is in Unix seconds."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if name == "at" or name.endswith("_at"):
            return datetime.fromtimestamp(value, UTC).strftime(time_form)
        case list() | tuple():
            return ", ".join(printable(str(item)) for item in value) or "-"
        case _:
            return printable(str(value))
