"""Tests that roll-ups equal the sums over all records, even if a record is written twice."""

import asyncio
import random
from collections import Counter
from typing import LiteralString
from uuid import uuid4

import pytest

from tests.support.activity_records import record_of, written
from tests.support.books import Books
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.activity import ActivityRecord, VerdictRecord
from tollkeeper.core.reports import DayRange
from tollkeeper.core.usage import Usage
from tollkeeper.reports import rollups, sums
from tollkeeper.reports.activity import store as activity
from tollkeeper.reports.traffic.rule import (
    STEP_S,
    Latencies,
    LatencyCount,
    StatusRange,
    TimeRange,
    TrafficFilter,
)

_START_S = 1_950_000_000 - 1_950_000_000 % STEP_S
_LONG_AGO_S = 1_600_000_000 - 1_600_000_000 % STEP_S
_POLICY = "pol_rollup"


def _records(books: Books, count: int, *, seed: int) -> list[ActivityRecord]:
    chance = random.Random(seed)
    return [
        record_of(
            books,
            model=f"model-{seed}-{chance.randrange(3)}",
            backend=chance.choice([None, "cluster"]),
            status=chance.choice([200, 200, 429, 502]),
            started_at_ms=_START_S * 1000 + chance.randrange(6 * STEP_S * 1000),
            duration_us=1000 * chance.randrange(1, 5000),
            first_piece_us=chance.choice([None, 20_000]),
            usage=chance.choice([None, Usage(10, 20, 3, 4)]),
            verdicts=(_verdict(chance),),
        )
        for _ in range(count)
    ]


def _verdict(chance: random.Random) -> VerdictRecord:
    probability = chance.choice([None, 100, 4999, 5000, 9000])
    return VerdictRecord(
        policy_id=_POLICY,
        version=1,
        direction="request",
        mode="monitoring",
        probability_basis_points=probability,
        threshold_basis_points=5000,
        matched=probability is not None and probability >= 5000,
        duration_ms=5,
        judged_at_ms=_START_S * 1000,
    )


