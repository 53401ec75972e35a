"""The one way to bound a wait: `with timeout(seconds):` or `with timeout_at(when):`.

A plain context manager over one timer of the loop. `asyncio.timeout` does the same through two
coroutines and in twice the time.
"""

import asyncio
from types import TracebackType
from typing import Self


class Timeout:
    """Raises TimeoutError where the block still waits when the time is over."""

    __slots__ = ("_cancelling", "_expired", "_loop", "_task", "_timer", "when")

    def __init__(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        self._loop = loop
        self.when = when
        self._expired = False
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        task = self._task = asyncio.current_task(self._loop)
        assert task is not None, "only a task can be timed out"
        self._cancelling = task.cancelling()
        self._timer = self._loop.call_at(self.when, self.expire)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._expired:
            return
        assert task is not None
        if task.uncancel() <= self._cancelling and exc_type is asyncio.CancelledError:
            raise TimeoutError from exc

    def move(self, when: float) -> None:
        """Sets another time, which may be over already. Does nothing after the block's end."""
        if self._task is not None and not self._expired:
            if self._timer is not None:
                self._timer.cancel()
            self.when = when
            self._timer = self._loop.call_at(when, self.expire)

    def expire(self) -> None:
        if self._task is not None and not self._expired:
            self._expired = True
            self._task.cancel()


def timeout_at(when: float) -> Timeout:
    """`when` is a time of the running loop's clock."""
    return Timeout(asyncio.get_running_loop(), when)


def timeout(delay_s: float) -> Timeout:
    return timeout_at(asyncio.get_running_loop().time() + delay_s)
