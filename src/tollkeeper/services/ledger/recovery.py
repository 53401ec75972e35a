"""Maintains process leases, and marks the holds that no process will resolve as unsettled.

A lease shows that a process is alive. No process will resolve a hold of a dead process. Nor will a live
process resolve a hold that it has already resolved, but that is open again in the database. The latter
happens after a failover to a standby that lacks the last commits, or if a backup was restored.
"""

import asyncio
import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.ledger import Mark
from tollkeeper.services.audit import record_change
from tollkeeper.services.ledger.open_holds import OpenHolds
from tollkeeper.storage import processes, resolutions
from tollkeeper.storage.compatibility import SchemaState, find_schema_state
from tollkeeper.storage.database import Connection, Database
from tollkeeper.storage.open_holds import OpenHold
from tollkeeper.storage.processes import LEASE_S, RunningProcess
from tollkeeper.storage.revisions import code_revision

_DIED = "the process that served the call died"
_END_LOST = "the database has lost the end of the call"
# The number of heartbeats in the duration of a lease. It is more than one, so that a process that
# misses a heartbeat is not declared dead.
HEARTBEATS_PER_LEASE = 4
# The number of heartbeat intervals for which recovery watches a silent process before it declares
# the process dead.
_HEARTBEATS_OBSERVED = 2
# If a sweep (one run of recovery) is idle for longer than a lease, the database closes the sweep's
# connection, which releases its lock. With short leases, this happens only after this time, because
# a busy machine may pause for seconds.
_IDLE_S_MIN = 10.0
# The number of reservations that one transaction marks.
_MARKED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Recovered:
    processes: int
    reservations: int
    # The number of reservations of this process whose resolution or mark the database has lost.
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class LeasedHolds:
    """Counts the holds that recovery does not change, because the leases of their processes have
    not ended."""

    processes: int
    reservations: int
    # The time until the last of these leases ends if no heartbeat renews it; None if there is no
    # lease.
    lease_ends_in_s: int | None


class OwnHolds(NamedTuple):
    process_id: UUID
    is_open: Callable[[UUID], bool]

    def has_forgotten(self, hold: OpenHold) -> bool:
        """Tells whether a hold that is open in the database is not open in this process."""
        return hold.process_id == self.process_id and not self.is_open(hold.id)


