"""Implements group commit: one transaction writes the items of many callers, and each gets its own
result."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from tollkeeper.domain.errors import TollkeeperError, Unavailable
from tollkeeper.runtime.fair_queue import FairQueue, QueueFull
from tollkeeper.services.batches import observe_batch, own_error
from tollkeeper.services.ledger.handout import Handout

T = TypeVar("T")
R = TypeVar("R")

BATCH_MAX = 256
QUEUED_MAX = 20_000
# The maximum number of waiting items of one owner, if owners take turns.
QUEUED_OF_OWNER_MAX = 5_000


def _no_owner(_item: object) -> None:
    """Puts all items into one lane."""


class GroupQueue(Generic[T, R]):
    """Queues items to be written together, each with a future for its result. An item is written at
    once if no write is running; items that arrive during a write form the next batch.

    `work` runs as a task while items wait. It takes one batch after the other with `take` until
    there is none, and ends each with `give` or `fail`.

    With `owner`, the owners of items take turns: one with thousands of items delays only itself. If
    items are written `in_order`, owners take turns only when results are delivered.

    Results are delivered to all callers at once, or by the `handout` if that is needed.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[None]],
        *,
        name: str,
        queued_max: int | None = QUEUED_MAX,
        owner: Callable[[T], Hashable] = _no_owner,
        in_order: bool = False,
        handout: Handout | None = None,
    ) -> None:
        self._work = work
        self._name = name
        self._owner = owner
        self._lane = _no_owner if in_order else owner
        self._handout = handout
        items_max = sys.maxsize if queued_max is None else queued_max
        # The items that were neither taken nor withdrawn.
        self._queued: dict[asyncio.Future[R], T] = {}
        lane_max = items_max if self._lane is _no_owner else QUEUED_OF_OWNER_MAX
        self._queue: FairQueue[asyncio.Future[R]] = FairQueue(
            items_max=items_max, lane_max=lane_max
        )
        # The current batch.
        self._batch: dict[asyncio.Future[R], T] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._queued)

    @property
    def busy(self) -> bool:
        """Tells whether anything is queued or being written."""
        return self._running is not None

    def submit(self, item: T, result: asyncio.Future[R] | None = None) -> asyncio.Future[R]:
        """Queues the item and returns the future of its result. Cancelling the future does not
        withdraw the item. An item from another queue brings the future that its caller waits
        for."""
        loop = asyncio.get_running_loop()
        if result is None:
            result = loop.create_future()
        try:
            self._queue.push(self._lane(item), result)
        except QueueFull:
            raise Unavailable("The ledger is overloaded; try again.", retry_after_s=2) from None
        self._queued[result] = item
        if self._running is None:
            self._running = loop.create_task(self._run(), name=self._name)
        return result

    def withdraw(self, result: asyncio.Future[R]) -> bool:
        """Withdraws the item. Returns False if it is being written or was written."""
        if result not in self._queued:
            return False
        del self._queued[result]
        result.cancel()
        return True

    def take(self) -> dict[asyncio.Future[R], T]:
        """Takes the next batch, in order; empty if nothing waits."""
        queued, self._batch = self._queued, {}
        while self._queue and not self._batch:
            found = self._queue.take(BATCH_MAX)
            self._batch = {one: queued.pop(one) for one in found if one in queued}
            observe_batch(self._name, len(self._batch))
        return self._batch

    def give(self, batch: Mapping[asyncio.Future[R], T], results: Sequence[R]) -> None:
        """Delivers each caller's result. Skips callers that no longer wait."""
        handout = self._handout
        if handout is None or not handout.is_needed:
            for waiting, result in zip(batch, results, strict=True):
                if not waiting.done():
                    waiting.set_result(result)
            return
        for (waiting, item), result in zip(batch.items(), results, strict=True):
            handout.add(self._owner(item), partial(_set_result, waiting, result))

    def fail(self, waiting: Iterable[asyncio.Future[R]], error: Exception) -> None:
        """Delivers a separate error to each caller."""
        for one in waiting:
            if not one.done():
                one.set_exception(own_error(error))
                # Marks the error as read, so that the loop does not report it if the caller no
                # longer waits.
                one.exception()

    async def drain(self) -> None:
        """Waits until all submitted items are written."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def stop(self) -> None:
        """Gives up all items that are not written yet."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            # Items that are submitted in the same event loop iteration join the first batch.
            await asyncio.sleep(0)
            await self._work()
        except BaseException:
            # The task was stopped or has a bug: every caller must be notified.
            waiting = [*self._batch, *self._queue]
            self._queue.clear()
            self._queued.clear()
            self.fail(waiting, Unavailable("The gateway is shutting down."))
            raise
        finally:
            self._running = None


class GroupWriter(GroupQueue[T, R]):
    """Writes items together. `write` gets a batch and returns one result for each item, in order.

    If the work cannot be done now (`write` raises a `TollkeeperError`), the whole batch fails. Any
    other error means that nothing was written and that one item is the cause: each item is then
    written separately, so that no item fails because of another one.
    """

    def __init__(
        self,
        write: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        name: str,
        queued_max: int | None = QUEUED_MAX,
        owner: Callable[[T], Hashable] = _no_owner,
        in_order: bool = False,
        handout: Handout | None = None,
    ) -> None:
        super().__init__(
            self._write_all,
            name=name,
            queued_max=queued_max,
            owner=owner,
            in_order=in_order,
            handout=handout,
        )
        self._write = write

    async def _write_all(self) -> None:
        while batch := self.take():
            await self._write_batch(batch)

    async def _write_batch(self, batch: Mapping[asyncio.Future[R], T]) -> None:
        items = [*batch.values()]
        try:
            results = await self._write(items)
        except TollkeeperError as exc:
            self.fail(batch, exc)
        except Exception as exc:  # noqa: BLE001 - handed on to the one who waits for it
            if len(items) == 1:
                self.fail(batch, exc)
                return
            for waiting, item in batch.items():
                await self._write_batch({waiting: item})
        else:
            self.give(batch, results)


def _set_result(waiting: asyncio.Future[R], result: R) -> None:
    if not waiting.done():
        waiting.set_result(result)
