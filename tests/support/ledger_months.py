"""Provides books with past months: calls, closes, proofs and exports of these months."""

import secrets
from dataclasses import dataclass
from typing import LiteralString

from msgspec.structs import replace

from tests.support.ledger import (
    LIMITS,
    LedgerTenant,
    Process,
    hold_of,
    make_tenant,
    release,
    settlement,
)
from tollkeeper.core.months import RANDOM_BITS, Month, request_id
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.months import store as ledger_months
from tollkeeper.money.months.service import Export, LedgerMonths, month_at
from tollkeeper.money.unsettled.bulk_resolution import BulkResolution
from tollkeeper.money.unsettled.service import Reconciliation
from tollkeeper.money.verification.store import Ages

_MS_PER_DAY = 86_400_000


def this_month() -> Month:
    return month_at(unix_now())


@dataclass(frozen=True)
class OldBooks:
    """Contains one process whose ledger has past months."""

    process: Process

    @property
    def months(self) -> LedgerMonths:
        database = self.process.database
        return LedgerMonths(database, unix_now, BulkResolution(database, LIMITS))

    @property
    def reconciliation(self) -> Reconciliation:
        return Reconciliation(self.process.database, Ages(10**7, 10**7))

    async def begin(self, *months: Month) -> None:
        """Creates the partitions of these months, as the upkeep would have done at the time."""
        for month in months:
            async with self.process.database.transaction() as connection:
                await ledger_months.add_month(connection, month)

    async def hold(self, tenant: LedgerTenant, month: Month, amount: int) -> Hold:
        """Writes the hold of a call that arrived on the second day of the month."""
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


NOW = this_month()


async def busy(old: OldBooks) -> LedgerTenant:
    """Makes calls in three months: settled, with overage, released, and settled after being unsettled."""
    tenant = await make_tenant(old.process.database, credit=1000)
    for month in (NOW.plus(-3), NOW.plus(-2), NOW):
        await old.spend(tenant, month, 10, 4)
        await old.spend(tenant, month, 10, 13)
        released = await old.hold(tenant, month, 20)
        await old.process.ledger.resolve(release(released))
        marked = await old.hold(tenant, month, 30)
        await old.process.ledger.mark_unsettled(marked, "nobody knows")
        await old.process.ledger.resolve(settlement(marked, 30), marked)
    return tenant


async def end_month(old: OldBooks, month: Month) -> None:
    """Closes, verifies, exports and drops the month."""
    await old.months.ledger_close(month)
    assert await old.verify() == []
    await old.export(month)
    await old.months.ledger_drop(month)


async def despite_guards(books: OldBooks, statement: LiteralString) -> None:
    """Runs the statement without triggers, as a superuser of the database can."""
    async with books.process.database.transaction() as connection:
        await connection.execute("SET LOCAL session_replication_role TO replica")
        await connection.execute(statement)
