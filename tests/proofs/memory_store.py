"""A ledger store in memory, with the faults of a real store: errors, delays, lost replies, crashes.

Every operation has the steps and locks of the real store's SQL, and uses the domain's functions for
folds and decisions. A crash of the database loses transactions that did not wait for the disk. The
books are checked after each commit.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import NoReturn, cast
from uuid import UUID

from msgspec.structs import replace

from tests.proofs.memory_books import Books, Row, utc_day
from tollkeeper.core.access import KeyId, KeyStatus, OrganizationId
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.database import Connection, Contention, Database
from tollkeeper.database.watched_connection import WatchedConnection
from tollkeeper.money.holds.spend import FoldKind
from tollkeeper.money.holds.store import AccountBusy, CommitInDoubt, HoldTransaction, LedgerStore
from tollkeeper.money.holds.values import (
    Ending,
    Hold,
    LockedAccounts,
    Mark,
    Resolution,
    ResolutionKind,
)
from tollkeeper.money.overage.rule import Excess
from tollkeeper.money.overage.service import Excesses
from tollkeeper.policies.directory import PolicyDirectory
from tollkeeper.policies.policy_set import NO_POLICIES, PolicySet


class Killed(BaseException):
    """The process was killed. The server rolls back the process's open transactions."""


@dataclass
class Faults:
    """The probability of each fault at each step in which it can happen."""

    refused: float = 0.04
    contention: float = 0.04
    reply_lost: float = 0.04
    committed_late: float = 0.03
    never_committed: float = 0.03


START_US = 1_800_000_000_000_000  # microseconds since 1970
CALM = Faults(0, 0, 0, 0, 0)


@dataclass
class Counted:
    commits: int = 0
    doubts: int = 0
    crashes: int = 0
    restored: int = 0
    faults: int = 0


@dataclass
class MemoryDatabase:
    """The database that all processes share."""

    rng: random.Random
    books: Books
    faults: Faults = field(default_factory=Faults)
    counted: Counted = field(default_factory=Counted)
    epoch: int = 0
    now_us: int = START_US

    def __post_init__(self) -> None:
        # The state on the disk, which survives a crash.
        self._durable = self.books.copy()
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._late: set[asyncio.Task[None]] = set()

    async def step(self, process: "MemoryStore | None" = None, epoch: int | None = None) -> None:
        """Lets other tasks run. Raises `Killed` if the process was killed, and `Unavailable` if the
        server has crashed since `epoch`."""
        chance = self.rng.random()
        if chance < 0.4:
            await asyncio.sleep(0)
        elif chance < 0.6:
            await asyncio.sleep(self.rng.random() * 0.2)
        if process is not None and process.killed:
            raise Killed
        if epoch is not None and epoch != self.epoch:
            raise Unavailable("The server went away.")

    def happens(self, chance: float) -> bool:
        if self.rng.random() >= chance:
            return False
        self.counted.faults += 1
        return True

    @asynccontextmanager
    async def locked(
        self, ids: Iterable[UUID], epoch: int, wait_s: float | None = None
    ) -> AsyncIterator[None]:
        """Takes the locks in the order of their ids, which prevents deadlocks."""
        async with AsyncExitStack() as stack:
            for one in sorted(set(ids)):
                lock = self._locks.setdefault(one, asyncio.Lock())
                try:
                    async with asyncio.timeout(wait_s):
                        await stack.enter_async_context(lock)
                except TimeoutError:
                    raise AccountBusy from None
                if epoch != self.epoch:
                    raise Unavailable("The server went away.")
            yield

    def committed(self, *, durable: bool) -> None:
        self.counted.commits += 1
        self.books.check()
        if durable or self.rng.random() < 0.2:
            # A durable commit makes all earlier commits durable. The server also flushes at times.
            self._durable = self.books.copy()

    def crash(self) -> None:
        """Drops every connection, and every commit that was not on the disk."""
        self.epoch += 1
        self.counted.crashes += 1
        self.books = self._durable.copy()
        self._locks = {}

    def hold_on(self, task: asyncio.Task[None]) -> None:
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def settle_down(self) -> None:
        """Switches all faults off, and waits for the late commits of the server."""
        self.faults = CALM
        while self._late:
            await asyncio.wait(self._late)

    async def change_key(
        self, organization_id: OrganizationId, key_id: KeyId, status: KeyStatus
    ) -> None:
        """Changes a key under the lock that every admission takes."""
        epoch = self.epoch
        async with self.locked([organization_id], epoch):
            await self.step(epoch=epoch)
            state = self.books.accounts[organization_id]
            keys = {**state.keys, key_id: status}
            self.books.accounts[organization_id] = replace(state, keys=keys)
            self.committed(durable=True)

    async def grant(self, organization_id: OrganizationId, amount: int) -> None:
        epoch = self.epoch
        async with self.locked([organization_id], epoch):
            await self.step(epoch=epoch)
            self.books.grant(organization_id, amount)
            self.committed(durable=True)


