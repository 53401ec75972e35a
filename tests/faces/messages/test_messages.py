"""Tests `POST /v1/messages` over a chat backend: requests, answers, streams, refusals and charges."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.gateway import Gateway, Tenant, assert_error
from tests.support.judged_gateway import JudgedGateway, judged_gateway
from tests.support.messages_answers import (
    PATH,
    TOOL,
    answered,
    asked,
    assembled,
    assert_refused,
    read_events,
    send,
)
from tests.support.responses_answers import BARE, both, calls, records
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, answering_gateway
from tests.support.sdks import anthropic
from tests.support.tables import each
from tests.support.token_counts import USER, count
from tests.support.upstream import (
    USAGE,
    answer,
    chat,
    chat_records,
    completion,
    refuse,
    reset_after,
    stream,
)
from tollkeeper.core.prompt import decode_arguments
from tollkeeper.faces import answer_blocks
from tollkeeper.http import sse

BOTH = pytest.mark.parametrize("stream_", [False, True], ids=["whole", "streamed"])
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
CHAT_PDF = {"file_data": "data:application/pdf;base64,AAAA", "filename": "document"}
MARK = {"type": "ephemeral"}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"place": "here"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a lake"}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.fixture(scope="module")
async def shared_serving(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "_SILENCE_S", 0.05)
        opening = answering_gateway(
            data_dir,
            conninfo,
            extensions={"messages": True, "cost_header": "x-cost"},
            model={
                "input_modalities": ["text", "image", "file"],
                "supported_features": ["tools", "structured_outputs", "reasoning", "web_search"],
                "options": {"thinking": "chat_template_kwargs.enable_thinking", "top_k": "top_k"},
            },
            more_models=[
                {"id": BARE, "supported_features": [], "supported_sampling_parameters": []}
            ],
        )
        running = await opening.__aenter__()
    yield running
    await opening.__aexit__(None, None, None)


@pytest.fixture
async def serving(shared_serving: ScriptedGateway) -> ScriptedGateway:
    shared_serving.upstream.play(chat())
    return await shared_serving.with_tenant()


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def said(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


# Answers.


@BOTH
async def test_an_answer_and_its_price(serving: ScriptedGateway, stream_: bool) -> None:
    found = await send(serving, stream=stream_, path=f"{PATH}?beta=true")
    message = assembled(read_events(found.text)) if stream_ else found.json()
    request_id = found.headers["x-request-id"]
    assert message == {
        "id": f"msg_{request_id.replace('-', '')}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [text("Hello")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": USAGE["prompt_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": USAGE["completion_tokens"],
            "server_tool_use": None,
            "service_tier": None,
        },
    }
    assert ("x-cost" in found.headers) is not stream_
    entry = await serving.activity_of(found)
    assert (entry.operation, entry.status, entry.streamed) == ("message_create", 200, stream_)
    assert (await serving.balance())["settled"] == COST


@each("called", [False, True])
async def test_an_answer_without_a_finish_reason_is_complete(
    serving: ScriptedGateway, called: bool
) -> None:
    body = completion()
    body["choices"][0]["finish_reason"] = None
    if called:
        function = {"name": "f", "arguments": "{}"}
        body["choices"][0]["message"]["tool_calls"] = [{"id": "a", "function": function}]
    serving.upstream.play(answer(body))
    message = (await send(serving)).json()
    assert message["stop_reason"] == ("tool_use" if called else "end_turn")


async def test_events_come_in_the_published_order(serving: ScriptedGateway) -> None:
    found = await send(serving, stream=True)
    events = read_events(found.text)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 2,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found.headers["content-type"].startswith("text/event-stream")


@BOTH
async def test_usage_has_cache_reads_beside_the_input(
    serving: ScriptedGateway, stream_: bool
) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "total_tokens": 105,
        "prompt_tokens_details": {"cached_tokens": 60},
    }
    serving.upstream.play(both({"content": "Hello"}, usage=usage))
    found = (await answered(serving, stream=stream_))["usage"]
    assert (found["input_tokens"], found["cache_read_input_tokens"]) == (40, 60)


@BOTH
@pytest.mark.parametrize(
    ("message", "finish", "expected"),
    [
        ({"content": "Hi"}, "stop", "end_turn"),
        ({"content": "Hi"}, "length", "max_tokens"),
        ({"content": "Hi"}, "content_filter", "refusal"),
        ({"content": None, "refusal": "No."}, "stop", "refusal"),
        (calls(("c1", "look", "{}")), "tool_calls", "tool_use"),
        # Some servers report another finish reason although the answer contains tool calls.
        (calls(("c1", "look", "{}")), "stop", "tool_use"),
        ({"content": "Hi"}, "eos", "end_turn"),
    ],
)
async def test_stop_reasons(
    serving: ScriptedGateway, message: dict[str, Any], finish: str, expected: str, stream_: bool
) -> None:
    serving.upstream.play(both(message, finish=finish))
    assert (await answered(serving, stream=stream_, tools=[TOOL]))["stop_reason"] == expected
    assert (await serving.balance())["settled"] == COST


@BOTH
async def test_tool_calls(serving: ScriptedGateway, stream_: bool) -> None:
    called = calls(
        ("c1", "look", '{"place": "a"}'), ("c2", "look", '{"n": 1.50}'), ("c3", "go", "")
    )
    serving.upstream.play(both({**called, "content": "I look."}, finish="tool_calls"))
    message = await answered(serving, stream=stream_, tools=[TOOL])
    assert message["content"] == [
        text("I look."),
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"place": "a"}},
        {"type": "tool_use", "id": "c2", "name": "look", "input": {"n": 1.5}},
        {"type": "tool_use", "id": "c3", "name": "go", "input": {}},
    ]


async def test_pieces_of_calls_that_come_in_turn(serving: ScriptedGateway) -> None:
    def piece(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, **fields, "function": {"arguments": arguments}}]}

    def first(index: int, arguments: str) -> dict[str, Any]:
        function = {"name": "look", "arguments": arguments}
        return {"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]}

    deltas = [first(0, '{"a"'), first(1, '{"b"'), piece(0, ": 1}"), piece(1, ": 2}")]
    serving.upstream.play(stream(records(deltas, finish="tool_calls")))
    message = await answered(serving, stream=True, tools=[TOOL])
    assert [block["input"] for block in message["content"]] == [{"a": 1}, {"b": 2}]


async def test_arguments_that_are_no_object_cannot_run_a_tool(serving: ScriptedGateway) -> None:
    serving.upstream.play(both(calls(("c1", "look", '{"place": "a')), finish="length"))
    message = await answered(serving, tools=[TOOL])
    assert message["content"][0]["input"] == {"INVALID_JSON": '{"place": "a'}
    assert message["stop_reason"] == "max_tokens"


@BOTH
async def test_arguments_that_are_nested_too_deeply(
    serving: ScriptedGateway, stream_: bool
) -> None:
    """A model writes as many brackets as its client asks for. The call is answered and charged."""
    deep = '{"place": ' + 2000 * "[" + 2000 * "]" + "}"
    called = calls(("c1", "look", deep), ("c2", "look", '{"place": "a"}'))
    serving.upstream.play(both(called, finish="tool_calls"))
    found = await send(serving, stream=stream_, tools=[TOOL])
    assert found.status_code == 200, found.text
    if stream_:
        written = [
            event["delta"].get("partial_json")
            for event in read_events(found.text)
            if "delta" in event
        ]
        assert deep in written
    else:
        assert found.json()["content"][0]["input"] == {"INVALID_JSON": deep}
    assert (await serving.entry_of(found)).cost == COST


async def test_arguments_of_many_calls_are_read_once(
    serving: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema of a tool decides whether its arguments are an object. If the arguments of all calls were
    read again at each call, an answer with thousands of calls would block the process."""
    read: list[str] = []

    def noted(arguments: str) -> dict[str, msgspec.Raw] | None:
        read.append(arguments)
        return decode_arguments(arguments)

    monkeypatch.setattr(answer_blocks, "decode_arguments", noted)
    called = calls(*((f"c{at}", "look", f"[{at}]") for at in range(50)))
    serving.upstream.play(both(called, finish="tool_calls"))
    message = await answered(serving, tools=[TOOL])
    assert [block["input"] for block in message["content"]] == [
        {"INVALID_JSON": f"[{at}]"} for at in range(50)
    ]
    # The last call ends with the answer, whether or not its arguments are complete.
    assert read == [f"[{at}]" for at in range(49)]


