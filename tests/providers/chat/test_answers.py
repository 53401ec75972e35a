"""Tests how the chat wire reads the chunks and whole answers of different servers."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import MODEL, make_call, readable
from tests.support.tables import each
from tests.support.upstream import chunk, completion, usage_chunk
from tollkeeper.core.errors import BackendFailed
from tollkeeper.core.inference import (
    Delta,
    Event,
    Finish,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    UsageReport,
)
from tollkeeper.core.usage import ReportedUsage, Usage
from tollkeeper.providers.answer_json import MalformedAnswer, decode_whole
from tollkeeper.providers.chat.answer import completion_decoder
from tollkeeper.providers.chat.stream import ChatStreamReader
from tollkeeper.providers.chat.wire import ChatWire


def read(*records: Any, choices: int = 1) -> list[Event]:
    """Returns the events of these records, and checks that the stream has not failed."""
    stream = ChatStreamReader(make_call(streamed=True, choices=choices))
    events = stream.read([json.dumps(record).encode() for record in records])
    assert stream.failure is None
    return events


def read_delta(delta: dict[str, Any], **fields: Any) -> list[Event]:
    opened, *rest = read(chunk(delta=delta, **fields))
    assert isinstance(opened, Opened)
    return rest


@each(
    ("delta", "event"),
    [
        ({"content": "a"}, Delta(0, "a")),
        ({"role": "assistant", "content": "a"}, Delta(0, "a")),
        ({"content": "a", "reasoning": None, "tool_calls": None}, Delta(0, "a")),
        ({"content": "a", "tool_calls": [], "annotations": []}, Delta(0, "a")),
        ({"reasoning": "r"}, Delta(0, reasoning="r")),
        ({"reasoning_content": "r", "content": None}, Delta(0, reasoning="r")),
        ({"reasoning": "", "reasoning_content": "r"}, Delta(0, reasoning="r")),
        ({"content": "a", "reasoning_content": "r"}, Delta(0, "a", reasoning="r")),
        ({"refusal": "no"}, Delta(0, refusal="no")),
        ({"content": [{"type": "text", "text": "a"}, {"type": "x"}]}, Delta(0, "a")),
        (
            {
                "tool_calls": [
                    {"index": 2, "id": "c", "type": "function", "function": {"name": "f"}}
                ]
            },
            Delta(0, tool_calls=(ToolCallPiece(2, "c", "f"),)),
        ),
        (
            {"tool_calls": [{"index": 2, "function": {"arguments": "{"}}]},
            Delta(0, tool_calls=(ToolCallPiece(2, arguments="{"),)),
        ),
        (
            {"function_call": {"name": "f", "arguments": ""}},
            Delta(0, function_call=FunctionCallPiece("f")),
        ),
    ],
)
def test_delta(delta: dict[str, Any], event: Delta) -> None:
    assert read_delta(delta) == [event]


@each("delta", [{}, {"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None}])
def test_a_delta_that_adds_nothing_is_no_event(delta: dict[str, Any]) -> None:
    assert read_delta(delta) == []


def test_a_choice_without_a_delta() -> None:
    record = {"choices": [{"index": 0, "finish_reason": "stop"}]}
    assert read(record) == [Opened(), Delta(0, finish="stop")]


def test_text_and_end_in_one_chunk() -> None:
    assert read(chunk("a", finish="length")) == [Opened(), Delta(0, "a", finish="length")]


def test_an_end_that_is_repeated_is_passed_on_once() -> None:
    events = read(chunk(finish="stop"), chunk(finish="stop"), chunk(delta={}))
    assert events == [Opened(), Delta(0, finish="stop")]


def test_logprobs_are_kept_as_they_were_written() -> None:
    record = chunk("a")
    record["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": -0.10}]}
    _, delta = read(record)
    assert isinstance(delta, Delta)
    assert delta.logprobs is not None
    assert msgspec.json.decode(delta.logprobs) == record["choices"][0]["logprobs"]


@each(("asked", "listed"), [(None, 0), (0, 0), (1, 1), (2, 2), (5, 2)])
def test_only_the_asked_alternatives_are_told(asked: int | None, listed: int) -> None:
    """llama.cpp lists 20 alternatives if the request does not say how many."""
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5}]
    logprobs = {"content": [{"token": "a", "logprob": -0.1, "top_logprobs": top}]}
    fields = {"logprobs": True} if asked is None else {"logprobs": True, "top_logprobs": asked}
    call = make_call(streamed=True, **fields)
    record, body = chunk("a"), completion("a")
    record["choices"][0]["logprobs"] = body["choices"][0]["logprobs"] = logprobs
    whole = ChatWire().read_whole(call, json.dumps(body).encode(), secrets=())
    for events in (ChatStreamReader(call).read([json.dumps(record).encode()]), whole.events):
        delta = next(event for event in events if isinstance(event, Delta))
        assert delta.logprobs is not None
        [token] = msgspec.json.decode(delta.logprobs)["content"]
        assert (token["logprob"], token["top_logprobs"]) == (-0.1, top[:listed])


def test_opened_carries_what_the_first_chunk_says() -> None:
    record = chunk("a", system_fingerprint="fp", service_tier="flex")
    assert read(record)[0] == Opened("fp", "flex")


def test_usage_beside_the_last_piece() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    events = read(chunk("a", finish="stop", usage=usage))
    assert readable(events[1:]) == [Delta(0, "a", finish="stop"), Usage(1, 2)]


def test_chunks_without_choices_are_read_over() -> None:
    records: list[Any] = [{"choices": []}, {"choices": None}, {}, {"timings": {"x": 1}}]
    assert read(*records) == []


@each("first", [{"choices": []}, {"choices": [], "usage": None, "error": None}], ids=str)
def test_the_first_chunk_of_azure_does_not_open_the_answer(first: dict[str, Any]) -> None:
    """Azure names the fingerprint and the service tier only in the chunks after the first."""
    second = chunk(delta={"role": "assistant"}, system_fingerprint="fp", service_tier="flex")
    assert read(first, second, chunk("a")) == [Opened("fp", "flex"), Delta(0, "a")]


def test_a_tier_that_comes_before_the_first_choice_is_kept() -> None:
    records = [{"choices": [], "service_tier": "flex"}, chunk("a")]
    assert read(*records) == [Opened(None, "flex"), Delta(0, "a")]


def test_a_tier_that_comes_late_is_reported_at_once() -> None:
    """The price depends on the tier, even if the answer breaks off before its usage report."""
    late = chunk("b", service_tier="flex")
    found = read(chunk("a"), late, late, usage_chunk())
    tier = UsageReport(ReportedUsage(service_tier="flex"))
    assert found[:-1] == [Opened(), Delta(0, "a"), tier, Delta(0, "b"), Delta(0, "b")]
    assert isinstance(found[-1], UsageReport)
    assert found[-1].usage is not None
    assert found[-1].usage.service_tier == "flex"


def test_an_empty_finish_reason_is_a_missing_one() -> None:
    """SGLang, Ollama and some routes to GLM send an empty reason in each chunk except the last."""
    begin = chunk(delta={"role": "assistant", "content": ""}, finish="")
    pieces = [chunk("Hel", finish=""), chunk(delta={"reasoning": "r"}, finish="")]
    assert read(begin, *pieces, chunk("lo", finish="stop")) == [
        Opened(),
        Delta(0, "Hel"),
        Delta(0, reasoning="r"),
        Delta(0, "lo", finish="stop"),
    ]


@each("reason", [None, ""])
def test_a_whole_answer_without_a_finish_reason_is_complete(reason: str | None) -> None:
    body = completion(choices=2)
    for choice in body["choices"]:
        choice["finish_reason"] = reason
    encoded = json.dumps(body).encode()
    whole = ChatWire().read_whole(make_call(choices=2), encoded, secrets=())
    assert whole.shortfall is None
    unstated = [Delta(index, "Hello", finish=Finish.UNSTATED) for index in range(2)]
    assert whole.events[1:3] == unstated
    fewer = ChatWire().read_whole(make_call(choices=3), encoded, secrets=())
    assert fewer.shortfall is not None


def test_a_filtered_choice_needs_no_message() -> None:
    """Azure removes the message of a filtered choice, beside choices that it does not filter."""
    filtered = {"index": 1, "finish_reason": "content_filter", "content_filter_results": {}}
    body = completion("a")
    body["choices"].append(filtered)
    whole = ChatWire().read_whole(make_call(choices=2), json.dumps(body).encode(), secrets=())
    deltas = [event for event in whole.events if isinstance(event, Delta)]
    assert deltas == [Delta(0, "a", finish="stop"), Delta(1, finish="content_filter")]
    assert whole.shortfall is None
    filtered["finish_reason"] = "stop"
    with pytest.raises(MalformedAnswer):
        ChatWire().read_whole(make_call(choices=2), json.dumps(body).encode(), secrets=())


def _call(index: int, id_: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}


@each(
    ("calls", "pieces"),
    [
        # Each call is complete, in one chunk or in several.
        (
            [[_call(0, "a", "f", "{}")], [_call(0, "b", "f", "{}")], [_call(1, "c", "g", "{}")]],
            [(0, "a", "f", "{}"), (1, "b", "f", "{}"), (2, "c", "g", "{}")],
        ),
        (
            [[_call(0, "a", "f", "{}"), _call(0, "b", "g", '{"x":1}')]],
            [(0, "a", "f", "{}"), (1, "b", "g", '{"x":1}')],
        ),
        # Later pieces of a call have an empty id or the same id.
        (
            [
                *([_call(0, "a", "f", "")], [_call(0, "", None, "{}")]),
                *([_call(0, "b", "g", "")], [_call(0, "b", None, "{")], [_call(0, None, "", "}")]),
            ],
            [
                *((0, "a", "f", ""), (0, None, None, "{}")),
                *((1, "b", "g", ""), (1, None, None, "{"), (1, None, None, "}")),
            ],
        ),
        # Every piece repeats the id and the name, or only the name. Clients would join the names.
        (
            [
                *([_call(0, "a", "f", "")], [_call(0, "a", "f", "{")], [_call(0, "a", "f", "}")]),
                *([_call(1, None, "g", "{")], [_call(1, None, "g", "}")]),
            ],
            [
                *((0, "a", "f", ""), (0, None, None, "{"), (0, None, None, "}")),
                *((1, None, "g", "{"), (1, None, None, "}")),
            ],
        ),
        # The id comes after the name.
        (
            [[_call(0, None, "f", "")], [_call(0, "a", None, "{")], [_call(0, "a", "f", "}")]],
            [(0, None, "f", ""), (0, "a", None, "{"), (0, None, None, "}")],
        ),
        # Older versions of vLLM give each piece of a call another id.
        (
            [[_call(0, "a", "f", "{")], [_call(0, "b", None, '"x":')], [_call(0, "c", "f", "1}")]],
            [(0, "a", "f", "{"), (0, None, None, '"x":'), (0, None, None, "1}")],
        ),
    ],
    ids=["whole", "in one chunk", "in pieces", "repeated", "a late id", "an id for each piece"],
)
def test_calls_with_the_same_index(
    calls: list[list[dict[str, Any]]], pieces: list[tuple[Any, ...]]
) -> None:
    """Adapters of Gemini and some parsers of SGLang give every call the index 0."""
    _, *deltas = read(*(chunk(delta={"tool_calls": pieces}) for pieces in calls))
    found = [piece for delta in deltas if isinstance(delta, Delta) for piece in delta.tool_calls]
    assert found == [ToolCallPiece(*piece) for piece in pieces]


def test_each_choice_has_its_own_tool_calls() -> None:
    deltas = [chunk(delta={"tool_calls": [_call(0, id_, "f", "{}")]}) for id_ in "ab"]
    deltas[1]["choices"][0]["index"] = 1
    _, *found = read(*deltas, choices=2)
    assert found == [
        Delta(choice, tool_calls=(ToolCallPiece(0, id_, "f", "{}"),))
        for choice, id_ in enumerate("ab")
    ]


def test_nan_in_logprobs_does_not_spoil_the_text() -> None:
    stream = ChatStreamReader(make_call(streamed=True))
    record = b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"x":-Infinity}}]}'
    _, delta = stream.read([record])
    assert isinstance(delta, Delta)
    assert delta.text == "a"
    assert delta.logprobs is not None
    assert bytes(delta.logprobs) == b'{"x":null}'


def test_the_word_nan_in_bad_json_is_bad_json() -> None:
    stream = ChatStreamReader(make_call(streamed=True))
    assert stream.read([b'{"choices": NaN']) == []
    assert isinstance(stream.failure, BackendFailed)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
known_names = st.sampled_from(
    [
        "choices",
        "index",
        "delta",
        "message",
        "content",
        "usage",
        "error",
        "finish_reason",
        "logprobs",
        "tool_calls",
        "function",
        "prompt_tokens",
        "annotations",
        "url_citation",
    ]
)
answer_like = st.recursive(
    json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(known_names, inner, max_size=4),
    max_leaves=20,
)


@given(answer_like)
def test_whatever_comes_is_events_or_a_failure(value: Any) -> None:
    body = json.dumps(value).encode()
    stream = ChatStreamReader(make_call(streamed=True))
    for event in stream.read([body]):
        assert isinstance(event, Opened | Delta | UsageReport)
    with contextlib.suppress(MalformedAnswer):
        decode_whole(completion_decoder, body)


@given(st.binary())
def test_whatever_bytes_come_are_events_or_a_failure(body: bytes) -> None:
    stream = ChatStreamReader(make_call(streamed=True))
    stream.read([body])
    with contextlib.suppress(MalformedAnswer):
        decode_whole(completion_decoder, body)


def test_an_answer_that_is_not_utf8() -> None:
    with pytest.raises(MalformedAnswer):
        decode_whole(completion_decoder, b'{"x":"\xff"}')


def test_a_request_never_carries_what_the_backend_sets() -> None:
    call = make_call(
        choices=2, streamed=True, model="caller's", stream=False, stream_options={}, n=7
    )
    assert json.loads(ChatWire().encode_request(call, stream=True, extra={})) == {
        "messages": [{"role": "user", "content": "Hi"}],
        "model": "upstream-model",
        "max_completion_tokens": 1024,
        "stream": True,
        "n": 2,
        "stream_options": {"include_usage": True},
    }


def test_a_whole_answer_is_read() -> None:
    assert decode_whole(completion_decoder, json.dumps(completion("zę")).encode()).choices


def test_reasoning_that_the_server_does_not_bound_is_no_fault() -> None:
    """Reasoning may be longer than the call's output limit, but not longer than the model's output limit."""
    model = replace(MODEL, max_output_length=500, reasons=True)
    thought = json.dumps(chunk(delta={"reasoning_content": "r"})).encode()
    for bounds_reasoning, pieces, failed in ((True, 340, True), (False, 340, False)):
        answering = replace(model, bounds_reasoning=bounds_reasoning)
        call = make_call(streamed=True, output_tokens_max=10, catalog_model=answering)
        stream = ChatStreamReader(call)
        stream.read([thought] * pieces)
        assert (stream.failure is not None) is failed
    stream.read([thought] * 1000)
    assert stream.failure is not None


@each(
    ("told", "charged"),
    [
        ({"completion_tokens": 0, "cost": 0}, False),
        ({"completion_tokens": 0, "cost": 0, "is_byok": True}, True),
        ({"completion_tokens": 0, "cost": 0.01}, True),
        ({"completion_tokens": 0}, True),
        ({"completion_tokens": 3, "cost": 0}, True),
    ],
)
def test_a_failure_that_its_server_does_not_charge_for(told: dict[str, Any], charged: bool) -> None:
    """OpenRouter reports its charge, which is 0 for an error without output."""
    record = {"error": {"code": 502, "message": "x"}, "usage": {"prompt_tokens": 14, **told}}
    stream = ChatStreamReader(make_call(streamed=True))
    events = stream.read([json.dumps(record).encode()])
    assert stream.failure is not None
    assert stream.accepted is charged
    assert any(isinstance(event, UsageReport) for event in events) is charged
