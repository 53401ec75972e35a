"""Tests a gateway whose backend is the Responses endpoint of another gateway, with the OpenAI SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.responses.sdk_turns import look_around, turn
from tests.support.databases import own_database
from tests.support.responses_answers import both, calls, look_then_tell, records
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, scripted_gateway
from tests.support.sdks import openai
from tests.support.upstream import Upstream, chat, end_after, refuse, stream

FRONT = "example/front"
FEATURES = ["tools", "json_mode", "structured_outputs", "logprobs", "reasoning"]
BOTH = pytest.mark.parametrize("streamed", [False, True])


@pytest.fixture(scope="module")
async def pair(
    data_dir: Path, conninfo: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[ScriptedGateway, ScriptedGateway]]:
    """Starts two gateways: the second one is the backend of the first, and has its own database."""
    behind = own_database(conninfo, "behind")
    key_file = tmp_path_factory.mktemp("behind") / "key"
    async with (
        Upstream(chat()) as upstream,
        scripted_gateway(
            data_dir, behind, upstream, model={"supported_features": FEATURES}
        ) as back,
    ):
        key_file.write_text(back.tenant.project_key)
        key_file.chmod(0o600)
        async with scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            urls=(f"{back.gateway.base_url}/v1",),
            backend={"protocol": "responses", "api_key_file": str(key_file)},
            model={"id": FRONT, "upstream_model": MODEL, "supported_features": FEATURES},
        ) as front:
            yield front, back


@pytest.fixture
async def front(pair: tuple[ScriptedGateway, ScriptedGateway]) -> ScriptedGateway:
    pair[0].upstream.play(chat())
    return await pair[0].with_tenant()


@pytest.fixture
async def client(front: ScriptedGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=front.tenant.project_key,
        base_url=f"{front.gateway.base_url}/v1",
        max_retries=0,
        _strict_response_validation=True,
    ) as made:
        yield made


async def test_responses(
    client: openai.AsyncOpenAI,
    front: ScriptedGateway,
    pair: tuple[ScriptedGateway, ScriptedGateway],
) -> None:
    back = pair[1]
    before = (await back.balance())["settled"]
    response = await client.responses.create(model=FRONT, input="Hello", instructions="Be brief.")
    assert response.output_text == "Hello"
    assert (await front.balance())["settled"] == COST
    assert (await back.balance())["settled"] - before == COST
    messages = front.upstream.requests[-1].json["messages"]
    assert [message["role"] for message in messages] == ["system", "user"]


async def test_responses_streamed(client: openai.AsyncOpenAI, front: ScriptedGateway) -> None:
    events = await client.responses.create(model=FRONT, input="Hello", stream=True)
    deltas = [
        event.delta
        async for event in events
        if isinstance(event, openai.types.responses.ResponseTextDeltaEvent)
    ]
    assert deltas == ["Hel", "lo"]
    async with client.responses.stream(model=FRONT, input="Hello") as told:
        final = await told.get_final_response()
    assert final.output_text == "Hello"
    assert (await front.balance())["settled"] == 2 * COST


async def test_chat(client: openai.AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(
        model=FRONT, messages=[{"role": "user", "content": "Hello"}], n=2
    )
    assert [choice.message.content for choice in completion.choices] == ["Hello", "Hello"]
    chunks = await client.chat.completions.create(
        model=FRONT,
        messages=[{"role": "user", "content": "Hello"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    told = [chunk async for chunk in chunks]
    texts = [choice.delta.content or "" for chunk in told for choice in chunk.choices]
    assert "".join(texts) == "Hello"
    assert told[-1].usage is not None
    assert told[-1].usage.total_tokens == 10


@BOTH
async def test_tools_over_several_turns(
    client: openai.AsyncOpenAI, front: ScriptedGateway, streamed: bool
) -> None:
    front.upstream.play(look_then_tell())
    await look_around(client, FRONT, streamed=streamed)
    request = front.upstream.requests[-1].json
    assert [message["role"] for message in request["messages"]] == [
        *("user", "assistant", "tool", "assistant", "tool"),
    ]
    assert request["tools"][0]["function"]["strict"] is True


async def test_tools_of_chat(client: openai.AsyncOpenAI, front: ScriptedGateway) -> None:
    front.upstream.play(look_then_tell())
    look: openai.types.chat.ChatCompletionFunctionToolParam = {
        "type": "function",
        "function": {"name": "look"},
    }
    history: list[Any] = [{"role": "user", "content": "Look around."}]
    for _ in range(2):
        completion = await client.chat.completions.create(
            model=FRONT, messages=history, tools=[look]
        )
        message = completion.choices[0].message
        assert completion.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        [call] = message.tool_calls
        assert call.type == "function"
        place = json.loads(call.function.arguments)["place"]
        history.append({"role": "assistant", "tool_calls": [call.model_dump()]})
        history.append({"role": "tool", "tool_call_id": call.id, "content": f"a {place}"})
    last = await client.chat.completions.create(model=FRONT, messages=history, tools=[look])
    assert last.choices[0].message.content == "I saw a room 0 and a room 1."


@BOTH
async def test_parallel_calls_and_reasoning(
    client: openai.AsyncOpenAI, front: ScriptedGateway, streamed: bool
) -> None:
    called = calls(("c1", "look", '{"place":"a"}'), ("c2", "look", '{"place":"b"}'))
    front.upstream.play(both({**called, "reasoning": "Hm."}, finish="tool_calls"))
    response = await turn(client, FRONT, [{"role": "user", "content": "Look."}], streamed=streamed)
    assert [item.type for item in response.output] == [
        *("reasoning", "function_call", "function_call"),
    ]
    assert [item.call_id for item in response.output[1:]] == ["c1", "c2"]


@BOTH
async def test_sealed_reasoning_goes_all_the_way(
    client: openai.AsyncOpenAI, front: ScriptedGateway, streamed: bool
) -> None:
    """Each gateway encrypts the reasoning for its own clients. The backend gets the plain text back."""
    front.upstream.play(both({"content": "Yes.", "reasoning": "Hm."}))
    asked: dict[str, Any] = {"model": FRONT, "include": ["reasoning.encrypted_content"]}
    if streamed:
        async with client.responses.stream(input="?", **asked) as events:
            first: Any = await events.get_final_response()
    else:
        first = await client.responses.create(input="?", **asked)
    thought = first.output[0].model_dump(exclude_none=True)
    assert thought["encrypted_content"]
    thought["content"] = []  # This client keeps only the encrypted content.
    history: list[Any] = [
        {"role": "user", "content": "?"},
        *(thought, first.output[1]),
        {"role": "user", "content": "Sure?"},
    ]
    await client.responses.create(input=history, **asked)
    messages = front.upstream.requests[-1].json["messages"]
    assert messages[1]["reasoning"] == "Hm."


async def test_failures_travel(client: openai.AsyncOpenAI, front: ScriptedGateway) -> None:
    front.upstream.play(refuse(400, "too long"))
    with pytest.raises(openai.UnprocessableEntityError):
        await client.responses.create(model=FRONT, input="Hello")
    with pytest.raises(openai.UnprocessableEntityError):
        await client.responses.create(model=FRONT, input="Hello", stream=True)
    front.upstream.play(end_after(2))
    events = await client.responses.create(model=FRONT, input="Hello", stream=True)
    assert [event.type async for event in events][-1] == "response.failed"
    front.upstream.play(stream(records([{"content": "He"}], finish="length")))
    events = await client.responses.create(model=FRONT, input="Hello", stream=True)
    assert [event.type async for event in events][-1] == "response.incomplete"
    balance = await front.balance()
    assert (balance["held"], balance["unsettled"]) == (0, 0)
