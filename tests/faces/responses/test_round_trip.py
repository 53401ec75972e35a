"""Tests that a Responses stream contains everything that a chat backend sent, item by item.

The tests create items from random events and parse the stream with a strict client. Items that are sent back
as input must become the same message again.
"""

import asyncio
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.backend_calls import MODEL
from tests.support.responses_answers import Told, read_events, retell
from tollkeeper.core.inference import Annotation, Delta, ToolCallPiece
from tollkeeper.core.prompt import Reasoning, Text, ToolCall
from tollkeeper.faces.responses.input import Conversation
from tollkeeper.faces.responses.output import Listener, Output
from tollkeeper.faces.responses.stream import ResponseStream
from tollkeeper.faces.wire import response_object as wire

REQUEST_ID = str(UUID(int=7))
REASONING_MODEL = replace(MODEL, supported_features=("reasoning",))

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
arguments = st.one_of(
    st.text(min_size=1, max_size=8),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2).map(json.dumps),
)
annotations = st.builds(
    Annotation,
    url=texts,
    title=texts,
    start_index=st.integers(0, 9),
    end_index=st.integers(0, 9),
)


@st.composite
def calls_in_turn(draw: st.DrawFn) -> list[Delta]:
    """Draws parallel tool calls as backends send them: each in pieces, one call after the other."""
    deltas = []
    for index in range(draw(st.integers(1, 3))):
        pieces = draw(st.lists(arguments, min_size=1, max_size=3))
        first, *rest = pieces
        deltas.append(_call(index, first, name=f"f{index}"))
        deltas += [_call(index, piece) for piece in rest]
    return deltas


def _call(index: int, piece: str, name: str | None = None) -> Delta:
    id_ = None if name is None else f"c{index}"
    return Delta(0, tool_calls=(ToolCallPiece(index, id_, name, piece),))


said = st.lists(
    st.one_of(
        st.builds(Delta, st.just(0), text=texts),
        st.builds(Delta, st.just(0), reasoning=texts),
        st.builds(Delta, st.just(0), refusal=texts),
        st.builds(Delta, st.just(0), text=texts, reasoning=texts, refusal=texts),
        st.builds(Delta, st.just(0), text=texts, annotations=st.tuples(annotations)),
    ),
    max_size=8,
)


def _cite_own_text(parts: tuple[list[Delta], ...]) -> list[Delta]:
    """Joins the deltas, and moves each citation to a position in the text of its own delta."""
    length = 0
    moved = []
    for delta in itertools.chain(*parts):
        start, length = length, length + len(delta.text or "")
        cited = (
            msgspec.structs.replace(
                annotation,
                start_index=min(start + annotation.start_index, length),
                end_index=min(start + annotation.end_index, length),
            )
            for annotation in delta.annotations
        )
        moved.append(msgspec.structs.replace(delta, annotations=tuple(cited)))
    return moved


answers = st.tuples(said, st.one_of(st.just([]), calls_in_turn()), said).map(_cite_own_text)
finishes = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])


def begun() -> wire.Response:
    return msgspec.convert(
        {
            **dict.fromkeys(wire.Response.__struct_fields__),
            "id": "resp_1",
            "object": "response",
            "status": "in_progress",
            "model": MODEL.id,
            "created_at": 0,
            "output": [],
            "metadata": {},
            "text": {"format": {"type": "text"}},
            "tools": [],
            "tool_choice": "auto",
            "reasoning": {"effort": None, "summary": None},
            "truncation": "disabled",
            "service_tier": "default",
            **dict.fromkeys(("background", "store", "parallel_tool_calls"), False),
            **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), 1.0),
            **dict.fromkeys(("max_output_tokens", "top_logprobs"), 1),
        },
        wire.Response,
    )


def _encoder() -> ResponseStream:
    """Returns the encoder of a stream without a gateway."""
    prepared: Any = SimpleNamespace(
        initial_response=begun(),
        call=SimpleNamespace(request_id=REQUEST_ID, organization_id=UUID(int=0)),
        includes_logprobs=False,
        obfuscates=False,
        seal=None,
        flat_names={},
    )
    nobody: Any = None
    return ResponseStream(nobody, nobody, prepared)


def add_all(output: Output, deltas: list[Delta]) -> None:
    async def add() -> None:
        for delta in deltas:
            await output.add(delta)

    asyncio.run(add())


def tell(deltas: list[Delta], finish: str) -> tuple[list[dict[str, Any]], Output]:
    """Returns the events of an answer as a client parses them, and the encoder's output."""
    encoder = _encoder()
    encoder._begin()
    add_all(encoder._output, [*deltas, Delta(0, finish=finish)])
    reason = encoder._output.incomplete_reason
    name = "response.completed" if reason is None else "response.incomplete"
    encoder._response_event(name, encoder._initial_response)
    events, _ = read_events(encoder._take_records().decode())
    return events, encoder._output


def joined(parts: dict[Any, str]) -> str:
    return "".join(parts[place] for place in sorted(parts))


