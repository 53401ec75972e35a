"""Resolves many unsettled reservations, for an operator or by the settings' rule. Each batch is one
transaction, and none resolves a reservation twice, so you can interrupt and repeat it anytime."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.views import ReasonTotal
from tollkeeper.database.database import Connection, Database
from tollkeeper.database.server_time import read_time
from tollkeeper.money.credit.locked_account import lock_and_fold_account
from tollkeeper.money.holds import statements as ledger
from tollkeeper.money.holds.rule import DefaultLimits
from tollkeeper.money.holds.values import Resolution, ResolutionKind
from tollkeeper.money.settlement import store as resolutions
from tollkeeper.money.unsettled import store as unsettled
from tollkeeper.money.unsettled.store import FIRST_KEY, UnsettledKey, UnsettledSelection
from tollkeeper.tenants.audit.service import record_change

_BATCH_SIZE = 500
_RESOLVED_BY = "operator, in bulk"
_HOUR_S = 3600


class BulkAction(StrEnum):
    SETTLE_HOLD = "settle_hold"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class UnsettledRule:
    after_hours: int
    action: BulkAction

    @property
    def resolved_by(self) -> str:
        return f"rule ledger.unsettled_resolution={self.action} after {self.after_hours} hours"


@dataclass(frozen=True, slots=True)
class Backlog:
    selection: UnsettledSelection
    reasons: tuple[ReasonTotal, ...]

    @property
    def reservations(self) -> int:
        return sum(reason.reservations for reason in self.reasons)

    @property
    def hold_picousd(self) -> int:
        return sum(reason.hold_picousd for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class Resolved:
    reservations: int
    hold_picousd: int


class BulkResolution:
    def __init__(
        self, database: Database, limits: DefaultLimits, batch_size: int = _BATCH_SIZE
    ) -> None:
        self._database = database
        self._limits = limits
        self._batch_size = batch_size

    async def ledger_backlog(
        self,
        *,
        older_than_s: float,
        organization_id: OrganizationId | None = None,
        models: tuple[str, ...] | None = None,
    ) -> Backlog:
        async with self._database.autocommit() as connection:
            marked_before = await read_time(connection, seconds_ago=older_than_s)
            selection = UnsettledSelection(marked_before, organization_id, models)
            return Backlog(selection, tuple(await unsettled.total_by_reason(connection, selection)))

    async def ledger_resolve_all(
        self,
        selection: UnsettledSelection,
        action: BulkAction,
        *,
        resolved_by: str = _RESOLVED_BY,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Resolved:
        """`on_progress` gets the number visited so far. The result leaves out what other processes
        resolved meanwhile."""
        visited, resolved, hold_picousd = 0, 0, 0
        after = FIRST_KEY
        while True:
            async with self._database.transaction() as connection:
                page = await unsettled.find_page(connection, selection, after, self._batch_size)
                if not page:
                    return Resolved(resolved, hold_picousd)
                batch = [_resolution(key, hold, action, resolved_by) for key, hold in page]
                done = await resolutions.resolve(connection, batch)
                await _record(connection, page, done, action, resolved_by)
            await self.fold([key.organization_id for key, _ in page])
            resolved += len(done)
            hold_picousd += sum(hold for key, hold in page if key.id in done)
            visited += len(page)
            on_progress(visited)
            after = page[-1][0]

    async def apply_rule(self, rule: UnsettledRule) -> Resolved:
        async with self._database.autocommit() as connection:
            marked_before = await read_time(connection, seconds_ago=rule.after_hours * _HOUR_S)
        return await self.ledger_resolve_all(
            UnsettledSelection(marked_before), rule.action, resolved_by=rule.resolved_by
        )

    async def fold(self, organizations: Sequence[OrganizationId]) -> None:
        """Otherwise the organization's next call would have to fold thousands of rows."""
        for organization_id in sorted(set(organizations)):
            async with self._database.transaction() as connection:
                await ledger.use_asynchronous_commit(connection)
                await lock_and_fold_account(connection, self._limits, organization_id)


async def _record(
    connection: Connection,
    page: Sequence[tuple[UnsettledKey, int]],
    done: set[UUID],
    action: BulkAction,
    resolved_by: str,
) -> None:
    holds: dict[OrganizationId, list[int]] = {}
    for key, hold in page:
        if key.id in done:
            holds.setdefault(key.organization_id, []).append(hold)
    for organization_id, amounts in sorted(holds.items()):
        await record_change(
            connection,
            organization_id,
            "ledger_resolve_all",
            "ledger",
            organization_id,
            before={"unsettled_reservations": len(amounts)},
            after={
                "action": action.value,
                "resolved_by": resolved_by,
                "hold": usd_from_picousd(sum(amounts)),
            },
        )


def _resolution(
    key: UnsettledKey, hold_picousd: int, action: BulkAction, resolved_by: str
) -> Resolution:
    settled = action is BulkAction.SETTLE_HOLD
    return Resolution(
        organization_id=key.organization_id,
        reservation_id=key.id,
        kind=ResolutionKind.SETTLED if settled else ResolutionKind.RELEASED,
        resolved_by=resolved_by,
        other=hold_picousd if settled else 0,
    )
