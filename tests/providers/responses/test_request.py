"""Tests that each field of a chat request gets its place in a Responses request, or is refused."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.support.backend_calls import MODEL, make_call
from tests.support.tables import each
from tests.support.upstream_wire import message_item, response
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported, TollkeeperError
from tollkeeper.core.inference import Call, Delta
from tollkeeper.core.prompt import Prompt, Reasoning, Role, Text, Turn
from tollkeeper.providers.config import WireProtocol
from tollkeeper.providers.gemini.thinking import Seal
from tollkeeper.providers.responses.answer import ResponsesAnswer
from tollkeeper.providers.responses.request import OPTIONS
from tollkeeper.providers.responses.wire import ResponsesWire
from tollkeeper.providers.wires import wire_for
from tollkeeper.setup.backends import backend_config
from tollkeeper.setup.settings import BackendSettings

USER = {"role": "user", "content": "Hi"}
SAID = {"type": "message", "role": "user", "content": "Hi"}


MODEL_OF_RESPONSES = replace(MODEL, options=dict(OPTIONS))


def asked(streamed: bool = False, /, **fields: Any) -> dict[str, Any]:
    return encoded(make_call(catalog_model=MODEL_OF_RESPONSES, **fields), streamed)


def encoded(call: Call, streamed: bool = False) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        ResponsesWire().encode_request(call, stream=streamed, extra={})
    )
    return body


def items(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the input items. They are the same if the messages are the client's raw bytes."""
    found: list[dict[str, Any]] = asked(messages=list(messages))["input"]
    assert asked(messages=msgspec.Raw(json.dumps(messages).encode()))["input"] == found
    return found


def test_the_least_request() -> None:
    assert asked() == {
        "model": "upstream-model",
        "input": [SAID],
        "max_output_tokens": 1024,
        "stream": False,
        "store": False,
    }
    assert asked(True)["stream"] is True


def test_a_request_never_carries_what_the_backend_sets() -> None:
    body = asked(model="caller's", stream=True, store=True, max_output_tokens=9)
    assert body == asked()


def test_the_first_words_of_a_system_are_instructions() -> None:
    system = {"role": "system", "content": "Be brief."}
    body = asked(messages=[system, USER, system])
    assert body["instructions"] == "Be brief."
    assert body["input"] == [SAID, {"type": "message", "role": "system", "content": "Be brief."}]
    assert "instructions" not in asked(messages=[{**system, "role": "developer"}, USER])


def test_instructions_alone_are_input() -> None:
    body = asked(messages=[{"role": "system", "content": "Write."}])
    assert "instructions" not in body
    assert body["input"] == [{"type": "message", "role": "system", "content": "Write."}]


def test_parts() -> None:
    content = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
        {"type": "image_url", "image_url": "https://example.test/a.png"},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,QQ", "filename": "a"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,QQ"}},
        {"type": "file", "file": {"file_id": "f"}},
    ]
    [item] = items({"role": "user", "content": content})
    assert item["content"] == [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
        {"type": "input_image", "image_url": "https://example.test/a.png", "detail": "auto"},
        {"type": "input_file", "file_data": "data:text/plain;base64,QQ", "filename": "a"},
        # OpenAI rejects content without a name.
        {"type": "input_file", "file_data": "data:text/plain;base64,QQ", "filename": "document"},
        {"type": "input_file", "file_id": "f"},
    ]


