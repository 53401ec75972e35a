"""Tests activity records: they are written in batches, and shown with the current state of the ledger."""

import asyncio
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.support.activity_records import VERDICT, UnsteadyDatabase, record_of, written
from tests.support.books import USD, Books, open_books
from tests.support.gateway import Gateway
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.core.usage import Usage
from tollkeeper.core.views import ActivityEntry
from tollkeeper.money.holds.values import Hold
from tollkeeper.reports.activity import service
from tollkeeper.reports.activity.service import Activity


async def _show(books: Books, identity: str | UUID) -> ActivityEntry:
    return await books.services.activity.activity_show(UUID(str(identity)))


def _of(books: Books, hold: Hold, settlement: str, cost: int | None) -> ActivityRecord:
    return record_of(
        books,
        request_id=str(hold.id),
        hold_picousd=hold.hold_picousd,
        cost_picousd=cost,
        settlement=settlement,
    )


async def test_everything_that_was_recorded_is_shown(books: Books) -> None:
    hold = await books.spend(5 * USD, 2 * USD)
    record = _of(books, hold, "settled", 2 * USD)
    await written(books.services.activity, record)
    entry = await _show(books, hold.id)
    assert entry == ActivityEntry(
        request_id=hold.id,
        organization_id=books.organization,
        project_id=books.project,
        key_id=books.key,
        model=record.model,
        started_at_ms=record.started_at_ms,
        operation="chat_create",
        streamed=True,
        duration_ms=456,
        first_piece_ms=78,
        status=200,
        error_code=None,
        finish="stop",
        usage=Usage(10, 20, 3, 4),
        estimated=False,
        hold_picousd=5 * USD,
        cost_picousd=2 * USD,
        settlement="settled",
        unsettled_reason=None,
        backend="cluster",
        replica="http://10.0.0.5:8000/v1",
        reported_usage=None,
        reported_cost_picousd=None,
        verdicts=(VERDICT,),
    )
    await books.assert_right()


async def test_rare_counts_take_no_space_if_they_are_zero(books: Books) -> None:
    rare = Usage(11, 20, cache_write_tokens=5, cache_write_1h_tokens=6, web_searches=7)
    audio = Usage(12, 20, input_audio_tokens=8, output_audio_tokens=9)
    records = [record_of(books, usage=usage) for usage in (Usage(10, 20), rare, audio)]
    await written(books.services.activity, *records)
    stored = await books.sql(
        """
        SELECT cache_write_tokens, web_searches, input_audio_tokens, output_audio_tokens
        FROM activity WHERE organization_id = %s ORDER BY prompt_tokens
        """,
        books.organization,
    )
    assert stored == [(None, None, None, None), (11, 7, None, None), (None, None, 8, 9)]
    # The activity record has one count of tokens written to a cache, for both cache durations.
    shown = [Usage(10, 20), Usage(11, 20, cache_write_tokens=11, web_searches=7), audio]
    assert [(await _show(books, record.request_id)).usage for record in records] == shown


async def test_a_refused_call_has_no_hold_and_no_cost(books: Books) -> None:
    record = record_of(
        books,
        status=402,
        error_code="payment_required",
        usage=None,
        finish=None,
        first_piece_us=None,
        backend=None,
        replica=None,
        verdicts=(),
    )
    await written(books.services.activity, record)
    entry = await _show(books, record.request_id)
    assert (entry.status, entry.error_code, entry.settlement) == (402, "payment_required", "none")
    missing = (entry.usage, entry.hold_picousd, entry.cost_picousd, entry.backend, entry.replica)
    assert set(missing) == {None}
    assert entry.verdicts == ()


async def test_amounts_of_any_width_come_back_exactly(books: Books) -> None:
    wide = 10**12 * USD + 1
    record = record_of(books, hold_picousd=wide, cost_picousd=wide)
    await written(books.services.activity, record)
    entry = await _show(books, record.request_id)
    assert (entry.hold_picousd, entry.cost_picousd) == (wide, wide)


