"""Provides a queue, a semaphore and a scheduler that serve owners in turn, not in the order of arrival.

A `FairQueue` has one lane for each owner, for example for each organization. It takes one item from each
lane in turn. So an owner with a thousand items delays mainly itself: the first item of another owner waits
for at most one item from each lane. `FairSlots` is a semaphore whose waiters are in such a queue.
`FairTurns` spreads work over several iterations of the event loop ("turns"), with such a queue.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

from tollkeeper.runtime.timeouts import timeout_at

T = TypeVar("T")
Callback: TypeAlias = Callable[[], None]

# The limits of the queue of `FairTurns`. They are never reached, because the queue has at most one entry for
# each call or connection, and the numbers of calls and connections are limited elsewhere.
_WAITING_MAX = 1_000_000


class QueueFull(Exception):
    """Too many items are already waiting, in total or in this owner's lane."""


class FairQueue(Generic[T]):
    """Contains items in lanes, one lane for each owner. Limits the number of items in total and in each
    lane."""

    def __init__(self, *, items_max: int, lane_max: int) -> None:
        assert 1 <= lane_max <= items_max
        self._items_max = items_max
        self._lane_max = lane_max
        # The first lane is served next. The items of a lane are in the order of their arrival, by number.
        self._lanes: OrderedDict[Hashable, OrderedDict[int, T]] = OrderedDict()
        # The number of items that were ever added.
        self.pushed = 0
        # The number of items in all lanes.
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def push(self, owner: Hashable, item: T) -> int:
        """Adds an item to the owner's lane, and returns the number of the item. Raises QueueFull."""
        if self.count >= self._items_max:
            raise QueueFull
        lane = self._lanes.get(owner)
        if lane is None:
            lane = self._lanes[owner] = OrderedDict()
        elif len(lane) >= self._lane_max:
            raise QueueFull
        self.count += 1
        self.pushed = number = self.pushed + 1
        lane[number] = item
        return number

    def pop(self, may_go: Callable[[Hashable], bool] | None = None) -> T:
        """Removes and returns an item from the next lane for whose owner `may_go` returns True. Raises
        IndexError if there is no such lane."""
        for owner in self._lanes:
            if may_go is None or may_go(owner):
                break
        else:
            raise IndexError("no item may go")
        lane = self._lanes[owner]
        _, item = lane.popitem(last=False)
        self.count -= 1
        if lane:
            self._lanes.move_to_end(owner)
        else:
            del self._lanes[owner]
        return item

    def discard(self, owner: Hashable, number: int) -> bool:
        """Removes the item with this number. Returns False if it is not in the owner's lane."""
        lane = self._lanes.get(owner)
        if lane is None or number not in lane:
            return False
        del lane[number]
        self.count -= 1
        if not lane:
            del self._lanes[owner]
        return True