def test_an_answer_with_everything() -> None:
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    found = items(
        {"role": "assistant", "content": "So.", "reasoning": "Hm.", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    )
    assert found == [
        {
            "type": "reasoning",
            "id": "rs_0",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {"type": "message", "role": "assistant", "content": "So."},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "7"},
    ]


def test_encrypted_reasoning_goes_back_with_the_id_of_its_item() -> None:
    """The provider rejects an encrypted value in an item with another id."""
    output = [
        {"type": "reasoning", "id": "rs_a", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAB"},
    ]
    result = json.dumps(response(*output, message_item("So."))).encode()
    events = ResponsesAnswer(make_call()).read_whole(result)
    deltas = [event for event in events if isinstance(event, Delta)]
    sealed = tuple(delta.sealed_reasoning for delta in deltas if delta.sealed_reasoning)
    assert _answered(Reasoning("Hm.", sealed)) == output


def test_encrypted_reasoning_of_an_earlier_release_goes_back_without_an_id() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert _answered(Reasoning("Hm.", ("gAAAA",))) == [item]


@each("sealed", ['{"type":"thinking","signature":"c2ln"}', Seal("c2ln", call="c").sealed()])
def test_reasoning_that_another_protocol_sealed_is_left_out(sealed: str) -> None:
    assert _answered(Reasoning("Hm.", (sealed,))) == []


@pytest.mark.parametrize(
    ("preset", "kinds"),
    [("openai", ["message"]), ("azure", ["message"]), ("vllm", ["reasoning", "message"])],
)
def test_reasoning_text_is_not_sent_to_providers_that_reject_it(
    preset: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "k")
    declared = BackendSettings(
        name="cluster",
        preset=preset,
        protocol=WireProtocol.RESPONSES,
        urls=("http://a.test/v1",),
        api_key_env="KEY",
    )
    wire = wire_for(backend_config(declared, None))
    body = wire.encode_request(_answering(Reasoning("Hm.")), stream=False, extra={})
    assert [item["type"] for item in json.loads(body)["input"]] == kinds


def _answering(reasoning: Reasoning) -> Call:
    turn = Turn(Role.ASSISTANT, (reasoning, Text("So.")))
    return msgspec.structs.replace(make_call(), prompt=Prompt(turns=(turn,)))


def _answered(reasoning: Reasoning) -> list[dict[str, Any]]:
    """Returns the items before the text of an earlier answer with this reasoning."""
    found: list[dict[str, Any]] = encoded(_answering(reasoning))["input"]
    return found[:-1]


def test_parts_of_answers_and_outputs() -> None:
    text = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    picture = {"type": "image_url", "image_url": {"url": "u"}}
    found = items(
        {"role": "assistant", "content": [*text, {"type": "refusal", "refusal": "c"}]},
        {"role": "tool", "tool_call_id": "1", "content": text},
        {"role": "tool", "tool_call_id": "2", "content": [*text, picture]},
        {"role": "tool", "tool_call_id": "3", "content": None},
    )
    assert found[0]["content"] == "abc"
    assert found[1]["output"] == "ab"
    assert [part["type"] for part in found[2]["output"]] == [
        "input_text",
        "input_text",
        "input_image",
    ]
    assert found[3]["output"] == ""


def test_calls_of_the_old_kind() -> None:
    found = items(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "7"},
    )
    assert found[0]["call_id"] == found[1]["call_id"]
    body = asked(functions=[{"name": "f", "parameters": {}}], function_call={"name": "f"})
    assert body["tools"] == [{"type": "function", "name": "f", "parameters": {}, "strict": False}]
    assert body["tool_choice"] == {"type": "function", "name": "f"}
    assert body["parallel_tool_calls"] is False


def test_tools_are_flat() -> None:
    schema = {"type": "object", "properties": {"n": {"maximum": 12345678901234567890123}}}
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    tools = [
        {"type": "function", "function": function},
        {"type": "function", "function": {"name": "g"}},
    ]
    body = asked(tools=msgspec.Raw(json.dumps(tools).encode()), parallel_tool_calls=False)
    assert body["tools"] == [
        {"type": "function", **function},
        # Without the field `strict`, chat is not strict, but the Responses protocol is.
        {"type": "function", "name": "g", "parameters": None, "strict": False},
    ]
    assert body["parallel_tool_calls"] is False


@each(
    ("choice", "expected"),
    [
        ("none", "none"),
        ("required", "required"),
        (
            {"type": "function", "function": {"name": "f"}},
            {"type": "function", "name": "f"},
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        ),
    ],
)
def test_choice(choice: Any, expected: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert asked(tools=tools, tool_choice=choice)["tool_choice"] == expected


def test_web_search() -> None:
    place = {"type": "approximate", "approximate": {"city": "Kraków"}}
    body = asked(web_search_options={"search_context_size": "low", "user_location": place})
    assert body["tools"] == [
        {
            "type": "web_search",
            "search_context_size": "low",
            "user_location": {"type": "approximate", "city": "Kraków"},
        }
    ]
    assert "web_search_options" not in body


def test_format_verbosity_and_reasoning() -> None:
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    body = asked(
        response_format={"type": "json_schema", "json_schema": schema},
        verbosity="low",
        reasoning_effort="high",
        **{"reasoning.summary": "auto"},
    )
    assert body["text"] == {"format": {"type": "json_schema", **schema}, "verbosity": "low"}
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert asked(response_format={"type": "json_object"})["text"] == {
        "format": {"type": "json_object"}
    }
    assert asked(verbosity="high")["text"] == {"verbosity": "high"}


def test_what_is_to_be_included() -> None:
    body = asked(logprobs=True, top_logprobs=3, **{"reasoning.encrypted_content": True})
    assert body["include"] == ["message.output_text.logprobs", "reasoning.encrypted_content"]
    assert body["top_logprobs"] == 3
    assert not {"logprobs", "reasoning"} & set(body)


def test_fields_that_have_the_same_name() -> None:
    same = {
        "temperature": 0.5,
        "top_p": 0.25,
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "max_tool_calls": 3,
        "chat_template_kwargs": {"enable_thinking": True},
    }
    assert asked(**same) == {**asked(), **same}


@each(
    ("name", "value", "param"),
    [
        ("stop", "x", "stop"),
        ("seed", 1, "seed"),
        ("logit_bias", {"1": 1}, "logit_bias"),
        ("frequency_penalty", 1, "frequency_penalty"),
        ("presence_penalty", 1, "presence_penalty"),
        ("modalities", ["text", "audio"], "modalities[1]"),
        ("audio", {"voice": "a"}, "audio"),
        ("cache_salt", "x", "cache_salt"),
    ],
)
def test_options_without_a_place(name: str, value: Any, param: str) -> None:
    with pytest.raises(OptionUnsupported) as refused:
        asked(**{name: value})
    assert refused.value.param == param
    assert not refused.value.charged


TOOLS = [{"type": "function", "function": {"name": "f"}}]
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_a_custom_tool_cannot_pose_as_a_tool_of_the_provider() -> None:
    tool = {"type": "custom", "custom": {"name": "x", "type": "web_search"}}
    assert asked(tools=[tool])["tools"] == [{"type": "custom", "name": "x"}]


# Content parts with properties for which the Responses protocol has no field.
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "crop": 1}}
MARKED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