async def test_silence_is_filled_with_pings(serving: ScriptedGateway) -> None:
    serving.upstream.play(stream(chat_records(), pause_s=0.2))
    found = await send(serving, stream=True)
    events = read_events(found.text)
    assert {"type": "ping"} in events
    assert assembled(events)["content"] == [text("Hello")]


# Requests.


async def test_every_field_reaches_a_chat_backend(serving: ScriptedGateway) -> None:
    sent = await asked(
        serving,
        system=[text("Be brief.", cache_control=MARK)],
        messages=[
            said(text("Look.", cache_control={**MARK, "ttl": "1h"})),
            said(text("I do."), TOOL_USE, role="assistant"),
            said({**RESULT, "is_error": True, "cache_control": MARK}),
            {"role": "system", "content": "Be kind."},
            said({"type": "image", "source": PNG}, {"type": "document", "source": PDF}),
        ],
        tools=[{**TOOL, "cache_control": MARK, "eager_input_streaming": True}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        thinking={"type": "adaptive"},
        output_config={"effort": "low"},
        metadata={"user_id": "u1"},
    )
    assert sent == {
        "model": "upstream-chat",
        "max_tokens": 100,
        "stream": False,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": "I do.",
                "tool_calls": [
                    {
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"place":"here"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "a lake"},
            {"role": "system", "content": "Be kind."},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "file", "file": CHAT_PDF},
                ],
            },
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks at a place.",
                    "parameters": TOOL["input_schema"],
                },
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_effort": "low",
        "user": "u1",
    }


