"""Limits how many questions the judge gets at once, and picks the next one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.fair_queue import FairQueue, QueueFull, share

# A call asks at most as many questions at once as there are slots, so only thousands of concurrent
# calls reach these.
_WAITING_MAX = 65_536
_WAITING_OF_ORGANIZATION_MAX = 16_384
# Watching questions started per iteration of the event loop. Each takes about a tenth of a
# millisecond, in which no call is served.
_WATCHING_PER_TURN = 2
_RETRY_AFTER_S = 2

_Waiting = FairQueue[tuple[Hashable, asyncio.Future[None]]]


@dataclass(frozen=True, slots=True)
class JudgeLoad:
    slots_in_use: int
    calls_waiting: int
    monitoring_waiting: int


class JudgeSlots:
    """A semaphore with two queues: questions that a client waits for come before those of
    monitoring policies (`watching`), which never use the last of several slots. In each queue,
    organizations take turns. With eight slots or more, one organization never gets all. So one that
    floods the judge mostly delays itself."""

    def __init__(self, total: int) -> None:
        assert total >= 1
        self._free = total
        # For watching questions.
        self._watching_room = max(1, total - 1)
        # In this iteration of the event loop.
        self._watching_starts = _WATCHING_PER_TURN
        self._organization_max = share(total)
        # By organization.
        self._held: Counter[Hashable] = Counter()
        self._client_queue = _queue()
        self._watching_queue = _queue()

    @property
    def load(self) -> JudgeLoad:
        return JudgeLoad(self._held.total(), len(self._client_queue), len(self._watching_queue))

    def free_for_watching(self, organization: Hashable) -> int:
        """What the organization's next watching questions would get at once."""
        of_organization = self._organization_max - self._held[organization]
        free = min(self._free, self._watching_room, of_organization)
        return max(0, free - len(self._watching_queue))

    @asynccontextmanager
    async def held(self, *, watching: bool, organization: Hashable = None) -> AsyncIterator[None]:
        """Raises Unavailable if too many questions wait already."""
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
        """False if nothing waits, or every waiting organization has its maximum."""
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
