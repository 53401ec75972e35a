"""Shows the audit list: every change with its actor, object and time."""

from collections.abc import Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.context import console_of
from tollkeeper.console.forms import optional, organization_id, unix_time
from tollkeeper.console.rendering import render
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.tenants.audit.rule import AuditEntry
from tollkeeper.tenants.audit.service import field_text

_LIMIT = 50
# A number with more digits may be too large for the column `audit.id` (bigint).
_ID_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class ChangedField:
    name: str
    # `before` or `after` is None if the field had no value before or after the change.
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class ShownEntry:
    entry: AuditEntry
    fields: tuple[ChangedField, ...]


async def show(request: Request) -> Response:
    services, query = console_of(request).services, request.query_params
    organization = optional(query, "organization")
    since, until = optional(query, "since"), optional(query, "until")
    page = await services.audit.audit_list(
        organization_id=None if organization is None else organization_id(organization),
        object_id=optional(query, "object"),
        actor=optional(query, "actor"),
        since=None if since is None else unix_time(since, "since"),
        until=None if until is None else unix_time(until, "until"),
        before_id=_before(optional(query, "before")),
        limit=_LIMIT,
    )
    organizations = await services.organizations.organization_list()
    return render(
        request,
        "audit.html",
        nav="audit",
        title="Audit",
        entries=[ShownEntry(entry, tuple(_fields(entry))) for entry in page.entries],
        next_before=page.next_before,
        organizations={found.id: found.name for found in organizations},
    )


def _before(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS_MAX):
        raise InvalidRequest("This page of the list does not exist.", param="before")
    return int(text)


def _fields(entry: AuditEntry) -> Iterator[ChangedField]:
    """Yields the fields that the change added, changed or removed."""
    before, after = entry.change.before or {}, entry.change.after or {}
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            texts = (field_text(name, state.get(name)) for state in (before, after))
            yield ChangedField(name, *texts)
