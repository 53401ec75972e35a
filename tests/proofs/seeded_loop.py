"""An event loop with simulated time that runs ready callbacks in an order that a seed determines.

The same seed gives the same history. If no callback is ready and no timer is set, the loop raises
`Deadlock`, so that the test fails instead of hanging.
"""

import asyncio
import contextvars
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """No callback is ready and no timer is set, so that nothing can happen any more."""


class SeededLoop(asyncio.AbstractEventLoop):
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._now = 0.0
        self._ready: list[tuple[asyncio.Handle, Callable[[], Any]]] = []
        self._timers: list[tuple[float, int, asyncio.Handle, Callable[[], Any]]] = []
        self._order = itertools.count()
        self.steps = 0
        # Errors that neither a task nor a caller has handled.
        self.faults: list[dict[str, Any]] = []

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._step()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        while not self._ready:
            if not self._timers:
                raise Deadlock
            when, _, handle, callback = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._now = max(self._now, when)
                self._ready.append((handle, callback))
        chosen = self._rng.randrange(len(self._ready))
        self._ready[chosen], self._ready[-1] = self._ready[-1], self._ready[chosen]
        handle, callback = self._ready.pop()
        if not handle.cancelled():
            self.steps += 1
            callback()

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((handle, _bound(callback, args, context)))
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(
            self._timers, (when, next(self._order), handle, _bound(callback, args, context))
        )
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Does nothing, because `_step` skips cancelled timers."""


def _bound(
    callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None
) -> Callable[[], Any]:
    within = contextvars.copy_context() if context is None else context
    return lambda: within.run(callback, *args)
