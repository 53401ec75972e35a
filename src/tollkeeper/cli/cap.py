"""`tollkeeper cap`: the most that an organization, a project or a key may spend."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from tollkeeper.cli.amounts import AmountArgument
from tollkeeper.cli.arguments import OrganizationArgument
from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.output import Listing, Record
from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.views import CapUse
from tollkeeper.services.use_cases import Services

app = noun_app("Spending caps of an organization, of its projects and of their keys.")

ProjectOption = Annotated[
    str | None,
    typer.Option(
        "--project",
        metavar="P",
        help="A project of the organization, whose own cap is meant.",
        show_default="the organization's cap",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="A project key of the organization, whose own cap is meant: its name or id.",
        show_default="the organization's cap",
    ),
]


@service_command(app, "set", example="tollkeeper cap set Acme 5.00 --period day --key app")
async def cap_set(
    services: Services,
    organization: OrganizationArgument,
    amount: AmountArgument,
    period: Annotated[
        CapPeriod,
        typer.Option(
            help="Whether the cap applies to each day, week (from Monday) or month of UTC, or to "
            "all time.",
            show_default=False,
        ),
    ],
    project: ProjectOption = None,
    key: KeyOption = None,
) -> Record:
    """Cap what may be held and spent in a period. Calls that would exceed it are refused.

    An organization and a project have one cap by month or in all, and can have one by day and one
    by week beside it. A key can have one by day, one by week and one by month."""
    identity = await services.names.organization_named(organization)
    of_project, of_key = await _owner(services, identity, project, key)
    use = await services.caps.cap_set(identity, amount, period, of_project, of_key)
    [view] = await _views(services, identity, [use])
    return Record(view)


@service_command(app, "clear", example="tollkeeper cap clear Acme --project Web")
async def cap_clear(
    services: Services,
    organization: OrganizationArgument,
    project: ProjectOption = None,
    key: KeyOption = None,
    period: Annotated[
        CapPeriod | None,
        typer.Option(help="The period of the cap.", show_default="all periods"),
    ] = None,
) -> Record:
    """Remove a cap: of one period, or all caps of the organization itself, the project or the key."""
    identity = await services.names.organization_named(organization)
    of_project, of_key = await _owner(services, identity, project, key)
    await services.caps.cap_clear(identity, of_project, of_key, period)
    return Record(
        {
            "organization_id": identity,
            "project_id": of_project,
            "key_id": of_key,
            "amount": None,
            "period": period,
        }
    )


@service_command(app, "show", example="tollkeeper cap show Acme")
async def cap_show(services: Services, organization: OrganizationArgument) -> Listing:
    """Show every cap of an organization, of its projects and of keys, and how much of it is used."""
    identity = await services.names.organization_named(organization)
    return await _listing(services, identity, await services.caps.cap_show(identity))


@service_command(app, "reset", example="tollkeeper cap reset Acme")
async def cap_reset(services: Services, organization: OrganizationArgument) -> Listing:
    """Correct the day and month of all caps, after the database's clock was ahead.

    Caps stay at a later date that they have seen. This counts anew what is held and spent in the
    present periods. Set the clock first."""
    identity = await services.names.organization_named(organization)
    return await _listing(services, identity, await services.caps.cap_reset(identity))


async def _listing(services: Services, identity: OrganizationId, found: list[CapUse]) -> Listing:
    return Listing(
        await _views(services, identity, found),
        columns=("project", "key", "amount", "period", "held", "spent", "remaining", "resets_at"),
        optional=("resets_at", "held"),
    )


async def _owner(
    services: Services, organization: OrganizationId, project: str | None, key: str | None
) -> tuple[ProjectId | None, KeyId | None]:
    if project is not None and key is not None:
        raise typer.BadParameter("Give either --project or --key.")
    if key is not None:
        return None, await services.names.project_key_named(key, organization)
    if project is not None:
        return await services.names.project_named(project, organization), None
    return None, None


async def _views(
    services: Services, organization: OrganizationId, found: Sequence[CapUse]
) -> list[dict[str, object]]:
    names = await services.names.names_of(
        identity for use in found for identity in (use.project_id, use.key_id)
    )
    return [_view(organization, use, names) for use in found]


def _view(organization: OrganizationId, use: CapUse, names: Mapping[str, str]) -> dict[str, object]:
    """Builds one row, with amounts in USD. Without a project and key, it is the organization's own
    cap."""
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
