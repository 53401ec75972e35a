"""Provides a queue and a semaphore that serve owners round-robin instead of in the order of arrival.

A `FairQueue` has one lane for each owner, for example for each organization. It takes one item from each
lane in turn. So an owner with a thousand items delays mainly itself: the first item of another owner waits
for at most one item from each lane. `FairSlots` is a semaphore whose waiters are in such a queue.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tollkeeper.runtime.timeouts import timeout_at

T = TypeVar("T")


class QueueFull(Exception):
    """Too many items are already waiting, in total or in this owner's lane."""


class FairQueue(Generic[T]):
    """Contains items in lanes, one lane for each owner. Limits the number of items in total and in each
    lane."""

    def __init__(self, *, items_max: int, lane_max: int) -> None:
        assert 1 <= lane_max <= items_max
        self._items_max = items_max
        self._lane_max = lane_max
        # The first lane is served next.
        self._lanes: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, owner: Hashable, item: T) -> None:
        """Adds an item to the owner's lane. Raises QueueFull."""
        if self._count >= self._items_max:
            raise QueueFull
        lane = self._lanes.get(owner)
        if lane is None:
            self._lanes[owner] = deque((item,))
        elif len(lane) < self._lane_max:
            lane.append(item)
        else:
            raise QueueFull
        self._count += 1

    def pop(self, may_go: Callable[[Hashable], bool] | None = None) -> T:
        """Removes and returns an item from the next lane for whose owner `may_go` returns True. Raises
        IndexError if there is no such lane."""
        owners = (owner for owner in self._lanes if may_go is None or may_go(owner))
        try:
            owner = next(owners)
        except StopIteration:
            raise IndexError("no item may go") from None
        lane = self._lanes[owner]
        item = lane.popleft()
        self._count -= 1
        if lane:
            self._lanes.move_to_end(owner)
        else:
            del self._lanes[owner]
        return item

    def discard(self, owner: Hashable, item: T) -> bool:
        """Removes an item. Returns False if it is not in the owner's lane."""
        lane = self._lanes.get(owner)
        if lane is None or item not in lane:
            return False
        lane.remove(item)
        self._count -= 1
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
        self._free = total
        self._owner_max = owner_max
        self._held: dict[Hashable, int] = {}
        self._waiting: FairQueue[tuple[Hashable, asyncio.Future[None]]] = FairQueue(
            items_max=waiting_max, lane_max=waiting_owner_max
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

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
        entry = (owner, slot)
        self._waiting.push(owner, entry)
        self._hand_out()
        try:
            with timeout_at(until):
                await slot
        except BaseException:
            if slot.done() and not slot.cancelled():
                self.release(owner)  # the slot was assigned just before the timeout or cancellation
            else:
                self._waiting.discard(owner, entry)
            raise

    def release(self, owner: Hashable) -> None:
        left = self._held[owner] - 1
        if left:
            self._held[owner] = left
        else:
            del self._held[owner]
        self._free += 1
        if self._waiting:
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
