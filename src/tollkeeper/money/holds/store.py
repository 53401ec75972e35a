"""The ledger's transactions: where each begins and ends. Errors tell whether data was written.
Decides nothing about money and calls no service."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from operator import attrgetter
from uuid import UUID

from psycopg import Rollback
from psycopg import errors as pg

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import Unavailable
from tollkeeper.database import processes
from tollkeeper.database.account_locks import lock_account_rows
from tollkeeper.database.database import Connection, Contention, Database, RoundTrips
from tollkeeper.database.reachability import RETRY_AFTER_S
from tollkeeper.database.watched_connection import WatchedConnection
from tollkeeper.money.caps import store as caps
from tollkeeper.money.holds import statements as ledger
from tollkeeper.money.holds.rule import DefaultLimits
from tollkeeper.money.holds.values import (
    Ending,
    Hold,
    LockedAccounts,
    Mark,
    Resolution,
    ResolutionKind,
)
from tollkeeper.money.overage import store as excesses
from tollkeeper.money.settlement import store as resolutions


class AccountBusy(Unavailable):
    """Raised if another transaction has locked an account, or the tables of the ledger, for too
    long. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("The organization's account is busy.", retry_after_s=RETRY_AFTER_S)


class LedgerLocked(Unavailable):
    """Raised if a whole table that every hold needs is locked, so that no organization's calls can be
    admitted. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("A table that every call needs is locked.", retry_after_s=RETRY_AFTER_S)


class CommitInDoubt(Unavailable):
    """Raised if the answer to a commit was lost, so that the transaction may or may not be
    committed."""

    def __init__(self) -> None:
        super().__init__("The database is unavailable; try again.", retry_after_s=RETRY_AFTER_S)


class MonthClosed(Unavailable):
    """Raised if the ledger month of a request id is closed. The request id contains the time on the
    gateway's machine, so the clock of that machine is wrong. Nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "The clock of the gateway is wrong: the ledger has closed the month that it shows.",
            retry_after_s=RETRY_AFTER_S,
        )


# Integers hash faster than UUIDs.
_subjects = attrgetter("organization_id.int", "project_id.int", "key_id.int")


class CappedOrganizations:
    """So a hold transaction reads their caps in the round trip that locks the accounts. May be
    outdated: the account says it."""

    _MAX = 10_000

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def includes_any(self, organization_ids: Iterable[int]) -> bool:
        return not self._ids.isdisjoint(organization_ids)

    def noted(self, locked: LockedAccounts) -> list[OrganizationId]:
        capped = [*ledger.capped_organizations(locked)]
        if self._ids or capped:
            self._ids.difference_update(one.int for one in locked.states)
            if len(self._ids) >= self._MAX:
                self._ids.clear()
            self._ids.update(one.int for one in capped)
        return capped


class HoldTransaction(RoundTrips):
    """Two round trips: `lock`, then `write`, which also commits."""

    def __init__(
        self,
        process_id: UUID,
        limits: DefaultLimits,
        capped: "CappedOrganizations",
        connection: WatchedConnection,
    ) -> None:
        super().__init__(connection)
        self._process_id = process_id
        self._limits = limits
        self._capped = capped
        # From then on it may be committed, even if an error follows.
        self.commit_sent = False

    async def lock(self, holds: Sequence[Hold], *, lock_wait_s: float | None) -> LockedAccounts:
        """AccountBusy if a lock takes longer than `lock_wait_s`, or if that's None, the
        connection's timeout."""
        subjects: list[tuple[int, ...]] = [*zip(*set(map(_subjects, holds)), strict=True)]
        statements = ledger.lock_statements(*subjects)
        read_caps = caps.read_statement(*subjects)
        # A new organization here costs one more round trip if it has caps.
        with_caps = (read_caps,) if self._capped.includes_any(subjects[0]) else ()
        try:
            _, *rows = await self.begin(
                ledger.fast_transaction(lock_wait_s), *statements, *with_caps
            )
        except pg.LockNotAvailable as exc:
            raise AccountBusy from exc
        locked = ledger.locked_accounts(rows[: len(statements)], self._limits)
        capped = self._capped.noted(locked)
        if not capped:
            return locked
        cap_rows = rows[-1] if with_caps else (await self.read(read_caps))[0]
        locked, is_behind = caps.with_caps(locked, cap_rows)
        if is_behind:
            await ledger.recount_caps(self.connection, capped)
            [cap_rows] = await self.read(read_caps)
            locked, _ = caps.with_caps(locked, cap_rows)
        return locked

    async def write(self, accounts: LockedAccounts, admitted: Sequence[Hold]) -> None:
        """And commits. AccountBusy if a table stays locked for longer than `lock`'s wait, for
        example while a month is added or dropped."""
        if admitted:
            statements = ledger.write_holds_statements(self._process_id, admitted, accounts)
        else:
            statements = ledger.write_states_statements(accounts.states)
        self.commit_sent = True
        try:
            await self.commit(*statements)
        except pg.LockNotAvailable as exc:
            raise AccountBusy from exc

    def translated(self, error: Exception) -> Exception:
        """Tells whether the transaction was written."""
        if isinstance(error, pg.RestrictViolation):
            return MonthClosed()
        if isinstance(error, (pg.IntegrityError, pg.DataError, Contention, AccountBusy)):
            return error  # the server rejected a statement, so the transaction was not committed
        # After other errors it may be committed or not.
        return CommitInDoubt() if self.commit_sent else error


