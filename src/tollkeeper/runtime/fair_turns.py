"""Spreads work over several iterations of the event loop ("turns"), and serves owners round-robin.

An owner is the party for which work waits, usually an organization. A batch of the ledger has results for
many calls, and requests may arrive on hundreds of connections at the same time. If all these calls and
requests continued in one iteration, the iteration would take long. A call takes about a dozen iterations,
so each call would wait about a dozen times for the end of such a long iteration. With this module, only a
few calls continue in each iteration, and a client with one call does not wait for a hundred calls of another
client.

Spreading the work costs CPU time: executing the same step for many calls in a row makes good use of the
processor's caches, and smaller groups of calls lead to smaller database batches. So callers should spread
work only when needed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from tollkeeper.runtime.fair_queue import FairQueue

Callback: TypeAlias = Callable[[], None]

# Never reached, because the queue has at most one entry for each call or connection, and the numbers of
# calls and connections are limited elsewhere.
_WAITING_MAX = 1_000_000


class FairTurns:
    """Runs at most `per_turn` callbacks in one iteration of the event loop.

    If `is_shared(owner)` returns True, the process also works for other owners. Then at most `owner_max` of
    the callbacks in an iteration belong to this owner. `already_used` maps an owner to the number by which
    `owner_max` is lowered for this owner.
    """

    def __init__(
        self,
        per_turn: int,
        owner_max: int | None = None,
        is_shared: Callable[[Hashable], bool] = lambda _owner: True,
        already_used: Mapping[Hashable, int] = MappingProxyType({}),
    ) -> None:
        self._per_turn = per_turn
        self._owner_max = per_turn if owner_max is None else owner_max
        self._is_shared = is_shared
        self._waiting: FairQueue[tuple[Hashable, Callback]] = FairQueue(
            items_max=_WAITING_MAX, lane_max=_WAITING_MAX
        )
        # The number of callbacks that may still run in this iteration.
        self._left = per_turn
        # For each owner, the number of its callbacks that have run in this iteration, plus `already_used`.
        self._used_by_owner: dict[Hashable, int] = {**already_used}
        self._already_used = already_used
        self._is_scheduled = False
        # The number of waiting callbacks that have run so far.
        self._finished = 0
        # The callbacks of `call_after_waiting`, each with the value of `_finished` at which it is called.
        self._later_callbacks: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, owner: Hashable, callback: Callback) -> None:
        """Calls `callback` now or in one of the next iterations."""
        if self.take(owner):
            callback()
        else:
            self.wait(owner, callback)

    def take(self, owner: Hashable) -> bool:
        """Tells whether a callback of this owner may run now. If so, counts it as run."""
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

    def wait(self, owner: Hashable, callback: Callback) -> None:
        """Calls `callback` in one of the next iterations."""
        self._waiting.push(owner, (owner, callback))
        # Callbacks that are added later in this iteration have to wait too.
        self._left = 0
        if not self._is_scheduled:
            self._schedule()

    def call_after_waiting(self, callback: Callable[[], None]) -> None:
        """Calls `callback` one iteration after as many waiting callbacks have run as wait now. Some of them may
        be newer callbacks of other owners."""
        if self._waiting:
            self._later_callbacks.append((self._finished + len(self._waiting), callback))
        else:
            asyncio.get_running_loop().call_soon(callback)

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._used_by_owner.clear()
        self._used_by_owner.update(self._already_used)
        if not self._waiting:
            self._left = self._per_turn
            self._is_scheduled = False
            return
        loop = asyncio.get_running_loop()
        # The next iteration is scheduled first, so that it also runs if a callback raises.
        loop.call_soon(self._next_turn)
        # While the waiting callbacks run, new callbacks have to queue behind them.
        self._left = 0
        left = self._per_turn - self._run_waiting(self._per_turn)
        if not self._waiting:
            self._left = left
        while self._later_callbacks and self._later_callbacks[0][0] <= self._finished:
            loop.call_soon(self._later_callbacks.popleft()[1])

    def _run_waiting(self, count: int) -> int:
        """Runs up to `count` waiting callbacks, owners round-robin. Returns how many have run."""
        for number in range(count):
            try:
                owner, callback = self._waiting.pop(self._may_go)
            except IndexError:
                return number
            self._used_by_owner[owner] = self._used_by_owner.get(owner, 0) + 1
            self._finished += 1
            callback()
        return count

    def _may_go(self, owner: Hashable) -> bool:
        return self._used_by_owner.get(owner, 0) < self._owner_max or not self._is_shared(owner)
