"""Tests holds whose commit is in doubt, whose caller was cancelled, or that a database crash has lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from tests.support.ledger import (
    LIMITS,
    Balance,
    LedgerTenant,
    Process,
    balance_of,
    count,
    fold,
    held,
    hold_of,
    make_ledger,
    make_tenant,
    release,
    rows,
    run,
    settlement,
)
from tollkeeper.core.errors import Unavailable
from tollkeeper.database.database import Connection, Contention, Database, RoundTrips
from tollkeeper.database.round_trips import BoundStatement, Rows, Statement
from tollkeeper.database.watched_connection import WatchedConnection
from tollkeeper.money.holds import ledger as ledger_module
from tollkeeper.money.holds.ledger import Ledger
from tollkeeper.money.holds.rule import Decision
from tollkeeper.money.holds.store import CommitInDoubt, LedgerStore
from tollkeeper.money.holds.values import Hold

T = TypeVar("T", bound=RoundTrips)


class FaultyDatabase(Database):
    """Injects the next fault of `faults` into each transaction that uses `round_trips`."""

    def __init__(self, conninfo: str) -> None:
        super().__init__(conninfo, pool_size=4, pool_timeout_s=30, statement_timeout_s=20)
        self.faults: list[str] = []
        self.late: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def round_trips_of(self, create: Callable[[WatchedConnection], T]) -> AsyncIterator[T]:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "late":
            trips = create(await self._pool.getconn())
            self._commit_late(trips)
            try:
                yield trips
            except Unavailable as exc:
                raise trips.translated(exc) from exc
            return
        async with super().round_trips_of(create) as trips:
            if fault == "contention":
                raise Contention
            _fail_commit(trips, fault)
            yield trips

    def _commit_late(self, trips: RoundTrips) -> None:
        """Simulates a connection that is lost after the commit was sent. The server commits 0.2 s
        later."""
        real_commit = trips.commit

        async def commit_later(*statements: BoundStatement) -> None:
            await asyncio.sleep(0.2)
            await real_commit(*statements)
            await self._pool.putconn(trips.connection)

        async def commit(*statements: BoundStatement) -> None:
            # The accounts stay locked until the late commit, as on a real server.
            self.late.append(asyncio.ensure_future(commit_later(*statements)))
            raise Unavailable

        setattr(trips, "commit", commit)  # noqa: B010 - replaces a method


def _fail_commit(trips: RoundTrips, fault: str) -> None:
    real_commit = trips.commit

    async def commit(*statements: BoundStatement) -> None:
        if fault == "never committed":
            raise Unavailable
        await real_commit(*statements)
        if fault == "reply lost":
            raise Unavailable

    setattr(trips, "commit", commit)  # noqa: B010 - replaces a method


@pytest.fixture
async def faulty(ledger_conninfo: str, verified_books: None) -> AsyncIterator[FaultyDatabase]:
    database = FaultyDatabase(ledger_conninfo)
    await database.open()
    yield database
    await asyncio.gather(*database.late)
    await database.close()


def ledger_on(database: Database, process: Process) -> Ledger:
    return make_ledger(LedgerStore(database, process.id, LIMITS), database)


@pytest.mark.parametrize("fault", ["reply lost", "never committed", "late"])
async def test_a_hold_in_doubt_does_not_stay(
    process: Process, faulty: FaultyDatabase, fault: str
) -> None:
    tenant = await make_tenant(process.database, credit=100)
    ledger = ledger_on(faulty, process)
    faulty.faults = [fault]
    results = await asyncio.gather(
        ledger.hold(hold_of(tenant, 10)), ledger.hold(hold_of(tenant, 20)), return_exceptions=True
    )
    assert all(isinstance(found, CommitInDoubt) for found in results), results
    assert await ledger.drain()
    assert await balance_of(process, tenant) == Balance(100, 0, 0, 0, 0)
    written = await count(
        process.database,
        "SELECT count(*) FROM reservations WHERE organization_id = %s",
        tenant.organization_id,
    )
    assert written == (0 if fault == "never committed" else 2)


async def test_a_process_that_stops_amid_a_hold_lets_the_account_go(
    process: Process, other_process: Process
) -> None:
    """A machine may freeze or lose its network while it has an account locked. The server ends its
    transaction before other processes stop waiting for the account."""
    tenant = await make_tenant(process.database, credit=100)
    decided = []
    with pytest.raises(Unavailable):
        async with process.store.hold_transaction() as frozen:
            locked = await frozen.lock([hold_of(tenant, 10)], lock_wait_s=None)
            decided.append(await other_process.ledger.hold(hold_of(tenant, 20)))
            await frozen.write(locked, [])
    assert decided == [Decision()]
    assert await balance_of(process, tenant) == Balance(80, 20, 0, 0, 0)


async def test_a_hold_that_met_contention_is_tried_again(
    process: Process, faulty: FaultyDatabase
) -> None:
    """A hold is tried four times, with pauses."""
    tenant = await make_tenant(process.database, credit=100)
    ledger = ledger_on(faulty, process)
    faulty.faults = ["contention"] * 3
    assert await ledger.hold(hold_of(tenant, 10)) == Decision()
    faulty.faults = ["contention"] * 4
    with pytest.raises(Contention):
        await ledger.hold(hold_of(tenant, 10))
    assert await balance_of(process, tenant) == Balance(90, 10, 0, 0, 0)


async def test_a_settlement_whose_reply_is_lost_is_settled_once(
    process: Process, faulty: FaultyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await make_tenant(process.database, credit=100)
    hold = await held(process, tenant, 10)
    ledger = ledger_on(faulty, process)
    reading = Database.autocommit
    losses = 2

    @asynccontextmanager
    async def lossy(database: Database) -> AsyncIterator[Connection]:
        nonlocal losses
        async with reading(database) as connection:
            yield connection
        if losses:
            losses -= 1
            raise Unavailable

    monkeypatch.setattr(FaultyDatabase, "autocommit", lossy)
    await ledger.resolve(settlement(hold, 4), hold)
    monkeypatch.undo()
    assert await balance_of(process, tenant) == Balance(96, 0, 0, 4, 0)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
async def test_a_hold_whose_caller_has_left_is_given_back(process: Process, turns: int) -> None:
    """The caller is cancelled before, during or just after the write of the batch."""
    tenant = await make_tenant(process.database, credit=100)
    calling = asyncio.ensure_future(process.ledger.hold(hold_of(tenant, 10)))
    for _ in range(turns):
        await asyncio.sleep(0.001)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    if calling.cancelled():
        assert await process.ledger.drain()
        assert await balance_of(process, tenant) == Balance(100, 0, 0, 0, 0)
    else:  # the hold was admitted before the cancellation
        assert await balance_of(process, tenant) == Balance(90, 10, 0, 0, 0)


async def test_nobody_waits_for_a_hold_for_ever(
    process: Process, other_process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the timeout, a queued hold is withdrawn. A hold that is being written is released after its
    commit."""
    monkeypatch.setattr(ledger_module, "_HOLD_WAIT_S", 0.2)
    tenant = await make_tenant(process.database, credit=100)
    async with other_process.database.transaction() as connection:
        await connection.execute(
            "SELECT FROM accounts WHERE organization_id = %s FOR UPDATE", (tenant.organization_id,)
        )
        for _ in range(2):
            with pytest.raises(Unavailable, match="busy"):
                await process.ledger.hold(hold_of(tenant, 10))
    assert await process.ledger.drain()
    monkeypatch.undo()
    assert await balance_of(process, tenant) == Balance(100, 0, 0, 0, 0)


