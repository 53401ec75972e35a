"""Hands out results a few at a time, so that no turn of the event loop is long.

A batch has results for many calls. If all of them went on in one turn of the event loop, whatever
arrives would wait for the whole batch, several times in the course of a call. Here the owners of the
calls take turns, and what arrives is read in between: a caller with one call does not wait behind
another one's hundred.

That costs CPU time: calls that take a step one after the other find it in the caches of the processor,
and fewer calls at a time make smaller batches. So it is done only where it is needed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tollkeeper.fair_queue import FairQueue

T = TypeVar("T")
Give: TypeAlias = Callable[[], None]

# So many calls go on in one turn of the loop. Each takes some tenths of a millisecond.
PER_TURN = 8
# One entry for each call that waits for the ledger; other limits bound those.
_WAITING_MAX = 1_000_000


class Handout:
    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        # Whether calls have to share the process, as far as somebody knows.
        self.needed: Callable[[], bool] = lambda: True
        self._waiting: FairQueue[Give] = FairQueue(items_max=_WAITING_MAX, lane_max=_WAITING_MAX)
        self._left = per_turn
        self._is_scheduled = False
        self._given = 0
        # What is called when so many have been given.
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_needed(self) -> bool:
        """Whether results have to be given by `add`. Where they need not, whoever has them may give
        them to all callers at once."""
        return bool(self._waiting) or self.needed()

    def add(self, owner: Hashable, give: Give) -> None:
        """`give` is called now, or in one of the next turns of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._left = self._per_turn
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._left and not self._waiting:
            self._left -= 1
            give()
        else:
            self._waiting.push(owner, give)

    def call_after_waiting(self, callback: Callable[[], None]) -> None:
        """Calls back in the turn after that in which the last of those that wait now is given."""
        if self._waiting:
            self._marks.append((self._given + len(self._waiting), callback))
        else:
            asyncio.get_running_loop().call_soon(callback)

    def _next_turn(self) -> None:
        if self._left == self._per_turn and not self._waiting:
            self._is_scheduled = False  # Nothing was given in the turn before this one.
            return
        loop = asyncio.get_running_loop()
        # At first, so that it goes on whatever happens to one of them.
        loop.call_soon(self._next_turn)
        self._left = self._per_turn
        while self._left and self._waiting:
            self._left -= 1
            self._given += 1
            self._waiting.pop()()
        while self._marks and self._marks[0][0] <= self._given:
            loop.call_soon(self._marks.popleft()[1])


@dataclass(frozen=True, slots=True)
class HandedOut(Generic[T]):
    """How the results of items are handed out: in turn by the owners of the items."""

    handout: Handout
    owner: Callable[[T], Hashable]
