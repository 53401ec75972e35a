"""Tests how the wire encodes calls as Converse requests, and which requests it refuses."""

import json
from typing import Any

import msgspec
import pytest

from tests.providers.converse.calls import (
    CLAUDE,
    GPT,
    NOVA,
    behaving,
    converse_call,
    sent,
    sent_for,
)
from tests.support.tables import each
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.messages_behavior import PromptCaching, ThinkingStyle
from tollkeeper.core.prompt import File, Prompt, Role, Text, ToolCall, ToolResult, Turn
from tollkeeper.providers.converse.media import MediaBlocks
from tollkeeper.providers.converse.wire import ConverseWire

_PNG = "data:image/png;base64,iVBORw0KGgo="
_MARK = {"type": "ephemeral"}
_POINT = {"cachePoint": {"type": "default"}}
_POINT_1H = {"cachePoint": {"type": "default", "ttl": "1h"}}
_IN_CONTENT = "messages[0].content[0]"


def _user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _text(text: str) -> dict[str, Any]:
    return {"text": text}


def _says(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _function(name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def _part(**part: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


def _called(*names: str) -> list[dict[str, Any]]:
    calls = [
        {"id": f"tooluse_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in names
    ]
    results = [
        {"role": "tool", "tool_call_id": f"tooluse_{name}", "content": "1"} for name in names
    ]
    return [_says("Hi"), {"role": "assistant", "content": None, "tool_calls": calls}, *results]


def test_the_smallest_request() -> None:
    assert sent_for() == {
        "messages": [_user(_text("Hi"))],
        "inferenceConfig": {"maxTokens": 1024},
    }


def test_sampling() -> None:
    body = sent_for(temperature=0, top_p=0.5, stop="END", top_k=7)
    assert body["inferenceConfig"] == {
        "maxTokens": 1024,
        "temperature": 0,
        "topP": 0.5,
        "stopSequences": ["END"],
    }
    assert body["additionalModelRequestFields"] == {"top_k": 7}
    assert sent_for(stop=["a", "b"])["inferenceConfig"]["stopSequences"] == ["a", "b"]


def test_system_texts_that_come_first_are_the_system() -> None:
    body = sent_for(
        messages=[
            {"role": "system", "content": "Be brief."},
            _says("Hi"),
            {"role": "developer", "content": "Be brief again."},
        ]
    )
    assert body["system"] == [_text("Be brief.")]
    assert body["messages"] == [
        _user(_text("Hi")),
        {"role": "system", "content": [_text("Be brief again.")]},
    ]


def test_tools_their_calls_and_their_results() -> None:
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    tools = [
        _function("a", description="Does a.", parameters=schema, strict=True),
        _function("b", description=""),
    ]
    body = sent_for(messages=_called("a", "b"), tools=tools)
    assert body["toolConfig"] == {
        "tools": [
            {
                "toolSpec": {
                    "name": "a",
                    "description": "Does a.",
                    "inputSchema": {"json": schema},
                    "strict": True,
                }
            },
            {
                "toolSpec": {
                    "name": "b",
                    "inputSchema": {"json": {"type": "object", "properties": {}}},
                }
            },
        ]
    }
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"toolUse": {"toolUseId": f"tooluse_{name}", "name": name, "input": {}}}
                for name in ("a", "b")
            ],
        },
        _user(
            *(
                {"toolResult": {"toolUseId": f"tooluse_{name}", "content": [_text("1")]}}
                for name in ("a", "b")
            )
        ),
    ]


@each(
    ("choice", "sent"),
    [
        (None, None),
        ("auto", {"auto": {}}),
        ("required", {"any": {}}),
        ({"type": "function", "function": {"name": "weather"}}, {"tool": {"name": "weather"}}),
    ],
)
def test_the_choice_of_a_tool(choice: Any, sent: Any) -> None:
    fields = {} if choice is None else {"tool_choice": choice}
    assert sent_for(tools=[_function()], **fields)["toolConfig"].get("toolChoice") == sent


def test_allowed_functions_are_the_only_ones_that_are_offered() -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "b"}}]}
    body = sent_for(
        tools=[_function("a"), _function("b")],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
    )
    names = [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]]
    assert (names, body["toolConfig"]["toolChoice"]) == (["b"], {"any": {}})


def test_no_call_is_no_tool() -> None:
    """The protocol cannot forbid calls, so the tools are left out. After earlier calls, this is impossible."""
    assert "toolConfig" not in sent_for(tools=[_function()], tool_choice="none")
    with pytest.raises(OptionUnsupported) as refused:
        sent_for(messages=_called("weather"), tools=[_function()], tool_choice="none")
    assert refused.value.param == "tool_choice"


