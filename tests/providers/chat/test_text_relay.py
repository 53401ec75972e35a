"""Tests the relay of text: relayed text and events together are the whole answer, at whatever position the
network splits the answer. A chunk that contains more than text is never relayed."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import make_call, routed
from tests.support.tables import each
from tests.support.upstream import DONE, Peer, Upstream, chat_records, chunk, sse, usage_chunk
from tollkeeper.core.errors import BackendFailed, DeadlineExceeded
from tollkeeper.core.inference import Delta, Event, UsageReport
from tollkeeper.core.port import EventCollector, TextFunctions
from tollkeeper.providers.chat.stream import ChatStreamReader
from tollkeeper.providers.streamed_answer import StreamedAnswer
from tollkeeper.providers.transport.http1 import Connection
from tollkeeper.providers.transport.sse import EventStreamParser

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"0\r\n\r\n"


def _framed(record: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(record), record)


def _text(text: str, **fields: Any) -> bytes:
    return _framed(sse(chunk(text, **fields)))


class _Socket(asyncio.Transport):
    """A transport that does nothing, because the tests pass data directly to the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def pausereading(self) -> None: ...

    def resumereading(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


class _Caller:
    """Collects the events and the relayed text of one answer, in the order of their arrival."""

    def __init__(
        self,
        *,
        output_tokens_max: int = 1024,
        record_bytes_max: int = 1 << 20,
        relays: bool = True,
    ) -> None:
        self.connection = Connection(lambda _: None, lambda _: None, idle_s=20)
        self.connection.connection_made(_Socket())
        now = asyncio.get_running_loop().time()
        self.answered = self.connection.send(b"", b"", deadline=now + 60)
        self.reader = ChatStreamReader(
            make_call(streamed=True, output_tokens_max=output_tokens_max)
        )
        self.answer = StreamedAnswer(
            self.connection, self.reader, EventStreamParser(record_bytes_max)
        )
        self.is_slow = False
        self._relays = relays
        self.said: list[str] = []
        self.events: list[Event] = []
        self.written = 0
        self.counted: list[str] = []
        # The counted text of events and of the relay, in the order of its arrival.
        self.pieces: list[str] = []
        self.reading = asyncio.ensure_future(self._read())

    async def take(self, *reads: bytes) -> None:
        for read in reads:
            self.connection.data_received(read)
            # More turns of the event loop than the reader needs before it waits for data again.
            for _ in range(6):
                await asyncio.sleep(0)

    async def end(self) -> None:
        async with asyncio.timeout(20):
            await self.reading

    @property
    def text(self) -> str:
        return "".join(self.said)

    async def _read(self) -> None:
        await self.answered
        await self.answer.begin()
        relayed = False
        async for batch in self.answer:
            self.events += batch
            texts = [event.text for event in batch if isinstance(event, Delta) and event.text]
            self.said += texts
            self.pieces += texts
            if not relayed:
                relayed = True
                if self._relays and self.said:
                    self.answer.relay_text(self._write, self._count)

    def _count(self, text: str) -> None:
        self.counted.append(text)
        self.pieces.append(text)

    def _write(self, written: bytes) -> bool:
        if self.is_slow:
            return False
        self.written += 1
        self.said.append(json.loads(written))
        return True


def _whole(pieces: Iterable[str]) -> bytes:
    return b"".join(map(_framed, chat_records(pieces))) + _LAST


@asynccontextmanager
async def _calling(**settings: Any) -> AsyncIterator[_Caller]:
    """Yields a caller whose request is sent, and cancels its reading at the end."""
    caller = _Caller(**settings)
    await asyncio.sleep(0)
    try:
        yield caller
    finally:
        caller.reading.cancel()
        await asyncio.gather(caller.reading, return_exceptions=True)


async def _caller_of(*reads: bytes) -> _Caller:
    async with _calling() as caller:
        await caller.take(*reads)
        await caller.end()
        return caller


async def test_text_is_passed_on_at_once() -> None:
    pieces = [f"word{number} " for number in range(20)]
    async with _calling() as caller:
        await caller.take(_HEAD + _text(pieces[0]))
        for number, piece in enumerate(pieces[1:], start=1):
            # The text is relayed during the read itself, before any task runs.
            caller.connection.data_received(_text(piece))
            assert caller.said[-1] == piece, number
        await caller.take(
            *map(_framed, (sse(chunk(finish="stop")), sse(usage_chunk()), DONE)), _LAST
        )
        await caller.end()
        assert caller.text == "".join(pieces)
        assert caller.counted == pieces[1:]
        assert caller.written == len(pieces) - 1
        assert caller.reader.pieces == [len(pieces) + 1]
        assert [event.finish for event in caller.events if isinstance(event, Delta)] == [
            None,
            "stop",
        ]
        assert sum(isinstance(event, UsageReport) for event in caller.events) == 1


@each("last", ["", "end"])
async def test_the_relay_leaves_the_finish_reason_to_the_reader(last: str) -> None:
    """All chunks before the last one have an empty finish reason."""
    more = [_text(f"word{number} ", finish="") for number in range(10)]
    end = [_text(last, finish="stop"), *map(_framed, (sse(usage_chunk()), DONE)), _LAST]
    caller = await _caller_of(_HEAD + _text("first ", finish=""), *more, *end)
    assert caller.written == len(more)
    assert caller.text == "first " + "".join(f"word{number} " for number in range(10)) + last
    assert caller.answer.completed


async def test_the_relay_does_not_hide_a_change_of_the_service_tier() -> None:
    """The relay learns the bytes of chunks with one tier. Then two chunks name other tiers."""
    tiers = ["a", "a", "b", "a"]
    pieces = [_text("t", service_tier=tier) for tier in tiers]
    caller = await _caller_of(
        _HEAD + pieces[0], *pieces[1:], *map(_framed, [sse(chunk(finish="stop")), DONE]), _LAST
    )
    reports = [event.usage for event in caller.events if isinstance(event, UsageReport)]
    assert [report and report.service_tier for report in reports] == ["b", "a"]


async def test_an_answer_is_the_same_wherever_it_is_cut() -> None:
    pieces = ["Hel", "lo", ' "wörld"\n', "\\", "再见"]
    body = _whole(pieces)
    for cut in range(1, len(body)):
        caller = await _caller_of(_HEAD, body[:cut], body[cut:])
        assert caller.text == "".join(pieces), cut
        assert caller.answer.completed, cut


def _with_bytes(record: bytes, text: bytes) -> bytes:
    """Returns the record with these bytes in place of its text `@`."""
    return record.replace(b"@", text)


_USAGES = st.builds(
    lambda prompt, completion: {"prompt_tokens": prompt, "completion_tokens": completion},
    st.integers(0, 9),
    st.integers(0, 9),
)
_HALVES = st.sampled_from([b"\\ud83d", b"\\ude00", b"a\\ud83d", b"\\ude00b", b"\\ud83dx", b"\xff"])
_TEXTS = st.text(max_size=5).map(lambda text: sse(chunk(text)))
_RECORDS = st.one_of(
    *[_TEXTS] * 6,
    st.text(max_size=5).map(lambda text: sse(chunk(text, obfuscation=text))),
    st.sampled_from(["a", "b", None]).map(lambda tier: sse(chunk("t", service_tier=tier))),
    _HALVES.map(lambda half: _with_bytes(sse(chunk("@")), half)),
    _USAGES.map(lambda usage: sse(usage_chunk(usage))),
    _USAGES.map(lambda usage: sse(chunk("t", usage=usage))),
    _TEXTS.map(lambda record: record.replace(b"\n", b"\r\n")),
    _TEXTS.map(lambda record: record.replace(b"data: ", b"data:")),
    st.sampled_from(
        [
            b": comment\n\n",
            sse(chunk("last", finish="stop")),
            sse(chunk("t", finish="")),
            sse(chunk(delta={"content": "t", "reasoning": "r"})),
            sse(chunk("t", index=1)),
            sse({"error": {"message": "no", "code": 500}}),
            DONE,
        ]
    ),
)


@given(
    records=st.lists(_RECORDS, max_size=20),
    reads_of=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 3000), max_size=3),
    slow=st.lists(st.booleans(), min_size=1, max_size=4),
)
async def test_a_relayed_answer_is_the_same_as_a_read_answer(
    records: list[bytes], reads_of: list[int], cuts: list[int], slow: list[bool]
) -> None:
    """Each record is an HTTP chunk. A network read has one or more chunks, or ends inside of a chunk."""
    chunks = [*map(_framed, [sse(chunk("a")), *records, sse(chunk(finish="stop")), DONE]), _LAST]
    body, sizes = b"".join(chunks), itertools.cycle(reads_of)
    edges, position = {0, len(body), *(cut for cut in cuts if cut < len(body))}, 0
    while chunks:
        read = b"".join(chunks.pop(0) for _ in range(min(next(sizes), len(chunks))))
        position += len(read)
        edges.add(position)
    reads = [body[start:end] for start, end in itertools.pairwise(sorted(edges))]
    relayed = await _outcome([_HEAD, *reads], slow, relays=True)
    assert relayed == await _outcome([_HEAD + body], [False], relays=False)


