"""SQL of everything that the ledger knows of one call: how its hold was computed and how it ended."""

from typing import Any, LiteralString
from uuid import UUID

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.views import CallLedger, HoldTerms, ResolutionEntry, UnsettledMark
from tollkeeper.storage.database import Connection

COST_DIMENSIONS = (
    "prompt",
    "completion",
    "input_cache_read",
    "input_cache_write",
    "input_audio",
    "output_audio",
    "output_image",
    "image",
    "request",
    "web_search",
    "verdict",
    "other",
)


async def find(
    connection: Connection, organization_id: OrganizationId, request_id: UUID
) -> CallLedger | None:
    cursor = await connection.execute(_FIND, (organization_id, request_id))
    row = await cursor.fetchone()
    return None if row is None else _ledger(row)


_FIND: LiteralString = """
    SELECT (extract(epoch FROM r.held_at) * 1000)::bigint, r.hold, r.price_prompt,
        r.price_completion, r.price_image, r.price_request, r.price_cache_read,
        r.price_cache_write, r.price_cache_write_1h, r.price_web_search, r.prompt_tokens_max,
        r.choices, r.output_tokens_max, r.images, r.web_searches, r.price_input_audio,
        r.price_output_audio, r.input_audio_tokens_max, r.output_audio_tokens_max,
        coalesce(r.price_verdict, 0), coalesce(r.verdicts_max, 0),
        m.reason, (extract(epoch FROM m.marked_at) * 1000)::bigint,
        d.kind, (extract(epoch FROM d.resolved_at) * 1000)::bigint, d.resolved_by, d.settled,
        d.released, coalesce(o.amount, 0), d.estimated, d.prompt, d.completion,
        d.input_cache_read, d.input_cache_write, d.input_audio, d.output_audio,
        d.output_image, d.image, d.request, d.web_search, d.verdict, d.other
    FROM reservations r
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
    WHERE r.organization_id = %s AND r.id = %s
"""


def _ledger(row: tuple[Any, ...]) -> CallLedger:
    terms, (reason, marked_at_ms) = row[:21], row[21:23]
    kind, resolved_at_ms, resolved_by, settled, released, overage, estimated = row[23:30]
    resolution = ResolutionEntry(
        kind=kind,
        resolved_at_ms=resolved_at_ms,
        resolved_by=resolved_by,
        settled_picousd=settled,
        released_picousd=released,
        overage_picousd=overage,
        estimated=estimated,
        cost_by_dimension=dict(zip(COST_DIMENSIONS, row[30:], strict=True)),
    )
    return CallLedger(
        HoldTerms(*terms),
        None if reason is None else UnsettledMark(reason, marked_at_ms),
        None if kind is None else resolution,
    )
