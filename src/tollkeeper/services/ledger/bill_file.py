"""Reads a provider's bill: a CSV file with a line for each day and model, or several.

Numbers are exact: amounts are decimals of any length, never floats. A line that cannot be read is
refused with its number and its column.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import StrEnum

from tollkeeper.domain.errors import InvalidRequest

# Days times models that a bill may have. More of them are not the bill of one backend.
ENTRIES_MAX = 200_000
_COUNT = re.compile(r"\d{1,18}(\.0{1,9})?", re.ASCII)
_AMOUNT = re.compile(r"-?\$?\d{1,18}(\.\d{1,40})?([eE][+-]?\d{1,2})?", re.ASCII)
_PICOUSD_DIGITS = 12
_EPOCH = date(1970, 1, 1)
# An amount in USD is below 10^18 and has at most 40 places. A sum over any file, or its product with a
# tolerance, then has less than the hundred digits that are kept, so it is exact.
_USD_DIGITS_MAX = 18
_PLACES_MAX = 40
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])


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


Figures = dict[Figure, Decimal]


@dataclass(slots=True)
class Bill:
    """The sums of the file, by day and by the provider's name of the model."""

    entries: dict[tuple[int, str], Figures] = field(default_factory=dict)
    lines: int = 0

    def add(self, day: int, model: str, figures: Figures) -> None:
        sums = self.entries.get((day, model))
        if sums is None:
            if len(self.entries) == ENTRIES_MAX:
                raise InvalidRequest(
                    f"The bill has more than {ENTRIES_MAX} days and models.", param="file"
                )
            sums = self.entries[day, model] = dict.fromkeys(figures, Decimal(0))
        for figure, value in figures.items():
            sums[figure] = exact_sum(sums[figure], value)


def exact_sum(one: Decimal, other: Decimal) -> Decimal:
    return _EXACT.add(one, other)


def exact_difference(one: Decimal, other: Decimal) -> Decimal:
    return _EXACT.subtract(one, other)


def usd_of(picousd: int) -> Decimal:
    return _EXACT.scaleb(Decimal(picousd), -_PICOUSD_DIGITS)


def exact_product(one: Decimal, other: Decimal) -> Decimal:
    return _EXACT.multiply(one, other)


def read_bill(lines: Iterable[str], columns: BillColumns) -> Bill:
    """Reads line by line: only the sums are kept."""
    reader = csv.reader(lines, strict=True)
    rows = _rows(reader)
    header = next(rows, None)
    if header is None:
        raise InvalidRequest("The file is empty.", param="file")
    # Some programs begin the file with a byte order mark.
    header[0] = header[0].removeprefix("\ufeff")
    at = {name: _place(header, name) for name in _named(columns)}
    bill = Bill()
    for row in rows:
        if not any(row):
            continue
        if len(row) != len(header):
            raise _wrong(reader, f"has {len(row)} columns, the header has {len(header)}")
        figures = {
            figure: _number(reader, figure, name, row[at[name]])
            for figure, name in columns.figures.items()
        }
        day = _day(reader, columns.day, row[at[columns.day]])
        model = row[at[columns.model]].strip()
        if not model:
            raise _wrong(reader, f"column {columns.model}: there is no model")
        bill.add(day, model, figures)
        bill.lines += 1
    if not bill.lines:
        raise InvalidRequest("The file has a header and no lines.", param="file")
    return bill


def _rows(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as exc:
        raise _wrong(reader, f"is not CSV: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise _wrong(reader, "is not UTF-8 text") from exc


def _named(columns: BillColumns) -> list[str]:
    return [columns.day, columns.model, *columns.figures.values()]


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