async def test_roll_ups_count_every_record_once(books: Books) -> None:
    records = _records(books, 300, seed=1)
    database = books.services.database
    # Three processes write, and some records are written again, as after a commit in doubt.
    batches = [records[:100], records[100:200], records[200:], records[50:150]]

    async def write(batch: list[ActivityRecord]) -> None:
        async with database.round_trips() as trips:
            await activity.insert(trips, batch)

    await asyncio.gather(*(write(batch) for batch in batches))
    time = TimeRange(_START_S, _START_S + 6 * STEP_S)
    async with database.autocommit() as connection:
        by_tenant = await sums.count_by_step(
            connection, TrafficFilter(organization_id=books.organization), time
        )
        by_backend = [
            found
            for found in await sums.sum_by_backend(connection, time)
            if found.model.startswith("model-1-")
        ]
        latencies = [
            found
            for found in await sums.count_latencies(connection, time)
            if found.model.startswith("model-1-")
        ]
    expected = Counter((one.started_at_ms // 1000 // STEP_S, one.status) for one in records)
    assert {(one.step, one.status): one.requests for one in by_tenant} == expected
    assert sum(one.requests for one in by_backend) == 300
    assert sum(one.client_errors for one in by_backend) == sum(one.status == 429 for one in records)
    assert sum(one.failures for one in by_backend) == sum(one.status == 502 for one in records)
    with_usage = sum(one.prompt_tokens is not None for one in records)
    assert sum(one.cached_tokens for one in by_backend) == 3 * with_usage
    assert sum(one.duration_ms for one in by_backend) == sum(
        one.duration_us // 1000 for one in records
    )
    whole = [one for one in latencies if one.measure == "duration"]
    assert sum(one.requests for one in whole) == 300
    first = [one for one in latencies if one.measure == "first_piece"]
    assert sum(one.requests for one in first) == sum(
        one.first_piece_us is not None for one in records
    )
    # A percentile is accurate to a tenth of its value.
    found = Latencies(_by_bucket(whole)).percentile(0.5)
    median = sorted(one.duration_us // 1000 for one in records)[150]
    assert found is not None
    assert 0.9 * median <= found <= 1.1 * median


async def test_a_batch_that_waits_for_the_same_record_counts_it_once(books: Books) -> None:
    """A batch is sent again before its first attempt is committed, as if the connection had been lost."""
    records = _records(books, 4, seed=5)
    database = books.services.database

    async def again() -> None:
        async with database.round_trips() as trips:
            await activity.insert(trips, records[1:])

    async with database.round_trips() as trips:
        await trips.begin()
        await activity.insert(trips, records[:2])
        waiting = asyncio.ensure_future(again())
        async with asyncio.timeout(30):
            while not await books.sql(_WAITING):  # noqa: ASYNC110 - it polls the server
                await asyncio.sleep(0.01)
        await trips.commit()
    await waiting
    time = TimeRange(_START_S, _START_S + 6 * STEP_S)
    of_tenant = TrafficFilter(organization_id=books.organization)
    async with database.autocommit() as connection:
        counted = await sums.count_by_step(connection, of_tenant, time)
        latencies = await sums.count_latencies(connection, time)
    assert sum(one.requests for one in counted) == 4
    durations = [one for one in latencies if one.measure == "duration"]
    assert sum(one.requests for one in durations if one.model.startswith("model-5-")) == 4
    found = await books.services.activity.activity_list(organization_id=books.organization)
    assert {str(one.request_id) for one in found} == {one.request_id for one in records}
    assert [len(one.verdicts) for one in found] == [1] * 4


_WAITING: LiteralString = """
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def _by_bucket(counts: list[LatencyCount]) -> dict[int, int]:
    by_bucket: Counter[int] = Counter()
    for found in counts:
        by_bucket[found.bucket] += found.requests
    return dict(by_bucket)


async def test_filters_of_the_roll_up(books: Books) -> None:
    records = _records(books, 60, seed=2)
    await written(books.services.activity, *records)
    time = TimeRange(_START_S, _START_S + 6 * STEP_S)
    wanted = TrafficFilter(
        organization_id=books.organization,
        project_id=books.project,
        key_id=books.key,
        model="model-2-1",
        status=StatusRange(400, 499),
    )
    async with books.services.database.autocommit() as connection:
        found = await sums.count_by_step(connection, wanted, time)
        of_nobody = await sums.count_by_step(
            connection, TrafficFilter(organization_id=OrganizationId(uuid4())), time
        )
    expected = sum(one.model == "model-2-1" and one.status == 429 for one in records)
    assert sum(one.requests for one in found) == expected
    assert of_nobody == []


async def test_verdicts_are_counted_by_probability(books: Books) -> None:
    records = _records(books, 80, seed=3)
    await written(books.services.activity, *records)
    day = _START_S // 86_400
    async with books.services.database.autocommit() as connection:
        where = {"organization_id": books.organization, "policy_id": _POLICY}
        by_day, by_probability = [
            await sums.read(
                *(connection, sums.VERDICTS, DayRange(day, day + 1), where),
                by=(column,),
                add=("asked", "matched", "unanswered"),
            )
            for column in ("day", "probability_basis_points")
        ]
    verdicts = [one.verdicts[0] for one in records]
    unanswered = sum(one.probability_basis_points is None for one in verdicts)
    assert by_day == [(day, 80, sum(one.matched for one in verdicts), unanswered)]
    assert by_probability[0][0] == -1
    assert by_probability[0][3] == unanswered
    expected = Counter(
        one.probability_basis_points for one in verdicts if one.probability_basis_points is not None
    )
    assert {row[0]: row[1] for row in by_probability[1:]} == expected


async def test_what_is_older_than_the_records_is_deleted(books: Books) -> None:
    old = record_of(books, started_at_ms=1_000_000_000_000, verdicts=())
    await written(books.services.activity, old)
    database = books.services.database
    time = TimeRange(999_999_000, 1_000_001_000)
    wanted = TrafficFilter(organization_id=books.organization)
    async with database.autocommit() as connection:
        assert len(await sums.count_by_step(connection, wanted, time)) == 1
        await rollups.delete_before(connection, 1_000_100_000)
        assert await sums.count_by_step(connection, wanted, time) == []
        assert [
            found for found in await sums.sum_by_backend(connection, time) if found.requests
        ] == []


def test_percentiles_of_nothing_and_of_one() -> None:
    assert Latencies({}).percentile(0.99) is None
    one = Latencies({10: 1})
    for share in (0.5, 0.95, 0.99):
        assert one.percentile(share) == pytest.approx(1.1**10)
    three = Latencies({10: 2, 30: 1})
    assert three.percentile(0.5) == pytest.approx(1.1**10)
    assert three.percentile(0.95) == pytest.approx(1.1**30)


async def test_reports_of_days_say_the_same_by_hour_and_by_day(books: Books) -> None:
    records = [
        record_of(
            books,
            model="model-days",
            started_at_ms=(_LONG_AGO_S + number * 3571) * 1000,
            duration_us=1000 * (1 + number),
            verdicts=(),
        )
        for number in range(96)
    ]
    await written(books.services.activity, *records)
    days = TimeRange(_LONG_AGO_S, _LONG_AGO_S + 5 * 86_400)
    parts = [
        TimeRange(_LONG_AGO_S + day * 86_400, _LONG_AGO_S + (day + 1) * 86_400) for day in range(5)
    ]
    async with books.services.database.autocommit() as connection:

        async def requests(time: TimeRange) -> int:
            found = await sums.sum_by_backend(connection, time)
            return sum(one.requests for one in found if one.model == "model-days")

        async def by_bucket() -> dict[int, int]:
            found = await sums.count_latencies(connection, days)
            return _by_bucket(
                [one for one in found if (one.model, one.measure) == ("model-days", "duration")]
            )

        assert await requests(days) == sum([await requests(part) for part in parts]) == 96
        by_hour = await by_bucket()
        assert sum(by_hour.values()) == 96
        for _ in range(2):
            await rollups.sum_latencies_by_day(connection, _LONG_AGO_S + 3 * 86_400)
            assert await by_bucket() == by_hour
        [[rows]] = await (
            await connection.execute(
                """
                SELECT count(DISTINCT step) FROM traffic_latency
                WHERE model = 'model-days' AND step < %s
                """,
                ((_LONG_AGO_S + 3 * 86_400) // 86_400 * 288,),
            )
        ).fetchall()
        assert rows <= 4, "one step for each day"
