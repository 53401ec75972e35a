"""Tests for every field of a chat request which values are accepted, and how errors name the field."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway
from tests.support.tables import each

EMOJI = "\U0001f600"
USER: dict[str, Any] = {"role": "user", "content": "Hello"}
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultracode")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# This model supports everything, so a rejected request is rejected only for its form.
WIDE: dict[str, Any] = {
    "id": "example/wide",
    "context_length": 1_100_000,
    "max_output_length": 999_990,
    "input_modalities": ["text", "image", "audio", "file", "video"],
    "output_modalities": ["text", "image"],
    "supported_sampling_parameters": [
        *("temperature", "top_p", "frequency_penalty", "presence_penalty"),
        *("logit_bias", "seed", "stop"),
    ],
    "supported_features": [
        *("tools", "json_mode", "structured_outputs", "logprobs", "reasoning", "web_search"),
    ],
    "options": {
        option: f"extra.{option.replace('.', '_')}"
        for option in (
            *("thinking", "prompt_logprobs", "prediction", "verbosity", "structuredOutputs"),
            *("service_tier", "prompt_cache_retention"),
            *("reasoning.enabled", "reasoning.max_tokens"),
        )
    },
}


@pytest.fixture(scope="module")
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        credit=10**17,
        model={"max_output_length": 512},
        more_models=[WIDE],
    ) as running:
        yield running


async def ask(scripted: ScriptedGateway, fields: dict[str, Any]) -> httpx2.Response:
    return await scripted.chat(**{"model": WIDE["id"], **fields})


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{**USER, **fields}]}


def schema(**fields: Any) -> dict[str, Any]:
    described = {"name": "a", "schema": {}, **fields}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _each(field: str, *values: Any, **others: Any) -> Iterator[dict[str, Any]]:
    return ({**others, field: value} for value in values)


TAKEN: list[dict[str, Any]] = [
    *_each("messages", [USER], [USER] * 2, [USER] * 1000),
    *_each("policy_ids", []),
    *_each("stream", False, True),
    *_each("max_tokens", 1, 2, 999_989, 999_990, None),
    *_each("max_completion_tokens", 1, 999_990, None),
    *_each("temperature", 0, -1, 0.5, 1e308, -0.0, None),
    *_each("top_p", 0, 2, -7.5, None),
    *_each("frequency_penalty", -2, -2.0, -1.999, 0, 2, None),
    *_each("presence_penalty", -2, 1.999, 2.0, None),
    *_each("logit_bias", {}, {"1": -100, "x": 100, EMOJI: 0.5}, None),
    *_each("n", 1, 2, 127, 128, None),
    *_each("seed", 0, -1, 2**31, 2**53 + 1, 2**63 - 1, None),
    *_each("stop", "", "x", EMOJI, [], ["a", "b"], None),
    *_each("stream_options", {}, None, stream=True),
    *({"stream": True, "stream_options": {"include_usage": on}} for on in (True, False, None)),
    *_each("thinking", True, False, None),
    *_each("reasoning", {}, {"enabled": None, "effort": None, "max_tokens": None}, None),
    *({"reasoning": {"enabled": on, "exclude": on}} for on in (True, False)),
    *({"reasoning": {"effort": effort}} for effort in EFFORTS),
    *({"reasoning": {"max_tokens": bound}} for bound in (1, 999_990)),
    *_each("reasoning_effort", *EFFORTS, None),
    *_each("include_reasoning", True, False, None),
    *_each("safety_identifier", "", "a" * 63, "a" * 64, EMOJI * 64, None),
    *_each("user", "", "a" * 511, "a" * 512, EMOJI * 512, None),
    *_each("structuredOutputs", True, False),
    *_each("tools", [], [{"type": "function", "function": {"name": "f"}}], [{}], None),
    *_each("tool_choice", "none", "auto", "required", {}, None, tools=[{}]),
    *_each("parallel_tool_calls", True, False, None, tools=[{}]),
    *_each("tool_choice", "none", "auto", None),
    *_each("functions", [], [{"name": "f"}], None),
    *_each("function_call", "none", "auto", {}, None, functions=[{}]),
    *_each("response_format", {"type": "text"}, {"type": "json_object"}, None),
    *(schema(name=name) for name in ("a", "a" * 127, "a" * 128, EMOJI * 128)),
    *(schema(description=text) for text in ("", "a" * 2048, EMOJI * 2048, None)),
    *(schema(strict=value) for value in (True, False, None)),
    schema(schema={"type": "object", "properties": {"a": {"x-free": [1, None]}}}),
    *_each("modalities", [], ["text"], ["text", "image"], None),
    {"audio": None},
    *_each("verbosity", "low", "medium", "high", None),
    *({name: value} for name in ("prediction", "metadata") for value in ({"a": [1]}, None)),
    *_each("store", False),
    *_each("service_tier", "auto", "default", "flex", "anything", "", None),
    *_each("prompt_cache_key", "", "a" * 511, "a" * 512, EMOJI * 512, None),
    *_each("prompt_cache_retention", "in_memory", "24h", None),
    *_each("logprobs", True, False, None),
    *({"logprobs": True, "top_logprobs": value} for value in (0, 20, -1, None)),
    *_each("prompt_logprobs", 0, 5, -1, None),
    *_each("web_search_options", {}, {"any": {"thing": 1}}, None),
    *_each("cache_salt", "", "a" * 10_000, None),
    *(message(role=role) for role in ROLES),
    *(message(**content) for content in _each("content", "", EMOJI, [], None)),
    *(message(content=[{"type": "text", "text": text, "image_url": None}]) for text in ("", None)),
    *(
        message(content=[part])
        for part in (
            {"type": "refusal", "refusal": "no"},
            {"type": "thinking", "thinking": "hm"},
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "image_url", "image_url": {"url": "u", "detail": "low", "x": 1}},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            {"type": "audio_url", "audio_url": "u"},
            {"type": "video_url", "video_url": {"url": "u"}},
            {"type": "file", "file": {"file_data": "data:text/plain;base64,QQ"}},
            {"type": "file", "file": {"file_id": "f", "filename": None}},
        )
    ),
    *(message(content=[{"type": "text", "text": "a", "cache_control": {"x": 1}}]) for _ in "1"),
    # The type is optional in the interface. Without it, `text` or `image_url` determines the type.
    *(message(content=[{**told, "x": 1}]) for told in ({"text": ""}, {"type": None, "text": "a"})),
    *(message(content=[{"image_url": url, "text": None}]) for url in ("u", {"url": "u"})),
    *(message(content=[{"type": kind, "image_url": "u"}]) for kind in ("image_url", "input_image")),
    *(
        message(**{name: value})
        for name in ("reasoning", "reasoning_content", "name", "tool_call_id")
        for value in ("", EMOJI, None)
    ),
    *(message(tool_calls=value) for value in ([], [{"id": "1", "x": {}}], None)),
    *(message(function_call=value) for value in ({"name": "f"}, None)),
    *(message(model_id=value) for value in ("a", "a" * 255, "a" * 256, EMOJI * 256)),
]


def _shown(case: str | dict[str, Any]) -> str:
    text = case if isinstance(case, str) else repr(case)
    return text.encode("ascii", "replace").decode()[:60] + (f"..{len(text)}" if text[60:] else "")


@each("fields", TAKEN, ids=_shown)
async def test_taken(scripted: ScriptedGateway, fields: dict[str, Any]) -> None:
    answer = await ask(scripted, fields)
    assert answer.status_code == 200, answer.text


REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("model", {"model": value}) for value in ("", "a" * 201, EMOJI * 201)),
    ("messages", {"messages": []}),
    *(("policy_ids[0]", {"policy_ids": [value]}) for value in ("", "a" * 121, EMOJI * 121, None)),
    ("policy_ids", {"policy_ids": [f"policy_{number}" for number in range(1001)]}),
    *(
        (name, {name: value})
        for name in ("max_tokens", "max_completion_tokens")
        for value in (0, -1, 999_991, 2**63, 1.5)
    ),
    *(
        (name, {name: value})
        for name in ("frequency_penalty", "presence_penalty")
        for value in (-2.001, 2.001, 3, -1e308)
    ),
    *(("logit_bias[...]", {"logit_bias": {"1": value}}) for value in (-100.5, 101, "1", None)),
    *(("n", {"n": value}) for value in (0, -1, 129, 2**31, 1.5)),
    ("seed", {"seed": 1.5}),
    ("stop[0]", {"stop": [None]}),
    ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": 1}}),
    ("reasoning.effort", {"reasoning": {"effort": "Low"}}),
    ("reasoning.enabled", {"reasoning": {"enabled": 1}}),
    ("reasoning.exclude", {"reasoning": {"exclude": "yes"}}),
    *(("reasoning.max_tokens", {"reasoning": {"max_tokens": v}}) for v in (0, 999_991, 1.5, "1")),
    *(("reasoning_effort", {"reasoning_effort": value}) for value in ("", "HIGH", "highest")),
    *(("safety_identifier", {"safety_identifier": value}) for value in ("a" * 65, EMOJI * 65)),
    *(("user", {"user": value}) for value in ("a" * 513, EMOJI * 513)),
    ("tools[0]", {"tools": ["f"]}),
    *(("tool_choice", {"tools": [{}], "tool_choice": value}) for value in ("Auto", "any", "")),
    ("functions[1]", {"functions": [{}, None]}),
    *(("function_call", {"functions": [{}], "function_call": v}) for v in ("required", "")),
    *(("response_format.type", {"response_format": {"type": v}}) for v in ("", "json", None)),
    ("response_format.type", {"response_format": {}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema", "json_schema": 1}}),
    *(("response_format.json_schema.name", schema(name=v)) for v in ("", "a" * 129, EMOJI * 129)),
    ("response_format.json_schema.name", schema(name=None)),
    ("response_format.json_schema.schema", schema(schema=None)),
    ("response_format.json_schema.description", schema(description="a" * 2049)),
    ("response_format.json_schema.strict", schema(strict="yes")),
    ("modalities[0]", {"modalities": [1]}),
    ("verbosity", {"verbosity": "LOW"}),
    *(("prompt_cache_key", {"prompt_cache_key": value}) for value in ("a" * 513, EMOJI * 513)),
    *(("prompt_cache_retention", {"prompt_cache_retention": v}) for v in ("", "1h", "in-memory")),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 1.5}),
    *(("messages[0].role", message(role=value)) for value in ("", "User", "critic", None)),
    ("messages[0].role", {"messages": [{"content": "no role"}]}),
    ("messages[0]", {"messages": ["hello"]}),
    *(("messages[0].content", message(content=value)) for value in (1, {"type": "text"}, True)),
    ("messages[0].content[0]", message(content=["text"])),
    ("messages[0].content[0].text", message(content=[{"type": "text", "text": 1}])),
    ("messages[0].content[0].type", message(content=[{"type": 1}])),
    # The type of a part must be known. Parts of unknown types are not forwarded.
    *(
        ("messages[0].content[0].type", message(content=[part]))
        for part in (
            {},
            {"text": None},
            {"text": "a", "image_url": "u"},
            {"type": None, "video_url": "u"},
            {"type": "", "text": "a"},
            {"type": "Text", "text": "a"},
            {"type": "odd", "deep": [{"in": "it"}]},
            {"type": "video", "video": "u"},
        )
    ),
    (
        "messages[1].content[1].type",
        {"messages": [USER, {**USER, "content": [{"type": "text", "text": "a"}, {}]}]},
    ),
    # A part must have the content of its type, and no other content.
    *(
        (f"messages[0].content[0].{place}", message(content=[part]))
        for place, part in (
            ("refusal", {"type": "refusal"}),
            ("thinking", {"type": "thinking", "thinking": 7}),
            ("thinking[0].text", {"type": "thinking", "thinking": [{}]}),
            ("image_url", {"type": "image_url"}),
            ("image_url", {"type": "image_url", "image_url": 7}),
            ("image_url.url", {"type": "image_url", "image_url": {}}),
            ("input_audio", {"type": "input_audio"}),
            ("input_audio.data", {"type": "input_audio", "input_audio": {"format": "wav"}}),
            ("audio_url", {"type": "audio_url"}),
            ("video_url.url", {"type": "video_url", "video_url": {"url": 7}}),
            ("file.file_data", {"type": "file", "file": {"filename": "a"}}),
            ("image_url", {"type": "text", "text": "a", "image_url": "u"}),
            ("file", {"type": "image_url", "image_url": "u", "file": {"file_data": "x"}}),
        )
    ),
    ("messages[0].tool_calls[0]", message(tool_calls=[1])),
    ("messages[0].function_call", message(function_call="f")),
    *(("messages[0].model_id", message(model_id=v)) for v in ("", "a" * 257, EMOJI * 257, None, 1)),
    # Unknown properties of objects that the interface closes.
    ("surprise", {"surprise": 1}),
    ("Model", {"Model": "m"}),
    ("structured_outputs", {"structured_outputs": True}),
    ("messages[0].refusal", message(refusal=None)),
    ("messages[0].annotations", message(annotations=[])),
    ("reasoning.summary", {"reasoning": {"summary": "auto"}}),
    ("stream_options.x", {"stream": True, "stream_options": {"x": 1}}),
    ("response_format.schema", {"response_format": {"type": "text", "schema": {}}}),
    (
        "response_format.json_schema",
        {"response_format": {"type": "json_object", "json_schema": {}}},
    ),
    (
        "response_format.strict",
        {"response_format": {**schema()["response_format"], "strict": True}},
    ),
    ("response_format.json_schema.x", schema(x=1)),
    # Fields that must not be combined.
    ("max_tokens", {"max_tokens": 5, "max_completion_tokens": 5}),
    ("store", {"store": True}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("stream_options", {"stream": False, "stream_options": {}}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("top_logprobs", {"logprobs": False, "top_logprobs": 0}),
    ("prompt_logprobs", {"stream": True, "prompt_logprobs": 1}),
    ("reasoning_effort", {"reasoning": {"effort": "low"}, "reasoning_effort": "high"}),
    ("reasoning.max_tokens", {"reasoning": {"effort": "low", "max_tokens": 5}}),
    ("reasoning.max_tokens", {"reasoning": {"max_tokens": 5}, "reasoning_effort": "low"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [], "tool_choice": {"type": "function"}}),
    ("function_call", {"function_call": {"name": "f"}}),
    # Limits above the model's maximum output length.
    ("max_tokens", {"model": "example/chat", "max_tokens": 513}),
    ("max_completion_tokens", {"model": "example/chat", "max_completion_tokens": 513}),
]


@each(("param", "fields"), REFUSED, ids=_shown)
async def test_refused(scripted: ScriptedGateway, param: str, fields: dict[str, Any]) -> None:
    before = await scripted.traces()
    answer = await ask(scripted, fields)
    assert_error(answer, 400, "invalid_request", param)
    # No backend was called, and the ledger is unchanged.
    assert await scripted.traces() == before


# The fields by the JSON types that they accept. All other types are rejected.
_TAKES = {
    "text": "model",
    "array": "messages policy_ids",
    "flag": "stream store structuredOutputs",
    "count null": "max_tokens max_completion_tokens n seed top_logprobs prompt_logprobs",
    "count number null": "temperature top_p frequency_penalty presence_penalty",
    "object null": "logit_bias stream_options reasoning response_format audio prediction metadata "
    "web_search_options",
    "text object null": "tool_choice function_call",
    "array null": "tools functions modalities",
    "text array null": "stop",
    "flag null": "thinking include_reasoning parallel_tool_calls logprobs",
    "text null": "reasoning_effort safety_identifier user verbosity service_tier prompt_cache_key "
    "prompt_cache_retention cache_salt",
}
TYPES = {field: kinds.split() for kinds, fields in _TAKES.items() for field in fields.split()}
SAMPLES: dict[str, list[Any]] = {
    "object": [{}, {"a": 1}],
    "array": [[], [1]],
    "text": ["", "1", "true"],
    "flag": [True, False],
    "count": [0, 1],
    "number": [0.5],
    "null": [None],
}


@each("field", TYPES)
async def test_every_other_type_is_refused(scripted: ScriptedGateway, field: str) -> None:
    for kind, values in SAMPLES.items():
        for value in values if kind not in TYPES[field] else ():
            answer = await ask(scripted, {field: value})
            assert_error(answer, 400, "invalid_request", field)


def test_the_table_of_types_has_every_field() -> None:
    described = [field for fields in TAKEN for field in fields]
    assert set(TYPES) - {"model"} <= set(described)
    assert set(described) <= set(TYPES)


@each(
    ("body", "param"),
    [
        (b"", None),
        (b"null", None),
        (b"[]", None),
        (b"{", None),
        (b'{"model":"example/chat"}', "messages"),
        (b'{"messages":[{"role":"user","content":"a"}]}', "model"),
        (b'{"model":"example/chat","messages":[],"messages":[{"role":"user"}]}', "messages"),
        (b'{"model":"example/chat","messages":[{"role":"user","role":"user"}]}', "role"),
        (b'{"model":"example/chat","messages":[{"role":"user"}],"temperature":1e400}', None),
        (b'{"model":"example/chat","messages":[{"role":"user"}],"temperature":NaN}', None),
        (b'{"model":"example/chat","messages":[{"role":"user"}],"n":' + b"1" * 5000 + b"}", None),
    ],
    ids=lambda found: found[:70] if isinstance(found, bytes) else None,
)
async def test_bodies_that_are_no_request(
    scripted: ScriptedGateway, body: bytes, param: str | None
) -> None:
    answer = await scripted.send(body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_request"
    if param is not None:
        assert error["param"] == param


async def test_one_and_a_fraction_of_nothing_is_exact_or_refused(scripted: ScriptedGateway) -> None:
    for written, exact in ((b"1.0", 1), (b"1e0", 1), (b"-0", 0)):
        body = b'{"model":"example/wide","messages":[{"role":"user"}],"seed":%b}' % written
        answer = await scripted.send(body)
        assert answer.status_code in (200, 400)
        if answer.status_code == 200:
            assert scripted.upstream.requests[-1].json["seed"] == exact


async def test_as_many_as_there_can_be_is_dear_and_no_fault(scripted: ScriptedGateway) -> None:
    answer = await ask(scripted, {"n": 128, "max_tokens": 999_990})
    assert answer.status_code == 200
    poor = await scripted.with_tenant(credit=10**12)
    answer = await ask(poor, {"n": 128, "max_tokens": 999_990})
    assert_error(answer, 402, "payment_required")
    assert await poor.entries() == []
    answer = await scripted.chat(n=128, max_tokens=999_990)
    assert_error(answer, 400, "invalid_request", "max_tokens")