def test_structured_output() -> None:
    schema = {"type": "object", "properties": {"who": {"type": "string"}}}
    described = {"name": "payer", "schema": schema, "description": "Who pays.", "strict": True}
    body = sent_for(response_format={"type": "json_schema", "json_schema": described})
    output = body["outputConfig"]["textFormat"]
    assert output["type"] == "json_schema"
    sent = output["structure"]["jsonSchema"]
    assert json.loads(sent.pop("schema")) == schema
    assert sent == {"name": "payer", "description": "Who pays."}


@each(
    ("part", "block"),
    [
        (
            {"type": "image_url", "image_url": {"url": _PNG}},
            {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
        ),
        (
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
            {"video": {"format": "mp4", "source": {"bytes": "AAAA"}}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"audio": {"format": "wav", "source": {"bytes": "AAAA"}}},
        ),
        (
            {"type": "file", "file": {"file_data": "JVBERi0=", "filename": "my_bill (1).pdf"}},
            {
                "document": {
                    "name": "my-bill (1)-pdf",
                    "format": "pdf",
                    "source": {"bytes": "JVBERi0="},
                }
            },
        ),
        (
            {"type": "file", "file": {"file_data": "data:text/csv;base64,QQ=="}},
            {"document": {"name": "document", "format": "csv", "source": {"bytes": "QQ=="}}},
        ),
        (
            {
                "type": "file",
                "file": {
                    "file_data": "data:application/octet-stream;base64,QQ==",
                    "filename": "a.md",
                },
            },
            {"document": {"name": "a-md", "format": "md", "source": {"bytes": "QQ=="}}},
        ),
    ],
)
def test_media_go_by_their_content(part: dict[str, Any], block: dict[str, Any]) -> None:
    assert sent_for(**_part(**part))["messages"] == [_user(block)]


def test_documents_of_the_same_name_get_different_ones() -> None:
    file = {"type": "file", "file": {"file_data": "QQ==", "filename": "a.pdf"}}
    body = sent_for(messages=[{"role": "user", "content": [file, file, file]}])
    names = [block["document"]["name"] for block in body["messages"][0]["content"]]
    assert names == ["a-pdf", "a-pdf 2", "a-pdf 3"]


def test_many_documents_of_the_same_name_are_named_in_linear_time() -> None:
    """Tests that the time is linear. If it were quadratic, this test would not end in time."""
    documents = MediaBlocks()
    file = File(data="data:text/plain;base64,QQ==", filename="a")
    names = [documents.block(file)["document"]["name"] for _ in range(20_000)]
    assert names[:3] == ["a", "a 2", "a 3"]
    assert len(set(names)) == 20_000


def test_marks_become_points_after_what_is_cached() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Rules.", "cache_control": _MARK}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Long.", "cache_control": {**_MARK, "ttl": "1h"}},
                {"type": "text", "text": "Short.", "cache_control": {**_MARK, "ttl": "5m"}},
                {"type": "text", "text": "Hi"},
            ],
        },
    ]
    body = sent_for(messages=messages, tools=[{**_function(), "cache_control": _MARK}])
    assert body["system"] == [_text("Rules."), _POINT]
    assert body["messages"][0]["content"] == [
        _text("Long."),
        _POINT_1H,
        _text("Short."),
        _POINT,
        _text("Hi"),
    ]
    assert body["toolConfig"]["tools"][1:] == [_POINT]


@each(
    ("in_content", "on_result", "points"),
    [
        (({}, _MARK, {}), {}, [_POINT]),
        (({**_MARK, "ttl": "1h"}, _MARK, _MARK), {}, [_POINT]),
        ((_MARK, {}, {}), {**_MARK, "ttl": "1h"}, [_POINT_1H]),
        (({}, {}, {}), {}, []),
    ],
)
def test_a_mark_inside_a_tool_result_becomes_a_point_after_it(
    in_content: tuple[Any, ...], on_result: Any, points: list[Any]
) -> None:
    """The protocol allows no cache point inside a tool result."""
    content = tuple(Text("a", extra=_extra(mark)) for mark in in_content)
    result = ToolResult(content, "c1", extra=_extra(on_result))
    turns = (
        Turn(Role.USER, (Text("Hi"),)),
        Turn(Role.ASSISTANT, (ToolCall("c1", "f", "{}"),)),
        Turn(Role.TOOL, (result,)),
    )
    call = msgspec.structs.replace(converse_call(), prompt=Prompt(turns=turns))
    block, *after = sent(call)["messages"][-1]["content"]
    assert block["toolResult"]["content"] == [_text("a")] * 3
    assert after == points


def _extra(mark: dict[str, Any]) -> dict[str, Any] | None:
    return {"cache_control": mark} if mark else None


