"""Compares a provider's bill with the books, by UTC day and model."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from tollkeeper.domain.catalog import Catalog
from tollkeeper.domain.errors import NotFound
from tollkeeper.services.ledger.bill_file import (
    Bill,
    Figure,
    Figures,
    exact_difference,
    exact_product,
    exact_sum,
    usd_of,
)
from tollkeeper.storage import backend_usage
from tollkeeper.storage.backend_usage import BackendUsage, UsageQuery
from tollkeeper.storage.database import Database


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two numbers may be apart. What is within one of the two is no difference."""

    # A part of the larger one, for every figure.
    part: Decimal = Decimal(0)
    # USD, for costs.
    usd: Decimal = Decimal(0)

    def allows(self, figure: Figure, bill: Decimal, books: Decimal) -> bool:
        apart = exact_difference(bill, books).copy_abs()
        if figure is Figure.COST and apart <= self.usd:
            return True
        return apart <= exact_product(self.part, max(bill.copy_abs(), books.copy_abs()))


@dataclass(frozen=True, slots=True)
class FigurePair:
    """One figure of both sides; None where the side has nothing of that day and model."""

    figure: Figure
    bill: Decimal | None
    books: Decimal | None
    differs: bool

    @property
    def difference(self) -> Decimal:
        """What the bill has more than the books."""
        return exact_difference(self.bill or Decimal(0), self.books or Decimal(0))


@dataclass(frozen=True, slots=True)
class BillDay:
    """One day and model of the comparison."""

    day: int
    # As the provider calls it.
    model: str
    figures: tuple[FigurePair, ...]
    in_bill: bool
    in_books: bool
    # Requests of the books whose cost is not known.
    unsettled_requests: int

    @property
    def kind(self) -> str:
        if not self.in_books:
            return "missing in the books"
        if not self.in_bill:
            return "missing in the bill"
        return "differs" if any(pair.differs for pair in self.figures) else "same"


@dataclass(frozen=True, slots=True)
class BillComparison:
    first_day: int
    last_day: int
    days: tuple[BillDay, ...]
    totals: tuple[FigurePair, ...]

    @property
    def differences(self) -> tuple[BillDay, ...]:
        return tuple(found for found in self.days if found.kind != "same")


@dataclass(slots=True)
class _Books:
    figures: Figures
    requests: int = 0
    unsettled_requests: int = 0


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
        """Compares the days of the bill, or those of `days`. `names` says how the provider calls
        our models; others have the name of the catalogue. With `reported` the books' cost is what
        the backend reported in its answers, not what was charged."""
        billed = [day for day, _ in bill.entries]
        first, last = days
        first = min(billed) if first is None else first
        last = max(billed) if last is None else last
        figures = list(dict.fromkeys(name for entry in bill.entries.values() for name in entry))
        declared = _catalog_names(catalog, backend)
        if not declared:
            await self._check_backend(backend)
        names = {**declared, **names}
        primary = [model.id for model in catalog.models if model.backend == backend]
        wanted = UsageQuery(backend, first, last, tuple(primary))
        books = await self._read(wanted, names, figures, reported=reported)
        entries = {key: found for key, found in bill.entries.items() if first <= key[0] <= last}
        found = [
            _compare(key, entries.get(key), books.get(key), figures, tolerance)
            for key in sorted({*entries, *books})
        ]
        return BillComparison(first, last, tuple(found), _totals(found, figures, tolerance))

    async def _check_backend(self, backend: str) -> None:
        """A backend that no model of the catalogue has may still be in the books."""
        async with self._database.reading() as connection:
            known = await backend_usage.find_backends(connection)
        if backend not in known:
            listed = ", ".join(known) or "none"
            raise NotFound(
                f"Neither the catalogue nor the books have a backend {backend}; "
                f"backends in the books: {listed}."
            )

    async def _read(
        self,
        wanted: UsageQuery,
        names: Mapping[str, str],
        figures: list[Figure],
        *,
        reported: bool,
    ) -> dict[tuple[int, str], _Books]:
        books: dict[tuple[int, str], _Books] = {}
        async with self._database.reading() as connection:
            async for usage in backend_usage.stream_usage(connection, wanted):
                key = (usage.day, names.get(usage.model, usage.model))
                entry = books.setdefault(key, _Books(dict.fromkeys(figures, Decimal(0))))
                entry.requests += usage.requests
                entry.unsettled_requests += usage.unsettled_requests
                for figure, value in _figures(usage, reported=reported).items():
                    if figure in entry.figures:
                        entry.figures[figure] = exact_sum(entry.figures[figure], value)
        # Where all calls of a day and model were released, there is nothing to charge.
        return {key: entry for key, entry in books.items() if entry.requests}


def _catalog_names(catalog: Catalog, backend: str) -> dict[str, str]:
    """Returns the name of each of our models on this backend."""
    return {
        model.id: there.upstream_model
        for model in catalog.models
        for there in ([route.model for route in model.routes] or [model])
        if there.backend == backend
    }


def _figures(usage: BackendUsage, *, reported: bool) -> Figures:
    cost = usage.reported_cost_picousd if reported else usage.cost_picousd
    # Tokens that were read from a cache and written again are in both counts.
    uncached = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
    return {
        Figure.REQUESTS: Decimal(usage.requests),
        Figure.INPUT_TOKENS: Decimal(usage.input_tokens),
        Figure.UNCACHED_INPUT_TOKENS: Decimal(uncached),
        Figure.CACHED_INPUT_TOKENS: Decimal(usage.cached_tokens),
        Figure.CACHE_WRITE_TOKENS: Decimal(usage.cache_write_tokens),
        Figure.OUTPUT_TOKENS: Decimal(usage.output_tokens),
        Figure.COST: usd_of(cost),
    }


def _compare(
    key: tuple[int, str],
    bill: Figures | None,
    books: _Books | None,
    figures: list[Figure],
    tolerance: Tolerance,
) -> BillDay:
    pairs = [
        _pair(
            figure,
            None if bill is None else bill[figure],
            None if books is None else books.figures[figure],
            tolerance,
        )
        for figure in figures
    ]
    unsettled = 0 if books is None else books.unsettled_requests
    return BillDay(*key, tuple(pairs), bill is not None, books is not None, unsettled)


def _pair(
    figure: Figure, bill: Decimal | None, books: Decimal | None, tolerance: Tolerance
) -> FigurePair:
    if bill is None or books is None:
        return FigurePair(figure, bill, books, differs=True)
    return FigurePair(figure, bill, books, differs=not tolerance.allows(figure, bill, books))


def _totals(
    found: list[BillDay], figures: list[Figure], tolerance: Tolerance
) -> tuple[FigurePair, ...]:
    bill = dict.fromkeys(figures, Decimal(0))
    books = dict.fromkeys(figures, Decimal(0))
    for entry in found:
        for pair in entry.figures:
            bill[pair.figure] = exact_sum(bill[pair.figure], pair.bill or Decimal(0))
            books[pair.figure] = exact_sum(books[pair.figure], pair.books or Decimal(0))
    return tuple(_pair(figure, bill[figure], books[figure], tolerance) for figure in figures)
