"""Leases, and holds that no process will resolve: they become unsettled. Those are a dead
process's, and those that a live one has resolved but that are open again, after a failover to a
standby without the last commits, or a restored backup."""

import asyncio
import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from tollkeeper.core.access import OrganizationId
from tollkeeper.database import processes
from tollkeeper.database.account_locks import lock_account_rows
from tollkeeper.database.compatibility import SchemaState, find_schema_state
from tollkeeper.database.database import Connection, Database
from tollkeeper.database.processes import LEASE_S, RunningProcess
from tollkeeper.database.revisions import code_revision
from tollkeeper.money.holds.values import Mark
from tollkeeper.money.settlement import store as resolutions
from tollkeeper.money.unsettled.open_holds import OpenHolds
from tollkeeper.money.unsettled.open_holds_store import OpenHold
from tollkeeper.tenants.audit.service import record_change

_DIED = "the process that served the call died"
_END_LOST = "the database has lost the end of the call"
# More than one, so a missed heartbeat doesn't make a process dead.
HEARTBEATS_PER_LEASE = 4
# Heartbeat intervals to watch a silent process before it's declared dead.
_HEARTBEATS_OBSERVED = 2
# The database closes a sweep that's idle for a lease, which unlocks. With short leases only after
# this time: a busy machine may pause for seconds.
_IDLE_S_MIN = 10.0
# In one transaction.
_MARKED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Recovered:
    processes: int
    reservations: int
    # Of this process: the database has lost their resolution or mark.
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class LeasedHolds:
    """Holds that recovery doesn't change, as their processes' leases haven't ended."""

    processes: int
    reservations: int
    # If no heartbeat renews it; None if there is no lease.
    lease_ends_in_s: int | None


class OwnHolds(NamedTuple):
    process_id: UUID
    is_open: Callable[[UUID], bool]

    def has_forgotten(self, hold: OpenHold) -> bool:
        """Open in the database, but not in this process."""
        return hold.process_id == self.process_id and not self.is_open(hold.id)


class Lease:
    """Heartbeats renew it, and show others that this process lives."""

    def __init__(
        self,
        database: Database,
        process_id: UUID,
        lease_s: float = LEASE_S,
        *,
        kind: str | None = None,
        on_outdated: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`kind` is None for a gateway. `on_outdated` gets the reason when the schema is too new
        for us."""
        self._database = database
        self._process = RunningProcess(
            process_id, code_revision(), socket.gethostname(), os.getpid(), kind
        )
        self._lease_s = lease_s
        # The first heartbeat since the last failure.
        self._steady_since: float | None = None
        self._on_outdated = on_outdated

    @property
    def interval_s(self) -> float:
        return self._lease_s / HEARTBEATS_PER_LEASE

    async def heartbeat(self) -> None:
        await self._database.close_old_connections()
        try:
            async with self._database.autocommit() as connection:
                # Before the registration, which code that's too old may be unable to do.
                self._tell_outdated(await find_schema_state(connection))
                await processes.register(connection, self._process)
                # Again: a contracting migration either waits for this registration and sees it, or
                # has finished, and this check sees its result.
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
        """The database has answered for longer than a lease, so every live process has sent a
        heartbeat. No recovery before: right after an outage all look dead."""
        if self._steady_since is None:
            return False
        return asyncio.get_running_loop().time() - self._steady_since > self._lease_s

    async def sign_off(self) -> None:
        async with self._database.autocommit() as connection:
            await processes.sign_off(connection, self._process.id)


class Recovery:
    """A process is dead if it sent no heartbeat for a lease, or has holds and isn't registered."""

    def __init__(
        self,
        database: Database,
        lease_s: float = LEASE_S,
        open_holds: OpenHolds | None = None,
        own: OwnHolds | None = None,
    ) -> None:
        """Without `own`, only looks for holds of dead processes."""
        self._database = database
        self._lease_s = lease_s
        self._open_holds = open_holds or OpenHolds()
        self._own = own
        # What the previous sweep found open in the database but not in this process.
        self._forgotten_before: set[UUID] = set()

    async def ledger_recover(self) -> Recovered:
        """Dead processes' holds, however old, and those that this one has resolved but that are
        open in the database. Never one that a live process will resolve."""
        return await self._sweep(unregistered_too=True)

    async def leased_holds(self) -> LeasedHolds:
        """Their processes are alive, or died less than a lease ago."""
        async with self._database.autocommit() as connection:
            open_holds = await self._open_holds.find_all(connection)
            holders = {hold.process_id for hold in open_holds}
            left_s = await processes.find_leases(connection, holders, lease_s=self._lease_s)
        reservations = sum(hold.process_id in left_s for hold in open_holds)
        ends_in_s = math.ceil(max(left_s.values())) if left_s else None
        return LeasedHolds(len(left_s), reservations, ends_in_s)

    async def recover_silent(self) -> Recovered:
        """Only registered processes, so it costs almost nothing while all are alive."""
        return await self._sweep(unregistered_too=False)

    async def _sweep(self, *, unregistered_too: bool) -> Recovered:
        idle_s = max(self._lease_s + 1, _IDLE_S_MIN)
        async with (
            self._database.autocommit() as connection,
            processes.sweep_lock(connection, idle_s=idle_s) as has_lock,
        ):
            if not has_lock:
                # Another process is sweeping.
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
        """Only if the previous sweep found it too: this process may not know yet that a hold was
        committed."""
        if self._own is None:
            return 0
        forgotten = [hold for hold in open_holds if self._own.has_forgotten(hold)]
        found_twice = [hold for hold in forgotten if hold.id in self._forgotten_before]
        self._forgotten_before = {hold.id for hold in forgotten}
        return await _mark(connection, found_twice, _END_LOST)

    async def _observe(
        self, connection: Connection, suspects: dict[UUID, datetime | None]
    ) -> dict[UUID, datetime | None]:
        """Returns those that stay silent while every live process sends a heartbeat, with their
        last one (None if not registered). All look dead after an outage, a sleep of the machine or
        a jump of its clock. If the database fails meanwhile, raises, and nobody is declared
        dead."""
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
    """Each transaction: a limited number of one organization, and an audit entry for them."""
    by_organization: dict[OrganizationId, list[Mark]] = {}
    for hold in holds:
        mark = Mark(hold.organization_id, hold.id, reason)
        by_organization.setdefault(hold.organization_id, []).append(mark)
    marked = 0
    for organization_id, marks in sorted(by_organization.items()):
        for start in range(0, len(marks), _MARKED_AT_ONCE):
            batch = marks[start : start + _MARKED_AT_ONCE]
            async with connection.transaction():
                await lock_account_rows(connection, organization_id)
                marked_now = len(await resolutions.mark_unsettled(connection, batch))
                if marked_now:
                    await record_change(
                        *(connection, organization_id, "ledger_recover"),
                        *("ledger", organization_id),
                        after={"unsettled_reservations": marked_now, "reason": reason},
                    )
            marked += marked_now
    return marked
