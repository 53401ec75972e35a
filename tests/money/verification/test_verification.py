"""Tests that `ledger verify` checks the ledger in slices and omits no row."""

import secrets
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import LiteralString

import pytest

from tests.support.databases import own_database
from tests.support.large_books import fill_books
from tests.support.ledger import find_differences, make_tenant, release, run, running_process
from tests.support.ledger_months import OldBooks, this_month
from tollkeeper.core.months import FIRST_ID, LAST_ID
from tollkeeper.money.verification import service as verification

NOW = this_month()


@pytest.fixture
async def books(shared_conninfo: str) -> AsyncIterator[OldBooks]:
    conninfo = own_database(shared_conninfo, f"slices_{secrets.token_hex(4)}")
    async with running_process(conninfo) as process:
        found = OldBooks(process)
        await found.begin(NOW.plus(-2))
        yield found


async def test_every_slice_is_looked_at(books: OldBooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong row is found once, whichever organization and month it belongs to."""
    tenants = await fill_books(
        books.process.database, calls=600, organizations=20, months=(NOW.plus(-2), NOW)
    )
    monkeypatch.setattr(verification, "ORGANIZATIONS_PER_SLICE", 7)
    database = books.process.database
    ids = sorted(tenant.organization_id for tenant in tenants)
    chosen = [ids[0], ids[6], ids[7], ids[-1]]
    wrong: LiteralString = (
        "UPDATE accounts SET overage = overage + %s WHERE organization_id = ANY(%s)"
    )
    await run(database, wrong, 1, chosen)
    balances = "balances are the sum of their rows"
    assert sorted(await books.verify()) == [(balances, str(one)) for one in chosen]
    await run(database, wrong, -1, chosen)
    # The ids are in every range: past, current and next months, and ids before and after them.
    fresh = await make_tenant(database, credit=100)
    holds = [
        await books.hold(fresh, NOW.plus(number), 1) for number in (-400, -2, -1, 0, 1, 2, 3, 400)
    ]
    for hold in holds:
        await books.process.ledger.resolve(release(hold))
    wrong = "UPDATE resolutions SET day = day + %s WHERE reservation_id = ANY(%s)"
    await run(database, wrong, 1, [hold.id for hold in holds])
    in_its_day = "every settled cost counts on its UTC day"
    assert sorted(await books.verify()) == sorted((in_its_day, str(hold.id)) for hold in holds)
    await run(database, wrong, -1, [hold.id for hold in holds])
    assert await books.verify() == []


async def test_the_progress_comes_to_its_end(books: OldBooks) -> None:
    await fill_books(books.process.database, calls=500, organizations=70, months=(NOW.plus(-2),))
    await books.months.ledger_close()
    told: list[tuple[int, int]] = []
    for full in (False, False, True):
        told.clear()
        await books.reconciliation.ledger_verify(
            full=full, on_progress=lambda done, of: told.append((done, of))
        )
        assert [done for done, _ in told] == list(range(1, len(told) + 1))
        assert {of for _, of in told} == {len(told)}


async def test_no_more_differences_are_kept_than_a_person_reads(
    books: OldBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_books(books.process.database, calls=300, organizations=2, months=(NOW,))
    monkeypatch.setattr(verification, "DIFFERENCES_MAX", 40)
    wrong: LiteralString = "UPDATE resolutions SET day = day + 1"
    await run(books.process.database, wrong)
    found = await books.reconciliation.ledger_verify()
    assert len(found) == 41
    assert found[-1].invariant == "further differences"
    assert int(found[-1].subject) > 200


def test_ids_are_in_one_range_each() -> None:
    """The ranges cover all ids exactly once, also the gaps between months."""
    months = [NOW.plus(number) for number in (-5, -4, -3, 0, 1)]
    ranges = verification._open_ranges(months, [])
    assert ranges[0][0] == FIRST_ID
    assert ranges[-1][1] == LAST_ID
    for (_, last), (first, _) in pairwise(ranges):
        assert first.int == last.int + 1
    assert {month.first_id for month in months} <= {first for first, _ in ranges}


async def _rows_read_by_a_verification(books: OldBooks) -> int:
    """Returns the number of rows that one verification reads from tables of the ledger."""
    so_far = """
        SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint
        FROM pg_stat_xact_user_tables
        WHERE relname ~ '^(reservations|resolutions|overages|accounts|project_accounts)'
    """
    async with books.process.database.snapshot() as connection:
        assert await find_differences(connection, age_s=10**7, lease_s=10**7) == []
        cursor = await connection.execute(so_far)
        [[read]] = await cursor.fetchall()
    return int(read)


async def test_without_statistics_the_work_grows_with_the_books_and_no_faster(
    books: OldBooks,
) -> None:
    """A new database has no statistics, so the planner assumes that every table has only a few rows."""
    database = books.process.database
    read: list[int] = []
    for organizations in (10, 30):
        for _ in range(organizations):
            tenant = await make_tenant(database, credit=100)
            for cost in (1, 2):
                await books.spend(tenant, NOW, 10, cost)
        read.append(await _rows_read_by_a_verification(books))
    # The ledger has four times as many organizations and calls now. A query that scans the calls
    # again for each account would read at least sixteen times as many rows.
    assert read[1] < 8 * read[0], read
