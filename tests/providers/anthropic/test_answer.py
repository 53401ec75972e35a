"""Tests how Messages answers become events, whole and streamed, and streams that break the protocol."""

import json
from typing import Any

import pytest

from tests.providers.anthropic.calls import claude_call
from tests.support.backend_calls import content_of, readable
from tests.support.tables import each
from tests.support.upstream_messages import (
    MESSAGES_USAGE,
    begin,
    block_records,
    end,
    error_body,
    error_record,
    message_records,
    ping,
    record,
    text_block,
    text_then,
    thinking_block,
    tool_block,
    whole_message,
)
from tollkeeper.core.errors import BackendFailed, ProviderRejected, RateLimited
from tollkeeper.core.inference import (
    Annotation,
    Call,
    Delta,
    Event,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    UsageReport,
)
from tollkeeper.core.usage import Usage
from tollkeeper.providers.anthropic.answer import MessagesAnswer
from tollkeeper.providers.anthropic.wire import Endpoint, MessagesWire

_WIRE = MessagesWire(Endpoint.ANTHROPIC)


def _payloads(records: list[bytes]) -> list[bytes]:
    lines = b"".join(records).split(b"\n")
    return [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]


def _stream(records: list[bytes], call: Call | None = None) -> tuple[MessagesAnswer, list[Event]]:
    answer = MessagesAnswer(call or claude_call(streamed=True))
    return answer, answer.read(_payloads(records))


def _whole(body: dict[str, Any], call: Call | None = None) -> list[Event]:
    found = _WIRE.read_whole(call or claude_call(), json.dumps(body).encode(), secrets=())
    assert found.shortfall is None
    return found.events


_THOUGHT = thinking_block("It rains.", "c2lnbmVk")
_REDACTED = {"type": "redacted_thinking", "data": "aGlkZGVu"}
_CALLS = [tool_block("toolu_1", "weather", place="Paris"), tool_block("toolu_2", "now")]


def test_whole_and_streamed_answers_say_the_same() -> None:
    content = [_THOUGHT, _REDACTED, text_block("I look it up."), *_CALLS]
    expected = {
        "text": "I look it up.",
        "reasoning": "It rains.",
        "sealed": [_THOUGHT, _REDACTED],
        "calls": [("toolu_1", "weather", {"place": "Paris"}), ("toolu_2", "now", {})],
        "finish": ["tool_calls"],
    }
    answer, streamed = _stream(message_records(*content, stop_reason="tool_use"))
    whole = _whole(whole_message(*content, stop_reason="tool_use"))
    assert answer.done
    assert content_of(streamed) == content_of(whole) == expected
    assert isinstance(streamed[0], Opened)
    assert readable(streamed)[-2] == readable(whole)[-2] == _used(12, 5)


def _used(prompt: int, completion: int) -> Usage:
    return Usage(prompt, completion)


@each(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("something_new", "something_new"),
    ],
)
def test_why_an_answer_ended(reason: str, finish: str) -> None:
    _, events = _stream(message_records(stop_reason=reason))
    assert content_of(events)["finish"] == [finish]


def test_legacy_calls() -> None:
    call = claude_call(functions=[{"name": "weather"}])
    events = _whole(whole_message(_CALLS[0], stop_reason="tool_use"), call)
    pieces = [event.function_call for event in events if isinstance(event, Delta)]
    assert pieces[:2] == [
        FunctionCallPiece("weather"),
        FunctionCallPiece(None, '{"place": "Paris"}'),
    ]
    assert content_of(events)["finish"] == ["function_call"]
    answer, _ = _stream(message_records(*_CALLS, stop_reason="tool_use"), call)
    assert answer.failure is not None


def test_arguments_that_come_with_the_beginning_are_told_once() -> None:
    """Some compatible servers send the arguments only in the start event. Others repeat them in pieces."""
    begun = record("content_block_start", index=0, content_block=_CALLS[0])
    ended = [record("content_block_stop", index=0), *end("tool_use")]
    piece = {"type": "input_json_delta", "partial_json": '{"place": "Paris"}'}
    repeated = record("content_block_delta", index=0, delta=piece)
    for records in [begin(), begun, *ended], [begin(), begun, repeated, *ended]:
        _, events = _stream(records)
        assert content_of(events)["calls"] == [("toolu_1", "weather", {"place": "Paris"})]


def test_citations_name_the_text_they_stand_for() -> None:
    cited = {
        "type": "web_search_result_location",
        "url": "https://a.example",
        "title": "A",
        "cited_text": "x",
        "encrypted_index": "y",
    }
    of_document = {"type": "page_location", "cited_text": "x", "document_index": 0}
    blocks = [text_block("So. "), {**text_block("It rained."), "citations": [of_document, cited]}]
    searched = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    expected = (Annotation("https://a.example", "A", 4, 14),)
    for events in (
        _whole(whole_message(searched, *blocks)),
        _stream(message_records(searched, *blocks))[1],
    ):
        found = [event.annotations for event in events if isinstance(event, Delta)]
        assert [annotations for annotations in found if annotations] == [expected]


def _searches(events: list[Event]) -> list[int | None]:
    reports = [event.usage for event in events if isinstance(event, UsageReport)]
    return [report.web_searches for report in reports if report is not None]


