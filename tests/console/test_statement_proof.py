"""Tests that the statements of simulated months, as a page and as a CSV file, equal the rows of the
ledger to the last digit."""

import asyncio
import csv
import html
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import LiteralString

import httpx2

from tests.support import stripe_events as stripe
from tests.support.console_site import TOKEN, ConsoleSite, serving_console
from tests.support.http_client import http_client
from tests.support.large_books import fill_books
from tests.support.ledger import LedgerTenant, held, rows, run
from tests.support.ledger_months import OldBooks, this_month
from tests.support.proof import Proof
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.money import PICOUSD_PER_USD
from tollkeeper.core.months import Month
from tollkeeper.core.runtime.csv_text import csv_lines
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.payments.rule import GrantKind
from tollkeeper.money.payments.stripe_events import read_event
from tollkeeper.reports.statements.rule import statement_rows
from tollkeeper.setup import running_services
from tollkeeper.setup.services import Services

NOW = this_month()
BEFORE = NOW.plus(-3)
MONTHS = [NOW.plus(number) for number in range(-3, 1)]
# A sum of these amounts has more digits than a float can store.
LARGE = 12_345 * PICOUSD_PER_USD

# An entry of a statement: its name, project, model, and the day that an adjustment belongs to.
Entry = tuple[str, str, str, str]
_OPENING = ("opening balance", "", "", "")
_CLOSING = ("closing balance", "", "", "")
_UNSETTLED = ("unsettled", "", "", "")


