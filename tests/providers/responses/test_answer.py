"""Tests that events and results of the Responses protocol are decoded in the forms of different servers."""

import contextlib
import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import make_call
from tests.support.tables import each
from tests.support.upstream_wire import (
    RESPONSE_USAGE,
    begun_response,
    call_item,
    item_records,
    message_item,
    reasoning_item,
    refusal_item,
    response,
    response_records,
    typed,
)
from tollkeeper.core.errors import BackendFailed
from tollkeeper.core.inference import (
    Annotation,
    Delta,
    Event,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    UsageReport,
)
from tollkeeper.providers.answer_json import MalformedAnswer
from tollkeeper.providers.responses.answer import ResponsesAnswer
from tollkeeper.providers.responses.reasoning import sealed_item
from tollkeeper.providers.responses.usage import read_responses_usage
from tollkeeper.providers.transport.sse import EventStreamParser

USED = read_responses_usage(RESPONSE_USAGE)
STOP = Delta(0, finish="stop")


def payloads(*records: bytes) -> list[bytes]:
    return EventStreamParser(1 << 20).feed(b"".join(records))


def read(*records: bytes, **fields: Any) -> list[Event]:
    """Returns the events of a stream. Checks that the stream is complete and has no failure."""
    answer = ResponsesAnswer(make_call(streamed=True, **fields))
    events = answer.read(payloads(*records))
    assert answer.failure is None
    assert answer.done
    return events


def read_result(result: Any, **fields: Any) -> list[Event]:
    answer = ResponsesAnswer(make_call(**fields))
    events = answer.read_whole(json.dumps(result).encode())
    assert answer.failure is None
    return events


def text_delta(delta: str, at: int = 0, **fields: Any) -> bytes:
    return typed("response.output_text.delta", output_index=at, delta=delta, **fields)


END = typed("response.completed", response=response())

ITEMS: dict[str, tuple[dict[str, Any], list[Delta]]] = {
    "text": (message_item("ab"), [Delta(0, "ab"), STOP]),
    "refusal": (refusal_item("no"), [Delta(0, refusal="no"), STOP]),
    "reasoning": (reasoning_item("rs"), [Delta(0, reasoning="rs"), STOP]),
    "summary": (reasoning_item("rs", summary=True), [Delta(0, reasoning="rs"), STOP]),
    "call": (
        call_item("c", "f", "{}"),
        [
            Delta(0, tool_calls=(ToolCallPiece(0, "c", "f"),)),
            Delta(0, tool_calls=(ToolCallPiece(0, arguments="{}"),)),
            Delta(0, finish="tool_calls"),
        ],
    ),
    "citation": (
        message_item(
            "ab",
            annotations=[
                {"type": "file_citation", "file_id": "f", "index": "odd"},
                {
                    "type": "url_citation",
                    "url": "u",
                    "title": "t",
                    "start_index": 1,
                    "end_index": 2,
                },
            ],
        ),
        [Delta(0, "ab"), Delta(0, annotations=(Annotation("u", "t", 1, 2),)), STOP],
    ),
    "sealed reasoning": (
        reasoning_item("rs", encrypted_content="blob"),
        [Delta(0, reasoning="rs"), Delta(0, sealed_reasoning=sealed_item("rs_1", "blob")), STOP],
    ),
    "an item of another kind": (
        {"type": "file_search_call", "id": "fs_1", "content": 7, "arguments": {}},
        [STOP],
    ),
}


@each("case", ITEMS)
def test_item(case: str) -> None:
    """The item is sent as a JSON result, in the last record only, as a finished item, and in pieces."""
    item, deltas = ITEMS[case]
    result = response(item)
    end = typed("response.completed", response=result)
    done = typed("response.output_item.done", output_index=0, item=item)
    expected = [Opened(), *deltas, USED]
    assert read_result(result) == expected
    assert read(end) == expected
    assert read(done, end) == expected
    if case != "an item of another kind":
        assert read(*response_records(item, pieces=0)) == expected
        assert read(*response_records(item, pieces=1)) == expected


