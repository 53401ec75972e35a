"""The ledger of one process: holds in fast group commits, resolutions in durable ones."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

import structlog

from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.admission import AdmissionRequest, Decision, ProjectState, decide
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.services.group_writer import GroupWriter
from tollkeeper.storage import ledger, resolutions
from tollkeeper.storage.database import Contention, Database
from tollkeeper.storage.ledger import Hold, ProjectLimits
from tollkeeper.storage.resolutions import Resolution, ResolutionKind

T = TypeVar("T")

_CONTENTION_TRIES = 4
_RETRY_PAUSE_S = 0.05
_RETRY_PAUSE_S_MAX = 2.0

_log = structlog.get_logger("tollkeeper.ledger")


class Ledger:
    def __init__(self, database: Database, process_id: UUID, limits: ProjectLimits) -> None:
        self._database = database
        self._process_id = process_id
        self._limits = limits
        self._holds: GroupWriter[Hold, Decision] = GroupWriter(self._write_holds, name="holds")
        self._resolutions: GroupWriter[Resolution, bool] = GroupWriter(
            self._write_resolutions, name="resolutions"
        )

    async def hold(self, hold: Hold) -> Decision:
        """Decides and, where admitted, holds. The hold is committed when this returns."""
        return await asyncio.shield(self._holds.submit(hold))

    async def resolve(self, resolution: Resolution) -> bool:
        """Durable when this returns; false where the reservation had been resolved before. It is
        written however long the database is away; who stops waiting does not stop it."""
        return await asyncio.shield(self._resolutions.submit(resolution))

    async def mark_unsettled(
        self, organization_id: OrganizationId, reservation_id: UUID, reason: str
    ) -> None:
        async def mark() -> None:
            async with self._database.transaction() as connection:
                await resolutions.lock_account(connection, organization_id)
                await resolutions.mark_unsettled(
                    connection, organization_id, [reservation_id], reason
                )

        await _despite_contention(mark)

    async def drain(self) -> None:
        await self._holds.drain()
        await self._resolutions.drain()

    async def _write_holds(self, holds: Sequence[Hold]) -> Sequence[Decision]:
        try:
            return await _despite_contention(lambda: self._hold_all(holds))
        except TollkeeperError:
            # The commit may have happened all the same. Nothing was dispatched, so whatever of
            # this batch is held is released; what is not held is passed over.
            for hold in holds:
                self._release_in_doubt(hold)
            raise

    async def _hold_all(self, holds: Sequence[Hold]) -> Sequence[Decision]:
        async with self._database.transaction() as connection:
            await ledger.commit_without_waiting(connection)
            locked = await ledger.lock_accounts(
                connection,
                [(hold.organization_id, hold.project_id) for hold in holds],
                [hold.key_id for hold in holds],
                self._limits,
            )
            decisions = _decide_batch(locked, holds)
            admitted = [
                hold for hold, found in zip(holds, decisions, strict=True) if found.refusal is None
            ]
            projects: dict[tuple[OrganizationId, ProjectId], ProjectState] = {
                (organization_id, project_id): project
                for organization_id, state in locked.states.items()
                for project_id, project in state.projects.items()
            }
            async with connection.pipeline():
                await ledger.write_accounts(connection, locked.states)
                await ledger.write_projects(connection, projects)
                await ledger.insert_holds(
                    connection,
                    self._process_id,
                    admitted,
                    now_us=locked.now_us,
                    month=locked.month,
                )
        return decisions

    def _release_in_doubt(self, hold: Hold) -> None:
        release = Resolution(
            organization_id=hold.organization_id,
            reservation_id=hold.id,
            kind=ResolutionKind.RELEASED,
            resolved_by="hold in doubt",
        )
        with contextlib.suppress(TollkeeperError):  # a full queue: recovery will find the hold
            self._resolutions.submit(release)

    async def _write_resolutions(self, batch: Sequence[Resolution]) -> Sequence[bool]:
        """Goes on until it is written: the money is spent, whatever the database does."""
        pause_s = _RETRY_PAUSE_S
        while True:
            try:
                async with self._database.reading() as connection:
                    resolved = await resolutions.resolve(connection, batch)
            except TollkeeperError as exc:
                _log.warning("settlement waits for the database", count=len(batch), reason=str(exc))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause_s = min(pause_s * 2, _RETRY_PAUSE_S_MAX)
            else:
                return [found.reservation_id in resolved for found in batch]


def _decide_batch(locked: ledger.LockedAccounts, holds: Sequence[Hold]) -> list[Decision]:
    """Decides organization by organization, in the order of arrival; `locked` holds the states
    after it."""
    positions: dict[OrganizationId, list[int]] = {}
    for position, hold in enumerate(holds):
        positions.setdefault(hold.organization_id, []).append(position)
    decisions: dict[int, Decision] = {}
    for organization_id, mine in positions.items():
        requests = [
            AdmissionRequest(
                holds[position].project_id, holds[position].key_id, holds[position].hold_picousd
            )
            for position in mine
        ]
        after, decided = decide(
            locked.states[organization_id], requests, now_us=locked.now_us, month=locked.month
        )
        locked.states[organization_id] = after
        decisions.update(zip(mine, decided, strict=True))
    return [decisions[position] for position in range(len(holds))]


async def _despite_contention(work: Callable[[], Awaitable[T]]) -> T:
    """Deadlocks and serialization failures are the database's way to say: once more, please."""
    for attempt in range(1, _CONTENTION_TRIES):
        try:
            return await work()
        except Contention:
            await asyncio.sleep(random.uniform(0, _RETRY_PAUSE_S * attempt))  # noqa: S311 - jitter
    return await work()