async def test_a_chat_backend_cannot_force_a_search(serving: ScriptedGateway) -> None:
    found = await send(serving, tools=[SEARCH], tool_choice={"type": "any"})
    assert_refused(found, 501, "not_implemented", "tool_choice")


async def test_a_search_that_is_chosen_by_its_name_is_only_offered(
    serving: ScriptedGateway,
) -> None:
    """Claude Code sends such a request for its tool WebSearch, and gets an answer with or without a search."""
    chosen = {"type": "tool", "name": "web_search"}
    sent = await asked(serving, tools=[TOOL, SEARCH], tool_choice=chosen)
    assert sent["web_search_options"] == {}
    assert not {"tools", "tool_choice"} & set(sent)


async def test_what_claude_code_sends_to_every_model(serving: ScriptedGateway) -> None:
    """A model without reasoning gets no reasoning fields, and a long user id is shortened."""
    plain = await asked(serving, model=BARE)
    flags = "claude-code-20250219,prompt-caching-scope-2026-01-05,a-flag-of-tomorrow"
    user_id = json.dumps({"device_id": "a" * 64, "session_id": "s"})
    sent = await asked(
        serving,
        model=BARE,
        headers={**serving.tenant.as_customer, "anthropic-beta": flags},
        temperature=1,
        thinking={"type": "adaptive", "display": "omitted"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        metadata={"user_id": user_id},
        service_tier="auto",
        speed="standard",
        mcp_servers=[],
        cache_control=MARK,
    )
    assert len(sent.pop("user")) == 64
    assert sent == plain


async def test_thinking_that_is_off_is_not_shown(serving: ScriptedGateway) -> None:
    serving.upstream.play(both({"reasoning_content": "Hm.", "content": "Yes."}))
    message = await answered(serving, thinking={"type": "disabled"})
    assert message["content"] == [text("Yes.")]
    sent = serving.upstream.requests[-1].json
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}


@BOTH
async def test_reasoning_comes_back_only_unchanged_and_to_its_project(
    serving: ScriptedGateway, stream_: bool
) -> None:
    serving.upstream.play(both({"reasoning_content": "Hm.", "content": "Yes."}))
    message = await answered(serving, stream=stream_)
    thinking, _ = message["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Hm.")
    assert "Hm." not in thinking["signature"]

    def again(**changes: Any) -> list[dict[str, Any]]:
        block = {**thinking, **changes}
        return [USER, said(block, text("Yes."), role="assistant"), USER]

    sent = await asked(serving, messages=again())
    assert sent["messages"][1]["reasoning_content"] == "Hm."
    settled = (await serving.balance())["settled"]
    before = len(serving.upstream.requests)
    stranger = await serving.with_tenant()
    redacted = {"type": "redacted_thinking", "data": thinking["signature"]}
    signature = "messages[1].content[0].signature"
    for at, messages, param in (
        (serving, again(thinking="Ha."), signature),
        (serving, again(signature="c2lnbmF0dXJl"), signature),
        (serving, again(signature=None), signature),
        (stranger, again(), signature),
        (serving, [said(redacted, role="assistant"), USER], "messages[0].content[0].data"),
    ):
        assert_refused(await send(at, messages=messages), 400, "invalid_request", param)
    assert len(serving.upstream.requests) == before
    assert (await serving.balance())["settled"] == settled


