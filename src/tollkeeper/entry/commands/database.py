"""Opens the database for a command, and checks servers and schema."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tollkeeper.entry.stop_signals import deferred_signals, exit_if_signalled

if TYPE_CHECKING:
    from tollkeeper.database.compatibility import SchemaState
    from tollkeeper.setup.settings import Settings


@contextmanager
def command_database(settings: "Settings") -> Iterator[str]:
    """Starts the embedded server if needed. Defers signals at start and stop: an interruption would
    leave it running."""
    from tollkeeper.setup import located_database

    exit_if_signalled()
    with ExitStack() as stack:
        with deferred_signals():
            conninfo = stack.enter_context(located_database(settings))
        try:
            yield conninfo
        finally:
            with deferred_signals():
                stack.close()


def check_newest_server(
    settings: "Settings", conninfo: str, *, before_serving: bool = False
) -> "SchemaState":
    """Checks its configuration and schema. Raises TollkeeperError, also if only old servers accept
    writes, such as a primary that came back after a failover (`storage.fence`). `before_serving`
    adds checks (`check_database`)."""
    from tollkeeper.database.fence import find_newest_server
    from tollkeeper.database.schema import check_database

    address, _ = find_newest_server(conninfo, settings.database.seen_file)
    return check_database(address, before_serving=before_serving)
