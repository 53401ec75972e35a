"""Spreads work over turns of the event loop, so that no turn is long, and lets owners take turns.

A batch of the ledger has results for many calls, and requests may arrive on hundreds of connections at
the same moment. If all of them went on in one turn of the event loop, whatever else arrives would wait
for that turn, and a call takes about a dozen of them. Here only a few go on in one turn, and a caller
with one call does not wait behind another one's hundred.

That costs CPU time: calls that take a step one after the other find it in the caches of the processor,
and fewer calls at a time make smaller batches. So it is done only where it is needed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from tollkeeper.fair_queue import FairQueue

Give: TypeAlias = Callable[[], None]

# One entry for each call or connection; other limits bound those.
_WAITING_MAX = 1_000_000


class FairTurns:
    """At most `per_turn` pieces of work go on in one turn of the loop. Of one owner at most `owner_max`
    do, where `is_shared` says so of it; fewer of those that have had some of it before every turn
    (`had_before`)."""

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
        # What may still go on in this turn without waiting, and what each owner has had of the turn.
        self._left = per_turn
        self._taken: dict[Hashable, int] = {**had_before}
        self._had_before = had_before
        self._is_scheduled = False
        self._given = 0
        # Callbacks, each with the number of given pieces at which it is called.
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, owner: Hashable, give: Give) -> None:
        """`give` is called now, or in one of the next turns of the loop."""
        if self.take(owner):
            give()
        else:
            self.wait(owner, give)

    def take(self, owner: Hashable) -> bool:
        """Whether a piece of work of this owner may go on now. If it may, it is counted."""
        left = self._left
        if not left:
            return False
        taken = self._taken.get(owner, 0)
        if taken >= self._owner_max and self._is_shared(owner):
            return False
        self._taken[owner] = taken + 1
        self._left = left - 1
        if not self._is_scheduled:
            self._schedule()
        return True

    def wait(self, owner: Hashable, give: Give) -> None:
        """`give` is called in one of the next turns of the loop."""
        self._waiting.push(owner, (owner, give))
        # Who comes later waits too.
        self._left = 0
        if not self._is_scheduled:
            self._schedule()

    def call_after_waiting(self, callback: Callable[[], None]) -> None:
        """Calls back in the turn after that in which the last of those that wait now is given."""
        if self._waiting:
            self._marks.append((self._given + len(self._waiting), callback))
        else:
            asyncio.get_running_loop().call_soon(callback)

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._taken.clear()
        self._taken.update(self._had_before)
        if not self._waiting:
            self._left = self._per_turn
            self._is_scheduled = False
            return
        loop = asyncio.get_running_loop()
        # At first, so that it goes on whatever happens to one of them.
        loop.call_soon(self._next_turn)
        self._left = 0
        left = self._per_turn - self._give_waiting(self._per_turn)
        if not self._waiting:
            self._left = left
        while self._marks and self._marks[0][0] <= self._given:
            loop.call_soon(self._marks.popleft()[1])

    def _give_waiting(self, count: int) -> int:
        """Gives to those that wait, in turns by owner, and returns how many that were."""
        for number in range(count):
            try:
                owner, give = self._waiting.pop(self._may_go)
            except IndexError:
                return number
            self._taken[owner] = self._taken.get(owner, 0) + 1
            self._given += 1
            give()
        return count

    def _may_go(self, owner: Hashable) -> bool:
        return self._taken.get(owner, 0) < self._owner_max or not self._is_shared(owner)
