"""Group commit: one transaction writes the items of many callers, and each gets its own result."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from tollkeeper.domain.errors import TollkeeperError, Unavailable
from tollkeeper.fair_queue import FairQueue, QueueFull
from tollkeeper.services.batches import observe_batch, own_error
from tollkeeper.services.ledger.handout import Handout

T = TypeVar("T")
R = TypeVar("R")

Result: TypeAlias = R | TollkeeperError | asyncio.Future[R]

BATCH_MAX = 256
QUEUED_MAX = 20_000
# The most items of one owner that may wait, where owners take turns.
QUEUED_OF_OWNER_MAX = 5_000


def _no_owner(_item: object) -> None:
    """All items belong together."""


class GroupWriter(Generic[T, R]):
    """Writes items together, each of which has a result. Nothing waits while nothing is being written;
    what arrives while a batch is written is the next batch.

    `write` takes a batch and returns one result for each item, in order. A result may be an error
    of this item, or a future where the result will be known later.

    Where the work cannot be done now (`write` raises a `TollkeeperError`), the whole batch fails.
    Any other error means that nothing was written and that one item is the cause: each item is then
    written alone, so that no item fails because of another one.

    With `owner`, the owners of items take turns: one with thousands of items waits behind itself.
    Where items are written `in_order`, owners take turns only when results are given.

    Results are given to all callers at once, or by the `handout`, where that is needed.
    """

    def __init__(
        self,
        write: Callable[[Sequence[T]], Awaitable[Sequence[Result[R]]]],
        *,
        name: str,
        queued_max: int | None = QUEUED_MAX,
        owner: Callable[[T], Hashable] = _no_owner,
        in_order: bool = False,
        handout: Handout | None = None,
    ) -> None:
        self._write = write
        self._name = name
        self._owner = owner
        self._lane = _no_owner if in_order else owner
        self._handout = handout
        items_max = sys.maxsize if queued_max is None else queued_max
        # The items that nobody has begun to write and nobody has withdrawn.
        self._queued: dict[asyncio.Future[R], T] = {}
        lane_max = items_max if self._lane is _no_owner else QUEUED_OF_OWNER_MAX
        self._queue: FairQueue[asyncio.Future[R]] = FairQueue(
            items_max=items_max, lane_max=lane_max
        )
        self._running: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._queued)

    @property
    def busy(self) -> bool:
        """Whether anything is queued or being written."""
        return self._running is not None

    def submit(self, item: T) -> asyncio.Future[R]:
        """Takes the item; the future is its result. Cancelling the future does not withdraw it."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        try:
            self._queue.push(self._lane(item), result)
        except QueueFull:
            raise Unavailable("The ledger is overloaded; try again.", retry_after_s=2) from None
        self._queued[result] = item
        if self._running is None:
            self._running = loop.create_task(self._run(), name=self._name)
        return result

    def withdraw(self, result: asyncio.Future[R]) -> bool:
        """Takes the item back. False where it is too late: it is being written, or was."""
        if result not in self._queued:
            return False
        del self._queued[result]
        result.cancel()
        return True

    async def drain(self) -> None:
        """Waits until everything that was submitted is written."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def stop(self) -> None:
        """Gives up what is not written yet."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        waiting: list[asyncio.Future[R]] = []
        try:
            # Items that are submitted in the same turn of the event loop join the first batch.
            await asyncio.sleep(0)
            while self._queue:
                waiting = [one for one in self._queue.take(BATCH_MAX) if one in self._queued]
                observe_batch(self._name, len(waiting))
                await self._write_batch(waiting, [self._queued.pop(one) for one in waiting])
        except BaseException:
            # Stopped, or a fault in this class: whoever waits must be told.
            self._give_up([*waiting, *self._queue])
            raise
        finally:
            self._running = None

    async def _write_batch(self, waiting: Sequence[asyncio.Future[R]], items: Sequence[T]) -> None:
        if not items:
            return  # all of them were withdrawn
        try:
            results = await self._write(items)
        except TollkeeperError as exc:
            _fail(waiting, exc)
        except Exception as exc:  # noqa: BLE001 - handed on to the one who waits for it
            if len(items) == 1:
                _fail(waiting, exc)
                return
            for waiter, item in zip(waiting, items, strict=True):
                await self._write_batch([waiter], [item])
        else:
            self._give(waiting, items, results)

    def _give(
        self,
        waiting: Sequence[asyncio.Future[R]],
        items: Sequence[T],
        results: Sequence[Result[R]],
    ) -> None:
        handout = self._handout
        if handout is None or not handout.is_needed:
            for waiter, result in zip(waiting, results, strict=True):
                _answer(waiter, result)
            return
        for waiter, item, result in zip(waiting, items, results, strict=True):
            handout.add(self._owner(item), partial(_answer, waiter, result))

    def _give_up(self, results: Sequence[asyncio.Future[R]]) -> None:
        self._queue.clear()
        self._queued.clear()
        _fail(results, Unavailable("The gateway is shutting down."))


def _answer(waiting: asyncio.Future[R], result: Result[R]) -> None:
    if isinstance(result, asyncio.Future):
        result.add_done_callback(lambda known: _pass_on(waiting, known))
    elif waiting.done():
        return
    elif isinstance(result, TollkeeperError):
        _set_error(waiting, result)
    else:
        waiting.set_result(result)


def _pass_on(waiting: asyncio.Future[R], known: asyncio.Future[R]) -> None:
    if waiting.done():
        return
    if known.cancelled():
        waiting.cancel()
        return
    error = known.exception()
    if error is None:
        waiting.set_result(known.result())
    else:
        waiting.set_exception(error)
        waiting.exception()  # see `_set_error`


def _fail(waiting: Sequence[asyncio.Future[R]], error: Exception) -> None:
    for one in waiting:
        if not one.done():
            _set_error(one, error)


def _set_error(waiting: asyncio.Future[R], error: Exception) -> None:
    waiting.set_exception(own_error(error))
    # Reads the error: the loop does not report it where the caller has left.
    waiting.exception()
