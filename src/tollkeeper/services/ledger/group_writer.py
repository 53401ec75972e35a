"""Collects items from concurrent callers and writes them in batches (group commit). Each caller
gets the result of its own item."""

import asyncio
import sys
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap
from types import coroutine
from typing import Generic, TypeVar

from tollkeeper.domain.errors import TollkeeperError, Unavailable
from tollkeeper.runtime.fair_queue import FairQueue, FairTurns, QueueFull
from tollkeeper.services.batches import copy_of_error, observe_batch

T = TypeVar("T")
R = TypeVar("R")

BATCH_MAX = 256
QUEUED_MAX = 20_000
# The maximum number of queued items of one owner, in a queue whose owners take turns.
QUEUED_OF_OWNER_MAX = 5_000
# The number of event loop iterations that a queue waits before it writes the first batch. Calls that
# run at the same time reach the queue in successive iterations. If they share a batch, the gateway
# and the database need less CPU. An iteration of an idle process takes a few microseconds.
_TURNS_BEFORE_FIRST_BATCH = 3
# The number of calls that get a result in one iteration of the event loop. Each call then runs for
# some tenths of a millisecond.
_RESULTS_PER_TURN = 8


def _no_owner(_item: object) -> None:
    """Returns None for every item, so that all items share one lane of the queue."""


@coroutine
def _wait_for_turns(count: int) -> Generator[None, None, None]:
    for _ in range(count):
        yield


class Handout(FairTurns):
    """Delivers the results of a batch to the waiting calls, a few in each iteration of the event
    loop, so that these calls do not block the other calls of a busy process."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """`is_busy` tells whether the process has so much work that calls must take turns."""
        super().__init__(_RESULTS_PER_TURN)
        self._is_busy = is_busy

    @property
    def is_needed(self) -> bool:
        """Tells whether results must be delivered with `add`. If not, the caller may deliver all
        results at once."""
        return len(self) > 0 or self._is_busy()


class GroupQueue(Generic[T, R]):
    """Queues items that are written in batches, each with a future for its result. If no write is
    running, an item is written with the items of the next event loop iterations. Items that arrive
    during a write form the next batch.

    `work` gets the queue, and runs as a task while items wait. `work` takes one batch after the
    other with `take` until the queue is empty, and finishes each batch with `give` or `fail`.

    With `owner`, the owners of items take turns, so that an owner with thousands of items delays
    only its own items. With `in_order`, items are written in the order of their arrival, and owners
    take turns only when results are delivered.

    While `handout.is_needed`, the `handout` delivers the results, a few at a time. Otherwise all
    callers of a batch get their results at once.
    """

    def __init__(
        self,
        work: Callable[["GroupQueue[T, R]"], Awaitable[None]],
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
        self._queued_max = sys.maxsize if queued_max is None else queued_max
        assert self._queued_max >= BATCH_MAX
        # The items that were neither taken into a batch nor withdrawn, in order of arrival.
        self._queued: dict[Future[R], T] = {}
        # The futures of these items, by owner, if there are at least as many items as fit in a batch.
        # It may also contain futures whose items were withdrawn.
        self._turns: FairQueue[Future[R]] | None = None
        # The batch that is being written.
        self._batch: dict[Future[R], T] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._queued)

    @property
    def items(self) -> dict[Future[R], T]:
        """Returns the items that are queued or being written. Some may already have results."""
        return self._batch | self._queued

    @property
    def busy(self) -> bool:
        return self._running is not None

    def submit(self, item: T, result: Future[R] | None = None) -> Future[R]:
        """Queues the item and returns the future of its result. Cancelling the future does not
        withdraw the item. For an item that moves here from another queue, `result` is the future
        that its caller already waits for. Raises Unavailable if the queue is full."""
        if result is None:
            result = Future()
        if len(self._queued) >= BATCH_MAX:
            self._await_turn(item, result)
        self._queued[result] = item
        if self._running is None:
            loop = asyncio.get_running_loop()
            self._running = loop.create_task(self._run(), name=self._name)
        return result

    def _await_turn(self, item: T, result: Future[R]) -> None:
        """Queues an item that may not fit in the next batch in the lane of its owner."""
        if self._turns is None:
            lane_max = self._queued_max
            if self._lane is not _no_owner:
                lane_max = min(lane_max, QUEUED_OF_OWNER_MAX)
            self._turns = FairQueue(items_max=self._queued_max, lane_max=lane_max)
            for earlier, earlier_item in self._queued.items():
                self._turns.push(self._lane(earlier_item), earlier)
        try:
            self._turns.push(self._lane(item), result)
        except QueueFull:
            raise Unavailable("The ledger is overloaded; try again.", retry_after_s=2) from None

    def withdraw(self, result: Future[R]) -> bool:
        """Withdraws the item of this future. Returns False if the item is being written or was
        written."""
        if result not in self._queued:
            return False
        del self._queued[result]
        if len(self._queued) < BATCH_MAX:
            self._turns = None
        result.cancel()
        return True

    def take(self) -> dict[Future[R], T]:
        """Takes the next batch from the queue. The batch is empty if no item waits."""
        if self._turns is None or len(self._queued) <= BATCH_MAX:
            self._batch, self._queued, self._turns = self._queued, {}, None
        else:
            self._batch = {}
            while len(self._batch) < BATCH_MAX:
                result = self._turns.pop()
                if result in self._queued:  # otherwise the item was withdrawn
                    self._batch[result] = self._queued.pop(result)
            if len(self._queued) < BATCH_MAX:
                self._turns = None
        if self._batch:
            observe_batch(self._name, len(self._batch))
        return self._batch

    def give(self, batch: Mapping[Future[R], T], results: Sequence[R]) -> None:
        """Delivers one result to each caller, in the order of the batch. Skips callers that no
        longer wait."""
        handout = self._handout
        if handout is not None and handout.is_needed:
            for (waiting, item), result in zip(batch.items(), results, strict=True):
                handout.add(self._owner(item), partial(_set_result, waiting, result))
            return
        deliveries = starmap(Future.set_result, zip(batch, results, strict=True))
        while True:
            try:
                deque(deliveries, maxlen=0)  # runs the iterator in C
            except asyncio.InvalidStateError:
                continue  # The caller of this result no longer waits. The next ones may wait.
            return

    def fail(self, waiting: Iterable[Future[R]], error: Exception) -> None:
        """Delivers a separate copy of the error to each caller."""
        for future in waiting:
            if not future.done():
                future.set_exception(copy_of_error(error))
                # Mark the error as retrieved, so that the event loop does not log it if no caller
                # waits.
                future.exception()

    async def drain(self) -> None:
        while self._running is not None:
            await asyncio.wait([self._running])

    async def stop(self) -> None:
        """Stops writing. Callers whose items are not written yet get an error."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            await _wait_for_turns(_TURNS_BEFORE_FIRST_BATCH)
            await self._work(self)
        except BaseException:
            # The task was stopped or has a bug. Without an error, the callers would wait forever.
            waiting = self.items
            self._queued, self._turns = {}, None
            self.fail(waiting, Unavailable("The gateway is shutting down."))
            raise
        finally:
            self._running = None


