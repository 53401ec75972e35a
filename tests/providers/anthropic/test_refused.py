"""Tests which requests the Messages wire refuses, and that the error names the place in the request."""

from typing import Any

import pytest

from tests.providers.anthropic.calls import behaving, claude_call, sent, sent_for
from tests.support.tables import each
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.messages_behavior import PromptCaching
from tollkeeper.providers.anthropic.wire import Endpoint

_PNG = "data:image/png;base64,iVBORw0KGgo="
_MARK = {"type": "ephemeral"}
_IN_CONTENT = "messages[0].content[0]"


def _says(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", **fields}}


def _part(**part: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


@each(
    ("fields", "param"),
    [
        ({"seed": 1}, "seed"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"logprobs": True}, "logprobs"),
        ({"cache_salt": "s"}, "cache_salt"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
        ({"messages": [{"role": "user", "name": "Ann", "content": "Hi"}]}, "messages[0].name"),
        ({"web_search_options": {"search_context_size": "low"}}, None),
        (_part(type="image_url", image_url={"url": _PNG, "detail": "low"}), None),
        (_part(type="image_url", image_url={"url": "data:image/tiff;base64,AA=="}), _IN_CONTENT),
        (_part(type="input_audio", input_audio={"data": "AA==", "format": "wav"}), _IN_CONTENT),
        (_part(type="video_url", video_url={"url": "https://a.example/b"}), _IN_CONTENT),
        (_part(type="file", file={"file_id": "file-1"}), _IN_CONTENT),
        (_part(type="file", file={"file_data": "data:text/csv;base64,AA=="}), _IN_CONTENT),
        (_part(type="text", text="Hi", custom=1), "messages[0].content[0].custom"),
        ({"tools": [_function(custom=1)]}, "tools[0].custom"),
    ],
)
def test_what_the_protocol_cannot_carry_is_refused(
    fields: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(OptionUnsupported) as refused:
        sent_for(**fields)
    assert refused.value.param
    assert param is None or refused.value.param == param


@each(
    ("fields", "param"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [_says("")]}, "messages[0].content"),
        (_part(type="image_url", image_url={"url": "ftp://a"}), _IN_CONTENT),
        (_part(type="file", file={"file_data": "data:text/plain;base64,!"}), _IN_CONTENT),
        (_part(type="text", text="Hi", cache_control={"type": "x"}), None),
        (_part(type="text", text="Hi", cache_control={"type": "ephemeral", "ttl": "9m"}), None),
    ],
)
def test_what_is_wrong_is_refused(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        sent_for(**fields)
    assert refused.value.param
    assert param is None or refused.value.param == param


@each("arguments", ["[1]", "1", "{", '"a"'])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    messages = [_says("Hi"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(InvalidRequest) as refused:
        sent_for(messages=messages)
    assert refused.value.param == "messages[1].tool_calls[0]"


def test_marks_are_refused_where_caching_is_off() -> None:
    with pytest.raises(OptionUnsupported) as refused:
        sent_for(
            model=behaving(caching=PromptCaching.OFF),
            **_part(type="text", text="Hi", cache_control=_MARK),
        )
    assert refused.value.param == "messages[0].content[0].cache_control"


def test_vertex_names_model_and_version_elsewhere() -> None:
    body = sent(claude_call(), endpoint=Endpoint.VERTEX)
    assert body["anthropic_version"] == "vertex-2023-10-16"
    assert "model" not in body
    by_url = claude_call(**_part(type="image_url", image_url={"url": "https://a.example/b.png"}))
    with pytest.raises(OptionUnsupported):
        sent(by_url, endpoint=Endpoint.VERTEX)
