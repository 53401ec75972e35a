"""Compares a provider's bill with the ledger, by UTC day and model, in PostgreSQL."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import groupby

from tollkeeper.core.catalog import Catalog
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.database.database import Connection, Database
from tollkeeper.reports.bills import store as backend_usage
from tollkeeper.reports.bills.store import ComparedFigure, Tolerance, UsageQuery

_COUNT = re.compile(r"\d{1,18}(\.0{1,9})?", re.ASCII)
_AMOUNT = re.compile(r"-?\$?\d{1,18}(\.\d{1,40})?([eE][+-]?\d{1,2})?", re.ASCII)
_EPOCH = date(1970, 1, 1)
_USD_DIGITS_MAX = 18
_DECIMALS_MAX = 40


class Figure(StrEnum):
    REQUESTS = "requests"
    # Cache reads and writes included.
    INPUT_TOKENS = "input_tokens"
    # Neither read from the provider's prompt cache nor written to it.
    UNCACHED_INPUT_TOKENS = "uncached_input_tokens"
    CACHED_INPUT_TOKENS = "cached_input_tokens"
    CACHE_WRITE_TOKENS = "cache_write_tokens"
    OUTPUT_TOKENS = "output_tokens"
    # In USD.
    COST = "cost"


@dataclass(frozen=True, slots=True)
class BillColumns:
    day: str
    model: str
    figures: dict[Figure, str]


@dataclass(frozen=True, slots=True)
class Bill:
    figures: tuple[Figure, ...]
    # Day (since 1970), the provider's model name, one amount per figure.
    lines: Iterable[tuple[int, str, list[Decimal]]]


_DAY, _MODEL = "day", "model"


def bill_columns(columns: Mapping[str, str]) -> BillColumns:
    """`day`, `model` and at least one figure are required."""
    unknown = sorted(set(columns) - {_DAY, _MODEL, *Figure})
    if unknown:
        raise InvalidRequest(f"{unknown[0]} is not a figure that can be compared.", param="columns")
    figures = {Figure(name): column for name, column in columns.items() if name in set(Figure)}
    if _DAY not in columns or _MODEL not in columns or not figures:
        raise InvalidRequest(
            "Name the columns of the file for day, model and at least one figure, for example "
            "day=date,model=model,cost=amount",
            param="columns",
        )
    return BillColumns(columns[_DAY], columns[_MODEL], figures)


def named_values(text: str, param: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for entry in text.split(","):
        name, separator, value = (piece.strip() for piece in entry.partition("="))
        if not (name and separator and value):
            raise InvalidRequest(f"{entry!r} is not name=value.", param=param)
        values[name] = value
    return values


def tolerance_of(text: str) -> Tolerance:
    """A percentage (`0.5%`) or USD (`0.01`)."""
    number = text.removesuffix("%")
    whole, _, fraction = number.partition(".")
    is_number = text.isascii() and whole.isdigit() and (fraction or "0").isdigit()
    if not is_number or len(text) > 30:
        raise InvalidRequest(
            f"{text!r} is neither a percentage (0.5%) nor USD (0.01).", param="tolerance"
        )
    if text.endswith("%"):
        return Tolerance(part=Decimal(number).scaleb(-2))
    return Tolerance(usd=Decimal(number))


def day_number(text: str) -> int:
    """Days since 1970."""
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a day such as 2026-09-01.", param="day") from None


def shown_day(day: int) -> str:
    return str(_EPOCH + timedelta(days=day))


def plain_number(value: Decimal) -> str:
    """Exactly, without exponent and trailing zeros."""
    text = format(value, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def read_bill(lines: Iterable[str], columns: BillColumns) -> Bill:
    """The file is only read while the caller iterates over the lines."""
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
    day_at, model_at = _column_index(header, columns.day), _column_index(header, columns.model)
    figure_columns = [
        (figure, name, _column_index(header, name)) for figure, name in columns.figures.items()
    ]
    is_empty = True
    for row in rows:
        if not any(row):
            continue
        if len(row) != len(header):
            raise _invalid_line(reader, f"has {len(row)} columns, the header has {len(header)}")
        amounts = [_number(reader, figure, name, row[at]) for figure, name, at in figure_columns]
        day, model = _day(reader, columns.day, row[day_at]), row[model_at].strip()
        if not model:
            raise _invalid_line(reader, f"column {columns.model}: there is no model")
        is_empty = False
        yield day, model, amounts
    if is_empty:
        raise InvalidRequest("The file has a header and no lines.", param="file")


def _rows(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as exc:
        raise _invalid_line(reader, f"is not CSV: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise _invalid_line(reader, "is not UTF-8 text") from exc


def _column_index(header: list[str], name: str) -> int:
    indexes = [at for at, column in enumerate(header) if column.strip() == name]
    if len(indexes) == 1:
        return indexes[0]
    names = ", ".join(column.strip() for column in header)
    problem = "no column" if not indexes else "several columns"
    raise InvalidRequest(
        f"The file has {problem} {name}; its header is: {names[:500]}", param="columns"
    )


def _number(reader: Iterator[list[str]], figure: Figure, column: str, text: str) -> Decimal:
    """A count or USD. Providers export zeros as empty cells."""
    text = text.strip()
    if not text:
        return Decimal(0)
    if figure is not Figure.COST:
        if _COUNT.fullmatch(text) is None:
            raise _invalid_line(
                reader, f"column {column}: {text[:40]!r} is not a number of {figure}"
            )
        return Decimal(text.split(".")[0])
    if _AMOUNT.fullmatch(text) is None:
        raise _invalid_line(reader, f"column {column}: {text[:40]!r} is not an amount in USD")
    amount = Decimal(text.replace("$", ""))
    exponent = amount.as_tuple().exponent
    assert isinstance(exponent, int), "an amount is a finite number"
    if amount.adjusted() >= _USD_DIGITS_MAX or exponent < -_DECIMALS_MAX:
        raise _invalid_line(
            reader,
            f"column {column}: {text[:40]!r} has more than {_USD_DIGITS_MAX} digits before the "
            f"point, or more than {_DECIMALS_MAX} after it",
        )
    return amount


def _day(reader: Iterator[list[str]], column: str, text: str) -> int:
    """Of a date or a timestamp, as days since 1970. No zone means UTC."""
    text = text.strip()
    try:
        if len(text) == len("2026-09-01"):
            day = date.fromisoformat(text)
        else:
            timestamp = datetime.fromisoformat(text)
            if timestamp.tzinfo is not None:
                timestamp = timestamp.astimezone(UTC)
            day = timestamp.date()
    except (ValueError, OverflowError):
        problem = f"column {column}: {text[:40]!r} is not a day such as 2026-09-01"
        raise _invalid_line(reader, problem) from None
    return (day - _EPOCH).days


def _invalid_line(reader: Iterator[list[str]], problem: str) -> InvalidRequest:
    # Counts lines of the file, so also breaks inside quotes.
    line = getattr(reader, "line_num", 0)
    return InvalidRequest(f"Line {line} {problem}.", param="file")


# Pairs of day and model. A real bill of one backend has fewer.
ENTRIES_MAX = 200_000


@dataclass(frozen=True, slots=True)
class BillDay:
    day: int
    # As the provider calls it.
    model: str
    figures: tuple[ComparedFigure, ...]

    @property
    def unsettled_requests(self) -> int:
        return self.figures[0].unsettled_requests

    @property
    def kind(self) -> str:
        if self.figures[0].ledger is None:
            return "missing in the ledger"
        if self.figures[0].bill is None:
            return "missing in the bill"
        return "differs" if any(figure.differs for figure in self.figures) else "same"


@dataclass(slots=True)
class BillComparison:
    first_day: int
    last_day: int
    days: list[BillDay] = field(default_factory=list)
    totals: tuple[ComparedFigure, ...] = ()

    @property
    def differences(self) -> list[BillDay]:
        return [day for day in self.days if day.kind != "same"]


class BillReconciliation:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def ledger_reconcile(
        self,
        backend: str,
        bill: Bill,
        *,
        catalog: Catalog,
        names: Mapping[str, str],
        tolerance: Tolerance,
        days: tuple[int | None, int | None] = (None, None),
        reported: bool = False,
    ) -> BillComparison:
        """`days` are the first and last, None the bill's own. `names` maps our model ids to the
        provider's names; others use the catalogue's upstream name. `reported` compares the cost
        from the backend's answers, not the charged one."""
        names = {**dict(_catalog_names(catalog, backend)), **names}
        primary = tuple(model.id for model in catalog.models if model.backend == backend)
        async with self._database.transaction() as connection:
            copied = await backend_usage.copy_bill(connection, bill.lines)
            if not any(backend in model.backends for model in catalog.models):
                await _require_known(connection, backend)
            if copied.entries > ENTRIES_MAX:
                raise InvalidRequest(
                    f"The bill has more than {ENTRIES_MAX} pairs of day and model.", param="file"
                )
            first, last = days
            first = copied.first_day if first is None else first
            last = copied.last_day if last is None else last
            rows = await backend_usage.compare_bill(
                connection,
                UsageQuery(backend, first, last, primary),
                figures=bill.figures,
                names=names,
                tolerance=tolerance,
                reported=reported,
            )
        comparison = BillComparison(first, last)
        for (day, model), figures in groupby(rows, lambda figure: (figure.day, figure.model)):
            if day is None or model is None:
                comparison.totals = tuple(figures)
            else:
                comparison.days.append(BillDay(day, model, tuple(figures)))
        return comparison


async def _require_known(connection: Connection, backend: str) -> None:
    """In the ledger: the backend may be gone from the catalogue."""
    known = await backend_usage.find_backends(connection)
    if backend not in known:
        listed = ", ".join(known) or "none"
        raise NotFound(
            f"Neither the settings nor the ledger have a backend {backend}; "
            f"backends in the ledger: {listed}."
        )


def _catalog_names(catalog: Catalog, backend: str) -> Iterator[tuple[str, str]]:
    for model in catalog.models:
        for backend_model in model.by_backend:
            if backend_model.backend == backend:
                yield model.id, backend_model.upstream_model