class FairSlots:
    """Limits concurrent work with a number of slots. One owner has at most `owner_max` slots at a time, so
    that some remain for other owners."""

    def __init__(
        self, total: int, *, owner_max: int, waiting_max: int, waiting_owner_max: int
    ) -> None:
        assert 1 <= owner_max <= total
        self._total = self._free = total
        self._owner_max = owner_max
        self._held: dict[Hashable, int] = {}
        self._waiting: FairQueue[tuple[Hashable, asyncio.Future[None]]] = FairQueue(
            items_max=waiting_max, lane_max=waiting_owner_max
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def taken(self) -> int:
        return self._total - self._free

    def take_free(self, owner: Hashable) -> bool:
        """Takes a slot if the owner need not wait for it. Returns False otherwise. Overtakes nobody: while
        a slot is free, only owners wait that already have `owner_max` slots (see `_hand_out`)."""
        held = self._held.get(owner, 0)
        if not self._free or held >= self._owner_max:
            return False
        self._free -= 1
        self._held[owner] = held + 1
        return True

    async def acquire(self, owner: Hashable, *, until: float) -> None:
        """Waits for a slot, at most until `until`, a time of the event loop's clock. Raises QueueFull or
        TimeoutError."""
        if self.take_free(owner):
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = self._waiting.push(owner, (owner, slot))
        self._hand_out()
        try:
            with timeout_at(until):
                await slot
        except BaseException:
            if slot.done() and not slot.cancelled():
                self.release(owner)  # the slot was assigned just before the timeout or cancellation
            else:
                self._waiting.discard(owner, number)
            raise

    def release(self, owner: Hashable) -> None:
        left = self._held[owner] - 1
        if left:
            self._held[owner] = left
        else:
            del self._held[owner]
        self._free += 1
        if self._waiting.count:
            self._hand_out()

    def _hand_out(self) -> None:
        while self._free and self._waiting:
            try:
                owner, slot = self._waiting.pop(self._may_hold)
            except IndexError:
                return
            if not slot.done():  # otherwise the waiter was cancelled and needs no slot
                self._take(owner)
                slot.set_result(None)

    def _may_hold(self, owner: Hashable) -> bool:
        return self._held.get(owner, 0) < self._owner_max

    def _take(self, owner: Hashable) -> None:
        self._free -= 1
        self._held[owner] = self._held.get(owner, 0) + 1


def share(total: int) -> int:
    """Returns the part of `total` that one owner may use: seven eighths, rounded up."""
    return total - total // 8


def _end_wait(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # otherwise the waiting task was cancelled
        turn.set_result(None)


class FairTurns:
    """Runs at most `per_turn` callbacks in one iteration of the event loop.

    A batch of the ledger has results for many calls, and requests may arrive on hundreds of connections at the
    same time. If all these calls and requests continued in one iteration, the iteration would take long. A call
    takes about a dozen iterations, so each call would wait about a dozen times for the end of such a long
    iteration. With this class, a client with one call does not wait for a hundred calls of another client.

    Spreading the work costs CPU time: executing the same step for many calls in a row makes good use of the
    processor's caches, and smaller groups of calls lead to smaller database batches. So callers should spread
    work only when needed.

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
        # The owners of the callbacks that have run in this iteration, after the owners in `already_used`.
        self._already_used = list(Counter(already_used).elements())
        self._used = self._already_used[:]
        # The maximum length of `_used`. 0 while callbacks wait.
        self._used_max = per_turn + len(self._used)
        self._is_scheduled = False
        # The callbacks of `call_after_waiting`, each with the number of waiting callbacks after which it is
        # called.
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
        used = self._used
        if len(used) >= self._used_max:
            return False
        if used.count(owner) >= self._owner_max and self._is_shared(owner):
            return False
        used.append(owner)
        if not self._is_scheduled:
            self._schedule()
        return True

    def count(self, owner: Hashable) -> None:
        """Counts a callback of this owner that has run although `take` had returned False."""
        self._used.append(owner)

    def exceeds(self, owner: Hashable) -> bool:
        """Tells whether more callbacks of this owner have run in this iteration than its limit allows."""
        limit = self._owner_max if self._is_shared(owner) else self._per_turn
        return self._used.count(owner) > limit

    def wait(self, owner: Hashable, callback: Callback) -> None:
        """Calls `callback` in one of the next iterations."""
        self._waiting.push(owner, (owner, callback))
        # Callbacks that are added later in this iteration have to wait too.
        self._used_max = 0
        if not self._is_scheduled:
            self._schedule()

    async def turn(self, owner: Hashable) -> None:
        """Lets the caller continue in one of the next iterations."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait(owner, partial(_end_wait, turn))
        await turn

    def call_after_waiting(self, callback: Callable[[], None]) -> None:
        """Calls `callback` one iteration after as many waiting callbacks have run as wait now. Some of them may
        be newer callbacks of other owners."""
        if self._waiting:
            self._later_callbacks.append((self._waiting.pushed, callback))
        else:
            asyncio.get_running_loop().call_soon(callback)

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._used[:] = self._already_used
        if not self._waiting.count:
            self._used_max = self._per_turn + len(self._already_used)
            self._is_scheduled = False
            return
        loop = asyncio.get_running_loop()
        # The next iteration is scheduled first, so that it also runs if a callback raises.
        loop.call_soon(self._next_turn)
        # While the waiting callbacks run, new callbacks have to queue behind them.
        self._used_max = 0
        self._run_waiting()
        if not self._waiting.count:
            self._used_max = self._per_turn + len(self._already_used)
        finished = self._waiting.pushed - self._waiting.count
        while self._later_callbacks and self._later_callbacks[0][0] <= finished:
            loop.call_soon(self._later_callbacks.popleft()[1])

    def _run_waiting(self) -> None:
        """Runs up to `per_turn` waiting callbacks, owners round-robin."""
        for _ in range(self._per_turn):
            try:
                owner, callback = self._waiting.pop(self._may_go)
            except IndexError:
                return
            self._used.append(owner)
            callback()

    def _may_go(self, owner: Hashable) -> bool:
        return self._used.count(owner) < self._owner_max or not self._is_shared(owner)
