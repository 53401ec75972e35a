"""Tests how Converse answers become events, whole and streamed in frames, and how bad answers fail."""

import json
from typing import Any

import pytest

from tests.providers.converse.calls import converse_call
from tests.support.backend_calls import content_of, usages_of
from tests.support.tables import each
from tests.support.upstream_converse import (
    CONVERSE_USAGE,
    answer_frames,
    begin,
    delta,
    end,
    event,
    exception,
    reasoning_block,
    redacted_block,
    text_block,
    use_block,
    whole_answer,
)
from tollkeeper.core.errors import BackendFailed, ProviderRejected, RateLimited, TollkeeperError
from tollkeeper.core.inference import Call, Delta, Event, FunctionCallPiece
from tollkeeper.core.usage import Usage
from tollkeeper.providers.answer_json import MalformedAnswer
from tollkeeper.providers.converse.answer import ConverseAnswer
from tollkeeper.providers.converse.wire import ConverseWire
from tollkeeper.providers.transport.aws_event_stream import AwsEventStreamParser
from tollkeeper.providers.wire import WholeAnswer

_TOOLS = [{"type": "function", "function": {"name": "weather"}}]


def _whole(body: dict[str, Any], call: Call | None = None) -> WholeAnswer:
    raw = json.dumps(body).encode()
    return ConverseWire().read_whole(call or converse_call(), raw, secrets=())


def _payloads(frames: list[bytes]) -> list[bytes]:
    return AwsEventStreamParser(1 << 20).feed(b"".join(frames))


def _streamed(frames: list[bytes], call: Call | None = None) -> tuple[ConverseAnswer, list[Event]]:
    answer = ConverseAnswer(call or converse_call())
    events = answer.read(_payloads(frames))
    return answer, events


def _deltas(events: list[Event]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


_CONTENT = [
    reasoning_block("Hm, well.", "c2ln"),
    redacted_block("aGlkZGVu"),
    text_block("I look."),
    use_block("t1", "weather", place="Paris"),
    use_block("t2", "weather"),
]


def test_a_whole_answer_and_its_stream_say_the_same() -> None:
    whole = _whole(whole_answer(*_CONTENT, stop_reason="tool_use")).events
    answer, events = _streamed(answer_frames(*_CONTENT, stop_reason="tool_use"))
    assert answer.done
    assert usages_of(whole) == usages_of(events) == [Usage(12, 5)]
    assert content_of(whole) == content_of(events)
    assert content_of(whole) == {
        "text": "I look.",
        "reasoning": "Hm, well.",
        "sealed": [
            {"reasoningText": {"text": "Hm, well.", "signature": "c2ln"}},
            {"redactedContent": "aGlkZGVu"},
        ],
        "calls": [("t1", "weather", {"place": "Paris"}), ("t2", "weather", {})],
        "finish": ["tool_calls"],
    }


@each(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("content_filtered", "content_filter"),
        ("guardrail_intervened", "content_filter"),
        ("something_new", "something_new"),
    ],
)
def test_why_it_ended(reason: str, finish: str) -> None:
    assert content_of(_whole(whole_answer(stop_reason=reason)).events)["finish"] == [finish]
    _, events = _streamed(answer_frames(stop_reason=reason))
    assert content_of(events)["finish"] == [finish]


@each("reason", ["malformed_model_output", "malformed_tool_use"])
def test_an_answer_that_is_none_is_charged_by_its_report(reason: str) -> None:
    found = _whole(whole_answer(stop_reason=reason))
    answer, events = _streamed(answer_frames(stop_reason=reason))
    for failure in (found.shortfall, answer.failure):
        assert isinstance(failure, BackendFailed)
        assert failure.charged
        assert failure.may_be_client_fault
        assert reason in failure.message
    for told in (found.events, events):
        assert usages_of(told) == [Usage(12, 5)]
        assert content_of(told)["finish"] == []


def test_a_report_may_be_missing() -> None:
    answer, events = _streamed(answer_frames(usage=None))
    assert not answer.ended
    events += answer.end_body()
    assert answer.done
    assert usages_of(events) == []
    assert content_of(_whole(whole_answer(usage=None)).events)["finish"] == ["stop"]


