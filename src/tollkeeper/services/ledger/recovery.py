"""Leases of processes, and recovery of the holds of a process that died: they become unsettled."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tollkeeper.storage import processes, resolutions
from tollkeeper.storage.database import Connection, Database

_REASON = "the process that served the call died"
# A lease is this many heartbeats long: a process that misses one of them is not taken for dead.
HEARTBEATS_PER_LEASE = 4
# How many more heartbeats recovery waits for before it takes a silent process for dead.
_HEARTBEATS_OBSERVED = 2


@dataclass(frozen=True, slots=True)
class Recovered:
    processes: int
    reservations: int


class Lease:
    """The lease of this process: its heartbeat shows the others that it lives."""

    def __init__(self, database: Database, process_id: UUID, lease_s: float) -> None:
        self._database = database
        self._process_id = process_id
        self._lease_s = lease_s
        self._steady_since: float | None = None

    @property
    def interval_s(self) -> float:
        return self._lease_s / HEARTBEATS_PER_LEASE

    async def heartbeat(self) -> None:
        try:
            async with self._database.reading() as connection:
                await processes.heartbeat(connection, self._process_id)
        except BaseException:
            self._steady_since = None
            raise
        if self._steady_since is None:
            self._steady_since = asyncio.get_running_loop().time()

    @property
    def steady(self) -> bool:
        """Whether the database has answered for longer than a lease, so that every live process has
        sent a heartbeat by now. Right after an outage all processes look dead, so recovery must not
        run."""
        if self._steady_since is None:
            return False
        return asyncio.get_running_loop().time() - self._steady_since > self._lease_s

    async def sign_off(self) -> None:
        async with self._database.reading() as connection:
            await processes.sign_off(connection, self._process_id)


class Recovery:
    def __init__(self, database: Database, lease_s: float) -> None:
        self._database = database
        self._lease_s = lease_s

    async def ledger_recover(self) -> Recovered:
        """Marks the holds of dead processes as unsettled. Never touches those of a live process."""
        async with self._database.reading() as connection:
            # A second sweep at the same time finds nothing to do.
            if not await processes.try_sweep_lock(connection):
                return Recovered(0, 0)
            try:
                dead = await self._observe_dead(connection)
                marked = 0
                for process_id, heartbeat_at in dead.items():
                    marked += await _recover(connection, process_id, heartbeat_at)
            finally:
                await processes.free_sweep_lock(connection)
        return Recovered(len(dead), marked)

    async def _observe_dead(self, connection: Connection) -> dict[UUID, datetime]:
        """Processes that are silent, and are still silent after a time in which every live process
        sends a heartbeat. That time is waited for because after an outage, a sleep of the machine or
        a jump of its clock all processes look dead. If the database goes away meanwhile, this raises
        and no process is taken for dead."""
        silent = await processes.find_silent(connection, lease_s=self._lease_s)
        for _ in range(_HEARTBEATS_OBSERVED if silent else 0):
            await asyncio.sleep(self._lease_s / HEARTBEATS_PER_LEASE)
            still = await processes.find_silent(connection, lease_s=self._lease_s)
            silent = {found: at for found, at in silent.items() if still.get(found) == at}
        return silent


async def _recover(connection: Connection, process_id: UUID, heartbeat_at: datetime) -> int:
    marked = 0
    async for organization_id, held in processes.find_holds(connection, process_id, heartbeat_at):
        async with connection.transaction():
            await resolutions.lock_account(connection, organization_id)
            marked += await resolutions.mark_unsettled(connection, organization_id, held, _REASON)
    await processes.forget_dead(connection, process_id, heartbeat_at)
    return marked
