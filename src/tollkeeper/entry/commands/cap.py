"""`tollkeeper cap`: limits the spending of an organization, project or key."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tollkeeper.actions.caps import CAP_CLEAR, CAP_SET
from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.entry.commands.amounts import AmountArgument
from tollkeeper.entry.commands.arguments import OrganizationArgument
from tollkeeper.entry.commands.command import noun_app, service_command
from tollkeeper.entry.commands.output import Listing, Record
from tollkeeper.money.caps.rule import CapPeriod, CapUse

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = noun_app("Set and show spending caps of organizations, projects and keys.")

ProjectOption = Annotated[
    str | None,
    typer.Option(
        "--project",
        metavar="P",
        help="Set or remove caps of this project instead of the organization's own caps.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Set or remove caps of this project key (name or id) instead of the organization's own.",
        show_default=False,
    ),
]


@service_command(app, "set", example="tollkeeper cap set Acme 5.00 --period day --key app")
async def cap_set(
    services: "Services",
    organization: OrganizationArgument,
    amount: AmountArgument,
    period: Annotated[
        CapPeriod,
        typer.Option(
            help="Apply the cap to each day, week (from Monday) or month in UTC, or to all time.",
            show_default=False,
        ),
    ],
    project: ProjectOption = None,
    key: KeyOption = None,
) -> Record:
    """Set a spending cap: the highest sum of held and spent money.

    Calls that would exceed the cap are refused. An organization, a project or a key can have a cap per
    day, per week, per month and in total, all at once."""
    organization_id = await services.names.organization_named(organization)
    project_id, key_id = await _project_or_key(services, organization_id, project, key)
    use = await CAP_SET.run(services, organization_id, amount, period, project_id, key_id)
    [view] = await _views(services, organization_id, [use])
    return Record(view)


@service_command(app, "clear", example="tollkeeper cap clear Acme --project Web")
async def cap_clear(
    services: "Services",
    organization: OrganizationArgument,
    project: ProjectOption = None,
    key: KeyOption = None,
    period: Annotated[
        CapPeriod | None,
        typer.Option(help="Remove only the cap of this period.", show_default="all periods"),
    ] = None,
) -> Record:
    """Remove caps of an organization, a project or a key.

    Without --project and --key, the caps of projects and keys stay."""
    organization_id = await services.names.organization_named(organization)
    project_id, key_id = await _project_or_key(services, organization_id, project, key)
    await CAP_CLEAR.run(services, organization_id, period, project_id, key_id)
    return Record(
        {
            "organization_id": organization_id,
            "project_id": project_id,
            "key_id": key_id,
            "amount": None,
            "period": period,
        }
    )


@service_command(app, "show", example="tollkeeper cap show Acme")
async def cap_show(services: "Services", organization: OrganizationArgument) -> Listing:
    """Show all caps in an organization, and how much is used.

    The list includes the caps of the organization's projects and keys."""
    organization_id = await services.names.organization_named(organization)
    return await _listing(services, organization_id, await services.caps.cap_show(organization_id))


async def _listing(
    services: "Services", organization_id: OrganizationId, uses: list[CapUse]
) -> Listing:
    return Listing(
        await _views(services, organization_id, uses),
        columns=("project", "key", "amount", "period", "held", "spent", "remaining", "resets_at"),
        optional=("resets_at", "held"),
    )


async def _project_or_key(
    services: "Services", organization: OrganizationId, project: str | None, key: str | None
) -> tuple[ProjectId | None, KeyId | None]:
    """At most one isn't None. Both are for the organization's own cap."""
    if project is not None and key is not None:
        raise typer.BadParameter("Give either --project or --key.")
    if key is not None:
        return None, await services.names.project_key_named(key, organization)
    if project is not None:
        return await services.names.project_named(project, organization), None
    return None, None


async def _views(
    services: "Services", organization: OrganizationId, uses: Sequence[CapUse]
) -> list[dict[str, object]]:
    names = await services.names.names_of(
        object_id for use in uses for object_id in (use.project_id, use.key_id)
    )
    return [_view(organization, use, names) for use in uses]


def _view(organization: OrganizationId, use: CapUse, names: Mapping[str, str]) -> dict[str, object]:
    """In USD. Without project and key, it's the organization's own cap."""
    return {
        "organization_id": organization,
        "project_id": use.project_id,
        "project": names.get(str(use.project_id)),
        "key_id": use.key_id,
        "key": names.get(str(use.key_id)),
        "amount": usd_from_picousd(use.cap.amount_picousd),
        "period": use.cap.period,
        "held": usd_from_picousd(use.held_picousd),
        "spent": usd_from_picousd(use.spent_picousd),
        "remaining": usd_from_picousd(use.remaining_picousd),
        "resets_at": use.resets_at,
    }
