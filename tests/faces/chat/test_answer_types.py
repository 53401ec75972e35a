"""Tests that chat answers have the types of the interface, whatever the backend sends.

The schema below is written by hand from the interface's tables, not derived from the code.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema_rs
import pytest

from tests.support.scripted_gateway import COST, ScriptedGateway, answering_gateway
from tests.support.tables import each
from tests.support.upstream import DONE, USAGE, answer, chat, completion, sse, stream
from tests.support.upstream import chunk as chat_chunk
from tests.support.upstream import usage_chunk as chat_usage_chunk

_Schema = dict[str, Any]
_ANY: _Schema = {}
_TEXT: _Schema = {"type": "string"}
_OPTIONAL_TEXT: _Schema = {"type": ["string", "null"]}
_COUNT: _Schema = {"type": "integer"}
_OBJECTS: _Schema = {"type": ["array", "null"], "items": {"type": "object"}}


def _object(required: dict[str, _Schema], **optional: _Schema) -> _Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **optional},
        "additionalProperties": False,
    }


_COUNTS: _Schema = {
    "type": ["object", "null"],
    "additionalProperties": {"type": ["integer", "null"]},
}
_PROMPT_COUNTS: _Schema = {
    "type": ["object", "null"],
    "additionalProperties": {
        "type": ["integer", "object", "null"],
        "additionalProperties": {"type": "integer"},
    },
}
_USAGE = _object(
    {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
    prompt_tokens_details=_PROMPT_COUNTS,
    completion_tokens_details=_COUNTS,
)
_PLACE: _Schema = {"type": "integer", "minimum": 0}
_CITATION = _object({"url": _TEXT, "title": _TEXT, "start_index": _PLACE, "end_index": _PLACE})
_ANNOTATION = _object({"type": {"const": "url_citation"}, "url_citation": _CITATION})
_MESSAGE_FIELDS: _Schema = {
    "content": {"type": ["string", "array", "null"], "items": {"type": "object"}},
    "refusal": _OPTIONAL_TEXT,
    "reasoning": _OPTIONAL_TEXT,
    "reasoning_content": _OPTIONAL_TEXT,
    "name": _OPTIONAL_TEXT,
    "tool_call_id": _OPTIONAL_TEXT,
    "tool_calls": _OBJECTS,
    "function_call": {"type": ["object", "null"]},
    "annotations": {"type": ["array", "null"], "items": _ANNOTATION},
}
_ROLE: _Schema = {"enum": ["system", "developer", "user", "assistant", "tool"]}


def _schema(kind: str, choice: _Schema, **optional: _Schema) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        _object(
            {
                "id": _TEXT,
                "object": {"const": kind},
                "created": _COUNT,
                "model": _TEXT,
                "choices": {"type": "array", "items": choice},
            },
            usage={"anyOf": [{"type": "null"}, _USAGE]},
            system_fingerprint=_OPTIONAL_TEXT,
            service_tier=_OPTIONAL_TEXT,
            **optional,
        )
    )


COMPLETION = _schema(
    "chat.completion",
    _object(
        {"index": _COUNT, "message": _object({"role": _ROLE}, **_MESSAGE_FIELDS)},
        logprobs=_ANY,
        finish_reason=_OPTIONAL_TEXT,
    ),
    prompt_logprobs={"type": ["array", "null"], "items": {"type": ["object", "null"]}},
)
# The interface does not define the stream records. Their fields have the types of the completion.
CHUNK = _schema(
    "chat.completion.chunk",
    _object(
        {"index": _COUNT, "delta": _object({}, role=_ROLE, **_MESSAGE_FIELDS)},
        logprobs=_ANY,
        finish_reason=_OPTIONAL_TEXT,
    ),
)

_ODD_USAGE = {
    **USAGE,
    "prompt_tokens_details": {
        "cached_tokens": 1,
        "audio_tokens": None,
        "share": 0.5,
        "on": True,
        "list": [1],
        "cache_creation": {"5m": 1, "1h": 0},
        "by_name": {"a": "1"},
        "deep": {"a": {"b": 1}},
    },
    "completion_tokens_details": {
        "reasoning_tokens": 1,
        "audio_tokens": None,
        "on": True,
        "text": "1",
        "map": {"a": 1},
    },
}
_ODD_CITATIONS = [
    {"type": "url_citation", "url_citation": {"url": "u", "title": None, "start_index": -1}},
    {"type": "url_citation", "url_citation": {"url": "u", "end_index": 7, "more": 1}},
    {"type": "file_citation", "file_citation": {"file_id": "f"}},
]
# Fields that a backend adds to its message.
ODD_MESSAGES: dict[str, dict[str, Any]] = {
    "role": {"role": "critic"},
    "no role": {"role": None},
    "empty optional fields": {"refusal": None, "annotations": [], "tool_calls": []},
    "empty text": {"content": ""},
    "no text": {"content": None},
    "parts": {"content": [{"type": "text", "text": "a"}, {"type": "odd"}]},
    "citations": {"annotations": _ODD_CITATIONS},
    "calls": {"tool_calls": [{"index": 0, "function": {"name": "f"}, "extra_content": {"x": 1}}]},
    "function": {"function_call": {"name": "f", "more": 1}},
    "fields of its own": {"audio": {"id": "a"}, "provider": {"x": 1}, "reasoning_details": [1]},
}
# Fields that a backend adds to its whole answer.
ODD_ANSWERS: dict[str, dict[str, Any]] = {
    "usage": {"usage": _ODD_USAGE},
    "fields of its own": {"timings": {"x": 1}, "provider": "p", "citations": ["u"]},
    "prompt log-probabilities": {"prompt_logprobs": [None, {"1": {"logprob": -1}}]},
    "no prompt log-probabilities": {"prompt_logprobs": None},
    "numbers as prompt log-probabilities": {"prompt_logprobs": [1, "x"]},
    "text as prompt log-probabilities": {"prompt_logprobs": "none"},
}


@pytest.fixture(scope="module")
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    options = {"prompt_logprobs": "prompt_logprobs"}
    async with answering_gateway(data_dir, conninfo, model={"options": options}) as running:
        yield running


async def _completed(scripted: ScriptedGateway, body: dict[str, Any]) -> dict[str, Any]:
    scripted.upstream.play(answer(body))
    answered = await scripted.chat(prompt_logprobs=1)
    assert answered.status_code == 200, answered.text
    assert UUID(answered.headers["x-request-id"]).version == 7
    found: dict[str, Any] = answered.json()
    assert [error.message for error in COMPLETION.iter_errors(found)] == []
    return found


@each("case", ODD_MESSAGES)
async def test_message_of_a_completion(scripted: ScriptedGateway, case: str) -> None:
    body = completion()
    body["choices"][0]["message"] |= ODD_MESSAGES[case]
    found = await _completed(scripted, body)
    # A client appends the message to its conversation, so the gateway must accept it in a request.
    message = found["choices"][0]["message"]
    if "annotations" not in message:
        scripted.upstream.play(chat())
        again = await scripted.chat(messages=[{"role": "user", "content": "Hello"}, message])
        assert again.status_code in (200, 501), again.text


@each("reason", [None, ""])
async def test_a_complete_answer_without_a_finish_reason(
    scripted: ScriptedGateway, reason: str | None
) -> None:
    """The interface allows null, and the answer is complete: its content must not get lost."""
    tenant = await scripted.with_tenant()
    body = completion()
    body["choices"][0]["finish_reason"] = reason
    (choice,) = (await _completed(tenant, body))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", None)
    (entry,) = await tenant.entries()
    assert (entry.status, entry.cost, entry.estimated) == ("settled", COST, False)


@each("case", ODD_ANSWERS)
async def test_completion(scripted: ScriptedGateway, case: str) -> None:
    await _completed(scripted, completion(**ODD_ANSWERS[case]))


async def test_what_has_the_form_of_the_interface_is_kept(scripted: ScriptedGateway) -> None:
    logprobs = [None, {"1": {"logprob": -1.5, "rank": 1, "decoded_token": "a"}}]
    found = await _completed(scripted, completion(usage=_ODD_USAGE, prompt_logprobs=logprobs))
    assert found["prompt_logprobs"] == logprobs
    assert found["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 1,
        "audio_tokens": None,
        "cache_creation": {"5m": 1, "1h": 0},
    }
    assert found["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": 1,
        "audio_tokens": None,
    }


@each("case", ODD_MESSAGES)
async def test_chunks(scripted: ScriptedGateway, case: str) -> None:
    records = [chat_chunk(delta={"role": "assistant", "content": ""}), chat_chunk("Hello")]
    records += [chat_chunk(delta=ODD_MESSAGES[case]), chat_chunk(finish="stop")]
    records += [chat_usage_chunk(_ODD_USAGE)]
    scripted.upstream.play(stream([*map(sse, records), DONE]))
    answered = await scripted.chat(stream=True, stream_options={"include_usage": True})
    assert answered.status_code == 200, answered.text
    *chunks, done, end = answered.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    for chunk in chunks:
        found = json.loads(chunk.removeprefix("data: "))
        assert [error.message for error in CHUNK.iter_errors(found)] == [], found