# Refusals.

_ANY = "messages[0].content[0]"


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": [said(fields)]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 2049}, "max_tokens"),
    ({"messages": "Hello"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [said(role="assistant")]}, "messages"),
    ({"messages": [said(role="assistant")], "cache_control": MARK}, "messages"),
    ({"messages": [said()]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{**USER, "name": "Eve"}]}, "messages[0].name"),
    (block(type="song"), f"{_ANY}.type"),
    (block(type=5), f"{_ANY}.type"),
    (block(type="text", text=5), f"{_ANY}.text"),
    (block(type="text", text="x", cache_control="yes"), f"{_ANY}.cache_control"),
    (block(type="text", text="x", cache_control={"type": "eternal"}), f"{_ANY}.cache_control.type"),
    (block(type="text", text="x", cache_control={"ttl": "2h"}), f"{_ANY}.cache_control.ttl"),
    (block(type="image", source="x"), f"{_ANY}.source"),
    (block(type="image", source={"type": "base64", "data": "x"}), f"{_ANY}.source.media_type"),
    (block(type="image", source={"type": "file", "file_id": "f"}), f"{_ANY}.source.file_id"),
    (block(type="document", source={**PDF, "data": 5}), f"{_ANY}.source.data"),
    (block(type="document", source=PDF, title=5), f"{_ANY}.title"),
    (block(**RESULT), f"{_ANY}.tool_use_id"),
    (block(**{**RESULT, "is_error": "yes"}), f"{_ANY}.is_error"),
    (block(**{**RESULT, "content": 5}), f"{_ANY}.content"),
    (block(**TOOL_USE), f"{_ANY}.type"),
    (block(type="thinking", thinking="x", signature="x"), f"{_ANY}.type"),
    ({"messages": [said({**TOOL_USE, "input": []}, role="assistant")]}, f"{_ANY}.input"),
    ({"messages": [said({**TOOL_USE, "id": None}, role="assistant")]}, f"{_ANY}.id"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": [text("x", cache_control=5)]}, "system[0].cache_control"),
    ({"tools": TOOL}, "tools"),
    ({"tools": ["look"]}, "tools[0]"),
    ({"tools": [{**TOOL, "input_schema": []}]}, "tools[0].input_schema"),
    ({"tools": [{**TOOL, "strict": "yes"}]}, "tools[0].strict"),
    ({"tools": [{**TOOL, "cache_control": {"ttl": 5}}]}, "tools[0].cache_control.ttl"),
    ({"tools": [{"type": "telepathy", "name": "t"}]}, "tools[0].type"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "go"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "go"}}, "tool_choice.name"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ({"thinking": True}, "thinking"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": 5}}, "thinking.display"),
    ({"output_config": {"effort": "ultra"}}, "output_config.effort"),
    ({"output_config": {"format": {"schema": 5}}}, "output_config.format.schema"),
    ({"cache_control": {"type": "eternal"}}, "cache_control.type"),
    ({"stream": "yes"}, "stream"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"stop_sequences": [5]}, "stop_sequences[0]"),
    ({"temperature": 1.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"metadata": "me"}, "metadata"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"service_tier": "first"}, "service_tier"),
    ({"speed": "slow"}, "speed"),
    ({"context_management": []}, "context_management"),
    ({"mcp_servers": {}}, "mcp_servers"),
    ({"n": 2}, "n"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
async def test_wrong_types(serving: ScriptedGateway, fields: dict[str, Any], param: str) -> None:
    found = await send(serving, **fields)
    assert_refused(found, 400, "invalid_request", param)
    assert await serving.entries() == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, "tools[0]"),
        ({"model": BARE, "tools": [SEARCH]}, "tools[0]"),
        (block(type="server_tool_use", id="s", name="web_search", input={}), f"{_ANY}.type"),
        (block(type="document", source=PDF, citations={"enabled": True}), f"{_ANY}.citations"),
        ({"speed": "fast"}, "speed"),
        ({"mcp_servers": [{"type": "url", "url": "https://a.example"}]}, "mcp_servers"),
        ({"container": "c1"}, "container"),
        ({"model": BARE, "tools": [TOOL]}, "tools"),
        ({"model": BARE, "stop_sequences": ["END"]}, "stop_sequences"),
        ({"model": BARE, "top_k": 5}, "top_k"),
        ({"model": BARE, "temperature": 0.5}, "temperature"),
        (
            {"model": BARE, "output_config": {"format": {"schema": {"type": "object"}}}},
            "output_config.format",
        ),
    ],
)
async def test_unsupported(serving: ScriptedGateway, fields: dict[str, Any], param: str) -> None:
    assert_refused(await send(serving, **fields), 501, "not_implemented", param)
    assert await serving.entries() == []


