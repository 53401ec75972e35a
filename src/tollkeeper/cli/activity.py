"""`tollkeeper activity`: the records of inference requests."""

import sys
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from tollkeeper.cli.activity_export import ExportFormat, export
from tollkeeper.cli.arguments import SinceOption, UntilOption
from tollkeeper.cli.command import (
    Invocation,
    command,
    noun_app,
    run_with_services,
    service_command,
)
from tollkeeper.cli.output import Listing, Record
from tollkeeper.domain.errors import NotFound
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.traffic import TimeRange, TrafficFilter
from tollkeeper.domain.usage import Usage
from tollkeeper.domain.views import ActivityEntry
from tollkeeper.services.calls.activity import LIST_LIMIT_MAX
from tollkeeper.services.use_cases import Services

app = noun_app("The records of inference requests.")

_EXPORT_S_DEFAULT = 7 * 86_400


@service_command(
    app, "show", example="tollkeeper activity show 7c9e6679-7425-40de-944b-e07fc1f90ae7"
)
async def activity_show(
    services: Services,
    request: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST_ID", help="The X-Request-ID of the answer.", show_default=False
        ),
    ],
) -> Record:
    """Show the record of one request."""
    return Record(_view(await services.activity.activity_show(_request_id(request))))


OrganizationFilter = Annotated[
    str | None, typer.Option(metavar="ORG", help="Only requests of this organization.")
]
ProjectFilter = Annotated[
    str | None, typer.Option(metavar="PROJECT", help="Only requests of this project.")
]


@service_command(app, "list", example="tollkeeper activity list --organization Acme --status 402")
async def activity_list(
    services: Services,
    organization: OrganizationFilter = None,
    project: ProjectFilter = None,
    status: Annotated[
        int | None, typer.Option(metavar="N", help="Only requests with this HTTP status.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", help="How many requests at most.", min=1, max=LIST_LIMIT_MAX)
    ] = 20,
) -> Listing:
    """List requests, newest first."""
    organization_filter = (
        None if organization is None else await services.names.organization_named(organization)
    )
    project_filter = None if project is None else await services.names.project_named(project)
    if organization_filter is not None:
        await services.organizations.organization_show(organization_filter)
    if project_filter is not None:
        await services.projects.project_show(project_filter)
    entries = await services.activity.activity_list(
        organization_id=organization_filter, project_id=project_filter, status=status, limit=limit
    )
    return Listing(
        [_view(entry) for entry in entries],
        columns=(
            *("started_at", "request_id", "status", "error", "requests"),
            *("model", "cost", "settlement"),
        ),
        optional=("model", "settlement", "error", "requests"),
    )


@command(app, "export", example="tollkeeper activity export --organization Acme --since 2026-01-01")
def activity_export(
    invocation: Invocation,
    organization: OrganizationFilter = None,
    project: ProjectFilter = None,
    since: SinceOption = None,
    until: UntilOption = None,
    form: Annotated[
        ExportFormat, typer.Option("--format", help="Comma-separated values or JSON lines.")
    ] = ExportFormat.CSV,
) -> None:
    """Write the records of a time to standard output, the newest first."""

    async def run(services: Services) -> int:
        end = services.clock() + 1 if until is None else until
        time = TimeRange(end - _EXPORT_S_DEFAULT if since is None else since, end)
        names = services.names
        wanted = TrafficFilter(
            organization_id=None
            if organization is None
            else await names.organization_named(organization),
            project_id=None if project is None else await names.project_named(project),
        )
        return await export(services, wanted, time, form, _view)

    written = run_with_services(invocation, run)
    if not invocation.as_json:
        sys.stderr.write(f"{written} records\n")


def _request_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no request {text}.") from None


def _view(entry: ActivityEntry) -> dict[str, Any]:
    return {
        "request_id": entry.request_id,
        "organization_id": entry.organization_id,
        "project_id": entry.project_id,
        "api_key_id": entry.key_id,
        "operation": entry.operation,
        "model": entry.model,
        "streamed": entry.streamed,
        "started_at": entry.started_at_ms // 1000,
        "duration_ms": entry.duration_ms,
        "first_piece_ms": entry.first_piece_ms,
        "status": entry.status,
        "error": entry.error_code,
        "finish": entry.finish,
        "usage": None if entry.usage is None else _usage_view(entry.usage),
        "reported_usage": entry.reported_usage,
        "reported_cost": _usd(entry.reported_cost_picousd),
        "estimated": entry.estimated,
        "hold": _usd(entry.hold_picousd),
        "cost": _usd(entry.cost_picousd),
        "settlement": entry.settlement,
        "unsettled_reason": entry.unsettled_reason,
        "backend": entry.backend,
        "replica": entry.replica,
        "verdicts": msgspec.to_builtins(entry.verdicts),
        "requests": entry.requests,
    }


def _usage_view(usage: Usage) -> dict[str, int | str]:
    """Audio and the service tier stand there only where a backend has named them."""
    view: dict[str, int | str] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "web_searches": usage.web_searches,
    }
    if usage.input_audio_tokens or usage.output_audio_tokens:
        view["input_audio_tokens"] = usage.input_audio_tokens
        view["output_audio_tokens"] = usage.output_audio_tokens
    if usage.service_tier is not None:
        view["service_tier"] = usage.service_tier
    return view


def _usd(amount: int | None) -> str | None:
    return None if amount is None else usd_from_picousd(amount)
