"""Tests the form, usage, streams and costs of successful chat completions."""

import json
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway
from tests.support.upstream import USAGE, chat_records, chunk, stream
from tollkeeper.faces.chat.stream import ChatStream
from tollkeeper.faces.wire.chat import ChatRequest, StreamOptions


async def test_json_answer_has_the_shape_of_the_interface(scripted: ScriptedGateway) -> None:
    answer = await scripted.chat()
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == USAGE["total_tokens"]
    assert (await scripted.balance())["settled"] == COST


async def test_stream_is_chunks_then_done(scripted: ScriptedGateway) -> None:
    answer = await scripted.chat(stream=True)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    records = answer.text.split("\n\n")
    assert records[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(record.removeprefix("data: ")) for record in records[:-2]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hello"
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert (await scripted.balance())["settled"] == COST


async def test_log_probabilities_in_several_lines_are_streamed_in_one(
    scripted: ScriptedGateway,
) -> None:
    record = chunk("a")
    logprobs = {"content": [{"token": "a\nb", "logprob": -1.0}], "refusal": None}
    record["choices"][0]["logprobs"] = logprobs
    lines = json.dumps(record, indent=1).splitlines()
    in_lines = b"".join(f"data: {line}\n".encode() for line in lines) + b"\n"
    begin, *end = chat_records(())
    scripted.upstream.play(stream([begin, in_lines, *end]))
    answer = await scripted.chat(stream=True, logprobs=True)
    payloads = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    choices = [json.loads(payload)["choices"][0] for payload in payloads[:-1]]
    assert [choice["logprobs"] for choice in choices] == [None, logprobs, None]


async def test_usage_is_passed_on_where_it_was_asked_for(scripted: ScriptedGateway) -> None:
    answer = await scripted.chat(stream=True, stream_options={"include_usage": True})
    records = answer.text.split("\n\n")
    chunks = [json.loads(record.removeprefix("data: ")) for record in records[:-2]]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == USAGE["prompt_tokens"]


@given(
    text=st.text(min_size=1),
    choice=st.integers(0, 127),
    includes_usage=st.booleans(),
)
def test_the_short_way_of_a_text_writes_the_same(
    text: str, choice: int, includes_usage: bool
) -> None:
    options = StreamOptions(include_usage=includes_usage)
    body = ChatRequest(model="m", messages=[], stream=True, stream_options=options)
    call = Mock(request_id="a-b", model=Mock(id="m"))
    stream = ChatStream(Mock(), Mock(body=body), call, Mock(), 1)
    assert stream._text_chunk(choice, text) == stream._chunk(choice, {"content": text})
