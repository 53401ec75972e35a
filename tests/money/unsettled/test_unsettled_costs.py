"""Tests that a cost report contains the number of unsettled calls of its days, and no zero costs for
them."""

import time

import httpx2

from tests.support.books import USD, Books
from tests.support.gateway import Gateway, Tenant

_DAY_S = 86400
_HEADER = "x-unsettled-requests"


async def _report(
    gateway: Gateway, tenant: Tenant, query: str = "", *, days_ago: int = 0
) -> httpx2.Response:
    start = (int(time.time()) // _DAY_S - days_ago) * _DAY_S
    answer = await gateway.client.get(
        f"/v1/organization/costs?start_time={start}&end_time={start + _DAY_S}{query}",
        headers=tenant.as_admin,
    )
    assert answer.status_code == 200, answer.text
    return answer


async def test_only_unsettled_calls_are_counted(
    books: Books, gateway: Gateway, tenant: Tenant
) -> None:
    unknown = [await books.hold(USD) for _ in range(3)]
    await books.hold(USD)
    await books.spend(USD, USD)
    assert (await _report(gateway, tenant)).headers[_HEADER] == "0"
    for hold in unknown:
        await books.leave_unsettled(hold)
    answer = await _report(gateway, tenant)
    assert answer.headers[_HEADER] == "3"
    # The sums contain only the settled call.
    (result,) = answer.json()["data"][0]["results"]
    assert result["amount"]["value"] == "1"
    for hold in unknown[:2]:
        await books.services.reconciliation.ledger_resolve(hold.id, settle_picousd=None)
    assert (await _report(gateway, tenant)).headers[_HEADER] == "1"


async def test_a_bucket_of_unsettled_calls_alone_shows_no_zero(
    books: Books, gateway: Gateway, tenant: Tenant
) -> None:
    await books.leave_unsettled(await books.hold(USD))
    answer = await _report(gateway, tenant)
    assert answer.headers[_HEADER] == "1"
    assert answer.json()["data"][0]["results"] == []


async def test_the_day_is_the_one_of_the_call(
    books: Books, gateway: Gateway, tenant: Tenant
) -> None:
    await books.leave_unsettled(await books.hold(USD))
    await books.sql(
        "UPDATE reservations SET held_at = held_at - interval '2 days' WHERE organization_id = %s",
        books.organization,
    )
    counts = [(await _report(gateway, tenant, days_ago=days)).headers[_HEADER] for days in range(4)]
    assert counts == ["0", "0", "1", "0"]


async def test_filters_hold_for_it_too(books: Books, gateway: Gateway, tenant: Tenant) -> None:
    other = await books.second_project()
    await books.leave_unsettled(await books.hold(USD))
    for _ in range(2):
        await other.leave_unsettled(await other.hold(USD))
    expected = {
        "": "3",
        f"&project_ids={books.project}": "1",
        f"&project_ids={other.project}": "2",
        f"&project_ids={books.project},{other.project}": "3",
        f"&api_key_ids={other.key}": "2",
        f"&api_key_ids={other.key}&project_ids={books.project}": "0",
    }
    found = {query: (await _report(gateway, tenant, query)).headers[_HEADER] for query in expected}
    assert found == expected


async def test_another_organization_is_not_counted(
    books: Books, gateway: Gateway, tenant: Tenant
) -> None:
    await books.leave_unsettled(await books.hold(USD))
    stranger = await gateway.make_tenant("Stranger")
    assert (await _report(gateway, stranger)).headers[_HEADER] == "0"
    assert (await _report(gateway, tenant)).headers[_HEADER] == "1"
