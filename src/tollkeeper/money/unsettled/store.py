"""Selects many unsettled reservations. Marks come first: they're few, and a call in flight has
none, so it's never selected."""

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.views import ReasonTotal
from tollkeeper.database.database import Connection


@dataclass(frozen=True, slots=True)
class UnsettledSelection:
    # By the server's time; None for any.
    marked_before: datetime | None
    organization_id: OrganizationId | None = None
    # None for any.
    models: tuple[str, ...] | None = None


ALL_UNSETTLED = UnsettledSelection(marked_before=None)


@dataclass(frozen=True, slots=True, order=True)
class UnsettledKey:
    """Pages are in its order, each after the previous page's last."""

    organization_id: OrganizationId
    id: UUID


FIRST_KEY = UnsettledKey(OrganizationId(UUID(int=0)), UUID(int=0))


async def total_by_reason(
    connection: Connection, selection: UnsettledSelection
) -> list[ReasonTotal]:
    cursor = await connection.execute(_TOTAL_BY_REASON, _parameters(selection), prepare=False)
    return [ReasonTotal(*row) for row in await cursor.fetchall()]


async def find_page(
    connection: Connection, selection: UnsettledSelection, after: UnsettledKey, limit: int
) -> list[tuple[UnsettledKey, int]]:
    cursor = await connection.execute(
        _FIND_PAGE,
        {
            **_parameters(selection),
            "after_organization": after.organization_id,
            "after": after.id,
            "limit": limit,
        },
        prepare=False,
    )
    return [(UnsettledKey(row[0], row[1]), row[2]) for row in await cursor.fetchall()]


def _parameters(selection: UnsettledSelection) -> dict[str, object]:
    return {
        "marked_before": selection.marked_before,
        "organization": selection.organization_id,
        "models": None if selection.models is None else list(selection.models),
    }


_SELECTED: LiteralString = """
    FROM unsettled_marks m
    JOIN reservations r ON r.organization_id = m.organization_id AND r.id = m.reservation_id
    WHERE (%(marked_before)s::timestamptz IS NULL OR m.marked_at < %(marked_before)s)
      AND (%(organization)s::uuid IS NULL OR m.organization_id = %(organization)s)
      AND (%(models)s::text[] IS NULL OR r.model = ANY (%(models)s))
      AND NOT EXISTS (SELECT FROM resolutions d
          WHERE d.organization_id = m.organization_id AND d.reservation_id = m.reservation_id)
"""
_TOTAL: LiteralString = """
    SELECT m.reason, count(*), sum(r.hold),
        extract(epoch FROM clock_timestamp() - min(m.marked_at))::bigint
"""
_TOTAL_BY_REASON: LiteralString = (
    _TOTAL + _SELECTED + "GROUP BY m.reason ORDER BY count(*) DESC, m.reason"
)
_FIND_PAGE: LiteralString = (
    "SELECT m.organization_id, m.reservation_id, r.hold"
    + _SELECTED
    + """
      AND (m.organization_id, m.reservation_id) > (%(after_organization)s, %(after)s)
    ORDER BY m.organization_id, m.reservation_id LIMIT %(limit)s
    """
)
