"""Creates holds: contains the one function that decides on money, and the queues in which holds
wait."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import structlog
from msgspec.structs import replace as replace_fields

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.admission import UNKNOWN, Decision, decide
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.domain.ledger import Hold, LockedAccounts
from tollkeeper.domain.policy_set import EMPTY, PolicySet
from tollkeeper.services.ledger.group_writer import GroupQueue
from tollkeeper.services.ledger.handout import Handout
from tollkeeper.services.ledger.hold_writes import HoldWrites
from tollkeeper.services.ledger.overage_alerts import report_stopped
from tollkeeper.services.policies.directory import PolicyDirectory
from tollkeeper.storage.database import Contention
from tollkeeper.storage.ledger_store import AccountBusy, CommitInDoubt, LedgerStore

# How long the common queue waits for one organization's account.
_LOCK_WAIT_S = 0.1
# The number of separate queues that write at the same time: each takes a connection.
_SEPARATE_AT_ONCE = 3
_CONTENTION_TRIES = 4
_CONTENTION_PAUSE_S = 0.05

_log = structlog.get_logger("tollkeeper.ledger")

_Waiting = asyncio.Future[Decision]


def _organization(hold: Hold) -> int:
    return hold.organization_id.int


class Holds:
    """Creates the holds of all organizations together, and the organizations take turns. An
    organization whose account delays the others, or whose holds make a common transaction fail,
    gets its own queue until that queue is empty."""

    def __init__(
        self,
        store: LedgerStore,
        policies: PolicyDirectory,
        handout: Handout,
        *,
        committed: Callable[[Hold], None],
        unused: Callable[[Hold], None],
        in_doubt: Callable[[Hold], None],
    ) -> None:
        """`committed` is called with each created hold, `unused` with those whose caller no longer
        waits, and `in_doubt` with those whose commit was not answered."""
        self._store = store
        self._policies = policies
        self._committed = committed
        self._unused = unused
        self._in_doubt = in_doubt
        # Whether holds can be written.
        self.writes = HoldWrites()
        self._common: GroupQueue[Hold, Decision] = GroupQueue(
            self._hold_common, name="holds", owner=_organization, handout=handout
        )
        self._separate: dict[OrganizationId, GroupQueue[Hold, Decision]] = {}
        self._separate_slots = asyncio.Semaphore(_SEPARATE_AT_ONCE)

    @property
    def queues(self) -> list[GroupQueue[Hold, Decision]]:
        return [self._common, *self._separate.values()]

    def submit(self, hold: Hold) -> asyncio.Future[Decision]:
        return self._common.submit(hold)

    def withdraw(self, result: asyncio.Future[Decision]) -> bool:
        """Withdraws a hold. Returns False if it is being written or was written."""
        return any(queue.withdraw(result) for queue in self.queues)

    async def _hold_common(self) -> None:
        await self._hold_waiting(self._common, _LOCK_WAIT_S)

    async def _hold_waiting(
        self, queue: GroupQueue[Hold, Decision], lock_wait_s: float | None
    ) -> None:
        """Creates the holds that wait in a queue: takes a batch, locks the accounts, decides on
        each hold in order, writes, delivers the decisions. A hold is committed before its caller
        gets the decision. After any error but `CommitInDoubt`, nothing was written."""
        is_common = queue is self._common
        slot = nullcontext() if is_common else self._separate_slots
        # Parts of a batch that are written one after the other.
        parts: list[dict[_Waiting, Hold]] = []
        contentions = 0
        while batch := parts.pop() if parts else self._take(queue):
            holds = [*batch.values()]
            try:
                with self.writes.noting_failures():
                    async with slot, self._store.hold_transaction() as transaction:
                        locked = await transaction.lock(holds, lock_wait_s=lock_wait_s)
                        # Read while the accounts are locked: no policy changes before the commit.
                        connection, epochs = transaction.connection, locked.epochs
                        current = await self._policies.current(connection, epochs)
                        holds = _with_verdicts(holds, current)
                        accounts, decisions = decide_all(locked, holds)
                        decisions = _with_policies(holds, decisions, current)
                        await transaction.write(accounts, admitted(holds, decisions))
            except Contention as exc:
                contentions += 1
                if contentions < _CONTENTION_TRIES:
                    pause_s = random.uniform(0, _CONTENTION_PAUSE_S * contentions)  # noqa: S311 - jitter
                    await asyncio.sleep(pause_s)
                    parts.append(batch)
                    continue
                queue.fail(batch, exc)
            except CommitInDoubt as exc:
                # No call was dispatched with these holds, so those that exist are released.
                for hold in holds:
                    self._in_doubt(hold)
                queue.fail(batch, exc)
            except TollkeeperError as exc:
                if is_common and isinstance(exc, AccountBusy):
                    self._queue_apart(batch)
                else:
                    queue.fail(batch, exc)
            except Exception as exc:  # noqa: BLE001 - raised for the organization that causes it
                # Written separately, only the organization, and then only the hold, that is the
                # cause fails.
                if is_common:
                    _log.exception("holds could not be written together", count=len(holds))
                    self._queue_apart(batch)
                elif len(holds) == 1:
                    queue.fail(batch, exc)
                else:
                    parts = [{one: hold} for one, hold in reversed(batch.items())]
            else:
                report_stopped(locked.states, accounts.states)
                self._hand_out(queue, batch, decisions)
            contentions = 0

    def _take(self, queue: GroupQueue[Hold, Decision]) -> dict[_Waiting, Hold]:
        """Takes the next batch. Moves holds of the common queue to their organization's own queue
        if it has one."""
        while batch := queue.take():
            if queue is not self._common or not self._separate:
                return batch
            self._separate = {of: mine for of, mine in self._separate.items() if mine.busy}
            apart = {
                one: hold for one, hold in batch.items() if hold.organization_id in self._separate
            }
            self._queue_apart(apart)
            if len(apart) < len(batch):
                return {one: hold for one, hold in batch.items() if one not in apart}
        return {}

    def _queue_apart(self, batch: dict[_Waiting, Hold]) -> None:
        for waiting, hold in batch.items():
            queue = self._separate.get(hold.organization_id)
            if queue is None:
                queue = self._new_separate_queue()
                self._separate[hold.organization_id] = queue
            try:
                queue.submit(hold, waiting)
            except TollkeeperError as exc:  # too many wait already
                queue.fail([waiting], exc)

    def _new_separate_queue(self) -> GroupQueue[Hold, Decision]:
        queue: GroupQueue[Hold, Decision]

        async def hold_apart() -> None:
            await self._hold_waiting(queue, None)

        queue = GroupQueue(hold_apart, name="holds of one organization")
        return queue

    def _hand_out(
        self,
        queue: GroupQueue[Hold, Decision],
        batch: dict[_Waiting, Hold],
        decisions: Sequence[Decision],
    ) -> None:
        for (waiting, hold), decision in zip(batch.items(), decisions, strict=True):
            if decision.refusal is None:
                self._committed(hold)
                if waiting.done():
                    # The caller no longer waits, so the hold is not needed. It may be released a
                    # second time when the caller's task ends; the ledger uses the first release.
                    self._unused(hold)
        if any(decision.refusal is None for decision in decisions):
            self.writes.succeeded()
        queue.give(batch, decisions)


def admitted(holds: Sequence[Hold], decisions: Sequence[Decision]) -> list[Hold]:
    return [hold for hold, found in zip(holds, decisions, strict=True) if found.refusal is None]


def _with_verdicts(holds: list[Hold], current: dict[OrganizationId, PolicySet]) -> list[Hold]:
    """Adds the maximum price of verdicts, if they have a price."""
    if not any(found.verdict_picousd for found in current.values()):
        return holds
    return [hold.judged_by(current.get(hold.organization_id, EMPTY)) for hold in holds]


def _with_policies(
    holds: Sequence[Hold], decisions: list[Decision], current: dict[OrganizationId, PolicySet]
) -> list[Decision]:
    """Adds the current policies to decisions that admit a call."""
    if not any(found.active for found in current.values()):
        return decisions
    return [
        replace_fields(decision, policies=current[hold.organization_id])
        if decision.refusal is None and current[hold.organization_id].active
        else decision
        for hold, decision in zip(holds, decisions, strict=True)
    ]


def decide_all(
    locked: LockedAccounts, holds: Sequence[Hold]
) -> tuple[LockedAccounts, list[Decision]]:
    """Returns the accounts after all decisions, and a decision for each hold. Holds of one
    organization are decided in the order of their arrival; organizations are independent."""
    # By the integers of organization ids, which hash faster than ids.
    positions: dict[int, list[int]] = {}
    for position, hold in enumerate(holds):
        positions.setdefault(hold.organization_id.int, []).append(position)
    states = dict(locked.states)
    decisions = [UNKNOWN] * len(holds)
    for organization_id in locked.states:
        mine = positions[organization_id.int]
        requests = [holds[position] for position in mine]
        states[organization_id], decided = decide(
            states[organization_id], requests, now_us=locked.now_us, month=locked.month
        )
        for position, decision in zip(mine, decided, strict=True):
            decisions[position] = decision
    return replace(locked, states=states), decisions
