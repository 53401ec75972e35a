"""Renews the console's lease, a database row by which `migrate` knows that a process with this
version of the code is running."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import structlog

from tollkeeper.core.errors import StateConflict, TollkeeperError
from tollkeeper.database.database import Database
from tollkeeper.money.unsettled.recovery import Lease

KIND = "console"
_log = structlog.get_logger("tollkeeper.console")


@asynccontextmanager
async def held_lease(database: Database) -> AsyncIterator[None]:
    """Renews the lease by heartbeats during the context, and removes the lease at the end. If the
    database schema becomes too new for this version of the code, sends SIGTERM to this process. The
    signal stops the server and so ends the context, which then raises StateConflict."""
    outdated: list[str] = []

    def end(reason: str) -> None:
        outdated.append(reason)
        os.kill(os.getpid(), signal.SIGTERM)

    lease = Lease(database, uuid4(), kind=KIND, on_outdated=end)
    task = asyncio.create_task(_send_heartbeats(lease))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        # If the database cannot be reached, the lease expires by itself, like the lease of a dead
        # process.
        with contextlib.suppress(TollkeeperError):
            await lease.sign_off()
    if outdated:
        raise StateConflict(outdated[0])


async def _send_heartbeats(lease: Lease) -> None:
    while True:
        try:
            await lease.heartbeat()
        except TollkeeperError as exc:
            _log.warning("no heartbeat was sent", reason=exc.message)
        await asyncio.sleep(lease.interval_s)
