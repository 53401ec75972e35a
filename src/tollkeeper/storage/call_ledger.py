"""Contains the SQL that reads all ledger data about one call: how its hold was computed, and how the
hold was resolved."""

from typing import Any, LiteralString
from uuid import UUID

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.pricing import LINE_ITEMS
from tollkeeper.domain.views import CallLedger, HoldTerms, ResolutionEntry, UnsettledMark
from tollkeeper.storage.database import Connection
from tollkeeper.storage.price_columns import PRICE_COLUMNS, line_items, prices


async def find(
    connection: Connection, organization_id: OrganizationId, request_id: UUID
) -> CallLedger | None:
    cursor = await connection.execute(_FIND, (organization_id, request_id))
    row = await cursor.fetchone()
    return None if row is None else _ledger(row)


_FIND: LiteralString = (
    """
    SELECT (extract(epoch FROM r.held_at) * 1000)::bigint, r.hold, r.prompt_tokens_max, r.choices,
        r.output_tokens_max, r.images, r.web_searches, r.input_audio_tokens_max,
        r.output_audio_tokens_max,
        m.reason, (extract(epoch FROM m.marked_at) * 1000)::bigint,
        d.kind, (extract(epoch FROM d.resolved_at) * 1000)::bigint, d.resolved_by, d.settled,
        d.released, coalesce(o.amount, 0), d.estimated, """
    + prices("r.")
    + ", "
    + line_items("d.")
    + """
    FROM reservations r
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
    WHERE r.organization_id = %s AND r.id = %s
    """
)


def _ledger(row: tuple[Any, ...]) -> CallLedger:
    (*terms, reason, marked_at_ms), ending, amounts = row[:11], row[11:18], row[18:]
    prices_of_hold = dict(zip(PRICE_COLUMNS.values(), amounts, strict=False))
    cost = dict(zip(LINE_ITEMS, amounts[len(PRICE_COLUMNS) :], strict=True))
    return CallLedger(
        HoldTerms(prices_of_hold, *terms),
        None if reason is None else UnsettledMark(reason, marked_at_ms),
        None if ending[0] is None else ResolutionEntry(cost, *ending),
    )
