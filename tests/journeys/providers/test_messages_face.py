"""Tests the unmodified Anthropic SDK with every provider that has a native protocol.

The tests include a loop with tool calls and signed reasoning over three turns, as JSON and streamed,
and check the exact charges.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.providers.native_providers import (
    INPUT,
    OUTPUT,
    PROVIDERS,
    SEARCH,
    WRITE_1H,
    Provider,
)
from tests.journeys.providers.programs import BOTH, WEATHER, provider_gateway
from tests.support import upstream_messages as messages
from tests.support.messages_answers import answered, asked, assert_refused, send
from tests.support.scripted_gateway import MODEL, ScriptedGateway, answering_gateway
from tests.support.sdks import anthropic
from tests.support.token_counts import USER
from tests.support.upstream import Verb, answer, stream
from tests.support.upstream_responses import respond
from tests.support.upstream_wire import call_item, message_item, reasoning_item

TOOL: Any = {
    "name": "weather",
    "description": WEATHER["description"],
    "input_schema": WEATHER["parameters"],
}
MARK = {"type": "ephemeral"}


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[dict[str, ScriptedGateway]]:
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                provider_gateway(data_dir, conninfo, provider, input_modalities=["text", "file"])
            )
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


@pytest.fixture
async def claude(shared: dict[str, ScriptedGateway]) -> ScriptedGateway:
    await shared["anthropic"].works()
    return await shared["anthropic"].with_tenant()


@pytest.fixture(scope="module")
async def shared_responses(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        backend={"protocol": "responses"},
        model={"supported_features": ["tools", "reasoning"]},
        extensions={"messages": True},
    ) as running:
        yield running


def _calls(scripted: ScriptedGateway, provider: Provider, since: int) -> list[dict[str, Any]]:
    """Returns the bodies of the calls that the backend got, without token counts."""
    requests = scripted.upstream.requests[since:]
    return [request.json for request in requests if not provider.is_count(request.path)]


async def _ask(
    scripted: ScriptedGateway, said: list[Any], *, streamed: bool, **fields: Any
) -> list[dict[str, Any]]:
    """Returns the content of the next answer. The answer is also appended to `said`, in the form in
    which a client sends it back."""
    fields = {"model": MODEL, "max_tokens": 4096, "messages": said, "tools": [TOOL], **fields}
    base_url, api_key = scripted.gateway.base_url, scripted.tenant.project_key
    async with anthropic.AsyncAnthropic(
        base_url=base_url, api_key=api_key, max_retries=0
    ) as client:
        if streamed:
            async with client.messages.stream(**fields) as answering:
                async for _ in answering:
                    pass
                message = await answering.get_final_message()
        else:
            message = await client.messages.create(**fields)
    content = [block.model_dump(exclude_none=True) for block in message.content]
    said.append({"role": "assistant", "content": content})
    return content


def _results(*results: tuple[str, str]) -> dict[str, Any]:
    blocks = [
        {"type": "tool_result", "tool_use_id": call_id, "content": text}
        for call_id, text in results
    ]
    return {"role": "user", "content": blocks}


@BOTH
async def test_a_program_runs_its_loop_of_tools(
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
    turns: list[Any] = [{"role": "user", "content": "The weather in Paris and Rome?"}]
    content = await _ask(scripted, turns, streamed=streamed)
    assert [block.get("input") for block in content if block["type"] == "tool_use"] == [
        {"place": "Paris"},
        {"place": "Rome"},
    ]
    turns.append(_results(("c1", "wet"), ("c2", "dry")))
    (last,) = await _ask(scripted, turns, streamed=streamed)
    assert last["text"] == "Wet and dry."
    first, second = _calls(scripted, provider, since)
    assert json.dumps(WEATHER["parameters"]) in json.dumps(first)
    # The provider gets its signatures back, because the Messages protocol has a field for them.
    assert second[provider.names[0]][1:] == [
        provider.turn(provider.names[2], [said, *provider.calls]),
        provider.turn("user", provider.results(("c1", "wet"), ("c2", "dry"))),
    ]
    assert (await scripted.balance())["settled"] == 2 * provider.cost


@BOTH
async def test_a_program_thinks_through_three_turns(
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
    fields: Any = {
        "streamed": streamed,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
    }
    turns: list[Any] = [{"role": "user", "content": "The weather in Paris?"}]
    await _ask(scripted, turns, **fields)
    turns.append(_results(("c1", "wet")))
    await _ask(scripted, turns, **fields)
    turns.append({"role": "user", "content": "Sure?"})
    await _ask(scripted, turns, **fields)
    bodies = _calls(scripted, provider, since)
    outer, _, model = provider.names
    assert bodies[2][outer] == [
        provider.turn("user", [provider.text("The weather in Paris?")]),
        provider.turn(model, provider.thoughts_sent[0]),
        provider.turn("user", provider.results(("c1", "wet"))),
        provider.turn(model, provider.thoughts_sent[1]),
        provider.turn("user", [provider.text("Sure?")]),
    ]
    assert "Thought 0." in json.dumps(turns)
    assert "c2lnbmF0dXJl" not in json.dumps(turns)
    assert (await scripted.balance())["settled"] == 3 * provider.cost


@BOTH
async def test_usage_is_that_of_the_provider(
    scripted: ScriptedGateway, provider: Provider, streamed: bool
) -> None:
    scripted.upstream.play(provider.counting(provider.answer(provider.text("Hi"))))
    usage = (await answered(scripted, stream=streamed))["usage"]
    told, output, cached = provider.caller_usage
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage[part] for part in parts) == told
    assert (usage["cache_read_input_tokens"], usage["output_tokens"]) == (cached, output)
    assert (await scripted.balance())["settled"] == provider.cost


async def test_the_beginning_tells_the_input(claude: ScriptedGateway) -> None:
    usage = {"input_tokens": 100, "cache_read_input_tokens": 30, "output_tokens": 20}
    claude.upstream.play(messages.message(usage=usage))
    found = await send(claude, stream=True)
    told = json.loads(found.text.split("\n")[1].removeprefix("data: "))["message"]["usage"]
    assert (told["input_tokens"], told["cache_read_input_tokens"]) == (100, 30)
    assert told["output_tokens"] == 0


@BOTH
@pytest.mark.parametrize(
    ("reason", "sequence", "shown"),
    [
        ("end_turn", None, None),
        ("max_tokens", None, None),
        ("stop_sequence", "END", "END"),
        # A text that the client did not send may be anything, and no policy judges it.
        ("stop_sequence", "another text", None),
        ("tool_use", None, None),
        ("pause_turn", None, None),
        ("refusal", None, None),
        ("model_context_window_exceeded", None, None),
    ],
)
async def test_every_stop_reason_of_a_messages_backend(
    claude: ScriptedGateway, reason: str, sequence: str | None, shown: str | None, streamed: bool
) -> None:
    stopped: dict[str, Any] = {"stop_reason": reason, "stop_sequence": sequence}
    *before, _, last = messages.message_records()
    delta = messages.record("message_delta", delta=stopped, usage=messages.MESSAGES_USAGE)
    verb = stream([*before, delta, last]) if streamed else answer(messages.whole_message(**stopped))
    claude.upstream.play(_counting(verb))
    message = await answered(claude, stream=streamed, stop_sequences=["STOP", "END"])
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, shown)


def _counting(verb: Verb) -> Verb:
    async def counting(peer: Any) -> None:
        if peer.request.path.endswith("/count_tokens"):
            await messages.message()(peer)
        else:
            await verb(peer)

    return counting


async def test_a_messages_backend_gets_what_was_marked(claude: ScriptedGateway) -> None:
    use = messages.tool_block("t1", "weather", place="Paris")
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "wet"}
    fields: dict[str, Any] = {
        "max_tokens": 4096,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": MARK}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look.", "cache_control": MARK}]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{**result, "is_error": True, "cache_control": MARK}]},
        ],
        "tools": [{**TOOL, "cache_control": {**MARK, "ttl": "1h"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "metadata": {"user_id": "u" * 200},
        "stop_sequences": ["END"],
        "temperature": 1,
    }
    sent = await asked(claude, **fields)
    assert sent == {**fields, "model": "upstream-chat", "stream": False}


async def test_an_effort_alone_asks_for_no_reasoning(claude: ScriptedGateway) -> None:
    sent = await asked(claude, output_config={"effort": "high"})
    assert "thinking" not in sent
    assert sent["output_config"] == {"effort": "high"}
    sent = await asked(claude, output_config={"effort": "high"}, thinking={"type": "adaptive"})
    assert sent["thinking"] == {"type": "adaptive"}
    sent = await asked(claude, output_config={"effort": "high"}, thinking={"type": "disabled"})
    assert sent["thinking"] == {"type": "disabled"}
    assert sent["output_config"] == {"effort": "high"}


async def test_the_whole_prompt_is_marked_at_its_end(claude: ScriptedGateway) -> None:
    sent = await asked(claude, cache_control={**MARK, "ttl": "1h"})
    block = {"type": "text", "text": "Hello", "cache_control": {**MARK, "ttl": "1h"}}
    assert sent["messages"] == [{"role": "user", "content": [block]}]
    # If the provider reports no lifetime of a cache write, the price for one hour is charged.
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 100, "output_tokens": 5}
    claude.upstream.play(messages.message(usage=usage))
    before = (await claude.balance())["settled"]
    await answered(claude, cache_control={**MARK, "ttl": "1h"})
    cost = 10 * INPUT + 100 * WRITE_1H + 5 * OUTPUT
    assert (await claude.balance())["settled"] - before == cost


@BOTH
async def test_reasoning_whose_text_is_kept_back(claude: ScriptedGateway, streamed: bool) -> None:
    """The client gets a thinking block without text, and the provider gets the signature back."""
    blocks = [messages.thinking_block("", "c2ln"), messages.text_block("Yes.")]
    claude.upstream.play(messages.message(*blocks))
    message = await answered(claude, stream=streamed, thinking={"type": "adaptive"})
    thinking, _ = message["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "")
    said = [USER, {"role": "assistant", "content": message["content"]}, USER]
    sent = await asked(claude, messages=said)
    assert sent["messages"][1]["content"] == blocks


@BOTH
async def test_a_search_and_its_citations(claude: ScriptedGateway, streamed: bool) -> None:
    citation = {
        "type": "web_search_result_location",
        "url": "https://a.example",
        "title": "A",
        "cited_text": "wet",
        "encrypted_index": "x",
    }
    cited = {**messages.text_block("It is wet."), "citations": [citation]}
    claude.upstream.play(messages.message(cited, messages.text_block(" Really.")))
    tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    message = await answered(claude, stream=streamed, tools=[tool])
    first, second = message["content"]
    assert [found["url"] for found in first["citations"]] == ["https://a.example"]
    assert (first["text"], second["text"]) == ("It is wet.", " Really.")
    sent = claude.upstream.requests[-1].json
    assert sent["tools"] == [tool]
    limited = {**tool, "allowed_domains": ["a.example"]}
    found = await send(claude, tools=[limited])
    assert_refused(found, 501, "not_implemented", "tools[0].allowed_domains")


_SEARCHED = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "rent"},
}
_RESULTS = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://a.example",
            "title": "Rent",
            "encrypted_content": "Eo8B" * 100,
            "page_age": "1 day ago",
        }
    ],
}
_AGAIN = {**_SEARCHED, "id": "srvtoolu_2", "input": {"query": "rents"}}
_SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search"}


@BOTH
async def test_a_paused_answer_is_continued_with_its_searches(
    claude: ScriptedGateway, streamed: bool
) -> None:
    """The provider gets its searches and their results back, so it does not search again."""
    paused = (messages.text_block("I look."), _SEARCHED, _RESULTS, _AGAIN)
    searched = {**messages.MESSAGES_USAGE, "server_tool_use": {"web_search_requests": 1}}
    claude.upstream.play(
        _counting(messages.message(*paused, stop_reason="pause_turn", usage=searched))
    )
    turns: list[Any] = [{"role": "user", "content": "Rents?"}]
    content = await _ask(claude, turns, streamed=streamed, tools=[_SEARCH_TOOL])
    assert content == list(paused)
    claude.upstream.play(_counting(messages.message(messages.text_block("High."))))
    await _ask(claude, turns, streamed=streamed, tools=[_SEARCH_TOOL])
    assert claude.upstream.requests[-1].json["messages"] == [
        {"role": "user", "content": [messages.text_block("Rents?")]},
        {"role": "assistant", "content": list(paused)},
    ]
    cost = INPUT * 12 + OUTPUT * 5
    assert (await claude.balance())["settled"] == 2 * cost + SEARCH


async def test_a_search_is_returned_as_it_was_marked(claude: ScriptedGateway) -> None:
    marked = {**_RESULTS, "cache_control": MARK}
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    for result in (marked, {**_RESULTS, "content": failed}):
        answer_ = {"role": "assistant", "content": [_SEARCHED, result]}
        sent = await asked(claude, messages=[USER, answer_], tools=[_SEARCH_TOOL])
        assert sent["messages"][1]["content"] == [_SEARCHED, result]


@pytest.mark.parametrize(
    ("block", "status", "place"),
    [
        ({**_SEARCHED, "name": "code_execution"}, 501, "type"),
        ({**_RESULTS, "type": "web_fetch_tool_result"}, 501, "type"),
        ({**_SEARCHED, "input": "rent"}, 400, "input"),
        ({**_RESULTS, "content": "found"}, 400, "content"),
    ],
)
async def test_other_blocks_of_a_provider(
    claude: ScriptedGateway, block: dict[str, Any], status: int, place: str
) -> None:
    """The gateway offers no other tool that the provider runs."""
    said = {"role": "assistant", "content": [block]}
    code = "not_implemented" if status == 501 else "invalid_request"
    found = await send(claude, messages=[USER, said], tools=[_SEARCH_TOOL])
    assert_refused(found, status, code, f"messages[1].content[0].{place}")
    found = await send(claude, messages=[{**said, "role": "user"}], tools=[_SEARCH_TOOL])
    assert found.status_code in (400, 501)


async def test_a_hold_covers_searches_that_are_still_to_be_made(claude: ScriptedGateway) -> None:
    holds = []
    for content in ([_SEARCHED, _RESULTS], [_SEARCHED, _RESULTS, _AGAIN]):
        said = {"role": "assistant", "content": content}
        found = await send(claude, messages=[USER, said], tools=[_SEARCH_TOOL])
        holds.append((await claude.entry_of(found)).hold)
    assert holds[1] >= holds[0] + SEARCH


async def test_no_tool_may_be_chosen_and_so_no_search(
    shared: dict[str, ScriptedGateway],
) -> None:
    """Gemini's function calling mode does not apply to searches."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    none = {"type": "none"}
    for name in ("anthropic", "gemini"):
        await shared[name].works()
        scripted = await shared[name].with_tenant()
        assert "tools" not in await asked(scripted, tools=[search], tool_choice=none)
        sent = await asked(scripted, tools=[search, TOOL], tool_choice=none)
        assert "search" not in json.dumps(sent["tools"]).lower()
        assert TOOL["name"] in json.dumps(sent["tools"])


