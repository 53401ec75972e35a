"""Tests the events of a Responses stream: their order, sequence numbers, indexes and ids, for every kind of
answer."""

from typing import Any

from tests.support.responses_answers import (
    both,
    calls,
    read_events,
    records,
    respond,
    retell,
    types,
)
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.tables import each
from tests.support.upstream import chunk, sse, stream

BEGIN = ["created", "in_progress"]
TEXT_BEGIN = ["output_item.added", "content_part.added"]
TEXT_END = ["output_text.done", "content_part.done", "output_item.done"]


def call_piece(index: int, arguments: str, *, name: str | None = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name is not None:
        piece |= {"id": f"c{index}", "type": "function"}
        piece["function"]["name"] = name
    return {"tool_calls": [piece]}


async def events(
    scripted: ScriptedGateway, *deltas: dict[str, Any], **fields: Any
) -> list[dict[str, Any]]:
    """Returns the events that the client gets for an answer of these deltas."""
    finish = fields.pop("finish", "stop")
    scripted.upstream.play(stream(records(deltas, finish=finish)))
    answer = await respond(scripted, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found, done = read_events(answer.text)
    assert done
    retell(found)
    return found


async def test_text(scripted: ScriptedGateway) -> None:
    found = await events(
        scripted, {"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}
    )
    deltas = ["output_text.delta"] * 2
    assert types(found) == [*BEGIN, *TEXT_BEGIN, *deltas, *TEXT_END, "completed"]
    assert retell(found).texts == {(0, 0): "Hello"}
    created, in_progress, completed = (found[at]["response"] for at in (0, 1, -1))
    assert created == in_progress
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert completed["status"] == "completed"
    assert completed["usage"]["total_tokens"] == 10
    assert completed["output"] == [found[-2]["item"]]


async def test_one_call(scripted: ScriptedGateway) -> None:
    found = await events(
        scripted,
        call_piece(0, "", name="look"),
        call_piece(0, '{"far"'),
        call_piece(0, ":true}"),
        finish="tool_calls",
    )
    assert types(found) == [
        *BEGIN,
        "output_item.added",
        *["function_call_arguments.delta"] * 2,
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    added, done = found[2]["item"], found[-2]["item"]
    assert (added["status"], added["arguments"], added["name"]) == ("in_progress", "", "look")
    assert (done["status"], done["arguments"], done["call_id"]) == (
        *("completed", '{"far":true}', "c0"),
    )
    assert found[-3]["name"] == "look"


async def test_calls_one_after_the_other_close_in_between(scripted: ScriptedGateway) -> None:
    found = await events(
        scripted,
        call_piece(0, "{}", name="look"),
        call_piece(1, "", name="leap"),
        call_piece(1, "{}"),
        finish="tool_calls",
    )
    one = ["output_item.added", "function_call_arguments.delta"]
    end = ["function_call_arguments.done", "output_item.done"]
    assert types(found) == [*BEGIN, *one, *end, *one, *end, "completed"]
    assert retell(found).arguments == {0: "{}", 1: "{}"}


async def test_arguments_that_are_nested_too_deeply(scripted: ScriptedGateway) -> None:
    """A model writes as many brackets as its client asks for. The call is answered and charged."""
    deep = '{"far": ' + 2000 * "[" + 2000 * "]" + "}"
    pieces = [call_piece(0, deep, name="look"), call_piece(1, "{}", name="leap")]
    found = await events(scripted, *pieces, finish="tool_calls")
    assert types(found)[-1] == "completed"
    assert retell(found).arguments == {0: deep, 1: "{}"}
    assert (await scripted.balance())["unsettled"] == 0


async def test_calls_that_grow_side_by_side(scripted: ScriptedGateway) -> None:
    found = await events(
        scripted,
        call_piece(0, "[", name="look"),
        call_piece(1, "[2", name="leap"),
        call_piece(0, "1]"),
        call_piece(1, "]"),
        finish="tool_calls",
    )
    assert retell(found).arguments == {0: "[1]", 1: "[2]"}
    assert types(found)[-5:] == [
        *["function_call_arguments.done", "output_item.done"] * 2,
        "completed",
    ]


async def test_reasoning_then_text(scripted: ScriptedGateway) -> None:
    found = await events(
        scripted, {"reasoning": "H"}, {"reasoning_content": "m."}, {"content": "Yes."}
    )
    assert types(found) == [
        *BEGIN,
        *["output_item.added", "content_part.added"],
        *["reasoning_text.delta"] * 2,
        *["reasoning_text.done", "content_part.done", "output_item.done"],
        *TEXT_BEGIN,
        "output_text.delta",
        *TEXT_END,
        "completed",
    ]
    told = retell(found)
    assert told.thoughts == {(0, 0): "Hm."}
    assert told.texts == {(1, 0): "Yes."}


async def test_refusal_inside_a_message(scripted: ScriptedGateway) -> None:
    found = await events(scripted, {"content": "No: "}, {"refusal": "I will"}, {"refusal": " not."})
    told = retell(found)
    assert told.texts == {(0, 0): "No: "}
    assert told.refusals == {(0, 1): "I will not."}
    assert types(found).count("output_item.added") == 1


async def test_annotation(scripted: ScriptedGateway) -> None:
    citation = {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 5}
    note = {"type": "url_citation", "url_citation": citation}
    found = await events(scripted, {"content": "Hello"}, {"annotations": [note]})
    assert retell(found).annotations == [{"type": "url_citation", **citation}]
    assert found[-2]["item"]["content"][0]["annotations"] == retell(found).annotations


async def test_text_after_a_call_is_another_message(scripted: ScriptedGateway) -> None:
    found = await events(
        scripted, {"content": "A"}, call_piece(0, "{}", name="look"), {"content": "B"}
    )
    told = retell(found)
    assert told.texts == {(0, 0): "A", (2, 0): "B"}
    assert told.arguments == {1: "{}"}


@each(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_incomplete(scripted: ScriptedGateway, finish: str, reason: str) -> None:
    found = await events(scripted, {"content": "Hel"}, finish=finish)
    assert found[-1]["type"] == "response.incomplete"
    assert found[-1]["response"]["status"] == "incomplete"
    assert found[-1]["response"]["incomplete_details"] == {"reason": reason}
    assert found[-2]["item"]["status"] == "incomplete"


async def test_logprobs_come_with_their_piece(scripted: ScriptedGateway) -> None:
    token = {"token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108], "top_logprobs": []}
    pieces: list[bytes] = records([])
    first = chunk("Hel")
    first["choices"][0]["logprobs"] = {"content": [token], "refusal": None}
    from_first = [sse(first), *pieces]
    for include, expected in (["message.output_text.logprobs"], [token]), (None, []):
        scripted.upstream.play(stream(from_first))
        answer = await respond(scripted, stream=True, include=include)
        found, _ = read_events(answer.text)
        [delta] = [event for event in found if event["type"].endswith("text.delta")]
        [done] = [event for event in found if event["type"].endswith("text.done")]
        assert delta["logprobs"] == done["logprobs"] == expected
        assert found[-2]["item"]["content"][0]["logprobs"] == expected


async def test_obfuscation_hides_the_length_of_pieces(scripted: ScriptedGateway) -> None:
    found = await events(
        scripted,
        {"content": "a"},
        {"content": "longer"},
        stream_options={"include_obfuscation": True},
    )
    deltas = [event for event in found if event["type"].endswith(".delta")]
    assert {len(event["delta"]) + len(event["obfuscation"]) for event in deltas} == {16}
    plain = await events(scripted, {"content": "a"})
    assert not any("obfuscation" in event for event in plain)


async def test_stream_ends_with_what_json_tells(scripted: ScriptedGateway) -> None:
    """Except for ids and times, a stream ends with the same result as a request without streaming."""
    message = {"reasoning": "Hm.", **calls(("c1", "look", "{}")), "content": "Let me see."}
    scripted.upstream.play(both(message, finish="tool_calls"))
    whole = (await respond(scripted)).json()
    found, _ = read_events((await respond(scripted, stream=True)).text)
    streamed = found[-1]["response"]
    for response in (whole, streamed):
        del response["id"], response["created_at"], response["completed_at"]
        for item in response["output"]:
            del item["id"]
    assert streamed == whole
    assert len(whole["output"]) == 3


async def test_every_write_ends_with_a_whole_event(scripted: ScriptedGateway) -> None:
    """Some clients lose an event that is split between two network reads."""
    scripted.upstream.play(stream(records([{"content": "Hel"}, {"content": "lo"}]), pause_s=0.02))
    body = {"model": "example/chat", "input": "Hello", "stream": True}
    async with scripted.gateway.client.stream(
        "POST", "/v1/responses", json=body, headers=scripted.tenant.as_customer
    ) as answer:
        pieces = [piece async for piece in answer.aiter_raw()]
    assert len(pieces) > 2
    assert all(piece.endswith(b"\n\n") for piece in pieces)
