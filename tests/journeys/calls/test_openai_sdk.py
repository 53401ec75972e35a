"""Tests the OpenAI SDK: plain calls, streams, structured outputs, tools and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pydantic
import pytest

from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway
from tests.support.sdks import openai
from tests.support.tables import each
from tests.support.upstream import (
    DONE,
    Verb,
    answer,
    chat,
    chat_records,
    chunk,
    completion,
    refuse,
    reset_after,
    reset_before_headers,
    sse,
    stream,
    usage_chunk,
)

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


THINKER = "example/thinker"


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    options = {"options": {"thinking": "chat_template_kwargs.enable_thinking"}}
    thinker = {"id": THINKER, "supported_features": ["reasoning"], **options}
    return {"model": options, "more_models": [thinker]}


@pytest.fixture
async def scripted(shared_scripted: ScriptedGateway) -> ScriptedGateway:
    await shared_scripted.works()
    return await shared_scripted.with_tenant()


@pytest.fixture
async def client(scripted: ScriptedGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{scripted.gateway.base_url}/v1",
        api_key=scripted.tenant.project_key,
        _strict_response_validation=True,
    ) as made:
        yield made


def answering(message: dict[str, Any], *, finish: str = "stop", **fields: Any) -> Verb:
    body = completion(**fields)
    body["choices"][0]["message"] = {"role": "assistant", **message}
    body["choices"][0]["finish_reason"] = finish
    return answer(body)


async def test_from_a_thread(scripted: ScriptedGateway) -> None:
    def ask() -> None:
        with openai.OpenAI(
            base_url=f"{scripted.gateway.base_url}/v1", api_key=scripted.tenant.project_key
        ) as client:
            found = client.chat.completions.create(model=MODEL, messages=HELLO)
            assert found.choices[0].message.content == "Hello"
            assert found._request_id
            with client.chat.completions.create(
                model=MODEL, messages=HELLO, stream=True
            ) as records:
                texts = [chunk.choices[0].delta.content or "" for chunk in records]
            assert "".join(texts) == "Hello"

    await asyncio.to_thread(ask)
    assert (await scripted.balance())["settled"] == 2 * COST


async def test_plain(scripted: ScriptedGateway, client: openai.AsyncOpenAI) -> None:
    found = await client.chat.completions.create(
        model=MODEL, messages=HELLO, max_completion_tokens=20, temperature=0.5, n=2, user="u"
    )
    assert found.object == "chat.completion"
    assert found.model == MODEL
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.choices[0].finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.total_tokens == 10
    assert found._request_id is not None
    entry = await scripted.entry(found._request_id)
    assert entry is not None
    assert entry.cost == COST


async def test_streaming(client: openai.AsyncOpenAI) -> None:
    records = await client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [record async for record in records]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(found.choices[0].delta.content or "" for found in chunks[:-1]) == "Hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 10


async def test_the_streaming_helper(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=HELLO, stream_options={"include_usage": True}
    ) as events:
        seen = [event async for event in events]
        final = await events.get_final_completion()
    assert "".join(event.delta for event in seen if event.type == "content.delta") == "Hello"
    assert [event.content for event in seen if event.type == "content.done"] == ["Hello"]
    assert final.choices[0].message.content == "Hello"
    assert final.usage is not None
    assert final.usage.completion_tokens == 3


async def test_structured_outputs_are_parsed(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI
) -> None:
    written = json.dumps({"city": "Bern", "degrees": 21})
    scripted.upstream.play(answer(completion(written)))
    found = await client.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Weather
    )
    assert found.choices[0].message.parsed == Weather(city="Bern", degrees=21)
    sent = scripted.upstream.requests[-1].json["response_format"]
    assert sent["json_schema"]["strict"] is True
    assert sent["json_schema"]["schema"]["required"] == ["city", "degrees"]
    scripted.upstream.play(stream(chat_records([written[:9], written[9:]])))
    async with client.chat.completions.stream(
        model=MODEL, messages=HELLO, response_format=Weather
    ) as events:
        final = await events.get_final_completion()
    assert final.choices[0].message.parsed == Weather(city="Bern", degrees=21)


async def test_tools_there_and_back(scripted: ScriptedGateway, client: openai.AsyncOpenAI) -> None:
    """Does the same as every client: appends the answer's message unchanged, adds the result, asks again."""
    scripted.upstream.play(
        answering({"content": None, "tool_calls": [CALL], "refusal": None}, finish="tool_calls"),
        chat(),
    )
    messages = list(HELLO)
    first = await client.chat.completions.create(model=MODEL, messages=messages, tools=[ADD])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert message.tool_calls[0].to_dict() == CALL
    messages.append(message)  # type: ignore[arg-type] # as every example does it
    messages.append({"role": "tool", "tool_call_id": CALL["id"], "content": "3"})  # type: ignore[typeddict-item]
    second = await client.chat.completions.create(model=MODEL, messages=messages, tools=[ADD])
    assert second.choices[0].message.content == "Hello"
    asked, called, result = scripted.upstream.requests[-1].json["messages"]
    assert asked == HELLO[0]
    assert (called["role"], called["tool_calls"]) == ("assistant", [CALL])
    assert result["content"] == "3"
    assert (await scripted.balance())["resolutions"] == 2