async def test_the_search_is_the_only_tool_if_it_is_chosen(claude: ScriptedGateway) -> None:
    """Claude Code sends such a request for its tool WebSearch."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    chosen = {"type": "tool", "name": "web_search"}
    for tools in ([search], [TOOL, search]):
        sent = await asked(claude, tools=tools, tool_choice=chosen)
        assert (sent["tools"], sent["tool_choice"]) == ([search], {"type": "any"})
    found = await send(claude, tools=[TOOL], tool_choice=chosen)
    assert_refused(found, 400, "invalid_request", "tool_choice.name")


async def test_gemini_cannot_force_a_search(shared: dict[str, ScriptedGateway]) -> None:
    await shared["gemini"].works()
    gemini = await shared["gemini"].with_tenant()
    search = {"type": "web_search_20250305", "name": "web_search"}
    found = await send(gemini, tools=[search], tool_choice={"type": "any"})
    assert_refused(found, 501, "not_implemented", "tool_choice")
    sent = await asked(gemini, tools=[search], tool_choice={"type": "tool", "name": "web_search"})
    assert sent["tools"] == [{"googleSearch": {}}]
    assert "toolConfig" not in sent


async def test_a_later_system_message_is_refused_by_gemini(
    shared: dict[str, ScriptedGateway],
) -> None:
    """Gemini accepts only one system instruction, which comes before all messages."""
    scripted = await shared["gemini"].with_tenant()
    turns = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go on."},
    ]
    found = await send(scripted, messages=turns)
    assert_refused(found, 501, "not_implemented", "messages[2].role")
    assert (await scripted.balance())["settled"] == 0


@BOTH
async def test_a_responses_backend(shared_responses: ScriptedGateway, streamed: bool) -> None:
    scripted = await shared_responses.with_tenant()
    scripted.upstream.play(
        respond(
            reasoning_item("Hm.", encrypted_content="c2VhbGVk"),
            message_item("I look."),
            call_item("c1", "weather", '{"place": "Paris"}'),
        ),
        respond(message_item("Wet.")),
    )
    turns: list[Any] = [{"role": "user", "content": "The weather in Paris?"}]
    fields: Any = {"max_tokens": 2048, "streamed": streamed}
    content = await _ask(scripted, turns, **fields)
    assert [block["type"] for block in content] == ["thinking", "text", "tool_use"]
    turns.append(_results(("c1", "wet")))
    (last,) = await _ask(scripted, turns, **fields)
    assert last["text"] == "Wet."
    sent = scripted.upstream.requests[-1].json
    assert [item["type"] for item in sent["input"]] == [
        *("message", "reasoning", "message", "function_call", "function_call_output"),
    ]
    assert sent["input"][1]["encrypted_content"] == "c2VhbGVk"
    assert sent["include"] == ["reasoning.encrypted_content"]
    entries = await scripted.entries()
    assert [entry.status for entry in entries] == ["settled"] * 2
