"""Runs the ledger of one process: holds in fast group commits, resolutions in durable ones.

Every committed hold has an owner: the caller that requested it or, if that caller no longer waits,
this file, which releases it.
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
# How long a caller waits for admission: slightly longer than the database's own timeouts.
_HOLD_WAIT_S = 20.0
_DRAIN_S = 30.0
# A hold that was written within this time shows that another one could be written too.
_SHOWN_S = 2.0
_RELEASED_BY = "nobody took the hold"

_log = structlog.get_logger("tollkeeper.ledger")


class _FinishedCall(msgspec.Struct, frozen=True, gc=False):
    """Describes how a call ended, with its hold if that is known."""

    outcome: Resolution | Mark
    hold: Hold | None


class Ledger:
    def __init__(self, store: LedgerStore, policies: PolicyDirectory) -> None:
        self._store = store
        # Delivers results to the waiting calls.
        self.handout = Handout()
        self._holds = Holds(
            store,
            policies,
            self.handout,
            committed=self._note_open,
            unused=self._release_unused,
            in_doubt=self._note_in_doubt,
        )
        # Whether holds can be written.
        self.hold_writes = self._holds.writes
        # These queues reject nothing: they have at most one entry for each hold, and the limits of
        # projects limit the number of holds.
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
        # The integers of the ids, which hash faster than ids.
        self._open: set[int] = set()

    @property
    def open_holds(self) -> int:
        """Returns the number of this process's holds that are neither resolved nor marked yet."""
        return len(self._open)

    def is_open(self, reservation_id: UUID) -> bool:
        """Tells whether this process holds it and has neither resolved nor marked it yet."""
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
        """Returns the number of waiting items whose callers wait for them."""
        return self._resolutions.queued + sum(writer.queued for writer in self._holds.queues)

    async def hold(self, hold: Hold, alarm: Alarm | None = None) -> Decision:
        """Decides on the hold and, if it is admitted, creates it. The hold is committed when this
        returns. If it raises, including cancellation, nothing stays held.

        A task that has an alarm for its waits passes it.
        """
        result = self._holds.submit(hold)
        until = asyncio.get_running_loop().time() + _HOLD_WAIT_S
        try:
            with timeout_at(until) if alarm is None else alarm.until(until):
                # A caller that stops waiting cancels the result; the hold is still written.
                return await result
        except TimeoutError:
            self._abandon(hold, result)
            raise Unavailable("The ledger is busy; try again.", retry_after_s=2) from None
        except asyncio.CancelledError:
            self._abandon(hold, result)
            raise

    async def try_hold(self) -> None:
        """Writes a hold and rolls it back, unless recent calls have shown that holds can be
        written. Raises the error that a call would get."""
        written_s_ago = self.hold_writes.state.written_s_ago
        if written_s_ago is not None and written_s_ago < _SHOWN_S:
            return
        with self.hold_writes.noting_failures():
            await self._store.try_hold(new_request_id())
        self.hold_writes.succeeded()

    def resolve(self, resolution: Resolution, hold: Hold | None = None) -> asyncio.Future[bool]:
        """Resolves a reservation durably; the result is False if it had been resolved before. The
        resolution is written however long the database is down, even if the caller stops waiting,
        which cancels the result. With its `hold`, a settlement is written even if a database crash
        lost the hold."""
        return self._resolutions.submit(_FinishedCall(resolution, hold))

    def mark_unsettled(self, hold: Hold, reason: str) -> asyncio.Future[bool]:
        """Works like `resolve`, for a call with unknown cost."""
        mark = Mark(hold.organization_id, hold.id, reason)
        return self._marks.submit(_FinishedCall(mark, hold))

    async def drain(self, deadline_s: float = _DRAIN_S) -> bool:
        """Writes the remaining items. Returns True if this process holds nothing any more;
        otherwise the process must not sign off, so that recovery finds its holds."""
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

    # Holds.

    def _note_open(self, hold: Hold) -> None:
        self._open.add(hold.id.int)

    def _note_in_doubt(self, hold: Hold) -> None:
        self._open.add(hold.id.int)
        self._in_doubt.submit(hold)

    def _abandon(self, hold: Hold, result: asyncio.Future[Decision]) -> None:
        """Handles a caller that no longer waits: an admitted hold is not needed."""
        if self._holds.withdraw(result):
            return
        if hold.id.int in self._open:
            self._release_unused(hold)
        else:
            # If the hold is being written now, it is released after its admission is known.
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

    # Ends of calls are written however long it takes, because the money is spent.

    async def _write_resolutions(self, batch: Sequence[_FinishedCall]) -> Sequence[bool]:
        async def resolve(calls: Sequence[_FinishedCall]) -> Sequence[Ending]:
            wanted = [call.outcome for call in calls if isinstance(call.outcome, Resolution)]
            return await self._store.resolve_all(wanted)

        return await self._write_finished(batch, resolve)

    async def _write_marks(self, batch: Sequence[_FinishedCall]) -> Sequence[bool]:
        async def mark(calls: Sequence[_FinishedCall]) -> Sequence[Ending]:
            wanted = [call.outcome for call in calls if isinstance(call.outcome, Mark)]
            return await self._store.mark_all(wanted)

        return await self._write_finished(batch, mark)

    async def _write_finished(
        self,
        batch: Sequence[_FinishedCall],
        write: Callable[[Sequence[_FinishedCall]], Awaitable[Sequence[Ending]]],
    ) -> Sequence[bool]:
        endings = list(await _until_written(lambda: write(batch), len(batch)))
        lost = [at for at, ending in enumerate(endings) if _is_lost(batch[at], ending)]
        if lost:
            again = [batch[at] for at in lost]
            holds = [call.hold for call in again if call.hold is not None]
            _log.error("holds were lost by the database and are restored", count=len(holds))
            await _until_written(lambda: self._store.restore_all(holds), len(holds))
            found = await _until_written(lambda: write(again), len(again))
            for at, ending in zip(lost, found, strict=True):
                endings[at] = ending
        self._open.difference_update(call.outcome.reservation_id.int for call in batch)
        return [ending is Ending.DONE for ending in endings]


def _is_lost(call: _FinishedCall, ending: Ending) -> bool:
    """Tells whether the hold was acknowledged and is lost. A release needs no hold, because nothing
    is charged."""
    if ending is not Ending.MISSING or call.hold is None:
        return False
    return isinstance(call.outcome, Mark) or call.outcome.kind is ResolutionKind.SETTLED


async def _until_written(work: Callable[[], Awaitable[T]], count: int) -> T:
    """Retries until it succeeds, whatever the database does. The work must be safe to repeat."""
    failures = 0
    while True:
        try:
            return await work()
        except TollkeeperError as exc:
            failures += 1
            _log.warning("the ledger waits for the database", count=count, reason=exc.message)
            await asyncio.sleep(_WRITE_AGAIN.pause_s(failures))
