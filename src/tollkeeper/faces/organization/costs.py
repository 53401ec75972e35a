"""GET /v1/organization/costs, the report of daily costs."""

from collections.abc import Iterable
from typing import TypeVar

from tollkeeper.core.conventions import UNSETTLED_HEADER
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.reports import CostPage, CostQuery, CostRow
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.organization import ids
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import organization as wire

T = TypeVar("T")


async def cost_report(
    services: ApiServices, request: Request[None, wire.CostQuery]
) -> wire.CostPage:
    parameters = request.query
    query = CostQuery(
        start_time=parameters.start_time,
        end_time=parameters.end_time,
        project_ids=_each_once(
            ids.project_id(text, param="project_ids") for text in parameters.project_ids
        ),
        api_key_ids=_each_once(
            ids.key_id(text, param="api_key_ids") for text in parameters.api_key_ids
        ),
        group_by=_each_once(parameters.group_by),
        limit=parameters.limit,
    )
    page = await services.costs.cost_report(
        request.admin_caller.organization_id, query, parameters.page
    )
    # Sent even if it's zero, so that clients can rely on it.
    request.further_headers = f"{UNSETTLED_HEADER}: {page.unsettled_requests}\r\n".encode()
    return cost_page_view(page)


def _each_once(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def cost_page_view(page: CostPage) -> wire.CostPage:
    return wire.CostPage(
        object="page",
        data=[
            wire.CostBucket(
                object="bucket",
                start_time=bucket.start_time,
                end_time=bucket.end_time,
                results=[_result_view(row) for row in bucket.rows],
            )
            for bucket in page.buckets
        ],
        has_more=page.next_page is not None,
        next_page=page.next_page,
    )


def _result_view(row: CostRow) -> wire.CostResult:
    return wire.CostResult(
        object="organization.costs.result",
        amount=wire.CostAmount(value=usd_from_picousd(row.amount_picousd), currency="usd"),
        line_item=row.line_item,
        project_id=None if row.project_id is None else str(row.project_id),
        api_key_id=None if row.api_key_id is None else str(row.api_key_id),
    )
