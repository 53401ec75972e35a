"""Queues items, and one task writes them in batches."""

import asyncio
import contextlib
import random
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.runtime.tallies import HistogramTally

T = TypeVar("T")

# Keeps the result within a float; the pause reaches its maximum long before.
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
    """Of a batch or a queue: the number of items, and the sum of their weights."""

    items: int = sys.maxsize
    weight: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class Backoff:
    """About twice as long each time, up to about `max_s`, and random by up to 50 %."""

    first_s: float
    max_s: float

    def pause_s(self, failures: int) -> float:
        """After this many successive failures."""
        doubled = self.first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX)
        # So that processes don't retry at the same time.
        return min(doubled, self.max_s) * random.uniform(0.5, 1.5)  # noqa: S311 - nothing secret


_UNLIMITED = Limit()
_BACKOFF = Backoff(first_s=0.1, max_s=2.0)


def observe_batch(queue: str, size: int) -> None:
    _BATCH_SIZE.observe((queue,), size)


def copy_of_error(error: Exception) -> Exception:
    """Each waiting task needs its own: one may change it, and raising it extends its traceback."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


class Batches(Generic[T]):
    """Queues items and writes them in batches, oldest first, one batch at a time.

    - `write` gets at least one item. After a `TollkeeperError`, the batch returns to the front and
      is written again after a pause. Any other error means that nothing was written and one of the
      items is invalid: smaller and smaller parts are written until it's isolated, and only that one
      is given up.
    - `give_up` gets the items that will never be written.
    - `collect_s` is how long to wait for a batch to fill. With 0, items that arrive during a write
      form the next batch.
    - `weigh` returns an item's weight, for the weight limits.
    - Beyond the limit of `queue`, the oldest items of the owners with the most are given up.
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
        # Set by `drain`. The writing task then doesn't wait for more items.
        self._draining = asyncio.Event()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Items are queued or being written."""
        return self._writer_task is not None

    def add(self, *items: T) -> None:
        """Returns at once."""
        self._queue += items
        if self._weigh is not None:
            self._weight += sum(map(self._weigh, items))
        if len(self._queue) > self._items_max or self._weight > self._weight_max:
            self._drop_oldest()
        if self._writer_task is None and self._queue:
            loop = asyncio.get_running_loop()
            self._writer_task = loop.create_task(self._run(), name=self._name)

    async def drain(self, deadline_s: float | None = None) -> bool:
        """Doesn't wait for more items. False if `deadline_s` passed and the rest was given up."""
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
        """Gives up all items that aren't written."""
        if self._writer_task is not None:
            self._writer_task.cancel()
            await asyncio.wait([self._writer_task])

    async def _run(self) -> None:
        batch: list[T] = []
        failures = 0
        try:
            # Items added in the same iteration of the event loop join the first batch.
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
            # Stopped, or a bug. What's left will never be written, and others may wait for it.
            unwritten = [*batch, *self._queue]
            self._queue.clear()
            self._weight = 0
            self._give_up(unwritten)
            raise
        finally:
            self._writer_task = None
            self._draining.clear()

    async def _write_parts(self, batch: list[T]) -> None:
        """Removes what's written or given up from `batch`. Parts get smaller after a failure and
        larger after a success, so one invalid item among n costs about 4 log n attempts."""
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
        """At least one item. The last one may make the batch heavier than its limit."""
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
        """Keeps the newest, because readers look for those more often."""
        if len(self._queue) > self._items_max:
            self._drop(self._items_max, lambda _item: 1)
        if self._weigh is not None and self._weight > self._weight_max:
            self._drop(self._weight_max, self._weigh)

    def _drop(self, limit: int, size: Callable[[T], int]) -> None:
        """Every owner keeps an equal share or has less, so none displaces others' items."""
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
    """The highest cap on each size that keeps their sum within the limit, which it now exceeds."""
    ascending = sorted(sizes)
    for owners, size in zip(range(len(ascending), 0, -1), ascending, strict=True):
        if size * owners > limit:
            return limit // owners
        limit -= size
    raise AssertionError("the sizes are within the limit")
