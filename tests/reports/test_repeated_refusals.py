"""Tests that repeated refusals are counted in limited memory, written once, and right in every roll-up."""

import random
from collections import Counter
from uuid import uuid4

import pytest
from msgspec.structs import replace

from tests.support.activity_records import UnsteadyDatabase, record_of, written
from tests.support.books import Books
from tollkeeper.core.access import KeyId, OrganizationId
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.core.views import RareFilter
from tollkeeper.reports import sums
from tollkeeper.reports.activity import repeated_refusals as refusals
from tollkeeper.reports.activity import service
from tollkeeper.reports.activity import store as activity
from tollkeeper.reports.activity.repeated_refusals import (
    KINDS_OF_ORGANIZATION_MAX,
    RepeatedRefusals,
    is_refusal,
)
from tollkeeper.reports.activity.service import Activity
from tollkeeper.reports.traffic.rule import STEP_S, TimeRange, TrafficFilter

_START_MS = 1_960_000_200_000 - 1_960_000_200_000 % (STEP_S * 1000)


def _refused(books: Books, **fields: object) -> ActivityRecord:
    return record_of(
        books,
        **{
            "started_at_ms": _START_MS,
            "duration_us": 10_000,
            "status": 402,
            "error_code": "payment_required",
            **dict.fromkeys(("usage", "finish", "first_piece_us", "backend", "replica")),
            "verdicts": (),
            **fields,
        },
    )


@pytest.fixture(autouse=True)
def _count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets refusals be counted from the second one on."""
    monkeypatch.setattr(refusals, "RECORDED_OF_ORGANIZATION_MAX", 1)


def test_the_first_refusals_of_an_organization_are_recorded_one_by_one(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "RECORDED_OF_ORGANIZATION_MAX", 3)
    counted, record = RepeatedRefusals(), _refused(books)
    other = replace(record, organization_id=OrganizationId(uuid4()))
    assert [counted.repeats(record) for _ in range(5)] == [False, False, False, True, True]
    assert not counted.repeats(other)
    # The first refusal that names another field has a record even then.
    assert not counted.repeats(replace(record, error_param="model"))
    assert [one.requests for one in counted.take()] == [2]
    assert not counted.repeats(record)


def test_only_what_was_refused_before_admission_is_counted(books: Books) -> None:
    refusal = _refused(books)
    assert is_refusal(refusal)
    for other in ({"status": 200}, {"settlement": "released"}, {"settlement": "unsettled"}):
        assert not is_refusal(replace(refusal, **other))


def test_every_refusal_is_counted_once_by_its_kind(books: Books) -> None:
    chance = random.Random(1)
    counted, expected, stored = RepeatedRefusals(), Counter[object](), Counter[object]()

    def kind(record: ActivityRecord) -> object:
        step = record.started_at_ms // 1000 // STEP_S
        return record.key_id, record.model, record.status, record.error_code, step

    keys = [KeyId(uuid4()) for _ in range(3)]
    rows = 0
    for turn in range(2000):
        record = _refused(
            books,
            key_id=chance.choice(keys),
            model=chance.choice(["a", "b"]),
            status=chance.choice([402, 429]),
            started_at_ms=_START_MS + chance.randrange(2 * STEP_S * 1000),
        )
        expected[kind(record)] += 1
        written_now = [] if counted.repeats(record) else [record]
        if turn % 500 == 499:
            written_now += counted.take()
        for one in written_now:
            stored[kind(one)] += one.requests
            rows += 1
    assert stored == expected
    # In each of the four intervals, every kind has at most one row for the first refusal and one
    # row for all others.
    assert rows <= 4 * 2 * len(expected)
    assert counted.take() == []


def test_one_organization_cannot_write_much_with_many_keys(books: Books) -> None:
    counted = RepeatedRefusals()
    hostile = [_refused(books, key_id=KeyId(uuid4())) for _ in range(5000)]
    stored = [record for record in hostile if not counted.repeats(record)]
    other = _refused(books, organization_id=OrganizationId(uuid4()))
    assert [counted.repeats(other), counted.repeats(other)] == [False, True]
    stored += [one for one in counted.take() if one.organization_id == books.organization]
    assert sum(record.requests for record in stored) == 5000
    assert len(stored) <= KINDS_OF_ORGANIZATION_MAX + 2


async def test_what_is_counted_is_bounded(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many kinds, the gateway writes the counted refusals early."""
    monkeypatch.setattr(refusals, "KINDS_MAX", 4)
    own = Activity(books.services.database, unix_now, retention_days=30)
    repeated = _refused(books)
    for number in range(3):
        own.record(replace(repeated, request_id=_refused(books).request_id))
        if number == 2:
            assert own.queued == 1
    for _ in range(3):
        own.record(_refused(books, key_id=KeyId(uuid4())))
    assert own.queued == 5
    await own.drain()
    assert await _requests(books) == 6


async def _requests(books: Books) -> int:
    found = await books.services.activity.activity_list(organization_id=books.organization)
    return sum(entry.requests for entry in found)


async def test_roll_ups_count_every_refusal_once(books: Books) -> None:
    model = f"refused-{uuid4()}"
    records = [_refused(books, model=model, requests=7, duration_us=20_000)]
    records.append(_refused(books, model=model))
    database = books.services.database
    # The records are written twice, as after a commit in doubt.
    for _ in range(2):
        async with database.round_trips() as trips:
            await activity.insert(trips, records)
    time = TimeRange(_START_MS // 1000, _START_MS // 1000 + STEP_S)
    days = TimeRange(time.start - 3 * 86_400, time.end)
    async with database.autocommit() as connection:
        of_tenant = TrafficFilter(organization_id=books.organization)
        steps = await sums.count_by_step(connection, of_tenant, time)
        latencies = await sums.count_latencies(connection, time)
        backends = [
            found
            for within in (time, days)
            for found in await sums.sum_by_backend(connection, within)
            if found.model == model
        ]
    assert [(found.status, found.requests) for found in steps] == [(402, 8)]
    for found in backends:
        assert (found.requests, found.client_errors, found.failures) == (8, 8, 0)
        assert found.duration_ms == 7 * 20 + 10
    assert len(backends) == 2
    assert sum(found.requests for found in latencies if found.model == model) == 8


async def test_pages_are_full_although_steps_have_few_records(books: Books) -> None:
    model = f"flooded-{uuid4()}"
    await written(
        books.services.activity,
        *(
            _refused(books, model=model, requests=5000, started_at_ms=_START_MS - step * 300_000)
            for step in range(8)
        ),
    )
    time = TimeRange(_START_MS // 1000 - 86_400, _START_MS // 1000 + STEP_S)
    for wanted in (
        TrafficFilter(organization_id=books.organization, model=model),
        TrafficFilter(model=model),
    ):
        page = await books.services.traffic.activity_page(wanted, RareFilter(), time, limit=6)
        assert [entry.requests for entry in page.entries] == [5000] * 6
        assert sum(found.requests for found in page.steps) == 8 * 5000


async def test_the_chore_writes_what_was_counted(books: Books) -> None:
    for _ in range(9):
        books.services.activity.record(_refused(books))
    await books.services.upkeep.write_refusals()
    assert books.services.activity.queued <= 2
    await books.services.activity.drain()
    assert await _requests(books) == 9


async def test_the_end_of_a_process_loses_no_count(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_RETRY_PAUSE_S_MAX", 0.1)
    database = UnsteadyDatabase(books.services.database)
    own = Activity(database, unix_now, retention_days=30)
    for _ in range(30):
        own.record(_refused(books))
    await own.drain()
    assert (await _requests(books), own.dropped) == (30, 0)