class LedgerStore:
    def __init__(self, database: Database, process_id: UUID, limits: DefaultLimits) -> None:
        self._database = database
        self._process_id = process_id
        self._new_transaction = partial(HoldTransaction, process_id, limits, CappedOrganizations())

    def hold_transaction(self) -> AbstractAsyncContextManager[HoldTransaction]:
        """If the block raises anything but CommitInDoubt, nothing was written."""
        return self._database.round_trips_of(self._new_transaction)

    async def try_hold(self, reservation_id: UUID) -> None:
        """Writes an empty hold and rolls it back. Raises what a real one would get."""
        async with self._database.transaction() as connection:
            try:
                await ledger.write_trial(connection, self._process_id, reservation_id)
            except pg.LockNotAvailable:
                # The cause only says that a timeout was reached.
                raise LedgerLocked from None
            except pg.RestrictViolation as exc:
                raise MonthClosed from exc
            raise Rollback

    async def release_in_doubt(self, holds: Sequence[Hold]) -> None:
        """Those that were written. First waits for the accounts' locks: a commit that wasn't
        answered keeps them until it's through or rolled back."""
        async with self._database.transaction() as connection:
            await lock_account_rows(connection, *{hold.organization_id for hold in holds})
            await resolutions.resolve(connection, [_release(hold) for hold in holds])

    async def resolve_all(self, batch: Sequence[Resolution]) -> Sequence[Ending]:
        """Durable, in the batch's order. Safe to repeat: none is resolved twice. Contention if
        another transaction resolved one meanwhile."""
        statements = [resolutions.resolve_statement(batch)]
        noted = [ended.excess for ended in batch if ended.excess is not None]
        if noted:
            statements.append(excesses.note_statement(noted))
        async with self._database.round_trips() as trips:
            try:
                rows, *_ = await trips.run(*statements)
            except pg.UniqueViolation as exc:
                raise Contention from exc
            if len(rows) == len(batch):
                return [Ending.DONE] * len(batch)
            ids = [(ended.organization_id, ended.reservation_id) for ended in batch]
            return await _endings(trips.connection, ids, {row[0] for row in rows})

    async def mark_all(self, marks: Sequence[Mark]) -> Sequence[Ending]:
        """Durable, in the order of `marks`. Safe to repeat."""
        async with self._database.transaction() as connection:
            await lock_account_rows(connection, *{mark.organization_id for mark in marks})
            marked = await resolutions.mark_unsettled(connection, marks)
            ids = [(mark.organization_id, mark.reservation_id) for mark in marks]
            return await _endings(connection, ids, marked)

    async def restore_all(self, holds: Sequence[Hold]) -> None:
        """After a crash of PostgreSQL. Amounts are zero: the money is no longer held."""
        async with self._database.transaction() as connection:
            await ledger.restore_holds(connection, self._process_id, holds)
            await processes.heartbeat(connection, self._process_id)


def _release(hold: Hold) -> Resolution:
    return Resolution(
        organization_id=hold.organization_id,
        reservation_id=hold.id,
        kind=ResolutionKind.RELEASED,
        resolved_by="hold in doubt",
    )


async def _endings(
    connection: Connection, reservations: Sequence[tuple[OrganizationId, UUID]], done: set[UUID]
) -> list[Ending]:
    """In order. `done` is what this transaction resolved or marked. If one is there twice, only the
    first gets `DONE`."""
    remaining = set(done)
    missing: set[UUID] = set()
    if len(done) < len(reservations):
        missing = await resolutions.find_missing(connection, reservations)
    endings = []
    for _, reservation_id in reservations:
        if reservation_id in remaining:
            remaining.remove(reservation_id)
            endings.append(Ending.DONE)
        else:
            endings.append(Ending.MISSING if reservation_id in missing else Ending.ALREADY_ENDED)
    return endings