class MemoryStore(LedgerStore):
    """The store of one process."""

    def __init__(self, database: MemoryDatabase, process_id: UUID) -> None:
        self.database = database
        self.process_id = process_id
        self.killed = False

    @asynccontextmanager
    async def hold_transaction(self) -> AsyncIterator["MemoryTransaction"]:
        try:
            async with AsyncExitStack() as locks:
                transaction = MemoryTransaction(self.database, self, locks)
                yield transaction
            await self._reply(transaction.epoch)
        except Killed:
            await _for_ever()

    async def resolve_all(self, batch: Sequence[Resolution]) -> Sequence[Ending]:
        epoch = self.database.epoch
        try:
            await self.begin(epoch)
            endings = await self._resolve(batch, epoch)
            await self._reply(epoch)
        except Killed:
            await _for_ever()
        return endings

    async def _resolve(self, wanted: Sequence[Resolution], epoch: int) -> list[Ending]:
        database = self.database
        first: dict[UUID, Resolution] = {}
        for found in wanted:
            first.setdefault(found.reservation_id, found)
        # In PostgreSQL, the primary key makes a second resolution wait for the first one's commit.
        async with database.locked(first, epoch):
            snapshot = database.books
            fresh = [
                found
                for one, found in first.items()
                if one in snapshot.reservations and one not in snapshot.resolutions
            ]
            await database.step(self, epoch)
            for found in fresh:
                database.books.resolve(found)
            database.books.excesses += [found.excess for found in wanted if found.excess]
            database.committed(durable=True)
        done = {found.reservation_id for found in fresh}
        return [self._ending(found.reservation_id, done) for found in wanted]

    def _ending(self, reservation_id: UUID, done: set[UUID]) -> Ending:
        if reservation_id in done:
            done.remove(reservation_id)
            return Ending.DONE
        known = reservation_id in self.database.books.reservations
        return Ending.ALREADY_ENDED if known else Ending.MISSING

    async def try_hold(self, reservation_id: UUID) -> None:
        """Is not implemented, because no history calls it."""
        raise NotImplementedError(reservation_id)

    async def release_in_doubt(self, holds: Sequence[Hold]) -> None:
        epoch = self.database.epoch
        try:
            await self.begin(epoch)
            async with self.database.locked({hold.organization_id for hold in holds}, epoch):
                await self._resolve(
                    [
                        Resolution(
                            hold.organization_id, hold.id, ResolutionKind.RELEASED, "in doubt"
                        )
                        for hold in holds
                    ],
                    epoch,
                )
            await self._reply(epoch)
        except Killed:
            await _for_ever()

    async def mark_all(self, marks: Sequence[Mark]) -> Sequence[Ending]:
        epoch = self.database.epoch
        database = self.database
        try:
            await self.begin(epoch)
            async with database.locked({mark.organization_id for mark in marks}, epoch):
                await database.step(self, epoch)
                done = {
                    mark.reservation_id
                    for mark in marks
                    if database.books.mark(mark.reservation_id)
                }
                database.committed(durable=True)
            await self._reply(epoch)
        except Killed:
            await _for_ever()
        return [self._ending(mark.reservation_id, done) for mark in marks]

    async def restore_all(self, holds: Sequence[Hold]) -> None:
        epoch = self.database.epoch
        database = self.database
        try:
            await self.begin(epoch)
            async with database.locked({hold.organization_id for hold in holds}, epoch):
                await database.step(self, epoch)
                for hold in holds:
                    restored = Row(
                        replace(hold, hold_picousd=0, overage_max_picousd=0),
                        self.process_id,
                        utc_day(database.now_us),
                    )
                    database.counted.restored += database.books.restore(restored)
                database.committed(durable=True)
            await self._reply(epoch)
        except Killed:
            await _for_ever()

    async def begin(self, epoch: int) -> None:
        await self.database.step(self, epoch)
        if self.database.happens(self.database.faults.refused):
            raise Unavailable("The database refuses.")

    async def _reply(self, epoch: int) -> None:
        if self.database.happens(self.database.faults.reply_lost):
            raise CommitInDoubt
        await self.database.step(self)


