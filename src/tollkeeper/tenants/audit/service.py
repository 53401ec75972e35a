"""Writes an audit entry for each change, in the change's transaction. The actor is in a context
variable, set once by the command line, and per request by the console and the API."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.runtime.late_log import LateLogger
from tollkeeper.database.database import Connection, Database
from tollkeeper.tenants.audit import store as audit
from tollkeeper.tenants.audit.rule import Actor, ActorKind, AuditEntry, Change, ObjectState

AUDIT_PAGE_MAX = 1000
# `delete_old` deletes this many per transaction, in at most `_DELETIONS_MAX` of them.
_DELETED_AT_ONCE = 1000
_DELETIONS_MAX = 100
_log = LateLogger("tollkeeper.audit")
SYSTEM: Final = Actor(ActorKind.SYSTEM, "tollkeeper")
_actor: ContextVar[Actor] = ContextVar("tollkeeper_actor", default=SYSTEM)


def act_as(actor: Actor) -> None:
    """For all later changes of the current task."""
    _actor.set(actor)


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


async def record_change(
    connection: Connection,
    organization_id: OrganizationId | None,
    operation: str,
    object_kind: str,
    object_id: object,
    *,
    before: object = None,
    after: object = None,
    only_differing: bool = False,
) -> None:
    """In the transaction of `connection`. No organization means the whole installation. `before`
    and `after` are domain objects or mappings without secrets. `only_differing` omits equal fields,
    which saves space for large objects: entries stay for years."""
    old, new = _state(before), _state(after)
    if only_differing and old is not None and new is not None:
        old, new = differing(old, new), differing(new, old)
    change = Change(organization_id, operation, object_kind, str(object_id), old, new)
    await audit.insert(connection, _actor.get(), change)


def differing(state: ObjectState, other: ObjectState) -> ObjectState:
    """Compares nested mappings field by field."""
    found: dict[str, object] = {}
    for name, value in state.items():
        other_value = other.get(name)
        if value == other_value and name in other:
            continue
        if isinstance(value, dict) and isinstance(other_value, dict):
            found[name] = differing(value, other_value)
        else:
            found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class AuditPage:
    entries: list[AuditEntry]
    # The `before_id` for the next page.
    next_before: int | None


class Audit:
    def __init__(
        self, database: Database, clock: Callable[[], int], *, retention_days: int
    ) -> None:
        self._database = database
        self._clock = clock
        self._retention_days = retention_days

    async def delete_old(self) -> None:
        """Oldest first. What's too much for one run is left to the next."""
        deleted = 0
        for _ in range(_DELETIONS_MAX):
            async with self._database.transaction() as connection:
                deleted_now = await audit.delete_before(
                    connection, self._clock(), days=self._retention_days, limit=_DELETED_AT_ONCE
                )
            deleted += deleted_now
            if deleted_now < _DELETED_AT_ONCE:
                break
        if deleted:
            _log.info("old entries of the audit were deleted", count=deleted)

    async def audit_list(
        self,
        *,
        organization_id: OrganizationId | None = None,
        object_id: str | None = None,
        actor: str | None = None,
        since: int | None = None,
        until: int | None = None,
        before_id: int | None = None,
        limit: int = 100,
    ) -> AuditPage:
        """Newest first. `actor` is a part of `kind:name`, in any case."""
        assert 1 <= limit <= AUDIT_PAGE_MAX
        async with self._database.autocommit() as connection:
            # One more, to see whether there's a next page.
            found = await audit.find_page(
                connection,
                organization_id=organization_id,
                object_id=object_id,
                actor=actor,
                since=since,
                until=until,
                before_id=before_id,
                limit=limit + 1,
            )
        entries = found[:limit]
        return AuditPage(entries, entries[-1].id if len(found) > limit else None)


def _state(value: object) -> ObjectState | None:
    if value is None:
        return None
    state = msgspec.to_builtins(value)
    assert isinstance(state, dict), "an audited object has named fields"
    return state


def field_text(name: str, value: object) -> str | None:
    """For people. A field named `…_at` is a time in Unix seconds."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith("_at"):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return msgspec.json.encode(value).decode()