def test_searches_are_told_when_they_are_made() -> None:
    """The server reports its searches only at the end, and a stream may break off before that."""
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    refused = {**found, "content": {"type": "web_search_tool_result_error", "error_code": "x"}}
    call = claude_call(streamed=True, web_search_options={})
    records = [begin(), *block_records(0, found), *block_records(1, refused)]
    records += block_records(2, found)
    _, events = _stream(records, call)
    assert _searches(events) == [None, 1, 2]
    # The count in the provider's last report replaces the gateway's count.
    used = {**MESSAGES_USAGE, "server_tool_use": {"web_search_requests": 1}}
    _, events = _stream([*records, *end(usage=used)], call)
    assert _searches(events)[-1] == 1
    # Without `web_search_options`, searches are not counted.
    _, events = _stream(records)
    assert _searches(events) == [None]


def test_the_first_report_says_nothing_of_the_output() -> None:
    answer, events = _stream([begin(), ping()])
    assert readable(events) == [Opened(), None]
    assert not answer.accepted


def test_unknown_events_and_blocks_are_ignored() -> None:
    odd = record("content_block_start", index=7, content_block={"type": "new", "text": {"a": 1}})
    more = record("content_block_delta", index=7, delta={"type": "new_delta", "news": 1})
    event = record("surprise", index="seven", delta=[])
    answer, events = _stream([begin(), odd, more, event, *block_records(0, text_block()), *end()])
    assert answer.done
    assert content_of(events)["text"] == "Hello"


@each("kind", [["text"], {"text": 1}, 7, None])
def test_a_type_that_is_no_word_is_unknown(kind: object) -> None:
    odd = {"type": kind, "text": "Hello"}
    started = record("content_block_start", index=7, content_block=odd)
    event = b"data: " + json.dumps({"type": kind, "index": "seven"}).encode() + b"\n\n"
    answer, events = _stream([begin(), started, event, *block_records(0, text_block()), *end()])
    assert answer.done
    assert content_of(events)["text"] == "Hello"
    assert content_of(_whole(whole_message(odd, text_block())))["text"] == "Hello"


def test_a_second_beginning_is_ignored() -> None:
    answer, events = _stream([begin(), *message_records()])
    assert answer.done
    assert [type(event) for event in events].count(Opened) == 1


_DELTA = record("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"})


@each(
    "records",
    [
        [begin(), _DELTA],
        [*text_then(record("content_block_stop", index=0)), _DELTA],
        [*text_then(), record("message_stop")],
        [begin(), record("content_block_start", index=0)],
        [*text_then(), b"data: {\n\n"],
        [*text_then(), b'data: {"type": "content_block_delta", "index": "0"}\n\n'],
        [begin(), record("content_block_start", index=0, content_block=tool_block("", "f"))],
        [*text_then(), *[_DELTA] * 2200],
        [begin(), *[ping()] * 50_000],
    ],
)
def test_a_stream_that_breaks_the_protocol_fails(records: list[bytes]) -> None:
    answer, _ = _stream(records)
    assert isinstance(answer.failure, BackendFailed)
    assert answer.failure.charged
    assert "malformed" in answer.failure.message


@each(
    ("kind", "error", "charged"),
    [
        ("invalid_request_error", ProviderRejected, False),
        ("rate_limit_error", RateLimited, False),
        ("overloaded_error", BackendFailed, False),
        ("api_error", BackendFailed, False),
        ("authentication_error", BackendFailed, False),
        ("timeout_error", BackendFailed, True),
        ("unknown_error", BackendFailed, False),
    ],
)
def test_an_error_in_the_place_of_the_answer(
    kind: str, error: type[Exception], charged: bool
) -> None:
    for records in [error_record(kind)], [begin(), ping(), error_record(kind)]:
        answer, events = _stream(records)
        assert type(answer.failure) is error
        assert answer.failure.charged == charged
        assert not answer.accepted
        assert not [event for event in events if isinstance(event, Delta)]
    with pytest.raises(error):
        _WIRE.read_whole(claude_call(), json.dumps(error_body(kind)).encode(), secrets=())


def test_an_error_after_output_is_charged() -> None:
    answer, events = _stream(text_then(error_record("overloaded_error")))
    assert content_of(events)["text"] == "0 1 "
    assert isinstance(answer.failure, BackendFailed)
    assert answer.failure.charged


def test_an_error_beside_content_is_charged() -> None:
    body = {**whole_message(), **error_body("api_error")}
    found = _WIRE.read_whole(claude_call(), json.dumps(body).encode(), secrets=())
    assert found.shortfall is not None
    assert found.shortfall.charged
    assert readable(found.events)[-1] == _used(12, 5)


def test_usage_of_an_answer_that_is_none() -> None:
    body = json.dumps({"content": 7, "usage": MESSAGES_USAGE}).encode()
    report = _WIRE.read_usage(body)
    assert report is not None
    assert readable([report]) == [_used(12, 5)]
    assert _WIRE.read_usage(b"{}") is None


def test_pieces_of_a_call_keep_its_index() -> None:
    _, events = _stream(message_records(text_block("a"), *_CALLS, stop_reason="tool_use"))
    first = [
        event.tool_calls[0] for event in events if isinstance(event, Delta) and event.tool_calls
    ]
    assert first[0] == ToolCallPiece(0, "toolu_1", "weather", "")
    assert {piece.index for piece in first} == {0, 1}
