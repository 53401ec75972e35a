"""Tests which calls are admitted or refused because of credit, caps, rates and keys, and the reasons."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.paused_answer import PausedAnswer
from tests.support.scripted_gateway import (
    COST,
    ScriptedGateway,
    read_stream,
    scripted_gateway,
    scripted_settings,
)
from tests.support.upstream import answer, chat, completion
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.money.caps.rule import CAP_ADJECTIVES, CapPeriod
from tollkeeper.setup import build_catalog

BOUND = 10


@pytest.fixture(scope="module")
async def hold(shared_scripted: ScriptedGateway) -> int:
    """Returns the hold of one call of these tests."""
    return (await shared_scripted.entry_of(await ask(shared_scripted))).hold


@pytest.fixture
async def scripted(shared_scripted: ScriptedGateway) -> ScriptedGateway:
    """Returns the gateway with a tenant that has no credit."""
    shared_scripted.upstream.play(chat())
    return await shared_scripted.with_tenant(credit=0)


async def ask(scripted: ScriptedGateway, **fields: Any) -> httpx2.Response:
    return await scripted.chat(max_tokens=BOUND, **fields)


@asynccontextmanager
async def open_stream(scripted: ScriptedGateway) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Opens a stream and reads its first piece. The yielded function reads the rest of it."""
    async with scripted.gateway.client.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": "example/chat",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": BOUND,
            "stream": True,
        },
        headers=scripted.tenant.as_customer,
    ) as response:
        assert response.status_code == 200, await response.aread()
        pieces = response.aiter_text()
        first = await anext(pieces)

        async def rest() -> str:
            return first + "".join([piece async for piece in pieces])

        yield rest


def assert_unpaid(found: httpx2.Response, *, waiting: bool, **amounts: int) -> None:
    """Checks a 402 and its amounts. It has Retry-After only if the holds of running calls block the call."""
    assert_error(found, 402, "payment_required")
    error = found.json()["error"]
    assert error["type"] == "billing_error"
    for word, amount in amounts.items():
        assert f"{word} {usd_from_picousd(amount)}" in error["message"], error["message"]
    assert found.headers.get("retry-after") == ("1" if waiting else None)
    assert ("Running calls hold part of the amount" in error["message"]) is waiting


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
async def test_a_picodollar_short(scripted: ScriptedGateway, hold: int, streamed: bool) -> None:
    calls = len(scripted.upstream.requests)
    await scripted.grant(hold - 1)
    found = await ask(scripted, stream=streamed)
    assert_unpaid(found, waiting=False, needed=hold, available=hold - 1, held=0, spent=0)
    assert len(scripted.upstream.requests) == calls
    assert await scripted.entries() == []
    await scripted.grant(1)
    assert (await ask(scripted, stream=streamed)).status_code == 200
    assert (await scripted.balance())["settled"] == COST


async def test_live_holds_block_and_then_do_not(scripted: ScriptedGateway, hold: int) -> None:
    await scripted.grant(hold + COST)
    paused = PausedAnswer()
    scripted.upstream.play(paused.verb())
    async with open_stream(scripted) as rest:
        found = await ask(scripted)
        assert_unpaid(found, waiting=True, needed=hold, available=COST, held=hold, spent=0)
        paused.may_end.set()
        assert read_stream(await rest()).done
    scripted.upstream.play(chat())
    assert (await ask(scripted)).status_code == 200
    found = await ask(scripted)
    left = hold - COST
    assert_unpaid(found, waiting=False, needed=hold, available=left, held=0, spent=2 * COST)


async def test_an_overage_closes_the_account_until_it_is_paid(
    scripted: ScriptedGateway, hold: int
) -> None:
    await scripted.grant(2 * hold)
    usage = {"prompt_tokens": 4000, "completion_tokens": 40, "total_tokens": 4040}
    scripted.upstream.play(answer(completion(usage=usage)), chat())
    first = await ask(scripted)
    assert first.status_code == 200
    entry = await scripted.entry_of(first)
    assert entry.overage == entry.cost - hold > hold
    below = 2 * hold - entry.cost
    found = await ask(scripted)
    assert_unpaid(found, waiting=False, needed=hold, available=below, held=0, spent=entry.cost)
    assert (await scripted.balance())["settled"] == entry.cost
    await scripted.grant(-below)
    assert_unpaid(await ask(scripted), waiting=False, needed=hold, available=0)
    await scripted.grant(hold)
    assert (await ask(scripted)).status_code == 200