class MemoryExcesses(Excesses):
    """Reads the cases of all processes from the memory."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store = store
        super().__init__(cast("Database", None), clock)

    async def overage_models(self) -> Sequence[Excess]:
        database = self._store.database
        try:
            await self._store.begin(database.epoch)
            found = database.books.excesses.copy()
            await database.step(self._store)
        except Killed:
            await _for_ever()
        return found


class MemoryTransaction(HoldTransaction):
    """A transaction that writes holds, with its possible faults."""

    # There is no database to read from, and `NoPolicies` reads nothing.
    connection = cast("WatchedConnection", None)

    def __init__(self, database: MemoryDatabase, store: MemoryStore, locks: AsyncExitStack) -> None:
        self._database = database
        self._store = store
        self._locks = locks
        self._folded: set[tuple[UUID, FoldKind]] = set()
        self.epoch = database.epoch

    async def lock(self, holds: Sequence[Hold], *, lock_wait_s: float | None) -> LockedAccounts:
        database = self._database
        await self._store.begin(self.epoch)
        organizations = {hold.organization_id for hold in holds}
        await self._locks.enter_async_context(
            database.locked(organizations, self.epoch, lock_wait_s)
        )
        await database.step(self._store, self.epoch)
        database.books.note_debtors(organizations)
        locked, self._folded = database.books.lock(organizations, database.now_us)
        return locked

    async def write(self, accounts: LockedAccounts, admitted: Sequence[Hold]) -> None:
        database = self._database
        await database.step(self._store, self.epoch)
        if database.happens(database.faults.contention):
            raise Contention
        if database.happens(database.faults.never_committed):
            raise _in_doubt(database)
        if database.happens(database.faults.committed_late):
            # The client has lost the connection. The server keeps the locks and commits later.
            late = self._commit_late(self._locks.pop_all(), accounts, admitted)
            database.hold_on(asyncio.ensure_future(late))
            raise _in_doubt(database)
        self._commit(accounts, admitted)
        if database.happens(database.faults.reply_lost):
            raise _in_doubt(database)

    async def _commit_late(
        self, locks: AsyncExitStack, accounts: LockedAccounts, admitted: Sequence[Hold]
    ) -> None:
        async with locks:
            await asyncio.sleep(self._database.rng.random() * 3)
            if self.epoch == self._database.epoch:
                self._commit(accounts, admitted)

    def _commit(self, accounts: LockedAccounts, admitted: Sequence[Hold]) -> None:
        books = self._database.books
        for hold in admitted:
            assert books.accounts[hold.organization_id].keys[hold.key_id] is KeyStatus.ACTIVE
        books.write_holds(accounts, self._folded, admitted, self._store.process_id)
        self._database.committed(durable=False)


class NoPolicies(PolicyDirectory):
    """The directory of organizations that have no policies."""

    def __init__(self) -> None:
        super().__init__(default_threshold=5000)

    async def current(
        self, connection: Connection, epochs: Mapping[OrganizationId, int]
    ) -> dict[OrganizationId, PolicySet]:
        return dict.fromkeys(epochs, NO_POLICIES)


def _in_doubt(database: MemoryDatabase) -> CommitInDoubt:
    database.counted.doubts += 1
    return CommitInDoubt()


async def _for_ever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError
