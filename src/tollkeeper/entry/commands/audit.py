"""`tollkeeper audit`: the changes by operators and admin keys."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollkeeper.entry.commands.amounts import unix_seconds
from tollkeeper.entry.commands.command import noun_app, service_command
from tollkeeper.entry.commands.output import Listing
from tollkeeper.tenants.audit.rule import ActorKind, AuditEntry, ObjectState
from tollkeeper.tenants.audit.service import AUDIT_PAGE_MAX, AuditPage, field_text

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = noun_app("List who changed which object, and when.")

# In the table, per value; the JSON has all of it.
_SHOWN_LENGTH_MAX = 40


@service_command(
    app, "list", example="tollkeeper audit list --organization Acme --since 2026-01-01"
)
async def audit_list(
    services: "Services",
    organization: Annotated[
        str | None, typer.Option(metavar="ORG", help="Include only changes in this organization.")
    ] = None,
    object_id: Annotated[
        str | None,
        typer.Option(
            "--object", metavar="ID", help="Include only changes of the object with this id."
        ),
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Include only changes by actors with this text in their name, for example a person.",
        ),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            metavar="WHEN",
            help="Begin at this time: YYYY-MM-DD (midnight UTC) or Unix seconds.",
            parser=unix_seconds,
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            metavar="WHEN",
            help="End before this time: YYYY-MM-DD (midnight UTC) or Unix seconds.",
            parser=unix_seconds,
        ),
    ] = None,
    before: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Show the next page: the changes with an id below N.", min=1
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", help="List at most N changes.", min=1, max=AUDIT_PAGE_MAX)
    ] = 20,
) -> Listing:
    """List changes, newest first."""
    organization_filter = (
        None if organization is None else await services.names.organization_named(organization)
    )
    if organization_filter is not None:
        # Raises if it doesn't exist.
        await services.organizations.organization_show(organization_filter)
    page = await services.audit.audit_list(
        organization_id=organization_filter,
        object_id=object_id,
        actor=actor,
        since=since,
        until=until,
        before_id=before,
        limit=limit,
    )
    return await _listing(services, page)


async def _listing(services: "Services", page: AuditPage) -> Listing:
    names = await services.names.names_of(
        shown_id
        for entry in page.entries
        for shown_id in (entry.change.object_id, _actor_id(entry))
    )
    return Listing(
        [_view(entry, names) for entry in page.entries],
        columns=("id", "at", "by", "operation", "object", "change"),
        short_ids=("object",),
        summary={"next_before": page.next_before},
        note=""
        if page.next_before is None
        else f"To list older changes, add --before {page.next_before}.",
    )


def _actor_id(entry: AuditEntry) -> str:
    """Only of an admin key: other actors' names, such as a shell user's, could look like an id."""
    return entry.actor.name.rpartition(" ")[2] if entry.actor.kind is ActorKind.API else ""


def _view(entry: AuditEntry, names: Mapping[str, str]) -> dict[str, Any]:
    """`names` maps ids to what `by` and `object` show."""
    change, who, key = entry.change, str(entry.actor), _actor_id(entry)
    return {
        "id": entry.id,
        "at": entry.at,
        "who": who,
        "by": who.removesuffix(key) + names[key] if key and key in names else who,
        "operation": change.operation,
        "organization_id": change.organization_id,
        "object_kind": change.object_kind,
        "object_id": change.object_id,
        "object": names.get(change.object_id, change.object_id),
        "before": change.before,
        "after": change.after,
        "change": _difference(change.before, change.after),
    }


def _difference(before: ObjectState | None, after: ObjectState | None) -> str:
    """In one line. For a new object, its name."""
    if before is None:
        name = (after or {}).get("name")
        return "" if name is None else _shown("name", name)
    after = after or {}
    differing = [
        f"{field}: {_shown(field, before.get(field))} -> {_shown(field, after.get(field))}"
        for field in {**before, **after}
        if before.get(field) != after.get(field)
    ]
    return ", ".join(differing)


def _shown(field: str, value: object) -> str:
    text = field_text(field, value) or "-"
    return text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "..."
