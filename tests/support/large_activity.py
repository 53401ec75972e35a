"""Creates the rows of activity, verdicts and roll-ups of many calls at once."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import LiteralString
from uuid import UUID

from tests.support.ledger import LedgerTenant
from tollkeeper.database.database import Connection
from tollkeeper.reports.activity import partitions as activity_partitions
from tollkeeper.reports.activity.partitions import DAILY_TABLES
from tollkeeper.reports.rollups import ROLL_UP_ACTIVITY, ROLL_UP_VERDICTS

POLICY = "pol_asked_often"
MODELS = ("example/small", "example/large", "example/vision")
# Of all calls, the policy judges one in JUDGED_OF, and matches one in MATCHED_OF.
JUDGED_OF, MATCHED_OF = 2, 1000
# The costs in picousd: calls cost less than COST_MAX, except one call that costs DEAREST.
COST_MAX = 1000
DEAREST = 10**6


@dataclass(frozen=True, slots=True)
class LargeActivity:
    """Describes the rows: `calls` calls, evenly distributed over the days before `end` and the tenants."""

    calls: int
    days: int
    end: int


async def fill_activity(
    connection: Connection, tenants: list[LedgerTenant], wanted: LargeActivity
) -> None:
    """Creates the rows in the caller's transaction, which has to allow long statements. Each tenant's
    organization gets verdicts of the same policy."""
    last = datetime.fromtimestamp(wanted.end, UTC).date()
    for table in DAILY_TABLES:
        existing = await activity_partitions.find_days(connection, table)
        for ago in range(wanted.days + 1):
            day = last - timedelta(days=ago)
            if day not in existing:
                async with connection.transaction():
                    await activity_partitions.add_day(connection, day, table)
    parameters = {
        "calls": wanted.calls,
        "first_ms": (wanted.end - wanted.days * 86_400) * 1000,
        "every_ms": wanted.days * 86_400_000 / wanted.calls,
        "organizations": [UUID(str(tenant.organization_id)) for tenant in tenants],
        "projects": [tenant.project_id for tenant in tenants],
        "keys": [tenant.key_id for tenant in tenants],
        "models": list(MODELS),
        "policy": POLICY,
    }
    await connection.execute("SET LOCAL work_mem TO '128MB'")
    await connection.execute(_ACTIVITY, parameters, prepare=False)
    await connection.execute(_VERDICTS, parameters, prepare=False)
    for statement in _ROLL_UPS:
        await connection.execute(
            statement, {"organizations": parameters["organizations"]}, prepare=False
        )
    await connection.execute("ANALYZE")


_ACTIVITY: LiteralString = f"""
    INSERT INTO activity (organization_id, request_id, started_at, project_id, api_key_id, operation,
        model, streamed, duration_ms, first_piece_ms, status, finish, prompt_tokens,
        completion_tokens, cached_tokens, reasoning_tokens, estimated, hold, cost, settlement,
        backend, replica, overhead_us)
    SELECT (%(organizations)s::uuid[])[tenant],
        (lpad(to_hex(at_ms), 12, '0') || '7' || left(hash, 3) || '8' || substr(hash, 5, 15))::uuid,
        to_timestamp(at_ms / 1000.0), (%(projects)s::uuid[])[tenant], (%(keys)s::uuid[])[tenant],
        'chat_create', (%(models)s::text[])[1 + n %% 3], true,
        100 + (n * 7919::bigint) %% 4000, 20 + (n * 104729::bigint) %% 300,
        CASE WHEN n %% 100 = 99 THEN 502 WHEN n %% 50 = 48 THEN 429 ELSE 200 END, 'stop', 180, 64, 10,
        0, false, {COST_MAX}, CASE WHEN n = 17 THEN {DEAREST} ELSE n %% {COST_MAX} END, 'released',
        CASE n %% 2 WHEN 0 THEN 'first' ELSE 'second' END, 'http://10.0.0.' || n %% 4,
        300 + (n * 31::bigint) %% 900
    FROM (SELECT n, 1 + n / 7 %% cardinality(%(organizations)s::uuid[]) AS tenant,
              md5(n::text) AS hash, %(first_ms)s::bigint + floor(n * %(every_ms)s)::bigint AS at_ms
          FROM generate_series(0, %(calls)s - 1) AS n) AS made
"""
_VERDICTS: LiteralString = f"""
    INSERT INTO policy_verdicts (organization_id, request_id, policy_id, version, direction, mode,
        probability_basis_points, threshold, matched, duration_ms, judged_at, started_at)
    SELECT organization_id, request_id, %(policy)s, 1, 'request', 'monitoring',
        CASE WHEN number %% {MATCHED_OF} = 0 THEN 9000 ELSE number %% 5000 END, 5000,
        number %% {MATCHED_OF} = 0, 12, started_at + interval '5 ms', started_at
    FROM (SELECT *, row_number() OVER (ORDER BY started_at) AS number FROM activity) AS a
    WHERE number %% {JUDGED_OF} = 0
"""
# The roll-up statements of the program, applied to all of these rows at once.
_ROLL_UPS: tuple[LiteralString, ...] = (
    "WITH fresh AS (SELECT * FROM activity WHERE organization_id = ANY (%(organizations)s))"
    + ROLL_UP_ACTIVITY,
    "WITH fresh AS (SELECT * FROM policy_verdicts WHERE organization_id = ANY (%(organizations)s))"
    + ROLL_UP_VERDICTS,
)
