"""Creates holds: the amounts reserved before calls are sent. Contains the queues in which holds
wait, and the only code that admits or refuses holds."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter

import structlog
from msgspec.structs import replace as replace_fields

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.admission import AccountBatch, AccountState, Decision
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.domain.ledger import Hold, LockedAccounts
from tollkeeper.domain.policy_set import PolicySet
from tollkeeper.domain.spend import Spend
from tollkeeper.services.ledger.group_writer import GroupQueue, Handout
from tollkeeper.services.ledger.overage_alerts import report_stopped
from tollkeeper.services.policies.directory import PolicyDirectory
from tollkeeper.storage.database import Contention, operator_reason
from tollkeeper.storage.ledger_store import AccountBusy, CommitInDoubt, LedgerStore

# The maximum time that a transaction of the common queue waits for a lock.
_LOCK_WAIT_S = 0.1
# The number of separate queues that may write at the same time. It is limited because each
# queue uses a connection.
_SEPARATE_AT_ONCE = 3
# The number of attempts if other transactions block a transaction.
_CONTENTION_TRIES = 4
_CONTENTION_PAUSE_S = 0.05

# Errors that one organization can cause, and that do not affect the holds of other organizations.
_ORGANIZATION_ERRORS = (AccountBusy, Contention)

_log = structlog.get_logger("tollkeeper.ledger")

_Waiting = asyncio.Future[Decision]

# Refuses every hold, because it has no project.
_UNKNOWN_ACCOUNT: AccountBatch[Hold] = AccountBatch(
    AccountState(0, 0, Spend(), projects={}, keys={}), now_us=0
)
# An integer, which hashes faster than a UUID.
_organization = attrgetter("organization_id.int")


@dataclass(frozen=True, slots=True)
class HoldWriteState:
    # The time since a hold was last written, or written and rolled back as a check; None if no hold
    # was written yet.
    written_s_ago: float | None
    # The reason why the last attempt failed, for operators; None if no attempt was made or the last
    # attempt succeeded.
    failure: str | None


class HoldWrites:
    """Records whether this process can write holds, and why it cannot."""

    def __init__(self) -> None:
        self._written_at: float | None = None
        self._failure: str | None = None

    @property
    def state(self) -> HoldWriteState:
        written_at = self._written_at
        age_s = None if written_at is None else asyncio.get_running_loop().time() - written_at
        return HoldWriteState(age_s, self._failure)

    def succeeded(self) -> None:
        self._written_at = asyncio.get_running_loop().time()
        self._failure = None

    def failed(self, error: TollkeeperError) -> None:
        """Records the error, unless it is one that a single organization can cause."""
        if not isinstance(error, _ORGANIZATION_ERRORS):
            self._failure = operator_reason(error)


class Holds:
    """Creates the holds of all organizations in common transactions; organizations take turns in
    the common queue. If a common transaction waits too long for a lock or fails because of one of
    its holds, each of its organizations gets a separate queue until that queue is empty."""

    def __init__(
        self,
        store: LedgerStore,
        policies: PolicyDirectory,
        handout: Handout,
        *,
        committed: Callable[[Iterable[Hold]], None],
        unused: Callable[[Hold], None],
        in_doubt: Callable[[Hold], None],
    ) -> None:
        """`handout` delivers the decisions to the waiting callers. `committed` is called with
        all created holds of a batch, `unused` with each created hold whose caller no longer waits,
        and `in_doubt` with each hold whose commit was not answered, so that the hold may exist or
        not."""
        self._store = store
        self._policies = policies
        self._committed = committed
        self._unused = unused
        self._in_doubt = in_doubt
        # Records whether this process can write holds.
        self.writes = HoldWrites()
        self._common: GroupQueue[Hold, Decision] = GroupQueue(
            self._hold_waiting, name="holds", owner=_organization, handout=handout
        )
        # Queues a hold and returns the future of its decision.
        self.submit = self._common.submit
        self._separate: dict[OrganizationId, GroupQueue[Hold, Decision]] = {}
        self._separate_slots = asyncio.Semaphore(_SEPARATE_AT_ONCE)

    @property
    def queues(self) -> list[GroupQueue[Hold, Decision]]:
        return [self._common, *self._separate.values()]

    @property
    def waiting(self) -> dict[_Waiting, Hold]:
        return {
            waiting: hold
            for queue in self.queues
            for waiting, hold in queue.items.items()
            if not waiting.done()
        }

    def withdraw(self, result: asyncio.Future[Decision]) -> bool:
        """Withdraws a queued hold. Returns False if the hold is being written or was written."""
        return any(queue.withdraw(result) for queue in self.queues)

    async def _hold_waiting(self, queue: GroupQueue[Hold, Decision]) -> None:
        """Creates the holds that wait in a queue, batch by batch: locks the accounts, decides on
        each hold in order, writes the admitted holds, and delivers the decisions. A hold is
        committed before its caller gets the decision. After any error except `CommitInDoubt`,
        nothing was written."""
        is_common = queue is self._common
        slot = nullcontext() if is_common else self._separate_slots
        lock_wait_s = _LOCK_WAIT_S if is_common else None
        # Parts of a batch that are still to be written, one transaction each.
        parts: list[dict[_Waiting, Hold]] = []
        contentions = 0
        while batch := parts.pop() if parts else self._take(queue):
            holds = [*batch.values()]
            try:
                async with slot, self._store.hold_transaction() as transaction:
                    locked = await transaction.lock(holds, lock_wait_s=lock_wait_s)
                    # The policies are read while the accounts are locked, so that no policy
                    # changes before the commit.
                    current = await self._policies.current(transaction.connection, locked.epochs)
                    accounts, decisions, admitted = decide_all(locked, holds, current)
                    await transaction.write(accounts, admitted)
            except Contention as exc:
                contentions += 1
                if contentions < _CONTENTION_TRIES:
                    pause_s = random.uniform(0, _CONTENTION_PAUSE_S * contentions)  # noqa: S311 - jitter
                    await asyncio.sleep(pause_s)
                    parts.append(batch)
                    continue
                queue.fail(batch, exc)
            except CommitInDoubt as exc:
                self.writes.failed(exc)
                # No call was sent with these holds, so the holds that were committed must be
                # released.
                for hold in holds:
                    self._in_doubt(hold)
                queue.fail(batch, exc)
            except TollkeeperError as exc:
                if is_common and isinstance(exc, AccountBusy):
                    self._move_to_separate(batch)
                else:
                    self.writes.failed(exc)
                    queue.fail(batch, exc)
            except Exception as exc:  # noqa: BLE001 - delivered to the waiting callers
                # Retry the holds of each organization in a separate queue and, if that fails, each
                # hold by itself. Then only the hold that caused the error fails.
                if is_common:
                    _log.exception("holds could not be written together", count=len(holds))
                    self._move_to_separate(batch)
                elif len(holds) == 1:
                    queue.fail(batch, exc)
                else:
                    parts = [{waiting: hold} for waiting, hold in reversed(batch.items())]
            else:
                report_stopped(locked.states, accounts.states)
                self._note_committed(batch, decisions, admitted)
                queue.give(batch, decisions)
            contentions = 0

    def _take(self, queue: GroupQueue[Hold, Decision]) -> dict[_Waiting, Hold]:
        """Takes the next batch. Moves each hold in the common queue to the separate queue of its
        organization, if the organization has one."""
        while batch := queue.take():
            if queue is not self._common or not self._separate:
                return batch
            self._separate = {
                organization_id: separate
                for organization_id, separate in self._separate.items()
                if separate.busy
            }
            moved = {
                waiting: hold
                for waiting, hold in batch.items()
                if hold.organization_id in self._separate
            }
            self._move_to_separate(moved)
            if len(moved) < len(batch):
                return {waiting: hold for waiting, hold in batch.items() if waiting not in moved}
        return {}

    def _move_to_separate(self, batch: dict[_Waiting, Hold]) -> None:
        for waiting, hold in batch.items():
            queue = self._separate.get(hold.organization_id)
            if queue is None:
                queue = GroupQueue(self._hold_waiting, name="holds of one organization")
                self._separate[hold.organization_id] = queue
            try:
                queue.submit(hold, waiting)
            except TollkeeperError as exc:  # the separate queue is full
                queue.fail([waiting], exc)

    def _note_committed(
        self, batch: dict[_Waiting, Hold], decisions: Sequence[Decision], admitted: Sequence[Hold]
    ) -> None:
        """Reports the created holds to `committed`, and those whose callers no longer wait to
        `unused`. Such a hold may be released a second time when the caller's task ends; only the
        first release has an effect."""
        if admitted:
            self.writes.succeeded()
            self._committed(admitted)
        if any(map(asyncio.Future.done, batch)):
            for (waiting, hold), decision in zip(batch.items(), decisions, strict=True):
                if waiting.done() and decision.refusal is None:
                    self._unused(hold)


def decide_all(
    locked: LockedAccounts, holds: Sequence[Hold], policies: dict[OrganizationId, PolicySet]
) -> tuple[LockedAccounts, list[Decision], list[Hold]]:
    """Returns the accounts after all decisions, one decision for each hold, and the admitted holds.
    The holds of one organization are decided in order. Organizations do not affect one another.
    Holds of unknown organizations are refused.

    A decision that admits a call contains the organization's policies, if any are active."""
    judging = {
        organization_id: current for organization_id, current in policies.items() if current.active
    }
    batches: dict[int, AccountBatch[Hold]] = {
        organization_id.int: AccountBatch(state, now_us=locked.now_us)
        for organization_id, state in locked.states.items()
    }
    batch_of_hold = map(batches.get, map(_organization, holds), repeat(_UNKNOWN_ACCOUNT))
    decisions = [*map(AccountBatch.decide, batch_of_hold, holds)]
    states = dict(zip(locked.states, [batch.after() for batch in batches.values()], strict=True))
    admitted = [*chain.from_iterable(batch.admitted for batch in batches.values())]
    if judging:
        decisions = [
            replace_fields(decision, policies=judging[hold.organization_id])
            if decision.refusal is None and hold.organization_id in judging
            else decision
            for hold, decision in zip(holds, decisions, strict=True)
        ]
    return replace_fields(locked, states=states), decisions, admitted
