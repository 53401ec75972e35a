"""Tests cost reports: parameters, filters, grouping, exact sums, pages and their cursors."""

import base64
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from tests.support.gateway import Gateway, Tenant, assert_error
from tests.support.known_costs import (
    DAY_S,
    FIRST_DAY,
    KnownCosts,
    Spent,
    make_known_costs,
    write_costs,
)
from tests.support.tables import each
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.reports import CostQuery
from tollkeeper.reports.costs import service as cost_service

_PICOUSD = Decimal(10) ** 12
_DIMENSIONS = ("project_id", "api_key_id", "line_item")


@pytest.fixture(scope="module")
async def costs(gateway: Gateway) -> KnownCosts:
    return await make_known_costs(gateway)


def _picousd(result: dict[str, Any]) -> int:
    exact = Decimal(result["amount"]["value"]) * _PICOUSD
    assert exact == int(exact)
    return int(exact)


def _sums(pages: list[dict[str, Any]], *dimensions: str) -> Counter[tuple[Any, ...]]:
    """Returns the sums of the pages in picousd, by day and by these dimensions."""
    found: Counter[tuple[Any, ...]] = Counter()
    for page in pages:
        for bucket in page["data"]:
            for result in bucket["results"]:
                group = (bucket["start_time"] // DAY_S, *(result[name] for name in dimensions))
                found[group] += _picousd(result)
    return found


def _expected(
    costs: KnownCosts, *dimensions: str, of: Callable[[Spent], bool] = lambda _: True
) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in filter(of, costs.spent):
        found[row.day, *(str(getattr(row, name)) for name in dimensions)] += row.picousd
    return found


def _page(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_shape(costs: KnownCosts) -> None:
    answer = await costs.report("limit=180")
    page = _page(answer)
    assert {**page, "data": []} == {
        "object": "page",
        "data": [],
        "has_more": False,
        "next_page": None,
    }
    assert len(page["data"]) == 10
    for number, bucket in enumerate(page["data"]):
        start = (FIRST_DAY + number) * DAY_S
        assert {**bucket, "results": []} == {
            "object": "bucket",
            "start_time": start,
            "end_time": start + DAY_S,
            "results": [],
        }
    assert page["data"][3]["results"] == []
    assert page["data"][0]["results"] == [
        {
            "object": "organization.costs.result",
            "amount": {"value": "0.000000000162", "currency": "usd"},
            "line_item": None,
            "project_id": None,
            "api_key_id": None,
        }
    ]
    assert answer.headers["x-unsettled-requests"] == "0"


@each(
    "dimensions",
    [
        (),
        *((name,) for name in _DIMENSIONS),
        ("project_id", "line_item"),
        ("line_item", "api_key_id", "project_id"),
    ],
)
async def test_grouping(costs: KnownCosts, dimensions: tuple[str, ...]) -> None:
    query = "".join(f"&group_by={name}" for name in dimensions)
    pages = await costs.pages(query, 180)
    assert _sums(pages, *dimensions) == _expected(costs, *dimensions)
    # The sums of each day are the same for every grouping.
    assert _sums(pages) == _expected(costs)
    for bucket in pages[0]["data"]:
        for result in bucket["results"]:
            shown = {name for name in _DIMENSIONS if result[name] is not None}
            assert shown == set(dimensions)


@each("limits", [(1,), (3,), (7,), (9,), (10,), (180,), (1, 5, 2, 180)])
@each("group", ["", "&group_by=api_key_id"])
async def test_pages_add_up(costs: KnownCosts, limits: tuple[int, ...], group: str) -> None:
    whole = await costs.pages(group, 180)
    pages = await costs.pages(group, *limits)
    assert [bucket for page in pages for bucket in page["data"]] == whole[0]["data"]
    for page, limit in zip(pages, [*limits, *[limits[-1]] * len(pages)], strict=False):
        assert 1 <= len(page["data"]) <= limit
    assert [page["next_page"] is None for page in pages] == [False] * (len(pages) - 1) + [True]


@each("rows_max", [1, 9, 20, 35])
async def test_a_page_with_many_results_has_fewer_days(
    costs: KnownCosts, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    """A large page would block the event loop, and so the calls of all organizations."""
    query = "&group_by=api_key_id&group_by=line_item"
    whole = (await costs.pages(query, 180))[0]["data"]
    with monkeypatch.context() as patch:
        patch.setattr(cost_service, "_ROWS_MAX", rows_max)
        pages = await costs.pages(query, 180)
    assert [bucket for page in pages for bucket in page["data"]] == whole
    assert len(pages) > 1
    for page in pages:
        results = sum(len(bucket["results"]) for bucket in page["data"])
        assert results <= rows_max or len(page["data"]) == 1


def _spellings(name: str, values: list[str]) -> list[str]:
    return [
        "&".join(f"{name}={value}" for value in values),
        f"{name}={','.join(values)}",
        "&".join(f"{name}[]={value}" for value in values),
        "&".join(f"{name}%5B%5D={value}" for value in values),
        f"{name}[]={','.join(values)}",
        f"{name}={values[0]}&{name}[]={','.join(values)}",
        f"{name}={'%2C'.join(values)}",
    ]


async def test_arrays_in_every_spelling(costs: KnownCosts) -> None:
    keys = [str(costs.keys[0]), str(costs.keys[2])]
    filtered = _expected(costs, of=lambda row: str(row.api_key_id) in keys)
    for query in _spellings("api_key_ids", keys):
        assert _sums([_page(await costs.report(f"limit=10&{query}"))]) == filtered, query
    project = str(costs.projects[1])
    filtered = _expected(costs, of=lambda row: str(row.project_id) == project)
    for query in _spellings("project_ids", [project, project]):
        assert _sums([_page(await costs.report(f"limit=10&{query}"))]) == filtered, query
    dimensions = ["line_item", "project_id"]
    for query in _spellings("group_by", dimensions)[:5]:
        page = _page(await costs.report(f"limit=10&{query}"))
        assert _sums([page], *dimensions) == _expected(costs, *dimensions), query


async def test_filters_are_combined(costs: KnownCosts) -> None:
    query = f"limit=10&project_ids={costs.projects[0]}&api_key_ids={costs.keys[0]},{costs.keys[2]}"
    own = _expected(costs, of=lambda row: row.api_key_id == costs.keys[0])
    assert _sums([_page(await costs.report(query))]) == own


async def test_ids_in_upper_case(costs: KnownCosts) -> None:
    query = f"limit=10&project_ids={str(costs.projects[0]).upper()}"
    own = _expected(costs, of=lambda row: row.project_id == costs.projects[0])
    assert _sums([_page(await costs.report(query))]) == own


async def test_default_page_is_a_week(costs: KnownCosts) -> None:
    page = _page(await costs.report())
    assert (len(page["data"]), page["has_more"]) == (7, True)


async def test_end_defaults_to_now(costs: KnownCosts) -> None:
    start = costs.gateway.services.clock() // DAY_S * DAY_S - DAY_S
    page = _page(await costs.raw(f"start_time={start}"))
    assert page["data"][0]["start_time"] == start
    assert 2 <= len(page["data"]) <= 3  # 3 if midnight passes during the test


@each(
    ("start", "end", "first", "count"),
    [
        (0, DAY_S, 0, 1),
        (DAY_S - 1, DAY_S, 0, 1),
        (DAY_S - 1, DAY_S + 1, 0, 2),
        (DAY_S, 2 * DAY_S, 1, 1),
        (1, 2, 0, 1),
        (253402300798, 253402300799, 2932896, 1),
    ],
)
async def test_days_touched_by_a_range(
    costs: KnownCosts, start: int, end: int, first: int, count: int
) -> None:
    page = _page(await costs.raw(f"start_time={start}&end_time={end}"))
    days = [bucket["start_time"] // DAY_S for bucket in page["data"]]
    assert days == list(range(first, first + count))


@each(("start", "end"), [(5, 5), (6, 5), (DAY_S, 0), (0, 0)])
async def test_empty_range_has_no_buckets(costs: KnownCosts, start: int, end: int) -> None:
    page = _page(await costs.raw(f"start_time={start}&end_time={end}"))
    assert (page["data"], page["has_more"], page["next_page"]) == ([], False, None)


async def test_empty_days_are_buckets(gateway: Gateway, tenant: Tenant) -> None:
    answer = await gateway.client.get(
        "/v1/organization/costs?start_time=0&end_time=15552000&limit=180", headers=tenant.as_admin
    )
    page = _page(answer)
    assert [bucket["results"] for bucket in page["data"]] == [[]] * 180


async def test_huge_amounts_are_exact(gateway: Gateway, tenant: Tenant) -> None:
    trillion = 10**12 * 10**12
    key = (await gateway.services.project_keys.project_key_list(tenant.project_id))[0]
    amounts = (trillion + 1, trillion + 2, 999_999_999_999)
    await write_costs(
        gateway,
        tenant,
        tuple(
            Spent(1, tenant.project_id, key.id, f"item {number}", amount)
            for number, amount in enumerate(amounts)
        ),
    )
    page = _page(
        await gateway.client.get(
            f"/v1/organization/costs?start_time={DAY_S}&end_time={2 * DAY_S}",
            headers=tenant.as_admin,
        )
    )
    value = page["data"][0]["results"][0]["amount"]["value"]
    assert value == "2000000000001.000000000002"


async def test_archived_project_stays_readable(gateway: Gateway) -> None:
    costs = await make_known_costs(gateway)
    before = (await costs.report("group_by=project_id&limit=10")).json()
    await gateway.services.projects.project_archive(costs.tenant.organization_id, costs.projects[0])
    assert (await costs.report("group_by=project_id&limit=10")).json() == before
    filtered = _page(await costs.report(f"limit=10&project_ids={costs.projects[0]}"))
    own = _expected(costs, of=lambda row: row.project_id == costs.projects[0])
    assert _sums([filtered]) == own


_HUNDRED = ",".join(["7f3d2f7e-5a0c-4a5e-9d5f-0d3c1b2a4e5f"] * 100)
_WRONG: list[tuple[str, int, str | None]] = [
    ("", 400, "start_time"),
    ("start_time=", 400, "start_time"),
    ("start_time=-1", 400, "start_time"),
    ("start_time=1.5", 400, "start_time"),
    ("start_time=1.0", 400, "start_time"),
    ("start_time=1e3", 400, "start_time"),
    ("start_time=null", 400, "start_time"),
    ("start_time=now", 400, "start_time"),
    ("start_time=253402300800", 400, "start_time"),
    ("start_time=99999999999999999999999", 400, "start_time"),
    ("start_time=0&start_time=0", 400, "start_time"),
    ("start_time=0&end_time=-1", 400, "end_time"),
    ("start_time=0&end_time=null", 400, "end_time"),
    ("start_time=0&end_time=", 400, "end_time"),
    ("start_time=0&end_time=1&end_time=1", 400, "end_time"),
    ("start_time=0&limit=0", 400, "limit"),
    ("start_time=0&limit=181", 400, "limit"),
    ("start_time=0&limit=7&limit=7", 400, "limit"),
    ("start_time=0&bucket_width=1h", 400, "bucket_width"),
    ("start_time=0&bucket_width=", 400, "bucket_width"),
    ("start_time=0&group_by=user_id", 400, "group_by[0]"),
    ("start_time=0&group_by=PROJECT_ID", 400, "group_by[0]"),
    ("start_time=0&group_by=", 400, "group_by[0]"),
    ("start_time=0&group_by=line_item,,", 400, "group_by[1]"),
    ("start_time=0&group_by=day;DROP%20TABLE%20cost_rollup", 400, "group_by[0]"),
    (f"start_time=0&group_by={','.join(['line_item'] * 4)}", 400, "group_by"),
    (f"start_time=0&project_ids={_HUNDRED}", 404, "project_ids"),
    (f"start_time=0&project_ids={_HUNDRED},x", 400, "project_ids"),
    (f"start_time=0&api_key_ids={_HUNDRED}", 404, "api_key_ids"),
    (f"start_time=0&api_key_ids={_HUNDRED},x", 400, "api_key_ids"),
    ("start_time=0&project_ids=x", 404, "project_ids"),
    ("start_time=0&project_ids=", 404, "project_ids"),
    ("start_time=0&api_key_ids=%00", 404, "api_key_ids"),
    ("start_time=0&page=", 400, "page"),
    (f"start_time=0&page={'a' * 500}", 400, "page"),
    (f"start_time=0&page={'a' * 501}", 400, "page"),
    ("start_time=0&page=null", 400, "page"),
    ("start_time=0&page=%00", 400, "page"),
    ("start_time=0&page=%F0%9F%98%80", 400, "page"),
    ("start_time=0&user_ids=x", 400, "user_ids"),
    ("start_time=0&project_id=x", 400, "project_id"),
    ("start_time[]=0", 400, "start_time[]"),
    ("start_time=0&project_ids[0]=x", 400, "project_ids[0]"),
]


@each(("query", "status", "param"), _WRONG)
async def test_wrong_parameters(
    costs: KnownCosts, query: str, status: int, param: str | None
) -> None:
    code = {400: "invalid_request", 404: "not_found"}[status]
    assert_error(await costs.raw(query), status, code, param)


async def test_parameters_at_their_bounds(costs: KnownCosts) -> None:
    own = ",".join([str(costs.projects[0])] * 100)
    keys = ",".join([str(costs.keys[0])] * 100)
    for query in (
        "limit=1",
        "limit=180",
        "bucket_width=1d",
        "group_by=line_item,line_item,line_item",
        f"project_ids={own}",
        f"api_key_ids={keys}",
    ):
        assert (await costs.report(query)).status_code == 200, query


async def _cursor(costs: KnownCosts, query: str = "limit=2") -> str:
    cursor: str = _page(await costs.report(query))["next_page"]
    assert 1 <= len(cursor) <= 500
    return cursor


async def test_cursor_with_any_bit_flipped(costs: KnownCosts) -> None:
    """Tries each bit at the service, because HTTP would be slower. Tries the last bit over HTTP, too."""
    cursor = await _cursor(costs)
    signed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    query = CostQuery(FIRST_DAY * DAY_S, (FIRST_DAY + 10) * DAY_S, (), (), (), 2)
    organization_id = costs.tenant.organization_id
    report = costs.gateway.services.costs.cost_report
    await report(organization_id, query, cursor)
    for bit in range(len(signed) * 8):
        changed = bytearray(signed)
        changed[bit // 8] ^= 1 << bit % 8
        spelled = base64.urlsafe_b64encode(bytes(changed)).decode().rstrip("=")
        with pytest.raises(InvalidRequest):
            await report(organization_id, query, spelled)
    assert_error(await costs.report(f"limit=2&page={spelled}"), 400, "invalid_request", "page")


async def test_cursor_with_any_character_changed_or_cut(costs: KnownCosts) -> None:
    cursor = await _cursor(costs)
    query = CostQuery(FIRST_DAY * DAY_S, (FIRST_DAY + 10) * DAY_S, (), (), (), 2)
    report = costs.gateway.services.costs.cost_report
    changed = [cursor[:length] for length in range(1, len(cursor))]
    changed += [cursor + tail for tail in ("A", "=", "==", " ", "\n", "\x00", cursor)]
    for position, character in enumerate(cursor):
        for other in "Az_-+/=":
            if other != character:
                changed.append(cursor[:position] + other + cursor[position + 1 :])
    for spelled in changed:
        with pytest.raises(InvalidRequest):
            await report(costs.tenant.organization_id, query, spelled)


async def test_cursor_of_another_report(costs: KnownCosts, gateway: Gateway) -> None:
    other = await gateway.make_tenant("Other")
    cursor = await _cursor(costs)
    start, end = FIRST_DAY * DAY_S, (FIRST_DAY + 10) * DAY_S
    kept = f"start_time={start}&end_time={end}"
    changed = [
        f"start_time={start + 1}&end_time={end}",
        f"start_time={start}&end_time={end - 1}",
        f"start_time={start}",
        f"{kept}&group_by=line_item",
        f"{kept}&project_ids={costs.projects[0]}",
        f"{kept}&api_key_ids={costs.keys[0]}",
    ]
    for query in changed:
        assert_error(await costs.raw(f"{query}&page={cursor}"), 400, "invalid_request", "page")
    foreign = await gateway.client.get(
        f"/v1/organization/costs?{kept}&page={cursor}", headers=other.as_admin
    )
    assert_error(foreign, 400, "invalid_request", "page")
    assert (await costs.raw(f"{kept}&limit=1&page={cursor}")).status_code == 200


async def test_a_cursor_accepts_its_filters_in_any_form(costs: KnownCosts) -> None:
    start, end = FIRST_DAY * DAY_S, (FIRST_DAY + 10) * DAY_S
    kept = f"start_time={start}&end_time={end}"
    (first, second), key = map(str, costs.projects[:2]), str(costs.keys[0])
    forms = [
        (f"project_ids={first}", f"project_ids={first},{first.upper()}"),
        (f"project_ids={first},{second}", f"project_ids[]={second}&project_ids[]={first}"),
        (f"api_key_ids={key}", f"api_key_ids={key}&api_key_ids={key}"),
        ("group_by=line_item,project_id", "group_by=project_id,line_item,line_item"),
    ]
    for one, other in forms:
        for filters, again in ((one, other), (other, one)):
            page = _page(await costs.raw(f"{kept}&{filters}&limit=1"))
            rest = f"&limit=180&page={page['next_page']}"
            same = await costs.raw(f"{kept}&{filters}{rest}")
            assert _page(await costs.raw(f"{kept}&{again}{rest}")) == _page(same), again


async def test_admin_key_cursor_is_no_cost_cursor(costs: KnownCosts) -> None:
    answer = await costs.report(f"page={costs.keys[0]}")
    assert_error(answer, 400, "invalid_request", "page")


async def test_report_up_to_now_keeps_its_end(costs: KnownCosts) -> None:
    start = FIRST_DAY * DAY_S
    page = _page(await costs.raw(f"start_time={start}&limit=1"))
    seen = 1
    while page["has_more"]:
        cursor = page["next_page"]
        page = _page(await costs.raw(f"start_time={start}&limit=180&page={cursor}"))
        seen += len(page["data"])
    now = costs.gateway.services.clock()
    assert now // DAY_S - FIRST_DAY <= seen <= now // DAY_S - FIRST_DAY + 1
