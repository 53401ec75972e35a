"""SIGTERM and SIGINT before, during and after an event loop.

A handler runs between any two bytecodes of the main thread. If it raises, the stack unwinds and its context
managers stop everything. It mustn't in an event loop, which may swallow the exception, nor in a start or stop
that mustn't be cut in half: there, signals are deferred.

Every command imports this, so it imports only what loads fast.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_deferred: list[int] = []
# By handlers.
_raised: list[SystemExit] = []


def exit_on_sigterm() -> None:
    """With exit code 143. Python itself raises KeyboardInterrupt for SIGINT."""

    def leave(number: int, _frame: FrameType | None) -> None:
        _exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def exit_server_on_signals() -> None:
    """With exit code 0, because stopping on request is success. Later signals are ignored, so they don't cut
    the stop short. If SIGTERM has come already, ends at once."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        if not _raised:
            _exit(0)

    for number in _STOP_SIGNALS:
        signal.signal(number, leave)
    if _raised:
        _exit(0)


def _exit(code: int) -> NoReturn:
    _raised.append(SystemExit(code))
    raise _raised[-1]


def exit_if_signalled() -> None:
    """Python discards what a handler raises during a finalizer or a weak reference's callback, and both run
    during imports."""
    if _raised:
        raise _raised[-1]


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Until the end of the `with` block, unless `take_signals` takes them. Then the first is sent again, and
    the others are dropped. Does nothing outside the main thread, which alone handles signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _frame: FrameType | None) -> None:
        _deferred.append(number)

    handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    try:
        for number in _STOP_SIGNALS:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if _deferred:
        first = _deferred[0]
        _deferred.clear()
        signal.raise_signal(first)


def take_signals(stop: Callable[[], None]) -> None:
    """At once if one was deferred while the event loop started."""
    import asyncio  # noqa: PLC0415 - most commands that import this module need no event loop

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    if _deferred:
        _deferred.clear()
        stop()
