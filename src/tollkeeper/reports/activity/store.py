"""Activity records and verdicts: written in batches, read together with the call's ledger rows."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, LiteralString
from uuid import UUID

import msgspec
from psycopg import errors as pg

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.activity import ActivityRecord, VerdictRecord
from tollkeeper.core.usage import Usage
from tollkeeper.core.views import ActivityEntry
from tollkeeper.database.database import Connection, Contention, RoundTrips
from tollkeeper.database.round_trips import Statement
from tollkeeper.money.holds.statements import COMMIT_ASYNCHRONOUSLY
from tollkeeper.reports.rollups import ROLL_UP_ACTIVITY, ROLL_UP_VERDICTS

_verdicts = attrgetter("verdicts")
_encode = msgspec.json.Encoder().encode
# As escaped in JSON.
_NUL = b"\\u0000"


async def insert(trips: RoundTrips, records: Sequence[ActivityRecord]) -> None:
    """One transaction whose commit doesn't wait for the disk. Skips existing rows: a batch is
    written again if its commit's answer was lost."""
    document = _json_document(records)
    statements = [COMMIT_ASYNCHRONOUSLY, _INSERT.bind_texts(document)]
    if any(map(_verdicts, records)):
        statements.append(_INSERT_VERDICTS.bind_texts(document))
    try:
        try:
            await trips.run(*statements)
        except pg.UniqueViolation:
            # Nothing of this attempt was written, so nothing is counted twice.
            statements[1] = _INSERT_MISSING.bind_texts(document)
            await trips.run(*statements)
    except pg.CheckViolation as exc:
        if exc.diag.constraint_name is None:
            # The day's partition was created while we inserted into the default one. The next
            # attempt finds it.
            raise Contention from exc
        raise


# Backends' text has no size limit, so 512 characters are stored of each, and usage reports only up
# to 8192 bytes. Counts that are mostly zero are NULL then, which takes no space.
_INSERT_FRESH: LiteralString = """
    WITH fresh AS (
    INSERT INTO activity (organization_id, request_id, project_id, api_key_id, operation, model,
        streamed, duration_ms, first_piece_ms, status, error_code, finish, prompt_tokens,
        completion_tokens, cached_tokens, reasoning_tokens, cache_write_tokens, web_searches,
        input_audio_tokens, output_audio_tokens, service_tier, estimated, hold, cost, settlement,
        backend, replica, reported_usage, reported_cost, dispatched_ms, upstream_ms, overhead_us,
        error_param, error_message, requests, started_at)
    SELECT v.organization_id, v.request_id, v.project_id, v.key_id, v.operation,
        left(v.model, 512), v.streamed, v.duration_us / 1000, v.first_piece_us / 1000, v.status,
        left(v.error_code, 512), left(v.finish, 512), v.prompt_tokens, v.completion_tokens,
        v.cached_tokens, v.reasoning_tokens,
        nullif(v.cache_write_tokens + v.cache_write_1h_tokens, 0), nullif(v.web_searches, 0),
        nullif(v.input_audio_tokens, 0), nullif(v.output_audio_tokens, 0),
        left(v.service_tier, 512), v.estimated,
        v.hold_picousd, v.cost_picousd, v.settlement, v.backend, v.replica,
        CASE WHEN octet_length(v.reported_usage::text) <= 8192 THEN v.reported_usage::jsonb END,
        v.reported_cost_picousd, v.dispatched_us / 1000, v.upstream_us / 1000, v.overhead_us,
        left(v.error_param, 512), left(v.error_message, 512), coalesce(v.requests, 1),
        to_timestamp(v.started_at_ms / 1000.0)
    FROM json_to_recordset(%s::json) AS v (organization_id uuid, request_id uuid, project_id uuid,
        key_id uuid, operation text, model text, streamed boolean, duration_us bigint,
        first_piece_us bigint, status integer, error_code text, finish text, prompt_tokens bigint,
        completion_tokens bigint, cached_tokens bigint, reasoning_tokens bigint,
        cache_write_tokens bigint, cache_write_1h_tokens bigint, web_searches bigint, input_audio_tokens bigint,
        output_audio_tokens bigint, service_tier text, estimated boolean, hold_picousd numeric,
        cost_picousd numeric, settlement text, backend text, replica text, reported_usage json,
        reported_cost_picousd numeric, dispatched_us bigint, upstream_us bigint,
        overhead_us bigint, error_param text, error_message text, requests bigint, started_at_ms bigint)
    """
