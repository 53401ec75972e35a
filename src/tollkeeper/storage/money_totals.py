"""Contains the SQL for two kinds of data for operators: sums over all organizations, and the
results of ledger verifications."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import LiteralString

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.views import Balance
from tollkeeper.storage.accounts import with_balances
from tollkeeper.storage.database import Connection

# The advisory lock of the process that verifies the ledger automatically.
_VERIFICATION_LOCK = 7461_0005


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
