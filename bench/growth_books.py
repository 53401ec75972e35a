"""Fills a database with many tenants, keys, policies or settled calls with fast SQL statements.

Ids and keys can be computed from numbers. Organization `n` has project `n`, and the keys are spread over
the projects by number. The ids are hashes, so that they are as scattered as real ids.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import LiteralString

import psycopg

from tollkeeper.core.access import PROJECT_KEY_PERMISSIONS, KeyKind
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.database.database import Database
from tollkeeper.reports.activity.service import Activity
from tollkeeper.tenants.keys import PREFIXES, checksum, key_digest

_CREDIT = 10**18


@dataclass(frozen=True, slots=True)
class Books:
    """The content of a database before the load begins."""

    organizations: int = 100
    keys: int = 100
    # Published and enforcing policies for projects that make no calls.
    policies: int = 0
    # The number of organizations to which the policies belong.
    policy_organizations: int = 100
    # Settled calls of today with their activity, from the first 100 organizations.
    settled: int = 0


def key_value(number: int) -> str:
    """Returns the key with this number, in the usual format of project keys."""
    body = f"{PREFIXES[KeyKind.PROJECT]}{number:032d}"
    return body + checksum(body)


def fill(conninfo: str, books: Books) -> None:
    asyncio.run(_make_partitions(conninfo))
    with psycopg.connect(conninfo) as connection:
        # In this mode no trigger runs, so foreign keys are not checked row by row.
        connection.execute("SET session_replication_role TO replica")
        connection.execute("SET work_mem TO '64MB'")
        connection.execute("SET synchronous_commit TO off")
        parameters = {
            "organizations": books.organizations,
            "keys": books.keys,
            "credit": _CREDIT,
            "permissions": list(PROJECT_KEY_PERMISSIONS),
            "policies": books.policies,
            "policy_organizations": books.policy_organizations,
            "settled": books.settled,
        }
        for statement in _TENANTS:
            connection.execute(statement, parameters)
        _copy_digests(connection, books.keys)
        connection.execute(_KEYS, parameters)
        for statement in (*_POLICIES, *_SETTLED):
            connection.execute(statement, parameters)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        # There is no checkpoint here, so that the load begins between two checkpoints.
        connection.execute("VACUUM ANALYZE")


async def _make_partitions(conninfo: str) -> None:
    """Creates today's partitions, so that no row has to be moved out of the default partitions later."""
    database = Database(conninfo, pool_size=2, pool_timeout_s=10, statement_timeout_s=60)
    await database.open()
    try:
        await Activity(database, unix_now, retention_days=30).keep_partitions()
    finally:
        await database.close()


def _copy_digests(connection: psycopg.Connection, keys: int) -> None:
    connection.execute("CREATE TEMP TABLE digests (number integer, digest bytea) ON COMMIT DROP")
    with connection.cursor().copy("COPY digests FROM STDIN (FORMAT text)") as copy:
        for lines in _batched(keys):
            copy.write(lines)


def _batched(keys: int, size: int = 10_000) -> Iterator[str]:
    for first in range(0, keys, size):
        yield "".join(
            f"{number}\t\\\\x{key_digest(key_value(number)).hex()}\n"
            for number in range(first, min(first + size, keys))
        )


