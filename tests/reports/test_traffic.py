"""Tests that the pages of activity have every record once, newest first, with any filter and page length."""

import random
from collections import Counter
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from tests.support.activity_records import VERDICT, record_of, written
from tests.support.books import Books
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.usage import Usage
from tollkeeper.core.views import Position, RareFilter, Sort, SortKey
from tollkeeper.reports.traffic.rule import (
    STEP_S,
    STEPS_PER_HOUR,
    StatusRange,
    TimeRange,
    TrafficFilter,
)

_START_S = 1_960_000_000 - 1_960_000_000 % STEP_S
_TIME = TimeRange(_START_S, _START_S + 40 * STEP_S)
_NOTHING = RareFilter()


@pytest.fixture
async def records(books: Books) -> list[ActivityRecord]:
    """Writes records: many have the same timestamp, many are in the same step, some steps have none."""
    chance = random.Random(7)
    moments = [chance.randrange(40) * STEP_S * 1000 + chance.randrange(3) for _ in range(30)]
    made = [
        record_of(
            books,
            started_at_ms=_START_S * 1000 + chance.choice(moments),
            status=chance.choice([200, 200, 200, 404, 502]),
            cost_picousd=chance.choice([None, 10, 1000]),
            verdicts=chance.choice([(), (VERDICT,)]),
        )
        for _ in range(120)
    ]
    # The verdicts get a timestamp shortly after the start of their call.
    placed = [
        record_of(
            books,
            request_id=one.request_id,
            started_at_ms=one.started_at_ms,
            status=one.status,
            cost_picousd=one.cost_picousd,
            verdicts=tuple(
                type(verdict)(
                    **{
                        name: getattr(verdict, name)
                        for name in verdict.__struct_fields__
                        if name != "judged_at_ms"
                    },
                    judged_at_ms=one.started_at_ms + 5,
                )
                for verdict in one.verdicts
            ),
        )
        for one in made
    ]
    await written(books.services.activity, *placed)
    return placed


def _newest_first(records: Sequence[ActivityRecord]) -> list[UUID]:
    ordered = sorted(
        records, key=lambda one: (one.started_at_ms, UUID(one.request_id).bytes), reverse=True
    )
    return [UUID(one.request_id) for one in ordered]


async def _all_pages(
    books: Books,
    wanted: TrafficFilter,
    rare: RareFilter,
    limit: int,
    time: TimeRange = _TIME,
) -> list[UUID]:
    found: list[UUID] = []
    before: Position | None = None
    while True:
        page = await books.services.traffic.activity_page(
            wanted, rare, time, before=before, limit=limit
        )
        found += [entry.request_id for entry in page.entries]
        before = page.older
        if before is None:
            return found


async def _records_to_sort(books: Books) -> list[ActivityRecord]:
    """Writes records with equal, different and missing values."""
    chance = random.Random(11)
    records = [
        record_of(
            books,
            started_at_ms=_START_S * 1000 + chance.randrange(10) * STEP_S * 1000,
            duration_us=chance.randrange(1, 6) * 1000,
            first_piece_us=chance.choice([None, 1000, 2000, 3000]),
            usage=chance.choice([None, Usage(1, 1, 0, 0), Usage(2, 5, 0, 0), Usage(9, 0, 0, 0)]),
            cost_picousd=chance.choice([None, 0, 10, 2_000]),
        )
        for _ in range(40)
    ]
    await written(books.services.activity, *records)
    return records


def _value(record: ActivityRecord, key: SortKey) -> int | None:
    if key is SortKey.TOKENS:
        return (
            None
            if record.completion_tokens is None
            else (record.prompt_tokens or 0) + record.completion_tokens
        )
    values = {
        SortKey.TIME: record.started_at_ms,
        SortKey.FIRST_BYTE: record.first_piece_us,
        SortKey.DURATION: record.duration_us,
        SortKey.COST: record.cost_picousd,
    }
    return values[key]


def _in_order(records: Sequence[ActivityRecord], sort: Sort) -> list[UUID]:
    by_id = {UUID(one.request_id): _value(one, sort.key) for one in records}
    ids = _newest_first(records)
    known = [one for one in ids if by_id[one] is not None]
    known.sort(key=lambda one: (by_id[one] or 0) * (1 if sort.ascending else -1))
    return known + [one for one in ids if by_id[one] is None]


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("key", SortKey)
async def test_all_matching_calls_are_sorted(books: Books, key: SortKey, ascending: bool) -> None:
    records, sort = await _records_to_sort(books), Sort(key, ascending)
    page = await books.services.traffic.activity_page(
        TrafficFilter(organization_id=books.organization), _NOTHING, _TIME, sort=sort, limit=7
    )
    assert [entry.request_id for entry in page.entries] == _in_order(records, sort)[:7]
    assert (page.records_read, page.older) == (40, None)


