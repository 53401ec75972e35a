"""Monthly statements of organizations."""

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.months import Month
from tollkeeper.core.reports import DAY_S, TIME_MAX, DayRange
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.credit import store as accounts
from tollkeeper.money.credit.locked_account import no_organization
from tollkeeper.money.months import store as ledger_months
from tollkeeper.reports import sums
from tollkeeper.reports.statements.rule import ProjectCost, Statement, charges_of
from tollkeeper.tenants import projects_store as projects

_END_OF_DAYS = TIME_MAX // DAY_S


class Statements:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def statement_show(
        self, organization_id: OrganizationId, month: Month | None = None
    ) -> Statement:
        """No month means the current one. Starts with the current balance and subtracts later
        changes, so it only reads rows since the month began."""
        async with self._database.snapshot(organization_id) as connection:
            current = await ledger_months.read_current(connection)
            month = month or current
            if month > current:
                raise InvalidRequest(f"The month {month} has not begun.", param="month")
            balance = await accounts.find_balance(connection, organization_id)
            if balance is None:
                raise no_organization(organization_id)
            days = DayRange(first=month.first_day, end=month.next.first_day)
            charges = charges_of(await _project_costs(connection, organization_id, days))
            later = await _balance_change(connection, organization_id, from_day=days.end)
            closing = balance.granted_picousd - balance.settled_picousd - later
            grants = await accounts.find_grant_totals(connection, organization_id, days)
            unsettled = await sums.sum_unsettled(connection, organization_id, days)
            granted = sum(grant.amount_picousd for grant in grants)
            return Statement(
                organization_id,
                month,
                opening_picousd=closing
                - granted
                + sum(charge.amount_picousd for charge in charges),
                grants=tuple(grants),
                charges=tuple(charge for charge in charges if charge.adjusts_day is None),
                adjustments=tuple(charge for charge in charges if charge.adjusts_day is not None),
                closing_picousd=closing,
                final=await ledger_months.read_open_day(connection) >= days.end,
                unsettled_calls=unsettled.calls,
                unsettled_picousd=unsettled.hold_picousd,
            )


async def _project_costs(
    connection: Connection, organization_id: OrganizationId, days: DayRange
) -> list[ProjectCost]:
    found = await projects.find_all(connection, organization_id)
    names = {project.id: project.name for project in found}
    rows = await sums.read(
        connection,
        sums.MONEY,
        days,
        {"organization_id": organization_id},
        by=("project_id", "line_item"),
        add=("amount",),
    )
    return [ProjectCost(row[0], names[row[0]], *row[1:]) for row in rows]


async def _balance_change(
    connection: Connection, organization_id: OrganizationId, *, from_day: int
) -> int:
    days = DayRange(first=from_day, end=_END_OF_DAYS)
    granted = await accounts.find_grant_totals(connection, organization_id, days)
    [[charged]] = await sums.read(
        connection, sums.MONEY, days, {"organization_id": organization_id}, add=("amount",)
    )
    return sum(grant.amount_picousd for grant in granted) - int(charged)
