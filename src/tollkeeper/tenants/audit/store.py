"""The SQL of audit entries: one for every change by an operator or an admin key."""

from typing import Any, LiteralString
from uuid import UUID

import msgspec

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection
from tollkeeper.tenants.audit.rule import Actor, ActorKind, AuditEntry, Change, ObjectState

# UUIDs with dashes, and policies' ids with their prefix.
_WHOLE_ID_LENGTH = 36
# For changes of the whole installation: it's in the primary key, so not null. No organization has
# this id.
_INSTALLATION = UUID(int=0)


async def insert(connection: Connection, actor: Actor, change: Change) -> None:
    await connection.execute(
        """
        INSERT INTO audit (organization_id, actor_kind, actor, operation, object_kind, object_id,
                           before, after)
        VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s::jsonb)
        """,
        (
            change.organization_id or _INSTALLATION,
            actor.kind,
            actor.name,
            change.operation,
            change.object_kind,
            change.object_id,
            _encoded(change.before),
            _encoded(change.after),
        ),
    )


async def delete_before(connection: Connection, unix_s: int, *, days: int, limit: int) -> int:
    """Oldest first. By both the gateway's clock (`unix_s`) and the database's, so one that runs
    ahead doesn't delete too early. Skips what another process is deleting. Returns the number."""
    cursor = await connection.execute(_DELETE_BEFORE, {"now": unix_s, "days": days, "limit": limit})
    return cursor.rowcount


_DELETE_BEFORE: LiteralString = """
    DELETE FROM audit USING (
        SELECT organization_id, id FROM audit
        WHERE at < least(to_timestamp(%(now)s), statement_timestamp()) - make_interval(days => %(days)s)
        ORDER BY at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) old WHERE audit.organization_id = old.organization_id AND audit.id = old.id
"""
_FIND_PAGE: LiteralString = """
    SELECT id, extract(epoch FROM at)::bigint, actor_kind, actor, organization_id, operation,
           object_kind, object_id, before, after
    FROM audit
"""


async def find_page(
    connection: Connection,
    *,
    organization_id: OrganizationId | None,
    object_id: str | None,
    actor: str | None,
    since: int | None,
    until: int | None,
    before_id: int | None,
    limit: int,
) -> list[AuditEntry]:
    """Newest first. `before_id` is the previous page's last."""
    filters: list[LiteralString] = []
    parameters: list[object] = []
    if organization_id is not None:
        filters.append("organization_id = %s")
        parameters.append(organization_id)
    if object_id is not None:
        # An index finds a whole id; a beginning is compared with all rows.
        is_whole_id = len(object_id) >= _WHOLE_ID_LENGTH
        filters.append("object_id = %s" if is_whole_id else "starts_with(object_id, %s)")
        parameters.append(object_id)
    if actor is not None:
        # The text of `str(Actor)`, as lists show it. All rows are compared: part of a name is
        # enough.
        filters.append("strpos(lower(actor_kind || ':' || actor), lower(%s)) > 0")
        parameters.append(actor)
    if since is not None:
        filters.append("at >= to_timestamp(%s)")
        parameters.append(since)
    if until is not None:
        filters.append("at < to_timestamp(%s)")
        parameters.append(until)
    if before_id is not None:
        filters.append("id < %s")
        parameters.append(before_id)
    where: LiteralString = f"WHERE {' AND '.join(filters)}" if filters else ""
    cursor = await connection.execute(
        f"{_FIND_PAGE} {where} ORDER BY id DESC LIMIT %s", (*parameters, limit)
    )
    return [_entry(row) for row in await cursor.fetchall()]


def _encoded(state: ObjectState | None) -> str | None:
    return None if state is None else msgspec.json.encode(state).decode()


def _entry(row: tuple[Any, ...]) -> AuditEntry:
    identity, at, kind, actor, organization_id, *change = row
    if organization_id == _INSTALLATION:
        organization_id = None
    return AuditEntry(identity, at, Actor(ActorKind(kind), actor), Change(organization_id, *change))
