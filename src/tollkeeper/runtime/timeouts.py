"""Provides time limits for waiting: `with timeout(seconds):`, `with timeout_at(when):`, and `Alarm` for a
task that waits several times.

These are plain context managers that use one timer of the event loop. `asyncio.timeout` does the same with
two coroutines, and takes twice as long.
"""

import asyncio
import math
from types import TracebackType
from typing import Self


class Alarm:
    """Limits the successive waits of one task: `with alarm.until(when):`. Raises TimeoutError if the `with`
    block has not ended at that time.

    All waits of the task share one timer, because starting a timer takes more time than most waits. If the
    timer fires before the time limit of the current wait, the timer is set again. Another task can use
    the alarm, and its timer, when the task needs it no longer: see `serve`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Returns the time of the event loop's clock. Finding the running loop takes longer.
        self.now = self._loop.time
        self.serve()
        self._timer: asyncio.TimerHandle | None = None
        # The time at which the timer fires; infinite if there is no timer.
        self._timer_at = math.inf
        self._expired = False
        # The time limit of the current wait; None if the task does not wait.
        self.when: float | None = None

    def until(self, when: float) -> Self:
        """Begins a wait with this time limit, a time of the event loop's clock. The caller is a `with`
        statement, whose end is the end of the wait."""
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
        """Changes the time limit of the current wait. The new limit may be in the past. Does nothing if the
        task does not wait."""
        if self.when is not None and not self._expired:
            self.when = when
            if when < self._timer_at:
                self._set_timer(when)

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = math.inf

    def serve(self) -> None:
        """Limits the waits of the running task from now on."""
        task = asyncio.current_task(self._loop)
        assert task is not None, "only a task can be timed out"
        self._task: asyncio.Task[object] = task
        # The number of cancellation requests that the task had received before it got this alarm.
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
        """Ends the current wait immediately, with TimeoutError. Does nothing if the task does not wait."""
        if self.when is not None and not self._expired:
            self._expired = True
            self._task.cancel()


class Timeout(Alarm):
    """Limits a single wait. Cancels its timer at the end of the wait."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        super().__exit__(exc_type, exc, traceback)


def timeout_at(when: float) -> Timeout:
    """Limits a wait. `when` is a time of the running event loop's clock."""
    return Timeout().until(when)


def timeout(delay_s: float) -> Timeout:
    return timeout_at(asyncio.get_running_loop().time() + delay_s)
