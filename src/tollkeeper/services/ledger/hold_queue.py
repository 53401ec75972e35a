"""Where holds wait to be made: all organizations together, and some of them apart."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol

import structlog

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.admission import Decision
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.domain.ledger import Hold
from tollkeeper.services.ledger.group_writer import GroupWriter, Result
from tollkeeper.storage.ledger_store import AccountBusy

# How long the common queue waits for the account of one organization.
_LOCK_WAIT_S = 0.1
# Separate queues that write at the same time: each takes a connection.
_SEPARATE_AT_ONCE = 3

_log = structlog.get_logger("tollkeeper.ledger")


class WriteHolds(Protocol):
    """Decides on holds in one transaction; see `hold.hold_all` for what errors mean."""

    def __call__(
        self, holds: Sequence[Hold], *, lock_wait_s: float | None
    ) -> Awaitable[Sequence[Decision]]: ...


class HoldQueue:
    """Holds of all organizations are written together, and the organizations take turns. An
    organization whose account keeps the others waiting, or whose holds make a common transaction
    fail, gets a queue of its own until that queue is empty."""

    def __init__(self, write: WriteHolds) -> None:
        self._write = write
        self._common: GroupWriter[Hold, Decision] = GroupWriter(
            self._write_batch, name="holds", owner=lambda hold: hold.organization_id
        )
        self._separate: dict[OrganizationId, GroupWriter[Hold, Decision]] = {}
        self._separate_slots = asyncio.Semaphore(_SEPARATE_AT_ONCE)

    @property
    def writers(self) -> list[GroupWriter[Hold, Decision]]:
        return [self._common, *self._separate.values()]

    def submit(self, hold: Hold) -> asyncio.Future[Decision]:
        return self._common.submit(hold)

    def withdraw(self, result: asyncio.Future[Decision]) -> bool:
        return self._common.withdraw(result)

    async def _write_batch(self, holds: Sequence[Hold]) -> Sequence[Result[Decision]]:
        self._separate = {of: queue for of, queue in self._separate.items() if queue.busy}
        results: dict[int, Result[Decision]] = {}
        together: list[int] = []
        for at, hold in enumerate(holds):
            if hold.organization_id in self._separate:
                results[at] = self._queue_apart(hold)
            else:
                together.append(at)
        if together:
            found = await self._write_together([holds[at] for at in together])
            results.update(zip(together, found, strict=True))
        return [results[at] for at in range(len(holds))]

    async def _write_together(self, holds: Sequence[Hold]) -> Sequence[Result[Decision]]:
        try:
            return await self._write(holds, lock_wait_s=_LOCK_WAIT_S)
        except AccountBusy:
            return [self._queue_apart(hold) for hold in holds]
        except TollkeeperError as exc:
            return [exc] * len(holds)
        except Exception:  # noqa: BLE001 - raised again for the organization that causes it
            # Nothing was written. Written apart, only the organization that is the cause fails.
            _log.exception("holds could not be written together", count=len(holds))
            return [self._queue_apart(hold) for hold in holds]

    def _queue_apart(self, hold: Hold) -> Result[Decision]:
        queue = self._separate.get(hold.organization_id)
        if queue is None:
            queue = GroupWriter(self._write_apart, name="holds of one organization")
            self._separate[hold.organization_id] = queue
        try:
            return queue.submit(hold)
        except TollkeeperError as exc:  # too many wait already
            return exc

    async def _write_apart(self, holds: Sequence[Hold]) -> Sequence[Decision]:
        async with self._separate_slots:
            return await self._write(holds, lock_wait_s=None)
