"""Tests the upkeep of a worker: its tasks (chores) run regularly, even if one of them fails."""

import asyncio
from collections.abc import AsyncIterator
from typing import LiteralString
from uuid import uuid4

import pytest

from tests.support.books import USD, Books
from tests.support.scripted_gateway import eventually
from tests.support.tables import each
from tollkeeper.core.errors import Unavailable
from tollkeeper.money.unsettled.bulk_resolution import BulkAction, UnsettledRule
from tollkeeper.money.unsettled.recovery import Lease, Recovery
from tollkeeper.setup.calls import unsettled_rule
from tollkeeper.setup.settings import Settings
from tollkeeper.setup.upkeep import Upkeep, expensive_pause_s

_LEASE_S = 0.4


class _Chores(Upkeep):
    """Runs the real upkeep with a short lease."""

    def __init__(self, books: Books, rule: UnsettledRule | None = None) -> None:
        services = books.services
        self.process = uuid4()
        upkeep = services.upkeep
        super().__init__(
            database=services.database,
            ledger=services.ledger,
            excesses=services.excesses,
            key_use=upkeep.key_use,
            judge_costs=services.judge_costs,
            idempotency=upkeep.idempotency,
            lease=Lease(services.database, self.process, _LEASE_S),
            recovery=Recovery(services.database, _LEASE_S),
            bulk_resolution=services.bulk_resolution,
            unsettled_rule=rule,
            ledger_watch=upkeep.ledger_watch,
            ledger_months=services.months,
            activity=services.activity,
            audit=services.audit,
        )


@pytest.fixture
async def chores(books: Books) -> AsyncIterator[_Chores]:
    found = _Chores(books)
    yield found
    await found.stop()
    await books.sql("DELETE FROM processes WHERE id = %s", found.process)


async def _eventually(books: Books, query: LiteralString, parameter: object, expected: int) -> None:
    async with asyncio.timeout(20):
        while True:
            rows = await books.sql(query, parameter)
            if rows == [(expected,)]:
                return
            await asyncio.sleep(0.02)


async def test_a_serving_process_proves_its_life_and_keeps_the_days(
    books: Books, chores: _Chores
) -> None:
    chores.start()
    alive = (
        "SELECT count(*) FROM processes WHERE id = %s AND heartbeat_at > started_at"
        " AND heartbeat_at > clock_timestamp() - interval '1 second'"
    )
    await _eventually(books, alive, chores.process, 1)
    rows = await books.sql("SELECT to_char(now() AT TIME ZONE 'UTC', '\"activity_\"YYYYMMDD')")
    await _eventually(books, "SELECT count(*) FROM pg_class WHERE relname = %s", rows[0][0], 1)


async def test_what_other_processes_observed_is_read_again_and_again(
    books: Books, chores: _Chores
) -> None:
    """Otherwise each gateway would have to pay for a burst of its own."""
    chores.start()
    await books.services.excesses.load_first()
    model = f"example/{uuid4()}"
    await books.sql(
        "INSERT INTO observed_excesses VALUES (%s, 'b', current_date, 1, 2, now())", model
    )
    await eventually(lambda: bool(books.services.excesses.of(model)))
    await books.sql("DELETE FROM observed_excesses WHERE model = %s", model)
    await eventually(lambda: not books.services.excesses.of(model))


async def test_a_dead_process_is_found_by_a_steady_one(books: Books, chores: _Chores) -> None:
    hold = await books.hold(2 * USD)
    dead = uuid4()
    await books.sql("UPDATE reservations SET process_id = %s WHERE id = %s", dead, hold.id)
    await books.sql(
        "INSERT INTO processes (id, started_at, heartbeat_at) VALUES (%s,"
        " now() - interval '1 minute', now() - interval '1 minute')",
        dead,
    )
    # The lease is not steady yet, so no process may be declared dead.
    await chores.recover_dead()
    assert (await books.balance())["unsettled"] == 0
    chores.start()
    marks = "SELECT count(*) FROM unsettled_marks WHERE reservation_id = %s"
    await _eventually(books, marks, hold.id, 1)
    assert (await books.balance())["unsettled"] == 2 * USD
    await books.assert_right()


async def test_a_hold_without_a_registered_process_is_found(books: Books, chores: _Chores) -> None:
    hold = await books.hold(2 * USD)
    await books.sql("UPDATE reservations SET process_id = %s WHERE id = %s", uuid4(), hold.id)
    await chores.recover_unregistered()
    assert (await books.balance())["unsettled"] == 0, "not steady yet"
    chores.start()
    await asyncio.sleep(_LEASE_S)
    await _steady(chores)
    await chores.recover_dead()
    assert (await books.balance())["unsettled"] == 0, "that is for the other chore"
    marks = "SELECT count(*) FROM unsettled_marks WHERE reservation_id = %s"
    async with asyncio.timeout(20):
        while await books.sql(marks, hold.id) != [(1,)]:
            # If another sweep is running, this call does nothing.
            await chores.recover_unregistered()
    await books.assert_right()


async def _steady(chores: _Chores) -> None:
    async with asyncio.timeout(20):
        while not chores.lease.steady:  # noqa: ASYNC110 - the lease sets no event
            await asyncio.sleep(0.02)


async def test_what_nobody_resolved_is_resolved_by_the_rule(books: Books) -> None:
    old, young = await books.hold(2 * USD), await books.hold(3 * USD)
    for hold in (old, young):
        await books.leave_unsettled(hold)
    await books.sql(
        "UPDATE unsettled_marks SET marked_at = marked_at - interval '3 hours'"
        " WHERE reservation_id = %s",
        old.id,
    )
    await _Chores(books, rule=None).resolve_unsettled()
    assert (await books.balance())["unsettled"] == 5 * USD
    await _Chores(books, UnsettledRule(2, BulkAction.SETTLE_HOLD)).resolve_unsettled()
    balance = await books.balance()
    assert (balance["unsettled"], balance["settled"]) == (3 * USD, 2 * USD)
    await books.assert_right()


@each(
    ("declared", "rule"),
    [
        ({}, None),
        ({"unsettled_after_hours": 24}, None),
        ({"unsettled_resolution": "release"}, None),
        (
            {"unsettled_after_hours": 24, "unsettled_resolution": "release"},
            UnsettledRule(24, BulkAction.RELEASE),
        ),
        (
            {"unsettled_after_hours": 1, "unsettled_resolution": "settle_hold"},
            UnsettledRule(1, BulkAction.SETTLE_HOLD),
        ),
    ],
)
def test_the_settings_say_whether_there_is_a_rule(
    declared: dict[str, object], rule: UnsettledRule | None
) -> None:
    settings = Settings.model_validate({"ledger": declared})
    assert unsettled_rule(settings) == rule


@pytest.mark.parametrize("error", [Unavailable(), RuntimeError("a fault of ours")])
async def test_a_chore_that_fails_comes_round_again(
    chores: _Chores, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    turns = 0
    enough = asyncio.Event()

    async def fail() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            enough.set()
        raise error

    monkeypatch.setattr(chores, "send_heartbeat", fail)
    chores.start()
    await asyncio.wait_for(enough.wait(), 20)


@each(("took_s", "pause_s"), [(0.1, 60), (0.6, 60), (1.5, 150), (60, 600)])
def test_a_chore_that_takes_long_runs_more_rarely(took_s: float, pause_s: float) -> None:
    assert expensive_pause_s(60, took_s) == pytest.approx(pause_s)