@each("pieces", [None, 0, 1, 3])
def test_citations_count_from_the_beginning_of_the_whole_answer(pieces: int | None) -> None:
    """The backend counts from the beginning of each part."""
    cited = {"type": "url_citation", "url": "u", "title": "t", "start_index": 3, "end_index": 8}
    items = [message_item("Let me look. "), message_item("It rains.", annotations=[cited])]
    events = (
        read_result(response(*items))
        if pieces is None
        else read(*response_records(*items, pieces=pieces))
    )
    deltas = [event for event in events if isinstance(event, Delta)]
    [annotation] = [one for delta in deltas for one in delta.annotations]
    assert _joined(events)[1][annotation.start_index : annotation.end_index] == "rains"


@each("pieces", [0, 1, 2, 3, 9])
def test_nothing_is_told_twice(pieces: int) -> None:
    items = [
        reasoning_item("I think so."),
        message_item("Hello there"),
        call_item("c1", "f", '{"a": 1}'),
        call_item("c2", "g", '{"b": 2}'),
    ]
    events = read(*response_records(*items, pieces=pieces))
    assert _joined(events) == ("I think so.", "Hello there", '{"a": 1}{"b": 2}')
    begun = [piece for piece in _pieces(events) if piece.id is not None]
    assert begun == [ToolCallPiece(0, "c1", "f"), ToolCallPiece(1, "c2", "g")]


@each(
    ("indexes", "texts"),
    [
        ([1], ["one two"]),
        ([1], ["", "one two"]),
        ([1, 2], ["one ", "two"]),
        # The second text was not in the stream.
        ([2], ["one ", "two"]),
        ([0, 2], ["one ", "", "two"]),
    ],
)
def test_texts_of_a_stream_may_be_numbered_otherwise(indexes: list[int], texts: list[str]) -> None:
    """The texts of Bedrock's streams have the index 1, although they come first in their item."""
    streamed = [text for text in texts if text]
    item = {**message_item(""), "content": [{"type": "output_text", "text": t} for t in texts]}
    events = read(
        *(
            typed(
                f"response.output_text.{end}", output_index=0, content_index=index, **{field: text}
            )
            for index, text in zip(indexes, streamed, strict=False)
            for end, field in (("delta", "delta"), ("done", "text"))
        ),
        typed("response.output_item.done", output_index=0, item=item),
        typed("response.completed", response=response(item)),
    )
    assert _joined(events)[1] == "one two"


def test_a_server_that_tells_of_ends_only() -> None:
    items = [reasoning_item("Hm."), message_item("Hello"), call_item("c", "f", "{}")]
    records = [record for record in response_records(*items) if b".done\n" in record]
    assert len(records) == 8
    events = read(*records, typed("response.completed", response=response()))
    assert _joined(events) == ("Hm.", "Hello", "{}")
    assert _pieces(events)[0] == ToolCallPiece(0, "c", "f")


def _pieces(events: list[Event]) -> list[ToolCallPiece]:
    deltas = [event for event in events if isinstance(event, Delta)]
    return [piece for delta in deltas for piece in delta.tool_calls]


def _joined(events: list[Event]) -> tuple[str, str, str]:
    deltas = [event for event in events if isinstance(event, Delta)]
    return (
        "".join(delta.reasoning or "" for delta in deltas),
        "".join(delta.text or "" for delta in deltas),
        "".join(piece.arguments for piece in sorted(_pieces(events), key=lambda p: p.index)),
    )


def test_items_that_grow_side_by_side() -> None:
    first = item_records(0, call_item("c1", "f", '{"a": 1}'))
    second = item_records(1, call_item("c2", "g", '{"b": 2}'))
    mixed = [record for pair in zip(first, second, strict=True) for record in pair]
    events = read(*mixed, typed("response.completed", response=response()))
    text = {0: "", 1: ""}
    for piece in _pieces(events):
        text[piece.index] += piece.arguments
    assert text == {0: '{"a": 1}', 1: '{"b": 2}'}


def test_items_without_an_index_are_known_by_their_ids() -> None:
    def place(kind: str, id_: str, **fields: Any) -> bytes:
        return typed(f"response.{kind}", item_id=id_, **fields)

    added = "response.output_item.added"
    events = read(
        typed(added, item=call_item("c1", "f", "")),
        typed(added, item=call_item("c2", "g", "")),
        place("function_call_arguments.delta", "fc_c1", delta="1"),
        place("function_call_arguments.delta", "fc_c2", delta="2"),
        typed("response.output_item.done", item=call_item("c1", "f", "1")),
        typed("response.completed", response=response(call_item("c1", "f", "1"))),
    )
    assert [(piece.index, piece.arguments) for piece in _pieces(events)] == [
        *((0, ""), (1, "")),
        *((0, "1"), (1, "2")),
    ]


