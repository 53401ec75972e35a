"""Tests that schemas that would stop the embedded engine are rejected before a hold or a call."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import assert_error, running_gateway
from tests.support.scripted_gateway import MODEL, ScriptedGateway, model_settings, scripted_settings
from tests.support.tables import each
from tests.support.upstream import Upstream, chat
from tollkeeper.setup.embedded.engine_address import EngineAddress
from tollkeeper.setup.embedded.packaged_model import ENGINE_SCHEMA_BOUNDS

_LOCAL = "example/local"
_CHOICES_MAX = ENGINE_SCHEMA_BOUNDS.choices_max


@pytest.fixture(scope="module")
async def shared_scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Runs a gateway whose upstream is both the embedded engine and a backend of another kind."""
    async with Upstream(chat()) as upstream:
        settings = scripted_settings(
            data_dir,
            upstream.url,
            backends=[
                {"name": "scripted", "kind": "openai", "urls": [upstream.url]},
                {"name": "local", "kind": "embedded"},
            ],
            models=[model_settings(), model_settings(id=_LOCAL, backend="local")],
        )
        engine = EngineAddress(upstream.url, "key")
        async with running_gateway(settings, conninfo, engine=engine) as gateway:
            tenant = await gateway.make_tenant()
            yield ScriptedGateway(gateway, upstream, tenant, probe_tenant=tenant)


def _values(count: int) -> dict[str, Any]:
    return {"type": "string", "enum": [f"value {number}" for number in range(count)]}


def _long(size: int) -> dict[str, Any]:
    return {"type": "string", "description": "x" * size}


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _function(schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"f{id(schema)}", "parameters": schema}


def _tool(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": _function(schema)}


_TOO_MUCH = {
    "enum": _values(_CHOICES_MAX + 1),
    "thousands": _values(5000),
    "branches": {"anyOf": [{"const": number} for number in range(_CHOICES_MAX + 1)]},
    "optional": {
        "type": "object",
        "properties": {str(number): {} for number in range(_CHOICES_MAX + 1)},
    },
    "pattern": {"type": "string", "pattern": "^" + "a?" * 500 + "$"},
    "bytes": _long(ENGINE_SCHEMA_BOUNDS.bytes_max),
}


@each("kind", _TOO_MUCH)
async def test_chat_format(scripted: ScriptedGateway, kind: str) -> None:
    wanted = _format(_TOO_MUCH[kind])
    param = "response_format.json_schema.schema"
    await _refused(scripted, "chat/completions", param, response_format=wanted)
    # Other backends have their own limits.
    assert (await scripted.chat(response_format=wanted)).status_code == 200


async def test_the_largest_schema_is_taken(scripted: ScriptedGateway) -> None:
    before = len(scripted.upstream.requests)
    wanted = _format(_values(_CHOICES_MAX))
    answered = await scripted.chat(model=_LOCAL, response_format=wanted)
    assert answered.status_code == 200
    asked = [json.loads(found.body) for found in scripted.upstream.requests[before:]]
    assert wanted in [found.get("response_format") for found in asked]


async def test_chat_tools(scripted: ScriptedGateway) -> None:
    half, rest = _values(_CHOICES_MAX // 2), _values(_CHOICES_MAX // 2 + 1)
    path = "chat/completions"
    await _refused(scripted, path, "tools[1].function.parameters", tools=[_tool(half), _tool(rest)])
    both = [_function(half), _function(rest)]
    await _refused(scripted, path, "functions[1].parameters", functions=both)
    # All schemas of a call count together, because one engine handles the call.
    param = "response_format.json_schema.schema"
    await _refused(scripted, path, param, tools=[_tool(half)], response_format=_format(rest))
    odd: list[dict[str, Any]] = [{"type": "function"}, {"function": 5}, _tool(half)]
    answered = await scripted.chat(model=_LOCAL, tools=odd)
    assert answered.status_code == 200, answered.text


async def test_responses(scripted: ScriptedGateway) -> None:
    schema = _values(_CHOICES_MAX + 1)
    wanted = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
    await _refused(scripted, "responses", "text.format.schema", text=wanted)
    tools = [{"type": "function", **_function(found)} for found in (_values(1), schema)]
    await _refused(scripted, "responses", "tools[1].parameters", tools=tools)


async def test_token_counting(scripted: ScriptedGateway) -> None:
    schema = _values(_CHOICES_MAX + 1)
    path = "messages/count_tokens"
    tools = [{"name": "f", "input_schema": {"type": "object", **schema}}]
    await _refused(scripted, path, "tools[0].input_schema", tools=tools)
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    await _refused(scripted, path, "output_config.format.schema", output_config=wanted)


async def _refused(scripted: ScriptedGateway, path: str, param: str, **fields: Any) -> None:
    before = await scripted.traces()
    asked = "input" if path == "responses" else "messages"
    said: Any = "Hello" if path == "responses" else [{"role": "user", "content": "Hello"}]
    answered: httpx2.Response = await scripted.gateway.client.post(
        f"/v1/{path}",
        json={"model": _LOCAL, asked: said, **fields},
        headers=scripted.tenant.as_customer,
    )
    assert_error(answered, 400, "invalid_request", param)
    assert _LOCAL in answered.json()["error"]["message"]
    assert await scripted.traces() == before
    assert MODEL not in answered.text