@pytest.mark.parametrize("of_project", [False, True], ids=["organization", "project"])
@pytest.mark.parametrize("period", CapPeriod)
async def test_a_cap_is_never_passed(
    scripted: ScriptedGateway, hold: int, period: CapPeriod, of_project: bool
) -> None:
    await scripted.grant(100 * hold)
    caps, organization = scripted.gateway.services.caps, scripted.tenant.organization_id
    project = scripted.tenant.project_id if of_project else None
    whose = "project's" if of_project else "organization's"
    await caps.cap_set(organization, hold - 1, period, project)
    assert_unpaid(await ask(scripted), waiting=False, needed=hold, available=hold - 1, cap=hold - 1)
    await caps.cap_set(organization, hold + COST, period, project)
    paused = PausedAnswer()
    scripted.upstream.play(paused.verb())
    async with open_stream(scripted) as rest:
        found = await ask(scripted)
        assert_unpaid(found, waiting=True, needed=hold, available=COST, held=hold, spent=0)
        assert (
            f"The {whose} {CAP_ADJECTIVES[period]} spending cap" in found.json()["error"]["message"]
        )
        paused.may_end.set()
        assert read_stream(await rest()).done
    scripted.upstream.play(chat())
    assert (await ask(scripted)).status_code == 200
    assert_unpaid(await ask(scripted), waiting=False, held=0, spent=2 * COST, cap=hold + COST)
    if of_project:
        beside = await second_project(scripted)
        assert (await ask(scripted, headers=beside)).status_code == 200
    await caps.cap_clear(organization, project)
    assert (await ask(scripted)).status_code == 200


async def second_project(scripted: ScriptedGateway) -> dict[str, str]:
    services = scripted.gateway.services
    project = await services.projects.project_create(scripted.tenant.organization_id, "second")
    _, key = await services.project_keys.project_key_create_by_operator(
        project.id, "second", None, None
    )
    return {"Authorization": f"Bearer {key}"}


async def test_a_rate_is_kept_per_project(scripted: ScriptedGateway, hold: int) -> None:
    await scripted.grant(100 * hold)
    await scripted.gateway.services.accounts.limit_set(
        scripted.tenant.project_id, requests_per_minute=2
    )
    assert [(await ask(scripted)).status_code for _ in range(2)] == [200, 200]
    for _ in range(3):
        found = await ask(scripted)
        assert_error(found, 429, "rate_limit_exceeded")
        assert found.json()["error"]["type"] == "rate_limit_error"
        assert "2 requests per minute" in found.json()["error"]["message"]
        assert 1 <= int(found.headers["retry-after"]) <= 30
    assert len(await scripted.entries()) == 2
    assert (await ask(scripted, headers=await second_project(scripted))).status_code == 200
    assert (await scripted.balance())["settled"] == 3 * COST


async def test_only_so_many_at_once(scripted: ScriptedGateway, hold: int) -> None:
    await scripted.grant(100 * hold)
    await scripted.gateway.services.accounts.limit_set(scripted.tenant.project_id, concurrency=2)
    paused = PausedAnswer()
    scripted.upstream.play(paused.verb())
    async with AsyncExitStack() as streams:
        rests = [await streams.enter_async_context(open_stream(scripted)) for _ in range(2)]
        for streamed in (False, True):
            found = await ask(scripted, stream=streamed)
            assert_error(found, 429, "rate_limit_exceeded")
            assert "2 concurrent requests" in found.json()["error"]["message"]
            assert found.headers["retry-after"] == "1"
        paused.may_end.set()
        for rest in rests:
            assert read_stream(await rest()).done
    scripted.upstream.play(chat())
    assert (await ask(scripted)).status_code == 200
    assert len(await scripted.entries()) == 3


