"""Tests faulty answers: malformed and unusual streams, wrong content types, absurd usage, missing choices."""

import json
from typing import Any

import pytest

from tests.providers.faults import BOTH, check_failure, fault
from tests.support.backend_calls import KEY, make, make_call, routed, usage_in
from tests.support.tables import each
from tests.support.upstream import (
    DONE,
    USAGE,
    Peer,
    Upstream,
    Verb,
    answer,
    chat_records,
    chunk,
    completion,
    cut,
    sse,
    stream,
    usage_chunk,
)
from tollkeeper.core.errors import BackendFailed, ProviderRejected, RateLimited, TollkeeperError
from tollkeeper.core.usage import Usage

# Malformed and unusual streams.

GOOD = sse(chunk("a"))
MALFORMED = {
    "bad UTF-8": b'data: {"choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n',
    "bad UTF-8 in an unknown field": b'data: {"x":"\xff"}\n\n',
    "bad UTF-8 in a comment": b": \xc3\x28\n\n",
    "not JSON": b"data: hello\n\n",
    "half JSON": b'data: {"choices":[\n\n',
    "an array": b"data: []\n\n",
    "no colon": b"data\n\n",
    "empty data": b"data:\n\n",
    "choices is text": b'data: {"choices":"x"}\n\n',
    "content is a number": b'data: {"choices":[{"index":0,"delta":{"content":7}}]}\n\n',
    "index is text": b'data: {"choices":[{"index":"0","delta":{}}]}\n\n',
    "a choice that was not asked for": sse(chunk("b", index=1)),
    "a negative choice": sse(chunk("b", index=-1)),
    "a negative tool call": sse(chunk(delta={"tool_calls": [{"index": -1}]})),
    "deep nesting": b"data: " + b'{"usage":' + b"[" * 50_000 + b"\n\n",
    "an error record": sse({"error": {"message": f"broke at {KEY}", "code": 500}}),
    "an error record of another shape": sse({"error": "broke"}),
    "text after the end": sse(chunk(finish="stop")) + sse(chunk("more")),
}


@each("case", MALFORMED)
async def test_malformed_stream(case: str) -> None:
    data = GOOD + MALFORMED[case] + b"".join(chat_records())
    outcome = await fault(cut(data), streamed=True)
    check_failure(outcome, BackendFailed, charged=True, text="a")
    outcome = await fault(cut(data, len(GOOD)), streamed=True)
    check_failure(outcome, BackendFailed, charged=True, text="a")


@each("case", [case for case in MALFORMED if case not in ("text after the end",)])
async def test_malformed_from_the_beginning(case: str) -> None:
    """Only an error record shows that the call did not run, so all other cases are charged."""
    outcome = await fault(cut(MALFORMED[case] + b"".join(chat_records())), streamed=True)
    check_failure(outcome, BackendFailed, charged="error record" not in case)


ODD = (
    b"\xef\xbb\xbf: hello\r\n\r\n"
    b"event: message\rid: 1\x00\rdata: "
    + json.dumps(chunk(delta={"role": "assistant"})).encode()
    + b"\r\r"
    + b'data: {"choices": [{"index": 0,\ndata:  "delta": {"content": "z\xc4\x99\xf0\x9f\xa6\x8a"}'
    + b"\r\ndata\ndata: }]}\r\n\r\n"
    + b"retry: 10\n\n"
    + b"data:"
    + json.dumps(chunk(" b")).encode()
    + b"\n\n\n\n"
    + sse(chunk(finish="stop"))
    + b": ping\n"
    + sse(usage_chunk())
    + DONE
    + b"data: after the end, anything\n\n"
)


async def test_odd_but_legal_stream_cut_at_every_byte() -> None:
    """Sends the stream once for each position of a cut, and once byte by byte, to the same backend."""
    cuts = [cut(ODD, position) for position in range(len(ODD))]
    every_byte = cut(ODD, *range(1, len(ODD)))
    async with Upstream(*cuts, every_byte) as upstream, routed(upstream.url) as backend:
        for _ in range(len(cuts) + 1):
            outcome = await make(backend, make_call(streamed=True))
            outcome.check_complete()
            assert outcome.text() == "zę🦊 b"
            assert outcome.usage == Usage(7, 3)


def said(*contents: str, index: int = 0) -> bytes:
    """Returns records with these contents, which are the insides of JSON strings, without the quotes."""
    head = b'data: {"choices":[{"index":%d,"delta":{"content":"' % index
    return b"".join(head + content.encode() + b'"}}]}\n\n' for content in contents)