async def test_words_that_a_database_cannot_keep_do_no_harm(books: Books) -> None:
    record = record_of(books, finish="a\x00b", error_code="\ud800", model="m" * 10_000)
    await written(books.services.activity, record)
    entry = await _show(books, record.request_id)
    assert (entry.finish, entry.error_code) == ("a\ufffdb", "?")
    assert entry.model == "m" * 512


async def test_a_record_is_kept_once(books: Books) -> None:
    dropped = books.services.activity.dropped
    record = record_of(books)
    await written(books.services.activity, record, record)
    await written(books.services.activity, replace(record, status=500))
    found = await books.services.activity.activity_list(organization_id=books.organization)
    assert [entry.status for entry in found] == [200]
    assert books.services.activity.dropped == dropped


async def test_without_a_record_the_ledger_tells(books: Books) -> None:
    """A process that died may have written its holds, but no activity records."""
    hold = await books.hold(3 * USD)
    entry = await _show(books, hold.id)
    assert (entry.settlement, entry.hold_picousd, entry.cost_picousd) == ("held", 3 * USD, None)
    assert (entry.status, entry.operation, entry.usage, entry.backend) == (None, None, None, None)
    assert (entry.project_id, entry.key_id, entry.verdicts) == (books.project, books.key, ())
    assert abs(entry.started_at_ms / 1000 - unix_now()) < 3600
    await books.leave_unsettled(hold, "the process died")
    entry = await _show(books, hold.id)
    assert (entry.settlement, entry.cost_picousd) == ("unsettled", None)
    assert entry.unsettled_reason == "the process died"
    await books.services.reconciliation.ledger_resolve(hold.id, settle_picousd=4 * USD)
    entry = await _show(books, hold.id)
    assert (entry.settlement, entry.cost_picousd) == ("settled", 4 * USD)
    assert entry.unsettled_reason is None


async def test_what_became_of_the_money_is_told_by_the_ledger(books: Books) -> None:
    hold = await books.hold(3 * USD)
    await books.leave_unsettled(hold, "reset")
    await written(books.services.activity, _of(books, hold, "unsettled", None))
    assert (await _show(books, hold.id)).unsettled_reason == "reset"
    await books.services.reconciliation.ledger_resolve(hold.id, settle_picousd=None)
    for entry in (
        await _show(books, hold.id),
        *await books.services.activity.activity_list(organization_id=books.organization),
    ):
        assert (entry.settlement, entry.cost_picousd, entry.status) == ("released", 0, 200)


async def test_unknown_requests_are_not_found(books: Books) -> None:
    with pytest.raises(NotFound):
        await _show(books, uuid4())


async def test_the_list_is_newest_first_and_filtered(books: Books) -> None:
    other = await books.second_project()
    records = [
        record_of(whose, status=status, started_at_ms=1_800_000_000_000 + at)
        for at, (whose, status) in enumerate(
            [(books, 200), (other, 200), (books, 429), (other, 502), (books, 200)]
        )
    ]
    await written(books.services.activity, *records[::-1])

    async def found(**filters: object) -> list[int]:
        entries = await books.services.activity.activity_list(
            organization_id=books.organization,
            **filters,  # type: ignore[arg-type]
        )
        by_id = {record.request_id: at for at, record in enumerate(records)}
        return [by_id[str(entry.request_id)] for entry in entries]

    assert await found() == [4, 3, 2, 1, 0]
    assert await found(limit=2) == [4, 3]
    assert await found(status=200) == [4, 1, 0]
    assert await found(project_id=other.project) == [3, 1]
    assert await found(project_id=other.project, status=502, limit=1) == [3]
    assert await found(status=418) == []
    everybody = await books.services.activity.activity_list(limit=1000)
    assert len(everybody) >= 5
    times = [entry.started_at_ms for entry in everybody]
    assert times == sorted(times, reverse=True)
    for limit in (0, 1001):
        with pytest.raises(InvalidRequest):
            await found(limit=limit)


def _dropped() -> float:
    return REGISTRY.get_sample_value("tollkeeper_dropped_activity_records_total") or 0.0


