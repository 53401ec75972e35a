"""Tests that the amounts of monthly statements equal the ledger exactly, and that each statement
continues the statement of the month before."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from tests.support import stripe_events as stripe
from tests.support.books import MODEL, USD, Books
from tests.support.ledger import LedgerTenant, held, make_tenant, run
from tests.support.ledger_months import OldBooks, end_month, this_month
from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.months import Month
from tollkeeper.core.runtime.csv_text import csv_lines
from tollkeeper.money.payments.stripe_events import read_event
from tollkeeper.reports.statements.rule import (
    Charge,
    ProjectCost,
    Statement,
    charges_of,
    statement_rows,
)
from tollkeeper.reports.statements.service import Statements

NOW = this_month()
# Three months ago. The fixture `old` has created the partitions of this month.
BEFORE = NOW.plus(-3)


async def test_a_month_shows_grants_charges_and_what_is_unsettled(books: Books) -> None:
    other = await books.second_project()
    await books.spend(3 * USD, USD + 1)
    await books.spend(2 * USD, 2 * USD + 5)  # with overage
    await other.spend(USD, 7)
    await books.leave_unsettled(await books.hold(4 * USD))
    await books.hold(5 * USD)
    await books.grant(-6 * USD)
    payment = stripe.new_payment()
    for body in (
        stripe.succeeded(payment, 1250, books.organization),
        stripe.charge_refunded(payment, 50),
    ):
        await books.services.payments.payment_receive(read_event(body))
    found = await books.services.statements.statement_show(books.organization)
    assert (found.month, found.final, found.opening_picousd) == (NOW, False, 0)
    assert {grant.kind: (grant.count, grant.amount_picousd) for grant in found.grants} == {
        "grant": (1, 100 * USD),
        "payment": (1, 1250 * USD // 100),
        "refund": (1, -USD // 2),
        "withdrawal": (1, -6 * USD),
    }
    assert {
        (charge.project_id, charge.model): charge.amount_picousd for charge in found.charges
    } == {
        (books.project, MODEL): 3 * USD + 6,
        (other.project, MODEL): 7,
    }
    assert found.adjustments == ()
    balance = await books.balance()
    assert found.closing_picousd == balance["granted"] - balance["settled"]
    assert (found.unsettled_calls, found.unsettled_picousd) == (1, 4 * USD)
    _assert_adds_up(found)


async def test_a_statement_has_only_its_organization(books: Books) -> None:
    await books.spend(3 * USD, USD)
    other = await books.services.organizations.organization_create(f"Other {uuid4()}")
    found = await books.services.statements.statement_show(other.id)
    assert (found.opening_picousd, found.grants, found.charges, found.closing_picousd) == (
        *(0, (), ()),
        0,
    )


async def test_a_month_that_has_not_begun_and_an_unknown_organization(books: Books) -> None:
    statements = books.services.statements
    with pytest.raises(InvalidRequest, match="has not begun"):
        await statements.statement_show(books.organization, NOW.next)
    with pytest.raises(NotFound):
        await statements.statement_show(OrganizationId(uuid4()), NOW)
    found = await statements.statement_show(books.organization, Month(1970, 1))
    assert (found.opening_picousd, found.closing_picousd, found.grants) == (0, 0, ())


def test_line_items_are_read_whatever_a_model_is_called() -> None:
    project = ProjectId(Month(2026, 1).first_id)
    costs = [
        ProjectCost(project, "Site", line_item, 1)
        for line_item in (
            "a, prompt",
            "a, completion",
            "a, prompt, adjustment of 2026-01-31",
            "b, adjustment of 2026-01-31, prompt",
            "c\nd, request",
        )
    ]
    assert [
        (found.model, found.adjusts_day, found.amount_picousd) for found in charges_of(costs)
    ] == [
        ("a", None, 2),
        ("a", "2026-01-31", 1),
        ("b, adjustment of 2026-01-31", None, 1),
        ("c\nd", None, 1),
    ]


def test_a_table_adds_up_and_is_harmless_in_a_spreadsheet() -> None:
    charge = Charge(ProjectId(NOW.first_id), "=SUM(A1)", "m", None, 5)
    made = Statement(
        *(OrganizationId(NOW.first_id), NOW, 7, (), (charge,), (), 2),
        final=True,
        unsettled_calls=0,
        unsettled_picousd=0,
    )
    _assert_adds_up(made)
    assert ",'=SUM(A1),m,,-0.000000000005\n" in csv_lines(statement_rows(made))


async def test_a_dropped_month_keeps_its_statement_and_gets_adjustments_later(
    old: OldBooks,
) -> None:
    database = old.process.database
    tenant = await make_tenant(database, credit=1000)
    await _date_grants(old, tenant, BEFORE)
    await old.spend(tenant, BEFORE, 10, 9)
    await _date_calls(old, tenant)
    late = await held(old.process, tenant, 50)
    await old.process.ledger.mark_unsettled(late, "reset")
    statements = Statements(database)
    before = await statements.statement_show(tenant.organization_id, BEFORE)
    assert (before.opening_picousd, before.closing_picousd, before.final) == (0, 991, False)
    await end_month(old, BEFORE)
    # This call was admitted in the closed month, and its cost becomes known only now.
    await run(
        database,
        "UPDATE reservations SET held_at = to_timestamp(%s::bigint * 86400) WHERE id = %s",
        BEFORE.first_day + 3,
        late.id,
    )
    await old.reconciliation.ledger_resolve(late.id, settle_picousd=40)
    after = await statements.statement_show(tenant.organization_id, BEFORE)
    assert after.final
    assert (after.charges, after.closing_picousd) == (before.charges, 991)
    current = await statements.statement_show(tenant.organization_id, NOW)
    [adjustment] = current.adjustments
    day = datetime.fromtimestamp((BEFORE.first_day + 3) * 86400, UTC).strftime("%Y-%m-%d")
    assert (adjustment.adjusts_day, adjustment.amount_picousd) == (day, 40)
    assert (current.opening_picousd, current.closing_picousd) == (991, 951)
    _assert_adds_up(current)


def _assert_adds_up(found: Statement) -> None:
    assert found.closing_picousd == (
        found.opening_picousd
        + found.granted_picousd
        - found.charged_picousd
        - found.adjusted_picousd
    )


async def _date_grants(old: OldBooks, tenant: LedgerTenant, month: Month) -> None:
    """Moves the grants of the last hour to the first day of the month."""
    await run(
        old.process.database,
        """
        UPDATE grants SET granted_at = to_timestamp(%s::bigint * 86400)
        WHERE organization_id = %s AND granted_at > now() - interval '1 hour'
        """,
        month.first_day,
        tenant.organization_id,
    )


async def _date_calls(old: OldBooks, tenant: LedgerTenant) -> None:
    """Moves calls from today to the day of their ids, the second day of the month BEFORE."""
    database = old.process.database
    day = BEFORE.first_day + 1
    for statement in (
        "UPDATE reservations SET held_at = to_timestamp(%s::bigint * 86400) WHERE organization_id = %s",
        "UPDATE resolutions SET day = %s WHERE organization_id = %s",
        "UPDATE cost_rollup SET day = %s WHERE organization_id = %s",
    ):
        await run(database, statement, day, tenant.organization_id)
