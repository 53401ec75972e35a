"""Tests the model lists of projects and keys: which calls they refuse, from when on, and at what cost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import Gateway, Tenant, running_gateway
from tests.support.scripted_gateway import (
    COST,
    MODEL,
    ScriptedGateway,
    chat_body,
    scripted_gateway,
    scripted_settings,
)
from tests.support.token_counts import counts
from tests.support.upstream import Peer, Upstream, Verb, chat
from tollkeeper.core.access import KeyId

OTHER = "other/chat"
# The backend of this model has a tokenizer, which gets a prompt before the call is admitted.
COUNTED = "counted/chat"
USER = [{"role": "user", "content": "Hello"}]
# Every way to send a prompt: the path, and the body without its model.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": USER}),
    "chat, streamed": ("/v1/chat/completions", {"messages": USER, "stream": True}),
    "responses": ("/v1/responses", {"input": "Hello"}),
    "responses, streamed": ("/v1/responses", {"input": "Hello", "stream": True}),
    "responses, truncated": ("/v1/responses", {"input": "Hello", "truncation": "auto"}),
    "messages": ("/v1/messages", {"messages": USER, "max_tokens": 16}),
    "messages, streamed": ("/v1/messages", {"messages": USER, "max_tokens": 16, "stream": True}),
    "token counting": ("/v1/messages/count_tokens", {"messages": USER}),
}


async def _count_or_chat(peer: Peer) -> None:
    await (counts(42) if peer.request.path == "/tokenize" else chat())(peer)


def _ordinary() -> Verb:
    return _count_or_chat


def _options(upstream: Upstream) -> dict[str, Any]:
    backend = {"name": "scripted", "urls": [upstream.url]}
    counting = {**backend, "name": "counting", "tokenize_path": "/tokenize"}
    return {
        "backends": [backend, counting],
        "more_models": [{"id": OTHER}, {"id": COUNTED, "backend": "counting"}],
        "extensions": {"messages": True, "model_listing": True},
    }


@pytest.fixture(scope="module")
async def shared_scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with (
        Upstream(_count_or_chat) as upstream,
        scripted_gateway(
            data_dir, conninfo, upstream, ordinary=_ordinary, **_options(upstream)
        ) as running,
    ):
        yield running


@asynccontextmanager
async def _another_gateway(
    scripted: ScriptedGateway, data_dir: Path, conninfo: str
) -> AsyncIterator[Gateway]:
    settings = scripted_settings(data_dir, **_options(scripted.upstream))
    async with running_gateway(settings, conninfo) as gateway:
        yield gateway


async def _key_of(scripted: ScriptedGateway) -> KeyId:
    [key] = await scripted.gateway.services.project_keys.project_key_list(
        scripted.tenant.project_id
    )
    return key.id


def _assert_not_allowed(answer: httpx2.Response) -> None:
    assert answer.status_code == 403, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("permission_denied", "model")
    assert error["type"] == "permission_error"


@pytest.mark.parametrize(("path", "body"), CALLS.values(), ids=CALLS)
async def test_a_model_that_is_not_allowed_is_refused_before_anything_is_sent_or_held(
    scripted: ScriptedGateway, path: str, body: dict[str, Any]
) -> None:
    services, tenant = scripted.gateway.services, scripted.tenant

    async def call(model: str) -> httpx2.Response:
        return await scripted.gateway.client.post(
            path, json={"model": model, **body}, headers=tenant.as_customer
        )

    await services.projects.project_allow_models(tenant.project_id, [MODEL])
    before = len(scripted.upstream.requests)
    for model in (OTHER, COUNTED):
        _assert_not_allowed(await call(model))
    assert (await call("other/unknown")).status_code == 404
    assert len(scripted.upstream.requests) == before
    assert await scripted.traces() == (before, 0)
    assert (await call(MODEL)).status_code == 200


async def test_a_change_is_effective_at_the_next_call_on_every_gateway(
    scripted: ScriptedGateway, data_dir: Path, conninfo: str
) -> None:
    services, tenant = scripted.gateway.services, scripted.tenant
    key_id = await _key_of(scripted)
    async with _another_gateway(scripted, data_dir, conninfo) as second:

        async def statuses() -> list[int]:
            calls = (
                gateway.client.post(
                    "/v1/chat/completions", json=chat_body(), headers=tenant.as_customer
                )
                for gateway in (scripted.gateway, second)
            )
            return [answer.status_code for answer in await asyncio.gather(*calls)]

        # After these calls, both gateways have the key and the plan of its calls in their caches.
        assert await statuses() == [200, 200]
        await services.projects.project_allow_models(tenant.project_id, ["other/*"])
        assert await statuses() == [403, 403]
        await services.projects.project_allow_models(tenant.project_id, ["other/*", MODEL])
        assert await statuses() == [200, 200]
        await services.project_keys.project_key_allow_models(key_id, [OTHER])
        assert await statuses() == [403, 403]
        await services.project_keys.project_key_allow_models(key_id, [])
        assert await statuses() == [200, 200]
    assert (await scripted.balance())["settled"] == 6 * COST


async def test_the_lists_of_the_project_and_of_the_key_both_apply(
    scripted: ScriptedGateway,
) -> None:
    services, tenant = scripted.gateway.services, scripted.tenant

    async def statuses() -> list[int]:
        return [(await scripted.chat(model=model)).status_code for model in (MODEL, OTHER)]

    key_id = await _key_of(scripted)
    await services.project_keys.project_key_allow_models(key_id, ["example/*", "strange/*"])
    assert await statuses() == [200, 403]
    await services.projects.project_allow_models(tenant.project_id, [OTHER])
    assert await statuses() == [403, 403]
    await services.project_keys.project_key_allow_models(key_id, ["example/*", "other/*"])
    assert await statuses() == [403, 200]


async def test_other_keys_and_other_tenants_are_not_affected(scripted: ScriptedGateway) -> None:
    services, tenant = scripted.gateway.services, scripted.tenant
    key_id = await _key_of(scripted)
    _, free = await services.project_keys.project_key_create_by_operator(
        tenant.project_id, "free", None, None
    )
    neighbour = await scripted.with_tenant()
    await services.project_keys.project_key_allow_models(key_id, [OTHER])
    # Send all calls at once, so that their holds are decided in one batch.
    answers = await asyncio.gather(
        *(
            scripted.chat(headers=headers)
            for headers in (
                tenant.as_customer,
                {"Authorization": f"Bearer {free}"},
                neighbour.tenant.as_customer,
            )
            for _ in range(4)
        )
    )
    assert [answer.status_code for answer in answers] == [403] * 4 + [200] * 8


async def test_a_rotated_key_keeps_its_list(scripted: ScriptedGateway) -> None:
    keys = scripted.gateway.services.project_keys
    key_id = await _key_of(scripted)
    await keys.project_key_allow_models(key_id, [OTHER])
    rotation = await keys.project_key_rotate(key_id, 3600)
    assert rotation.new.models == (OTHER,)
    headers = {"Authorization": f"Bearer {rotation.value}"}
    _assert_not_allowed(await scripted.chat(headers=headers))
    assert (await scripted.chat(headers=headers, model=OTHER)).status_code == 200


async def test_a_model_that_is_not_allowed_is_shown_as_unavailable(
    scripted: ScriptedGateway,
) -> None:
    services, tenant = scripted.gateway.services, scripted.tenant

    async def shown(tenant: Tenant) -> tuple[list[str], dict[str, bool]]:
        async def read(path: str) -> Any:
            answer = await scripted.gateway.client.get(path, headers=tenant.as_customer)
            assert answer.status_code == 200, answer.text
            return answer.json()

        listed = [model["id"] for model in (await read("/v1/models"))["data"]]
        available = {}
        for model in (MODEL, OTHER):
            access = (await read(f"/v1/models/{model.replace('/', '%2F')}"))["access"]
            assert (access["locked"], access["missing_requirements"]) == (False, [])
            available[model] = access["available"]
        return listed, available

    assert await shown(tenant) == ([MODEL, OTHER, COUNTED], {MODEL: True, OTHER: True})
    await services.projects.project_allow_models(tenant.project_id, ["example/*"])
    assert await shown(tenant) == ([MODEL], {MODEL: True, OTHER: False})
    await services.project_keys.project_key_allow_models(await _key_of(scripted), ["strange"])
    assert await shown(tenant) == ([], {MODEL: False, OTHER: False})