async def _outcome(reads: list[bytes], slow: list[bool], *, relays: bool) -> tuple[Any, ...]:
    """Returns everything on which the delivery and the charge of an answer depend."""
    async with _calling(relays=relays) as caller:
        for read, is_slow in zip(reads, itertools.cycle(slow), strict=False):
            caller.is_slow = is_slow
            await caller.take(read)
            if caller.reading.done():
                break
        async with asyncio.timeout(20):
            await asyncio.wait([caller.reading])
        error = caller.reading.exception()
        failure = (type(error), str(error), getattr(error, "charged", None))
        others = [event for event in caller.events if event != _only_text(event)]
        return caller.text, caller.pieces, others, failure, caller.reader.pieces


def _only_text(event: Event) -> Delta | None:
    return Delta(event.choice, event.text) if isinstance(event, Delta) else None


@each("size", [1, 2, 3, 7, 50, 333, 1000, 5000])
async def test_an_answer_is_the_same_in_reads_of_any_size(size: int) -> None:
    pieces = [f"word{number} " for number in range(12)]
    body = _whole(pieces)
    reads = [body[start : start + size] for start in range(0, len(body), size)]
    caller = await _caller_of(_HEAD, *reads)
    assert caller.text == "".join(pieces)
    assert caller.answer.completed
    assert caller.reader.pieces == [len(pieces) + 1]


