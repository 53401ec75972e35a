"""Books with months that are over: calls of the past, closed, proven and exported."""

import secrets
from dataclasses import dataclass

from msgspec.structs import replace

from tests.support.ledger import LIMITS, LedgerTenant, Process, hold_of, settlement
from tollkeeper.domain.ledger import Hold
from tollkeeper.domain.months import RANDOM_BITS, Month, request_id
from tollkeeper.services.clock import unix_now
from tollkeeper.services.ledger.bulk_resolution import BulkResolution
from tollkeeper.services.ledger.months import Export, LedgerMonths, month_at
from tollkeeper.services.ledger.reconciliation import Reconciliation
from tollkeeper.storage import ledger_months

_MS_PER_DAY = 86_400_000


def this_month() -> Month:
    return month_at(unix_now())


@dataclass(frozen=True)
class OldBooks:
    """One process whose ledger has months of the past."""

    process: Process

    @property
    def months(self) -> LedgerMonths:
        database = self.process.database
        return LedgerMonths(database, unix_now, BulkResolution(database, LIMITS))

    @property
    def reconciliation(self) -> Reconciliation:
        return Reconciliation(self.process.database, deadline_s=10**7, lease_s=10**7)

    async def begin(self, *months: Month) -> None:
        """As if upkeep had made these months when they were current."""
        for month in months:
            async with self.process.database.transaction() as connection:
                await ledger_months.add_month(connection, month)

    async def hold(self, tenant: LedgerTenant, month: Month, amount: int) -> Hold:
        """A hold of a call that arrived on the second day of the month."""
        now_ms = (month.first_day + 1) * _MS_PER_DAY
        identity = request_id(now_ms, secrets.randbits(RANDOM_BITS))
        hold = replace(hold_of(tenant, amount), id=identity)
        decision = await self.process.ledger.hold(hold)
        assert decision.refusal is None, decision
        return hold

    async def spend(self, tenant: LedgerTenant, month: Month, amount: int, cost: int) -> Hold:
        hold = await self.hold(tenant, month, amount)
        assert await self.process.ledger.resolve(settlement(hold, cost), hold)
        return hold

    async def export(self, month: Month) -> tuple[Export, bytes]:
        pieces: list[bytes] = []
        export = await self.months.ledger_export(month, pieces.append)
        await self.months.ledger_exported(export, f"{month}.csv")
        return export, b"".join(pieces)

    async def verify(self, *, full: bool = False) -> list[tuple[str, str]]:
        found = await self.reconciliation.ledger_verify(full=full)
        return [(difference.invariant, difference.subject) for difference in found]
