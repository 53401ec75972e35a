"""Money at risk, over all organizations: for operators."""

from dataclasses import dataclass

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.reports import DAY_S
from tollkeeper.domain.views import Balance, ReasonTotal
from tollkeeper.services.clock import Clock
from tollkeeper.services.ledger.open_holds import OpenHolds
from tollkeeper.storage import money_totals, unsettled
from tollkeeper.storage.database import Database
from tollkeeper.storage.money_totals import LedgerVerification, MoneyTotals
from tollkeeper.storage.unsettled import EVERYTHING


@dataclass(frozen=True, slots=True)
class MoneyAtRisk:
    totals: MoneyTotals
    cost_today_picousd: int
    unsettled: tuple[ReasonTotal, ...]
    # The age of the oldest open hold; 0 where there is none.
    oldest_hold_s: float
    verification: LedgerVerification | None

    @property
    def unsettled_calls(self) -> int:
        return sum(found.reservations for found in self.unsettled)


class LedgerOverview:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._open_holds = OpenHolds()

    async def ledger_overview(self) -> MoneyAtRisk:
        async with self._database.reading() as connection:
            return MoneyAtRisk(
                totals=await money_totals.find_totals(connection),
                cost_today_picousd=await money_totals.sum_cost_of_day(
                    connection, self._clock() // DAY_S
                ),
                unsettled=tuple(await unsettled.total_by_reason(connection, EVERYTHING)),
                oldest_hold_s=await self._open_holds.oldest_age_s(connection),
                verification=await money_totals.find_verification(connection),
            )

    async def credit_list(self) -> dict[OrganizationId, Balance]:
        """The balance of every organization."""
        async with self._database.reading() as connection:
            return await money_totals.find_all_balances(connection)