async def test_several_chunks_of_one_read_keep_their_order() -> None:
    pieces = [f"word{number} " for number in range(30)]
    first, *more = map(_text, pieces)
    end = b"".join(map(_framed, (sse(chunk(finish="stop")), DONE))) + _LAST
    # The last read contains text and the end of the answer. Only the text can be relayed.
    last = b"".join(more[6:]) + end
    caller = await _caller_of(_HEAD + first, b"".join(more[:5]), more[5], last)
    assert caller.text == "".join(pieces)
    assert caller.written == len(pieces) - 1
    assert caller.answer.completed


async def test_half_a_chunk_is_left_to_the_reader() -> None:
    async with _calling() as caller:
        late = _text("late ")
        await caller.take(_HEAD + _text("1 "), _text("2 "), _text("3 ") + late[:40], late[40:])
        assert caller.said == ["1 ", "2 ", "3 ", "late "]
        assert caller.counted == ["2 ", "3 "]
        await caller.take(_text("4 "))
        assert caller.counted == ["2 ", "3 ", "4 "]


# Text chunks in the forms that real servers send, which differ from the first chunk.
_FORMS: dict[str, list[bytes]] = {
    "another second": [_text("a", created=now) for now in range(20)],
    "a random field": [_text("a", obfuscation="x" * (number % 7)) for number in range(20)],
    "a role in each": [_framed(sse(chunk(delta={"role": "assistant", "content": "a"})))] * 20,
    "nulls": [
        _framed(sse(chunk(delta={"content": "a", "reasoning_content": None, "tool_calls": None})))
    ]
    * 20,
    "an empty finish reason": [_text("a", finish="")] * 20,
    "no spaces": [
        _framed(b"data: " + json.dumps(chunk("a"), separators=(",", ":")).encode() + b"\n\n")
    ]
    * 20,
    "the same key elsewhere": [
        _framed(sse({"note": {"content": "no"}, **chunk("a", more={"content": "no"})}))
    ]
    * 20,
    "a decoy": [_framed(sse({'x"content': "b", **chunk("a")}))] * 20,
}