_INSERT = Statement(
    "tollkeeper_insert_activity",
    _INSERT_FRESH + "RETURNING *)" + ROLL_UP_ACTIVITY,
    returns_rows=False,
)
# ON CONFLICT is slower and writes 48 bytes of log more per row, so only if one of them exists.
_INSERT_MISSING = Statement(
    "tollkeeper_insert_missing_activity",
    _INSERT_FRESH + "ON CONFLICT DO NOTHING RETURNING *)" + ROLL_UP_ACTIVITY,
    returns_rows=False,
)
_INSERT_VERDICTS = Statement(
    "tollkeeper_insert_verdicts",
    """
    WITH fresh AS (
    INSERT INTO policy_verdicts (organization_id, request_id, policy_id, version, direction, mode,
        probability_basis_points, threshold, matched, duration_ms, judged_at, unread,
        first_basis_points, started_at)
    SELECT r.organization_id, r.request_id, v.policy_id, v.version, v.direction, v.mode,
        v.probability_basis_points, v.threshold_basis_points, v.matched, v.duration_ms,
        to_timestamp(v.judged_at_ms / 1000.0), v.unread, v.first_basis_points,
        to_timestamp(r.started_at_ms / 1000.0)
    FROM json_to_recordset(%s::json) AS r (organization_id uuid, request_id uuid,
        started_at_ms bigint, verdicts json),
    json_to_recordset(r.verdicts) AS v (policy_id text,
        version integer, direction text, mode text, probability_basis_points integer,
        threshold_basis_points integer, matched boolean, duration_ms bigint, judged_at_ms bigint,
        unread text[], first_basis_points integer)
    ON CONFLICT DO NOTHING RETURNING *
    )
    """
    + ROLL_UP_VERDICTS,
    returns_rows=False,
)


async def find(connection: Connection, request_id: UUID) -> ActivityEntry | None:
    """Without knowing its organization or day: one index lookup for each of them. None if neither
    activity nor the ledger has the call."""
    cursor = await connection.execute(_FIND, {"request": request_id})
    row = await cursor.fetchone()
    return None if row is None else entry_of_row(row)


async def find_newest(
    connection: Connection,
    *,
    organization_id: OrganizationId | None,
    project_id: ProjectId | None,
    status: int | None,
    limit: int,
) -> list[ActivityEntry]:
    """Only has the filters that aren't None, so each combination gets its own query plan."""
    values = {"organization_id": organization_id, "project_id": project_id, "status": status}
    filters: LiteralString = " AND ".join(
        _FILTERS[column] for column, value in values.items() if value is not None
    )
    cursor = await connection.execute(
        _FIND_NEWEST.format(filters=filters or "true"), {**values, "limit": limit}
    )
    return [entry_of_row(row) for row in await cursor.fetchall()]