async def test_errors_have_the_published_envelope(
    serving: ScriptedGateway, shared_serving: ScriptedGateway
) -> None:
    poor = await shared_serving.with_tenant(credit=0)
    assert_refused(await send(poor), 402, "payment_required")
    assert_refused(await send(serving, headers={}), 401, "invalid_api_key")
    admin = await send(serving, headers=serving.tenant.as_admin)
    assert_refused(admin, 403, "permission_denied")
    assert_refused(await send(serving, model="nobody"), 404, "model_not_found", "model")
    client, headers = serving.gateway.client, serving.tenant.as_customer
    assert_refused(await client.get(PATH, headers=headers), 405, "method_not_allowed")
    plain = {**headers, "Content-Type": "text/plain"}
    found = await client.post(PATH, content=b"{}", headers=plain)
    assert_refused(found, 415, "unsupported_media_type")
    version = {**headers, "anthropic-version": "new"}
    found = await send(serving, headers=version)
    assert_refused(found, 400, "invalid_request", "anthropic-version")
    serving.upstream.play(refuse(400))
    assert_refused(await send(serving), 422, "unprocessable")
    await serving.sql(
        "UPDATE project_accounts SET requests_per_minute = 1 WHERE project_id = %s",
        serving.tenant.project_id,
    )
    serving.upstream.play(chat())
    answers = [await send(serving) for _ in range(4)]
    assert_refused(answers[-1], 429, "rate_limit_exceeded")


async def test_an_error_after_the_beginning_is_an_event(serving: ScriptedGateway) -> None:
    serving.upstream.play(reset_after(2))
    found = await send(serving, stream=True, model=BARE)
    events = read_events(found.text)
    assert events[0]["type"] == "message_start"
    request_id = found.headers["request-id"]
    assert (events[-1]["type"], events[-1]["request_id"]) == ("error", request_id)
    assert events[-1]["error"]["type"] == "api_error"
    entry = await serving.entry_of(found)
    assert entry.status == "settled"
    assert entry.cost == entry.delivered_pieces(2)


# Policies.


