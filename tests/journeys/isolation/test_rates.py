"""Tests that calls that fail or are denied count against the rate of their own project only."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateway import assert_error
from tests.support.judged_gateway import JudgedGateway, judged_gateway
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.upstream import chat, refuse

_RATE = 5


@pytest.fixture(scope="module")
async def limited(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    limits = {"requests_per_minute": _RATE}
    refused = {"money.holds.refusal_errors.REFUSED_CALLS_PER_MINUTE": _RATE}
    async with judged_gateway(
        data_dir, conninfo, limits=limits, changed_constants=refused
    ) as running:
        yield running


async def test_a_poisoned_call_is_charged_to_its_project(limited: JudgedGateway) -> None:
    hostile, quiet = await limited.with_tenant(), await limited.with_tenant()
    limited.model.play(refuse(500))
    for _ in range(_RATE):
        assert_error(await hostile.chat("poison"), 502, "provider_unavailable")
    assert_error(await hostile.chat("poison"), 429, "rate_limit_exceeded")
    limited.model.play(chat())
    assert (await quiet.chat()).status_code == 200


async def test_a_denied_call_is_charged_to_its_project(limited: JudgedGateway) -> None:
    hostile, quiet = await limited.with_tenant(), await limited.with_tenant()
    await hostile.enforce(direction="request")
    limited.model.play(chat())
    for _ in range(_RATE):
        assert_error(await hostile.chat("a bomb"), 403, "policy_denied")
    assert_error(await hostile.chat("a bomb"), 429, "rate_limit_exceeded")
    assert (await quiet.chat("a bomb")).status_code == 200


async def test_calls_that_cannot_be_paid_have_a_rate_too(limited: JudgedGateway) -> None:
    hostile, quiet = await limited.with_tenant(credit=0), await limited.with_tenant()
    limited.model.play(chat())
    for _ in range(_RATE):
        assert_error(await hostile.chat(), 402, "payment_required")
    refused = await hostile.chat()
    assert_error(refused, 429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    # Beyond the rate, the gateway reads no body.
    scripted = hostile.scripted
    answer = await scripted.gateway.client.post(
        "/v1/chat/completions",
        content=b"no JSON",
        headers={**scripted.tenant.as_customer, "content-type": "application/json"},
    )
    assert_error(answer, 429, "rate_limit_exceeded")
    services = scripted.gateway.services
    await services.activity.drain()
    recorded = await services.activity.activity_list(
        organization_id=scripted.tenant.organization_id
    )
    requests = Counter[int | None]()
    for entry in recorded:
        requests[entry.status] += entry.requests
    assert requests == {402: _RATE, 429: 2}
    assert (await quiet.chat()).status_code == 200


async def test_calls_that_name_no_policy_have_a_rate_too(limited: JudgedGateway) -> None:
    hostile = await limited.with_tenant()
    for _ in range(_RATE):
        answer = await hostile.scripted.chat(policy_ids=["pol_unknown"])
        assert_error(answer, 404, "not_found", "policy_ids[0]")
    answer = await hostile.scripted.chat(policy_ids=["pol_unknown"])
    assert_error(answer, 429, "rate_limit_exceeded")


async def test_a_call_that_nobody_could_judge_is_charged_to_its_project(
    limited: JudgedGateway,
) -> None:
    hostile = await limited.with_tenant()
    await hostile.enforce(direction="request")
    before = limited.judge.opinion
    limited.judge.opinion = lambda _: refuse(500)
    try:
        for _ in range(_RATE):
            assert_error(await hostile.chat("anything"), 503, "service_unavailable")
        assert_error(await hostile.chat("anything"), 429, "rate_limit_exceeded")
    finally:
        limited.judge.opinion = before


@pytest.mark.parametrize("state", ["revoked", "suspended", "expired", "archived"])
@pytest.mark.parametrize("credit", [0, 10**13], ids=["refused calls", "rate"])
async def test_beyond_the_rate_a_key_that_is_not_valid_is_still_refused_as_such(
    limited: JudgedGateway, state: str, credit: int
) -> None:
    """The process refuses calls beyond a rate from memory, but not without a look at the key."""
    tenant = await limited.with_tenant(credit=credit)
    limited.model.play(chat())
    scripted = tenant.scripted
    for _ in range(_RATE):
        assert (await scripted.chat()).status_code != 429
    assert_error(await scripted.chat(), 429, "rate_limit_exceeded")
    assert_error(await scripted.chat(), 429, "rate_limit_exceeded")
    await _end(scripted, state)
    for _ in range(3):
        assert_error(await scripted.chat(), 401, "invalid_api_key")


async def _end(scripted: ScriptedGateway, state: str) -> None:
    services, tenant = scripted.gateway.services, scripted.tenant
    (key,) = await services.project_keys.project_key_list(tenant.project_id)
    match state:
        case "revoked":
            await services.project_keys.project_key_revoke(key.id)
        case "suspended":
            await services.project_keys.project_key_suspend(key.id)
        case "archived":
            await services.projects.project_archive(tenant.organization_id, tenant.project_id)
        case "expired":
            async with services.database.transaction() as connection:
                await connection.execute(
                    "UPDATE project_keys SET expires_at = to_timestamp(1) WHERE id = %s", (key.id,)
                )
