"""How many questions are put to the judge at once, and who goes first."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class JudgeSlots:
    """A bound with two classes of waiting. Whoever makes a caller wait goes before whoever only
    watches; those who watch also leave one slot free, where there is more than one, so that a
    caller's question is not held up by theirs."""

    def __init__(self, total: int) -> None:
        assert total >= 1
        self._free = total
        # How many may watch at once.
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
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come in the very moment
                self._release(watching)
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def _release(self, watching: bool) -> None:
        self._free += 1
        self._watching_room += watching
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and self._calling:
            self._free -= _called_up(self._calling)
        while self._free and self._watching_room and self._watching:
            called = _called_up(self._watching)
            self._free -= called
            self._watching_room -= called


def _called_up(waiting: deque[asyncio.Future[None]]) -> bool:
    """Whether the first one still waited: it may have left without having been told yet."""
    turn = waiting.popleft()
    if turn.done():
        return False
    turn.set_result(None)
    return True