async def test_a_price_holds_for_the_call_that_was_admitted_at_it(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str
) -> None:
    async with scripted_gateway(data_dir, conninfo, shared_scripted.upstream) as scripted:
        paused = PausedAnswer()
        scripted.upstream.play(paused.verb())
        async with open_stream(scripted) as rest:
            dear = {"pricing": {"prompt": "0.0000004", "completion": "0.0000016"}}
            changed = scripted_settings(data_dir, scripted.upstream.url, model=dear)
            scripted.gateway.services.catalog.catalog = build_catalog(changed)
            paused.may_end.set()
            assert read_stream(await rest()).done
        assert [entry.cost for entry in await scripted.entries()] == [COST]
        scripted.upstream.play(chat())
        assert (await scripted.entry_of(await ask(scripted))).cost == 2 * COST


async def revoke(scripted: ScriptedGateway) -> None:
    keys = await scripted.gateway.services.project_keys.project_key_list(scripted.tenant.project_id)
    await scripted.gateway.services.project_keys.project_key_revoke(keys[0].id)


async def suspend(scripted: ScriptedGateway) -> None:
    keys = await scripted.gateway.services.project_keys.project_key_list(scripted.tenant.project_id)
    await scripted.gateway.services.project_keys.project_key_suspend(keys[0].id)


async def archive(scripted: ScriptedGateway) -> None:
    answer = await scripted.gateway.client.post(
        f"/v1/organization/projects/{scripted.tenant.project_id}/archive",
        headers=scripted.tenant.as_admin,
    )
    assert answer.status_code == 200


async def withdraw(scripted: ScriptedGateway) -> None:
    balance = await scripted.gateway.services.accounts.credit_show(scripted.tenant.organization_id)
    await scripted.grant(-balance.available_picousd)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (revoke, 401, "invalid_api_key"),
        (suspend, 401, "invalid_api_key"),
        (archive, 401, "invalid_api_key"),
        (withdraw, 402, "payment_required"),
    ],
)
async def test_revoked_access_or_credit_refuses_the_next_call(
    scripted: ScriptedGateway,
    hold: int,
    change: Callable[[ScriptedGateway], Awaitable[None]],
    status: int,
    code: str,
) -> None:
    """T3: The call in flight ends normally. The very next call is refused and costs nothing."""
    await scripted.grant(3 * hold)
    paused = PausedAnswer()
    scripted.upstream.play(paused.verb())
    async with open_stream(scripted) as rest:
        calls = len(scripted.upstream.requests)
        await change(scripted)
        for streamed in (False, True):
            assert_error(await ask(scripted, stream=streamed), status, code)
        paused.may_end.set()
        said = read_stream(await rest())
    assert said.done
    assert said.text == "0 1 "
    assert len(scripted.upstream.requests) == calls
    assert [(entry.status, entry.cost) for entry in await scripted.entries()] == [("settled", COST)]
    assert (await scripted.balance())["settled"] == COST


async def test_a_suspended_key_comes_back(scripted: ScriptedGateway, hold: int) -> None:
    await scripted.grant(hold)
    await suspend(scripted)
    assert_error(await ask(scripted), 401, "invalid_api_key")
    keys = await scripted.gateway.services.project_keys.project_key_list(scripted.tenant.project_id)
    await scripted.gateway.services.project_keys.project_key_unsuspend(keys[0].id)
    assert (await ask(scripted)).status_code == 200


async def test_many_at_once_in_one_process(scripted: ScriptedGateway, hold: int) -> None:
    """C7, with usage below the hold: calls never cost more than the credit, and at least ten are admitted."""
    await scripted.grant(10 * hold)
    async with scripted.another_client() as crowd:
        answers = await asyncio.gather(*(ask(crowd) for _ in range(100)))
    admitted = [found for found in answers if found.status_code == 200]
    refused = [found for found in answers if found.status_code == 402]
    assert len(admitted) + len(refused) == 100
    assert len(admitted) >= 10
    balance = await scripted.balance()
    assert balance["settled"] == len(admitted) * COST <= balance["granted"]
    assert len(await scripted.entries()) == len(admitted)
