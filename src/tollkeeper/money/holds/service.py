"""Creates holds: their queues, and the only code that admits or refuses them."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter

import structlog
from msgspec.structs import replace as replace_fields

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.database.database import Contention, operator_reason
from tollkeeper.money.holds.group_writer import GroupQueue, Handout
from tollkeeper.money.holds.rule import AccountBatch, AccountState, Decision
from tollkeeper.money.holds.spend import Spend
from tollkeeper.money.holds.store import AccountBusy, CommitInDoubt, LedgerStore
from tollkeeper.money.holds.values import Hold, LockedAccounts
from tollkeeper.money.overage.alerts import report_stopped
from tollkeeper.policies.directory import PolicyDirectory
from tollkeeper.policies.policy_set import PolicySet

# In the common queue.
_LOCK_WAIT_S = 0.1
# Separate queues that write at once. Each uses a connection.
_SEPARATE_AT_ONCE = 3
# If other transactions block one.
_CONTENTION_TRIES = 4
_CONTENTION_PAUSE_S = 0.05

# One organization can cause these; others' holds aren't affected.
_ORGANIZATION_ERRORS = (AccountBusy, Contention)

_log = structlog.get_logger("tollkeeper.ledger")

_Waiting = asyncio.Future[Decision]

# No project, so it refuses every hold.
_UNKNOWN_ACCOUNT: AccountBatch[Hold] = AccountBatch(
    AccountState(0, 0, Spend(), projects={}, keys={}), now_us=0
)
# Hashes faster than a UUID.
_organization = attrgetter("organization_id.int")


@dataclass(frozen=True, slots=True)
class HoldWriteState:
    # A rolled-back check counts as written.
    written_s_ago: float | None
    # Of the last attempt, for operators.
    failure: str | None


class HoldWrites:
    """Whether this process can write holds, and if not, why."""

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
        """Ignores what a single organization can cause."""
        if not isinstance(error, _ORGANIZATION_ERRORS):
            self._failure = operator_reason(error)


class Holds:
    """In common transactions; organizations take turns. If one waits too long for a lock or fails
    because of a hold, each of its organizations gets a separate queue until that's empty."""

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
        """`handout` delivers decisions. `committed` gets a batch's created holds, `unused` each one
        whose caller no longer waits, `in_doubt` each one whose commit wasn't answered: it may exist
        or not."""
        self._store = store
        self._policies = policies
        self._committed = committed
        self._unused = unused
        self._in_doubt = in_doubt
        self.writes = HoldWrites()
        self._common: GroupQueue[Hold, Decision] = GroupQueue(
            self._hold_waiting, name="holds", owner=_organization, handout=handout
        )
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
        """False if it's being written or was written."""
        return any(queue.withdraw(result) for queue in self.queues)

    async def _hold_waiting(self, queue: GroupQueue[Hold, Decision]) -> None:
        """Locks the accounts, decides on each hold in order, commits, and only then delivers the
        decisions. After any error except `CommitInDoubt`, nothing was written."""
        is_common = queue is self._common
        slot = nullcontext() if is_common else self._separate_slots
        lock_wait_s = _LOCK_WAIT_S if is_common else None
        parts: list[dict[_Waiting, Hold]] = []
        contentions = 0
        while batch := parts.pop() if parts else self._take(queue):
            holds = [*batch.values()]
            try:
                async with slot, self._store.hold_transaction() as transaction:
                    locked = await transaction.lock(holds, lock_wait_s=lock_wait_s)
                    # Read while the accounts are locked, so no policy changes before the commit.
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
                # No call was sent with these, so those that were committed must be released.
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
                # Retry per organization in separate queues, then hold by hold, so only the culprit
                # fails.
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
        """The next batch, without the organizations that have a separate queue: theirs move
        there."""
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
        """Unused holds may be released again when the caller's task ends; only the first counts."""
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
    """Returns the accounts afterwards, a decision for each hold, and the admitted ones. In order
    within an organization; organizations don't affect each other. Unknown organizations are
    refused. An admission carries the organization's active policies."""
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
