"""The ledger of one process: holds in fast group commits, resolutions in durable ones.

A hold that is committed is somebody's: the caller's that took it, or this file's to give back. It
knows no SQL; what a transaction is, the store knows.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec
import structlog

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.admission import UNKNOWN, AdmissionRequest, Decision, decide
from tollkeeper.domain.errors import TollkeeperError, Unavailable
from tollkeeper.domain.ledger import Ending, Hold, LockedAccounts, Mark, Resolution, ResolutionKind
from tollkeeper.services.ledger.group_writer import GroupWriter, Result
from tollkeeper.storage.database import Contention
from tollkeeper.storage.ledger_store import AccountBusy, CommitInDoubt, DecideBatch
from tollkeeper.timeouts import timeout

T = TypeVar("T")

_CONTENTION_TRIES = 4
_RETRY_PAUSE_S = 0.05
_RETRY_PAUSE_S_MAX = 2.0
# How long everybody waits for one organization's account, before it waits alone.
_LOCK_WAIT_S = 0.1
# Organizations that wait alone at once: each takes a connection.
_LANES_AT_ONCE = 3
# How long a caller waits to be admitted: longer than the database's own timeouts, and no more.
_HOLD_WAIT_S = 20.0
_DRAIN_S = 30.0
_BY_LEDGER = "nobody took the hold"

_log = structlog.get_logger("tollkeeper.ledger")


class LedgerStore(Protocol):
    """Where the ledger is kept; `storage.ledger_store` says what each method promises."""

    async def hold_all(
        self, holds: Sequence[Hold], decide: DecideBatch, *, lock_wait_s: float | None
    ) -> Sequence[Decision]: ...

    async def release_in_doubt(self, holds: Sequence[Hold]) -> None: ...

    async def resolve_all(self, wanted: Sequence[Resolution]) -> Sequence[Ending]: ...

    async def mark_all(self, marks: Sequence[Mark]) -> Sequence[Ending]: ...

    async def restore_all(self, holds: Sequence[Hold]) -> None: ...


class _Ended(msgspec.Struct, frozen=True, gc=False):
    """How a call ended, with the hold that it was admitted on where that is known."""

    wish: Resolution | Mark
    hold: Hold | None


class Ledger:
    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._holds: GroupWriter[Hold, Decision] = GroupWriter(self._write_holds, name="holds")
        self._lanes: dict[OrganizationId, GroupWriter[Hold, Decision]] = {}
        self._lane_slots = asyncio.Semaphore(_LANES_AT_ONCE)
        # Never refused: there is one for each hold at most, and the limits of projects bound those.
        self._resolutions: GroupWriter[_Ended, bool] = GroupWriter(
            self._write_resolutions, name="resolutions", queued_max=None
        )
        self._marks: GroupWriter[_Ended, bool] = GroupWriter(
            self._write_marks, name="marks", queued_max=None
        )
        self._doubts: GroupWriter[Hold, None] = GroupWriter(
            self._write_doubts, name="holds in doubt", queued_max=None
        )
        self._open: set[UUID] = set()
        # Holds that are being decided and whose caller has left meanwhile.
        self._untaken: set[UUID] = set()

    @property
    def open_holds(self) -> int:
        """Holds of this process that are neither resolved nor marked yet."""
        return len(self._open)

    async def hold(self, hold: Hold) -> Decision:
        """Decides and, where admitted, holds. The hold is committed when this returns; where it
        raises, also by cancellation, nothing stays held."""
        result = self._holds.submit(hold)
        try:
            with timeout(_HOLD_WAIT_S):
                return await asyncio.shield(result)
        except TimeoutError:
            self._abandon(hold, result)
            raise Unavailable("The ledger is busy; try again.", retry_after_s=2) from None
        except asyncio.CancelledError:
            self._abandon(hold, result)
            raise

    async def resolve(self, resolution: Resolution, hold: Hold | None = None) -> bool:
        """Durable when this returns; false where the reservation had been resolved before. It is
        written however long the database is away; who stops waiting does not stop it. With its
        `hold` a settlement is also written where a crash of the database has lost the hold."""
        return await asyncio.shield(self._resolutions.submit(_Ended(resolution, hold)))

    async def mark_unsettled(self, hold: Hold, reason: str) -> bool:
        """Like `resolve`: nobody knows what the call cost, and that is on the books."""
        mark = Mark(hold.organization_id, hold.id, reason)
        return await asyncio.shield(self._marks.submit(_Ended(mark, hold)))

    async def drain(self, deadline_s: float = _DRAIN_S) -> bool:
        """Writes what is left. True where this process holds nothing any more; if not, the process
        must not sign off, so that recovery finds what it leaves."""
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
    def _writers(self) -> list[GroupWriter[Any, Any]]:
        return [self._holds, *self._lanes.values(), self._resolutions, self._marks, self._doubts]

    # Holds: everybody together. An organization whose account keeps the others waiting, or that
    # spoils what is written together with it, goes on alone until its lane is empty.

    async def _write_holds(self, holds: Sequence[Hold]) -> Sequence[Result[Decision]]:
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane.busy}
        results: dict[int, Result[Decision]] = {}
        together: list[int] = []
        for at, hold in enumerate(holds):
            if hold.organization_id in self._lanes:
                results[at] = self._write_apart(hold)
            else:
                together.append(at)
        if together:
            found = await self._write_together([holds[at] for at in together])
            results.update(zip(together, found, strict=True))
        return [results[at] for at in range(len(holds))]

    async def _write_together(self, holds: Sequence[Hold]) -> Sequence[Result[Decision]]:
        try:
            return await self._decide_all(holds, _LOCK_WAIT_S)
        except AccountBusy:
            return [self._write_apart(hold) for hold in holds]
        except TollkeeperError as exc:
            return [exc] * len(holds)
        except Exception:  # noqa: BLE001 - its owner gets it when it is found
            # Nothing was written. Whose fault it is shows when each organization is alone.
            _log.exception("holds could not be written together", count=len(holds))
            return [self._write_apart(hold) for hold in holds]

    def _write_apart(self, hold: Hold) -> Result[Decision]:
        lane = self._lanes.get(hold.organization_id)
        if lane is None:
            lane = GroupWriter(self._write_alone, name="holds of one organization")
            self._lanes[hold.organization_id] = lane
        try:
            return lane.submit(hold)
        except TollkeeperError as exc:  # too many wait already
            return exc

    async def _write_alone(self, holds: Sequence[Hold]) -> Sequence[Decision]:
        async with self._lane_slots:
            return await self._decide_all(holds, None)

    async def _decide_all(
        self, holds: Sequence[Hold], lock_wait_s: float | None
    ) -> Sequence[Decision]:
        try:
            decisions = await _despite_contention(
                lambda: self._store.hold_all(holds, _decide_batch, lock_wait_s=lock_wait_s)
            )
        except CommitInDoubt:
            # Nothing was dispatched, so whatever of this is held is released.
            for hold in holds:
                self._open.add(hold.id)
                self._doubts.submit(hold)
            raise
        for hold, decision in zip(holds, decisions, strict=True):
            if decision.refusal is None:
                self._open.add(hold.id)
                if hold.id in self._untaken:
                    self._give_back(hold)
        return decisions

    def _abandon(self, hold: Hold, result: asyncio.Future[Decision]) -> None:
        """Nobody waits for the decision any more; if it admits, nobody will use the hold."""
        if self._holds.withdraw(result):
            return
        if hold.id in self._open:
            self._give_back(hold)
        elif not result.done():
            self._untaken.add(hold.id)
            result.add_done_callback(lambda _: self._untaken.discard(hold.id))

    def _give_back(self, hold: Hold) -> None:
        release = Resolution(
            organization_id=hold.organization_id,
            reservation_id=hold.id,
            kind=ResolutionKind.RELEASED,
            resolved_by=_BY_LEDGER,
        )
        self._resolutions.submit(_Ended(release, hold))

    async def _write_doubts(self, holds: Sequence[Hold]) -> Sequence[None]:
        await _until_written(lambda: self._store.release_in_doubt(holds), len(holds))
        self._open.difference_update(hold.id for hold in holds)
        return [None] * len(holds)

    # Endings: written however long it takes, because the money is spent.

    async def _write_resolutions(self, batch: Sequence[_Ended]) -> Sequence[bool]:
        async def resolve(ended: Sequence[_Ended]) -> Sequence[Ending]:
            wanted = [found.wish for found in ended if isinstance(found.wish, Resolution)]
            return await self._store.resolve_all(wanted)

        return await self._write_endings(batch, resolve)

    async def _write_marks(self, batch: Sequence[_Ended]) -> Sequence[bool]:
        async def mark(ended: Sequence[_Ended]) -> Sequence[Ending]:
            wanted = [found.wish for found in ended if isinstance(found.wish, Mark)]
            return await self._store.mark_all(wanted)

        return await self._write_endings(batch, mark)

    async def _write_endings(
        self,
        batch: Sequence[_Ended],
        write: Callable[[Sequence[_Ended]], Awaitable[Sequence[Ending]]],
    ) -> Sequence[bool]:
        endings = list(await _until_written(lambda: write(batch), len(batch)))
        lost = [at for at, ending in enumerate(endings) if _is_lost(batch[at], ending)]
        if lost:
            again = [batch[at] for at in lost]
            holds = [found.hold for found in again if found.hold is not None]
            _log.error("holds were lost by the database and are put back", count=len(holds))
            await _until_written(lambda: self._store.restore_all(holds), len(holds))
            found = await _until_written(lambda: write(again), len(again))
            for at, ending in zip(lost, found, strict=True):
                endings[at] = ending
        self._open.difference_update(found.wish.reservation_id for found in batch)
        return [ending is Ending.DONE for ending in endings]


def _is_lost(ended: _Ended, ending: Ending) -> bool:
    """The hold was acknowledged and is gone. Where nothing was charged, nothing is missed."""
    if ending is not Ending.MISSING or ended.hold is None:
        return False
    return isinstance(ended.wish, Mark) or ended.wish.kind is ResolutionKind.SETTLED


def _decide_batch(locked: LockedAccounts, holds: Sequence[Hold]) -> list[Decision]:
    """Decides organization by organization, in the order of arrival; `locked` holds the states
    after it."""
    positions: dict[OrganizationId, list[int]] = {}
    for position, hold in enumerate(holds):
        positions.setdefault(hold.organization_id, []).append(position)
    decisions: dict[int, Decision] = {}
    for organization_id, mine in positions.items():
        state = locked.states.get(organization_id)
        if state is None:
            decisions.update(dict.fromkeys(mine, UNKNOWN))
            continue
        requests = [
            AdmissionRequest(
                holds[position].project_id, holds[position].key_id, holds[position].hold_picousd
            )
            for position in mine
        ]
        after, decided = decide(state, requests, now_us=locked.now_us, month=locked.month)
        locked.states[organization_id] = after
        decisions.update(zip(mine, decided, strict=True))
    return [decisions[position] for position in range(len(holds))]


async def _despite_contention(work: Callable[[], Awaitable[T]]) -> T:
    """Deadlocks and serialization failures are the database's way to say: once more, please."""
    for attempt in range(1, _CONTENTION_TRIES):
        try:
            return await work()
        except Contention:
            await asyncio.sleep(random.uniform(0, _RETRY_PAUSE_S * attempt))  # noqa: S311 - jitter
    return await work()


async def _until_written(work: Callable[[], Awaitable[T]], count: int) -> T:
    """Goes on until it is done, whatever the database does. The work can be repeated safely."""
    pause_s = _RETRY_PAUSE_S
    while True:
        try:
            return await work()
        except TollkeeperError as exc:
            _log.warning("the ledger waits for the database", count=count, reason=exc.message)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            pause_s = min(pause_s * 2, _RETRY_PAUSE_S_MAX)
