"""Tests the unmodified OpenAI SDK over Responses: create, stream, parse, and tools over several turns."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel

from tests.journeys.responses.sdk_turns import LOOK, look_around, turn
from tests.support.responses_answers import both, calls, look_then_tell, records
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway
from tests.support.sdks import openai
from tests.support.upstream import chat, reset_after, stream


@pytest.fixture
async def client(scripted: ScriptedGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    """Creates a client in strict mode, which rejects missing fields and wrong types."""
    async with openai.AsyncOpenAI(
        api_key=scripted.tenant.project_key,
        base_url=f"{scripted.gateway.base_url}/v1",
        max_retries=0,
        _strict_response_validation=True,
    ) as made:
        yield made


async def test_create(client: openai.AsyncOpenAI, scripted: ScriptedGateway) -> None:
    response = await client.responses.create(model=MODEL, input="Hello", instructions="Be brief.")
    assert response.output_text == "Hello"
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.total_tokens == 10
    assert response._request_id
    assert (await scripted.balance())["settled"] == COST


async def test_create_streamed(client: openai.AsyncOpenAI) -> None:
    events = await client.responses.create(model=MODEL, input="Hello", stream=True)
    deltas = [
        event.delta
        async for event in events
        if isinstance(event, openai.types.responses.ResponseTextDeltaEvent)
    ]
    assert deltas == ["Hel", "lo"]


async def test_stream(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="Hello") as events:
        kinds = [event.type async for event in events]
        final = await events.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == "Hello"


class Place(BaseModel):
    name: str
    rooms: int


async def test_parse(client: openai.AsyncOpenAI, scripted: ScriptedGateway) -> None:
    scripted.upstream.play(both({"content": '{"name": "Castle", "rooms": 7}'}))
    response = await client.responses.parse(model=MODEL, input="Where?", text_format=Place)
    assert response.output_parsed == Place(name="Castle", rooms=7)
    wanted = scripted.upstream.requests[-1].json["response_format"]
    assert wanted["json_schema"]["strict"] is True
    assert wanted["json_schema"]["schema"]["required"] == ["name", "rooms"]


async def test_parse_streamed(client: openai.AsyncOpenAI, scripted: ScriptedGateway) -> None:
    pieces = [{"content": '{"name": "Cas'}, {"content": 'tle", "rooms": 7}'}]
    scripted.upstream.play(stream(records(pieces)))
    async with client.responses.stream(model=MODEL, input="Where?", text_format=Place) as events:
        final = await events.get_final_response()
    assert final.output_parsed == Place(name="Castle", rooms=7)


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_over_several_turns(
    client: openai.AsyncOpenAI, scripted: ScriptedGateway, streamed: bool
) -> None:
    """The client sends the whole history in `input`, as objects of the SDK."""
    scripted.upstream.play(look_then_tell())
    history = await look_around(client, MODEL, streamed=streamed)
    roles = [message["role"] for message in scripted.upstream.requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]
    history.append({"role": "user", "content": "Thanks."})
    assert (await turn(client, MODEL, history, streamed=streamed)).status == "completed"


async def test_parallel_calls_streamed(
    client: openai.AsyncOpenAI, scripted: ScriptedGateway
) -> None:
    message = calls(("c1", "look", '{"place":"a"}'), ("c2", "look", '{"place":"b"}'))
    scripted.upstream.play(both(message, finish="tool_calls"))
    async with client.responses.stream(model=MODEL, input="Look.", tools=[LOOK]) as events:
        final = await events.get_final_response()
    called = [item for item in final.output if item.type == "function_call"]
    assert [item.call_id for item in called] == ["c1", "c2"]


async def test_reasoning_and_text_streamed(
    client: openai.AsyncOpenAI, scripted: ScriptedGateway
) -> None:
    scripted.upstream.play(stream(records([{"reasoning": "Hm."}, {"content": "Yes."}])))
    async with client.responses.stream(
        model=MODEL, input="?", reasoning={"effort": "low"}
    ) as events:
        final = await events.get_final_response()
    reasoning, message = final.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Hm."
    assert message.type == "message"


async def test_incomplete(client: openai.AsyncOpenAI, scripted: ScriptedGateway) -> None:
    scripted.upstream.play(both({"content": "Hel"}, finish="length"))
    response = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=1)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    events = await client.responses.create(model=MODEL, input="Hello", stream=True)
    assert [event.type async for event in events][-1] == "response.incomplete"


async def test_failure_in_the_middle_is_an_event(
    client: openai.AsyncOpenAI, scripted: ScriptedGateway
) -> None:
    scripted.upstream.play(reset_after(2))
    events = await client.responses.create(model=MODEL, input="Hello", stream=True)
    *_, last = [event async for event in events]
    assert isinstance(last, openai.types.responses.ResponseFailedEvent)
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    scripted.upstream.play(chat())
    await client.responses.create(model=MODEL, input="Hello")


async def test_own_fields_travel_in_extra_body(
    client: openai.AsyncOpenAI, scripted: ScriptedGateway
) -> None:
    response = await client.responses.create(
        model=MODEL,
        input="Hello",
        extra_body={"presence_penalty": 1, "policy_ids": []},
        extra_headers={"X-Service-Session-ID": "s"},
    )
    assert response.status == "completed"
    assert scripted.upstream.requests[-1].json["presence_penalty"] == 1


async def test_refusals_are_the_sdks_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="Hello", store=True)
    assert refused.value.param == "store"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="Hello", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(model="nobody", input="Hello", stream=True)
    assert missing.value.code == "model_not_found"


async def test_model_listing(client: openai.AsyncOpenAI) -> None:
    listed = [model.id async for model in client.models.list()]
    assert listed == [MODEL, "example/bare"]
    read = await client.models.retrieve(MODEL)
    assert read.id == MODEL
