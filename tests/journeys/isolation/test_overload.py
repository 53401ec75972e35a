"""Tests calls beyond the limit of a process: they are refused at once and leave no ledger entry."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from tests.journeys.isolation.attacks import by_words
from tests.support.gateway import assert_error
from tests.support.raw_caller import RawCaller, raw_caller
from tests.support.scripted_gateway import MODEL, ScriptedGateway, eventually, scripted_gateway
from tests.support.upstream import Upstream
from tollkeeper.core.runtime.overload import LIMIT, OwnerCalls
from tollkeeper.faces.app import App
from tollkeeper.http.arrivals import PER_TURN_OF_OWNER
from tollkeeper.http.exchange import Exchange, Work

_CALLS = 16
_CROWD = 50
_HANG = [{"role": "user", "content": "hang"}]


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with (
        Upstream(by_words()) as upstream,
        scripted_gateway(
            *(data_dir, conninfo, upstream),
            drain_s=0.1,
            changed_constants={"setup.calls.CALLS_MAX": _CALLS},
        ) as running,
    ):
        yield running


async def test_the_excess_is_refused_and_others_are_answered(shared: ScriptedGateway) -> None:
    hostile, quiet = await shared.with_tenant(), await shared.with_tenant()
    inference = shared.gateway.services.inference
    async with hostile.another_client() as client:
        calls = [asyncio.create_task(client.chat(messages=_HANG)) for _ in range(3 * _CALLS)]
        # One organization may have at most seven eighths of the calls.
        await eventually(lambda: sum(task.done() for task in calls) == 3 * _CALLS - 14)
        assert inference.running == 14
        for task in calls:
            if task.done():
                assert_error(task.result(), 503, "service_unavailable")
                assert task.result().headers["retry-after"] == "1"
        for _ in range(5):
            assert (await quiet.chat()).status_code == 200
        holding = [asyncio.create_task(quiet.chat(messages=_HANG)) for _ in range(2)]
        await eventually(lambda: inference.running == _CALLS)
        stranger = await shared.with_tenant()
        assert_error(await stranger.chat(), 503, "service_unavailable")
        assert await stranger.entries() == []
        for task in (*calls, *holding):
            task.cancel()
        await asyncio.gather(*calls, *holding, return_exceptions=True)
    await eventually(lambda: inference.running == 0)
    assert (await quiet.chat()).status_code == 200
    assert (await hostile.chat()).status_code == 200
    for tenant in (hostile, quiet):
        assert (await tenant.balance())["held"] == 0


async def test_who_overloads_the_process_is_refused_before_its_body(
    shared: ScriptedGateway,
) -> None:
    """The samples show a slow event loop, and all active calls belong to the hostile tenant."""
    hostile, quiet = await shared.with_tenant(), await shared.with_tenant()
    gate = shared.gateway.services.inference.overload
    owner = hostile.tenant.organization_id.int

    def is_limited() -> bool:
        return gate.limit is not None

    gate.owners[owner] = OwnerCalls(owner, running=LIMIT)
    try:
        async with asyncio.timeout(20):
            while not is_limited():
                gate.sample(1.0, 0)
                await asyncio.sleep(0.01)
        found = await hostile.chat()
        assert_error(found, 503, "service_unavailable")
        assert found.headers["retry-after"] == "1"
        assert await hostile.entries() == []
        async with raw_caller(hostile) as caller:
            # The client sends no part of the body, and the refusal does not wait for it.
            await caller.ask(sent=0.0)
            assert (await caller.head()).startswith("HTTP/1.1 503")
        for path in ("/v1/responses", "/v1/messages/count_tokens"):
            refused = await hostile.gateway.client.post(
                path, json={"model": MODEL}, headers=hostile.tenant.as_customer
            )
            assert refused.status_code == 503, refused.text
        # Other tenants are answered, and so are the administration requests of the hostile tenant.
        assert (await quiet.chat()).status_code == 200
        costs = await hostile.gateway.client.get(
            "/v1/organization/admin_api_keys", headers=hostile.tenant.as_admin
        )
        assert costs.status_code == 200
    finally:
        del gate.owners[owner]
    async with asyncio.timeout(20):
        while is_limited():
            gate.sample(0.0, 0)
            await asyncio.sleep(0.01)
    assert (await hostile.chat()).status_code == 200
    assert gate.active_calls == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_who_is_refused_at_once_sees_what_the_application_says(
    shared: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The first request with a key is refused in a task, which waits for the database. The next requests
    are refused without a task."""
    hostile, gate = await shared.with_tenant(), shared.gateway.services.inference.overload
    owner, at_once = hostile.tenant.organization_id.int, []
    answer = App.__call__

    def noted(app: App, exchange: Exchange) -> Work | None:
        work = answer(app, exchange)
        at_once.append(work is None)
        return work

    monkeypatch.setattr(App, "__call__", noted)
    monkeypatch.setattr(gate, "_limit", 1.0)
    monkeypatch.setattr(gate, "watches_arrivals", True)
    gate.owners[owner] = OwnerCalls(owner, running=1)
    try:
        body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        found = [
            await hostile.gateway.client.post(path, json=body, headers=hostile.tenant.as_customer)
            for _ in range(3)
        ]
        wrong = await hostile.gateway.client.post(
            path,
            content=b"{}",
            headers={**hostile.tenant.as_customer, "content-type": "text/plain"},
        )
    finally:
        del gate.owners[owner]
    assert at_once == [False, True, True, True]
    assert_error(wrong, 415, "unsupported_media_type")
    in_a_task, *others = [_without_id(one) for one in found]
    assert in_a_task[0] == 503
    assert others == [in_a_task, in_a_task]
    assert len({one.headers["x-request-id"] for one in found}) == 3
    assert await hostile.entries() == []


