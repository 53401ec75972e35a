"""Compares a provider's bill with the books, by UTC day and model. PostgreSQL adds up and compares."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from tollkeeper.domain.catalog import Catalog
from tollkeeper.domain.errors import InvalidRequest, NotFound
from tollkeeper.services.ledger.bill_file import Bill
from tollkeeper.storage import backend_usage
from tollkeeper.storage.backend_usage import ComparedFigure, Tolerance, UsageQuery
from tollkeeper.storage.database import Connection, Database

# Days times models that a bill may have. More of them are not the bill of one backend.
ENTRIES_MAX = 200_000


@dataclass(frozen=True, slots=True)
class BillDay:
    """One day and model of the comparison."""

    day: int
    # As the provider calls it.
    model: str
    figures: tuple[ComparedFigure, ...]

    @property
    def unsettled_requests(self) -> int:
        """Requests of the books whose cost is not known."""
        return self.figures[0].unsettled_requests

    @property
    def kind(self) -> str:
        if self.figures[0].books is None:
            return "missing in the books"
        if self.figures[0].bill is None:
            return "missing in the bill"
        return "differs" if any(pair.differs for pair in self.figures) else "same"


@dataclass(slots=True)
class BillComparison:
    first_day: int
    last_day: int
    days: list[BillDay] = field(default_factory=list)
    totals: tuple[ComparedFigure, ...] = ()

    @property
    def differences(self) -> list[BillDay]:
        return [found for found in self.days if found.kind != "same"]


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
        names = {**dict(_catalog_names(catalog, backend)), **names}
        primary = tuple(model.id for model in catalog.models if model.backend == backend)
        async with self._database.transaction() as connection:
            written = await backend_usage.copy_bill(connection, bill.lines)
            if not any(backend in model.backends for model in catalog.models):
                await _require_known(connection, backend)
            if written.entries > ENTRIES_MAX:
                raise InvalidRequest(
                    f"The bill has more than {ENTRIES_MAX} days and models.", param="file"
                )
            first, last = days
            first = written.first_day if first is None else first
            last = written.last_day if last is None else last
            rows = await backend_usage.compare_bill(
                connection,
                UsageQuery(backend, first, last, primary),
                figures=bill.figures,
                names=names,
                tolerance=tolerance,
                reported=reported,
            )
        found = BillComparison(first, last)
        for (day, model), pairs in groupby(rows, lambda pair: (pair.day, pair.model)):
            if day is None or model is None:
                found.totals = tuple(pairs)
            else:
                found.days.append(BillDay(day, model, tuple(pairs)))
        return found


async def _require_known(connection: Connection, backend: str) -> None:
    """A backend that no model of the catalogue has may still be in the books."""
    known = await backend_usage.find_backends(connection)
    if backend not in known:
        listed = ", ".join(known) or "none"
        raise NotFound(
            f"Neither the catalogue nor the books have a backend {backend}; "
            f"backends in the books: {listed}."
        )


def _catalog_names(catalog: Catalog, backend: str) -> Iterator[tuple[str, str]]:
    """Yields each of our models on this backend with its name there."""
    for model in catalog.models:
        for there in [route.model for route in model.routes] or [model]:
            if there.backend == backend:
                yield model.id, there.upstream_model
