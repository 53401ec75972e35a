"""Handles SIGTERM and SIGINT before, during and after an event loop.

Python runs a signal handler between any two bytecodes of the main thread. If the handler raises, the
exception unwinds the stack, and the context managers on the stack stop everything that was started.
In two situations the handler must not raise: inside an event loop, which may swallow the exception, and
during a start or stop that must not be interrupted halfway. In both situations, signals are deferred.

Every command imports this module, so it imports only modules that load fast.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# The signals that arrived during the current deferral.
_deferred: list[int] = []
# Exceptions that signal handlers have raised already.
_raised: list[SystemExit] = []


def exit_on_sigterm() -> None:
    """Makes SIGTERM end a command with exit code 143. SIGINT needs no handler, because Python raises
    KeyboardInterrupt for it."""

    def leave(number: int, _frame: FrameType | None) -> None:
        _exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def exit_server_on_signals() -> None:
    """Makes the first SIGTERM or SIGINT end a serving command with exit code 0, because a server that
    stops on request has succeeded. Ignores further signals, so that they do not interrupt the stop. If
    SIGTERM has already arrived, ends the command immediately."""

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
    """Raises the exception of an earlier signal again, because Python may have discarded it: Python
    discards exceptions that a signal handler raises during a finalizer or a weak reference's callback,
    and both run during imports."""
    if _raised:
        raise _raised[-1]


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defers signals until the end of the `with` block, unless `take_signals` handles them before. At the end,
    sends the first deferred signal to this process again, and drops the others.

    Does nothing in another thread than the main one, because only the main thread handles signals."""
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
    """Makes the running event loop call `stop` for each signal. Calls `stop` immediately if a signal was
    deferred while the event loop started."""
    import asyncio  # noqa: PLC0415 - most commands that import this module need no event loop

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    if _deferred:
        _deferred.clear()
        stop()