async def test_a_committed_hold_without_a_delivered_decision_is_released(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_HOLD_WAIT_S", 0.2)
    monkeypatch.setattr(process.ledger.handout, "add", lambda _owner, _callback: None)
    tenant = await make_tenant(process.database, credit=100)
    with pytest.raises(Unavailable, match="busy"):
        await process.ledger.hold(hold_of(tenant, 10))
    assert await process.ledger.drain()
    monkeypatch.undo()
    assert await balance_of(process, tenant) == Balance(100, 0, 0, 0, 0)


async def test_a_settlement_goes_on_when_its_caller_leaves(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=100)
    holds = [await held(process, tenant, 10) for _ in range(3)]
    endings: list[Callable[[Hold], asyncio.Future[bool]]] = [
        lambda hold: asyncio.ensure_future(process.ledger.resolve(settlement(hold, 4), hold)),
        lambda hold: asyncio.ensure_future(process.ledger.resolve(release(hold), hold)),
        lambda hold: asyncio.ensure_future(process.ledger.mark_unsettled(hold, "gone")),
    ]
    for hold, end in zip(holds, endings, strict=True):
        ending = end(hold)
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        assert ending.cancelled()
    assert await process.ledger.drain()
    assert await balance_of(process, tenant) == Balance(86, 0, 10, 4, 0)


async def test_an_account_that_is_locked_for_good_is_busy(
    process: Process, ledger_conninfo: str
) -> None:
    tenant = await make_tenant(process.database, credit=100)
    impatient = Database(ledger_conninfo, pool_size=2, pool_timeout_s=5, statement_timeout_s=0.3)
    await impatient.open()
    try:
        async with process.database.transaction() as connection:
            await connection.execute(
                "SELECT FROM accounts WHERE organization_id = %s FOR UPDATE",
                (tenant.organization_id,),
            )
            with pytest.raises(Unavailable):
                await ledger_on(impatient, process).hold(hold_of(tenant, 1))
    finally:
        await impatient.close()
    await held(process, tenant, 1)


# Crashes of PostgreSQL. Holds are committed asynchronously, so a crash can lose a committed hold.


async def lose(process: Process, hold: Hold) -> None:
    """Removes the hold from the database, as a crash of PostgreSQL would."""
    await fold(process, tenant_of(hold))
    await run(
        process.database,
        """
        WITH gone AS (DELETE FROM reservations WHERE id = %s RETURNING organization_id, hold)
        UPDATE accounts a SET available = available + hold, held = held - hold
        FROM gone WHERE gone.organization_id = a.organization_id
        """,
        hold.id,
    )
    await run(
        process.database,
        """
        UPDATE project_accounts SET held = held - %s,
            live_holds = live_holds - 1 WHERE project_id = %s
        """,
        hold.hold_picousd,
        hold.project_id,
    )


def tenant_of(hold: Hold) -> LedgerTenant:
    return LedgerTenant(hold.organization_id, hold.project_id, hold.key_id)


async def test_a_settlement_of_a_lost_hold_is_written_all_the_same(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=10)
    hold = await held(process, tenant, 10)
    await lose(process, hold)
    # Another call gets the credit that the crash has released.
    await process.ledger.resolve(settlement(await held(process, tenant, 10), 10))
    assert await process.ledger.resolve(settlement(hold, 7), hold)
    assert not await process.ledger.resolve(settlement(hold, 7), hold)
    assert await balance_of(process, tenant) == Balance(-7, 0, 0, 17, 7)
    [row] = await rows(
        process.database,
        """
        SELECT r.hold, d.settled, o.amount FROM reservations r
        JOIN resolutions d ON d.reservation_id = r.id JOIN overages o ON o.reservation_id = r.id
        WHERE r.id = %s
        """,
        hold.id,
    )
    assert row == (0, 0, 7)


async def test_a_lost_hold_can_be_unsettled(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=10)
    hold = await held(process, tenant, 10)
    await lose(process, hold)
    assert await process.ledger.mark_unsettled(hold, "nobody knows")
    assert await balance_of(process, tenant) == Balance(10, 0, 0, 0, 0)
    assert await process.ledger.resolve(settlement(hold, 3), hold)
    assert await balance_of(process, tenant) == Balance(7, 0, 0, 3, 3)


async def test_a_release_of_a_lost_hold_has_nothing_to_do(process: Process) -> None:
    tenant = await make_tenant(process.database, credit=10)
    hold = await held(process, tenant, 10)
    await lose(process, hold)
    assert not await process.ledger.resolve(release(hold), hold)
    assert await balance_of(process, tenant) == Balance(10, 0, 0, 0, 0)
    assert process.ledger.open_holds == 0


async def test_settlements_are_synchronous_and_holds_are_not(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_durability(process, monkeypatch)


async def check_durability(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that holds are committed asynchronously and settlements synchronously. Asks the server for
    `synchronous_commit` right after each statement that writes a reservation or a resolution."""
    said: dict[str, set[str]] = {
        "INSERT INTO reservations": set(),
        "INSERT INTO resolutions": set(),
    }
    question = Statement("", "SHOW synchronous_commit").bind()
    send_all = RoundTrips._send_all

    async def asking(trips: RoundTrips, *statements: BoundStatement) -> list[Rows]:
        sent: list[BoundStatement] = []
        asked: dict[int, str] = {}
        for bound in statements:
            sent.append(bound)
            for what in said:
                if what in bound[0].sql:
                    asked[len(sent)] = what
                    sent.append(question)
        found = await send_all(trips, *sent)
        for at, what in asked.items():
            [[answer]] = found[at]
            said[what].add(answer)
        return [rows for at, rows in enumerate(found) if at not in asked]

    tenant = await make_tenant(process.database, credit=100)
    monkeypatch.setattr(RoundTrips, "_send_all", asking)
    hold = await held(process, tenant, 10)
    await process.ledger.resolve(settlement(hold, 4))
    monkeypatch.undo()
    assert said == {"INSERT INTO reservations": {"off"}, "INSERT INTO resolutions": {"on"}}
