"""Tests how Gemini answers become events, whole and streamed, without a connection."""

import json
from typing import Any

import pytest

from tests.providers.gemini.calls import gemini_call
from tests.support.backend_calls import usage_in
from tests.support.tables import each
from tests.support.upstream_gemini import (
    GEMINI_USAGE,
    answer_records,
    blocked,
    call_part,
    error_body,
    piece,
    record,
    text_part,
    thought_part,
    whole,
)
from tollkeeper.core.errors import BackendFailed, ProviderRejected
from tollkeeper.core.inference import Annotation, Call, Delta, Event, Opened, UsageReport
from tollkeeper.core.usage import Usage
from tollkeeper.providers.answer_json import MalformedAnswer
from tollkeeper.providers.gemini.answer import GeminiAnswer
from tollkeeper.providers.gemini.wire import Endpoint, GeminiWire
from tollkeeper.providers.wire import WholeAnswer

_WIRE = GeminiWire(Endpoint.GEMINI)


def _whole(content: dict[str, Any], call: Call | None = None) -> WholeAnswer:
    return _WIRE.read_whole(call or gemini_call(), json.dumps(content).encode(), secrets=())


def _stream(*records: bytes, call: Call | None = None) -> tuple[list[Event], GeminiAnswer]:
    answer = GeminiAnswer(call or gemini_call(streamed=True))
    events = answer.read([one.removeprefix(b"data: ").strip() for one in records])
    return [*events, *answer.end_body()], answer