@each(
    ("caching", "point"),
    [(PromptCaching.FIVE_MINUTES, _POINT), (PromptCaching.ONE_HOUR, _POINT_1H)],
)
def test_a_model_that_caches_by_itself(caching: PromptCaching, point: dict[str, Any]) -> None:
    body = sent_for(model=behaving(caching=caching))
    assert body["messages"] == [_user(_text("Hi"), point)]
    marked = _part(type="text", text="Hi", cache_control=_MARK)
    assert sent_for(model=behaving(caching=caching), **marked)["messages"] == [
        _user(_text("Hi"), _POINT)
    ]


@each(
    ("model", "fields", "additional", "output"),
    [
        (CLAUDE, {}, None, None),
        (
            CLAUDE,
            {"reasoning_effort": "xhigh"},
            {"thinking": {"type": "adaptive"}},
            {"effort": "xhigh"},
        ),
        (CLAUDE, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}, None),
        (
            behaving(thinking=ThinkingStyle.BUDGET),
            {"reasoning_effort": "medium", "output_tokens_max": 8000},
            {"thinking": {"type": "enabled", "budget_tokens": 4000}},
            None,
        ),
        (
            NOVA,
            {"reasoning_effort": "max"},
            {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}},
            None,
        ),
        (NOVA, {"reasoning_effort": "none"}, {"reasoningConfig": {"type": "disabled"}}, None),
        (GPT, {"reasoning_effort": "minimal"}, {"reasoning_effort": "low"}, None),
    ],
)
def test_how_each_family_is_asked_to_reason(
    model: Model, fields: dict[str, Any], additional: Any, output: Any
) -> None:
    body = sent_for(model=model, **fields)
    assert body.get("additionalModelRequestFields") == additional
    assert body.get("outputConfig") == output


@each(
    ("model", "fields", "param"),
    [
        (CLAUDE, {"seed": 1}, "seed"),
        (CLAUDE, {"logit_bias": {"1": 1}}, "logit_bias"),
        (CLAUDE, {"frequency_penalty": 1}, "frequency_penalty"),
        (CLAUDE, {"logprobs": True}, "logprobs"),
        (CLAUDE, {"cache_salt": "s"}, "cache_salt"),
        (CLAUDE, {"modalities": ["audio"]}, "modalities[0]"),
        (CLAUDE, {"response_format": {"type": "json_object"}}, "response_format"),
        (CLAUDE, {"web_search_options": {}}, "web_search_options"),
        (CLAUDE, {"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
        (CLAUDE, {"messages": [{**_says("Hi"), "name": "Ann"}]}, "messages[0].name"),
        (
            CLAUDE,
            _part(type="image_url", image_url={"url": "https://a.example/b.png"}),
            _IN_CONTENT,
        ),
        (CLAUDE, _part(type="image_url", image_url={"url": "s3://bucket/b.png"}), _IN_CONTENT),
        (
            CLAUDE,
            _part(type="image_url", image_url={"url": "data:image/tiff;base64,AA"}),
            _IN_CONTENT,
        ),
        (CLAUDE, _part(type="file", file={"file_id": "file-1"}), _IN_CONTENT),
        (CLAUDE, _part(type="text", text="Hi", custom=1), "messages[0].content[0].custom"),
        (GPT, {"reasoning_effort": "none"}, "reasoning_effort"),
        (GPT, {"thinking": True}, "thinking"),
    ],
)
def test_what_the_protocol_cannot_carry_is_refused(
    model: Model, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(OptionUnsupported) as refused:
        sent_for(model=model, **fields)
    assert refused.value.param == param


@each(
    ("fields", "param"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [_says("")]}, "messages[0].content"),
        (_part(type="image_url", image_url={"url": "iVBORw0KGgo="}), _IN_CONTENT),
        (_part(type="image_url", image_url={"url": "data:image/png;base64,"}), _IN_CONTENT),
    ],
)
def test_what_is_wrong_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        sent_for(**fields)
    assert refused.value.param == param


@each(
    ("name", "path"),
    [
        ("anthropic.claude-sonnet-4-5-v1:0", "model/anthropic.claude-sonnet-4-5-v1%3A0"),
        (
            "arn:aws:bedrock:us-east-1:1:application-inference-profile/a",
            "model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Aapplication-inference-profile%2Fa",
        ),
    ],
)
def test_the_model_is_in_the_path(name: str, path: str) -> None:
    wire = ConverseWire()
    assert wire.path_for(name, stream=False) == f"{path}/converse"
    assert wire.path_for(name, stream=True) == f"{path}/converse-stream"


def test_what_is_counted() -> None:
    call = converse_call(
        messages=[{"role": "system", "content": "Be brief."}, _says("Hi")],
        tools=[_function()],
        temperature=0.5,
        reasoning_effort="low",
    )
    counted = json.loads(ConverseWire().encode_count(call))["input"]["converse"]
    assert set(counted) == {"messages", "system", "toolConfig", "additionalModelRequestFields"}