SPLIT = {
    "between two records": (said("a\\ud83e", "\\udd8ab"), "a🦊b"),
    "with other text between": (said("\\uD83E", "", "\\uDD8A"), "🦊"),
    "two in a row": (said("\\ud83e", "\\udd8a\\ud83d", "\\ude00"), "🦊😀"),
    "whole pairs beside it": (said("\\ud83e\\udd8a\\ud83d", "\\ude00\\ud83e\\udd8a"), "🦊😀🦊"),
    "a text that looks like a half": (said("\\\\ud83e", "\\\\udd8a"), "\\ud83e\\udd8a"),
    "a first half alone": (said("a\\ud83e", "b"), "ab"),
    "a first half in the middle": (said("a\\ud83eb"), "a�b"),
    "a second half alone": (said("a\\udd8ab"), "a�b"),
}


@each("case", SPLIT)
async def test_a_character_that_is_split_between_records(case: str) -> None:
    data, text = SPLIT[case]
    records = data + sse(chunk(finish="stop")) + sse(usage_chunk()) + DONE
    outcome = await fault(cut(GOOD + records, len(GOOD)), streamed=True)
    outcome.check_complete()
    assert outcome.text() == "a" + text


FINISHED = sse(chunk(finish="stop"))
FINAL_USAGE = sse(usage_chunk())
RUNNING_TOTAL = sse({**chunk("a"), "usage": USAGE})


@each(
    ("records", "complete"),
    [
        (GOOD + FINISHED + FINAL_USAGE, True),
        (GOOD + sse({**chunk(finish="stop"), "usage": USAGE}), True),
        (RUNNING_TOTAL + sse({**chunk(finish="stop"), "usage": USAGE}), True),
        (GOOD + FINISHED, False),
        (GOOD + FINAL_USAGE, False),
        (RUNNING_TOTAL + FINISHED, False),
        (GOOD + FINISHED + FINAL_USAGE[:-1], False),
        (GOOD + FINISHED + sse(usage_chunk("odd")), False),
    ],
)
async def test_a_stream_that_ends_without_done(records: bytes, complete: bool) -> None:
    """A finish reason and the final usage show that nothing is missing."""
    outcome = await fault(cut(records), streamed=True)
    if not complete:
        check_failure(outcome, BackendFailed, charged=True, text="a")
        return
    outcome.check_complete()
    assert outcome.text() == "a"
    assert usage_in(outcome.reports[-1]) == Usage(7, 3)


async def test_a_connection_that_breaks_before_done() -> None:
    async def verb(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(GOOD + FINISHED + FINAL_USAGE)
        peer.close()

    check_failure(await fault(verb, streamed=True), BackendFailed, charged=True, text="a")


@each(("code", "error"), [(400, ProviderRejected), (429, RateLimited), (500, BackendFailed)])
async def test_error_record_where_the_answer_should_begin(
    code: int, error: type[TollkeeperError]
) -> None:
    record = {"error": {"message": f"too long, {KEY}", "code": code}}
    check_failure(await fault(stream([sse(record), DONE]), streamed=True), error, charged=False)
    check_failure(await fault(answer(record)), error, charged=False)


@each(("code", "error"), [(400, ProviderRejected), (429, RateLimited), (None, BackendFailed)])
async def test_an_error_that_is_the_whole_body(
    code: int | None, error: type[TollkeeperError]
) -> None:
    """SGLang and Mistral send errors in this form."""
    body = {"object": "error", "message": f"no, {KEY}", "type": "X", "param": None, "code": code}
    check_failure(await fault(answer(body)), error, charged=False)


@each(
    ("code", "charged"),
    [*((code, True) for code in (408, 499, 504, 524)), *((code, False) for code in (502, 599))],
)
async def test_an_error_record_in_the_place_of_an_answer(code: int, charged: bool) -> None:
    """The backend reports its own failure. Only if the code means a timeout, the call may have run."""
    record = {"error": {"message": "late", "code": code}}
    outcome = await fault(stream([sse(record), DONE]), streamed=True)
    check_failure(outcome, BackendFailed, charged=charged)
    check_failure(await fault(answer(record)), BackendFailed, charged=charged)


@each("code", [True, 7, 1301, "504", [504], 502.0])
async def test_an_error_record_whose_code_is_no_status(code: Any) -> None:
    record = {"error": {"message": "no", "code": code}}
    check_failure(await fault(answer(record)), BackendFailed, charged=False)


# Content types and usage.


@each(
    ("verb", "streamed"),
    [
        (answer(b"<html>busy</html>", content_type="text/html"), False),
        (answer(b"<html>busy</html>", content_type="text/html"), True),
        (answer(), True),
        (stream(), False),
        (answer(content_type=None), False),
        (answer(content_type="application/jsonp"), False),
    ],
)
async def test_wrong_content_type(verb: Verb, streamed: bool) -> None:
    """The status is 200, so the backend may have generated an answer."""
    check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=True)


