"""Activity: calls as a list with filters, and their volume over time."""

import re
from dataclasses import dataclass
from urllib.parse import urlencode
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tollkeeper.console.charts import traffic_chart
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import (
    RANGES_S,
    key_id,
    optional,
    organization_id,
    project_id,
    status_range,
    time_range,
)
from tollkeeper.console.rendering import render
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.money import picousd_from_usd
from tollkeeper.domain.traffic import TrafficFilter
from tollkeeper.domain.views import Position, RareFilter
from tollkeeper.services.use_cases import Services

_LIMIT = 50


@dataclass(frozen=True, slots=True)
class Names:
    """How people call what the list names by ids."""

    organizations: dict[UUID, str]
    projects: dict[UUID, str]


async def show(request: Request) -> Response:
    console = console_of(request)
    services, query = console.services, request.query_params
    wanted = optional(query, "request_id")
    if wanted is not None:
        return RedirectResponse(f"/activity/{urlencode({'': wanted})[1:]}", 303)
    time = time_range(query, services.clock())
    page = await services.traffic.activity_page(
        _filter(query), _rare(query), time, before=_position(query), limit=_LIMIT
    )
    return render(
        request,
        "activity.html",
        nav="activity",
        title="Activity",
        page=page,
        older=None if page.older is None else _written(page.older),
        total=sum(found.requests for found in page.steps),
        rare=bool(_rare(query)),
        ranges=RANGES_S,
        range=None if optional(query, "since") else query.get("range", "24h"),
        chart=traffic_chart(page.steps, time),
        names=await _names(services),
        models=[model.id for model in services.catalog.catalog.models],
    )


def _filter(query: QueryParams) -> TrafficFilter:
    organization, project = optional(query, "organization"), optional(query, "project")
    key = optional(query, "key")
    return TrafficFilter(
        organization_id=None if organization is None else organization_id(organization),
        project_id=None if project is None else project_id(project),
        key_id=None if key is None else key_id(key),
        model=optional(query, "model"),
        status=status_range(optional(query, "status")),
    )


def _rare(query: QueryParams) -> RareFilter:
    cost = optional(query, "cost")
    return RareFilter(
        policy_id=optional(query, "policy"),
        matched_only=query.get("matched") == "1",
        cost_picousd_min=None if cost is None else picousd_from_usd(cost, param="cost"),
    )


def _position(query: QueryParams) -> Position | None:
    text = optional(query, "before")
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,14})\.([0-9a-f-]{36})", text)
    try:
        if found is not None:
            return Position(int(found[1]), UUID(found[2]))
    except ValueError:
        pass
    raise InvalidRequest("This is no page of the list.", param="before")


def _written(position: Position) -> str:
    return f"{position.started_at_ms}.{position.request_id}"


async def _names(services: Services) -> Names:
    organizations = await services.organizations.organization_list()
    return Names({found.id: found.name for found in organizations}, {})
