"""What happens to the holds of a process that died: they become unsettled, never nothing."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tollkeeper.storage import processes, resolutions
from tollkeeper.storage.database import Connection, Database

_REASON = "the process that served the call died"
# A process misses several heartbeats before it is taken for dead.
HEARTBEATS_PER_LEASE = 4
# Before it is given up, this many more are waited for.
_HEARTBEATS_OBSERVED = 2


@dataclass(frozen=True, slots=True)
class Recovered:
    processes: int
    reservations: int


class Lease:
    """This process's proof of life."""

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
        """The database answered all the time for longer than a lease: whoever lives has by now
        said so. Right after an outage everybody looks dead, and nobody may be judged."""
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
        """Turns the holds of dead processes into unsettled ones. Never touches a live one's."""
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
        """Those that are silent and stay so while others would have been heard. After an outage,
        a sleep of the machine or a jump of its clock everybody looks dead; who lives says so
        within this time. If the database goes away meanwhile, nobody is judged."""
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
