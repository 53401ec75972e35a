"""Limits how many questions the judge gets at the same time, and decides which one is next."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class JudgeSlots:
    """A semaphore with two queues. Questions that a caller waits for come before questions of
    monitoring policies (`watching`). Watching questions also leave one slot free, if there is more
    than one, so that a caller's question need not wait for them."""

    def __init__(self, total: int) -> None:
        assert total >= 1
        self._free = total
        # How many more slots watching questions may take.
        self._watching_room = max(1, total - 1)
        self._calling: deque[asyncio.Future[None]] = deque()
        self._watching: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def held(self, *, watching: bool) -> AsyncIterator[None]:
        await self._acquire(watching)
        try:
            yield
        finally:
            self._release(watching)

    async def _acquire(self, watching: bool) -> None:
        waiting = self._watching if watching else self._calling
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(slot)
        self._wake_waiting()
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():  # the slot was given at the moment of the cancellation
                self._release(watching)
            elif slot in waiting:
                waiting.remove(slot)
            raise

    def _release(self, watching: bool) -> None:
        self._free += 1
        self._watching_room += watching
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        while self._free and self._calling:
            self._free -= _wake_first(self._calling)
        while self._free and self._watching_room and self._watching:
            woken = _wake_first(self._watching)
            self._free -= woken
            self._watching_room -= woken


def _wake_first(waiting: deque[asyncio.Future[None]]) -> bool:
    """Gives a slot to the first one in the queue. Returns False where its task was cancelled
    meanwhile and does not need the slot."""
    slot = waiting.popleft()
    if slot.done():
        return False
    slot.set_result(None)
    return True
