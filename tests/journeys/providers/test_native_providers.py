"""Tests the unmodified OpenAI SDK with every provider that has a native protocol.

The tests include JSON and streams, chat and Responses, a loop with tool calls, structured output,
signed reasoning over three turns, token counts, and the exact charges. Features of a single provider
have their own test files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.providers.native_providers import INPUT, OUTPUT, PROVIDERS, Provider
from tests.journeys.providers.programs import (
    BOTH,
    WEATHER,
    Payer,
    ask_chat,
    client_of,
    parse,
    provider_gateway,
    respond,
)
from tests.support import responses_answers
from tests.support.scripted_gateway import ScriptedGateway, read_stream
from tests.support.tables import each
from tests.support.token_counts import count
from tests.support.upstream import Peer, Verb, refuse


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, ScriptedGateway]]:
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(provider_gateway(data_dir, conninfo, provider))
            for name, provider in PROVIDERS.items()
        }


@pytest.fixture(params=PROVIDERS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def provider(name: str) -> Provider:
    return PROVIDERS[name]


@pytest.fixture
async def scripted(shared: dict[str, ScriptedGateway], name: str) -> ScriptedGateway:
    await shared[name].works()
    return await shared[name].with_tenant()


def _calls(scripted: ScriptedGateway, provider: Provider, since: int) -> list[dict[str, Any]]:
    """Returns the bodies of the calls that the backend got, without token counts."""
    requests = scripted.upstream.requests[since:]
    return [request.json for request in requests if not provider.is_count(request.path)]


@BOTH
async def test_a_chat_program_runs_its_loop_of_tools(
    scripted: ScriptedGateway, provider: Provider, streamed: bool
) -> None:
    said = provider.text("I look.")
    scripted.upstream.play(
        provider.counting(
            provider.answer(said, *provider.calls, calling=True),
            provider.answer(provider.text("Wet and dry.")),
        )
    )
    since = len(scripted.upstream.requests)
    messages: list[Any] = [{"role": "user", "content": "The weather in Paris and Rome?"}]
    async with client_of(scripted) as client:
        for _ in range(5):
            answered = await ask_chat(client, messages, streamed=streamed)
            messages.append(answered)
            if not answered.get("tool_calls"):
                break
            for call in answered["tool_calls"]:
                place = json.loads(call["function"]["arguments"])["place"]
                content = {"Paris": "wet", "Rome": "dry"}[place]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    assert messages[-1]["content"] == "Wet and dry."
    first, second = _calls(scripted, provider, since)
    assert json.dumps(WEATHER["parameters"]) in json.dumps(first)
    assert second[provider.names[0]][1:] == [
        provider.turn(provider.names[2], [said, *provider.calls_sent]),
        provider.turn("user", provider.results(("c1", "wet"), ("c2", "dry"))),
    ]
    assert (await scripted.balance())["settled"] == 2 * provider.cost


@BOTH
async def test_a_responses_program_thinks_through_three_turns(
    scripted: ScriptedGateway, provider: Provider, streamed: bool
) -> None:
    """The provider gets its signed blocks back unchanged, in the same order and in the same turns."""
    first, *others = provider.thoughts
    scripted.upstream.play(
        provider.counting(
            provider.answer(*first, calling=True), *(provider.answer(*blocks) for blocks in others)
        )
    )
    since = len(scripted.upstream.requests)
    said: list[Any] = [{"role": "user", "content": "The weather in Paris?"}]
    async with client_of(scripted) as client:
        said += await respond(client, said, streamed=streamed)
        said.append({"type": "function_call_output", "call_id": "c1", "output": "wet"})
        said += await respond(client, said, streamed=streamed)
        said.append({"role": "user", "content": "Sure?"})
        said += await respond(client, said, streamed=streamed)
    bodies = _calls(scripted, provider, since)
    outer, _, model = provider.names
    for body in bodies:
        assert {name: body.get(name) for name in provider.asks_to_reason} == provider.asks_to_reason
    assert bodies[2][outer] == [
        provider.turn("user", [provider.text("The weather in Paris?")]),
        provider.turn(model, provider.thoughts_sent[0]),
        provider.turn("user", provider.results(("c1", "wet"))),
        provider.turn(model, provider.thoughts_sent[1]),
        provider.turn("user", [provider.text("Sure?")]),
    ]
    assert bodies[1][outer] == bodies[2][outer][:3]
    # The client sees the text of the thoughts, but no signature.
    assert "Thought 0." in json.dumps(said)
    assert "c2lnbmF0dXJl" not in json.dumps(said)
    assert (await scripted.balance())["settled"] == 3 * provider.cost


async def test_another_project_cannot_use_signed_thoughts(
    scripted: ScriptedGateway, provider: Provider
) -> None:
    other = await scripted.with_tenant()
    first, *_ = provider.thoughts
    scripted.upstream.play(
        provider.counting(provider.answer(*first, calling=True), provider.ordinary())
    )
    async with client_of(scripted) as client:
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        said += await respond(client, said, streamed=False)
    said.append({"type": "function_call_output", "call_id": "c1", "output": "wet"})
    since = len(scripted.upstream.requests)
    async with client_of(other) as client:
        await respond(client, said, streamed=False)
    (body,) = _calls(scripted, provider, since)
    written = json.dumps(body)
    assert "c2lnbmF0dXJl" not in written
    assert "aGlkZGVu" not in written
    assert "weather" in written


@BOTH
async def test_structured_output(
    scripted: ScriptedGateway, provider: Provider, streamed: bool
) -> None:
    verb = provider.answer(provider.text('{"who": "the tenant"}'))
    scripted.upstream.play(provider.counting(verb, verb))
    since = len(scripted.upstream.requests)
    async with client_of(scripted) as client:
        chat, response = await parse(client, streamed=streamed)
    assert chat == response == Payer(who="the tenant")
    bodies = _calls(scripted, provider, since)
    assert len(bodies) == 2
    for body in bodies:
        schema = provider.schema(body)
        assert (schema["required"], schema["additionalProperties"]) == (["who"], False)
    assert (await scripted.balance())["settled"] == 2 * provider.cost


async def test_the_providers_count_is_exact_and_bounds_the_prompt(
    scripted: ScriptedGateway, provider: Provider
) -> None:
    scripted.upstream.play(provider.counting(provider.answer()))
    counted = await count(scripted)
    assert counted.json() == {"input_tokens": provider.input_tokens}
    assert counted.headers["x-token-count-estimated"] == "false"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    answered = await scripted.chat(messages=[{"role": "user", "content": [image]}])
    entry = await scripted.entry_of(answered)
    assert entry.prompt_tokens_max == provider.input_tokens + provider.tokens_per_image
    assert (entry.cost, (await scripted.balance())["settled"]) == (provider.cost, provider.cost)
    usage = answered.json()["usage"]
    told = usage["prompt_tokens"], usage["completion_tokens"]
    assert (*told, usage["prompt_tokens_details"]["cached_tokens"]) == provider.caller_usage


async def test_a_responses_client_sees_what_was_written_to_the_cache(
    scripted: ScriptedGateway, provider: Provider
) -> None:
    scripted.upstream.play(provider.counting(provider.answer(provider.text("Hello"))))
    answered = await responses_answers.respond(scripted)
    usage = answered.json()["usage"]
    cached, written = usage["input_tokens_details"].values()
    # Gemini reports no cache writes.
    assert (cached, written) == (30, usage["input_tokens"] - 130)


@each(
    ("name", "fields", "param"),
    [
        pytest.param(name, fields, param, id=f"{name}-{param}")
        for name, provider in PROVIDERS.items()
        for fields, param in provider.refused
    ],
)
async def test_what_the_provider_cannot_do_is_501(
    shared: dict[str, ScriptedGateway], name: str, fields: dict[str, Any], param: str
) -> None:
    scripted = await shared[name].with_tenant()
    since = len(scripted.upstream.requests)
    answered = await scripted.chat(**fields)
    assert answered.status_code == 501
    assert answered.json()["error"]["param"] == param
    assert _calls(scripted, PROVIDERS[name], since) == []
    assert (await scripted.balance())["settled"] == 0


async def test_arguments_that_are_nested_too_deeply_are_400(
    scripted: ScriptedGateway, provider: Provider
) -> None:
    """The limit for the nesting of a body does not apply to arguments, which are text in the body."""
    scripted.upstream.play(provider.counting())
    deep = '{"place": ' + 2000 * "[" + 2000 * "]" + "}"
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": deep}}
    messages = [
        {"role": "user", "content": "The weather?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Wet."},
    ]
    tools = [{"type": "function", "function": WEATHER}]
    answered = await scripted.chat(messages=messages, tools=tools)
    assert answered.status_code == 400, answered.text
    assert answered.json()["error"]["param"] == "messages[1].tool_calls[0]"
    assert (await scripted.balance())["unsettled"] == 0


async def test_who_is_charged_for_faults(scripted: ScriptedGateway, provider: Provider) -> None:
    """The tenant pays nothing if nothing was generated. Otherwise the cost consists of the reported (or
    counted) input and of the whole output of the hold, because the model reasons."""
    scripted.upstream.play(provider.counting(provider.refuse()))
    refused = await scripted.chat()
    assert refused.status_code == 502
    assert (await scripted.entry_of(refused)).status == "released"
    scripted.upstream.play(provider.counting(provider.breaking()))
    broken = await scripted.chat(stream=True)
    entry = await scripted.entry_of(broken)
    assert (entry.status, entry.estimated) == ("settled", True)
    known = provider.input_tokens if provider.told_input is None else provider.told_input
    assert entry.cost == known * INPUT + entry.output_tokens_max * OUTPUT
    assert (await scripted.balance())["unsettled"] == 0


@BOTH
@pytest.mark.parametrize("first", [0, 1])
async def test_a_completion_that_is_refused_leaves_the_charge_of_the_others_exact(
    scripted: ScriptedGateway, provider: Provider, streamed: bool, first: int
) -> None:
    """Each of three completions is a separate call. The first or second one is refused with 429, and the
    others are still being written then: they are read to their end, each once."""

    async def late(peer: Peer) -> None:
        await asyncio.sleep(0.4)
        await provider.answer(provider.text("Hello"))(peer)

    script: list[Verb] = [late, late]
    script.insert(first, refuse(429))
    scripted.upstream.play(provider.counting(*script))
    since = len(scripted.upstream.requests)
    answered = await scripted.chat(n=3, stream=streamed)
    entry = await scripted.entry_of(answered)
    assert (entry.status, entry.cost, entry.estimated) == ("settled", 2 * provider.cost, False)
    assert len(_calls(scripted, provider, since)) == 3
    if not streamed:
        assert answered.status_code == 429
        assert answered.headers["x-should-retry"] == "false"
        return
    said = read_stream(answered.text)
    texts = ["", "", ""]
    for chunk in said.chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert sorted(texts) == ["", "Hello", "Hello"]
    assert said.error is not None
    assert said.error["code"] == "rate_limit_exceeded"
