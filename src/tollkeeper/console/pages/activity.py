"""Shows the list of calls, with filters, a chart of calls over time, a live tail and downloads."""

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import urlencode
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from tollkeeper.console.charts import traffic_chart
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import RANGES_S, optional, organization_id, status_range, time_range
from tollkeeper.console.gateway_call import gateway_url
from tollkeeper.console.rendering import render
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import picousd_from_usd
from tollkeeper.core.views import Position, RareFilter, Sort, SortKey
from tollkeeper.reports.activity.export import ExportFormat, export_pages
from tollkeeper.reports.traffic.rule import TimeRange, TrafficFilter
from tollkeeper.reports.traffic.service import PAGE_MAX
from tollkeeper.setup.services import Services

# The number of calls on one page of the list.
_LIMIT = 50
# The deadline of a download.
_EXPORT_DEADLINE_S = 600.0
# A live tail ends after this time. The browser then opens another live tail, so the session is
# checked again.
_TAIL_DURATION_S = 60.0
# A live tail looks for new calls at this interval, among the calls of the last `_TAIL_RANGE_S`
# seconds.
_TAIL_EVERY_S = 1.0
_TAIL_RANGE_S = 300
# The sort orders by the value of the query parameter. Without a sort order, the newest calls come
# first.
_ASCENDING = "-ascending"
_SORTS = {
    key + ending: Sort(key, ascending=ending == _ASCENDING)
    for key in SortKey
    for ending in ("", _ASCENDING)
    if key + ending != SortKey.TIME
}


async def show(request: Request) -> Response:
    console = console_of(request)
    services, query = console.services, request.query_params
    request_id = optional(query, "request_id")
    if request_id is not None:
        return RedirectResponse(f"/activity/{urlencode({'': request_id})[1:]}", 303)
    time = time_range(query, services.clock())
    rare, sort = await _rare_filter(services, query), _sort(query)
    page = await services.traffic.activity_page(
        await _filter(services, query),
        rare,
        time,
        before=_position(query),
        sort=sort,
        limit=_LIMIT if sort is None else PAGE_MAX,
    )
    return render(
        request,
        "activity.html",
        nav="activity",
        title="Activity",
        page=page,
        sorts={name: _sort_title(found) for name, found in _SORTS.items()},
        sort=sort or Sort(SortKey.TIME),
        sort_title=None if sort is None else _sort_title(sort),
        older=None if page.older is None else _position_text(page.older),
        total=sum(found.requests for found in page.steps),
        rare=bool(rare),
        ranges=RANGES_S,
        range=_range(query),
        chart=traffic_chart(page.steps, time),
        gateway_url=gateway_url(console.settings),
        time=time,
        organizations={
            found.id: found.name for found in await services.organizations.organization_list()
        },
        names=await services.names.names_of(
            identity
            for entry in page.entries
            for identity in (entry.organization_id, entry.project_id, entry.key_id)
        ),
        models=[model.id for model in services.catalog.catalog.models],
    )


async def export(request: Request) -> Response:
    """Sends the selected activity records in the format of `tollkeeper activity export`."""
    console, query = console_of(request), request.query_params
    services = console.services
    try:
        export_format = ExportFormat(query.get("format", "csv"))
    except ValueError:
        raise InvalidRequest("A format is csv or jsonl.", param="format") from None
    pages = export_pages(
        services.traffic,
        await _filter(services, query),
        await _rare_filter(services, query),
        time_range(query, services.clock()),
        export_format,
    )
    console.require_stream()
    # Reads the first page of records before the response begins, so that an invalid filter can
    # still be answered with an error page.
    first, _ = await anext(pages)

    async def texts() -> AsyncIterator[str]:
        yield first
        async for text, _ in pages:
            yield text

    return StreamingResponse(
        console.stream(texts(), _EXPORT_DEADLINE_S),
        media_type="text/csv; charset=utf-8"
        if export_format is ExportFormat.CSV
        else "application/jsonl",
        headers={"Content-Disposition": f'attachment; filename="activity.{export_format}"'},
    )


async def tail(request: Request) -> Response:
    """Sends an event when there are new calls that match the filters. The page then loads the
    calls."""
    console, query = console_of(request), request.query_params
    services = console.services
    traffic_filter, rare = await _filter(services, query), await _rare_filter(services, query)

    async def newest() -> str:
        now = services.clock()
        time = TimeRange(max(0, now - _TAIL_RANGE_S), now + 1)
        page = await services.traffic.activity_page(traffic_filter, rare, time, limit=1)
        return str(page.entries[0].request_id) if page.entries else ""

    async def events() -> AsyncIterator[str]:
        # A browser that reconnects names the last event that it received.
        last_sent = request.headers.get("last-event-id") or await newest()
        yield f"retry: 1000\nid: {last_sent}\nevent: open\ndata:\n\n"
        for _ in range(int(_TAIL_DURATION_S / _TAIL_EVERY_S)):
            await asyncio.sleep(_TAIL_EVERY_S)
            found = await newest()
            # Without new calls, sends a comment (":"), which keeps the connection alive and fails
            # if the browser has disconnected.
            yield f"id: {found}\ndata: {found}\n\n" if found not in ("", last_sent) else ":\n\n"
            last_sent = found or last_sent

    console.require_stream()
    return StreamingResponse(
        console.stream(events(), 2 * _TAIL_DURATION_S), media_type="text/event-stream"
    )


def _sort(query: QueryParams) -> Sort | None:
    name = optional(query, "sort")
    if name is not None and name not in _SORTS:
        raise InvalidRequest(f"A sort order is one of {', '.join(_SORTS)}.", param="sort")
    return None if name is None else _SORTS[name]


def _sort_title(sort: Sort) -> str:
    return f"{sort.key.replace('_', ' ')}, {'ascending' if sort.ascending else 'descending'}"


async def _filter(services: Services, query: QueryParams) -> TrafficFilter:
    """Builds the filter from the query. A project or key may be given by id or by name. If the
    query selects no organization, the name is searched in all organizations and must be unique."""
    project, key, names = optional(query, "project"), optional(query, "key"), services.names
    owner = _owner(query)
    return TrafficFilter(
        organization_id=owner,
        project_id=None if project is None else await names.project_named(project, owner),
        key_id=None if key is None else await names.project_key_named(key, owner),
        model=optional(query, "model"),
        status=status_range(optional(query, "status")),
    )


def _owner(query: QueryParams) -> OrganizationId | None:
    organization = optional(query, "organization")
    return None if organization is None else organization_id(organization)


async def _rare_filter(services: Services, query: QueryParams) -> RareFilter:
    """Builds the filter from the query. A policy may be given like a project in `_filter`."""
    policy, cost = optional(query, "policy"), optional(query, "cost")
    return RareFilter(
        policy_id=None
        if policy is None
        else await services.names.policy_named(policy, _owner(query)),
        matched_only=query.get("matched") == "1",
        cost_picousd_min=None if cost is None else picousd_from_usd(cost, param="cost"),
    )


def _position(query: QueryParams) -> Position | None:
    text = optional(query, "before")
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,14})\.([0-9a-f-]{36})", text)
    try:
        if match is not None:
            return Position(int(match[1]), UUID(match[2]))
    except ValueError:
        pass
    raise InvalidRequest("This page of the list does not exist.", param="before")


def _position_text(position: Position) -> str:
    return f"{position.started_at_ms}.{position.request_id}"


def _range(query: QueryParams) -> str | None:
    """Returns the name of the selected or default range; None if the URL has only `since` or
    `until`."""
    days = optional(query, "since") or optional(query, "until")
    return optional(query, "range") or (None if days else "24h")
