"""Tracks whether the database can be reached, so that requests fail quickly while it cannot be
reached."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from tollkeeper.domain.errors import Unavailable
from tollkeeper.storage.sessions import shown_hosts

# The time after which clients should try again.
RETRY_AFTER_S = 2
# The maximum time that a request waits for a connection after an attempt to connect has failed. The
# time suffices to get an idle connection or a connection that is being opened.
_WAIT_AFTER_FAILURE_S = 0.1

# The driver writes the reason for each host after this text.
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
        """Records that the server has answered: a connection was opened, or a transaction
        succeeded."""
        self._answered_at = asyncio.get_running_loop().time()
        self._failure = None

    def failed(self, began_at: float, error: psycopg.Error) -> None:
        """Records that an attempt to connect has failed, unless the server has answered on another
        connection since the attempt began. Shortens all waits that have no time limit yet."""
        if self._answered_at > began_at:
            return
        self._failure = error
        until = asyncio.get_running_loop().time() + _WAIT_AFTER_FAILURE_S
        for wait in self._waits:
            if wait.when() is None:
                wait.reschedule(until)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Limits the time of the block, which waits for a connection. If an attempt to connect has
        failed, the block gets only a short time, and then `DatabaseUnreachable` is raised."""
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
    """Returns the server's message. If the error comes from the driver, returns the failures of all
    hosts, because each host may fail for another reason. For a single host, returns the last line of
    the driver's message that is not indented. Indented lines contain advice, not the reason."""
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [line for line in str(error).splitlines() if line and not line.startswith("\t")]
    failures = [line.partition(_FAILED)[2] or line[2:] for line in lines if line.startswith("- ")]
    return "; ".join(failures or lines[-1:]) or type(error).__name__
