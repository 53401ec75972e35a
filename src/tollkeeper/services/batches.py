"""Batches: items are collected in a queue, and one task writes them together."""

import asyncio
import contextlib
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from tollkeeper.domain.errors import TollkeeperError

T = TypeVar("T")

_log = structlog.get_logger("tollkeeper.batches")


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a batch or a queue takes: a number of items, and the sum of their weights."""

    items: int = sys.maxsize
    weight: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: each is about twice as long as the one before, up to a maximum."""

    first_s: float
    max_s: float

    def pauses(self) -> Iterator[float]:
        pause_s = self.first_s
        while True:
            # With jitter, so that several processes do not try again at the same moment.
            yield pause_s * random.uniform(0.5, 1.5)  # noqa: S311 - nothing secret
            pause_s = min(pause_s * 2, self.max_s)


class Batches(Generic[T]):
    """A queue whose items are written in batches, the oldest first, one batch at a time.

    - `write` gets a batch of at least one item. Where it raises a `TollkeeperError`, the batch goes
      back to the front of the queue and is written again after a pause. After any other error the
      batch is given up, so that it does not keep later ones from being written.
    - `give_up` is told which items will never be written.
    - `collect_s` is how long the writer waits for more items before it takes a batch that is not
      full. At 0 it never waits, and what arrives while a batch is written is the next batch.
    - `weigh` says what an item counts for the weights of the limits. Where the queue is over its
      limit, the oldest items are given up.
    """

    def __init__(
        self,
        write: Callable[[list[T]], Awaitable[None]],
        *,
        name: str,
        batch: Limit,
        give_up: Callable[[Sequence[T]], None],
        queue: Limit | None = None,
        weigh: Callable[[T], int] | None = None,
        collect_s: float = 0.0,
        backoff: Backoff = Backoff(first_s=0.1, max_s=2.0),  # noqa: B008 - immutable
    ) -> None:
        self._write = write
        self._name = name
        self._batch = batch
        self._give_up = give_up
        self._limit = queue or Limit()
        self._weigh = weigh
        self._collect_s = collect_s
        self._backoff = backoff
        self._queue: deque[T] = deque()
        self._weight = 0
        self._running: asyncio.Task[None] | None = None
        # Set while somebody waits for the queue to be empty: nothing more is collected then.
        self._draining = asyncio.Event()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether anything is queued or being written."""
        return self._running is not None

    def add(self, item: T) -> None:
        """Takes the item and returns at once."""
        self._queue.append(item)
        if self._weigh is not None:
            self._weight += self._weigh(item)
        if len(self._queue) > self._limit.items or self._weight > self._limit.weight:
            self._keep_limit()
        if self._running is None:
            loop = asyncio.get_running_loop()
            self._running = loop.create_task(self._run(), name=self._name)

    async def drain(self, deadline_s: float | None = None) -> bool:
        """Waits until everything is written, without collecting any longer. What is not written by
        the deadline is given up, and the answer is False."""
        try:
            async with asyncio.timeout(deadline_s):
                while self._running is not None:
                    self._draining.set()
                    await asyncio.wait([self._running])
        except TimeoutError:
            await self.stop()
            return False
        return True

    async def stop(self) -> None:
        """Gives up everything that is not written yet."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        batch: list[T] = []
        pauses = self._backoff.pauses()
        try:
            # Items that are added in the same iteration of the event loop join the first batch.
            await asyncio.sleep(0)
            while self._queue:
                if self._collect_s > 0 and len(self._queue) < self._batch.items:
                    await self._collect()
                batch = self._take_batch()
                if await self._try(batch):
                    batch = []
                    pauses = self._backoff.pauses()
                else:
                    self._put_back(batch)
                    batch = []
                    await asyncio.sleep(next(pauses))
        except BaseException:
            # Stopped, or a fault in this class: nobody may go on waiting for these items.
            left = [*batch, *self._queue]
            self._queue.clear()
            self._weight = 0
            self._give_up(left)
            raise
        finally:
            self._running = None
            self._draining.clear()

    async def _try(self, batch: list[T]) -> bool:
        """False where the batch has to be written again."""
        try:
            await self._write(batch)
        except TollkeeperError as exc:
            _log.warning(
                "a batch is written again later",
                of=self._name,
                count=len(batch),
                reason=exc.message,
            )
            return False
        except Exception:  # noqa: BLE001 - the owner of its own task
            _log.exception("a batch is given up", of=self._name, count=len(batch))
            self._give_up(batch)
        return True

    async def _collect(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._collect_s):
                await self._draining.wait()

    def _take_batch(self) -> list[T]:
        """The oldest items: at least one, and no more than a batch takes."""
        batch: list[T] = []
        weight = 0
        while self._queue and len(batch) < self._batch.items and weight < self._batch.weight:
            batch.append(self._queue.popleft())
            if self._weigh is not None:
                weight += self._weigh(batch[-1])
        self._weight -= weight
        return batch

    def _put_back(self, batch: list[T]) -> None:
        self._queue.extendleft(reversed(batch))
        if self._weigh is not None:
            self._weight += sum(map(self._weigh, batch))
        self._keep_limit()

    def _keep_limit(self) -> None:
        """Gives up the oldest items: the newest ones are those that somebody will look for."""
        while len(self._queue) > self._limit.items or self._weight > self._limit.weight:
            oldest = self._queue.popleft()
            if self._weigh is not None:
                self._weight -= self._weigh(oldest)
            self._give_up([oldest])
