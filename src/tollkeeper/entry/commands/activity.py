"""`tollkeeper activity`: shows and exports the records of inference requests."""

import sys
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import NotFound
from tollkeeper.core.views import RareFilter
from tollkeeper.entry.commands.arguments import SinceOption, UntilOption
from tollkeeper.entry.commands.command import (
    Invocation,
    command,
    noun_app,
    run_with_services,
    service_command,
)
from tollkeeper.entry.commands.output import Listing, Record
from tollkeeper.reports.activity.export import ExportFormat, activity_view, export_pages
from tollkeeper.reports.activity.service import LIST_LIMIT_MAX
from tollkeeper.reports.traffic.rule import TimeRange, TrafficFilter

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = noun_app("Show and export the records of inference requests.")

# Without --since.
_EXPORT_S_DEFAULT = 7 * 86_400


@service_command(
    app, "show", example="tollkeeper activity show 7c9e6679-7425-40de-944b-e07fc1f90ae7"
)
async def activity_show(
    services: "Services",
    request: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST_ID",
            help="The request id: the header X-Request-ID of the response.",
            show_default=False,
        ),
    ],
) -> Record:
    """Show the record of one request."""
    return Record(activity_view(await services.activity.activity_show(_request_id(request))))


OrganizationFilter = Annotated[
    str | None, typer.Option(metavar="ORG", help="Include only requests of this organization.")
]
ProjectFilter = Annotated[
    str | None, typer.Option(metavar="PROJECT", help="Include only requests of this project.")
]


@service_command(app, "list", example="tollkeeper activity list --organization Acme --status 402")
async def activity_list(
    services: "Services",
    organization: OrganizationFilter = None,
    project: ProjectFilter = None,
    status: Annotated[
        int | None, typer.Option(metavar="N", help="Include only requests with this HTTP status.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(metavar="N", help="List at most N requests.", min=1, max=LIST_LIMIT_MAX),
    ] = 20,
) -> Listing:
    """List requests, newest first."""
    organization_id, project_id = await _find_ids(services, organization, project)
    entries = await services.activity.activity_list(
        organization_id=organization_id, project_id=project_id, status=status, limit=limit
    )
    return Listing(
        [activity_view(entry) for entry in entries],
        columns=(
            *("started_at", "request_id", "status", "error", "param", "requests"),
            *("model", "cost", "settlement"),
        ),
        optional=("model", "settlement", "error", "param", "requests"),
    )


@command(app, "export", example="tollkeeper activity export --organization Acme --since 2026-01-01")
def activity_export(
    invocation: Invocation,
    organization: OrganizationFilter = None,
    project: ProjectFilter = None,
    since: SinceOption = None,
    until: UntilOption = None,
    form: Annotated[
        ExportFormat,
        typer.Option("--format", help="Write comma-separated values or JSON lines."),
    ] = ExportFormat.CSV,
) -> None:
    """Write the records of a time range to standard output.

    The newest record comes first."""

    async def run(services: "Services") -> int:
        # Exclusive, so 1 is added to include the current second.
        end = services.clock() + 1 if until is None else until
        time = TimeRange(end - _EXPORT_S_DEFAULT if since is None else since, end)
        organization_id, project_id = await _find_ids(services, organization, project)
        traffic_filter = TrafficFilter(organization_id=organization_id, project_id=project_id)
        record_count = 0
        async for text, records in export_pages(
            services.traffic, traffic_filter, RareFilter(), time, form
        ):
            sys.stdout.write(text)
            sys.stdout.flush()
            record_count += records
        return record_count

    record_count = run_with_services(invocation, run)
    if not invocation.as_json:
        sys.stderr.write(f"{record_count} records\n")


async def _find_ids(
    services: "Services", organization: str | None, project: str | None
) -> tuple[OrganizationId | None, ProjectId | None]:
    """Raises NotFound."""
    organization_id = project_id = None
    if organization is not None:
        organization_id = await services.names.organization_named(organization)
        await services.organizations.organization_show(organization_id)
    if project is not None:
        project_id = await services.names.project_named(project, organization_id)
        await services.projects.project_show(project_id)
    return organization_id, project_id


def _request_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no request {text}.") from None