@given(answers, finishes)
@settings(max_examples=150)
def test_a_stream_tells_everything_once(deltas: list[Delta], finish: str) -> None:
    events, output = tell(deltas, finish)
    told = retell(events)
    assert joined(told.texts) == "".join(delta.text or "" for delta in deltas)
    assert joined(told.thoughts) == "".join(delta.reasoning or "" for delta in deltas)
    assert joined(told.refusals) == "".join(delta.refusal or "" for delta in deltas)
    expected: dict[int, str] = {}
    for delta in deltas:
        for piece in delta.tool_calls:
            expected[piece.index] = expected.get(piece.index, "") + piece.arguments
    assert list(told.arguments.values()) == list(expected.values())
    assert list(told.names.values()) == [f"f{index}" for index in expected]
    assert len(told.annotations) == sum(len(delta.annotations) for delta in deltas)
    _check_items(events, output, finish)


def _check_items(events: list[dict[str, Any]], output: Output, finish: str) -> None:
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    by_id = {item["id"]: item for item in done}
    items = msgspec.to_builtins(output.items())
    assert [by_id[item["id"]] for item in items] == items
    statuses = [item["status"] for item in items]
    cut_off = finish in ("length", "content_filter")
    assert statuses[:-1] == ["completed"] * (len(items) - 1)
    assert statuses[-1] == ("incomplete" if cut_off else "completed")


@given(answers, finishes)
@settings(max_examples=100)
def test_json_has_the_items_of_the_stream(deltas: list[Delta], finish: str) -> None:
    _, streamed = tell(deltas, finish)
    quiet = Output(REQUEST_ID, Listener(), owner=None)
    add_all(quiet, [*deltas, Delta(0, finish=finish)])
    assert quiet.items() == streamed.items()


def _cited(position: tuple[int, int]) -> Delta:
    return Delta(0, annotations=(Annotation("https://a.test", "A", *position),))


def test_a_citation_goes_to_the_text_that_contains_it() -> None:
    """Backends send citations with positions in the whole text, some of them only at the end."""
    deltas = [
        Delta(0, text="Let me look. "),
        Delta(0, reasoning="Hm."),
        Delta(0, text="It rains."),
        _cited((13, 22)),
        Delta(0, sealed_reasoning="x"),
        _cited((16, 21)),
        _cited((4, 6)),
    ]
    output = Output(REQUEST_ID, Listener(), owner=None, seal=lambda text, sealed: "x")
    add_all(output, [*deltas, Delta(0, finish="stop")])
    items = msgspec.to_builtins(output.items())
    assert [item["type"] for item in items] == ["message", "reasoning", "message", "reasoning"]
    cited = [
        part["text"][citation["start_index"] : citation["end_index"]]
        for item in items
        if item["type"] == "message"
        for part in item["content"]
        for citation in part["annotations"]
    ]
    assert cited == ["me", "It rains.", "rains"]


def test_a_late_citation_is_in_the_stream() -> None:
    deltas = [Delta(0, text="It rains."), Delta(0, reasoning="Hm."), _cited((3, 8))]
    events, _ = tell(deltas, "stop")
    [told] = [event for event in events if event["type"].endswith("annotation.added")]
    assert (told["output_index"], told["content_index"], told["annotation_index"]) == (0, 0, 0)


@given(st.permutations([0, 0, 0, 1, 1, 1, 2, 2]), st.data())
@settings(max_examples=100)
def test_calls_that_grow_side_by_side(order: list[int], data: st.DataObject) -> None:
    """The pieces of three calls come in random order. Each piece opens a bracket, so no call looks complete."""
    expected: dict[int, str] = {}
    deltas = []
    for index in order:
        piece = data.draw(st.text(min_size=1, max_size=4).map(lambda text: "[" + text))
        name = f"f{index}" if index not in expected else None
        expected[index] = expected.get(index, "") + piece
        deltas.append(_call(index, piece, name))
    events, _ = tell(deltas, "tool_calls")
    told = retell(events)
    assert list(told.arguments.values()) == list(expected.values())


@given(
    st.one_of(st.none(), texts),
    st.one_of(st.none(), texts),
    st.one_of(st.just([]), calls_in_turn()),
)
@settings(max_examples=100)
def test_an_answer_sent_back_is_the_message_that_it_was(
    reasoning: str | None, text: str | None, calls: list[Delta]
) -> None:
    """Reasoning, text and tool calls become one turn of the assistant."""
    output = Output(REQUEST_ID, Listener(), owner=None)
    add_all(output, [Delta(0, text=text, reasoning=reasoning), *calls, Delta(0, finish="stop")])
    conversation = Conversation(REASONING_MODEL, lambda _: None)
    for item in output.items():
        conversation.add(msgspec.Raw(msgspec.json.encode(item)), "input[0]")
    if text is None and not calls:
        return  # An answer without text and tool calls becomes no turn.
    [turn] = conversation.turns()
    words = [part.text for part in turn.parts if isinstance(part, Text)]
    thoughts = [part.text for part in turn.parts if isinstance(part, Reasoning)]
    assert ("".join(words) if words else None) == text
    assert ("".join(thoughts) if thoughts else None) == reasoning
    sent = "".join(part.arguments for part in turn.parts if isinstance(part, ToolCall))
    assert sent == "".join(piece.arguments for delta in calls for piece in delta.tool_calls)


def test_a_client_reads_nothing_into_silence() -> None:
    events, _ = tell([], "stop")
    assert retell(events) == Told(texts={(0, 0): ""})