def test_a_place_is_given_to_the_next_item_after_the_end_of_the_last() -> None:
    records = item_records(0, call_item("c1", "f", "{}")) + item_records(
        0, call_item("c2", "g", "[]")
    )
    events = read(*records, typed("response.completed", response=response()))
    assert {piece.id for piece in _pieces(events)} == {"c1", "c2", None}
    assert "".join(piece.arguments for piece in _pieces(events)) == "{}[]"


def test_items_of_a_result_may_be_numbered_otherwise() -> None:
    result = response(reasoning_item("Hm."), message_item("Yes."))
    events = read(text_delta("Yes."), typed("response.completed", response=result))
    assert _joined(events) == ("Hm.", "Yes.", "")


def test_paragraphs_of_a_summary() -> None:
    item = reasoning_item("One.", summary=True)
    item["summary"].append({"type": "summary_text", "text": "Two."})
    for pieces in (0, 2):
        reasoning, _, _ = _joined(read(*response_records(item, pieces=pieces)))
        assert reasoning == "One.\n\nTwo."


def test_reasoning_is_told_as_text_or_as_summary_and_not_as_both() -> None:
    item = {**reasoning_item("At length."), "summary": [{"type": "summary_text", "text": "Short."}]}
    assert _joined(read_result(response(item)))[0] == "At length."
    assert _joined(read(*response_records(item)))[0] == "At length."


@each("kind", ["response.reasoning_text", "response.reasoning"])
def test_what_servers_call_the_text_of_reasoning(kind: str) -> None:
    for end in ("delta", "done"):
        events = read(typed(f"{kind}.{end}", delta="Hm.", text="Hm."), END)
        assert events[1] == Delta(0, reasoning="Hm.")


def test_empty_pieces_do_not_hide_the_whole() -> None:
    done = typed("response.output_text.done", output_index=0, text="ab", logprobs=[])
    assert read(text_delta("", logprobs=[]), done, END)[1] == Delta(0, "ab")


def test_logprobs_are_those_of_chat() -> None:
    found = [{"token": "a", "logprob": -0.5, "top_logprobs": []}]
    for records in (
        [text_delta("a", logprobs=found)],
        [typed("response.output_text.done", text="a", logprobs=found)],
    ):
        _, delta, *_ = read(*records, END)
        assert isinstance(delta, Delta)
        assert delta.logprobs is not None
        assert msgspec.json.decode(delta.logprobs) == {"content": found, "refusal": None}
    _, delta, *_ = read_result(response(message_item("a", logprobs=found)))
    assert isinstance(delta, Delta)
    assert delta.logprobs is not None


@each("odd", [None, 7, "x", {}, [], {"a": []}])
def test_odd_logprobs_are_none(odd: Any) -> None:
    assert read(text_delta("a", logprobs=odd), END)[1] == Delta(0, "a")


def test_annotations_come_once() -> None:
    citation = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    added = typed(
        "response.output_text.annotation.added",
        output_index=0,
        content_index=0,
        annotation=citation,
    )
    item = message_item("ab", annotations=[citation])
    *story, done = item_records(0, item)
    end = typed("response.completed", response=response(item))
    events = read(*story[:3], added, *story[3:], done, end)
    found = [
        event.annotations for event in events if isinstance(event, Delta) and event.annotations
    ]
    assert found == [(Annotation("u", "t", 0, 1),)]


@each(
    ("reason", "finish"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "something else"}, "length"),
        ({}, "length"),
        (None, "length"),
    ],
)
def test_incomplete(reason: Any, finish: str) -> None:
    result = response(message_item("He"), status="incomplete", incomplete_details=reason)
    expected = [Opened(), Delta(0, "He"), Delta(0, finish=finish), USED]
    assert read_result(result) == expected
    assert read(text_delta("He"), typed("response.incomplete", response=result)) == expected


def test_the_end_may_be_told_by_the_event_alone() -> None:
    assert read(text_delta("a"), typed("response.completed"))[-1] == STOP
    sloppy = response(status="in_progress")
    assert read(text_delta("a"), typed("response.completed", response=sloppy))[-2:] == [STOP, USED]