class Lease:
    """Maintains this process's lease. Heartbeats renew the lease, and so show other processes that
    this process lives."""

    def __init__(
        self,
        database: Database,
        process_id: UUID,
        lease_s: float = LEASE_S,
        *,
        kind: str | None = None,
        on_outdated: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`kind` is the kind of a process that is not a gateway, for example a console; None for a
        gateway. `on_outdated` gets the reason when the schema has become too new for this code."""
        self._database = database
        self._process = RunningProcess(
            process_id, code_revision(), socket.gethostname(), os.getpid(), kind
        )
        self._lease_s = lease_s
        # The time of the first heartbeat since the last failure; None if no heartbeat has succeeded
        # since then.
        self._steady_since: float | None = None
        self._on_outdated = on_outdated

    @property
    def interval_s(self) -> float:
        return self._lease_s / HEARTBEATS_PER_LEASE

    async def heartbeat(self) -> None:
        await self._database.close_old_connections()
        try:
            async with self._database.autocommit() as connection:
                # Check before the registration, because code that is too old for the schema may be
                # unable to register.
                self._tell_outdated(await find_schema_state(connection))
                await processes.register(connection, self._process)
                # Check again. A contracting migration (after which older code no longer works)
                # either waits for this registration and then sees it, or has already finished, and
                # this check sees its result.
                self._tell_outdated(await find_schema_state(connection))
        except BaseException:
            self._steady_since = None
            raise
        if self._steady_since is None:
            self._steady_since = asyncio.get_running_loop().time()

    def _tell_outdated(self, state: SchemaState) -> None:
        if state.is_newer and state.refusal is not None:
            self._on_outdated(state.refusal)

    @property
    def steady(self) -> bool:
        """Tells whether the database has answered for longer than the duration of a lease. By then
        every live process has sent a heartbeat. Recovery must not run earlier, because right after
        an outage all processes look dead."""
        if self._steady_since is None:
            return False
        return asyncio.get_running_loop().time() - self._steady_since > self._lease_s

    async def sign_off(self) -> None:
        async with self._database.autocommit() as connection:
            await processes.sign_off(connection, self._process.id)


class Recovery:
    """Marks holds that no process will resolve as unsettled. A process counts as dead if it has
    sent no heartbeat for longer than its lease, or if it has holds and is not registered."""

    def __init__(
        self,
        database: Database,
        lease_s: float = LEASE_S,
        open_holds: OpenHolds | None = None,
        own: OwnHolds | None = None,
    ) -> None:
        """`own` describes the holds of this process. Without `own`, only looks for holds of dead
        processes."""
        self._database = database
        self._lease_s = lease_s
        self._open_holds = open_holds or OpenHolds()
        self._own = own
        # Holds of this process that the previous sweep found open in the database but not in this
        # process.
        self._forgotten_before: set[UUID] = set()

    async def ledger_recover(self) -> Recovered:
        """Marks the holds of dead processes as unsettled, however old the holds are. Also marks the
        holds that this process has already resolved, but that are open in the database. Never
        changes a hold that a live process will resolve."""
        return await self._sweep(unregistered_too=True)

    async def leased_holds(self) -> LeasedHolds:
        """Counts the holds of processes whose leases have not ended. These processes are alive, or
        died less than one lease ago."""
        async with self._database.autocommit() as connection:
            open_holds = await self._open_holds.find_all(connection)
            holders = {hold.process_id for hold in open_holds}
            left_s = await processes.find_leases(connection, holders, lease_s=self._lease_s)
        reservations = sum(hold.process_id in left_s for hold in open_holds)
        ends_in_s = math.ceil(max(left_s.values())) if left_s else None
        return LeasedHolds(len(left_s), reservations, ends_in_s)

    async def recover_silent(self) -> Recovered:
        """Marks the holds of dead processes as unsettled, but only of registered processes. This
        costs almost nothing while all registered processes are alive."""
        return await self._sweep(unregistered_too=False)

    async def _sweep(self, *, unregistered_too: bool) -> Recovered:
        idle_s = max(self._lease_s + 1, _IDLE_S_MIN)
        async with (
            self._database.autocommit() as connection,
            processes.sweep_lock(connection, idle_s=idle_s) as has_lock,
        ):
            if not has_lock:
                # Another process is sweeping, so this process has nothing to do.
                return Recovered(0, 0)
            suspects: dict[UUID, datetime | None] = {
                **await processes.find_silent(connection, lease_s=self._lease_s)
            }
            forgotten = 0
            if unregistered_too:
                open_holds = await self._open_holds.find_all(connection)
                holders = {hold.process_id for hold in open_holds}
                unregistered = await processes.find_unregistered(connection, holders)
                suspects.update(dict.fromkeys(unregistered))
                forgotten = await self._mark_forgotten(connection, open_holds)
            suspects = await self._observe(connection, suspects)
            return replace(await self._recover(connection, suspects), forgotten=forgotten)

    async def _mark_forgotten(self, connection: Connection, open_holds: Sequence[OpenHold]) -> int:
        """Marks the holds of this process that are open only in the database. A hold that was
        committed just now may not be known to this process yet, so a hold is marked only if the
        previous sweep found it too."""
        if self._own is None:
            return 0
        forgotten = [hold for hold in open_holds if self._own.has_forgotten(hold)]
        found_twice = [hold for hold in forgotten if hold.id in self._forgotten_before]
        self._forgotten_before = {hold.id for hold in forgotten}
        return await _mark(connection, found_twice, _END_LOST)

    async def _observe(
        self, connection: Connection, suspects: dict[UUID, datetime | None]
    ) -> dict[UUID, datetime | None]:
        """Watches the processes that look dead for a time in which every live process sends a
        heartbeat. Returns the processes that stay silent, with their last heartbeat (None if not
        registered). The wait is needed because all processes look dead after an outage, a sleep of
        the machine or a jump of its clock. If the database fails during the wait, this method
        raises and no process is declared dead."""
        for _ in range(_HEARTBEATS_OBSERVED if suspects else 0):
            await asyncio.sleep(self._lease_s / HEARTBEATS_PER_LEASE)
            silent = await processes.find_silent(connection, lease_s=self._lease_s)
            unregistered = await processes.find_unregistered(connection, suspects)
            suspects = {
                process_id: heartbeat_at
                for process_id, heartbeat_at in suspects.items()
                if (
                    process_id in unregistered
                    if heartbeat_at is None
                    else silent.get(process_id) == heartbeat_at
                )
            }
        return suspects

    async def _recover(
        self, connection: Connection, dead: dict[UUID, datetime | None]
    ) -> Recovered:
        if not dead:
            return Recovered(0, 0)
        holds = [
            hold for hold in await self._open_holds.find_all(connection) if hold.process_id in dead
        ]
        marked = await _mark(connection, holds, _DIED)
        for process_id, heartbeat_at in dead.items():
            if heartbeat_at is not None:
                await processes.forget_dead(connection, process_id, heartbeat_at)
        registered = {process_id for process_id, at in dead.items() if at is not None}
        return Recovered(len(registered | {hold.process_id for hold in holds}), marked)


async def _mark(connection: Connection, holds: Sequence[OpenHold], reason: str) -> int:
    """Marks the holds as unsettled. Each transaction marks a limited number of holds of one
    organization, and writes an audit entry for them."""
    by_organization: dict[OrganizationId, list[Mark]] = {}
    for hold in holds:
        mark = Mark(hold.organization_id, hold.id, reason)
        by_organization.setdefault(hold.organization_id, []).append(mark)
    marked = 0
    for organization_id, marks in sorted(by_organization.items()):
        for start in range(0, len(marks), _MARKED_AT_ONCE):
            batch = marks[start : start + _MARKED_AT_ONCE]
            async with connection.transaction():
                await resolutions.lock_account_rows(connection, organization_id)
                marked_now = len(await resolutions.mark_unsettled(connection, batch))
                if marked_now:
                    await record_change(
                        *(connection, organization_id, "ledger_recover"),
                        *("ledger", organization_id),
                        after={"unsettled_reservations": marked_now, "reason": reason},
                    )
            marked += marked_now
    return marked