def _deltas(events: list[Event]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def _usage(events: list[Event]) -> Usage | None:
    return usage_in([event for event in events if isinstance(event, UsageReport)][-1])


def test_a_whole_answer() -> None:
    answer = _whole(whole(thought_part("Hm."), text_part("Hello")))
    assert answer.shortfall is None
    assert isinstance(answer.events[0], Opened)
    assert _deltas(answer.events) == [
        Delta(0, reasoning="Hm."),
        Delta(0, "Hello"),
        Delta(0, finish="stop"),
    ]
    assert _usage(answer.events) == Usage(12, 5)


def test_a_stream_ends_with_its_body() -> None:
    events, answer = _stream(*answer_records(thought_part("Hm."), text_part("Hello")))
    assert answer.done
    assert "".join(delta.reasoning or "" for delta in _deltas(events)) == "Hm."
    assert "".join(delta.text or "" for delta in _deltas(events)) == "Hello"
    assert [delta.finish for delta in _deltas(events) if delta.finish] == ["stop"]
    assert _usage(events) == Usage(12, 5)


def test_a_reason_in_every_piece() -> None:
    """Older models send a finish reason with each piece, and a signature may come after the text."""
    pieces = [record(whole(text_part(text))) for text in ("Hel", "lo")]
    signed = record(whole(text_part("", "c2ln"), finish="MAX_TOKENS"))
    events, answer = _stream(*pieces, signed)
    assert answer.done
    deltas = _deltas(events)
    assert [delta.text for delta in deltas if delta.text] == ["Hel", "lo"]
    assert [delta.finish for delta in deltas if delta.finish] == ["length"]
    assert deltas[-2].sealed_reasoning is not None


def test_calls() -> None:
    parts = [call_part("a", "f", x=1), call_part(None, "g"), call_part("c", "h", y=[{}])]
    deltas = _deltas(_whole(whole(text_part("I look."), *parts)).events)
    calls = [piece for delta in deltas for piece in delta.tool_calls]
    assert [(call.index, call.name, call.arguments) for call in calls] == [
        (0, "f", '{"x": 1}'),
        (1, "g", "{}"),
        (2, "h", '{"y": [{}]}'),
    ]
    assert (calls[0].id, calls[2].id) == ("a", "c")
    # The gateway creates an id for a tool call without an id, and never uses an id twice.
    again = _deltas(_whole(whole(*parts)).events)[1].tool_calls[0].id
    assert None not in (calls[1].id, again)
    assert calls[1].id != again
    assert deltas[-1].finish == "tool_calls"


@each("streamed", [False, True])
def test_a_single_call_where_the_caller_wants_one(streamed: bool) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    call = gemini_call(tools=tools, parallel_tool_calls=False)
    parts = [call_part("a", "f"), call_part("b", "f")]
    events = (
        _stream(*answer_records(*parts), call=call)[0]
        if streamed
        else _whole(whole(*parts), call).events
    )
    calls = [piece for delta in _deltas(events) for piece in delta.tool_calls]
    assert [call.id for call in calls] == ["a"]
    assert _deltas(events)[-1].finish == "tool_calls"


def test_a_legacy_call() -> None:
    call = gemini_call(functions=[{"name": "f"}])
    first, last = _deltas(_whole(whole(call_part("a", "f", x=1), call_part("b", "f")), call).events)
    assert first.function_call is not None
    assert (first.function_call.name, first.function_call.arguments) == ("f", '{"x": 1}')
    assert last.finish == "function_call"


@each(
    ("reason", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        *(
            (reason, "content_filter")
            for reason in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")
        ),
        ("LANGUAGE", "content_filter"),
        ("OTHER", "OTHER"),
    ],
)
def test_why_it_ended(reason: str, finish: str) -> None:
    assert _deltas(_whole(whole(text_part(), finish=reason)).events)[-1].finish == finish
    events, answer = _stream(*answer_records(finish=reason))
    assert (_deltas(events)[-1].finish, answer.done) == (finish, True)


def test_a_blocked_prompt() -> None:
    for events in (_whole(blocked()).events, _stream(record(blocked()))[0]):
        assert _deltas(events) == [Delta(0, finish="content_filter")]
        assert _usage(events) == Usage(12, 0)


@each("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_a_call_that_is_none_is_a_failure(reason: str) -> None:
    answer = _whole(whole(finish=reason))
    events, streamed = _stream(piece(text_part("I")), record(whole(finish=reason)))
    for failure, told in ((answer.shortfall, answer.events), (streamed.failure, events)):
        assert isinstance(failure, BackendFailed)
        assert (failure.charged, failure.may_be_client_fault) == (True, True)
        assert reason in failure.message
        assert _usage(told) == Usage(12, 5)


def test_citations_count_characters_and_queries_are_searches() -> None:
    grounding = {
        "webSearchQueries": ["", "rain", "rain today", "rain", ""],
        "groundingChunks": [{"web": {"uri": "https://a.example/x", "title": "A"}}, {"maps": {}}],
        "groundingSupports": [
            {"segment": {"startIndex": 5, "endIndex": 9}, "groundingChunkIndices": [0, 1, 9]},
            {"groundingChunkIndices": [0]},
        ],
    }
    call = gemini_call(web_search_options={})
    expected = (Annotation("https://a.example/x", "A", 4, 8),)
    content = whole(text_part("Où, rain"), groundingMetadata=grounding)
    for events in (
        _whole(content, call).events,
        _stream(*answer_records(text_part("Où, rain"), groundingMetadata=grounding), call=call)[0],
        # The sources may come in a separate piece before the last piece.
        _stream(
            piece(text_part("Où, rain")),
            record(whole(finish=None, usage=None, groundingMetadata=grounding)),
            record(whole()),
            call=call,
        )[0],
    ):
        assert [delta.annotations for delta in _deltas(events) if delta.annotations] == [expected]
        found = _usage(events)
        assert found is not None
        assert found.web_searches == 2


def test_no_search_is_charged_that_nobody_asked_for() -> None:
    answer = _whole(whole(text_part(), groundingMetadata={"webSearchQueries": ["x"]}))
    found = _usage(answer.events)
    assert found is not None
    assert found.web_searches == 0


@each(
    "records",
    [
        [b"{"],
        [record(whole(text_part(), index=1))],
        [piece({"functionCall": {"args": {}}})],
        [piece(text_part("x"))] * (2 * 1024 + 65),
    ],
)
def test_a_malformed_stream(records: list[bytes]) -> None:
    _, answer = _stream(*records)
    assert isinstance(answer.failure, BackendFailed)
    assert answer.failure.charged


def test_records_without_content_are_bounded() -> None:
    call = gemini_call()
    _, answer = _stream(*[piece()] * (call.model.context_length + 65), call=call)
    assert answer.failure is not None
    assert "without content" in answer.failure.message


@each("content", [{}, {"candidates": []}, whole(text_part(), finish=None)])
def test_a_malformed_body(content: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        _whole(content)


def test_the_usage_of_a_malformed_body() -> None:
    body = json.dumps({"candidates": 7, "usageMetadata": GEMINI_USAGE}).encode()
    report = _WIRE.read_usage(body)
    assert report is not None
    assert usage_in(report) == Usage(12, 5)
    assert _WIRE.read_usage(b"[") is None
    assert _WIRE.read_usage(b"{}") is None


def test_an_error_beside_output_is_charged() -> None:
    with pytest.raises(ProviderRejected):
        _whole(error_body(400, "INVALID_ARGUMENT"))
    answer = _whole({**whole(text_part("Hi"), finish=None), **error_body(500, "INTERNAL")})
    assert isinstance(answer.shortfall, BackendFailed)
    assert answer.shortfall.charged
    assert _deltas(answer.events) == [Delta(0, "Hi")]


def test_an_error_after_a_search_is_charged() -> None:
    """The provider has made the search and charges for it, although the answer has no text."""
    searched = {"candidates": [{"groundingMetadata": {"webSearchQueries": ["weather"]}}]}
    failed = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "no"}}
    call = gemini_call(streamed=True, web_search_options={})
    _, answer = _stream(json.dumps(searched).encode(), json.dumps(failed).encode(), call=call)
    assert answer.accepted
    assert answer.failure is not None
    assert answer.failure.charged


def test_unknown_parts_are_skipped() -> None:
    parts = [{"executableCode": {"code": "1"}}, text_part("Hi"), {"inlineData": {"data": "x"}}]
    assert _deltas(_whole(whole(*parts)).events)[0] == Delta(0, "Hi")