_FILTERS: dict[str, LiteralString] = {
    "organization_id": "organization_id = %(organization_id)s",
    "project_id": "project_id = %(project_id)s",
    "status": "status = %(status)s",
}
# The ledger goes first: an unsettled call may have been resolved after its record was written.
_SELECT: LiteralString = """
    SELECT coalesce(a.request_id, r.id), coalesce(a.organization_id, r.organization_id),
        coalesce(a.project_id, r.project_id), coalesce(a.api_key_id, r.api_key_id),
        coalesce(a.model, r.model),
        (extract(epoch FROM coalesce(a.started_at, r.held_at)) * 1000)::bigint, a.operation,
        a.streamed, a.duration_ms, a.first_piece_ms, a.status, a.error_code, a.finish,
        a.prompt_tokens, a.completion_tokens, a.cached_tokens, a.reasoning_tokens,
        a.cache_write_tokens, a.web_searches, a.input_audio_tokens, a.output_audio_tokens,
        a.service_tier,
        coalesce(d.estimated, a.estimated, false), coalesce(r.hold, a.hold),
        CASE WHEN r.id IS NULL THEN a.cost ELSE d.settled + coalesce(o.amount, 0) END,
        CASE WHEN r.id IS NULL THEN a.settlement WHEN d.kind IS NOT NULL THEN d.kind
             WHEN m.reason IS NOT NULL THEN 'unsettled' ELSE 'held' END,
        CASE WHEN d.kind IS NULL THEN m.reason END, a.backend, a.replica, a.reported_usage,
        a.reported_cost,
        coalesce(v.verdicts, '[]'), a.dispatched_ms, a.upstream_ms, a.overhead_us,
        coalesce(a.requests, 1), a.error_param, a.error_message
"""
# Policies judge a call while it runs or soon after. The limits avoid other days' partitions.
_VERDICTS: LiteralString = """
    LEFT JOIN LATERAL (
        SELECT jsonb_agg(jsonb_build_object('policy_id', policy_id, 'version', version,
            'direction', direction, 'mode', mode, 'probability_basis_points',
            probability_basis_points, 'threshold_basis_points', threshold, 'matched', matched,
            'duration_ms', duration_ms, 'unread', unread, 'first_basis_points', first_basis_points,
            'judged_at_ms',
            (extract(epoch FROM judged_at) * 1000)::bigint) ORDER BY judged_at, policy_id, direction
        ) AS verdicts
        FROM policy_verdicts WHERE organization_id = a.organization_id
          AND request_id = a.request_id AND judged_at >= a.started_at - interval '1 hour'
          AND judged_at < a.started_at + interval '1 day'
    ) v ON true
"""
_LEDGER: LiteralString = """
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
"""
_FIND: LiteralString = (
    """
    WITH recorded AS (
        SELECT a.* FROM organizations g CROSS JOIN LATERAL (
            SELECT * FROM activity WHERE organization_id = g.id AND request_id = %(request)s LIMIT 1
        ) a
    ), reserved AS (
        SELECT r.* FROM organizations g CROSS JOIN LATERAL (
            SELECT * FROM reservations WHERE organization_id = g.id AND id = %(request)s LIMIT 1
        ) r
    )
    """
    + _SELECT
    + """
    FROM recorded a FULL JOIN reserved r
      ON r.organization_id = a.organization_id AND r.id = a.request_id
    """
    + _LEDGER
    + _VERDICTS
)


def select_entries(
    records: LiteralString,
    *,
    further_columns: LiteralString = "",
    order: LiteralString = "a.started_at DESC, a.request_id DESC",
) -> LiteralString:
    """Reads the subquery `records` (named `a`) with their ledger rows, newest first by default.
    `further_columns` follow those that `entry_of_row` reads."""
    return (
        _SELECT
        + further_columns
        + " FROM ("
        + records
        + """
        ) a
        LEFT JOIN reservations r ON r.organization_id = a.organization_id AND r.id = a.request_id
        """
        + _LEDGER
        + _VERDICTS
        + "ORDER BY "
        + order
    )


_FIND_NEWEST: LiteralString = select_entries(
    "SELECT * FROM activity WHERE {filters} ORDER BY started_at DESC LIMIT %(limit)s"
)


def _json_document(records: Sequence[ActivityRecord]) -> bytes:
    """PostgreSQL rejects NUL, the encoder lone surrogates. Both are rare, so texts are only cleaned
    if the batch has one."""
    try:
        document = _encode(records)
    except UnicodeEncodeError:
        document = _NUL  # so that the next statement cleans the records
    if _NUL in document:
        document = _encode([_without_unstorable_text(record) for record in records])
    return document


def _without_unstorable_text(record: ActivityRecord) -> ActivityRecord:
    """Also drops a usage report with such characters. Otherwise one would keep the whole batch from
    being stored."""
    changed: dict[str, Any] = {
        name: value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
        for name, value in msgspec.structs.asdict(record).items()
        if isinstance(value, str)
    }
    try:
        if _NUL in _encode(record.reported_usage):
            changed["reported_usage"] = None
    except UnicodeEncodeError:
        changed["reported_usage"] = None
    return msgspec.structs.replace(record, **changed)


def entry_of_row(row: tuple[Any, ...]) -> ActivityEntry:
    usage = None
    if row[13] is not None:
        prompt, completion, cached, reasoning, cache_write, searches, *audio, tier = row[13:22]
        usage = Usage(
            *(prompt, completion, cached, reasoning),
            cache_write_tokens=cache_write or 0,
            web_searches=searches or 0,
            input_audio_tokens=audio[0] or 0,
            output_audio_tokens=audio[1] or 0,
            service_tier=tier,
        )
    verdicts = msgspec.convert(row[31], tuple[VerdictRecord, ...])
    return ActivityEntry(*(*row[:13], usage, *row[22:31], verdicts, *row[32:]))
