"""Tests that policies judge names, descriptions, parameters and calls of tools, also in namespaces."""

from typing import Any

import pytest

from tests.support.judged_gateway import JudgedGateway, assert_denied
from tests.support.scripted_gateway import COST, MODEL
from tests.support.upstream import DONE, answer, chunk, completion, sse, stream, usage_chunk

FIND = {
    "type": "function",
    "name": "find",
    "description": "Finds a customer.",
    "parameters": {"type": "object"},
}


@pytest.mark.parametrize("part", ["nothing", "name", "description", "inner name", "parameters"])
async def test_namespaces_are_judged(judged: JudgedGateway, part: str) -> None:
    policy = await judged.enforce("bomb", direction="request")
    function: dict[str, Any] = dict(FIND)
    namespace: dict[str, Any] = {"type": "namespace", "name": "crm", "tools": [function]}
    match part:
        case "name" | "description":
            namespace[part] = "bomb"
        case "inner name":
            function["name"] = "bomb"
        case "parameters":
            function["parameters"] = {"properties": {"bomb": {}}}
    answer = await judged.scripted.gateway.client.post(
        "/v1/responses",
        json={"model": MODEL, "input": "Hello", "tools": [namespace]},
        headers=judged.scripted.tenant.as_customer,
    )
    if part == "nothing":
        assert answer.status_code == 200, answer.text
    else:
        assert_denied(answer, policy, "request")


CUSTOM = {"type": "custom", "custom": {"name": "write", "description": "Writes a text."}}


@pytest.mark.parametrize("part", ["nothing", "tool", "earlier call"])
async def test_custom_tools_are_judged(judged: JudgedGateway, part: str) -> None:
    policy = await judged.enforce("bomb", direction="request")
    tool = {"type": "custom", "custom": {"name": "bomb"}} if part == "tool" else CUSTOM
    written = {"name": "write", "input": "a bomb" if part == "earlier call" else "a flower"}
    messages = [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "custom", "custom": written}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Written."},
    ]
    found = await judged.scripted.chat(messages=messages, tools=[tool])
    if part == "nothing":
        assert found.status_code == 200, found.text
    else:
        assert_denied(found, policy, "request")


@pytest.mark.parametrize("streamed", [False, True])
async def test_calls_of_custom_tools_are_judged(judged: JudgedGateway, streamed: bool) -> None:
    policy = await judged.enforce("bomb", direction="response")
    called = {"id": "c1", "type": "custom", "custom": {"name": "write", "input": "a bo"}}
    rest = {"index": 0, "custom": {"input": "mb"}}
    if streamed:
        pieces = [{"index": 0, **called}, rest]
        records = [chunk(delta={"tool_calls": [piece]}) for piece in pieces]
        records += [chunk(finish="tool_calls"), usage_chunk()]
        judged.model.play(stream([*map(sse, records), DONE]))
    else:
        body = completion()
        called["custom"] = {"name": "write", "input": "a bomb"}
        body["choices"][0]["message"] = {"role": "assistant", "tool_calls": [called]}
        judged.model.play(answer(body))
    found = await judged.scripted.chat(stream=streamed, tools=[CUSTOM])
    assert_denied(found, policy, "response")
    assert (await judged.scripted.entry_of(found)).cost == COST