_TENANTS: tuple[LiteralString, ...] = (
    """
    CREATE FUNCTION pg_temp.id_of(kind text, number bigint) RETURNS uuid IMMUTABLE LANGUAGE sql
    AS $$ SELECT md5(kind || number)::uuid $$
    """,
    """
    INSERT INTO organizations (id, name, created_at)
    SELECT pg_temp.id_of('organization', n), 'bench ' || n, now()
    FROM generate_series(0, %(organizations)s - 1) AS n
    """,
    """
    INSERT INTO accounts (organization_id, granted, available)
    SELECT pg_temp.id_of('organization', n), %(credit)s, %(credit)s
    FROM generate_series(0, %(organizations)s - 1) AS n
    """,
    """
    INSERT INTO grants (organization_id, id, amount, note)
    SELECT pg_temp.id_of('organization', n), pg_temp.id_of('grant', n), %(credit)s, 'bench'
    FROM generate_series(0, %(organizations)s - 1) AS n
    """,
    """
    INSERT INTO projects (organization_id, id, name, created_at)
    SELECT pg_temp.id_of('organization', n), pg_temp.id_of('project', n), 'bench', now()
    FROM generate_series(0, %(organizations)s - 1) AS n
    """,
    """
    INSERT INTO project_accounts (organization_id, project_id)
    SELECT pg_temp.id_of('organization', n), pg_temp.id_of('project', n)
    FROM generate_series(0, %(organizations)s - 1) AS n
    """,
)
_KEYS: LiteralString = """
    INSERT INTO project_keys (organization_id, id, project_id, name, digest, redacted_value,
        permissions, created_at)
    SELECT pg_temp.id_of('organization', number %% %(organizations)s),
        pg_temp.id_of('key', number), pg_temp.id_of('project', number %% %(organizations)s),
        'bench', digest, 'tkp_0000...', %(permissions)s, now()
    FROM digests
"""
_POLICIES: tuple[LiteralString, ...] = (
    """
    INSERT INTO policies (organization_id, id, name, description, state, revision, created_at,
        updated_at, base_version, rule, direction, mode, scope, project_ids, threshold,
        current_version)
    SELECT pg_temp.id_of('organization', n %% %(policy_organizations)s),
        'pol_' || pg_temp.id_of('policy', n), 'bench ' || n, '', 'enforcing', 1, now(), now(), 1,
        'Does it say ' || n || '?', 'both', 'enforcing', 'projects',
        ARRAY[pg_temp.id_of('another project', n)], 5000, 1
    FROM generate_series(0, %(policies)s - 1) AS n
    """,
    """
    INSERT INTO policy_versions (organization_id, policy_id, version, id, name, rule, direction,
        mode, scope, project_ids, threshold, published_at)
    SELECT organization_id, id, 1, 'ver_' || id, name, rule, direction, mode, scope, project_ids,
        threshold, now()
    FROM policies
    """,
    """
    UPDATE accounts SET epoch = 1
    WHERE organization_id IN (SELECT DISTINCT organization_id FROM policies)
    """,
)
# All calls are of today, so that they are in the partitions that the load writes to.
_SETTLED: tuple[LiteralString, ...] = (
    """
    INSERT INTO reservations (organization_id, id, project_id, api_key_id, process_id, model, hold,
        price_prompt, price_completion, price_image, price_request, price_cache_read,
        prompt_tokens_max, choices, output_tokens_max, images, month, held_at)
    SELECT pg_temp.id_of('organization', n %% 100),
        (lpad(to_hex(at_ms), 12, '0') || '7' || left(hash, 3) || '8' || substr(hash, 5, 15))::uuid,
        pg_temp.id_of('project', n %% 100), pg_temp.id_of('key', n %% 100), md5('process')::uuid,
        'bench/bench', 3, 1, 1, 0, 0, 0, 1, 1, 2, 0,
        to_char(now() AT TIME ZONE 'UTC', 'YYYYMM')::integer, to_timestamp(at_ms / 1000.0)
    FROM (SELECT n, md5('call' || n) AS hash,
              (extract(epoch FROM now()) * 1000)::bigint
                  - n * span_ms / greatest(%(settled)s, 1) AS at_ms
          FROM generate_series(0, %(settled)s - 1) AS n,
              -- The last hour, as far as it is of this day.
              least(3600000, (extract(epoch FROM now())::bigint %% 86400) * 1000) AS span_ms) AS made
    """,
    """
    INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released, prompt,
        completion, input_cache_read, image, request, other, estimated, resolved_by, day,
        resolved_at)
    SELECT organization_id, id, 'settled', 3, 3, 0, 1, 2, 0, 0, 0, 0, false, 'call',
        floor(extract(epoch FROM held_at) / 86400)::integer, held_at
    FROM reservations
    """,
    """
    INSERT INTO cost_rollup (organization_id, day, project_id, api_key_id, line_item,
        amount_picousd)
    SELECT d.organization_id, d.day, r.project_id, r.api_key_id, 'bench/bench, ' || item,
        sum(amount)
    FROM resolutions d JOIN reservations r
      ON r.organization_id = d.organization_id AND r.id = d.reservation_id,
    LATERAL (VALUES ('prompt', d.prompt), ('completion', d.completion)) AS line (item, amount)
    GROUP BY 1, 2, 3, 4, 5
    """,
    """
    INSERT INTO activity (organization_id, request_id, started_at, project_id, api_key_id,
        operation, model, streamed, duration_ms, status, finish, prompt_tokens, completion_tokens,
        cached_tokens, reasoning_tokens, estimated, hold, cost, settlement, backend, replica)
    SELECT organization_id, id, held_at, project_id, api_key_id, 'chat_completion', model, false, 20,
        200, 'stop', 180, 64, 0, 0, false, 3, 3, 'settled', 'bench', 'http://127.0.0.1/v1'
    FROM reservations
    """,
    """
    INSERT INTO traffic (organization_id, steps, step, project_id, api_key_id, model, backend,
        replica, status, requests, repeated, prompt_tokens, completion_tokens, cached_tokens,
        duration_ms, first_pieces, first_piece_ms, streamed_tokens, streaming_ms, cost_max)
    SELECT organization_id, 1, floor(extract(epoch FROM started_at) / 300)::integer, project_id,
        api_key_id, model, '', '', status, count(*), 0, sum(prompt_tokens), sum(completion_tokens), 0,
        sum(duration_ms), 0, 0, 0, 0, max(cost)
    FROM activity GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
    """,
    """
    WITH spent AS (SELECT organization_id, 3 * count(*) AS settled FROM resolutions GROUP BY 1)
    UPDATE accounts a SET settled = s.settled, available = available - s.settled
    FROM spent s WHERE a.organization_id = s.organization_id
    """,
    """
    WITH spent AS (SELECT organization_id, 3 * count(*) AS settled FROM resolutions GROUP BY 1)
    UPDATE project_accounts a SET settled = s.settled
    FROM spent s WHERE a.organization_id = s.organization_id
    """,
)
