"""Limits how many questions the judge (the model that answers policy questions) gets at the same
time, and decides which waiting question is next."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tollkeeper.domain.errors import Unavailable
from tollkeeper.runtime.fair_queue import FairQueue, QueueFull, share

# The maximum number of waiting questions, in total and of one organization. One call has at most as
# many questions at a time as there are slots, so only thousands of concurrent calls reach these
# limits.
_WAITING_MAX = 65_536
_WAITING_OF_ORGANIZATION_MAX = 16_384
# The maximum number of watching questions that start in one iteration of the event loop. Each of them
# takes about a tenth of a millisecond, in which no call is served.
_WATCHING_PER_TURN = 2
_RETRY_AFTER_S = 2

_Waiting = FairQueue[tuple[Hashable, asyncio.Future[None]]]


@dataclass(frozen=True, slots=True)
class JudgeLoad:
    """Counts the questions that the judge is answering, the waiting questions that a client's call
    waits for, and the waiting questions of monitoring policies."""

    slots_in_use: int
    calls_waiting: int
    monitoring_waiting: int


class JudgeSlots:
    """Works like a semaphore with two queues. Questions that a client waits for come before
    questions of monitoring policies (`watching`), for which no client waits. If there are several
    slots, watching questions never use all of them, so that one slot stays free for clients'
    questions. In each queue, organizations take turns. If there are at least eight slots, one
    organization never gets all of them. So an organization that floods the judge delays mostly
    itself."""

    def __init__(self, total: int) -> None:
        assert total >= 1
        self._free = total
        # The number of slots that watching questions may still take.
        self._watching_room = max(1, total - 1)
        # The number of watching questions that may still start in this iteration of the event loop.
        self._watching_starts = _WATCHING_PER_TURN
        self._organization_max = share(total)
        # The number of slots in use, by organization.
        self._held: Counter[Hashable] = Counter()
        self._client_queue = _queue()
        self._watching_queue = _queue()

    @property
    def load(self) -> JudgeLoad:
        return JudgeLoad(self._held.total(), len(self._client_queue), len(self._watching_queue))

    def free_for_watching(self, organization: Hashable) -> int:
        """Returns the number of slots that the organization's next watching questions would get at
        once."""
        of_organization = self._organization_max - self._held[organization]
        free = min(self._free, self._watching_room, of_organization)
        return max(0, free - len(self._watching_queue))

    @asynccontextmanager
    async def held(self, *, watching: bool, organization: Hashable = None) -> AsyncIterator[None]:
        """Waits for a slot and holds it within the block. Raises Unavailable if too many questions
        wait already."""
        await self._acquire(watching, organization)
        try:
            yield
        finally:
            self._release(watching, organization)

    async def _acquire(self, watching: bool, organization: Hashable) -> None:
        waiting = self._watching_queue if watching else self._client_queue
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            number = waiting.push(organization, (organization, slot))
        except QueueFull:
            raise Unavailable(
                "Too many questions wait for the judge.", retry_after_s=_RETRY_AFTER_S
            ) from None
        self._wake_waiting()
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():  # the slot was assigned during the cancellation
                self._release(watching, organization)
            else:
                waiting.discard(organization, number)
            raise

    def _release(self, watching: bool, organization: Hashable) -> None:
        self._held[organization] -= 1
        if not self._held[organization]:
            del self._held[organization]
        self._free += 1
        self._watching_room += watching
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        while self._free and self._wake_next(self._client_queue):
            pass
        while (
            self._free
            and self._watching_room
            and self._watching_starts
            and self._wake_next(self._watching_queue)
        ):
            if self._watching_starts == _WATCHING_PER_TURN:
                asyncio.get_running_loop().call_soon(self._next_turn)
            self._watching_room -= 1
            self._watching_starts -= 1

    def _next_turn(self) -> None:
        self._watching_starts = _WATCHING_PER_TURN
        self._wake_waiting()

    def _wake_next(self, waiting: _Waiting) -> bool:
        """Gives a slot to the next question in the queue. Returns False if the queue is empty, or
        if every waiting organization already has its maximum number of slots."""
        while waiting:
            try:
                organization, slot = waiting.pop(self._may_hold)
            except IndexError:
                return False
            if not slot.done():  # a cancelled question needs no slot
                self._free -= 1
                self._held[organization] += 1
                slot.set_result(None)
                return True
        return False

    def _may_hold(self, organization: Hashable) -> bool:
        return self._held[organization] < self._organization_max


def _queue() -> _Waiting:
    return FairQueue(items_max=_WAITING_MAX, lane_max=_WAITING_OF_ORGANIZATION_MAX)
