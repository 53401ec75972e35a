"""Tests the records of refused calls: repeated refusals of one key are counted in few records."""

import asyncio
from collections import Counter
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.upstream import chat
from tollkeeper.core.errors import NotFound
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.core.runtime.tallies import write_tallies
from tollkeeper.core.views import RareFilter
from tollkeeper.reports.activity.repeated_refusals import RECORDED_OF_ORGANIZATION_MAX
from tollkeeper.reports.traffic.rule import TimeRange, TrafficFilter

_REFUSALS = 40


def _counted() -> float:
    """Returns the number of calls with status 402, from the metrics."""
    write_tallies()
    labels = {"operation": "chat_create", "model": MODEL, "backend": "scripted", "status": "402"}
    return REGISTRY.get_sample_value("tollkeeper_calls_total", labels) or 0.0


async def test_a_flood_of_refusals_writes_few_records(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(chat())
    hostile, quiet = await scripted.with_tenant(credit=0), await scripted.with_tenant(credit=0)
    services, before = scripted.gateway.services, _counted()
    refused = [await hostile.chat() for _ in range(_REFUSALS)]
    once = await quiet.chat()
    for answer in (*refused, once):
        assert_error(answer, 402, "payment_required")
    await services.activity.drain()
    ids = [UUID(answer.headers["x-request-id"]) for answer in refused]
    time = TimeRange(unix_now() - 900, unix_now() + 900)
    page = await services.traffic.activity_page(
        TrafficFilter(organization_id=hostile.tenant.organization_id), RareFilter(), time
    )
    # Beyond the first ones, only the first and last refusal in each step of the roll-ups have a record.
    assert len(page.entries) <= RECORDED_OF_ORGANIZATION_MAX + 3
    assert sum(entry.requests for entry in page.entries) == _REFUSALS
    assert sum(found.requests for found in page.steps) == _REFUSALS
    assert {entry.request_id for entry in page.entries} >= {ids[0], ids[-1]}
    assert (await services.activity.activity_show(ids[0])).requests == 1
    last = await services.activity.activity_show(ids[-1])
    assert (last.status, last.error_code) == (402, "payment_required")
    assert (await services.activity.activity_show(ids[1])).requests == 1
    with pytest.raises(NotFound, match="Only the first 20 refused requests"):
        await services.activity.activity_show(ids[-3])
    # The refusal of another key has its own record.
    alone = await services.activity.activity_show(UUID(once.headers["x-request-id"]))
    assert (alone.requests, alone.project_id) == (1, quiet.tenant.project_id)
    assert _counted() - before == _REFUSALS + 1


async def test_refusals_of_another_kind_have_records_of_their_own(
    scripted: ScriptedGateway,
) -> None:
    scripted.upstream.play(chat())
    poor = await scripted.with_tenant(credit=0)
    for _ in range(3):
        assert_error(await poor.chat(), 402, "payment_required")
        assert_error(await poor.chat(policy_ids=["pol_no"]), 404, "not_found", "policy_ids[0]")
    services = scripted.gateway.services
    await services.activity.drain()
    found = await services.activity.activity_list(organization_id=poor.tenant.organization_id)
    requests: Counter[int | None] = Counter()
    for entry in found:
        requests[entry.status] += entry.requests
    assert requests == {402: 3, 404: 3}


async def test_a_served_call_is_never_counted_with_another(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(chat())
    answers = await asyncio.gather(*(scripted.chat() for _ in range(5)))
    for answer in answers:
        assert (await scripted.activity_of(answer)).settlement == "settled"
    services = scripted.gateway.services
    found = await services.activity.activity_list(organization_id=scripted.tenant.organization_id)
    assert [entry.requests for entry in found] == [1] * 5
