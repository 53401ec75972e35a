"""The ledger of one process. Holds are committed in groups without waiting for the disk,
resolutions durably. Every committed hold is owned by its caller; if that no longer waits, this
module owns and releases it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
import structlog

from tollkeeper.core.errors import TollkeeperError, Unavailable
from tollkeeper.core.runtime.batches import Backoff
from tollkeeper.core.runtime.request_ids import new_request_id
from tollkeeper.money.holds.group_writer import GroupQueue, Handout, QueuesByOwner, writing
from tollkeeper.money.holds.rule import Decision
from tollkeeper.money.holds.service import Holds
from tollkeeper.money.holds.store import LedgerStore
from tollkeeper.money.holds.values import Ending, Hold, Mark, Resolution, ResolutionKind
from tollkeeper.money.overage.service import Excesses
from tollkeeper.policies.directory import PolicyDirectory

T = TypeVar("T")
Outcome = TypeVar("Outcome", bound=Resolution | Mark)

_WRITE_AGAIN = Backoff(first_s=0.05, max_s=2.0)
# A caller waits for admission this long, at most twice. Slightly more than the database's timeouts.
_HOLD_WAIT_S = 20.0
_DRAIN_S = 30.0
# Transactions that may wait for accounts' locks. Each uses a connection.
_LOCKING_AT_ONCE = 2
# If a hold was written this recently, `try_hold` doesn't try.
_RECENT_WRITE_S = 2.0
_RELEASED_BY = "the caller no longer waited for the hold"

_log = structlog.get_logger("tollkeeper.ledger")


class _FinishedCall(msgspec.Struct, Generic[Outcome], frozen=True, gc=False):
    outcome: Outcome
    hold: Hold | None


_outcome = attrgetter("outcome")
_excess = attrgetter("excess")
# Integers hash faster than UUIDs.
_hold_id = attrgetter("id.int")
_organization = attrgetter("outcome.organization_id.int")
_reservation_id = attrgetter("outcome.reservation_id.int")


class Ledger:
    def __init__(
        self,
        store: LedgerStore,
        policies: PolicyDirectory,
        excesses: Excesses,
        is_busy: Callable[[], bool],
    ) -> None:
        self._store = store
        self.excesses = excesses
        self.handout = Handout(is_busy)
        self._holds = Holds(
            store,
            policies,
            self.handout,
            committed=self._note_open,
            unused=self._release_unused,
            in_doubt=self._note_in_doubt,
        )
        self.hold_writes = self._holds.writes
        # Never full: at most one item per hold, and projects' concurrency limits those.
        self._resolutions: GroupQueue[_FinishedCall[Resolution], bool] = GroupQueue(
            writing(partial(self._write_finished, self._resolve_all)),
            name="resolutions",
            queued_max=None,
            owner=_organization,
            in_order=True,
            handout=self.handout,
        )
        # These lock accounts.
        self._marks: QueuesByOwner[_FinishedCall[Mark], bool] = QueuesByOwner(
            partial(self._write_finished, self._mark_all), name="marks", owner=_organization
        )
        self._in_doubt: QueuesByOwner[Hold, None] = QueuesByOwner(
            self._release_in_doubt, name="holds in doubt", owner=attrgetter("organization_id.int")
        )
        self._locking_slots = asyncio.Semaphore(_LOCKING_AT_ONCE)
        self._open: set[int] = set()
        # Those that waited at the last `_end_long_waits`, and the timer for the next.
        self._long_waiting: dict[asyncio.Future[Decision], Hold] = {}
        self._wait_timer: asyncio.TimerHandle | None = None

    @property
    def open_holds(self) -> int:
        """This process's, neither resolved nor marked as unsettled."""
        return len(self._open)

    def is_open(self, reservation_id: UUID) -> bool:
        return reservation_id.int in self._open

    @property
    def queued(self) -> dict[str, int]:
        return {
            "holds": sum(writer.queued for writer in self._holds.queues),
            "resolutions": self._resolutions.queued,
            "marks": self._marks.queued,
            "holds in doubt": self._in_doubt.queued,
        }

    @property
    def backlog(self) -> int:
        """Queued items whose results callers wait for."""
        return self._resolutions.queued + sum(writer.queued for writer in self._holds.queues)

    async def hold(self, hold: Hold) -> Decision:
        """Committed when this returns. If this raises or is cancelled, nothing stays held."""
        result = self._holds.submit(hold)
        if self._wait_timer is None:
            self._end_long_waits()
        try:
            # Cancelling the caller cancels `result`, but a hold that left the queue is still
            # written.
            return await result
        except asyncio.CancelledError:
            self._abandon(hold, result)
            raise

    async def try_hold(self) -> None:
        """Writes a hold and rolls it back, unless one was just written. Raises what a call would
        get."""
        written_s_ago = self.hold_writes.state.written_s_ago
        if written_s_ago is not None and written_s_ago < _RECENT_WRITE_S:
            return
        try:
            await self._store.try_hold(new_request_id())
        except TollkeeperError as exc:
            self.hold_writes.failed(exc)
            raise
        self.hold_writes.succeeded()

    def resolve(self, resolution: Resolution, hold: Hold | None = None) -> asyncio.Future[bool]:
        """Durable. False if it was already resolved or doesn't exist. It's written no matter how
        long the database is down; cancelling only cancels the result. With `hold`, a settlement is
        written even if a database crash lost the hold."""
        return self._resolutions.submit(_FinishedCall(resolution, hold))

    def mark_unsettled(self, hold: Hold, reason: str) -> asyncio.Future[bool]:
        """For a call whose cost is unknown. Durable, and retried like `resolve`."""
        # PostgreSQL can't store NUL, and a reason may quote the backend.
        mark = Mark(hold.organization_id, hold.id, reason.replace("\0", ""))
        return self._marks.submit(_FinishedCall(mark, hold))

    async def drain(self, deadline_s: float = _DRAIN_S) -> bool:
        """Writes what's left. If False, this process has open holds and mustn't sign off, so that
        recovery finds them."""
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
        return [*self._holds.queues, self._resolutions, *self._marks.all, *self._in_doubt.all]

    def _note_open(self, holds: Iterable[Hold]) -> None:
        self._open.update(map(_hold_id, holds))

    def _note_in_doubt(self, hold: Hold) -> None:
        """It may exist or not: its commit wasn't answered."""
        self._open.add(hold.id.int)
        self._in_doubt.submit(hold)

    def _end_long_waits(self) -> None:
        """Ends the waits that it already saw `_HOLD_WAIT_S` seconds ago. All calls share this one
        timer."""
        for result, hold in self._long_waiting.items():
            if not result.done():
                busy = Unavailable("The ledger is busy; try again.", retry_after_s=2)
                result.set_exception(busy)
                self._abandon(hold, result)
        self._long_waiting = self._holds.waiting
        self._wait_timer = None
        if self._long_waiting:
            loop = asyncio.get_running_loop()
            self._wait_timer = loop.call_later(_HOLD_WAIT_S, self._end_long_waits)

    def _abandon(self, hold: Hold, result: asyncio.Future[Decision]) -> None:
        if self._holds.withdraw(result):
            return
        if hold.id.int in self._open:
            self._release_unused(hold)
        else:
            # It's being written now. As its result is cancelled, `Holds` releases it if it's
            # admitted.
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
        async def release() -> None:
            async with self._locking_slots:
                await self._store.release_in_doubt(holds)

        await _until_written(release, len(holds))
        self._open.difference_update(map(_hold_id, holds))
        return [None] * len(holds)

    async def _resolve_all(self, resolutions: Sequence[Resolution]) -> Sequence[Ending]:
        endings = await self._store.resolve_all(resolutions)
        # Before callers get results, so that their next call already counts with the excess.
        for excess in filter(None, map(_excess, resolutions)):
            self.excesses.note(excess)
        return endings

    async def _mark_all(self, marks: Sequence[Mark]) -> Sequence[Ending]:
        async with self._locking_slots:
            return await self._store.mark_all(marks)

    # Resolutions and marks are retried forever: the money is already spent.

    async def _write_finished(
        self,
        write: Callable[[Sequence[Outcome]], Awaitable[Sequence[Ending]]],
        batch: Sequence[_FinishedCall[Outcome]],
    ) -> Sequence[bool]:
        """Restores holds that the database has lost, and writes their outcomes again."""
        outcomes = [*map(_outcome, batch)]
        endings = list(await _until_written(lambda: write(outcomes), len(batch)))
        if Ending.MISSING in endings:
            await self._write_lost(write, batch, endings)
        self._open.difference_update(map(_reservation_id, batch))
        return [*map(is_, endings, repeat(Ending.DONE))]

    async def _write_lost(
        self,
        write: Callable[[Sequence[Outcome]], Awaitable[Sequence[Ending]]],
        batch: Sequence[_FinishedCall[Outcome]],
        endings: list[Ending],
    ) -> None:
        """Updates `endings`. A release doesn't need its hold: it charges nothing."""
        lost = [
            (index, call.outcome, call.hold)
            for index, (call, ending) in enumerate(zip(batch, endings, strict=True))
            if ending is Ending.MISSING and call.hold is not None
            if isinstance(call.outcome, Mark) or call.outcome.kind is ResolutionKind.SETTLED
        ]
        if not lost:
            return
        indexes, outcomes, holds = zip(*lost, strict=True)
        _log.error("holds were lost by the database and are restored", count=len(holds))
        await _until_written(lambda: self._store.restore_all(holds), len(holds))
        new_endings = await _until_written(lambda: write(outcomes), len(outcomes))
        for index, ending in zip(indexes, new_endings, strict=True):
            endings[index] = ending


async def _until_written(work: Callable[[], Awaitable[T]], count: int) -> T:
    """Repeats after each `TollkeeperError`, so the work must be safe to repeat. `count` is for the
    log."""
    failures = 0
    while True:
        try:
            return await work()
        except TollkeeperError as exc:
            failures += 1
            _log.warning("the ledger waits for the database", count=count, reason=exc.message)
            await asyncio.sleep(_WRITE_AGAIN.pause_s(failures))
