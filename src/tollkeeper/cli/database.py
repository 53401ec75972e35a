"""The database of a command, whose start and stop no signal interrupts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tollkeeper.hosting.stop_signals import deferred_signals, exit_if_signalled

if TYPE_CHECKING:
    from tollkeeper.settings import Settings


@contextmanager
def command_database(settings: "Settings") -> Iterator[str]:
    """The connection string. A start or a stop that a signal interrupts would leave the embedded
    server running."""
    from tollkeeper.bootstrap import located_database

    exit_if_signalled()
    with ExitStack() as stack:
        with deferred_signals():
            conninfo = stack.enter_context(located_database(settings))
        try:
            yield conninfo
        finally:
            with deferred_signals():
                stack.close()
