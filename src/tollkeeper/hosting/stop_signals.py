"""SIGTERM and SIGINT: what they do before, while and after an event loop runs.

Python runs the handler of a signal between any two steps of the main thread. A handler that raises
unwinds the stack there, which stops what was started. It must not raise in two places: inside an
event loop, which may swallow the exception, and while something is started or stopped that the
unwinding could not stop afterwards. There, signals are deferred.

This module imports nothing that takes long, because every command imports it.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# The signals that came during the present deferral.
_deferred: list[int] = []
# What a signal has raised already.
_raised: list[SystemExit] = []


def exit_on_sigterm() -> None:
    """For commands: SIGTERM ends them with 143. Python raises KeyboardInterrupt on SIGINT."""

    def leave(number: int, _frame: FrameType | None) -> None:
        _exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def exit_server_on_signals() -> None:
    """For commands that serve: the first SIGTERM or SIGINT ends them with 0, because a server that
    was told to stop and does has succeeded. Further signals do not interrupt the stop."""

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
    """Raises again what a signal has raised before this step. Python discards an exception in a
    finalizer or in the callback of a weak reference, and its imports use both."""
    if _raised:
        raise _raised[-1]


@contextmanager
def deferred_signals() -> Iterator[None]:
    """A signal that comes during the context is handled at its end, unless `take_signals` took it."""

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
    """From now on, the running event loop calls `stop` for each signal; also at once for one that was
    deferred while the loop started."""
    import asyncio  # noqa: PLC0415 - most commands that import this module need no event loop

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    if _deferred:
        _deferred.clear()
        stop()
