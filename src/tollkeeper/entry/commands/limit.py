"""`tollkeeper limit`: a project's calls per minute and concurrent calls."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollkeeper.entry.commands.amounts import limit_change
from tollkeeper.entry.commands.arguments import ProjectArgument
from tollkeeper.entry.commands.command import noun_app, service_command
from tollkeeper.entry.commands.output import Record

if TYPE_CHECKING:
    from tollkeeper.money.credit.service import Limit, LimitsInForce
    from tollkeeper.setup.services import Services

app = noun_app("Set and show the request limits of a project.")


@service_command(app, "set", example="tollkeeper limit set Web --requests-per-minute 600")
async def limit_set(
    services: "Services",
    project: ProjectArgument,
    # Any, because Typer doesn't support `int | "default"`.
    requests_per_minute: Annotated[
        Any,
        typer.Option(
            metavar="N|default",
            help="Allow this number of calls per minute. All of them may arrive at once.",
            parser=limit_change,
            show_default="unchanged",
        ),
    ] = None,
    concurrency: Annotated[
        Any,
        typer.Option(
            metavar="N|default",
            help="Allow this number of calls at the same time.",
            parser=limit_change,
            show_default="unchanged",
        ),
    ] = None,
) -> Record:
    """Set the limits of a project, or restore the defaults.

    The value `default` means the default from the settings."""
    if requests_per_minute is None and concurrency is None:
        raise typer.BadParameter("Give --requests-per-minute, --concurrency, or both.")
    project_id = await services.names.project_named(project)
    return _record(await services.accounts.limit_set(project_id, requests_per_minute, concurrency))


@service_command(app, "show", example="tollkeeper limit show Web")
async def limit_show(services: "Services", project: ProjectArgument) -> Record:
    """Show a project's limits and whether they are defaults."""
    return _record(await services.accounts.limit_show(await services.names.project_named(project)))


def _record(limits: "LimitsInForce") -> Record:
    return Record(
        {
            "project_id": limits.project_id,
            "requests_per_minute": limits.requests_per_minute.value,
            "concurrency": limits.concurrency.value,
            "live_holds": limits.live_holds,
            "source": {
                "requests_per_minute": _source(limits.requests_per_minute),
                "concurrency": _source(limits.concurrency),
            },
        }
    )


def _source(limit: "Limit") -> str:
    return "default" if limit.is_default else "project"
