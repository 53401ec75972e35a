"""Tests that verdict rows are written with their calls in batches of limited size, are partitioned
by day, and were migrated from the column in which older versions stored them."""

from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID, uuid4

import pytest

from tests.support.judged_gateway import JudgedGateway
from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.activity import ActivityRecord, VerdictRecord
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.reports.activity import partitions as activity_partitions
from tollkeeper.reports.activity import service
from tollkeeper.reports.activity.partitions import VERDICTS
from tollkeeper.reports.activity.service import Activity

_COUNT = "SELECT count(*) FROM policy_verdicts WHERE organization_id = %s"


def _verdict(number: int, judged_at_ms: int) -> VerdictRecord:
    return VerdictRecord(
        policy_id=f"pol_{number}",
        version=1,
        direction="request",
        mode="monitoring",
        probability_basis_points=None,
        threshold_basis_points=5000,
        matched=False,
        duration_ms=1,
        judged_at_ms=judged_at_ms,
    )


def _record(
    organization: OrganizationId, verdicts: int, at: datetime | None = None
) -> ActivityRecord:
    now_ms = int((at.timestamp() if at is not None else unix_now()) * 1000)
    return ActivityRecord(
        request_id=str(uuid4()),
        organization_id=organization,
        project_id=ProjectId(uuid4()),
        key_id=KeyId(uuid4()),
        operation="chat_create",
        model="m",
        streamed=False,
        started_at_ms=now_ms,
        duration_us=1000,
        first_piece_us=None,
        status=200,
        error_code=None,
        finish=None,
        estimated=False,
        hold_picousd=None,
        cost_picousd=None,
        settlement="none",
        backend=None,
        replica=None,
        verdicts=tuple(_verdict(number, now_ms) for number in range(verdicts)),
    )


def _activity(judged: JudgedGateway) -> Activity:
    return Activity(judged.scripted.gateway.services.database, unix_now, retention_days=30)


@pytest.fixture
def activity(judged: JudgedGateway) -> Activity:
    return _activity(judged)


async def test_calls_with_many_verdicts_are_written_in_several_batches(
    judged: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_BATCH_VERDICTS_MAX", 250)
    activity = _activity(judged)
    organization = judged.scripted.tenant.organization_id
    records = [_record(organization, 100) for _ in range(10)]
    for record in records:
        activity.record(record)
    batch = activity._batches._take_batch()
    assert batch == records[:3]
    activity._batches._put_back(batch)
    await activity.drain()
    assert await judged.scripted.sql(_COUNT, organization) == [(1000,)]
    shown = await activity.activity_show(UUID(records[9].request_id))
    assert sorted(shown.verdicts, key=lambda found: int(found.policy_id[4:])) == list(
        records[9].verdicts
    )
    listed = await activity.activity_list(organization_id=organization)
    assert {len(entry.verdicts) for entry in listed} == {100}


async def test_verdicts_that_wait_for_the_database_are_bounded(
    judged: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_QUEUED_VERDICTS_MAX", 350)
    activity = _activity(judged)
    organization = judged.scripted.tenant.organization_id
    for _ in range(10):
        activity.record(_record(organization, 100))
    assert (activity.queued, activity.dropped) == (3, 7)
    await activity.drain()
    assert await judged.scripted.sql(_COUNT, organization) == [(300,)]


async def test_the_same_batch_twice_leaves_each_verdict_once(
    judged: JudgedGateway, activity: Activity
) -> None:
    record = _record(judged.scripted.tenant.organization_id, 5)
    for _ in range(2):
        activity.record(record)
        await activity.drain()
    assert await judged.scripted.sql(_COUNT, record.organization_id) == [(5,)]


async def test_verdicts_are_kept_and_dropped_by_the_day(judged: JudgedGateway) -> None:
    database, organization = (
        judged.scripted.gateway.services.database,
        judged.scripted.tenant.organization_id,
    )
    first = datetime.now(UTC).date() - timedelta(days=4)

    def on(day: date) -> Activity:
        noon = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())
        return Activity(database, lambda: noon, retention_days=2)

    young, later = on(first), on(first + timedelta(days=4))
    await young.keep_partitions()
    days_of_records = [first + timedelta(days=ahead) for ahead in range(4)]
    records = [
        _record(organization, 3, datetime.combine(day, time(6), tzinfo=UTC))
        for day in days_of_records
    ]
    for record in records:
        young.record(record)
    await young.drain()
    tables = await judged.scripted.sql(
        "SELECT DISTINCT tableoid::regclass::text FROM policy_verdicts WHERE organization_id = %s"
        " ORDER BY 1",
        organization,
    )
    assert tables == [(f"policy_verdicts_{day:%Y%m%d}",) for day in days_of_records]
    await later.keep_partitions()
    assert await judged.scripted.sql(_COUNT, organization) == [(6,)]
    async with database.autocommit() as connection:
        days = await activity_partitions.find_days(connection, VERDICTS)
    assert first not in days
    assert first + timedelta(days=7) in days
