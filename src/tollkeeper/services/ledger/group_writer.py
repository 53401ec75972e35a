"""Group commit: what arrives while a batch is being written goes out together in the next one.

Nothing waits when nothing is going on, and under load one transaction serves many callers.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from tollkeeper.domain.errors import TollkeeperError, Unavailable

T = TypeVar("T")
R = TypeVar("R")

Result: TypeAlias = R | TollkeeperError | asyncio.Future[R]
_Item: TypeAlias = tuple[asyncio.Future[R], T]

BATCH_MAX = 256
QUEUED_MAX = 20_000


class GroupWriter(Generic[T, R]):
    """`write` takes a batch and returns one result an item, in order; it is never run twice at
    once. A result may be an error of this item, or a future where somebody else knows it later.

    Where the work is not to be had now (any `TollkeeperError`), the whole batch fails. Any other
    error means that nothing was written and that one item is to blame: each is then written alone,
    so that nobody fails because of a stranger.
    """

    def __init__(
        self,
        write: Callable[[Sequence[T]], Awaitable[Sequence[Result[R]]]],
        *,
        name: str,
        queued_max: int | None = QUEUED_MAX,
    ) -> None:
        self._write = write
        self._name = name
        self._queued_max = queued_max
        # In the order of arrival.
        self._queued: dict[asyncio.Future[R], T] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._queued)

    @property
    def busy(self) -> bool:
        return self._running is not None

    def submit(self, item: T) -> asyncio.Future[R]:
        """The result to come. Leaving the future alone does not take the item back."""
        if self._queued_max is not None and len(self._queued) >= self._queued_max:
            raise Unavailable("The ledger is overloaded; try again.", retry_after_s=2)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        # Whoever has left does not look: an error that nobody waits for is not a fault of the loop.
        result.add_done_callback(_look_at)
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
        batch: list[_Item[R, T]] = []
        try:
            # One turn of the loop: callers that are ready in this very moment join the first batch.
            await asyncio.sleep(0)
            while self._queued:
                batch = list(itertools.islice(self._queued.items(), BATCH_MAX))
                for waiting, _ in batch:
                    del self._queued[waiting]
                await self._write_batch(batch)
        except BaseException:
            # Cancelled, or a fault in here: nobody may be left waiting for ever.
            left = [*batch, *self._queued.items()]
            self._queued.clear()
            _fail(left, Unavailable("The gateway is shutting down."))
            raise
        finally:
            self._running = None

    async def _write_batch(self, batch: list[_Item[R, T]]) -> None:
        try:
            results = await self._write([item for _, item in batch])
        except TollkeeperError as exc:
            _fail(batch, exc)
        except Exception as exc:  # noqa: BLE001 - handed on to the one who waits for it
            if len(batch) == 1:
                _fail(batch, exc)
                return
            for single in batch:
                await self._write_batch([single])
        else:
            for (waiting, _), result in zip(batch, results, strict=True):
                _answer(waiting, result)


def _answer(waiting: asyncio.Future[R], result: Result[R]) -> None:
    if isinstance(result, asyncio.Future):
        result.add_done_callback(lambda known: _pass_on(waiting, known))
    elif waiting.done():
        return
    elif isinstance(result, TollkeeperError):
        waiting.set_exception(_own(result))
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


def _fail(batch: Sequence[_Item[R, T]], error: Exception) -> None:
    for waiting, _ in batch:
        if not waiting.done():
            waiting.set_exception(_own(error))


def _own(error: Exception) -> Exception:
    """Each gets an error of its own: whoever catches it may change it, and adds to its traceback."""
    mine = type(error).__new__(type(error), *error.args)
    mine.__dict__.update(error.__dict__)
    mine.__cause__ = error
    return mine


def _look_at(done: asyncio.Future[R]) -> None:
    if not done.cancelled():
        done.exception()
