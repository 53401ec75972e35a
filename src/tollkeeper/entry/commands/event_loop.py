"""The event loop of `serve`, `demo` and `console`."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from tollkeeper.entry.stop_signals import deferred_signals, exit_if_signalled

T = TypeVar("T")


def run_in_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Defers signals until `main` calls `take_signals`, or ends."""
    with deferred_signals():
        exit_if_signalled()
        return uvloop.run(main())