@dataclass
class Numbers:
    """Contains the amounts of a statement in picousd, and the number of grants or calls by name."""

    amounts: dict[Entry, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


async def test_the_statement_of_a_simulated_month_equals_the_ledger(
    site: ConsoleSite, old: OldBooks, proof: Proof
) -> None:
    """The ledger has calls with overage, releases, grants of every kind, unsettled calls, and adjustments
    of a closed month. The rows of this month are dropped at the end."""
    calls = proof.size(quick=1_000, long=100_000, smoke=200)
    size = proof.size(quick=20, long=300, smoke=4)
    database = old.process.database
    # A twelfth of the calls is released, the others are settled.
    tenants = await fill_books(
        database, calls=calls * 9 // 4, organizations=1, months=[BEFORE, NOW], projects=3
    )
    others = await fill_books(database, calls=60, organizations=1, months=[BEFORE, NOW])
    # The page shows only the names of projects, and all projects have the same name.
    await run(database, "UPDATE projects SET name = id::text")
    async with database.autocommit() as connection:
        conninfo = connection.info.dsn
    async with (
        running_services(site.settings, conninfo) as services,
        serving_console(site.settings, services) as address,
        http_client(address) as client,
    ):
        await client.post("/sign-in", data={"token": TOKEN})
        for each, grants in ((tenants, size), (others, 3)):
            await _book_grants(services, each[0].organization_id, grants)
        await _move_grants(old)
        for each, grants in ((tenants, size), (others, 3)):
            await _book_grants(services, each[0].organization_id, grants)
            await _leave_unsettled(old, each, grants)
            await _settle(old, each, grants)
        late = await _leave_unsettled(old, tenants, 2 * size)
        await _move_calls(old, late)
        for is_closed in (False, True):
            if is_closed:
                await old.months.ledger_close(BEFORE)
                await _resolve(services, late)
            assert await old.verify() == []
            expected = {
                tenant.organization_id: await _read_ledger(old, tenant.organization_id)
                for tenant in (tenants[0], others[0])
            }
            await _compare(client, services, expected, is_closed=is_closed)
        await old.export(BEFORE)
        await old.months.ledger_drop(BEFORE)
        await _compare(client, services, expected, is_closed=True)
    largest = expected[tenants[0].organization_id]
    assert largest[BEFORE].counts["charge"] >= calls
    counts = largest[NOW].counts
    assert counts["charge"] >= calls
    assert all(counts[kind] == size for kind in GrantKind)
    assert counts["unsettled"] == counts["adjustment"] == size
    proof.count("calls in a statement", counts["charge"])
    proof.count("grants in a statement", sum(counts[kind] for kind in GrantKind))
    proof.count("unsettled calls in a statement", counts["unsettled"])
    proof.count("adjustments in a statement", counts["adjustment"])


async def _book_grants(services: Services, organization: OrganizationId, size: int) -> None:
    """Books this number of grants of each kind. Payments and refunds are events of the provider."""
    for number in range(size):
        await services.accounts.credit_grant(organization, LARGE + 7 * number)
        await services.accounts.credit_grant(organization, -1 - 3 * number)
        for livemode in (True, False):
            payment, cents = stripe.new_payment(), 1_000 + number
            withdrawals = (
                stripe.charge_refunded(payment, 333, livemode=livemode),
                stripe.refund(payment, f"re_{payment}", 1 + number, livemode=livemode),
                stripe.dispute(payment, f"dp_{payment}", cents, "lost", livemode=livemode),
            )
            for body in (
                stripe.completed(payment, cents, organization, livemode=livemode),
                withdrawals[number % len(withdrawals)],
            ):
                await services.payments.payment_receive(read_event(body))


async def _move_grants(old: OldBooks) -> None:
    """Moves each grant to the first or the last microsecond of the month BEFORE, or to the first one of
    the next month."""
    await run(
        old.process.database,
        """
        UPDATE grants SET granted_at = CASE ascii(right(id::text, 1)) %% 3
            WHEN 0 THEN months.first WHEN 1 THEN months.next - interval '1 microsecond'
            ELSE months.next END
        FROM (SELECT to_timestamp(%s) AS first, to_timestamp(%s) AS next) AS months
        """,
        *(BEFORE.first_day * 86400, BEFORE.next.first_day * 86400),
    )


async def _leave_unsettled(old: OldBooks, tenants: Sequence[LedgerTenant], size: int) -> list[Hold]:
    """Admits this number of calls, and marks each of them as unsettled."""
    process = old.process
    holds = await asyncio.gather(
        *(held(process, tenants[n % len(tenants)], 10**9 + n) for n in range(size))
    )
    for hold in holds:
        assert await process.ledger.mark_unsettled(hold, "reset")
    return holds


async def _settle(old: OldBooks, tenants: Sequence[LedgerTenant], size: int) -> None:
    """Settles calls together. The cost of half of them is above the hold."""
    await asyncio.gather(
        *(
            old.spend(tenants[n % len(tenants)], NOW, 10**6 + n, 10**6 + 3 * n - size)
            for n in range(size)
        )
    )


async def _move_calls(old: OldBooks, holds: Sequence[Hold]) -> None:
    """Changes the time of admission to one of the last three days of the month BEFORE."""
    await run(
        old.process.database,
        """
        UPDATE reservations r SET held_at = to_timestamp(%s - moved.n %% 3 * 86400)
        FROM unnest(%s::uuid[]) WITH ORDINALITY AS moved (id, n) WHERE r.id = moved.id
        """,
        *(BEFORE.next.first_day * 86400 - 1, [hold.id for hold in holds]),
    )


async def _resolve(services: Services, holds: Sequence[Hold]) -> None:
    """Settles two of four calls, one of them with overage, and releases one. One stays unsettled."""
    for number, hold in enumerate(holds):
        costs = (hold.hold_picousd - 5, hold.hold_picousd + 5, None)
        if number % 4 < len(costs):
            await services.reconciliation.ledger_resolve(hold.id, settle_picousd=costs[number % 4])


async def _read_ledger(old: OldBooks, organization: OrganizationId) -> dict[Month, Numbers]:
    """Returns the numbers of all months, computed from single grants, calls and their overage."""
    found = {str(month): Numbers({_UNSETTLED: 0}) for month in MONTHS}
    for month, name, project, model, day, count, amount in await rows(
        old.process.database, _ENTRIES, *[organization] * 3
    ):
        found[month].amounts[name, project, model, day] = int(amount)
        found[month].counts[name] += count
    balance = 0
    for numbers in found.values():
        changes = sum(numbers.amounts.values()) - numbers.amounts[_UNSETTLED]
        numbers.amounts |= {_OPENING: balance, _CLOSING: balance + changes}
        balance += changes
    return dict(zip(MONTHS, found.values(), strict=True))


_ENTRIES: LiteralString = """
    SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM'), name, project, model, day, count(*), sum(amount)
    FROM (
        SELECT granted_at AS at, kind AS name, '' AS project, '' AS model, '' AS day, amount
        FROM grants WHERE organization_id = %s
        UNION ALL
        SELECT held_at, 'unsettled', '', '', '', r.hold FROM reservations r
        JOIN unsettled_marks m ON m.reservation_id = r.id
        LEFT JOIN resolutions d ON d.reservation_id = r.id
        WHERE r.organization_id = %s AND d.kind IS NULL
        UNION ALL
        SELECT CASE WHEN adjusts_day IS NULL THEN held_at ELSE resolved_at END,
            CASE WHEN adjusts_day IS NULL THEN 'charge' ELSE 'adjustment' END, project_id::text, model,
            CASE WHEN adjusts_day IS NULL THEN ''
                ELSE to_char(held_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') END,
            -(d.settled + coalesce(o.amount, 0))
        FROM reservations r JOIN resolutions d ON d.reservation_id = r.id
        LEFT JOIN overages o ON o.reservation_id = r.id
        WHERE r.organization_id = %s AND d.kind = 'settled'
    ) AS entries GROUP BY 1, 2, 3, 4, 5
"""


async def _compare(
    client: httpx2.AsyncClient,
    services: Services,
    expected: dict[OrganizationId, dict[Month, Numbers]],
    *,
    is_closed: bool,
) -> None:
    """Compares each statement as a page, as a file and as the command `statement --csv` prints it."""
    for organization, months in expected.items():
        for month, numbers in months.items():
            path = f"/organizations/{organization}/statement"
            page = await client.get(path, params={"month": str(month)})
            file = await client.get(f"{path}.csv", params={"month": str(month)})
            found = await services.statements.statement_show(organization, month)
            assert found.final == (is_closed and month <= BEFORE)
            assert file.text == csv_lines(statement_rows(found))
            assert _read_file(file.text) == (numbers.amounts, numbers.counts["unsettled"])
            counts = Counter(numbers.counts)
            del counts["charge"], counts["adjustment"]
            assert _read_page(page.text) == Numbers(numbers.amounts, counts)


def _read_file(text: str) -> tuple[dict[Entry, int], int]:
    """Returns the amounts of the CSV file and the number of unsettled calls."""
    amounts: dict[Entry, int] = {}
    for row in csv.DictReader(io.StringIO(text)):
        assert row["project"] == row["project_id"]
        entry = (row["entry"], row["project_id"], row["model"], row["detail"])
        assert entry not in amounts
        amounts[entry] = _picousd(row["amount_usd"])
    *_, (name, *_, detail) = amounts
    amounts[_UNSETTLED] = amounts.pop((name, "", "", detail))
    assert name == "unsettled"
    return amounts, int(detail.removesuffix(" calls, held and not charged yet"))


def _read_page(page: str) -> Numbers:
    """Returns the amounts and counts of the page, and checks the totals on the page."""
    read = Numbers({_UNSETTLED: 0})
    tiles = re.findall(r'<dd class="text"[^>]*>(.*?)</dd>', page)
    opening, granted, charged, closing = map(_picousd, tiles)
    grants, grant_total = _read_table(page, "grants")
    for kind, count, amount in grants:
        name = kind.replace(" ", "_")
        read.amounts[name, "", "", ""] = _picousd(amount)
        read.counts[name] = _number(count)
    charge_total = 0
    for name, table in (("charge", "charges"), ("adjustment", "adjustments")):
        charges, total = _read_table(page, table)
        for project, model, *day, amount in charges:
            read.amounts[name, project, model, "".join(day)] = -_picousd(amount)
        charge_total += total
    assert (granted, charged) == (grant_total, charge_total)
    assert sum(read.amounts.values()) == granted - charged
    if notice := re.search(r'id="unsettled">[^:]*: (.*?)\. (.*?) is held', page):
        read.counts["unsettled"] = _number(notice[1])
        read.amounts[_UNSETTLED] = _picousd(notice[2])
    read.amounts |= {_OPENING: opening, _CLOSING: closing}
    return read


def _read_table(page: str, name: str) -> tuple[list[list[str]], int]:
    """Returns the cells of each row of a table, and the table's total."""
    table = page.partition(f'<table id="{name}"')[2].partition("</table>")[0]
    if not table:
        return [], 0
    _, *found, (_, total) = (
        [html.unescape(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    )
    return [] if found == [["None."]] else found, _picousd(total)


def _picousd(usd: str) -> int:
    return int(Decimal(usd.replace("$", "").replace(",", "")) * PICOUSD_PER_USD)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
