"""Handles SIGTERM and SIGINT before, during and after an event loop.

Python runs the handler of a signal between any two steps of the main thread. A handler that raises
unwinds the stack there, which stops everything that was started. It must not raise in two places:
inside an event loop, which may swallow the exception, and during a start or stop that unwinding
could not undo. There, signals are deferred.

This module has only fast imports, because every command imports it.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# The signals that arrived during the current deferral.
_deferred: list[int] = []
# Exceptions that signals have raised already.
_raised: list[SystemExit] = []


def exit_on_sigterm() -> None:
    """Makes SIGTERM end a command with 143. Python raises KeyboardInterrupt on SIGINT."""

    def leave(number: int, _frame: FrameType | None) -> None:
        _exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def exit_server_on_signals() -> None:
    """Makes the first SIGTERM or SIGINT end a serving command with 0, because a server that stops
    on request has succeeded. Further signals do not interrupt the stop."""

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
    """Raises an earlier signal's exception again. Python discards an exception in a finalizer or in
    the callback of a weak reference, and its imports use both."""
    if _raised:
        raise _raised[-1]


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defers signals until the end of the context, unless `take_signals` handles them."""

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
    """Makes the running event loop call `stop` for each signal, and at once for one that was
    deferred while the loop started."""
    import asyncio  # noqa: PLC0415 - most commands that import this module need no event loop

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    if _deferred:
        _deferred.clear()
        stop()
