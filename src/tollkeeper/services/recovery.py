"""What happens to the holds of a process that died: they become unsettled, never nothing."""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from tollkeeper.storage import processes, resolutions
from tollkeeper.storage.database import Database

_REASON = "the process that served the call died"
# A process misses several heartbeats before it is taken for dead.
HEARTBEATS_PER_LEASE = 4


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
        async with self._database.transaction() as guard:
            # The lock lives as long as this transaction: a second sweep finds nothing to do.
            if not await processes.try_sweep_lock(guard):
                return Recovered(0, 0)
            dead = await processes.find_dead(guard, lease_s=self._lease_s)
            marked = 0
            for process_id in dead:
                marked += await self._recover(process_id)
        return Recovered(len(dead), marked)

    async def _recover(self, process_id: UUID) -> int:
        marked = 0
        async with self._database.reading() as connection:
            holds = await processes.find_holds(connection, process_id)
        for organization_id, reservations in holds.items():
            async with self._database.transaction() as connection:
                await resolutions.lock_account(connection, organization_id)
                marked += await resolutions.mark_unsettled(
                    connection, organization_id, reservations, _REASON
                )
        async with self._database.reading() as connection:
            await processes.sign_off(connection, process_id)
        return marked
