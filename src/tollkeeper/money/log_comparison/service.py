"""Compares the request log with the ledger, and books calls that the database lost. A failover to
an asynchronous standby, or a restore, loses the last transactions, but the request log still has
the answered calls and their costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from uuid import UUID

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.pricing import Bounds, Pricing
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.holds import statements as ledger
from tollkeeper.money.holds.values import Hold, Mark, Resolution, ResolutionKind
from tollkeeper.money.log_comparison.log_file import LoggedCall
from tollkeeper.money.months import store as ledger_months
from tollkeeper.money.months.service import months_in_use
from tollkeeper.money.settlement import reservations
from tollkeeper.money.settlement import store as resolutions
from tollkeeper.money.settlement.reservations import CallState, MonthState
from tollkeeper.money.unsettled.bulk_resolution import BulkResolution
from tollkeeper.tenants.audit.service import record_change

# Stored ones. Others are only counted.
DIFFERENCES_MAX = 10_000
# Looked up together, and booked in one transaction.
_BATCH = 500
_RESOLVED_BY = "request log"
_REASON = "the database has lost the call, and the request log does not have its cost"
# The request log has neither prices nor token limits.
_NO_PRICES = Pricing(0, 0, 0, 0, 0, declared={})
_NO_BOUNDS = Bounds(prompt_tokens=0, choices=1, output_tokens_each=1, images=0)


class Problem(StrEnum):
    # Not in the ledger, and can be booked.
    MISSING = "missing"
    # The log has a cost, but in the ledger it's held or unsettled.
    NOT_SETTLED = "not_settled"
    OTHER_COST = "other_cost"
    # Neither call nor key in the ledger, so it can't be booked.
    UNKNOWN_KEY = "unknown_key"
    # Not in the ledger, and its month is closed, so it can't be booked.
    MONTH_CLOSED = "month_closed"


_BOOKABLE = (Problem.MISSING, Problem.NOT_SETTLED)


@dataclass(frozen=True, slots=True)
class LogDifference:
    call: LoggedCall
    problem: Problem
    # When it was compared.
    ledger_state: CallState
    is_booked: bool = False


@dataclass(slots=True)
class LogComparison:
    """At most `DIFFERENCES_MAX` differences are stored; others are counted."""

    calls: int = 0
    # Their months were dropped from the database.
    dropped: int = 0
    booked: int = 0
    booked_picousd: int = 0
    remaining_differences: int = 0
    differences: dict[UUID, LogDifference] = field(default_factory=dict)
    # Differences that aren't stored.
    left_out: int = 0

    def add(self, difference: LogDifference) -> None:
        if difference.is_booked:
            self.booked += 1
            self.booked_picousd += difference.call.cost_picousd or 0
        else:
            self.remaining_differences += 1
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences[difference.call.key.id] = difference
        else:
            self.left_out += 1


class RequestLogComparison:
    def __init__(self, database: Database, process_id: UUID, bulk: BulkResolution) -> None:
        self._database = database
        self._process_id = process_id
        self._bulk = bulk

    async def ledger_compare_log(
        self, calls: Iterable[LoggedCall], *, book: bool = False
    ) -> LogComparison:
        """With `book`, settles missing, held and unsettled calls at the log's cost, or marks a
        missing one as unsettled if there's none. Books a call only once, even repeated or
        concurrently."""
        result = LogComparison()
        remaining = iter(calls)
        async with (
            self._database.autocommit() as connection,
            ledger_months.preventing_month_changes(connection) as protected,
        ):
            if not protected:
                raise months_in_use()
            while batch := list(islice(remaining, _BATCH)):
                # A call may be in several files, but is reported once.
                new = {call.key.id: call for call in batch if call.key.id not in result.differences}
                result.calls += len(new)
                for difference in await self._compare(connection, list(new.values()), book=book):
                    if difference.ledger_state.month is MonthState.DROPPED:
                        result.dropped += 1
                    else:
                        result.add(difference)
        return result

    async def _compare(
        self, connection: Connection, calls: Sequence[LoggedCall], *, book: bool
    ) -> list[LogDifference]:
        differences = await _differences(connection, calls)
        bookable = [difference for difference in differences if difference.problem in _BOOKABLE]
        if not book or not bookable:
            return differences
        booked_ids = await self._book(connection, bookable)
        booked = [
            LogDifference(
                difference.call, difference.problem, difference.ledger_state, is_booked=True
            )
            for difference in bookable
            if difference.call.key.id in booked_ids
        ]
        # Again, because another process may have resolved them meanwhile.
        others = [
            difference.call
            for difference in differences
            if difference.call.key.id not in booked_ids
        ]
        return booked + await _differences(connection, others)

    async def _book(self, connection: Connection, bookable: Sequence[LogDifference]) -> set[UUID]:
        """One transaction, with the audit entries. Returns the ids that it resolved or marked."""
        missing = [
            _hold(difference.call)
            for difference in bookable
            if difference.problem is Problem.MISSING
        ]
        with_cost = [
            difference.call for difference in bookable if difference.call.cost_picousd is not None
        ]
        without_cost = [
            difference.call for difference in bookable if difference.call.cost_picousd is None
        ]
        async with connection.transaction():
            await ledger.restore_holds(connection, self._process_id, missing, time_from_id=True)
            done = await resolutions.resolve(connection, [_settlement(call) for call in with_cost])
            done |= await resolutions.mark_unsettled(
                connection,
                [Mark(call.key.organization_id, call.key.id, _REASON) for call in without_cost],
            )
            booked = [difference.call for difference in bookable if difference.call.key.id in done]
            await _record(connection, booked)
        await self._bulk.fold([call.key.organization_id for call in booked])
        return done


async def _differences(connection: Connection, calls: Sequence[LoggedCall]) -> list[LogDifference]:
    async with connection.transaction():
        states = await reservations.find_states(connection, [call.key for call in calls])
    compared = [(call, states[call.key.id]) for call in calls]
    return [
        LogDifference(call, problem, state)
        for call, state in compared
        if (problem := _problem(call, state)) is not None
    ]


def _problem(call: LoggedCall, state: CallState) -> Problem | None:
    if state.status is None:
        if state.month is not MonthState.OPEN:
            return Problem.MONTH_CLOSED
        return Problem.MISSING if state.has_key else Problem.UNKNOWN_KEY
    if call.cost_picousd is None:
        return None  # nothing to compare: the call may have been settled since it was logged
    if state.cost_picousd is None:
        return Problem.NOT_SETTLED
    return None if state.cost_picousd == call.cost_picousd else Problem.OTHER_COST


def _hold(call: LoggedCall) -> Hold:
    key = call.key
    return Hold(
        organization_id=key.organization_id,
        id=key.id,
        project_id=key.project_id,
        key_id=key.key_id,
        model=call.model,
        pricing=_NO_PRICES,
        bounds=_NO_BOUNDS,
        hold_picousd=0,
    )


def _settlement(call: LoggedCall) -> Resolution:
    return Resolution(
        organization_id=call.key.organization_id,
        reservation_id=call.key.id,
        kind=ResolutionKind.SETTLED,
        resolved_by=_RESOLVED_BY,
        other=call.cost_picousd or 0,
    )


async def _record(connection: Connection, booked: Sequence[LoggedCall]) -> None:
    by_organization: dict[OrganizationId, list[int | None]] = {}
    for call in booked:
        by_organization.setdefault(call.key.organization_id, []).append(call.cost_picousd)
    for organization_id, costs in sorted(by_organization.items()):
        known = [cost for cost in costs if cost is not None]
        await record_change(
            connection,
            organization_id,
            "ledger_compare_log",
            "ledger",
            organization_id,
            after={
                "settled": len(known),
                "cost": usd_from_picousd(sum(known)),
                "unsettled": len(costs) - len(known),
            },
        )
