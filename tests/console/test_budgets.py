"""Tests that the charts of budgets show the ledger's remaining amounts, by hour and by day."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import accumulate
from uuid import uuid4

import httpx2
import msgspec
import pytest

from tests.support.capped_books import DAY, MONTH, WEEK, CappedBooks
from tests.support.changed_services import changed
from tests.support.console_site import TOKEN, ConsoleSite, serving_console
from tests.support.database_clock import DatabaseClock
from tests.support.databases import own_database
from tests.support.http_client import http_client
from tests.support.ledger import LedgerTenant, another_project, hold_of, rotate, run, settlement
from tests.support.ledger_months import OldBooks
from tollkeeper.console.amounts import exact_usd
from tollkeeper.core.access import KeyId
from tollkeeper.core.months import RANDOM_BITS, Month, request_id
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.months import store as ledger_months
from tollkeeper.reports.costs.service import Costs
from tollkeeper.reports.overview import LedgerOverview
from tollkeeper.setup import master_secret
from tollkeeper.tenants.names import Names
from tollkeeper.tenants.organizations import Organizations

TOTAL = CapPeriod.TOTAL
# A Wednesday.
_NOW = datetime(2026, 11, 18, 10, 30, tzinfo=UTC)
_CAP = 10**6


@dataclass(frozen=True)
class Drawn:
    """Contains the chart of one cap and the rows of its table."""

    chart: dict[str, list[dict[str, list[float]]]]
    rows: dict[str, str]


@pytest.fixture
def cap_clock(shared_conninfo: str) -> DatabaseClock:
    """Returns the clock of a database for one test, because a test closes a month."""
    return DatabaseClock(own_database(shared_conninfo, f"budgets_{uuid4().hex}"))


@pytest.fixture
async def operator(site: ConsoleSite, world: CappedBooks) -> AsyncIterator[httpx2.AsyncClient]:
    """Signs in to a console that uses the database of `world` and its time."""

    def clock() -> int:
        return int(_NOW.timestamp())

    database = world.process.database
    services = changed(
        site.services,
        # Sessions of other tests are newer than this clock, and would end the session of this test.
        database=database,
        clock=clock,
        caps=world.caps,
        names=Names(database),
        organizations=Organizations(database, clock),
        costs=Costs(database, Vault(master_secret(site.settings)), clock),
        ledger_overview=LedgerOverview(database, clock),
    )
    async with (
        serving_console(site.settings, services) as address,
        http_client(address) as client,
    ):
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


async def _hold(
    world: CappedBooks, tenant: LedgerTenant, admitted: datetime, *, began: datetime, amount: int
) -> Hold:
    world.clock.set(admitted)
    identity = request_id(int(began.timestamp() * 1000), secrets.randbits(RANDOM_BITS))
    hold = msgspec.structs.replace(hold_of(tenant, amount), id=identity)
    decision = await world.process.ledger.hold(hold)
    assert decision.refusal is None, decision
    return hold


async def _spend(
    world: CappedBooks,
    tenant: LedgerTenant,
    admitted: datetime,
    cost: int,
    *,
    began: datetime | None = None,
) -> None:
    hold = await _hold(world, tenant, admitted, began=began or admitted, amount=cost)
    assert await world.process.ledger.resolve(settlement(hold, cost), hold)


async def _adjust(world: CappedBooks, tenant: LedgerTenant, cost: int) -> None:
    """Settles a call of October on November 3, after October was closed."""
    midnight = datetime(2026, 11, 1, tzinfo=UTC)
    second = timedelta(seconds=1)
    late = await _hold(world, tenant, midnight - second, began=midnight + second, amount=cost)
    world.clock.set(midnight + timedelta(days=2, hours=10))
    await OldBooks(world.process).months.ledger_close(Month(2026, 10))
    assert await world.process.ledger.resolve(settlement(late, cost), late)


async def _make_months(world: CappedBooks) -> None:
    """Creates the partitions of the months in which the test makes calls."""
    async with world.process.database.transaction() as connection:
        existing = await ledger_months.find_months(connection)
        for month in (Month(2026, 10), Month(2026, 11)):
            if month not in existing:
                await ledger_months.add_month(connection, month)


async def _budgets(operator: httpx2.AsyncClient, world: CappedBooks) -> str:
    answer = await operator.get(f"/budgets?organization={world.tenant.organization_id}")
    assert answer.status_code == 200, answer.text
    return answer.text


def _drawn(page: str) -> list[Drawn]:
    cards = page.split('<section class="card"')[1:]
    found = []
    for card in cards:
        [data] = re.findall(r'<script type="application/json">(.*?)</script>', card, re.DOTALL)
        rows = re.findall(r'scope="row">(.*?)</th><td[^>]*>(.*?)</td>', card)
        found.append(
            Drawn(
                json.loads(data),
                {time: re.sub("<.*?>", "", unescape(shown)) for time, shown in rows},
            )
        )
    return found


def _hour(number: int) -> str:
    return f"2026-11-18 {number:02}:00"


def _days(first: datetime) -> list[str]:
    return [f"{first + timedelta(days=n):%Y-%m-%d}" for n in range((_NOW - first).days + 1)]


def _left(times: list[str], costs: Mapping[str, int]) -> dict[str, int]:
    """Returns the remaining amount after each time."""
    left = accumulate((costs.get(time, 0) for time in times), int.__sub__, initial=_CAP)
    return dict(zip(times, list(left)[1:], strict=True))


async def test_charts_show_the_remaining_amounts_of_the_ledger(
    operator: httpx2.AsyncClient, world: CappedBooks
) -> None:
    first = world.tenant
    second = replace(first, key_id=KeyId(uuid4()))
    await rotate(world.process.database, first, second)
    other = await another_project(world.process.database, first)
    await run(world.process.database, "UPDATE organizations SET created_at = '2026-10-01'")
    await _make_months(world)
    midnight = datetime(2026, 11, 18, tzinfo=UTC)
    millisecond = timedelta(milliseconds=1)
    await _spend(world, first, datetime(2026, 10, 5, 8, tzinfo=UTC), 1)
    await _adjust(world, first, 7)
    await _spend(world, first, datetime(2026, 11, 10, 8, tzinfo=UTC), 20)
    await _spend(world, other, datetime(2026, 11, 16, 23, 59, 59, tzinfo=UTC), 300)
    # The call began before midnight. It counts for the day of its admission.
    await _spend(world, first, midnight + millisecond, 4000, began=midnight - millisecond)
    await _spend(world, second, midnight + timedelta(hours=9), 50_000)
    await _spend(world, other, midnight + timedelta(hours=10), 600_000)
    world.clock.set(_NOW)
    for period in (TOTAL, DAY, WEEK):
        await world.set(_CAP, period)
    await world.set(_CAP, MONTH, project=first.project_id)
    await world.set(_CAP, TOTAL, project=other.project_id)
    for period in (DAY, WEEK, MONTH):
        await world.set(_CAP, period, key=second.key_id)

    hours = [_hour(number) for number in range(11)]
    week, month = (_days(datetime(2026, 11, day, tzinfo=UTC)) for day in (16, 1))
    today = "2026-11-18"
    october = {"2026-10-05": 1, "2026-11-03": 7}
    expected = [
        _left(hours, {_hour(0): 4000, _hour(9): 50_000, _hour(10): 600_000}),
        _left(week, {"2026-11-16": 300, today: 654_000}),
        _left(
            _days(datetime(2026, 10, 5, tzinfo=UTC)),
            october | {"2026-11-10": 20, "2026-11-16": 300, today: 654_000},
        ),
        _left(month, {"2026-11-10": 20, today: 54_000}),
        _left(week, {"2026-11-16": 300, today: 600_000}),
        _left(hours, {_hour(0): 4000, _hour(9): 50_000}),
        _left(week, {today: 54_000}),
        _left(month, {"2026-11-10": 20, today: 54_000}),
    ]
    page = await _budgets(operator, world)
    drawn = _drawn(page)
    assert [one.rows for one in drawn] == [
        {time: exact_usd(amount) for time, amount in left.items()} for left in expected
    ]
    for one, left in zip(drawn, expected, strict=True):
        values = one.chart["series"][0]["values"]
        assert [round(value * 10**12) for value in values] == [_CAP, *left.values()]
    # The counters of the caps say the same.
    assert [list(left.values())[-1] for left in expected] == [
        remaining for _, _, remaining in await world.uses()
    ]
    paces = [[series["values"] for series in one.chart["series"][1:]] for one in drawn]
    assert [len(pace[0]) if pace else 0 for pace in paces] == [25, 8, 0, 31, 0, 25, 8, 31]
    assert "no chart" not in page


async def test_a_total_cap_draws_at_most_a_year(
    operator: httpx2.AsyncClient, world: CappedBooks
) -> None:
    """The first amount of the chart includes the costs of earlier years."""
    await run(world.process.database, "UPDATE organizations SET created_at = '2020-01-01'")
    await _spend(world, world.tenant, datetime(2024, 5, 1, tzinfo=UTC), 5)
    await _spend(world, world.tenant, _NOW, 70)
    await world.set(_CAP, TOTAL)
    [drawn] = _drawn(await _budgets(operator, world))
    assert list(drawn.rows) == _days(datetime(2025, 11, 18, tzinfo=UTC))
    assert set(drawn.rows.values()) == {exact_usd(_CAP - spent) for spent in (5, 75)}


async def test_the_page_says_how_many_caps_have_no_chart(
    operator: httpx2.AsyncClient, world: CappedBooks
) -> None:
    other = await another_project(world.process.database, world.tenant)
    for period in (DAY, WEEK, MONTH):
        await world.set(_CAP, period)
        for tenant in (world.tenant, other):
            await world.set(_CAP, period, project=tenant.project_id)
            await world.set(_CAP, period, key=tenant.key_id)
    cleared: tuple[CapPeriod, ...]
    for without, said, cleared in (
        (3, "3 caps have no chart: the page draws the first 12 caps.", (DAY, WEEK)),
        (1, "1 cap has no chart: the page draws the first 12 caps.", (MONTH,)),
        (0, None, ()),
    ):
        page = await _budgets(operator, world)
        assert page.count('<figure class="chart') == 12
        assert page.count('<section class="card"') == 12 + without
        assert said in page if said else "no chart" not in page
        for period in cleared:
            await world.caps.cap_clear(
                world.tenant.organization_id, key_id=other.key_id, period=period
            )
