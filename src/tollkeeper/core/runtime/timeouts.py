"""Time limits for waiting: `with timeout(seconds):`, `with timeout_at(when):`, and `Alarm` for a task that
waits several times. Plain context managers with one timer: `asyncio.timeout` does it with two coroutines, in
twice the time."""

import asyncio
import math
from types import TracebackType
from typing import Self


class Alarm:
    """Limits a task's waits: `with alarm.until(when):` raises TimeoutError.

    They share a timer, because starting one takes longer than most waits. If it fires early, it's set again.
    Another task can take the alarm over (`serve`).
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Finding the running loop takes longer.
        self.now = self._loop.time
        self.serve()
        self._timer: asyncio.TimerHandle | None = None
        # Infinite: there's none.
        self._timer_at = math.inf
        self._expired = False
        # None: no wait.
        self.when: float | None = None

    def until(self, when: float) -> Self:
        """`when` is the event loop's time. The end of the `with` block ends the wait."""
        assert self.when is None, "an alarm limits one wait at a time"
        self.when = when
        if when < self._timer_at:
            self._set_timer(when)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.when = None
        if self._expired:
            self._expired = False
            if self._task.uncancel() <= self._cancelling and exc_type is asyncio.CancelledError:
                raise TimeoutError from exc

    def move(self, when: float) -> None:
        """Maybe into the past. Does nothing without a wait."""
        if self.when is not None and not self._expired:
            self.when = when
            if when < self._timer_at:
                self._set_timer(when)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = math.inf

    def serve(self) -> None:
        """From now on, for the running task."""
        task = asyncio.current_task(self._loop)
        assert task is not None, "only a task can be timed out"
        self._task: asyncio.Task[object] = task
        # That the task had before it got this alarm.
        self._cancelling = task.cancelling()

    def _set_timer(self, when: float) -> None:
        self.close()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        fired_at, self._timer, self._timer_at = self._timer_at, None, math.inf
        if self.when is not None and fired_at < self.when:
            self._set_timer(self.when)
        else:
            self.expire()

    def expire(self) -> None:
        """With TimeoutError. Does nothing without a wait."""
        if self.when is not None and not self._expired:
            self._expired = True
            self._task.cancel()


class Timeout(Alarm):
    """A single wait, whose end cancels the timer."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        super().__exit__(exc_type, exc, traceback)


def timeout_at(when: float) -> Timeout:
    """`when` is the event loop's time."""
    return Timeout().until(when)


def timeout(delay_s: float) -> Timeout:
    return timeout_at(asyncio.get_running_loop().time() + delay_s)
