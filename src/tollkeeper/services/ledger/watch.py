"""Updates the ledger's metrics at an interval, not for each request to /metrics, because these
metrics need database queries."""

from collections import Counter

from tollkeeper.services.ledger import metrics
from tollkeeper.services.ledger.metrics import ReasonLabel, reason_label
from tollkeeper.services.ledger.open_holds import OpenHolds
from tollkeeper.storage import accounts, money_totals, unsettled
from tollkeeper.storage.database import Database
from tollkeeper.storage.unsettled import ALL_UNSETTLED


class LedgerWatch:
    def __init__(self, database: Database, open_holds: OpenHolds) -> None:
        self._database = database
        self._open_holds = open_holds

    async def refresh(self) -> None:
        async with self._database.autocommit() as connection:
            reasons = await unsettled.total_by_reason(connection, ALL_UNSETTLED)
            totals = await accounts.read_totals(connection)
            oldest_hold_s = await self._open_holds.oldest_age_s(connection)
            verified = await money_totals.find_verification(connection)
        counts: Counter[ReasonLabel] = Counter()
        for reason_total in reasons:
            counts[reason_label(reason_total.reason)] += reason_total.reservations
        metrics.show_unsettled(
            counts, max([0, *(reason_total.oldest_age_s for reason_total in reasons)])
        )
        metrics.show_totals(totals)
        metrics.show_stopped_accounts(totals.stopped)
        metrics.show_oldest_hold(oldest_hold_s)
        metrics.show_verification(verified)