async def test_an_ordinary_answer_comes_back_as_a_question(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI
) -> None:
    """The answers also contain fields that the interface's messages do not have."""
    citation = {"url": "https://example.org", "title": "t", "start_index": 0, "end_index": 5}
    messages: list[dict[str, Any]] = [
        {"content": "Hello", "refusal": None, "annotations": [], "audio": None},
        {"content": "Hello", "reasoning_content": "Well.", "tool_calls": [], "function_call": None},
    ]
    for message in messages:
        scripted.upstream.play(answering(message), chat())
        first = await client.chat.completions.create(model=MODEL, messages=HELLO)
        history: list[Any] = [*HELLO, first.choices[0].message, *HELLO]
        second = await client.chat.completions.create(model=MODEL, messages=history)
        assert second.choices[0].message.content == "Hello"
    cited = {"type": "url_citation", "url_citation": citation}
    scripted.upstream.play(answering({"content": "Hello", "annotations": [cited]}))
    found = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert found.choices[0].message.annotations is not None
    assert found.choices[0].message.annotations[0].url_citation.title == "t"


@each("are_repeated", [False, True])
async def test_tools_in_a_stream(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI, are_repeated: bool
) -> None:
    """Some servers repeat id and name in each piece, and the SDK joins the ids and names of all pieces."""
    first, name = ({"index": 0, **CALL}, {"name": "add"})
    later, no_name = (first, name) if are_repeated else ({"index": 0}, {})
    pieces: list[Any] = [{**first, "function": {**name, "arguments": ""}}]
    pieces += [{**later, "function": {**no_name, "arguments": part}} for part in ('{"a"', ": 1}")]
    records = [sse(chunk(delta={"tool_calls": [piece]})) for piece in pieces]
    scripted.upstream.play(
        stream([*records, sse(chunk(finish="tool_calls")), sse(usage_chunk()), DONE])
    )
    async with client.chat.completions.stream(model=MODEL, messages=HELLO, tools=[ADD]) as events:
        kinds = [event.type async for event in events]
        final = await events.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    called = final.choices[0].message.tool_calls
    assert called is not None
    assert (called[0].id, called[0].function.name) == ("call_1", "add")
    assert called[0].function.arguments == '{"a": 1}'


async def test_fields_beyond_the_sdk(scripted: ScriptedGateway, client: openai.AsyncOpenAI) -> None:
    scripted.upstream.play(answering({"content": "Hello", "reasoning_content": "Well."}))
    found = await client.chat.completions.create(
        model=THINKER,
        messages=HELLO,
        extra_body={"thinking": True, "reasoning": {"effort": "low"}, "policy_ids": []},
        extra_headers={"X-Service-Session-ID": "s"},
    )
    extra = found.choices[0].message.model_extra
    assert extra is not None
    assert (extra["reasoning"], extra["reasoning_content"]) == ("Well.", "Well.")
    sent = scripted.upstream.requests[-1].json
    assert sent["chat_template_kwargs"] == {"enable_thinking": True}
    assert sent["reasoning_effort"] == "low"
    hidden = await client.chat.completions.create(
        model=THINKER, messages=HELLO, extra_body={"include_reasoning": False}
    )
    assert not hidden.choices[0].message.model_extra


