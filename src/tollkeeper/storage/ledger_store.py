"""The ledger's transactions on PostgreSQL, each one whole: what a process's ledger is written by.

It owns where a transaction begins and ends and what a failure of it means for what was written; it
decides nothing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from msgspec.structs import replace
from psycopg import errors as pg

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.admission import Decision, ProjectLimits
from tollkeeper.domain.errors import Unavailable
from tollkeeper.domain.ledger import Ending, Hold, LockedAccounts, Mark, Resolution, ResolutionKind
from tollkeeper.domain.policy_set import PolicySet
from tollkeeper.storage import ledger, resolutions
from tollkeeper.storage.database import (
    RETRY_AFTER_S,
    Connection,
    Contention,
    Database,
    RoundTrips,
)
from tollkeeper.storage.round_trips import Call

# Decides over the locked accounts, in the holds' order, and leaves the states after it in them.
DecideBatch: TypeAlias = Callable[[LockedAccounts, Sequence[Hold]], Sequence[Decision]]


class AccountBusy(Unavailable):
    """Somebody else has locked an account for too long. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("The organization's account is busy.", retry_after_s=RETRY_AFTER_S)


class CommitInDoubt(Unavailable):
    """The answer to a commit was lost: it may have happened."""

    def __init__(self) -> None:
        super().__init__("The database is unavailable; try again.", retry_after_s=RETRY_AFTER_S)


class PolicySource(Protocol):
    """Knows the published policies by epoch."""

    async def current(
        self, connection: Connection, epochs: dict[OrganizationId, int]
    ) -> dict[OrganizationId, PolicySet]: ...


class LedgerStore:
    def __init__(
        self,
        database: Database,
        process_id: UUID,
        limits: ProjectLimits,
        policies: PolicySource | None = None,
    ) -> None:
        self._database = database
        self._process_id = process_id
        self._limits = limits
        self._policies = policies

    async def hold_all(
        self, holds: Sequence[Hold], decide: DecideBatch, *, lock_wait_s: float | None
    ) -> Sequence[Decision]:
        """One fast transaction. Nothing is written where it raises, but for `CommitInDoubt`."""
        decided = False
        try:
            async with self._database.round_trips() as trips:
                locked = await self._lock(trips, holds, lock_wait_s)
                decisions = decide(locked, holds)
                writing = self._writing(holds, decisions, locked)
                decisions = await self._with_policies(trips.connection, holds, decisions, locked)
                decided = True
                await trips.commit(writing)
        except (pg.IntegrityError, pg.DataError, Contention):
            raise  # a statement was refused, and with it the commit
        except Exception as exc:
            # Whatever else goes wrong while the commit is on its way leaves it open.
            if decided:
                raise CommitInDoubt from exc
            raise
        return decisions

    async def _lock(
        self, trips: RoundTrips, holds: Sequence[Hold], lock_wait_s: float | None
    ) -> LockedAccounts:
        projects = [(hold.organization_id, hold.project_id) for hold in holds]
        asking = ledger.locking(projects, [hold.key_id for hold in holds])
        try:
            _, *found = await trips.begin(ledger.hurrying(lock_wait_s), *asking)
        except pg.LockNotAvailable as exc:
            raise AccountBusy from exc
        return ledger.locked_accounts(found, self._limits)

    def _writing(
        self, holds: Sequence[Hold], decisions: Sequence[Decision], locked: LockedAccounts
    ) -> Call:
        admitted = [
            hold for hold, found in zip(holds, decisions, strict=True) if found.refusal is None
        ]
        if not admitted:
            return ledger.writing_states(locked.states)
        return ledger.writing_holds(self._process_id, admitted, locked)

    async def _with_policies(
        self,
        connection: Connection,
        holds: Sequence[Hold],
        decisions: Sequence[Decision],
        locked: LockedAccounts,
    ) -> Sequence[Decision]:
        """Read while the accounts are locked: no policy can change between them and the hold."""
        if self._policies is None:
            return decisions
        sets = await self._policies.current(connection, locked.epochs)
        return [
            replace(decision, policies=found)
            if decision.refusal is None and (found := sets[hold.organization_id]).active
            else decision
            for hold, decision in zip(holds, decisions, strict=True)
        ]

    async def release_in_doubt(self, holds: Sequence[Hold]) -> None:
        """Releases what is held of these. Their accounts' locks are waited for: whatever was still
        being committed when its answer was lost is by then there to be seen, or will never be."""
        async with self._database.transaction() as connection:
            await resolutions.lock_account(connection, *{hold.organization_id for hold in holds})
            await resolutions.resolve(connection, [_release(hold) for hold in holds])

    async def resolve_all(self, wanted: Sequence[Resolution]) -> Sequence[Ending]:
        """Durable when it returns. One statement and so one commit: to repeat it is safe."""
        async with self._database.reading() as connection:
            resolved = await resolutions.resolve(connection, wanted)
            ids = [(found.organization_id, found.reservation_id) for found in wanted]
            return await _endings(connection, ids, resolved)

    async def mark_all(self, marks: Sequence[Mark]) -> Sequence[Ending]:
        async with self._database.transaction() as connection:
            await resolutions.lock_account(connection, *{mark.organization_id for mark in marks})
            marked = {
                mark.reservation_id
                for mark in marks
                if await resolutions.mark_unsettled(
                    connection, mark.organization_id, [mark.reservation_id], mark.reason
                )
            }
            ids = [(mark.organization_id, mark.reservation_id) for mark in marks]
            return await _endings(connection, ids, marked)

    async def restore_all(self, holds: Sequence[Hold]) -> None:
        """Puts holds back that a crash of PostgreSQL has lost, without the money."""
        async with self._database.transaction() as connection:
            await ledger.restore_holds(connection, self._process_id, holds)


def _release(hold: Hold) -> Resolution:
    return Resolution(
        organization_id=hold.organization_id,
        reservation_id=hold.id,
        kind=ResolutionKind.RELEASED,
        resolved_by="hold in doubt",
    )


async def _endings(
    connection: Connection, wanted: Sequence[tuple[OrganizationId, UUID]], done: set[UUID]
) -> list[Ending]:
    """The first wish for a reservation may be the one that came true; a second one came after."""
    left = set(done)
    missing: set[UUID] = set()
    if len(done) < len(wanted):
        missing = await resolutions.find_missing(connection, wanted)
    endings = []
    for _, reservation_id in wanted:
        if reservation_id in left:
            left.remove(reservation_id)
            endings.append(Ending.DONE)
        else:
            endings.append(Ending.MISSING if reservation_id in missing else Ending.BEFORE)
    return endings
