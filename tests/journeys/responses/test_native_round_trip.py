"""Tests that the gateway's Responses decoder reads the same events that its Responses encoder wrote."""

import itertools
import json
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faces.responses.test_round_trip import (
    REQUEST_ID,
    add_all,
    answers,
    begun,
    finishes,
    texts,
)
from tests.support.backend_calls import make_call, usage_in
from tollkeeper.core.inference import Delta, Event, Opened, UsageReport
from tollkeeper.core.usage import Usage
from tollkeeper.faces.responses.output import Listener, Output
from tollkeeper.faces.responses.result import ended_response
from tollkeeper.faces.responses.stream import ResponseStream
from tollkeeper.providers.responses.answer import ResponsesAnswer
from tollkeeper.providers.transport.sse import EventStreamParser

logprobs = st.floats(-20, 0).map(
    lambda value: msgspec.Raw(
        json.dumps(
            {
                "content": [{"token": "a", "logprob": value, "bytes": [97], "top_logprobs": []}],
                "refusal": None,
            }
        ).encode()
    )
)
likely_answers = st.one_of(
    answers,
    st.lists(st.builds(Delta, st.just(0), text=texts, logprobs=logprobs), min_size=1, max_size=4),
)
usages = st.builds(
    lambda prompt, completion, cached, reasoning: Usage(
        *(prompt + cached, completion + reasoning, cached, reasoning),
        prompt_details={"cached_tokens": cached, "cache_write_tokens": 0},
        completion_details={"reasoning_tokens": reasoning},
        # The gateway's own results contain this service tier.
        service_tier="default",
    ),
    *[st.integers(0, 9)] * 4,
)


def written(deltas: list[Delta], usage: Usage) -> bytes:
    prepared: Any = SimpleNamespace(
        initial_response=begun(),
        call=SimpleNamespace(request_id=REQUEST_ID, organization_id=UUID(int=0)),
        includes_logprobs=True,
        obfuscates=False,
        seal=None,
        flat_names={},
    )
    nobody: Any = None
    encoder = ResponseStream(nobody, nobody, prepared)
    encoder._begin()
    add_all(encoder._output, deltas)
    ended = ended_response(encoder._initial_response, encoder._output, usage, 0)
    encoder._response_event(f"response.{ended.status}", ended)
    return encoder._take_records()


def read(data: bytes, cuts: list[int]) -> list[Event]:
    answer = ResponsesAnswer(make_call(streamed=True, output_tokens_max=8192))
    parser = EventStreamParser(1 << 24)
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    events: list[Event] = []
    for start, end in itertools.pairwise(edges):
        events += answer.read(parser.feed(data[start:end]))
    assert answer.failure is None
    assert answer.done
    return events


def gist(deltas: list[Delta]) -> list[list[Any]]:
    """Returns the content of the deltas in order. Adjacent values of the same kind are joined, a tool
    call has the position of its first piece, and all log-probabilities come last."""
    told: list[list[Any]] = []
    calls: dict[int, list[Any]] = {}

    def say(kind: str, value: Any) -> None:
        if value:
            if told and told[-1][0] == kind:
                told[-1][1] += value
            else:
                told.append([kind, value])

    for delta in deltas:
        say("reasoning", delta.reasoning)
        say("text", delta.text)
        if delta.logprobs is not None:
            found = msgspec.json.decode(delta.logprobs)["content"]
            calls.setdefault(-1, ["logprobs"]).extend(found)
        say("annotations", delta.annotations)
        say("refusal", delta.refusal)
        for piece in delta.tool_calls:
            if piece.index not in calls:
                calls[piece.index] = ["call", piece.index, "", "", ""]
                told.append(calls[piece.index])
            call = calls[piece.index]
            call[2] += piece.id or ""
            call[3] += piece.name or ""
            call[4] += piece.arguments
    return [*told, calls.get(-1, ["logprobs"])]


def expected_finish(deltas: list[Delta], finish: str) -> str:
    if finish in ("length", "content_filter"):
        return finish
    return "tool_calls" if any(delta.tool_calls for delta in deltas) else "stop"


def check(events: list[Event], deltas: list[Delta], finish: str, usage: Usage) -> None:
    opened, *rest, end, report = events
    assert isinstance(opened, Opened)
    assert end == Delta(0, finish=expected_finish(deltas, finish))
    assert isinstance(report, UsageReport)
    assert usage_in(report) == usage
    assert gist([event for event in rest if isinstance(event, Delta)]) == gist(deltas)
    assert all(isinstance(event, Delta) for event in rest)


@given(likely_answers, finishes, usages, st.lists(st.integers(0, 10**6), max_size=5))
@settings(max_examples=200, deadline=None)
def test_a_stream_is_read_as_it_was_written(
    deltas: list[Delta], finish: str, usage: Usage, cuts: list[int]
) -> None:
    data = written([*deltas, Delta(0, finish=finish)], usage)
    check(read(data, cuts), deltas, finish, usage)


@given(likely_answers, finishes, usages)
@settings(max_examples=100, deadline=None)
def test_a_result_is_read_as_it_was_written(deltas: list[Delta], finish: str, usage: Usage) -> None:
    output = Output(REQUEST_ID, Listener(), owner=None, logprobs=True)
    add_all(output, [*deltas, Delta(0, finish=finish)])
    result = msgspec.json.encode(ended_response(begun(), output, usage, 0))
    answer = ResponsesAnswer(make_call(output_tokens_max=8192))
    events = answer.read_whole(result)
    assert answer.failure is None
    # A result has the citations after the whole text, a stream has them within the text.
    check(events, _annotated_last(deltas), finish, usage)


@given(likely_answers, finishes, usages)
@settings(max_examples=100, deadline=None)
def test_a_stream_without_pieces_tells_the_same(
    deltas: list[Delta], finish: str, usage: Usage
) -> None:
    """The stream is like that of a server that sends only the first and last event of each item."""
    records = written([*deltas, Delta(0, finish=finish)], usage).split(b"\n\n")
    wholes = [record for record in records if b".delta\n" not in record]
    data = b"\n\n".join(record for record in wholes if b"annotation.added" not in record)
    told = gist([event for event in read(data, []) if isinstance(event, Delta)])
    said = gist(deltas)
    for kind in ("text", "reasoning", "refusal"):
        assert _all_of(told, kind) == _all_of(said, kind)
    assert [entry for entry in told if entry[0] == "call"] == [
        entry for entry in said if entry[0] == "call"
    ]


def _all_of(told: list[list[Any]], kind: str) -> str:
    return "".join(entry[1] for entry in told if entry[0] == kind)


def _annotated_last(deltas: list[Delta]) -> list[Delta]:
    """Returns the deltas with each citation moved to the end of its text."""
    moved: list[Delta] = []
    waiting: tuple[Any, ...] = ()
    for delta in deltas:
        if waiting and (delta.reasoning or delta.tool_calls):
            moved.append(Delta(0, annotations=waiting))
            waiting = ()
        bare = msgspec.structs.replace(delta, annotations=(), refusal=None)
        moved.append(bare)
        waiting += delta.annotations
        if delta.refusal:
            if waiting:
                moved.append(Delta(0, annotations=waiting))
                waiting = ()
            moved.append(Delta(0, refusal=delta.refusal))
    return [*moved, *([Delta(0, annotations=waiting)] if waiting else [])]
