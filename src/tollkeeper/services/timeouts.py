"""Timeouts that cost next to nothing while nothing is late: one timer ticks for all of a loop.

`asyncio.timeout` sets and cancels a timer of its own each time, and a call has several of them. A
timeout here may end up to a tick too late, which is nothing against the seconds that it guards.
"""

import asyncio
from collections import defaultdict
from types import TracebackType
from typing import Self

TICK_S = 0.05
_TICKS_PER_S = 1 / TICK_S


class _Wheel:
    """The timeouts of one event loop, by the tick in which they are due."""

    __slots__ = ("_ticked", "_timer", "due", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.due: defaultdict[int, set[Timeout]] = defaultdict(set)
        self._timer: asyncio.TimerHandle | None = None
        # The last tick that is over.
        self._ticked = 0

    def add(self, timeout: "Timeout", when: float) -> int:
        # A tick holds what is due in it, and is over when its end has passed.
        tick = int(when * _TICKS_PER_S) + 1
        self.due[tick].add(timeout)
        if self._timer is None:
            self._ticked = int(self.loop.time() * _TICKS_PER_S)
            self._wait()
        if tick <= self._ticked:
            self.loop.call_soon(self._expire, tick)
        return tick

    def _wait(self) -> None:
        self._timer = self.loop.call_at((self._ticked + 1) * TICK_S, self._tick)

    def _tick(self) -> None:
        now = int(self.loop.time() * _TICKS_PER_S)
        for tick in range(self._ticked + 1, now + 1):
            self._expire(tick)
        self._ticked = max(self._ticked, now)
        if self.due:
            self._wait()
        else:
            self._timer = None

    def _expire(self, tick: int) -> None:
        for timeout in self.due.pop(tick, ()):
            timeout.expire()


class Timeout:
    """`with timeout_at(when):` raises TimeoutError where the block still waits by then."""

    __slots__ = ("_cancelling", "_expired", "_task", "_tick", "_wheel", "when")

    def __init__(self, wheel: _Wheel, when: float) -> None:
        self._wheel = wheel
        self.when = when
        self._expired = False
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        task = self._task = asyncio.current_task(self._wheel.loop)
        assert task is not None, "only a task can be timed out"
        self._cancelling = task.cancelling()
        self._tick = self._wheel.add(self, self.when)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if not self._expired:
            self._leave_tick()
            return
        assert task is not None
        if task.uncancel() <= self._cancelling and exc_type is asyncio.CancelledError:
            raise TimeoutError from exc

    def move(self, when: float) -> None:
        """Another time, which may be over already. Without effect after the end."""
        if self._task is not None and not self._expired:
            self._leave_tick()
            self.when = when
            self._tick = self._wheel.add(self, when)

    def expire(self) -> None:
        assert self._task is not None
        self._expired = True
        self._task.cancel()

    def _leave_tick(self) -> None:
        tick = self._wheel.due[self._tick]
        tick.discard(self)
        if not tick:
            del self._wheel.due[self._tick]


# A process has one loop; where there is another (a test's), the first keeps its own wheel turning.
_wheel: _Wheel | None = None


def timeout_at(when: float) -> Timeout:
    """`when` is a time of the running loop's clock."""
    global _wheel  # noqa: PLW0603 - as the running loop is
    loop = asyncio.get_running_loop()
    wheel = _wheel
    if wheel is None or wheel.loop is not loop:
        wheel = _wheel = _Wheel(loop)
    return Timeout(wheel, when)


def timeout(delay_s: float) -> Timeout:
    return timeout_at(asyncio.get_running_loop().time() + delay_s)
