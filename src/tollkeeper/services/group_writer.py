"""Group commit: what arrives while a batch is being written goes out together in the next one.

Nothing waits when nothing is going on, and under load one transaction serves many callers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tollkeeper.domain.errors import Unavailable

T = TypeVar("T")
R = TypeVar("R")

BATCH_MAX = 256
_QUEUED_MAX = 20_000


class GroupWriter(Generic[T, R]):
    """`write` takes a batch and returns one result an item, in order; it is never run twice at once."""

    def __init__(
        self, write: Callable[[Sequence[T]], Awaitable[Sequence[R]]], *, name: str
    ) -> None:
        self._write = write
        self._name = name
        self._queued: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._running: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._queued)

    def submit(self, item: T) -> asyncio.Future[R]:
        """The result to come. Leaving the future alone does not take the item back."""
        if len(self._queued) >= _QUEUED_MAX:
            raise Unavailable("The ledger is overloaded; try again.", retry_after_s=2)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        self._queued.append((item, result))
        if self._running is None:
            self._running = loop.create_task(self._run(), name=self._name)
        return result

    async def drain(self) -> None:
        """Waits until everything that was submitted is written."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        # One turn of the loop: callers that are ready in this very moment join the first batch.
        await asyncio.sleep(0)
        while self._queued:
            batch = [self._queued.popleft() for _ in range(min(len(self._queued), BATCH_MAX))]
            await self._write_batch(batch)
        self._running = None

    async def _write_batch(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._write([item for item, _ in batch])
        except Exception as exc:  # noqa: BLE001 - handed on to everyone who waits for this batch
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(exc)
            return
        for (_, waiting), result in zip(batch, results, strict=True):
            if not waiting.done():
                waiting.set_result(result)
