"""Runs the ledger of one process. Writes holds (the amounts reserved before calls) in group commits
that do not wait for the disk, and resolutions (settlements and releases) in durable group commits.

Every committed hold is owned by the caller that requested it. If that caller no longer waits, this
module owns the hold and releases it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import structlog

from tollkeeper.domain.admission import Decision
from tollkeeper.domain.errors import TollkeeperError, Unavailable
from tollkeeper.domain.ledger import Ending, Hold, Mark, Resolution, ResolutionKind
from tollkeeper.runtime.timeouts import Alarm, timeout_at
from tollkeeper.services.batches import Backoff
from tollkeeper.services.ledger.group_writer import GroupQueue, GroupWriter
from tollkeeper.services.ledger.handout import Handout
from tollkeeper.services.ledger.holds import Holds
from tollkeeper.services.policies.directory import PolicyDirectory
from tollkeeper.services.request_ids import new_request_id
from tollkeeper.storage.ledger_store import LedgerStore

T = TypeVar("T")

_WRITE_AGAIN = Backoff(first_s=0.05, max_s=2.0)
# The maximum time that a caller waits for admission: slightly longer than the database's timeouts.
_HOLD_WAIT_S = 20.0
_DRAIN_S = 30.0
# If a hold was written within this time, `try_hold` assumes that holds can be written now.
_RECENT_WRITE_S = 2.0
_RELEASED_BY = "the caller no longer waited for the hold"

_log = structlog.get_logger("tollkeeper.ledger")


class _FinishedCall(msgspec.Struct, frozen=True, gc=False):
    """Contains the outcome of a call, and the call's hold if the caller of `resolve` passed it."""

    outcome: Resolution | Mark
    hold: Hold | None


