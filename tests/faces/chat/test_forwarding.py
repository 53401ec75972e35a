"""Tests which fields of a chat request are sent to a backend: unchanged, mapped, isolated or not at all."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway, answering_gateway, chat_body
from tests.support.tables import each
from tollkeeper.core.estimate import estimate_tokens

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
IMAGE = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
MESSAGES = [{"role": "user", "content": "Hello"}]
# Models that support nothing optional, that have mapped options, and that have restrictions.
BARE = {"id": "bare", "supported_sampling_parameters": [], "supported_features": []}
MAPPED = {
    "id": "mapped",
    "supported_sampling_parameters": [
        *("temperature", "top_p", "frequency_penalty", "presence_penalty"),
        *("logit_bias", "seed", "stop"),
    ],
    "supported_features": ["tools", "logprobs", "reasoning", "web_search"],
    "output_modalities": ["text", "audio", "image", "video"],
    "input_modalities": ["text", "image"],
    "options": {
        "thinking": "chat_template_kwargs.enable_thinking",
        "reasoning.enabled": "chat_template_kwargs.reasoning",
        "reasoning.max_tokens": "thinking_budget",
        "verbosity": "text.verbosity",
        "prediction": "prediction",
        "prompt_logprobs": "prompt_logprobs",
        "structuredOutputs": "guided",
        "service_tier": "tier",
        "prompt_cache_retention": "retention",
    },
}
THINKER = {"id": "thinker", "supported_features": ["reasoning"]}
SHORT = {"id": "short", "max_output_length": 512}
LOCKED = {"id": "locked", "required_checks": ["kyc", "terms"]}
DORMANT = {"id": "dormant", "is_ready": False}


@pytest.fixture(scope="module")
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir, conninfo, more_models=[BARE, MAPPED, SHORT, LOCKED, DORMANT, THINKER]
    ) as running:
        yield running


async def travelled(scripted: ScriptedGateway, **fields: Any) -> dict[str, Any]:
    """Sends a chat request, and returns the body that the upstream received, without the model."""
    answer = await scripted.chat(**fields)
    assert answer.status_code == 200, answer.text
    sent = scripted.upstream.requests[-1].json
    assert sent.pop("model") == "upstream-chat"
    return sent


# The fields of the request, and the changes to them in the body for the backend. None means that
# the field is not sent. The model and the messages are left out.
FORWARDED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_tokens": 1024}),
    ({"max_tokens": None, "max_completion_tokens": None}, {"max_tokens": 1024}),
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
    ({"n": 1}, {}),
    ({"n": 3}, {"n": 3}),
    ({"user": "u", "safety_identifier": "s", "metadata": {"a": "b"}}, {}),
    ({"temperature": 0.5, "top_p": 0.25, "seed": 7, "stop": ["a"]}, {}),
    ({"frequency_penalty": -2, "presence_penalty": 2, "logit_bias": {"1": 0.5}}, {}),
    ({"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False}, {}),
    ({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, {}),
    ({"tools": [], "functions": [{"name": "f"}]}, {"tools": None}),
    ({"tools": TOOLS, "functions": []}, {"functions": None}),
    ({"web_search_options": {"x": 1}}, {}),
    ({"logprobs": True, "top_logprobs": 3}, {}),
    ({"modalities": ["text", "image"]}, {}),
    ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
    ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high", "reasoning": None}),
    ({"thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}, "thinking": None}),
    (
        {"thinking": False, "reasoning": {"enabled": True}},
        {
            "chat_template_kwargs": {"enable_thinking": False, "reasoning": True},
            "thinking": None,
            "reasoning": None,
        },
    ),
    ({"reasoning": {"max_tokens": 9}}, {"thinking_budget": 9, "reasoning": None}),
    ({"verbosity": "low"}, {"text": {"verbosity": "low"}, "verbosity": None}),
    ({"prediction": {"type": "content"}, "prompt_logprobs": 2}, {}),
    ({"structuredOutputs": True}, {"guided": True, "structuredOutputs": None}),
    ({"service_tier": "flex"}, {"tier": "flex", "service_tier": None}),
    ({"prompt_cache_retention": "24h"}, {"retention": "24h", "prompt_cache_retention": None}),
    # Fields that the gateway handles itself, or that have no effect, are not sent.
    *(
        (fields, dict.fromkeys(fields))
        for fields in (
            {"policy_ids": [], "store": False, "stream": False},
            {"reasoning": {"exclude": True}, "include_reasoning": False},
            {"structuredOutputs": False, "modalities": ["text"], "logprobs": False},
            {"service_tier": "auto", "prompt_cache_retention": "in_memory"},
            {"service_tier": "default", "response_format": {"type": "text"}},
            {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
            {"temperature": None, "tools": None, "user": None, "thinking": None, "stop": None},
            {"audio": None, "prediction": None, "metadata": None, "cache_salt": None},
        )
    ),
]


@each(("fields", "changes"), FORWARDED, ids=str)
async def test_forwarded(
    scripted: ScriptedGateway, fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    everything = {"messages": MESSAGES, "stream": False, "max_tokens": 1024, **fields, **changes}
    if "max_completion_tokens" in changes:
        del everything["max_tokens"]
    expected = {name: value for name, value in everything.items() if value is not None}
    expected["stream"] = False
    if changes == {} and fields.get("n") == 1:
        del expected["n"]
    assert await travelled(scripted, model="mapped", **fields) == expected


async def test_a_stream_always_asks_for_usage(scripted: ScriptedGateway) -> None:
    options: dict[str, Any]
    for options in ({}, {"stream_options": {"include_usage": False}}):
        sent = await travelled(scripted, stream=True, **options)
        assert sent == {
            "messages": MESSAGES,
            "max_tokens": 1024,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def test_the_default_bound_is_the_models_where_that_is_less(
    scripted: ScriptedGateway,
) -> None:
    assert (await travelled(scripted, model="short"))["max_tokens"] == 512
    assert (await travelled(scripted, model="short", max_tokens=512))["max_tokens"] == 512
    answer = await scripted.chat(model="short", max_tokens=513)
    assert_error(answer, 400, "invalid_request", "max_tokens")


async def test_the_reasoning_bound_is_limited_by_the_model_too(scripted: ScriptedGateway) -> None:
    answer = await scripted.chat(model="short", reasoning={"max_tokens": 513})
    assert_error(answer, 400, "invalid_request", "reasoning.max_tokens")


async def test_structured_outputs_need_no_option_on_a_model_that_has_them(
    scripted: ScriptedGateway,
) -> None:
    sent = await travelled(scripted, structuredOutputs=True, response_format=SCHEMA)
    assert sent["response_format"] == SCHEMA
    assert "structuredOutputs" not in sent


@each("response_format", [{"type": "json_object"}, SCHEMA], ids=str)
async def test_formats_travel_as_they_are(
    scripted: ScriptedGateway, response_format: dict[str, Any]
) -> None:
    sent = await travelled(scripted, response_format=response_format)
    assert sent["response_format"] == response_format


UNDECLARED: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {name: 1})
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
    ),
    ("logit_bias", {"logit_bias": {"1": 1}}),
    ("stop", {"stop": "x"}),
    ("tools", {"tools": TOOLS}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("response_format", {"response_format": SCHEMA}),
    ("logprobs", {"logprobs": True}),
    ("web_search_options", {"web_search_options": {}}),
    ("include_reasoning", {"include_reasoning": True}),
    ("include_reasoning", {"include_reasoning": True, "thinking": False}),
    ("reasoning", {"reasoning": {"enabled": True}}),
    ("reasoning", {"reasoning": {"max_tokens": 1, "exclude": True}}),
    ("reasoning_effort", {"reasoning_effort": "minimal"}),
    ("reasoning", {"reasoning": {"effort": "low", "exclude": True}}),
    ("thinking", {"thinking": True}),
    ("prompt_logprobs", {"prompt_logprobs": 1}),
    ("prediction", {"prediction": {"type": "content"}}),
    ("verbosity", {"verbosity": "low"}),
    ("structuredOutputs", {"structuredOutputs": True}),
    ("service_tier", {"service_tier": "priority"}),
    ("prompt_cache_retention", {"prompt_cache_retention": "24h"}),
    ("modalities[1]", {"modalities": ["text", "audio"]}),
    ("audio", {"audio": {"voice": "a"}}),
    ("messages[0].content[0]", {"messages": [{"role": "user", "content": IMAGE}]}),
    *(
        ("messages[1].content[0]", {"messages": [*MESSAGES, {"role": "user", "content": [part]}]})
        for part in (
            {"type": "input_image", "image_url": "u"},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            {"type": "audio_url", "audio_url": {"url": "u"}},
            {"type": "file", "file": {"file_data": "data:text/plain;base64,QQ"}},
            {"type": "video_url", "video_url": {"url": "u"}},
        )
    ),
]


@each(("param", "fields"), UNDECLARED, ids=str)
async def test_undeclared_options_are_not_implemented(
    scripted: ScriptedGateway, param: str, fields: dict[str, Any]
) -> None:
    before = await scripted.traces()
    answer = await scripted.chat(model="bare", **fields)
    assert_error(answer, 501, "not_implemented", param)
    assert answer.json()["error"]["type"] == "api_error"
    assert answer.headers["x-should-retry"] == "false"
    assert await scripted.traces() == before


@each(
    ("param", "fields"),
    [
        ("modalities[1]", {"modalities": ["text", "audio"], "audio": {"voice": "a"}}),
        ("modalities[0]", {"modalities": ["audio"]}),
        ("modalities[0]", {"modalities": ["video"]}),
        ("audio", {"audio": {"voice": "a", "format": "wav"}}),
    ],
    ids=str,
)
async def test_what_no_answer_can_carry_is_not_implemented(
    scripted: ScriptedGateway, param: str, fields: dict[str, Any]
) -> None:
    """Tests output kinds that the model declares, but for which answers have no field."""
    before = await scripted.traces()
    assert_error(await scripted.chat(model="mapped", **fields), 501, "not_implemented", param)
    assert await scripted.traces() == before


@each("option", ["reasoning.enabled", "reasoning.max_tokens"])
async def test_parts_of_reasoning_need_a_place_of_their_own(
    scripted: ScriptedGateway, option: str
) -> None:
    value: bool | int = True if option == "reasoning.enabled" else 5
    asked = {option.removeprefix("reasoning."): value}
    answer = await scripted.chat(model="thinker", reasoning=asked)
    assert_error(answer, 501, "not_implemented", option)


async def test_messages_travel_byte_for_byte(scripted: ScriptedGateway) -> None:
    messages = (
        rb'[ {"role" : "user","content":"\u00e9 \ud83d\ude00 \/ '
        + "é \U0001f600 \x7f".encode()
        + rb' <|x|> \t"}, {"content":[{"n":1.50,"e":1E+2,"type":"text","text":""}],"role":"tool",'
        rb'"tool_call_id":"1"} ]'
    )
    answer = await scripted.send(b'{"messages":%b,"model":"%b"}' % (messages, MODEL.encode()))
    assert answer.status_code == 200, answer.text
    assert b'"messages":' + messages in scripted.upstream.requests[-1].body


async def test_a_messages_model_id_stays_here(scripted: ScriptedGateway) -> None:
    answered = {"role": "assistant", "content": "a", "model_id": "some/model"}
    sent = await travelled(scripted, messages=[*MESSAGES, answered, *MESSAGES])
    assert sent["messages"] == [*MESSAGES, {"role": "assistant", "content": "a"}, *MESSAGES]


async def test_a_part_without_a_type_gets_it(scripted: ScriptedGateway) -> None:
    """Tests that the gateway adds a missing type, because most backends require it."""
    untyped: list[dict[str, Any]] = [
        {"text": "a", "x": 1.5},
        {"type": None, "text": "b"},
        {"type": "text", "text": "c"},
    ]
    answered = {"role": "assistant", "content": "a", "model_id": "some/model"}
    sent = await travelled(
        scripted, messages=[*MESSAGES, answered, {"role": "user", "content": untyped}]
    )
    assert sent["messages"] == [
        *MESSAGES,
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [{**part, "type": "text"} for part in untyped]},
    ]


async def test_cache_keys_are_isolated(scripted: ScriptedGateway) -> None:
    secret = "a key that others may guess"
    fields = {"prompt_cache_key": secret, "cache_salt": secret}
    mine = await travelled(scripted, **fields)
    again = await travelled(scripted, **fields, stream=True)
    theirs = await travelled(await scripted.with_tenant(), **fields)
    project = await scripted.gateway.services.projects.project_create(
        scripted.tenant.organization_id, "two"
    )
    _, key = await scripted.gateway.services.project_keys.project_key_create_by_operator(
        project.id, "two", None, None
    )
    beside = await travelled(scripted, **fields, headers={"Authorization": f"Bearer {key}"})
    for name in fields:
        assert mine[name] == again[name]
        assert len({mine[name], theirs[name], beside[name]}) == 3
    assert mine["prompt_cache_key"] != mine["cache_salt"]
    assert not any(secret.encode() in request.body for request in scripted.upstream.requests)


async def test_only_the_gateways_own_headers_travel(scripted: ScriptedGateway) -> None:
    headers = {
        **scripted.tenant.as_customer,
        "X-Service-Session-ID": "session-of-mine",
        "X-Forwarded-For": "10.0.0.1",
        "X-Stainless-Retry-Count": "1",
        "OpenAI-Organization": "org",
        "Cookie": "a=b",
        "User-Agent": "mine/1.0",
        "Accept": "text/html",
        "Accept-Encoding": "gzip",
        "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "X-Request-ID": "00000000-0000-4000-8000-000000000000",
    }
    answer = await scripted.chat(headers=headers)
    assert answer.headers["x-request-id"] != headers["X-Request-ID"]
    received = scripted.upstream.requests[-1]
    length = str(len(received.body))
    assert received.headers == {
        "host": scripted.upstream.url.removeprefix("http://").removesuffix("/v1"),
        "user-agent": "tollkeeper",
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-length": length,
    }
    assert scripted.tenant.project_key.encode() not in received.head + received.body
    assert b"session-of-mine" not in received.head + received.body


SESSIONS = ("X-Service-Session-ID", "X-Alt-Session-ID")


@each("name", SESSIONS)
async def test_session_header_has_its_bounds(scripted: ScriptedGateway, name: str) -> None:
    for length, taken in ((1, True), (511, True), (512, True), (513, False), (0, False)):
        answer = await scripted.chat(headers={**scripted.tenant.as_customer, name: "s" * length})
        if taken:
            assert answer.status_code == 200
        else:
            assert_error(answer, 400, "invalid_request", name)
    # The length counts bytes: HTTP does not say which characters they encode.
    for letters, status in ((256, 200), (257, 400)):
        headers = {**scripted.tenant.as_customer, name: ("é" * letters).encode()}
        assert (await scripted.chat(headers=headers)).status_code == status


async def test_each_session_header_that_is_there_must_be_sound(scripted: ScriptedGateway) -> None:
    both = {**scripted.tenant.as_customer, SESSIONS[0]: "a", SESSIONS[1]: "b"}
    assert (await scripted.chat(headers=both)).status_code == 200
    answer = await scripted.chat(headers={**both, SESSIONS[1]: "s" * 513})
    assert_error(answer, 400, "invalid_request", SESSIONS[1])


async def test_models_that_cannot_be_used(scripted: ScriptedGateway) -> None:
    before = len(scripted.upstream.requests)
    for model in ("absent", "upstream-chat", MODEL.upper(), f"{MODEL} ", "../" + MODEL, "a" * 200):
        assert_error(await scripted.chat(model=model), 404, "model_not_found", "model")
    assert_error(await scripted.chat(model="dormant"), 503, "service_unavailable", "model")
    answer = await scripted.chat(model="locked")
    assert_error(answer, 403, "permission_denied", "model")
    assert "kyc, terms" in answer.json()["error"]["message"]
    assert len(scripted.upstream.requests) == before
    for check in ("kyc", "terms"):
        await scripted.gateway.services.organizations.organization_grant_check(
            scripted.tenant.organization_id, check
        )
    assert (await scripted.chat(model="locked")).status_code == 200


async def test_unknown_policies_are_not_found(scripted: ScriptedGateway) -> None:
    before = await scripted.traces()
    answer = await scripted.chat(policy_ids=["policy_of_nobody"])
    assert_error(answer, 404, "not_found", "policy_ids[0]")
    assert await scripted.traces() == before


@each("stream", [False, True])
async def test_the_bound_is_multiplied_in_the_hold(scripted: ScriptedGateway, stream: bool) -> None:
    answer = await scripted.chat(n=1 if stream else 7, max_tokens=50, stream=stream)
    entry = await scripted.entry_of(answer)
    assert entry.choices == (1 if stream else 7)
    assert entry.output_tokens_max == 50
    assert entry.hold == entry.at_most(entry.choices * 50)
    assert json.loads(scripted.upstream.requests[-1].body)["max_tokens"] == 50


LONG = "and so on " * 300
# All places of a prompt that may contain text, and an image. All of them count as tokens.
PLACES: dict[str, dict[str, Any]] = {
    "content": {"messages": [{"role": "user", "content": LONG}]},
    **{
        f"part {part}": {"messages": [{"role": "user", "content": [part]}]}
        for part in (
            {"type": "text", "text": LONG},
            {"type": "refusal", "refusal": LONG},
            {"type": "thinking", "thinking": [{"type": "text", "text": LONG}]},
            {"type": "text", "text": "a", "citations": {"title": LONG}},
        )
    },
    **{
        name: {"messages": [{"role": "assistant", name: LONG}]}
        for name in ("name", "reasoning", "reasoning_content", "tool_call_id")
    },
    "tool_calls": {"messages": [{"role": "assistant", "tool_calls": [{"arguments": LONG}]}]},
    "function_call": {"messages": [{"role": "assistant", "function_call": {"arguments": LONG}}]},
    "tools": {"tools": [{"function": {"name": "f", "description": LONG}}]},
    "functions": {"functions": [{"name": "f", "description": LONG}]},
    "image": {"messages": [{"role": "user", "content": IMAGE}]},
}


@each("place", PLACES, ids=lambda place: place[:40])
async def test_the_prompt_bound_sees_every_text(scripted: ScriptedGateway, place: str) -> None:
    entry = await scripted.entry_of(await scripted.chat(model="mapped", **PLACES[place]))
    tokens = estimate_tokens(LONG)
    assert tokens > 900
    # The text counts once. A template adds text for tools. The context length is the limit.
    most = 4096 if place == "image" else tokens + 200
    if place in ("tools", "functions"):
        most += 804
    assert tokens <= entry.prompt_tokens_max <= most


def test_the_ordinary_body_is_what_these_tests_take_it_for() -> None:
    assert chat_body() == {"model": MODEL, "messages": MESSAGES}