@each("form", _FORMS)
async def test_text_is_found_in_every_form(form: str) -> None:
    async with _calling() as caller:
        await caller.take(_HEAD + _text("first "), *_FORMS[form])
        assert caller.said == ["first ", *["a"] * 20]
        assert len(caller.counted) == caller.written == 20


# Chunks that must not be relayed as text, although they look similar to the chunks before them.
_MORE_THAN_TEXT: dict[str, bytes] = {
    "a finish": sse(chunk("x", finish="stop")),
    "a usage": sse(chunk("x", usage={"prompt_tokens": 1, "completion_tokens": 1})),
    "an error": sse(chunk("x", error={"message": "broken"})),
    "reasoning": sse(chunk(delta={"content": "x", "reasoning": "Well."})),
    "a tool call": sse(chunk(delta={"content": "x", "tool_calls": [{"index": 0}]})),
    "another choice": sse(chunk("x", index=1)),
    "another tier": sse(chunk("x", service_tier="flex")),
    "log-probabilities": sse(
        {**chunk(), "choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {}}]}
    ),
    "two records": sse(chunk("x")) + sse(chunk("y")),
    "two lines": b"data: {\ndata: }\n\n",
    "no text": sse(chunk("")),
    "no JSON": sse(chunk("x")).replace(b'"x"', b'"x'),
    "half a character": sse(chunk("x")).replace(b'"x"', b'"\\ud83d"'),
    "no UTF-8": sse(chunk("x")).replace(b'"x"', b'"\xff"'),
    "a line in a text": sse(chunk("x")).replace(b'"x"', b'"\n"'),
    "a comment": b": still here\n\n",
    "the end": DONE,
}


@each("record", _MORE_THAN_TEXT)
async def test_more_than_text_is_read(record: str) -> None:
    """The result is the same as for a slow caller, who gets all text as events."""
    read = _framed(_MORE_THAN_TEXT[record])
    async with _calling() as caller, _calling() as plain:
        plain.is_slow = True
        for each in (caller, plain):
            await each.take(_HEAD + _text("1 "), _text("2 "), _text("3 "))
            await each.take(read)
        assert (caller.written, plain.written) == (2, 0)
        assert caller.said == plain.said
        assert caller.reader.pieces == plain.reader.pieces
        assert caller.reader.finished == plain.reader.finished
        assert (caller.reader.failure is None) == (plain.reader.failure is None)


@each("size", [b"0", b"ffff", b"-5", b"0x%x", b"%X;x=1", b"+%x"])
async def test_a_chunk_has_the_size_that_it_names(size: bytes) -> None:
    async with _calling() as caller:
        await caller.take(_HEAD + _text("1 "), _text("2 "))
        record = sse(chunk("3 "))
        named = size % len(record) if b"%" in size else size
        await caller.take(named + b"\r\n" + record + b"\r\n")
        assert caller.written == 1


async def test_the_second_line_of_a_record_is_not_relayed() -> None:
    """The read with the chunk of one byte ends like a record, but the record goes on."""
    async with _calling() as caller:
        await caller.take(_HEAD + _text("1 "), _text("2 "))
        await caller.take(_framed(b"data: {"), _framed(b"\n"), _text("3 "))
        assert caller.text == "1 2 "
        with pytest.raises(BackendFailed):
            await caller.end()


async def test_text_that_looks_like_a_chunk_is_not_relayed() -> None:
    """The second read is the rest of a chunk, and looks like a whole chunk."""
    record, inner = sse(chunk("3 ")), _text("4 ")
    outer = _framed(record + inner)
    cut = outer.index(record) + len(record)
    end = b"".join(map(_framed, (sse(chunk(finish="stop")), DONE))) + _LAST
    caller = await _caller_of(
        *(_HEAD + _text("1 "), _text("2 ")),
        *(outer[:cut], inner, outer[cut + len(inner) :] + _text("5 "), end),
    )
    assert caller.text == "1 2 3 4 5 "
    assert caller.counted == ["2 "]
    assert caller.answer.completed


async def test_who_reads_slowly_gets_all_of_it_later() -> None:
    async with _calling() as caller:
        await caller.take(_HEAD + _text("1 "), _text("2 "))
        caller.is_slow = True
        await caller.take(_text("3 "), _text("4 "))
        assert (caller.said, caller.counted) == (["1 ", "2 ", "3 ", "4 "], ["2 "])
        caller.is_slow = False
        await caller.take(_text("5 "))
        assert (caller.text, caller.counted) == ("1 2 3 4 5 ", ["2 ", "5 "])


async def test_nothing_passes_a_reader_that_is_behind() -> None:
    """The reader has not read the earlier text yet, so later text must not be relayed before it."""
    async with _calling() as caller:
        await caller.take(_HEAD + _text("1 "), _text("2 "))
        late = _text("3 ")
        caller.connection.data_received(late[:30])
        caller.connection.data_received(late[30:])
        caller.connection.data_received(_text("4 "))
        await caller.take(_text("5 "))
        assert caller.text == "1 2 3 4 5 "


async def test_the_bound_of_an_answer_holds() -> None:
    async with _calling(output_tokens_max=1) as caller:
        await caller.take(_HEAD + _text("x"), *[_text("x")] * 200)
        with pytest.raises(BackendFailed, match="longer than the output limit"):
            await caller.end()
        assert caller.reader.pieces == [67]
        assert len(caller.said) == 66


async def test_the_bound_of_a_record_holds() -> None:
    async with _calling(record_bytes_max=500) as caller:
        await caller.take(_HEAD + _text("x"), _text("y"), _text("z" * 600))
        with pytest.raises(BackendFailed, match="too large"):
            await caller.end()
        assert caller.text == "xy"


async def test_a_choice_does_not_go_on_after_its_end() -> None:
    async with _calling() as caller:
        await caller.take(
            _HEAD + _text("1 "), _text("2 "), _framed(sse(chunk(finish="stop"))), _text("3 ")
        )
        with pytest.raises(BackendFailed, match="goes on after its end"):
            await caller.end()
        assert caller.text == "1 2 "


async def test_nobody_is_written_to_after_a_call_has_ended() -> None:
    async with _calling() as caller:
        await caller.take(_HEAD + _text("1 "), _text("2 "))
        caller.reading.cancel()
        # The cancelled task has not run yet.
        caller.connection.data_received(_text("3 "))
        await asyncio.gather(caller.reading, return_exceptions=True)
        caller.connection.data_received(_text("4 "))
        assert caller.written == 1
        caller.connection.drain()
        caller.connection.data_received(_text("5 "))
        assert caller.written == 1


async def test_text_is_no_silence_and_its_absence_is() -> None:
    """Sends text for longer than the idle timeout, and then nothing until the timeout passes."""
    quiet = asyncio.Event()

    async def verb(peer: Peer) -> None:
        await peer.send_head()
        for number in range(12):
            await peer.send_chunk(sse(chunk(f"{number} ")))
            await asyncio.sleep(0.2)
        quiet.set()
        await peer.until_left()

    said: list[str] = []

    def write(written: bytes) -> bool:
        said.append(json.loads(written))
        return True

    class Relaying(EventCollector):
        def text_functions(self) -> TextFunctions:
            return write, lambda _: None

    async with Upstream(verb) as upstream, routed(upstream.url, idle_timeout_s=1.5) as backend:
        deadline = asyncio.get_running_loop().time() + 20
        with pytest.raises(DeadlineExceeded, match="no data for too long"):
            await backend.answer(make_call(streamed=True), Relaying(), deadline=deadline)
    assert quiet.is_set()
    assert said[-1] == "11 "
