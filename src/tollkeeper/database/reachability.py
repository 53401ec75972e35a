"""Makes requests fail quickly while the database can't be reached."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from tollkeeper.core.errors import Unavailable
from tollkeeper.database.sessions import shown_hosts

# For clients.
RETRY_AFTER_S = 2
# After a failed attempt to connect. Enough for a connection that's idle or being opened.
_WAIT_AFTER_FAILURE_S = 0.1

# Each host's reason comes after this.
_FAILED = "connection failed: "


class DatabaseUnreachable(Unavailable):
    """Raised if no host of the database accepts a connection. `detail` names the hosts, for
    operators."""

    def __init__(self, detail: str) -> None:
        super().__init__("The database cannot be reached; try again.", retry_after_s=RETRY_AFTER_S)
        self.detail = detail


class Reachability:
    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._failure: psycopg.Error | None = None
        self._answered_at = -math.inf
        self._waits: set[asyncio.Timeout] = set()

    def answered(self) -> None:
        """A connection was opened, or a transaction succeeded."""
        self._answered_at = asyncio.get_running_loop().time()
        self._failure = None

    def failed(self, began_at: float, error: psycopg.Error) -> None:
        """Unless the server has answered elsewhere since the attempt began. Shortens waits that
        have no limit yet."""
        if self._answered_at > began_at:
            return
        self._failure = error
        until = asyncio.get_running_loop().time() + _WAIT_AFTER_FAILURE_S
        for wait in self._waits:
            if wait.when() is None:
                wait.reschedule(until)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """For a connection. After a failed attempt it's short, then DatabaseUnreachable."""
        try:
            async with asyncio.timeout(_WAIT_AFTER_FAILURE_S if self._failure else None) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError as exc:
            if self._failure is None:  # the server has answered in the meantime
                raise Unavailable(
                    "The database is busy; try again.", retry_after_s=RETRY_AFTER_S
                ) from exc
            raise DatabaseUnreachable(
                unreachable_detail(self._conninfo, self._failure)
            ) from self._failure


def unreachable_detail(conninfo: str, error: psycopg.Error) -> str:
    return f"The database cannot be reached at {shown_hosts(conninfo)}: {driver_reason(error)}"


def driver_reason(error: psycopg.Error) -> str:
    """The server's message, or the driver's for all hosts, as each may fail for another reason. For
    one host, the last line that isn't indented: indented ones are advice."""
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [line for line in str(error).splitlines() if line and not line.startswith("\t")]
    failures = [line.partition(_FAILED)[2] or line[2:] for line in lines if line.startswith("- ")]
    return "; ".join(failures or lines[-1:]) or type(error).__name__