def test_a_tier_is_what_was_given() -> None:
    created = typed("response.created", response=begun_response(service_tier="flex"))
    assert read(created, END)[0] == Opened(service_tier="flex")
    assert read_result(response(service_tier="auto"))[0] == Opened()


def test_unknown_events_may_look_as_they_like() -> None:
    odd = typed("response.audio.delta", delta={"a": 1}, output_index="x", item=7, response=[])
    nameless = b'data: {"anything": {"else": 1}}\n\n'
    assert read(odd, nameless, text_delta("a"), odd, END)[1:] == [Delta(0, "a"), STOP, USED]


def test_functions_of_the_old_kind_are_called_in_the_old_way() -> None:
    events = read(*response_records(call_item("c", "f", "{}"), pieces=1), functions=[{"name": "f"}])
    assert events[1:-1] == [
        Delta(0, function_call=FunctionCallPiece("f")),
        Delta(0, function_call=FunctionCallPiece(arguments="{}")),
        Delta(0, finish="function_call"),
    ]


MALFORMED = {
    "not JSON": b"data: hello\n\n",
    "an array": b"data: []\n\n",
    "a known event of another shape": typed("response.output_text.delta", delta=7),
    "a negative place": text_delta("a", -1),
    "an item of another shape": typed(
        "response.output_item.done", item={"type": "message", "content": 7}
    ),
    "arguments without a call": typed(
        "response.function_call_arguments.delta", output_index=3, delta="{"
    ),
    "a call without an id": typed(
        "response.output_item.added", output_index=4, item={"type": "function_call", "name": "f"}
    ),
    "text after its end": typed("response.output_text.done", output_index=0, text="a")
    + text_delta("b"),
    "the end mark before the end": b"data: [DONE]\n\n",
    "a result of another shape": typed("response.completed", response="x"),
}


@each("case", MALFORMED)
def test_malformed(case: str) -> None:
    answer = ResponsesAnswer(make_call(streamed=True))
    events = answer.read(payloads(text_delta("a"), MALFORMED[case], text_delta("z", 9), END))
    assert events == [Opened(), Delta(0, "a")]
    assert type(answer.failure) is BackendFailed
    assert not answer.done


def test_two_calls_where_one_was_asked_for() -> None:
    answer = ResponsesAnswer(make_call(functions=[{"name": "f"}]))
    answer.read(payloads(*response_records(call_item("c1"), call_item("c2"))))
    assert type(answer.failure) is BackendFailed


@each(("pieces", "fails"), [(84, False), (85, True)])
def test_an_answer_longer_than_its_bound(pieces: int, fails: bool) -> None:
    answer = ResponsesAnswer(make_call(streamed=True, output_tokens_max=10))
    answer.read(payloads(text_delta("a")) * pieces)
    assert isinstance(answer.failure, BackendFailed) is fails


def test_an_answer_that_never_says_anything() -> None:
    answer = ResponsesAnswer(make_call(streamed=True, output_tokens_max=10))
    answer.read(payloads(typed("response.unheard_of")) * 40_000)
    assert type(answer.failure) is BackendFailed


known_names = st.sampled_from(
    [
        *("type", "item", "part", "response", "output", "content", "summary", "delta", "text"),
        *("arguments", "call_id", "id", "output_index", "content_index", "logprobs", "error"),
        *("usage", "status", "annotation", "annotations", "incomplete_details", "input_tokens"),
    ]
)
known_values = st.sampled_from(
    [
        *("response.completed", "response.output_item.done", "response.output_text.delta"),
        *("response.output_item.added", "message", "function_call", "reasoning", "output_text"),
        *("error", "response.failed", "response.function_call_arguments.delta", "url_citation"),
    ]
)
event_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | known_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(known_names, inner, max_size=5),
    max_leaves=20,
)


@given(st.lists(event_like, max_size=4))
def test_whatever_comes_is_events_or_a_failure(values: list[Any]) -> None:
    answer = ResponsesAnswer(make_call(streamed=True))
    for event in answer.read([json.dumps(value).encode() for value in values]):
        assert isinstance(event, Opened | Delta | UsageReport)
    for value in values:
        with contextlib.suppress(MalformedAnswer):
            ResponsesAnswer(make_call()).read_whole(json.dumps(value).encode())
