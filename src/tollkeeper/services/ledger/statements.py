"""Creates monthly statements of organizations."""

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.months import Month
from tollkeeper.domain.reports import DayRange
from tollkeeper.domain.statements import Statement, charges_of
from tollkeeper.services.ledger.locked_account import no_organization
from tollkeeper.storage import accounts, costs, ledger_months, statements
from tollkeeper.storage.database import Database


class Statements:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def statement_show(
        self, organization_id: OrganizationId, month: Month | None = None
    ) -> Statement:
        """Returns the statement of the month (without `month`, of the current month). Starts with the
        current balance and subtracts later changes, so that only rows since the beginning of the
        month are read."""
        async with self._database.snapshot(organization_id) as connection:
            current = await ledger_months.read_current(connection)
            month = month or current
            if month > current:
                raise InvalidRequest(f"The month {month} has not begun.", param="month")
            balance = await accounts.find_balance(connection, organization_id)
            if balance is None:
                raise no_organization(organization_id)
            days = DayRange(first=month.first_day, end=month.next.first_day)
            charges = charges_of(await statements.find_costs(connection, organization_id, days))
            later = await statements.sum_balance_changes_from(connection, organization_id, days.end)
            closing = balance.granted_picousd - balance.settled_picousd - later
            grants = await statements.find_grant_totals(connection, organization_id, days)
            unsettled = await costs.sum_unsettled(connection, organization_id, days)
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
                final=await statements.read_open_day(connection) >= days.end,
                unsettled_calls=unsettled.calls,
                unsettled_picousd=unsettled.hold_picousd,
            )