def _without_id(answer: httpx2.Response) -> tuple[int, list[tuple[str, str]], str]:
    request_id = answer.headers["x-request-id"]
    assert request_id in answer.text
    headers = [
        (name, value.replace(request_id, "id"))
        for name, value in answer.headers.items()
        if name != "date"
    ]
    return answer.status_code, headers, answer.text.replace(request_id, "id")


@pytest.mark.parametrize("makes_calls", [False, True])
async def test_only_requests_that_are_rejected_at_once_begin_without_a_limit(
    shared: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, makes_calls: bool
) -> None:
    """In the overloaded process, a tenant sends requests over many connections at the same time, while
    another tenant has a call in flight. Calls are rejected; reading a model is not."""
    hostile, quiet = await shared.with_tenant(), await shared.with_tenant()
    gate, owner = shared.gateway.services.inference.overload, hostile.tenant.organization_id.int
    [(name, value)] = hostile.tenant.as_customer.items()
    read_model = f"GET /v1/models/{MODEL} HTTP/1.1\r\nHost: gateway\r\n{name}: {value}\r\n\r\n"
    began = Counter[int]()
    turn, answer = 0, App.__call__

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def noted(app: App, exchange: Exchange) -> Work | None:
        began[turn] += 1
        return answer(app, exchange)

    async def is_rejected(caller: RawCaller, *, is_call: bool) -> bool:
        await (caller.ask() if is_call else caller.send(read_model.encode()))
        return b'"error"' in await caller.answer()

    # From now on, the gateway has cached the key, without which it cannot reject a call at once.
    assert (await hostile.chat()).status_code == 200
    counting = asyncio.create_task(count_turns())
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(quiet.another_client())
        call = asyncio.create_task(client.chat(messages=_HANG))
        await eventually(lambda: shared.upstream.under_way == 1)
        callers = [await stack.enter_async_context(raw_caller(hostile)) for _ in range(_CROWD)]
        # From now on, the gateway knows to whom the connections belong.
        assert not any([await is_rejected(caller, is_call=False) for caller in callers])
        monkeypatch.setattr(App, "__call__", noted)
        monkeypatch.setattr(gate, "_limit", 1.0)
        monkeypatch.setattr(gate, "watches_arrivals", True)
        gate.owners[owner] = OwnerCalls(owner, running=1)
        try:
            found = await asyncio.gather(
                *(is_rejected(caller, is_call=makes_calls) for caller in callers)
            )
        finally:
            del gate.owners[owner]
            counting.cancel()
            call.cancel()
            await asyncio.gather(call, counting, return_exceptions=True)
    await eventually(lambda: shared.gateway.services.inference.running == 0)
    assert set(found) == {makes_calls}
    assert (max(began.values()) > PER_TURN_OF_OWNER + 1) is makes_calls


async def test_calls_that_wait_for_their_backend_are_in_nobodys_hands(
    shared: ScriptedGateway,
) -> None:
    tenant, gate = await shared.with_tenant(), shared.gateway.services.inference.overload
    async with tenant.another_client() as client:
        calls = [asyncio.create_task(client.chat(messages=_HANG)) for _ in range(4)]
        await eventually(lambda: shared.upstream.under_way == 4)
        assert gate.active_calls == 0
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    await eventually(lambda: shared.gateway.services.inference.running == 0)
    assert gate.active_calls == 0