def test_cache_marks_and_echoed_fields_have_no_effect() -> None:
    parts = [MARKED, {"type": "text", "text": "y", "index": 0}]
    plain = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    assert asked(messages=[{"role": "user", "content": parts}]) == asked(
        messages=[{"role": "user", "content": plain}]
    )


REFUSED: list[tuple[dict[str, Any], str, type[TollkeeperError]]] = [
    *(
        (
            {"messages": [USER, {"role": role, "content": [{**MARKED, "tone": "dry"}]}]},
            "messages[1].content[0].tone",
            OptionUnsupported,
        )
        for role in ("user", "system", "assistant")
    ),
    (
        {"messages": [USER, {"role": "user", "content": [IMAGE]}]},
        "messages[1].content[0].crop",
        OptionUnsupported,
    ),
    (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "content": [{**MARKED, "tone": "dry"}]},
            ]
        },
        "messages[1].content[0].tone",
        OptionUnsupported,
    ),
    ({"tools": [{**TOOLS[0], "tone": "dry"}]}, "tools[0].tone", OptionUnsupported),
    ({"messages": [{**USER, "name": "Ann"}]}, "messages[0].name", OptionUnsupported),
    (
        {"messages": [USER, {"role": "user", "content": [AUDIO]}]},
        "messages[1].content[0]",
        OptionUnsupported,
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 7}]}]},
        "messages[0].content[0].image_url",
        InvalidRequest,
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL, {"type": "custom", "id": "d"}]}]},
        "messages[0].tool_calls[1]",
        OptionUnsupported,
    ),
    (
        {"messages": [{"role": "tool", "content": "x"}]},
        "messages[0].tool_call_id",
        InvalidRequest,
    ),
    (
        {"messages": [{"role": "function", "name": "f", "content": "x"}]},
        "messages[0].name",
        InvalidRequest,
    ),
    ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0]", OptionUnsupported),
    (
        {"tools": TOOLS, "tool_choice": {"type": "mcp", "server_label": "x"}},
        "tool_choice",
        OptionUnsupported,
    ),
    ({"web_search_options": {"unheard": 1}}, "web_search_options", InvalidRequest),
]


@each(("fields", "param", "error"), REFUSED)
def test_what_has_no_place_is_refused(
    fields: dict[str, Any], param: str, error: type[TollkeeperError]
) -> None:
    with pytest.raises(error) as refused:
        asked(**fields)
    assert refused.value.param == param
