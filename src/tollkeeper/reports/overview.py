"""Balances, costs and money at risk (in flight or unsettled) of all organizations, for
operators."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.reports import DAY_S, DayRange
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.core.views import Balance, ReasonTotal
from tollkeeper.database.database import Database
from tollkeeper.money.credit import store as accounts
from tollkeeper.money.credit.store import MoneyTotals
from tollkeeper.money.unsettled import store as unsettled
from tollkeeper.money.unsettled.open_holds import OpenHolds
from tollkeeper.money.unsettled.store import ALL_UNSETTLED
from tollkeeper.money.verification import store as verification
from tollkeeper.money.verification.store import LedgerVerification
from tollkeeper.reports import sums
from tollkeeper.reports.statements.rule import model_of

_HOURS_MAX = 48


@dataclass(frozen=True, slots=True)
class MoneyAtRisk:
    totals: MoneyTotals
    cost_today_picousd: int
    unsettled: tuple[ReasonTotal, ...]
    # 0 if there is none.
    oldest_hold_s: float
    verification: LedgerVerification | None

    @property
    def unsettled_calls(self) -> int:
        return sum(total.reservations for total in self.unsettled)


class LedgerOverview:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._open_holds = OpenHolds()

    async def ledger_overview(self) -> MoneyAtRisk:
        today = self._clock() // DAY_S
        async with self._database.autocommit() as connection:
            [[cost_today]] = await sums.read(
                connection, sums.MONEY_OF_ALL, range(today, today + 1), {}, add=("amount",)
            )
            return MoneyAtRisk(
                totals=await accounts.find_totals(connection),
                cost_today_picousd=cost_today,
                unsettled=tuple(await unsettled.total_by_reason(connection, ALL_UNSETTLED)),
                oldest_hold_s=await self._open_holds.oldest_age_s(connection),
                verification=await verification.find_verification(connection),
            )

    async def costs_by_organization(self, days: DayRange) -> dict[OrganizationId, dict[int, int]]:
        """By day; without costs they're left out."""
        async with self._database.autocommit() as connection:
            rows = await sums.read(
                connection,
                sums.MONEY_OF_ALL,
                days,
                {},
                by=("organization_id", "day"),
                add=("amount",),
            )
        found: dict[OrganizationId, dict[int, int]] = {}
        for organization_id, day, amount in rows:
            found.setdefault(organization_id, {})[day] = amount
        return found

    async def costs_by_model(self, days: DayRange) -> dict[str, int]:
        """Models without costs are left out."""
        async with self._database.autocommit() as connection:
            rows = await sums.read(
                connection, sums.MONEY_OF_ALL, days, {}, by=("line_item",), add=("amount",)
            )
        found: dict[str, int] = defaultdict(int)
        for line_item, amount in rows:
            found[model_of(line_item)] += amount
        return dict(found)

    async def costs_by_hour(
        self,
        organization_id: OrganizationId,
        hours: range,
        project_ids: Sequence[ProjectId] = (),
        api_key_ids: Sequence[KeyId] = (),
    ) -> dict[int, int]:
        """By the hour of admission, since 1970. InvalidRequest beyond `_HOURS_MAX`, because the
        calls are read one by one."""
        if len(hours) > _HOURS_MAX:
            raise InvalidRequest(f"Costs by hour cover at most {_HOURS_MAX} hours.")
        async with self._database.autocommit(organization_id) as connection:
            return await sums.find_costs_by_hour(
                connection,
                organization_id,
                hours,
                project_ids=project_ids,
                api_key_ids=api_key_ids,
            )

    async def credit_list(self) -> dict[OrganizationId, Balance]:
        async with self._database.autocommit() as connection:
            return await accounts.find_all_balances(connection)
