"""Collects items in a queue. One task writes the items in batches."""

import asyncio
import contextlib
import random
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.services.tallies import HistogramTally

T = TypeVar("T")

# Limits the exponent of the pause between retries, so that the result stays within the range of a
# float. The pause reaches its maximum long before this limit.
_DOUBLINGS_MAX = 60

_BATCH_SIZE = HistogramTally(
    "tollkeeper_batch_size",
    "Items that were written together, by queue.",
    ["queue"],
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)
_log = structlog.get_logger("tollkeeper.batches")


@dataclass(frozen=True, slots=True)
class Limit:
    """Contains the limits of a batch or a queue: the number of items, and the sum of their
    weights."""

    items: int = sys.maxsize
    weight: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class Backoff:
    """Computes the pauses between attempts. Each pause is about twice as long as the previous
    pause, up to about `max_s`. Pauses vary randomly by up to 50 %."""

    first_s: float
    max_s: float

    def pause_s(self, failures: int) -> float:
        """Returns the pause after this many successive failures."""
        doubled = self.first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX)
        # Jitter prevents several processes from retrying at the same time.
        return min(doubled, self.max_s) * random.uniform(0.5, 1.5)  # noqa: S311 - nothing secret


_UNLIMITED = Limit()
_BACKOFF = Backoff(first_s=0.1, max_s=2.0)


def observe_batch(queue: str, size: int) -> None:
    _BATCH_SIZE.observe((queue,), size)