@pytest.fixture(scope="module")
async def shared_judging(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    async with judged_gateway(
        data_dir, conninfo, judge={"segment_characters": 10}, extensions={"messages": True}
    ) as running:
        yield running


@pytest.fixture
async def judging(shared_judging: JudgedGateway) -> JudgedGateway:
    return await shared_judging.for_next_test()


async def test_a_policy_denies_in_the_middle_of_a_stream(judging: JudgedGateway) -> None:
    await judging.enforce("bomb", direction="response")
    judging.model.play(stream(chat_records(("This is fine. ", "This is a bomb. ", "More."))))
    scripted = judging.scripted
    found = await send(scripted, stream=True)
    events = read_events(found.text)
    assert "fine" in found.text
    assert "bomb." not in found.text
    assert events[-1]["type"] == "error"
    assert (events[-1]["error"]["type"], events[-1]["error"]["code"]) == (
        "policy_error",
        "policy_denied",
    )
    async with _client(scripted) as client:
        with pytest.raises(anthropic.APIStatusError) as raised:
            async with client.messages.stream(
                model=MODEL, max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
            ) as answering:
                async for _ in answering:
                    pass
    assert raised.value.body["error"]["code"] == "policy_denied"  # type: ignore[index]
    entries = await scripted.entries()
    assert [entry.status for entry in entries] == ["settled"] * 2


@BOTH
async def test_a_policy_denies_the_request(judging: JudgedGateway, stream_: bool) -> None:
    await judging.enforce("bomb", direction="request")
    before = len(judging.model.requests)
    blocks = [said(TOOL_USE, role="assistant"), said({**RESULT, "content": "a bomb"})]
    scripted = judging.scripted
    for messages in ([{"role": "user", "content": "A bomb"}], [USER, *blocks]):
        found = await send(scripted, messages=messages, stream=stream_)
        assert_refused(found, 403, "policy_denied")
    assert len(judging.model.requests) == before
    assert (await scripted.balance())["settled"] == 0


# The SDK.


def _client(scripted: ScriptedGateway) -> anthropic.AsyncAnthropic:
    base_url, api_key = scripted.gateway.base_url, scripted.tenant.project_key
    return anthropic.AsyncAnthropic(base_url=base_url, api_key=api_key, max_retries=0)


async def test_the_sdk(serving: ScriptedGateway) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    async with _client(serving) as client:
        whole = await client.messages.create(model=MODEL, max_tokens=100, messages=messages)
        beta = await client.beta.messages.create(model=MODEL, max_tokens=100, messages=messages)
        async with client.messages.stream(
            model=MODEL, max_tokens=100, messages=messages
        ) as answering:
            pieces = [piece async for piece in answering.text_stream]
            final = await answering.get_final_message()
        with pytest.raises(anthropic.BadRequestError) as raised:
            await client.messages.create(model=MODEL, max_tokens=4096, messages=messages)
    assert whole.content[0].text == beta.content[0].text == "Hello"  # type: ignore[union-attr]
    assert pieces == ["Hel", "lo"]
    assert final.content[0].text == "Hello"  # type: ignore[union-attr]
    assert final.usage.output_tokens == whole.usage.output_tokens == USAGE["completion_tokens"]
    assert raised.value.request_id is not None
    assert "max_tokens: " in raised.value.message
    assert (await serving.balance())["settled"] == 3 * COST


# Other paths and endpoints.


async def test_off_by_default(gateway: Gateway, tenant: Tenant) -> None:
    found = await gateway.client.post(PATH, json={}, headers=tenant.as_customer)
    assert_error(found, 404, "not_found")
    assert (await gateway.client.head("/")).status_code == 404


async def test_a_client_finds_its_server(serving: ScriptedGateway) -> None:
    found = await serving.gateway.client.head("/")
    assert (found.status_code, found.content) == (200, b"")
    assert (await serving.gateway.client.get("/")).status_code == 404


async def test_sealed_reasoning_is_counted_too(serving: ScriptedGateway) -> None:
    serving.upstream.play(both({"reasoning_content": "Hm. " * 100, "content": "Yes."}))
    message = await answered(serving)
    long = await count(serving, messages=[USER, {"role": "assistant", **_content(message)}])
    short = await count(serving, messages=[USER, said(text("Yes."), role="assistant")])
    assert long.json()["input_tokens"] > short.json()["input_tokens"] + 50


def _content(message: dict[str, Any]) -> dict[str, Any]:
    return {"content": message["content"]}


async def test_no_websockets(serving: ScriptedGateway) -> None:
    """Codex tries a WebSocket first, and uses HTTP at once if the answer is 426."""
    wish = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers = {**serving.tenant.as_customer, **wish}
    found = await serving.gateway.client.get("/v1/responses", headers=headers)
    assert_error(found, 426, "websocket_refused")
    assert found.headers["upgrade"] == "HTTP/1.1"


async def test_a_responses_body_at_the_chat_path(serving: ScriptedGateway) -> None:
    found = await serving.send(json.dumps({"model": MODEL, "input": "Hello"}).encode())
    assert_error(found, 400, "invalid_request", "input")
    message = found.json()["error"]["message"]
    assert "/v1/responses" in message
    assert "messages" in message
    assert await serving.entries() == []