# The SDK sends a rejected call once, and repeats a call after a temporary error: three attempts.
ONCE, THRICE = 1, 3
FAILURES: list[tuple[dict[str, Any], Verb, str, int, int]] = [
    ({"model": ""}, chat(), "BadRequestError", 400, 0),
    ({"model": "absent"}, chat(), "NotFoundError", 404, 0),
    ({"logit_bias": {"1": 1}}, chat(), "InternalServerError", 501, 0),
    ({}, refuse(400), "UnprocessableEntityError", 422, ONCE),
    ({}, reset_before_headers(), "InternalServerError", 502, ONCE),
    ({"n": 2}, answer(completion(choices=1)), "InternalServerError", 502, ONCE),
    ({}, refuse(429, headers=[("retry-after", "1")]), "RateLimitError", 429, THRICE),
]


@pytest.mark.parametrize(("fields", "verb", "error", "status", "attempts"), FAILURES)
async def test_errors_have_their_class_and_their_retries(
    scripted: ScriptedGateway,
    client: openai.AsyncOpenAI,
    fields: dict[str, Any],
    verb: Verb,
    error: str,
    status: int,
    attempts: int,
) -> None:
    calls = len(scripted.upstream.requests)
    scripted.upstream.play(verb)
    with pytest.raises(getattr(openai, error)) as raised:
        await client.chat.completions.create(
            **{"model": MODEL, "messages": HELLO, **fields}, max_tokens=10
        )
    assert raised.value.status_code == status
    assert raised.value.code
    assert raised.value.type
    assert isinstance(raised.value.body, dict)
    assert raised.value.request_id == raised.value.body["request_id"]
    assert len(scripted.upstream.requests) - calls == attempts
    scripted.upstream.play(chat())
    assert (await scripted.chat()).status_code == 200
    assert len(await scripted.entries()) == attempts + 1
    assert (await scripted.balance())["held"] == 0


async def test_what_passes_is_overcome(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI
) -> None:
    scripted.upstream.play(refuse(500), refuse(503), chat())
    found = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert found.choices[0].message.content == "Hello"
    entries = await scripted.entries()
    assert sorted(entry.status for entry in entries) == ["released", "released", "settled"]
    assert (await scripted.balance())["settled"] == COST


async def test_refusals_of_money_and_keys(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI
) -> None:
    poor = await scripted.with_tenant(credit=0)
    cases: list[tuple[str, Callable[[openai.APIStatusError], bool]]] = [
        ("tkp_nobody", lambda error: isinstance(error, openai.AuthenticationError)),
        (scripted.tenant.admin_key, lambda error: isinstance(error, openai.PermissionDeniedError)),
        (poor.tenant.project_key, lambda error: error.status_code == 402),
    ]
    for key, expected in cases:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.with_options(api_key=key).chat.completions.create(
                model=MODEL, messages=HELLO
            )
        assert expected(raised.value)


async def test_a_stream_that_breaks_raises_and_is_not_repeated(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI
) -> None:
    calls = len(scripted.upstream.requests)
    scripted.upstream.play(reset_after(2))
    records = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    texts = []
    with pytest.raises(openai.APIError) as raised:
        async for record in records:
            texts.append(record.choices[0].delta.content or "")  # noqa: PERF401 - it breaks
    assert "".join(texts) == "0 1 "
    assert raised.value.code == "provider_unavailable"
    assert len(scripted.upstream.requests) == calls + 1
    (entry,) = await scripted.entries()
    assert entry.cost == entry.delivered_pieces(2)


async def test_leaving_a_stream_early(
    scripted: ScriptedGateway, client: openai.AsyncOpenAI
) -> None:
    records = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    async with records:
        async for _ in records:
            break
    assert (await scripted.balance())["settled"] > 0


async def test_logprobs(scripted: ScriptedGateway, client: openai.AsyncOpenAI) -> None:
    body = completion()
    token = {"token": "Hello", "logprob": -0.5, "bytes": [72], "top_logprobs": []}
    body["choices"][0]["logprobs"] = {"content": [token], "refusal": None}
    scripted.upstream.play(answer(body))
    found = await client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=0
    )
    assert found.choices[0].logprobs is not None
    assert found.choices[0].logprobs.content is not None
    assert found.choices[0].logprobs.content[0].logprob == -0.5