async def test_many_records_go_out_in_batches(books: Books) -> None:
    activity = books.services.activity
    await written(activity, *(record_of(books) for _ in range(1300)))
    rows = await books.sql(
        "SELECT count(*) FROM activity WHERE organization_id = %s", books.organization
    )
    assert rows == [(1300,)]
    assert (activity.queued, activity.dropped) == (0, 0)


async def test_when_the_database_is_away_the_newest_are_kept(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_RETRY_PAUSE_S_MAX", 0.1)
    database = UnsteadyDatabase(books.services.database)
    activity = Activity(database, unix_now, retention_days=30, queued_max=5)
    before = _dropped()
    database.away = True
    records = [record_of(books, started_at_ms=1_700_000_000_000 + at) for at in range(12)]
    for record in records[:8]:
        activity.record(record)
    await asyncio.wait_for(database.refused.wait(), 20)
    for record in records[8:]:
        activity.record(record)
    assert (activity.queued, activity.dropped) == (5, 7)
    database.away = False
    await activity.drain()
    found = await books.services.activity.activity_list(organization_id=books.organization)
    assert [str(entry.request_id) for entry in found] == [
        record.request_id for record in reversed(records[7:])
    ]
    assert (activity.queued, activity.dropped) == (0, 7)
    assert _dropped() - before == 7


async def test_verdicts_of_one_tenant_cost_no_record_of_another(
    books: Books, books_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call has up to 2,000 verdicts, so a hundred calls of one tenant fill the queue."""
    monkeypatch.setattr(service, "_QUEUED_VERDICTS_MAX", 10)
    other = await open_books(books_gateway, await books_gateway.make_tenant())
    activity = Activity(books.services.database, unix_now, retention_days=30)
    quiet = record_of(other, verdicts=(VERDICT,))
    activity.record(quiet)
    activity.record(*(record_of(books, verdicts=(VERDICT,) * 3) for _ in range(10)))
    assert (activity.queued, activity.dropped) == (4, 7)
    await activity.drain()
    assert (await _show(other, quiet.request_id)).status == 200


async def test_what_cannot_be_written_is_given_up_alone(books: Books) -> None:
    activity = Activity(books.services.database, unix_now, retention_days=30)
    before = _dropped()
    await written(activity, record_of(books, request_id="no uuid"))
    assert (activity.queued, activity.dropped) == (0, 1)
    assert _dropped() - before == 1
    fine = record_of(books)
    await written(activity, fine)
    assert (await _show(books, fine.request_id)).status == 200
    assert activity.dropped == 1


async def test_a_bad_record_of_one_tenant_costs_no_record_of_another(
    books: Books, books_gateway: Gateway
) -> None:
    other = await open_books(books_gateway, await books_gateway.make_tenant())
    activity = Activity(books.services.database, unix_now, retention_days=30)
    before = _dropped()
    records = [record_of(whose) for whose in (books, other) * 20]
    bad = [
        record_of(books, reported_cost_picousd=10**60),
        record_of(books, usage=Usage(2**63, 1)),
        record_of(books, verdicts=(replace(VERDICT, version=2**31),)),
    ]
    with capture_logs() as logs:
        await written(activity, *records[:7], bad[0], *records[7:30], bad[1], *records[30:], bad[2])
    assert (activity.queued, activity.dropped) == (0, 3)
    assert _dropped() - before == 3
    assert [line["event"] for line in logs].count("an item is given up") == 3
    for whose in (books, other):
        found = await whose.services.activity.activity_list(organization_id=whose.organization)
        mine = {one.request_id for one in records if one.organization_id == whose.organization}
        assert {str(entry.request_id) for entry in found} == mine


async def test_who_ends_does_not_wait_for_ever(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_DRAIN_TIMEOUT_S", 0.2)
    database = UnsteadyDatabase(books.services.database)
    database.away = True
    activity = Activity(database, unix_now, retention_days=30)
    before = _dropped()
    await written(activity, record_of(books), record_of(books))
    assert (activity.queued, activity.dropped) == (0, 2)
    assert _dropped() - before == 2
    await activity.drain()
