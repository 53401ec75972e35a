"""Group commit: batches the items of concurrent callers, and each gets its own item's result."""

import asyncio
import sys
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap
from types import coroutine
from typing import Generic, TypeVar

from tollkeeper.core.errors import TollkeeperError, Unavailable
from tollkeeper.core.runtime.batches import copy_of_error, observe_batch
from tollkeeper.core.runtime.fair_queue import FairQueue, FairTurns, QueueFull

T = TypeVar("T")
R = TypeVar("R")

BATCH_MAX = 256
QUEUED_MAX = 20_000
# Only if the owners take turns.
QUEUED_OF_OWNER_MAX = 5_000
# Event loop iterations before the first batch. Calls that run together reach the queue in
# successive iterations, and sharing a batch saves CPU. Idle, one takes microseconds.
_TURNS_BEFORE_FIRST_BATCH = 3
# Each call that gets its result then runs for some tenths of a millisecond.
_RESULTS_PER_TURN = 8


def _no_owner(_item: object) -> None:
    """Returns None for every item, so that all items share one lane of the queue."""


@coroutine
def _wait_for_turns(count: int) -> Generator[None, None, None]:
    for _ in range(count):
        yield


class Handout(FairTurns):
    """Gives waiting calls their results, a few in each iteration of the event loop, so that they
    don't block the others of a busy process."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """`is_busy`: whether calls must take turns."""
        super().__init__(_RESULTS_PER_TURN)
        self._is_busy = is_busy

    @property
    def is_needed(self) -> bool:
        """If not, results may all be delivered at once."""
        return len(self) > 0 or self._is_busy()


class GroupQueue(Generic[T, R]):
    """If no write is running, an item is written with those of the next event loop iterations; what
    arrives during a write forms the next batch. `work` runs as a task while items wait: it takes
    batches with `take` until the queue is empty, and ends each with `give` or `fail`. With `owner`,
    owners take turns, so one with thousands of items delays only its own. With `in_order`, items
    are written as they arrive, and only results are delivered in turns, while
    `handout.is_needed`."""

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
        # Neither taken nor withdrawn, in order of arrival.
        self._queued: dict[Future[R], T] = {}
        # Their futures by owner, once there's a whole batch. Some may be of withdrawn items.
        self._turns: FairQueue[Future[R]] | None = None
        self._batch: dict[Future[R], T] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._queued)

    @property
    def items(self) -> dict[Future[R], T]:
        """Queued or being written; some may already have results."""
        return self._batch | self._queued

    @property
    def busy(self) -> bool:
        return self._running is not None

    def submit(self, item: T, result: Future[R] | None = None) -> Future[R]:
        """Cancelling the future doesn't withdraw the item. `result` is the future of an item that
        moves here from another queue. Raises Unavailable if the queue is full."""
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
        """False if it's being written or was written."""
        if result not in self._queued:
            return False
        del self._queued[result]
        if len(self._queued) < BATCH_MAX:
            self._turns = None
        result.cancel()
        return True

    def take(self) -> dict[Future[R], T]:
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
        """In the batch's order. Skips callers that no longer wait."""
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
        """A copy for each."""
        for future in waiting:
            if not future.done():
                future.set_exception(copy_of_error(error))
                # So the event loop doesn't log it if no caller waits.
                future.exception()

    async def drain(self) -> None:
        while self._running is not None:
            await asyncio.wait([self._running])

    async def stop(self) -> None:
        """Callers whose items aren't written yet get an error."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            await _wait_for_turns(_TURNS_BEFORE_FIRST_BATCH)
            await self._work(self)
        except BaseException:
            # Stopped, or a bug. Without an error, the callers would wait forever.
            waiting = self.items
            self._queued, self._turns = {}, None
            self.fail(waiting, Unavailable("The gateway is shutting down."))
            raise
        finally:
            self._running = None


def writing(
    write: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
) -> Callable[[GroupQueue[T, R]], Awaitable[None]]:
    """The work of a queue: `write` returns one result per item, in order. A `TollkeeperError` from
    it fails the whole batch, because it can't be done now. After any other error nothing was
    written and one item is to blame, so each is written by itself, and only that one fails."""

    async def write_waiting(queue: GroupQueue[T, R]) -> None:
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
    """A queue per owner, so one whose items can't be written now doesn't delay others. Never full.
    `write` is as in `writing`."""

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
        # Those that aren't empty.
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
            # Loses no item: no `await` since the queue was found empty.
            del self._queues[owner]


def _set_result(waiting: Future[R], result: R) -> None:
    if not waiting.done():
        waiting.set_result(result)
