"""Tests how the wire encodes calls as Gemini requests, and which requests it refuses."""

from typing import Any

import pytest

from tests.providers.gemini.calls import OLDER, gemini_call, sent, sent_for
from tests.support.tables import each
from tests.support.upstream_gemini import text_part
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.providers.gemini.wire import Endpoint

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"at": {"type": "integer"}}}
_PNG = "data:image/png;base64,iVBORw0KGgo="


def _tool(name: str = "look", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": _SCHEMA, **fields}}


def _user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def _parts(*parts: Any) -> Any:
    (content,) = sent_for(**_user(*parts))["contents"]
    return content["parts"]


def test_the_least() -> None:
    assert sent_for(output_tokens_max=77) == {
        "contents": [{"role": "user", "parts": [text_part("Hi")]}],
        "generationConfig": {"maxOutputTokens": 77},
    }


def test_system_messages_come_first() -> None:
    body = sent_for(
        messages=[
            {"role": "system", "content": "One."},
            {"role": "developer", "content": "Two."},
            {"role": "user", "content": "Hi"},
            {"role": "user", "content": "there"},
        ]
    )
    assert body["systemInstruction"] == {"parts": [text_part("One."), text_part("Two.")]}
    assert body["contents"] == [{"role": "user", "parts": [text_part("Hi"), text_part("there")]}]
    alone = sent_for(messages=[{"role": "system", "content": "One."}])
    assert alone["contents"] == [{"role": "user", "parts": [text_part("One.")]}]
    assert "systemInstruction" not in alone


def test_sampling() -> None:
    body = sent_for(
        temperature=0,
        top_p=0.5,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        seed=7,
        stop="end",
        top_k=40,
    )
    assert body["generationConfig"] == {
        "maxOutputTokens": 1024,
        "temperature": 0,
        "topP": 0.5,
        "presencePenalty": 0.1,
        "frequencyPenalty": -0.2,
        "seed": 7,
        "stopSequences": ["end"],
        "topK": 40,
    }


def test_tools() -> None:
    body = sent_for(tools=[_tool(description="Looks."), _tool("f", parameters=None)])
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {"name": "look", "description": "Looks.", "parametersJsonSchema": _SCHEMA},
                {"name": "f"},
            ]
        }
    ]
    assert "toolConfig" not in body


_ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
}


@each(
    ("choice", "strict", "config"),
    [
        ("auto", False, None),
        ("auto", True, {"mode": "VALIDATED"}),
        ("none", True, {"mode": "NONE"}),
        ("required", True, {"mode": "ANY"}),
        (
            {"type": "function", "function": {"name": "look"}},
            False,
            {"mode": "ANY", "allowedFunctionNames": ["look"]},
        ),
        (_ALLOWED, False, {"mode": "ANY"}),
    ],
)
def test_the_choice_of_tools(choice: Any, strict: bool, config: Any) -> None:
    tools = [_tool(strict=strict), _tool("f")]
    body = sent_for(tools=tools, tool_choice=choice)
    assert body.get("toolConfig") == (config and {"functionCallingConfig": config})
    names = [tool["name"] for tool in body["tools"][0]["functionDeclarations"]]
    assert names == (["f"] if choice is _ALLOWED else ["look", "f"])


def test_output_formats() -> None:
    body = sent_for(response_format={"type": "json_object"})
    assert body["generationConfig"]["responseMimeType"] == "application/json"
    named = {"name": "n", "schema": _SCHEMA, "description": "D", "strict": True}
    body = sent_for(response_format={"type": "json_schema", "json_schema": named})
    assert body["generationConfig"] == {
        "maxOutputTokens": 1024,
        "responseMimeType": "application/json",
        "responseJsonSchema": {**_SCHEMA, "description": "D"},
    }


