"""A project's rate limit (a token bucket) for requests that reserve no money."""

from typing import LiteralString

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.database.account_locks import lock_account_rows
from tollkeeper.database.database import Connection
from tollkeeper.money.holds.rule import (
    RATE_UNITS_PER_REQUEST,
    REFUSED_AS_UNKNOWN,
    Decision,
    DefaultLimits,
    ProjectState,
    take_request,
)
from tollkeeper.money.holds.spend import Spend
from tollkeeper.money.holds.statements import use_asynchronous_commit


async def take_from_rate(
    connection: Connection,
    organization_id: OrganizationId,
    project_id: ProjectId,
    limits: DefaultLimits,
) -> Decision:
    """Locks the account first, like everything that changes data for admission."""
    await use_asynchronous_commit(connection)  # for the commit at the end of the transaction
    await lock_account_rows(connection, organization_id)
    cursor = await connection.execute(_READ_RATE, (organization_id, project_id))
    row = await cursor.fetchone()
    if row is None:
        return REFUSED_AS_UNKNOWN
    own_limit, rate_units, rate_at_us, now_us = row
    requests_per_minute = own_limit or limits.requests_per_minute
    full_bucket = requests_per_minute * RATE_UNITS_PER_REQUEST
    before = ProjectState(
        # The rate needs neither spending nor concurrency.
        spend=Spend(),
        archived=False,
        live_holds=0,
        concurrency=limits.concurrency,
        requests_per_minute=requests_per_minute,
        rate_units=full_bucket if rate_units is None else rate_units,
        rate_at_us=now_us if rate_at_us is None else rate_at_us,
    )
    after, decision = take_request(before, now_us=now_us)
    await connection.execute(
        _WRITE_RATE, (after.rate_units, after.rate_at_us, organization_id, project_id)
    )
    return decision


_READ_RATE: LiteralString = """
    SELECT requests_per_minute, rate_units, rate_at_us,
           (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
    FROM project_accounts WHERE organization_id = %s AND project_id = %s
"""
_WRITE_RATE: LiteralString = """
    UPDATE project_accounts SET rate_units = %s, rate_at_us = %s
    WHERE organization_id = %s AND project_id = %s
"""