class Ledger:
    def __init__(self, store: LedgerStore, policies: PolicyDirectory) -> None:
        self._store = store
        # Delivers the results of a batch to the waiting calls.
        self.handout = Handout()
        self._holds = Holds(
            store,
            policies,
            self.handout,
            committed=self._note_open,
            unused=self._release_unused,
            in_doubt=self._note_in_doubt,
        )
        # Records whether this process can write holds.
        self.hold_writes = self._holds.writes
        # The queues below reject no item. Each has at most one item for each hold, and the
        # concurrency limits of projects limit the number of holds.
        self._resolutions: GroupWriter[_FinishedCall, bool] = GroupWriter(
            self._write_resolutions,
            name="resolutions",
            queued_max=None,
            owner=lambda call: call.outcome.organization_id.int,
            in_order=True,
            handout=self.handout,
        )
        self._marks: GroupWriter[_FinishedCall, bool] = GroupWriter(
            self._write_marks, name="marks", queued_max=None
        )
        self._in_doubt: GroupWriter[Hold, None] = GroupWriter(
            self._release_in_doubt, name="holds in doubt", queued_max=None
        )
        # The ids of open holds as integers, which hash faster than UUIDs.
        self._open: set[int] = set()

    @property
    def open_holds(self) -> int:
        """Returns the number of this process's holds that are neither resolved nor marked as
        unsettled (of unknown cost)."""
        return len(self._open)

    def is_open(self, reservation_id: UUID) -> bool:
        """Tells whether this process created the reservation and has neither resolved it nor marked
        it as unsettled."""
        return reservation_id.int in self._open

    @property
    def queued(self) -> dict[str, int]:
        """Returns the number of items that wait to be written, by queue."""
        return {
            "holds": sum(writer.queued for writer in self._holds.queues),
            "resolutions": self._resolutions.queued,
            "marks": self._marks.queued,
            "holds in doubt": self._in_doubt.queued,
        }

    @property
    def backlog(self) -> int:
        """Returns the number of queued items whose results callers wait for."""
        return self._resolutions.queued + sum(writer.queued for writer in self._holds.queues)

    async def hold(self, hold: Hold, alarm: Alarm | None = None) -> Decision:
        """Decides on the hold and, if the hold is admitted, creates it. An admitted hold is
        committed when this method returns. If this method raises or is cancelled, nothing stays
        held.

        A task that limits its waits by an `Alarm` passes the alarm, because using it is cheaper
        than starting a new timer.
        """
        result = self._holds.submit(hold)
        until = asyncio.get_running_loop().time() + _HOLD_WAIT_S
        try:
            with timeout_at(until) if alarm is None else alarm.until(until):
                # Cancelling the caller cancels `result`, but a hold that left the queue is still
                # written.
                return await result
        except TimeoutError:
            self._abandon(hold, result)
            raise Unavailable("The ledger is busy; try again.", retry_after_s=2) from None
        except asyncio.CancelledError:
            self._abandon(hold, result)
            raise

    async def try_hold(self) -> None:
        """Checks that holds can be written: writes a hold and rolls it back, unless a hold was
        written within the last `_RECENT_WRITE_S` seconds. Raises the error that a call would
        get."""
        written_s_ago = self.hold_writes.state.written_s_ago
        if written_s_ago is not None and written_s_ago < _RECENT_WRITE_S:
            return
        with self.hold_writes.noting_failures():
            await self._store.try_hold(new_request_id())
        self.hold_writes.succeeded()

    def resolve(self, resolution: Resolution, hold: Hold | None = None) -> asyncio.Future[bool]:
        """Resolves a reservation durably. The result is False if the reservation was already
        resolved or does not exist. The resolution is written no matter how long the database is
        down. A caller that stops waiting cancels only the result, not the write. If `hold` is
        passed, a settlement is written even if a database crash lost the hold."""
        return self._resolutions.submit(_FinishedCall(resolution, hold))

    def mark_unsettled(self, hold: Hold, reason: str) -> asyncio.Future[bool]:
        """Marks a call whose cost is unknown as unsettled. Writes durably and retries like
        `resolve`."""
        mark = Mark(hold.organization_id, hold.id, reason)
        return self._marks.submit(_FinishedCall(mark, hold))

    async def drain(self, deadline_s: float = _DRAIN_S) -> bool:
        """Writes the remaining items. Returns True if this process has no open hold any more. If
        the result is False, the process must not sign off (tell other processes that it has ended),
        so that recovery finds its holds."""
        try:
            async with asyncio.timeout(deadline_s):
                while busy := [writer for writer in self._writers if writer.busy]:
                    for writer in busy:
                        await writer.drain()
        except TimeoutError:
            _log.error("the ledger could not write everything", open_holds=self.open_holds)
            for writer in self._writers:
                await writer.stop()
            return False
        return not self._open

    @property
    def _writers(self) -> list[GroupQueue[Any, Any]]:
        return [*self._holds.queues, self._resolutions, self._marks, self._in_doubt]

    def _note_open(self, hold: Hold) -> None:
        self._open.add(hold.id.int)

    def _note_in_doubt(self, hold: Hold) -> None:
        """Queues the release of a hold that may exist or not, because its commit was not
        answered."""
        self._open.add(hold.id.int)
        self._in_doubt.submit(hold)

    def _abandon(self, hold: Hold, result: asyncio.Future[Decision]) -> None:
        """Withdraws or releases the hold of a caller that no longer waits."""
        if self._holds.withdraw(result):
            return
        if hold.id.int in self._open:
            self._release_unused(hold)
        else:
            # The hold is being written now. Because its result is cancelled, `Holds` releases the
            # hold if it is admitted.
            result.cancel()

    def _release_unused(self, hold: Hold) -> None:
        release = Resolution(
            organization_id=hold.organization_id,
            reservation_id=hold.id,
            kind=ResolutionKind.RELEASED,
            resolved_by=_RELEASED_BY,
        )
        self._resolutions.submit(_FinishedCall(release, hold))

    async def _release_in_doubt(self, holds: Sequence[Hold]) -> Sequence[None]:
        await _until_written(lambda: self._store.release_in_doubt(holds), len(holds))
        self._open.difference_update(hold.id.int for hold in holds)
        return [None] * len(holds)

    # Resolutions and marks are retried without a time limit, because the money is already spent.

    async def _write_resolutions(self, batch: Sequence[_FinishedCall]) -> Sequence[bool]:
        async def resolve(calls: Sequence[_FinishedCall]) -> Sequence[Ending]:
            outcomes = [call.outcome for call in calls if isinstance(call.outcome, Resolution)]
            return await self._store.resolve_all(outcomes)

        return await self._write_finished(batch, resolve)

    async def _write_marks(self, batch: Sequence[_FinishedCall]) -> Sequence[bool]:
        async def mark(calls: Sequence[_FinishedCall]) -> Sequence[Ending]:
            outcomes = [call.outcome for call in calls if isinstance(call.outcome, Mark)]
            return await self._store.mark_all(outcomes)

        return await self._write_finished(batch, mark)

    async def _write_finished(
        self,
        batch: Sequence[_FinishedCall],
        write: Callable[[Sequence[_FinishedCall]], Awaitable[Sequence[Ending]]],
    ) -> Sequence[bool]:
        """Writes the outcomes of the batch. If the database has lost holds of the batch, restores
        these holds and writes their outcomes again."""
        endings = list(await _until_written(lambda: write(batch), len(batch)))
        lost = [index for index, ending in enumerate(endings) if _is_lost(batch[index], ending)]
        if lost:
            lost_calls = [batch[index] for index in lost]
            holds = [call.hold for call in lost_calls if call.hold is not None]
            _log.error("holds were lost by the database and are restored", count=len(holds))
            await _until_written(lambda: self._store.restore_all(holds), len(holds))
            new_endings = await _until_written(lambda: write(lost_calls), len(lost_calls))
            for index, ending in zip(lost, new_endings, strict=True):
                endings[index] = ending
        self._open.difference_update(call.outcome.reservation_id.int for call in batch)
        return [ending is Ending.DONE for ending in endings]


def _is_lost(call: _FinishedCall, ending: Ending) -> bool:
    """Tells whether the database has lost a committed hold that must be restored. A release does
    not need its hold, because a release charges nothing."""
    if ending is not Ending.MISSING or call.hold is None:
        return False
    return isinstance(call.outcome, Mark) or call.outcome.kind is ResolutionKind.SETTLED


async def _until_written(work: Callable[[], Awaitable[T]], count: int) -> T:
    """Runs the work, and repeats it after each `TollkeeperError` until it succeeds. The work must be
    safe to repeat. `count` is the number of items, for the log."""
    failures = 0
    while True:
        try:
            return await work()
        except TollkeeperError as exc:
            failures += 1
            _log.warning("the ledger waits for the database", count=count, reason=exc.message)
            await asyncio.sleep(_WRITE_AGAIN.pause_s(failures))