def test_media() -> None:
    image = {"type": "image_url", "image_url": {"url": _PNG, "detail": "high"}}
    audio = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
    pdf = {"type": "file", "file": {"file_data": "JVBERi0=", "filename": "a.pdf"}}
    text = {"type": "file", "file": {"file_data": "data:text/plain;base64,SGk="}}
    linked = {"type": "image_url", "image_url": {"url": "https://a.example/x.jpg?y=1"}}
    assert _parts(image, audio, pdf, text, linked) == [
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
        {"inlineData": {"mimeType": "audio/wav", "data": "UklG"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0="}},
        {"inlineData": {"mimeType": "text/plain", "data": "SGk="}},
        {"fileData": {"fileUri": "https://a.example/x.jpg?y=1", "mimeType": "image/jpeg"}},
    ]


@each(
    "url",
    [
        "https://generativelanguage.googleapis.com/v1beta/files/abc",
        "https://GenerativeLanguage.googleapis.com./v1beta/files/abc.png",
        "https://europe-west1-aiplatform.googleapis.com/x.png",
        "gs://bucket/x.png",
        "file:///etc/passwd",
        "https://a.example/x",
        "https://[/x.png",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    """The provider would read addresses in its own storage with the rights of the gateway's account."""
    with pytest.raises((InvalidRequest, OptionUnsupported)) as raised:
        _parts({"type": "image_url", "image_url": {"url": url}})
    assert raised.value.param == "messages[0].content[0]"


@each(
    ("fields", "config"),
    [
        ({"reasoning_effort": "low"}, {"thinkingLevel": "LOW", "includeThoughts": True}),
        ({"reasoning_effort": "xhigh"}, {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ({"thinking": True}, {"includeThoughts": True}),
        ({"reasoning.summary": "auto"}, {"includeThoughts": True}),
        ({"reasoning.max_tokens": 99}, {"thinkingBudget": 99, "includeThoughts": True}),
        ({"reasoning.encrypted_content": True}, None),
        ({}, None),
    ],
)
def test_how_much_it_thinks(fields: dict[str, Any], config: Any) -> None:
    assert sent_for(**fields)["generationConfig"].get("thinkingConfig") == config


@each(
    ("fields", "bound", "config"),
    [
        ({"reasoning_effort": "none"}, 8192, {"thinkingBudget": 0}),
        ({"thinking": False}, 8192, {"thinkingBudget": 0}),
        ({"reasoning_effort": "low"}, 8192, {"thinkingBudget": 1024, "includeThoughts": True}),
        ({"reasoning_effort": "high"}, 1000, {"thinkingBudget": 800, "includeThoughts": True}),
        ({"reasoning_effort": "high"}, 1 << 20, {"thinkingBudget": 24576, "includeThoughts": True}),
    ],
)
def test_how_much_an_older_model_thinks(fields: dict[str, Any], bound: int, config: Any) -> None:
    body = sent_for(model=OLDER, output_tokens_max=bound, **fields)
    assert body["generationConfig"]["thinkingConfig"] == config


def test_a_search() -> None:
    body = sent_for(web_search_options={"search_context_size": "medium"}, tools=[_tool("f")])
    assert body["tools"][1] == {"googleSearch": {}}


def test_a_legacy_conversation() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    ]
    body = sent_for(model=OLDER, messages=messages, functions=[{"name": "f"}])
    assert body["contents"][1:] == [
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "f", "response": {"output": "1"}}}],
        },
    ]


def _refused(model: Model | None = None, **fields: Any) -> tuple[type[Exception], str | None]:
    call = gemini_call(**fields) if model is None else gemini_call(model=model, **fields)
    with pytest.raises((InvalidRequest, OptionUnsupported)) as raised:
        sent(call)
    return type(raised.value), raised.value.param


@each(
    ("fields", "param"),
    [
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"cache_salt": "s"}, "cache_salt"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"thinking": False}, "thinking"),
        (
            {"web_search_options": {"search_context_size": "high"}},
            "web_search_options.search_context_size",
        ),
        (
            {
                "web_search_options": {
                    "user_location": {"type": "approximate", "approximate": {"city": "Rome"}}
                }
            },
            "web_search_options.user_location",
        ),
        ({"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]}, "messages[0].name"),
        (
            {
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "system", "content": "Be brief."},
                ]
            },
            "messages[1].role",
        ),
        ({"tools": [_tool(surprise=1)]}, "tools[0].surprise"),
        (
            _user({"type": "image_url", "image_url": {"url": _PNG, "detail": "low"}}),
            "messages[0].content[0].detail",
        ),
        (_user({"type": "file", "file": {"file_id": "f1"}}), "messages[0].content[0]"),
    ],
)
def test_what_the_protocol_cannot_do(fields: dict[str, Any], param: str) -> None:
    assert _refused(**fields) == (OptionUnsupported, param)


@each(
    ("fields", "param"),
    [
        ({"seed": 2**31}, "seed"),
        ({"reasoning.max_tokens": -1}, "reasoning.max_tokens"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        (
            {
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "tool", "tool_call_id": "x", "content": "1"},
                ]
            },
            "messages[1].tool_call_id",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {
                                "id": "a",
                                "type": "function",
                                "function": {"name": "f", "arguments": "[1]"},
                            }
                        ],
                    }
                ]
            },
            "messages[0].tool_calls[0]",
        ),
    ],
)
def test_what_is_wrong(fields: dict[str, Any], param: str) -> None:
    assert _refused(**fields) == (InvalidRequest, param)


def test_marks_of_other_caches_have_no_effect() -> None:
    marked = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    assert _parts(marked) == [text_part("Hi")]


def test_what_is_the_same_at_vertex() -> None:
    assert sent_for(seed=1, endpoint=Endpoint.VERTEX) == sent_for(seed=1)