def test_one_call_where_several_were_not_asked_for() -> None:
    """With `parallel_tool_calls: false`, the client gets only the first of several calls."""
    uses = [use_block("t1", "weather", place="Paris"), use_block("t2", "weather", place="Rome")]
    call = converse_call(tools=_TOOLS, parallel_tool_calls=False)
    whole = _whole(whole_answer(*uses, stop_reason="tool_use"), call)
    _, events = _streamed(answer_frames(*uses, stop_reason="tool_use"), call)
    for told in (whole.events, events):
        assert [id_ for id_, _, _ in content_of(told)["calls"]] == ["t1"]


def test_a_caller_of_functions_reads_a_function_call() -> None:
    call = converse_call(functions=[{"name": "weather"}])
    frames = answer_frames(use_block("t1", "weather", place="Paris"), stop_reason="tool_use")
    _, events = _streamed(frames, call)
    pieces = [found.function_call for found in _deltas(events) if found.function_call is not None]
    assert pieces[0] == FunctionCallPiece("weather", "")
    assert json.loads("".join(piece.arguments for piece in pieces)) == {"place": "Paris"}
    assert _deltas(events)[-1].finish == "function_call"


@each(
    ("name", "error", "charged"),
    [
        ("throttlingException", RateLimited, False),
        ("validationException", ProviderRejected, False),
        ("internalServerException", BackendFailed, False),
        ("serviceUnavailableException", BackendFailed, False),
        ("modelStreamErrorException", BackendFailed, True),
        ("modelTimeoutException", BackendFailed, True),
    ],
)
def test_an_exception_in_the_place_of_the_answer(
    name: str, error: type[TollkeeperError], charged: bool
) -> None:
    answer, _ = _streamed([begin(), exception(name, "the reason")])
    assert type(answer.failure) is error
    assert answer.failure.charged is charged
    assert not answer.accepted
    if error is ProviderRejected:
        assert "the reason" in answer.failure.message


@each("name", ["throttlingException", "modelStreamErrorException"])
def test_an_exception_after_output_is_charged(name: str) -> None:
    answer, events = _streamed([begin(), delta(0, text="Hi"), exception(name)])
    assert isinstance(answer.failure, BackendFailed)
    assert answer.failure.charged
    assert content_of(events)["text"] == "Hi"


def test_unknown_events_and_blocks_are_ignored() -> None:
    frames = [begin(), event("novelty", a=1), delta(0, novelty={}), delta(1, text="Hi"), *end()]
    answer, events = _streamed(frames)
    assert answer.done
    assert content_of(events)["text"] == "Hi"


def test_a_tool_of_the_providers_own_is_not_the_callers() -> None:
    use = {"toolUse": {"toolUseId": "s1", "name": "search", "type": "server_tool_use", "input": {}}}
    assert content_of(_whole(whole_answer(use, text_block("Hi"))).events)["calls"] == []


@each(
    ("frames", "reason"),
    [
        ([begin(), delta(0, text=1)], "not an answer"),
        (
            [event("contentBlockStart", contentBlockIndex=0, start={"toolUse": {"name": "f"}})],
            "no id",
        ),
        (
            [
                delta(0, text="a"),
                event("contentBlockStop", contentBlockIndex=0),
                delta(0, text="b"),
            ],
            "after its end",
        ),
    ],
)
def test_a_stream_that_is_none(frames: list[bytes], reason: str) -> None:
    answer, _ = _streamed(frames)
    assert isinstance(answer.failure, BackendFailed)
    assert reason in answer.failure.message
    assert answer.failure.charged


@each("body", [{}, {"output": {}}, {"output": {"message": {}}}, {"output": 1}])
def test_a_body_that_is_none(body: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        _whole(body)


def test_an_error_in_the_place_of_a_body() -> None:
    with pytest.raises(BackendFailed):
        _whole({"error": {"code": 500, "message": "no"}})


def test_the_usage_of_a_body_that_cannot_be_read() -> None:
    body = json.dumps({"output": 1, "usage": CONVERSE_USAGE, "serviceTier": {"type": "flex"}})
    report = ConverseWire().read_usage(body.encode())
    assert report is not None
    assert report.usage is not None
    assert (report.usage.prompt_tokens, report.usage.service_tier) == (12, "flex")
    assert ConverseWire().read_usage(b"[]") is None


def test_an_answer_longer_than_its_bound() -> None:
    call = converse_call(output_tokens_max=1)
    answer, _ = _streamed([delta(0, text="x") for _ in range(100)], call)
    assert isinstance(answer.failure, BackendFailed)
    assert "longer than the output limit" in answer.failure.message