async def test_a_sort_reads_a_limited_number_of_the_newest_calls(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.reports.traffic.service._READ_MAX", 15)
    records, sort = await _records_to_sort(books), Sort(SortKey.COST)
    by_id = {UUID(one.request_id): one for one in records}
    newest = [by_id[one] for one in _newest_first(records)]
    before: Position | None = None
    for first in (0, 15, 30):
        page = await books.services.traffic.activity_page(
            TrafficFilter(organization_id=books.organization),
            _NOTHING,
            _TIME,
            before=before,
            sort=sort,
        )
        window = newest[first : first + 15]
        assert [entry.request_id for entry in page.entries] == _in_order(window, sort)
        assert page.records_read == len(window)
        before = page.older
    assert before is None


async def test_judged_calls_are_sorted(books: Books, records: list[ActivityRecord]) -> None:
    sort = Sort(SortKey.COST)
    page = await books.services.traffic.activity_page(
        TrafficFilter(organization_id=books.organization),
        RareFilter(policy_id=VERDICT.policy_id),
        _TIME,
        sort=sort,
        limit=5,
    )
    judged = [one for one in records if one.verdicts]
    assert [entry.request_id for entry in page.entries] == _in_order(judged, sort)[:5]
    assert page.records_read == len(judged)


async def test_a_resolved_call_is_sorted_by_its_cost_in_the_ledger(books: Books) -> None:
    hold = await books.hold(1_000)
    records = [
        record_of(books, started_at_ms=_START_S * 1000, cost_picousd=cost) for cost in (100, 900)
    ]
    unsettled = record_of(
        books,
        request_id=str(hold.id),
        started_at_ms=_START_S * 1000,
        settlement="unsettled",
        hold_picousd=1_000,
    )
    await written(books.services.activity, *records, unsettled)
    await books.settle(hold, 500)
    page = await books.services.traffic.activity_page(
        TrafficFilter(organization_id=books.organization), _NOTHING, _TIME, sort=Sort(SortKey.COST)
    )
    assert [entry.cost_picousd for entry in page.entries] == [900, 500, 100]


@pytest.mark.parametrize("limit", [1, 7, 200])
async def test_pages_have_every_record_once(
    books: Books, records: list[ActivityRecord], limit: int
) -> None:
    wanted = TrafficFilter(organization_id=books.organization)
    assert await _all_pages(books, wanted, _NOTHING, limit) == _newest_first(records)


async def test_filters_by_status_policy_and_cost(
    books: Books, records: list[ActivityRecord]
) -> None:
    organization = books.organization
    errors = TrafficFilter(organization_id=organization, status=StatusRange(400, 599))
    assert await _all_pages(books, errors, _NOTHING, 7) == _newest_first(
        [one for one in records if one.status >= 400]
    )
    everything = TrafficFilter(organization_id=organization)
    dear = RareFilter(cost_picousd_min=1000)
    assert await _all_pages(books, everything, dear, 7) == _newest_first(
        [one for one in records if one.cost_picousd == 1000]
    )
    judged = RareFilter(policy_id=VERDICT.policy_id)
    assert await _all_pages(books, everything, judged, 7) == _newest_first(
        [one for one in records if one.verdicts]
    )
    matched = RareFilter(policy_id=VERDICT.policy_id, matched_only=True)
    assert await _all_pages(books, everything, matched, 7) == []


async def test_a_rare_match_is_found_by_searching_on(
    books: Books, records: list[ActivityRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page reads a limited number of records. A page without a match still leads to older records."""
    monkeypatch.setattr("tollkeeper.reports.traffic.service._READ_MAX", 10)
    dear = RareFilter(cost_picousd_min=1000)
    wanted = TrafficFilter(organization_id=books.organization)
    assert await _all_pages(books, wanted, dear, 50) == _newest_first(
        [one for one in records if one.cost_picousd == 1000]
    )


@pytest.mark.parametrize("read_max", [1, 30, 6000])
@pytest.mark.parametrize("days", [1, 9])
async def test_dear_calls_of_all_organizations(
    books: Books, monkeypatch: pytest.MonkeyPatch, read_max: int, days: int
) -> None:
    """The search skips hours without an expensive call."""
    monkeypatch.setattr("tollkeeper.reports.traffic.service._READ_MAX", read_max)
    monkeypatch.setattr("tollkeeper.reports.traffic.service._HOURS_AT_ONCE", 3)
    chance = random.Random(days)
    model = f"dear-{uuid4()}"
    records = [
        record_of(
            books,
            model=model,
            started_at_ms=_START_S * 1000 + chance.randrange(days * 86_400_000),
            cost_picousd=chance.choice([None, 10, 10, 10, 1000]),
        )
        for _ in range(150)
    ]
    await written(books.services.activity, *records)
    time = TimeRange(_START_S + 1000, _START_S + days * 86_400 - 1000)
    found = await _all_pages(
        books, TrafficFilter(model=model), RareFilter(cost_picousd_min=1000), 7, time
    )
    assert found == _newest_first(
        [
            one
            for one in records
            if one.cost_picousd == 1000
            # A page includes the whole step that contains its start time.
            and time.start // STEP_S * STEP_S * 1000 <= one.started_at_ms < time.end * 1000
        ]
    )


async def test_a_tenants_calls_of_days_are_counted_by_hour(books: Books) -> None:
    chance = random.Random(3)
    records = [
        record_of(
            books,
            status=chance.choice([200, 502]),
            started_at_ms=_START_S * 1000 + chance.randrange(5 * 86_400_000),
        )
        for _ in range(80)
    ]
    await written(books.services.activity, *records)
    page = await books.services.traffic.activity_page(
        TrafficFilter(organization_id=books.organization),
        _NOTHING,
        TimeRange(_START_S, _START_S + 5 * 86_400),
    )
    hours = Counter(
        (one.started_at_ms // 3_600_000 * STEPS_PER_HOUR, one.status) for one in records
    )
    assert {(one.step, one.status): one.requests for one in page.steps} == hours


async def test_another_organization_sees_nothing(
    books: Books, records: list[ActivityRecord]
) -> None:
    assert records
    other = await books.services.organizations.organization_create("Other")
    page = await books.services.traffic.activity_page(
        TrafficFilter(organization_id=other.id), _NOTHING, _TIME
    )
    assert (page.entries, page.steps, page.older) == ((), (), None)


async def test_bounds_of_reports(books: Books) -> None:
    with pytest.raises(InvalidRequest):
        await books.services.traffic.traffic_report(TimeRange(0, 367 * 86_400))
    with pytest.raises(InvalidRequest):
        await books.services.traffic.activity_page(TrafficFilter(), _NOTHING, _TIME, limit=201)
