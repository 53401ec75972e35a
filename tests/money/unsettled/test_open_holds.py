"""Tests that the search for open holds finds all of them, and reads few rows of a large ledger."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.support.databases import own_database
from tests.support.ledger import (
    LedgerTenant,
    Process,
    held,
    make_process,
    make_tenant,
    release,
    rows,
    run,
    running_process,
)
from tollkeeper.money.holds.values import Hold
from tollkeeper.money.unsettled import open_holds
from tollkeeper.money.unsettled.open_holds import OpenHolds
from tollkeeper.money.unsettled.recovery import Recovered, Recovery

_HOUR_S = 3600
# The index on `held_at` refers to ranges of 128 pages, which contain about 5,600 reservations.
# If a search finds nothing in any of its seven windows, each window reads the last range once.
_OLD_CALLS = 80_000
_READ_BY_ONE_WINDOW = 6_000
_READ_BY_ALL_WINDOWS = 45_000


@pytest.fixture(scope="module")
async def apart(shared_conninfo: str) -> AsyncIterator[Process]:
    """Returns a process with its own database, because the search would also find the holds of other
    tests, and `_read_so_far` would count the rows that they read."""
    async with running_process(own_database(shared_conninfo, "open_holds"), pool_size=1) as found:
        yield found


@pytest.fixture(autouse=True)
async def nothing_open(apart: Process) -> None:
    await Recovery(apart.database, 0).ledger_recover()
    assert await _find(apart) == set()


async def _find(process: Process, search: OpenHolds | None = None) -> set[UUID]:
    async with process.database.autocommit() as connection:
        return {hold.id for hold in await (search or OpenHolds()).find_all(connection)}


async def _oldest_age_s(process: Process, search: OpenHolds) -> float:
    async with process.database.autocommit() as connection:
        return await search.oldest_age_s(connection)


async def _aged(process: Process, tenant: LedgerTenant, age_s: float) -> Hold:
    hold = await held(process, tenant, 1)
    await run(
        process.database,
        "UPDATE reservations SET held_at = held_at - make_interval(secs => %s) WHERE id = %s",
        age_s,
        hold.id,
    )
    return hold


async def _fill(process: Process, tenant: LedgerTenant) -> None:
    """Writes `_OLD_CALLS` resolved calls of the last ten days."""
    await run(
        process.database,
        """
        WITH made AS (
            INSERT INTO reservations (organization_id, id, project_id, api_key_id, process_id, model,
                hold, price_prompt, price_completion, price_image, price_request, price_cache_read,
                prompt_tokens_max, choices, output_tokens_max, images, month, held_at)
            SELECT %s, gen_random_uuid(), %s, %s, %s, 'example/chat', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0,
                202601, clock_timestamp() - interval '10 days' * (1 - n / %s::float)
            FROM generate_series(1, %s) AS n
            RETURNING organization_id, id, held_at
        )
        INSERT INTO resolutions
        SELECT organization_id, id, 'released', 0, 0, 0, 0, 0, 0, 0, 0, 0, false, 'test',
            floor(extract(epoch FROM held_at) / 86400)::integer, held_at
        FROM made
        """,
        tenant.organization_id,
        tenant.project_id,
        tenant.key_id,
        process.id,
        _OLD_CALLS,
        _OLD_CALLS,
    )
    await run(process.database, "VACUUM ANALYZE reservations, resolutions")


async def _read_so_far(process: Process) -> int:
    """Returns the number of rows read so far, with or without an index, from the tables that grow with
    every call."""
    # The process has only one connection, so this flushes the counts of all its statements.
    await rows(process.database, "SELECT pg_stat_force_next_flush()")
    await rows(process.database, "SELECT 1")
    [[found]] = await rows(
        process.database,
        """
        SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables
        WHERE relname ~ '^(reservations|resolutions)_'
        """,
    )
    return int(found)


@pytest.mark.parametrize("page_size", [1, 3, 20_000])
async def test_every_open_hold_is_found(
    apart: Process, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    monkeypatch.setattr(open_holds, "_PAGE_SIZE", page_size)
    ages_s = [-48 * _HOUR_S, -1, 0, 59, 61, 3000, 3 * _HOUR_S, 30 * _HOUR_S, 9000 * _HOUR_S]
    expected = set()
    for _ in range(2):
        tenant = await make_tenant(apart.database, credit=100)
        for age_s in ages_s:
            resolved, marked, lost = [await _aged(apart, tenant, age_s) for _ in range(3)]
            await apart.ledger.resolve(release(resolved))
            await apart.ledger.mark_unsettled(marked, "nobody knows")
            expected.add(lost.id)
    search = OpenHolds()
    assert await _find(apart, search) == expected
    # The search remembers the holds that it found, but checks them again and looks for new ones.
    await apart.ledger.resolve(release(lost))
    fresh = await held(apart, tenant, 1)
    assert await _find(apart, search) == expected - {lost.id} | {fresh.id}


async def test_holds_that_come_and_go_do_not_disturb_the_search(apart: Process) -> None:
    tenant = await make_tenant(apart.database, credit=10**6)
    lost = await _aged(make_process(apart.database), tenant, 30 * _HOUR_S)
    busy = True

    async def calls() -> None:
        while busy:
            hold = await held(apart, tenant, 1)
            await apart.ledger.resolve(release(hold))

    callers = [asyncio.ensure_future(calls()) for _ in range(8)]
    for _ in range(20):
        assert lost.id in await _find(apart)
    busy = False
    await asyncio.gather(*callers)
    assert await _find(apart) == {lost.id}


@pytest.mark.slow
async def test_little_is_read_of_large_books(shared_conninfo: str) -> None:
    books = own_database(shared_conninfo, "large_books")
    async with running_process(books, pool_size=1) as process:
        large, small = [await make_tenant(process.database, credit=100) for _ in range(2)]
        await _fill(process, large)
        before = await _read_so_far(process)
        assert await _find(process) == set()
        assert await _read_so_far(process) == before, "nothing is open"

        dead = make_process(process.database)
        await held(dead, large, 1)
        before = await _read_so_far(process)
        assert await Recovery(process.database, 0).ledger_recover() == Recovered(1, 1)
        # Recovery searches once for dead processes, and once for their holds.
        assert await _read_so_far(process) - before < 2 * _READ_BY_ONE_WINDOW

        # For an old hold, the search visits only the organization with the missing hold.
        lost = await _aged(dead, small, 30 * _HOUR_S)
        search = OpenHolds()
        before = await _read_so_far(process)
        assert await _find(process, search) == {lost.id}
        assert await _read_so_far(process) - before < _READ_BY_ALL_WINDOWS
        before = await _read_so_far(process)
        assert await _find(process, search) == {lost.id}
        assert await _read_so_far(process) - before < 10, "it is known by now"


async def test_the_age_of_the_oldest(apart: Process) -> None:
    search = OpenHolds()
    assert await _oldest_age_s(apart, search) == 0
    tenant = await make_tenant(apart.database, credit=100)
    await _aged(apart, tenant, -_HOUR_S)
    assert await _oldest_age_s(apart, search) == 0
    await _aged(apart, tenant, 100)
    assert 100 <= await _oldest_age_s(apart, search) < 800
    # The quick search knows only that an older hold exists. `find_all` finds the age of this hold.
    await _aged(apart, tenant, 5 * _HOUR_S)
    assert 900 <= await _oldest_age_s(apart, search) < _HOUR_S
    await _find(apart, search)
    assert 5 * _HOUR_S <= await _oldest_age_s(apart, search) < 6 * _HOUR_S


async def test_an_account_that_counts_too_many_is_no_obstacle(apart: Process) -> None:
    """`ledger verify` reports the wrong count; the search does not fail."""
    tenant = await make_tenant(apart.database, credit=100)
    hold = await _aged(apart, tenant, 30 * _HOUR_S)
    change = "UPDATE project_accounts SET live_holds = live_holds + %s WHERE project_id = %s"
    await run(apart.database, change, 1, tenant.project_id)
    assert await _find(apart) == {hold.id}
    await run(apart.database, change, -1, tenant.project_id)


async def test_the_index_by_time_learns_of_new_pages(apart: Process) -> None:
    """The index option is set in every partition, also in partitions that are added later."""
    found = await rows(
        apart.database,
        """
        SELECT DISTINCT reloptions FROM pg_class
        WHERE relname = 'reservations_in_time' OR relname ~ '^reservations_.*(held_at_idx|in_time)$'
        """,
    )
    assert found == [(["autosummarize=on"],)]
