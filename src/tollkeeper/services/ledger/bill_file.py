"""Reads a provider's bill: a CSV file with a line for each day and model, or several.

Numbers are exact: amounts are decimals, never floats. A line that cannot be read is refused with its
number and its column.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum

from tollkeeper.domain.errors import InvalidRequest

_COUNT = re.compile(r"\d{1,18}(\.0{1,9})?", re.ASCII)
_AMOUNT = re.compile(r"-?\$?\d{1,18}(\.\d{1,40})?([eE][+-]?\d{1,2})?", re.ASCII)
_EPOCH = date(1970, 1, 1)
_USD_DIGITS_MAX = 18
_PLACES_MAX = 40


class Figure(StrEnum):
    """What can be compared."""

    REQUESTS = "requests"
    # All input, with what was read from caches and written to them.
    INPUT_TOKENS = "input_tokens"
    # Input that was neither read from a cache nor written to one.
    UNCACHED_INPUT_TOKENS = "uncached_input_tokens"
    CACHED_INPUT_TOKENS = "cached_input_tokens"
    CACHE_WRITE_TOKENS = "cache_write_tokens"
    OUTPUT_TOKENS = "output_tokens"
    # In USD.
    COST = "cost"


@dataclass(frozen=True, slots=True)
class BillColumns:
    """How the columns of the file are called."""

    day: str
    model: str
    figures: dict[Figure, str]


@dataclass(frozen=True, slots=True)
class Bill:
    figures: tuple[Figure, ...]
    # The day, the provider's name of the model, and the amounts of the figures.
    lines: Iterable[tuple[int, str, list[Decimal]]]


def read_bill(lines: Iterable[str], columns: BillColumns) -> Bill:
    """Reads line by line, while the lines of the bill are used."""
    return Bill(tuple(columns.figures), _lines(csv.reader(lines, strict=True), columns))


def _lines(
    reader: Iterator[list[str]], columns: BillColumns
) -> Iterator[tuple[int, str, list[Decimal]]]:
    rows = _rows(reader)
    header = next(rows, None)
    if header is None:
        raise InvalidRequest("The file is empty.", param="file")
    # Some programs begin the file with a byte order mark.
    header[0] = header[0].removeprefix("\ufeff")
    day_at, model_at = _place(header, columns.day), _place(header, columns.model)
    places = [(figure, name, _place(header, name)) for figure, name in columns.figures.items()]
    is_empty = True
    for row in rows:
        if not any(row):
            continue
        if len(row) != len(header):
            raise _wrong(reader, f"has {len(row)} columns, the header has {len(header)}")
        amounts = [_number(reader, figure, name, row[at]) for figure, name, at in places]
        day, model = _day(reader, columns.day, row[day_at]), row[model_at].strip()
        if not model:
            raise _wrong(reader, f"column {columns.model}: there is no model")
        is_empty = False
        yield day, model, amounts
    if is_empty:
        raise InvalidRequest("The file has a header and no lines.", param="file")


def _rows(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as exc:
        raise _wrong(reader, f"is not CSV: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise _wrong(reader, "is not UTF-8 text") from exc


def _place(header: list[str], name: str) -> int:
    places = [at for at, found in enumerate(header) if found.strip() == name]
    if len(places) == 1:
        return places[0]
    there = ", ".join(found.strip() for found in header)
    problem = "no column" if not places else "several columns"
    raise InvalidRequest(
        f"The file has {problem} {name}; its header is: {there[:500]}", param="columns"
    )


def _number(reader: Iterator[list[str]], figure: Figure, column: str, text: str) -> Decimal:
    """An empty cell is nothing, as in the exports of providers."""
    text = text.strip()
    if not text:
        return Decimal(0)
    if figure is not Figure.COST:
        if _COUNT.fullmatch(text) is None:
            raise _wrong(reader, f"column {column}: {text[:40]!r} is not a number of {figure}")
        return Decimal(text.split(".")[0])
    if _AMOUNT.fullmatch(text) is None:
        raise _wrong(reader, f"column {column}: {text[:40]!r} is not an amount in USD")
    amount = Decimal(text.replace("$", ""))
    exponent = amount.as_tuple().exponent
    assert isinstance(exponent, int), "an amount is a finite number"
    if amount.adjusted() >= _USD_DIGITS_MAX or exponent < -_PLACES_MAX:
        raise _wrong(
            reader,
            f"column {column}: {text[:40]!r} has more than {_USD_DIGITS_MAX} digits before the "
            f"point, or more than {_PLACES_MAX} after it",
        )
    return amount


def _day(reader: Iterator[list[str]], column: str, text: str) -> int:
    """A date, or a time of which the UTC day counts. A time without a zone is taken for UTC."""
    text = text.strip()
    try:
        if len(text) == len("2026-09-01"):
            found = date.fromisoformat(text)
        else:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                moment = moment.astimezone(UTC)
            found = moment.date()
    except (ValueError, OverflowError):
        problem = f"column {column}: {text[:40]!r} is not a day such as 2026-09-01"
        raise _wrong(reader, problem) from None
    return (found - _EPOCH).days


def _wrong(reader: Iterator[list[str]], problem: str) -> InvalidRequest:
    # The reader counts lines of the file, also those inside of quotes.
    line = getattr(reader, "line_num", 0)
    return InvalidRequest(f"Line {line} {problem}.", param="file")