def copy_of_error(error: Exception) -> Exception:
    """Copies an error that several waiting tasks get. Each task needs its own copy, because a task
    may change the error, and raising the error extends its traceback."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


class Batches(Generic[T]):
    """Queues items and writes them in batches, oldest first, one batch at a time.

    - `write` writes a batch of at least one item. If it raises a `TollkeeperError`, the batch
      returns to the front of the queue and is written again after a pause. Any other error means
      that nothing was written and that one of the items is invalid. Then smaller parts of the batch
      are written, until the invalid item is isolated. Only the invalid item is given up.
    - `give_up` is called with the items that are given up: they will never be written.
    - `collect_s` is the time in seconds that the writing task waits for more items if a batch is
      not full. If `collect_s` is 0, the task does not wait, and items that arrive while a batch is
      written form the next batch.
    - `weigh` returns the weight of an item, for the weight limits.
    - `batch` and `queue` are limits. If the queue exceeds its limit, the oldest items of the owners
      with the most items (or weight) are given up. `owner` returns the owner of an item.
    """

    def __init__(
        self,
        write: Callable[[list[T]], Awaitable[None]],
        *,
        name: str,
        batch: Limit,
        give_up: Callable[[Sequence[T]], None],
        queue: Limit = _UNLIMITED,
        weigh: Callable[[T], int] | None = None,
        owner: Callable[[T], Hashable] = lambda _item: None,
        collect_s: float = 0.0,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._write = write
        self._name = name
        self._batch = batch
        self._give_up = give_up
        self._items_max, self._weight_max = queue.items, queue.weight
        self._weigh = weigh
        self._owner = owner
        self._collect_s = collect_s
        self._backoff = backoff
        self._queue: deque[T] = deque()
        self._weight = 0
        self._writer_task: asyncio.Task[None] | None = None
        # Set while `drain` waits for an empty queue. The writing task then does not wait for more
        # items.
        self._draining = asyncio.Event()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Tells whether items are queued or being written."""
        return self._writer_task is not None

    def add(self, *items: T) -> None:
        """Queues the items and returns at once."""
        self._queue += items
        if self._weigh is not None:
            self._weight += sum(map(self._weigh, items))
        if len(self._queue) > self._items_max or self._weight > self._weight_max:
            self._drop_oldest()
        if self._writer_task is None and self._queue:
            loop = asyncio.get_running_loop()
            self._writer_task = loop.create_task(self._run(), name=self._name)

    async def drain(self, deadline_s: float | None = None) -> bool:
        """Writes all queued items without waiting for more items, and returns True. If this takes
        longer than `deadline_s`, gives up the items that are not written, and returns False."""
        try:
            async with asyncio.timeout(deadline_s):
                while self._writer_task is not None:
                    self._draining.set()
                    await asyncio.wait([self._writer_task])
        except TimeoutError:
            await self.stop()
            return False
        return True

    async def stop(self) -> None:
        """Stops the writing task and gives up all items that are not written yet."""
        if self._writer_task is not None:
            self._writer_task.cancel()
            await asyncio.wait([self._writer_task])

    async def _run(self) -> None:
        batch: list[T] = []
        failures = 0
        try:
            # This `sleep(0)` lets items that are added in the same event loop iteration join the
            # first batch.
            await asyncio.sleep(0)
            while self._queue:
                if self._collect_s > 0 and len(self._queue) < self._batch.items:
                    await self._collect()
                batch = self._take_batch()
                observe_batch(self._name, len(batch))
                try:
                    await self._write_parts(batch)
                    failures = 0
                except TollkeeperError as exc:
                    self._put_back(batch)
                    batch = []
                    failures += 1
                    _log.warning(
                        "writing a batch failed and will be retried",
                        of=self._name,
                        reason=exc.message,
                    )
                    await asyncio.sleep(self._backoff.pause_s(failures))
        except BaseException:
            # The task was stopped or has a bug. The remaining items will never be written, and
            # `give_up` notifies the tasks that wait for them.
            unwritten = [*batch, *self._queue]
            self._queue.clear()
            self._weight = 0
            self._give_up(unwritten)
            raise
        finally:
            self._writer_task = None
            self._draining.clear()

    async def _write_parts(self, batch: list[T]) -> None:
        """Writes the batch in parts, and removes items from `batch` that are written or given up.
        The parts get smaller after a failure and larger after a success, so that one invalid item
        among n items costs about 4 log n attempts."""
        size = len(batch)
        while batch:
            part = batch[:size]
            try:
                await self._write(part)
                size *= 2
            except TollkeeperError:
                raise
            except Exception:  # noqa: BLE001 - the task must survive any error
                if len(part) > 1:
                    size = len(part) // 2
                    continue
                _log.exception("an item is given up", of=self._name)
                self._give_up(part)
            del batch[: len(part)]

    async def _collect(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._collect_s):
                await self._draining.wait()

    def _take_batch(self) -> list[T]:
        """Takes the oldest items from the queue, at least one, until the batch limit is reached.
        The last item may make the batch heavier than the weight limit."""
        queue, limit = self._queue, self._batch
        batch: list[T] = []
        if len(queue) <= limit.items and self._weight <= limit.weight:
            batch.extend(queue)
            queue.clear()
            self._weight = 0
            return batch
        weight = 0
        while queue and len(batch) < limit.items and weight < limit.weight:
            batch.append(queue.popleft())
            if self._weigh is not None:
                weight += self._weigh(batch[-1])
        self._weight -= weight
        return batch

    def _put_back(self, batch: list[T]) -> None:
        self._queue.extendleft(reversed(batch))
        if self._weigh is not None:
            self._weight += sum(map(self._weigh, batch))
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Gives up items until the queue is within its limit. The newest items are kept, because
        readers look for recent items more often."""
        if len(self._queue) > self._items_max:
            self._drop(self._items_max, lambda _item: 1)
        if self._weigh is not None and self._weight > self._weight_max:
            self._drop(self._weight_max, self._weigh)

    def _drop(self, limit: int, size: Callable[[T], int]) -> None:
        """Gives up items until the sum of the sizes is within the limit. Every owner keeps the same
        share of the limit or has less, so no owner displaces the items of others."""
        surplus: Counter[Hashable] = Counter()
        for item in self._queue:
            surplus[self._owner(item)] += size(item)
        share = equal_share(surplus.values(), limit)
        surplus.subtract(dict.fromkeys(surplus, share))
        kept: deque[T] = deque()
        dropped: list[T] = []
        for item in self._queue:
            owner = self._owner(item)
            if surplus[owner] > 0:
                surplus[owner] -= size(item)
                dropped.append(item)
            else:
                kept.append(item)
        self._queue = kept
        if self._weigh is not None:
            self._weight -= sum(map(self._weigh, dropped))
        self._give_up(dropped)


def equal_share(sizes: Iterable[int], limit: int) -> int:
    """Returns the highest share such that the sum of all sizes is within the limit, if no size is
    greater than the share. The sum of the given sizes must exceed the limit."""
    ascending = sorted(sizes)
    for owners, size in zip(range(len(ascending), 0, -1), ascending, strict=True):
        if size * owners > limit:
            return limit // owners
        limit -= size
    raise AssertionError("the sizes are within the limit")
