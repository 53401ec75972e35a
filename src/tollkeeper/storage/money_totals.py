"""Contains the SQL for two kinds of data for operators: sums over all organizations, and the
results of ledger verifications."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import LiteralString

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.months import request_id
from tollkeeper.domain.views import Balance
from tollkeeper.storage.accounts import with_balances
from tollkeeper.storage.database import Connection

# The advisory lock of the process that verifies the ledger automatically.
_VERIFICATION_LOCK = 7461_0005
_HOUR_MS = 3_600_000
# The greatest difference between the time in a call's id and the time of its admission: the call
# may wait before it is admitted, and the clocks of gateways and database may differ.
_ID_MARGIN_HOURS = 1


@dataclass(frozen=True, slots=True)
class MoneyTotals:
    """Contains the sums over all organizations, and the number of organizations whose available
    credit is negative."""

    available_picousd: int
    held_picousd: int
    unsettled_picousd: int
    settled_picousd: int
    negative: int


@dataclass(frozen=True, slots=True)
class LedgerVerification:
    """Contains the time of the last complete verification, and the number of differences that it
    found."""

    verified_at: int
    differences: int


async def find_totals(connection: Connection) -> MoneyTotals:
    cursor = await connection.execute(_FIND_TOTALS, prepare=False)
    [row] = await cursor.fetchall()
    return MoneyTotals(*row)


_FIND_TOTALS: LiteralString = with_balances(
    """
    SELECT coalesce(sum(available), 0), coalesce(sum(held), 0), coalesce(sum(unsettled), 0),
        coalesce(sum(settled), 0), count(*) FILTER (WHERE available < 0)
    FROM balances
    """
)


async def find_all_balances(connection: Connection) -> dict[OrganizationId, Balance]:
    cursor = await connection.execute(_FIND_ALL_BALANCES, prepare=False)
    return {row[0]: Balance(*row[1:]) for row in await cursor.fetchall()}


_FIND_ALL_BALANCES: LiteralString = with_balances(
    "SELECT organization_id, granted, available, held, settled, unsettled FROM balances"
)


async def sum_cost_of_day(connection: Connection, day: int) -> int:
    """Returns the cost of all organizations on a day. Does one index search for each
    organization."""
    cursor = await connection.execute(
        """
        SELECT coalesce(sum(c.amount), 0) FROM organizations o CROSS JOIN LATERAL (
            SELECT sum(amount_picousd) AS amount FROM cost_rollup
            WHERE organization_id = o.id AND day = %s
        ) c
        """,
        (day,),
        prepare=False,
    )
    [[cost]] = await cursor.fetchall()
    return int(cost)


async def find_costs_by_organization(
    connection: Connection, first_day: int, last_day: int
) -> list[tuple[OrganizationId, int, int]]:
    """Returns (organization, day, cost) for each day with costs, from `first_day` up to, but
    excluding, `last_day`."""
    cursor = await connection.execute(
        """
        SELECT o.id, c.day, c.amount FROM organizations o CROSS JOIN LATERAL (
            SELECT day, sum(amount_picousd) AS amount FROM cost_rollup
            WHERE organization_id = o.id AND day >= %s AND day < %s GROUP BY day
        ) c
        """,
        (first_day, last_day),
        prepare=False,
    )
    return [
        (OrganizationId(owner), day, int(amount)) for owner, day, amount in await cursor.fetchall()
    ]


async def find_costs_by_line_item(
    connection: Connection, first_day: int, last_day: int
) -> list[tuple[str, int]]:
    """Returns (line item, cost of all organizations) from `first_day` up to, but excluding,
    `last_day`."""
    cursor = await connection.execute(
        """
        SELECT c.line_item, sum(c.amount) FROM organizations o CROSS JOIN LATERAL (
            SELECT line_item, sum(amount_picousd) AS amount FROM cost_rollup
            WHERE organization_id = o.id AND day >= %s AND day < %s GROUP BY line_item
        ) c
        GROUP BY c.line_item
        """,
        (first_day, last_day),
        prepare=False,
    )
    return [(line_item, int(amount)) for line_item, amount in await cursor.fetchall()]


async def find_costs_by_hour(
    connection: Connection,
    organization_id: OrganizationId,
    hours: range,
    *,
    project_ids: Sequence[ProjectId],
    api_key_ids: Sequence[KeyId],
) -> list[tuple[int, int]]:
    """Returns (hour since 1970, cost) for the resolved calls that were admitted in each hour. An
    empty list of ids means no filter."""
    # An id contains the time at which the call began, by the clock of its gateway.
    first_id, end_id = (
        request_id(hour * _HOUR_MS, 0)
        for hour in (hours.start - _ID_MARGIN_HOURS, hours.stop + _ID_MARGIN_HOURS)
    )
    cursor = await connection.execute(
        """
        SELECT floor(extract(epoch FROM r.held_at) / 3600)::bigint,
            sum(d.settled + coalesce(o.amount, 0))
        FROM reservations r
        JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
          AND d.reservation_id >= %(first_id)s AND d.reservation_id < %(end_id)s
        LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
          AND o.reservation_id >= %(first_id)s AND o.reservation_id < %(end_id)s
        WHERE r.organization_id = %(organization)s AND r.id >= %(first_id)s AND r.id < %(end_id)s
          AND r.held_at >= to_timestamp(%(first)s) AND r.held_at < to_timestamp(%(end)s)
          AND (%(projects)s::uuid[] = '{}' OR r.project_id = ANY (%(projects)s))
          AND (%(keys)s::uuid[] = '{}' OR r.api_key_id = ANY (%(keys)s))
        GROUP BY 1 ORDER BY 1
        """,
        {
            "organization": organization_id,
            "first_id": first_id,
            "end_id": end_id,
            "first": hours.start * 3600,
            "end": hours.stop * 3600,
            "projects": list(project_ids),
            "keys": list(api_key_ids),
        },
    )
    return [(hour, int(amount)) for hour, amount in await cursor.fetchall()]


async def write_verification(connection: Connection, differences: int) -> None:
    await connection.execute(
        """
        INSERT INTO ledger_verification (verified_at, differences) VALUES (clock_timestamp(), %s)
        ON CONFLICT (only_row) DO UPDATE
        SET verified_at = excluded.verified_at, differences = excluded.differences
        """,
        (differences,),
    )


async def verification_is_due(connection: Connection, every_hours: int) -> bool:
    """Tells whether the last verification is at least `every_hours` hours old. If the ledger was never
    verified, tells whether the oldest organization is at least that old. A time in the future counts as
    old, because it was written before the clock was set back."""
    cursor = await connection.execute(
        """
        SELECT FROM (SELECT clock_timestamp() AS now) AS one,
            LATERAL (SELECT now - make_interval(hours => %s)) AS due (since)
        WHERE NOT EXISTS (SELECT FROM ledger_verification WHERE verified_at > since AND verified_at <= now)
          AND EXISTS (SELECT FROM organizations WHERE created_at <= since OR created_at > now)
        """,
        (every_hours,),
    )
    return await cursor.fetchone() is not None


@asynccontextmanager
async def verification_lock(connection: Connection) -> AsyncIterator[bool]:
    """Tries to take the lock for the automatic verification while the block runs. Yields False if
    another process has the lock."""
    cursor = await connection.execute("SELECT pg_try_advisory_lock(%s)", (_VERIFICATION_LOCK,))
    [[is_locked]] = await cursor.fetchall()
    try:
        yield bool(is_locked)
    finally:
        if is_locked and not connection.closed:
            await connection.execute("SELECT pg_advisory_unlock(%s)", (_VERIFICATION_LOCK,))


async def find_verification(connection: Connection) -> LedgerVerification | None:
    cursor = await connection.execute(
        "SELECT extract(epoch FROM verified_at)::bigint, differences FROM ledger_verification"
    )
    row = await cursor.fetchone()
    return None if row is None else LedgerVerification(*row)
