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
from tollkeeper.services.ledger.handout import Handout
from tollkeeper.storage.ledger_store import AccountBusy

# How long the common queue waits for the account of one organization.
_LOCK_WAIT_S = 0.1
# Separate queues that write at the same time: each takes a connection.
_SEPARATE_AT_ONCE = 3

_log = structlog.get_logger("tollkeeper.ledger")


class WantedHold:
    """A hold that somebody waits for, as long as `is_abandoned` is not set."""

    __slots__ = ("hold", "is_abandoned")

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self.is_abandoned = False


def _organization(wanted: WantedHold) -> int:
    return wanted.hold.organization_id.int


class WriteHolds(Protocol):
    """Decides on holds in one transaction; see `hold.hold_all` for what errors mean."""

    def __call__(
        self, wanted: Sequence[WantedHold], *, lock_wait_s: float | None
    ) -> Awaitable[Sequence[Decision]]: ...


class HoldQueue:
    """Holds of all organizations are written together, and the organizations take turns. An
    organization whose account keeps the others waiting, or whose holds make a common transaction
    fail, gets a queue of its own until that queue is empty."""

    def __init__(self, write: WriteHolds, handout: Handout) -> None:
        self._write = write
        self._common: GroupWriter[WantedHold, Decision] = GroupWriter(
            self._write_batch,
            name="holds",
            owner=_organization,
            handout=handout,
        )
        self._separate: dict[OrganizationId, GroupWriter[WantedHold, Decision]] = {}
        self._separate_slots = asyncio.Semaphore(_SEPARATE_AT_ONCE)

    @property
    def writers(self) -> list[GroupWriter[WantedHold, Decision]]:
        return [self._common, *self._separate.values()]

    def submit(self, wanted: WantedHold) -> asyncio.Future[Decision]:
        return self._common.submit(wanted)

    def withdraw(self, result: asyncio.Future[Decision]) -> bool:
        return self._common.withdraw(result)

    async def _write_batch(self, wanted: Sequence[WantedHold]) -> Sequence[Result[Decision]]:
        if not self._separate:
            return await self._write_together(wanted)
        self._separate = {of: queue for of, queue in self._separate.items() if queue.busy}
        results: dict[int, Result[Decision]] = {}
        together: list[int] = []
        for at, one in enumerate(wanted):
            if one.hold.organization_id in self._separate:
                results[at] = self._queue_apart(one)
            else:
                together.append(at)
        if together:
            found = await self._write_together([wanted[at] for at in together])
            results.update(zip(together, found, strict=True))
        return [results[at] for at in range(len(wanted))]

    async def _write_together(self, wanted: Sequence[WantedHold]) -> Sequence[Result[Decision]]:
        try:
            return await self._write(wanted, lock_wait_s=_LOCK_WAIT_S)
        except AccountBusy:
            return [self._queue_apart(one) for one in wanted]
        except TollkeeperError as exc:
            return [exc] * len(wanted)
        except Exception:  # noqa: BLE001 - raised again for the organization that causes it
            # Nothing was written. Written apart, only the organization that is the cause fails.
            _log.exception("holds could not be written together", count=len(wanted))
            return [self._queue_apart(one) for one in wanted]

    def _queue_apart(self, wanted: WantedHold) -> Result[Decision]:
        organization_id = wanted.hold.organization_id
        queue = self._separate.get(organization_id)
        if queue is None:
            queue = GroupWriter(self._write_apart, name="holds of one organization")
            self._separate[organization_id] = queue
        try:
            return queue.submit(wanted)
        except TollkeeperError as exc:  # too many wait already
            return exc

    async def _write_apart(self, wanted: Sequence[WantedHold]) -> Sequence[Decision]:
        async with self._separate_slots:
            return await self._write(wanted, lock_wait_s=None)