def writing(
    write: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
) -> Callable[[GroupQueue[T, R]], Awaitable[None]]:
    """Returns the work of a queue whose batches are written by `write`, which gets a batch and
    returns one result for each item, in order.

    If `write` raises a `TollkeeperError`, the work cannot be done now and the whole batch fails.
    Any other error means that nothing was written and that one of the items is the cause. Then each
    item is written separately, so that only the item that is the cause fails.
    """

    async def write_waiting(queue: GroupQueue[T, R]) -> None:
        # Items of a batch that are still to be written, each separately.
        parts: list[dict[Future[R], T]] = []
        while batch := parts.pop() if parts else queue.take():
            try:
                results = await write([*batch.values()])
            except TollkeeperError as exc:
                queue.fail(batch, exc)
            except Exception as exc:  # noqa: BLE001 - delivered to the waiting caller
                if len(batch) == 1:
                    queue.fail(batch, exc)
                else:
                    parts = [{waiting: item} for waiting, item in reversed(batch.items())]
            else:
                queue.give(batch, results)

    return write_waiting


class QueuesByOwner(Generic[T, R]):
    """Queues items in a separate queue for each owner, so that an owner whose items cannot be
    written now does not delay the items of others. `write` is the same as in `writing`. No item is
    rejected."""

    def __init__(
        self,
        write: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        name: str,
        owner: Callable[[T], Hashable],
    ) -> None:
        self._work = writing(write)
        self._name = name
        self._owner = owner
        # The queues that are not empty.
        self._queues: dict[Hashable, GroupQueue[T, R]] = {}

    @property
    def all(self) -> list[GroupQueue[T, R]]:
        return list(self._queues.values())

    @property
    def queued(self) -> int:
        return sum(queue.queued for queue in self.all)

    def submit(self, item: T) -> Future[R]:
        owner = self._owner(item)
        queue = self._queues.get(owner)
        if queue is None:
            work = partial(self._work_for, owner)
            queue = self._queues[owner] = GroupQueue(work, name=self._name, queued_max=None)
        return queue.submit(item)

    async def _work_for(self, owner: Hashable, queue: GroupQueue[T, R]) -> None:
        try:
            await self._work(queue)
        finally:
            # No item can be lost here: there is no `await` since the queue was found empty.
            del self._queues[owner]


def _set_result(waiting: Future[R], result: R) -> None:
    if not waiting.done():
        waiting.set_result(result)
