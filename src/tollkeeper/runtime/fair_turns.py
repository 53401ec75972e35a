"""Spreads work over several iterations of the event loop ("turns"), and lets owners take turns.

A batch of the ledger has results for many calls, and requests may arrive on hundreds of connections
at once. If all of them continued in one iteration, everything else would wait for it, and a call
takes about a dozen iterations. Here only a few continue in each iteration, and a client with one
call does not wait behind another client's hundred.

This costs CPU time: the same step for many calls in a row benefits from the processor's caches, and
fewer calls at a time make smaller batches. So it is done only when needed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from tollkeeper.runtime.fair_queue import FairQueue

Give: TypeAlias = Callable[[], None]

# There is one entry for each call or connection, and those have other limits.
_WAITING_MAX = 1_000_000


class FairTurns:
    """Runs at most `per_turn` pieces of work in one iteration of the loop. An owner for which
    `is_shared` returns True gets at most `owner_max` of them, less the number that `had_before`
    counts in every iteration."""

    def __init__(
        self,
        per_turn: int,
        owner_max: int | None = None,
        is_shared: Callable[[Hashable], bool] = lambda _owner: True,
        had_before: Mapping[Hashable, int] = MappingProxyType({}),
    ) -> None:
        self._per_turn = per_turn
        self._owner_max = per_turn if owner_max is None else owner_max
        self._is_shared = is_shared
        self._waiting: FairQueue[tuple[Hashable, Give]] = FairQueue(
            items_max=_WAITING_MAX, lane_max=_WAITING_MAX
        )
        # The work that may still run in this iteration, and the number of pieces that each owner
        # has had.
        self._left = per_turn
        self._used_by_owner: dict[Hashable, int] = {**had_before}
        self._had_before = had_before
        self._is_scheduled = False
        self._given = 0
        # Callbacks, each with the count of finished pieces at which it is called.
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, owner: Hashable, give: Give) -> None:
        """Calls `give` now or in one of the next iterations."""
        if self.take(owner):
            give()
        else:
            self.wait(owner, give)

    def take(self, owner: Hashable) -> bool:
        """Tells whether this owner's work may run now. If so, it is counted."""
        left = self._left
        if not left:
            return False
        taken = self._used_by_owner.get(owner, 0)
        if taken >= self._owner_max and self._is_shared(owner):
            return False
        self._used_by_owner[owner] = taken + 1
        self._left = left - 1
        if not self._is_scheduled:
            self._schedule()
        return True

    def wait(self, owner: Hashable, give: Give) -> None:
        """Calls `give` in one of the next iterations."""
        self._waiting.push(owner, (owner, give))
        # Later work has to wait too.
        self._left = 0
        if not self._is_scheduled:
            self._schedule()

    def call_after_waiting(self, callback: Callable[[], None]) -> None:
        """Calls back one iteration after all currently waiting work has run."""
        if self._waiting:
            self._marks.append((self._given + len(self._waiting), callback))
        else:
            asyncio.get_running_loop().call_soon(callback)

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._used_by_owner.clear()
        self._used_by_owner.update(self._had_before)
        if not self._waiting:
            self._left = self._per_turn
            self._is_scheduled = False
            return
        loop = asyncio.get_running_loop()
        # Scheduled first, so that it continues even if a callback raises.
        loop.call_soon(self._next_turn)
        self._left = 0
        left = self._per_turn - self._give_waiting(self._per_turn)
        if not self._waiting:
            self._left = left
        while self._marks and self._marks[0][0] <= self._given:
            loop.call_soon(self._marks.popleft()[1])

    def _give_waiting(self, count: int) -> int:
        """Runs waiting work, owner by owner in turn, and returns the number of pieces."""
        for number in range(count):
            try:
                owner, give = self._waiting.pop(self._may_go)
            except IndexError:
                return number
            self._used_by_owner[owner] = self._used_by_owner.get(owner, 0) + 1
            self._given += 1
            give()
        return count

    def _may_go(self, owner: Hashable) -> bool:
        return self._used_by_owner.get(owner, 0) < self._owner_max or not self._is_shared(owner)
