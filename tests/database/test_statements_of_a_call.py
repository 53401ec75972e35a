"""Tests that no statement of a call reads more in large books than in small ones, and no page of the
console reads more than its limit. The statements are those that the code really sends."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.databases import own_database
from tests.support.explained import Explained, Recorder, install
from tests.support.judged_gateway import JudgedGateway, judged_gateway
from tests.support.large_activity import DEAREST, POLICY, LargeActivity, fill_activity
from tests.support.large_books import fill_books
from tests.support.large_tenants import fill_tenants
from tests.support.ledger import LedgerTenant, make_tenant
from tests.support.ledger_months import this_month
from tests.support.statements import all_statements
from tests.support.upstream import chat, reset_after
from tollkeeper.core.views import RareFilter, Sort, SortKey
from tollkeeper.database.watched_connection import allow_long_statements
from tollkeeper.reports.traffic.rule import TimeRange, TrafficFilter
from tollkeeper.reports.traffic.service import _READ_MAX

_CALLS, _TENANTS, _ACTIVITY = 60_000, 10_000, 60_000
_DAYS = 6
# The maximum number of rows that a statement of a call may read. Calls here have few policies.
_ROWS_MAX = 60
# How many more buffers a statement may read: an index of a large table has a few more levels.
_BUFFERS_MORE_MAX = 60
# The limit for the list of a page: the calls that a policy has judged, and their records.
_PAGE_ROWS_MAX = 2_500
# The further rows that a sort reads: as many records as a page may search, and the rest of the last
# five minutes.
_SORTED_ROWS_MAX = 2 * _READ_MAX
# Tables whose size does not depend on the number of calls or tenants.
_SMALL_TABLES = {"processes", "ledger_closes", "schema_revisions", "alert_observations"}


@dataclass(frozen=True)
class Site:
    judged: JudgedGateway
    recorder: Recorder


@pytest.fixture(scope="module")
async def site(data_dir: Path, shared_conninfo: str) -> AsyncIterator[Site]:
    recorder = Recorder()
    conninfo = own_database(shared_conninfo, "statements")
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(recorder, monkeypatch)
        async with judged_gateway(data_dir, conninfo) as judged:
            yield Site(judged, recorder)


async def _calls(site: Site) -> list[Explained]:
    """Makes calls with every result (settled, refused, denied, released, unsettled, counted) and returns
    their statements."""
    judged = await site.judged.for_next_test()
    services = judged.scripted.gateway.services
    await judged.enforce("bomb")
    # Clears the caches, so that the calls read policies and keys from the database.
    services.ledger._holds._policies._sets.clear()
    services.authentication._cached.clear()
    with site.recorder.recording() as statements:
        assert (await judged.chat("peace")).status_code == 200
        assert (await judged.chat("a bomb")).status_code == 403
        assert (await judged.chat("peace", policy_ids=["pol_nobody"])).status_code == 404
        judged.model.play(reset_after(0))
        assert (await judged.chat("peace")).status_code == 502
        judged.model.play(chat())
        assert (await judged.chat("peace", stream=True)).status_code == 200
        counted = await judged.scripted.gateway.client.post(
            "/v1/messages/count_tokens",
            json={
                "model": judged.scripted.gateway.services.catalog.catalog.models[0].id,
                "messages": [{"role": "user", "content": "Hello"}],
            },
            headers=judged.scripted.tenant.as_customer,
        )
        assert counted.status_code == 200, counted.text
        await services.recorder.drain()
        await services.activity.drain()
        await services.upkeep.write_key_use()
        await services.upkeep.send_heartbeat()
    return statements


async def _make_large(site: Site) -> list[LedgerTenant]:
    database = site.judged.scripted.gateway.services.database
    async with database.transaction() as connection:
        await allow_long_statements(connection, minutes=60)
        await fill_tenants(connection, organizations=_TENANTS, policies_each=3)
    await fill_books(database, calls=_CALLS, organizations=20, months=(this_month(),))
    tenants = [await make_tenant(database) for _ in range(40)]
    async with database.transaction() as connection:
        await allow_long_statements(connection, minutes=60)
        wanted = LargeActivity(calls=_ACTIVITY, days=_DAYS, end=_end())
        await fill_activity(connection, tenants, wanted)
    return tenants


def _end() -> int:
    """Returns the timestamp of yesterday's noon. At the end of a day, the oldest day of the activity
    would have only a few rows, and a full scan of these would be right."""
    now = int(time.time())
    return now - now % 86_400 - 43_200


def _by_text(statements: list[Explained]) -> dict[str, list[Explained]]:
    found: dict[str, list[Explained]] = {}
    for statement in statements:
        found.setdefault(statement.text, []).append(statement)
    return found


_EXPECTED_OF_A_CALL = (
    "FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id FOR UPDATE",
    "LEFT JOIN project_keys k ON k.organization_id = ANY (%s)",
    "DELETE FROM unfolded WHERE organization_id = ANY (%s)",
    "INSERT INTO reservations (",
    "INSERT INTO resolutions (",
    "INSERT INTO unsettled_marks (",
    "INSERT INTO activity (",
    "INSERT INTO policy_verdicts (",
    "WHERE k.digest = ANY (%s::bytea[])",
    "WHERE p.organization_id = ANY (%s) AND p.current_version IS NOT NULL",
    "SELECT epoch FROM accounts WHERE organization_id = %s",
    "UPDATE project_accounts SET rate_units = %s",
    "UPDATE project_keys k SET last_used_at",
    "INSERT INTO processes (id)",
)


@pytest.mark.slow
async def test_a_call_reads_no_more_of_large_books(site: Site) -> None:
    # Before each measurement, other calls create the plans and fill the sessions' caches.
    await _calls(site)
    small = _by_text(await _calls(site))
    for part in _EXPECTED_OF_A_CALL:
        assert any(part in text for text in small), f"no call has sent: {part}"
    tenants = await _make_large(site)
    await _calls(site)
    large = _by_text(await _calls(site))
    for text, statements in large.items():
        before = max((one.buffers for one in small.get(text, [])), default=0)
        for one in statements:
            assert one.scanned_whole <= _SMALL_TABLES, (text, one.scanned_whole)
            # Releases add rows to the table of revisions; calls do not.
            if "schema_revisions" not in one.scanned_whole:
                assert one.rows_read <= _ROWS_MAX, (text, one.rows_read)
            assert one.buffers <= 2 * before + _BUFFERS_MORE_MAX, (text, before, one.buffers)
    assert set(small) <= set(large)
    # `test_distribution` finds every sent statement in the source.
    assert set(large) <= {statement.normal for statement in all_statements()}
    await _check_pages(site, tenants)


# Rows for three models on two backends and four replicas, with three statuses, for each hour of
# these days. The limit does not depend on the number of calls.
_ROLL_UP_ROWS_MAX = 100 * 24 * _DAYS
# Rows for six pairs of model and backend, and three measures with up to 40 buckets: by hour for two
# days and the rest of a day, and by day before that.
_LATENCY_ROWS_MAX = 6 * 3 * 40 * (3 * 24 + _DAYS)
_ROLL_UPS = {"traffic", "traffic_latency"}
# Rows that count each probability on each day.
_VERDICT_ROWS_MAX = 10_001 * _DAYS


async def _check_pages(site: Site, tenants: list[LedgerTenant]) -> None:
    """Checks each console page that reads activity. A statement may read either roll-ups, up to a limit
    that depends on the number of days, or the records that a page shows and their ledger rows."""
    services = site.judged.scripted.gateway.services
    await services.upkeep.keep_partitions()
    end = _end()
    days = TimeRange(end - _DAYS * 86_400, end)
    mine = TrafficFilter(organization_id=tenants[0].organization_id)
    page = services.traffic.activity_page
    pages: dict[str, Callable[[], Awaitable[object]]] = {
        "activity": lambda: page(TrafficFilter(), RareFilter(), days),
        "activity of an organization": lambda: page(mine, RareFilter(), days),
        "judged": lambda: page(mine, RareFilter(policy_id=POLICY), days),
        "matched": lambda: page(mine, RareFilter(policy_id=POLICY, matched_only=True), days),
        "dear": lambda: page(mine, RareFilter(cost_picousd_min=DEAREST), days),
        "dear of all": lambda: page(TrafficFilter(), RareFilter(cost_picousd_min=DEAREST), days),
        "sorted": lambda: page(mine, RareFilter(), days, sort=Sort(SortKey.COST)),
        "sorted of all": lambda: page(
            TrafficFilter(), RareFilter(), days, sort=Sort(SortKey.DURATION, ascending=True)
        ),
        "overview": lambda: services.traffic.traffic_report(days),
        "policy": lambda: services.policy_statistics.policy_report(
            tenants[0].organization_id, POLICY, days=_DAYS
        ),
    }
    for name, show in pages.items():
        with site.recorder.recording() as statements:
            await show()
        assert statements, name
        for one in statements:
            assert one.scanned_whole <= _SMALL_TABLES | _ROLL_UPS, (name, one.text)
            rows_max = _rows_max(one) + (_SORTED_ROWS_MAX if "sorted" in name else 0)
            assert one.rows_read <= rows_max, (name, one.text, one.rows_read)


def _rows_max(statement: Explained) -> int:
    if statement.tables == {"traffic_latency"}:
        return _LATENCY_ROWS_MAX
    if statement.tables <= _ROLL_UPS:
        return _ROLL_UP_ROWS_MAX
    if statement.tables == {"verdict_counts"}:
        return _VERDICT_ROWS_MAX
    return _PAGE_ROWS_MAX
