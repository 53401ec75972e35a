"""Reservations with their status, for operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, LiteralString
from uuid import UUID

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.months import FIRST_ID
from tollkeeper.core.pricing import LINE_ITEMS
from tollkeeper.core.views import (
    CallLedger,
    HoldTerms,
    ReservationEntry,
    ReservationStatus,
    ResolutionEntry,
    UnsettledMark,
)
from tollkeeper.database.database import Connection
from tollkeeper.database.planning import PREFER_INDEX_LOOKUPS_IN_TRANSACTION
from tollkeeper.money.holds.price_columns import PRICE_COLUMNS, line_items, prices

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
    """Without knowing its organization: one index lookup for each."""
    cursor = await connection.execute(_FIND, (reservation_id,))
    row = await cursor.fetchone()
    return None if row is None else _entry(row)


_FIND: LiteralString = (
    _COLUMNS
    + """
    FROM organizations g CROSS JOIN LATERAL (
        SELECT * FROM reservations WHERE organization_id = g.id AND id = %s LIMIT 1
    ) r
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    """
    + _JOIN_RESOLUTIONS
)


async def find_unsettled(
    connection: Connection, models: tuple[str, ...] | None, *, limit: int
) -> list[ReservationEntry]:
    """Oldest first; None means any model. Marks first: there are far fewer of them."""
    cursor = await connection.execute(
        _FIND_UNSETTLED,
        {"models": None if models is None else list(models), "limit": limit},
        prepare=False,
    )
    return [_entry(row) for row in await cursor.fetchall()]


_FIND_UNSETTLED: LiteralString = (
    _COLUMNS
    + """
    FROM unsettled_marks m
    JOIN reservations r ON r.organization_id = m.organization_id AND r.id = m.reservation_id
    """
    + _JOIN_RESOLUTIONS
    + """
    WHERE d.kind IS NULL AND (%(models)s::text[] IS NULL OR r.model = ANY (%(models)s))
    ORDER BY r.held_at, r.id LIMIT %(limit)s
    """
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


class MonthState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class CallKey:
    organization_id: OrganizationId
    id: UUID
    project_id: ProjectId
    key_id: KeyId


@dataclass(frozen=True, slots=True)
class CallState:
    month: MonthState
    # It exists and belongs to the project and the organization.
    has_key: bool
    # None if the ledger has none.
    status: ReservationStatus | None
    # With overage; None before it's resolved.
    cost_picousd: int | None


async def find_states(connection: Connection, calls: Sequence[CallKey]) -> dict[UUID, CallState]:
    """By id. In a transaction, whose settings it changes."""
    await connection.execute(PREFER_INDEX_LOOKUPS_IN_TRANSACTION)
    ids = [call.id for call in calls]
    cursor = await connection.execute(
        _FIND_STATES,
        {
            "organizations": [call.organization_id for call in calls],
            "ids": ids,
            "projects": [call.project_id for call in calls],
            "keys": [call.key_id for call in calls],
            "first": min(ids, default=FIRST_ID),
            "last": max(ids, default=FIRST_ID),
        },
        prepare=False,
    )
    return {
        row[0]: CallState(
            MonthState(row[1]),
            row[2],
            None if row[3] is None else ReservationStatus(row[3]),
            row[4],
        )
        for row in await cursor.fetchall()
    }


# `first` and `last` id, so PostgreSQL doesn't open other months' partitions.
_FIND_STATES: LiteralString = """
    SELECT w.id,
        CASE WHEN EXISTS (SELECT FROM ledger_close_steps
                          WHERE month = ledger_month(w.id) AND step = 'dropped') THEN 'dropped'
             WHEN EXISTS (SELECT FROM ledger_closes WHERE month = ledger_month(w.id)) THEN 'closed'
             ELSE 'open' END,
        k.id IS NOT NULL,
        CASE WHEN d.kind IS NOT NULL THEN d.kind
             WHEN m.reason IS NOT NULL THEN 'unsettled' WHEN r.id IS NOT NULL THEN 'held' END,
        d.settled + coalesce(o.amount, 0)
    FROM unnest(%(organizations)s::uuid[], %(ids)s::uuid[], %(projects)s::uuid[], %(keys)s::uuid[])
        AS w (organization_id, id, project_id, api_key_id)
    LEFT JOIN project_keys k ON k.organization_id = w.organization_id AND k.id = w.api_key_id
        AND k.project_id = w.project_id
    LEFT JOIN reservations r ON r.organization_id = w.organization_id AND r.id = w.id
        AND r.id BETWEEN %(first)s AND %(last)s
    LEFT JOIN unsettled_marks m ON m.organization_id = w.organization_id
        AND m.reservation_id = w.id
    LEFT JOIN resolutions d ON d.organization_id = w.organization_id AND d.reservation_id = w.id
        AND d.reservation_id BETWEEN %(first)s AND %(last)s
    LEFT JOIN overages o ON o.organization_id = w.organization_id AND o.reservation_id = w.id
        AND o.reservation_id BETWEEN %(first)s AND %(last)s
"""


async def find_call(
    connection: Connection, organization_id: OrganizationId, request_id: UUID
) -> CallLedger | None:
    cursor = await connection.execute(_FIND_CALL, (organization_id, request_id))
    row = await cursor.fetchone()
    return None if row is None else _ledger(row)


_FIND_CALL: LiteralString = (
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
