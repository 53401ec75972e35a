"""A queue, a semaphore and a scheduler that serve owners in turn, not in order of arrival.

`FairQueue` has a lane for each owner and takes one item from each in turn, so an owner with a thousand items
mainly delays itself. `FairSlots` is a semaphore whose waiters queue like this. `FairTurns` spreads work over
iterations of the event loop ("turns").
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

from tollkeeper.core.runtime.timeouts import timeout_at

T = TypeVar("T")
Callback: TypeAlias = Callable[[], None]

# Never reached: calls and connections, which are limited elsewhere, have one entry each.
_WAITING_MAX = 1_000_000


class QueueFull(Exception):
    """Too many wait, in total or in this lane."""


class FairQueue(Generic[T]):
    """Limited in total and for each lane."""

    def __init__(self, *, items_max: int, lane_max: int) -> None:
        assert 1 <= lane_max <= items_max
        self._items_max = items_max
        self._lane_max = lane_max
        # The first lane is next. Items are in order of arrival, by number.
        self._lanes: OrderedDict[Hashable, OrderedDict[int, T]] = OrderedDict()
        # Ever.
        self.pushed = 0
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def push(self, owner: Hashable, item: T) -> int:
        """Returns the item's number. Raises QueueFull."""
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
        """From the next lane whose owner `may_go`. Raises IndexError if there is none."""
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
        """False if it isn't in the lane."""
        lane = self._lanes.get(owner)
        if lane is None or number not in lane:
            return False
        del lane[number]
        self.count -= 1
        if not lane:
            del self._lanes[owner]
        return True


class FairSlots:
    """An owner has at most `owner_max`, so that some remain for others."""

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
        """If the owner needn't wait. Overtakes nobody: while a slot is free, only owners wait that have
        `owner_max` (`_hand_out`)."""
        held = self._held.get(owner, 0)
        if not self._free or held >= self._owner_max:
            return False
        self._free -= 1
        self._held[owner] = held + 1
        return True

    async def acquire(self, owner: Hashable, *, until: float) -> None:
        """`until` is the event loop's time. Raises QueueFull or TimeoutError."""
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
    """What one owner may use: seven eighths, rounded up."""
    return total - total // 8


def _end_wait(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # otherwise the waiting task was cancelled
        turn.set_result(None)


class FairTurns:
    """Runs at most `per_turn` callbacks in one iteration of the event loop.

    A batch of the ledger has results for many calls, and requests come on hundreds of connections at once. In
    one iteration they'd take long, and since a call takes about a dozen iterations, each call would wait that
    often. So a client with one call doesn't wait for another's hundred.

    Spreading costs CPU time: the same step for many calls in a row uses the caches well, and smaller groups
    make smaller batches. So callers should spread only when needed.

    If `is_shared(owner)`, the process also works for others, and at most `owner_max` callbacks of an
    iteration are this owner's, minus what `already_used` has.
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
        # Those whose callbacks have run in this iteration, after `already_used`.
        self._already_used = list(Counter(already_used).elements())
        self._used = self._already_used[:]
        # Of `_used`. 0 while callbacks wait.
        self._used_max = per_turn + len(self._used)
        self._is_scheduled = False
        # Each with how many waiting callbacks run before it.
        self._later_callbacks: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, owner: Hashable, callback: Callback) -> None:
        """Now or in one of the next iterations."""
        if self.take(owner):
            callback()
        else:
            self.wait(owner, callback)

    def take(self, owner: Hashable) -> bool:
        """Whether a callback of this owner may run now; if so, it counts."""
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
        """One that ran although `take` said no."""
        self._used.append(owner)

    def exceeds(self, owner: Hashable) -> bool:
        limit = self._owner_max if self._is_shared(owner) else self._per_turn
        return self._used.count(owner) > limit

    def wait(self, owner: Hashable, callback: Callback) -> None:
        self._waiting.push(owner, (owner, callback))
        # Later ones have to wait too.
        self._used_max = 0
        if not self._is_scheduled:
            self._schedule()

    async def turn(self, owner: Hashable) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait(owner, partial(_end_wait, turn))
        await turn

    def call_after_waiting(self, callback: Callable[[], None]) -> None:
        """One iteration after as many have run as wait now, maybe with newer ones of other owners."""
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
        # First, so that it also runs if a callback raises.
        loop.call_soon(self._next_turn)
        # New callbacks queue behind those that wait.
        self._used_max = 0
        self._run_waiting()
        if not self._waiting.count:
            self._used_max = self._per_turn + len(self._already_used)
        finished = self._waiting.pushed - self._waiting.count
        while self._later_callbacks and self._later_callbacks[0][0] <= finished:
            loop.call_soon(self._later_callbacks.popleft()[1])

    def _run_waiting(self) -> None:
        """Owners round-robin."""
        for _ in range(self._per_turn):
            try:
                owner, callback = self._waiting.pop(self._may_go)
            except IndexError:
                return
            self._used.append(owner)
            callback()

    def _may_go(self, owner: Hashable) -> bool:
        return self._used.count(owner) < self._owner_max or not self._is_shared(owner)