@each(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/json ;x"]
)
async def test_right_content_type_in_other_words(content_type: str) -> None:
    (await fault(answer(content_type=content_type))).check_complete()


@BOTH
async def test_no_usage(streamed: bool) -> None:
    verb = stream(chat_records(usage=None)) if streamed else answer(completion(usage=None))
    outcome = await fault(verb, streamed=streamed)
    outcome.check_complete()
    assert outcome.reports == []


ABSURD = {
    "negative": b'{"prompt_tokens":-1,"completion_tokens":3}',
    "huge": b'{"prompt_tokens":7,"completion_tokens":9223372036854775808}',
    "beyond any integer": b'{"prompt_tokens":7,"completion_tokens":1' + b"0" * 400 + b"}",
    "fraction": b'{"prompt_tokens":7,"completion_tokens":1.5}',
    "text": b'{"prompt_tokens":"7","completion_tokens":3}',
    "NaN": b'{"prompt_tokens":NaN,"completion_tokens":3}',
    "infinity": b'{"prompt_tokens":7,"completion_tokens":-Infinity}',
    "truth": b'{"prompt_tokens":true,"completion_tokens":3}',
    "missing": b'{"prompt_tokens":7}',
    "a list": b"[7,3]",
    "a word": b'"many"',
    "empty": b"{}",
}


@pytest.mark.parametrize("case", ABSURD)
@BOTH
async def test_absurd_usage(case: str, streamed: bool) -> None:
    placeholder = b'"absurd"'
    if streamed:
        data = b"".join(chat_records(usage="absurd")).replace(placeholder, ABSURD[case])
        verb = cut(data)
    else:
        body = json.dumps(completion(usage="absurd")).encode()
        verb = answer(body.replace(placeholder, ABSURD[case]))
    outcome = await fault(verb, streamed=streamed)
    outcome.check_complete()
    assert outcome.text() == "Hello"
    assert outcome.usage is None


async def test_usage_twice_and_after_done() -> None:
    *records, usage, done = chat_records()
    other = sse(usage_chunk({**USAGE, "completion_tokens": 4, "total_tokens": 11}))
    outcome = await fault(stream([*records, usage, other, done, usage]), streamed=True)
    outcome.check_complete()
    assert [usage_in(report) for report in outcome.reports] == [Usage(7, 3), Usage(7, 4)]


# Missing choices.


def incomplete(*choices: dict[str, Any]) -> Verb:
    return answer({**completion(), "choices": list(choices)})


def choice(index: int) -> dict[str, Any]:
    return {"index": index, "message": {"content": f"text {index}"}, "finish_reason": "stop"}


@each(
    "verb",
    [
        incomplete(choice(0)),
        incomplete(choice(0), choice(0)),
        incomplete(choice(0), choice(2)),
    ],
)
async def test_a_missing_choice_is_never_silent(verb: Verb) -> None:
    async with Upstream(verb) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(choices=2))
        # The failure comes after the complete choices and the usage.
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert outcome.text(0) == "text 0"
        assert outcome.usage == Usage(7, 3)


async def test_a_missing_choice_of_many_in_a_stream() -> None:
    records = [sse(chunk(f"{index}", index=index)) for index in range(128)]
    ends = [sse(chunk(index=index, finish="stop")) for index in range(128) if index != 77]
    verb = stream([*records, *ends, sse(usage_chunk()), DONE])
    async with Upstream(verb) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, choices=128))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert all(outcome.text(index) == f"{index}" for index in range(128))


@each("choices", [[], None, "x", [{"index": 0}], [7]])
async def test_no_choice_at_all(choices: Any) -> None:
    outcome = await fault(answer({**completion(usage=None), "choices": choices}))
    check_failure(outcome, BackendFailed, charged=True)
    # A usage report is read even if there is no choice.
    outcome = await fault(answer({**completion(), "choices": choices}))
    assert type(outcome.error) is BackendFailed
    assert outcome.error.charged
    assert outcome.deltas == []
    assert outcome.usage == Usage(7, 3)
