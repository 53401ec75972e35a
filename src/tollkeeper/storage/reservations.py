"""SQL of reservations with their status, for operators."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, LiteralString
from uuid import UUID

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.storage.database import Connection


class ReservationStatus(StrEnum):
    HELD = "held"
    UNSETTLED = "unsettled"
    SETTLED = "settled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class ReservationEntry:
    organization_id: OrganizationId
    id: UUID
    project_id: ProjectId
    key_id: KeyId
    model: str
    hold_picousd: int
    held_at: int
    status: ReservationStatus
    # Why the cost is not known; None where the reservation was never unsettled.
    reason: str | None
    # The cost with overage; None before the reservation is resolved.
    cost_picousd: int | None
    resolved_by: str | None


_COLUMNS: LiteralString = """
    SELECT r.organization_id, r.id, r.project_id, r.api_key_id, r.model, r.hold,
        extract(epoch FROM r.held_at)::bigint,
        CASE WHEN d.kind IS NOT NULL THEN d.kind
             WHEN m.reason IS NOT NULL THEN 'unsettled' ELSE 'held' END,
        m.reason, d.settled + coalesce(o.amount, 0), d.resolved_by
"""
_JOIN_RESOLUTIONS: LiteralString = """
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
"""


async def find(connection: Connection, reservation_id: UUID) -> ReservationEntry | None:
    """Finds a reservation by its id alone: one index lookup for each organization."""
    cursor = await connection.execute(_FIND, (reservation_id,))
    row = await cursor.fetchone()
    return None if row is None else _entry(row)


_FIND: LiteralString = (
    _COLUMNS  # noqa: S608
    + """
    FROM organizations g CROSS JOIN LATERAL (
        SELECT * FROM reservations WHERE organization_id = g.id AND id = %s LIMIT 1
    ) r
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    """
    + _JOIN_RESOLUTIONS
)


async def find_unsettled(connection: Connection, *, limit: int) -> list[ReservationEntry]:
    """Oldest first. The query begins with the marks, which are few however many reservations
    there are."""
    cursor = await connection.execute(_FIND_UNSETTLED, (limit,))
    return [_entry(row) for row in await cursor.fetchall()]


_FIND_UNSETTLED: LiteralString = (
    _COLUMNS
    + """
    FROM unsettled_marks m
    JOIN reservations r ON r.organization_id = m.organization_id AND r.id = m.reservation_id
    """
    + _JOIN_RESOLUTIONS
    + "WHERE d.kind IS NULL ORDER BY r.held_at, r.id LIMIT %s"
)


def _entry(row: tuple[Any, ...]) -> ReservationEntry:
    organization_id, identity, project_id, key_id, model, hold, held_at, status, *end = row
    return ReservationEntry(
        organization_id,
        identity,
        project_id,
        key_id,
        model,
        hold,
        held_at,
        ReservationStatus(status),
        *end,
    )
