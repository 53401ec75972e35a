"""Tests the parser of AWS's binary event stream: frames, headers and checksums, with cuts at every position."""

import itertools
import json
import struct
import uuid
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tests.support.upstream_converse import error_frame, event, exception, frame
from tollkeeper.providers.transport.aws_event_stream import AwsEventStreamParser, read_headers
from tollkeeper.providers.transport.sse import MalformedEventStream

_MAX = 1 << 20


def _records(*chunks: bytes, record_bytes_max: int = _MAX) -> list[Any]:
    parser = AwsEventStreamParser(record_bytes_max)
    return [json.loads(record) for chunk in chunks for record in parser.feed(chunk)]


def test_an_event_an_exception_and_an_error() -> None:
    frames = [
        event("metadata", usage=1),
        exception("throttlingException"),
        error_frame("Boom", "x"),
    ]
    assert _records(b"".join(frames)) == [
        {"metadata": {"usage": 1, "p": "abcdefgh"}},
        {"throttlingException": {"message": "no"}},
        {"error": {"code": "Boom", "message": "x"}},
    ]


def test_the_published_empty_message_says_nothing() -> None:
    """The frame is from AWS's test vectors. It has no headers and no payload."""
    vector = bytes.fromhex("0000001000000000 05c248eb 7d98c8ff".replace(" ", ""))
    assert _records(vector) == []


def test_a_published_message_with_headers() -> None:
    """The frame is the first reply of a stream in AWS's own tests."""
    vector = (
        b"\x00\x00\x00~\x00\x00\x00O\xc5\xa3\xdd\xc6\r:message-type\x07\x00\x05event"
        b"\x0b:event-type\x07\x00\x10initial-response\r:content-type\x07\x00\ttext/json"
        b'{"InitialResponse": "sometext"}\xf6\x98$\x83'
    )
    # The parser skips the frame, because `initial-response` is no valid event name.
    assert _records(vector) == []
    assert _records(vector, event("messageStart")) == [{"messageStart": {"p": "abcdefgh"}}]


def test_an_empty_payload_is_an_empty_object() -> None:
    empty = frame(b"", (":event-type", "messageStop"), (":message-type", "event"))
    assert _records(empty) == [{"messageStop": {}}]


def test_headers_of_every_type() -> None:
    found = uuid.uuid4()
    parts = [
        ("yes", b"\x00"),
        ("no", b"\x01"),
        ("byte", b"\x02" + struct.pack(">b", -1)),
        ("short", b"\x03" + struct.pack(">h", -2)),
        ("int", b"\x04" + struct.pack(">i", -3)),
        ("long", b"\x05" + struct.pack(">q", -4)),
        ("bytes", b"\x06" + struct.pack(">H", 2) + b"\xff\x00"),
        ("text", b"\x07" + struct.pack(">H", 2) + "ü".encode()),
        ("time", b"\x08" + struct.pack(">q", 1_800_000_000_000)),
        ("uuid", b"\x09" + found.bytes),
    ]
    written = b"".join(bytes([len(name)]) + name.encode() + value for name, value in parts)
    assert read_headers(written) == {
        "yes": True,
        "no": False,
        "byte": -1,
        "short": -2,
        "int": -3,
        "long": -4,
        "bytes": b"\xff\x00",
        "text": "ü",
        "time": 1_800_000_000_000,
        "uuid": found,
    }
    # A cut within a header is malformed. A cut between two headers leaves whole headers.
    starts = {0}
    for name, value in parts:
        starts.add(max(starts) + 1 + len(name) + len(value))
    for end in range(len(written)):
        if end not in starts:
            assert _is_malformed(_framed(written[:end], b"{}"))


def _framed(headers: bytes, payload: bytes) -> bytes:
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    begun = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return begun + struct.pack(">I", zlib.crc32(begun))


def _is_malformed(data: bytes) -> bool:
    try:
        AwsEventStreamParser(_MAX).feed(data)
    except MalformedEventStream:
        return True
    return False


@each(
    ("headers", "reason"),
    [
        (b"\x01a\x0a", "unknown type"),
        (b"\xff", "cannot be read"),
        (b"\x01\xff\x00", "read"),
    ],
)
def test_headers_that_are_none(headers: bytes, reason: str) -> None:
    with pytest.raises(MalformedEventStream, match=reason):
        AwsEventStreamParser(_MAX).feed(_framed(headers, b""))


_EVENTS = st.lists(st.text(max_size=50), min_size=1, max_size=5)


@given(texts=_EVENTS, data=st.data())
def test_chunks_do_not_matter(texts: list[str], data: st.DataObject) -> None:
    written = b"".join(event("contentBlockDelta", text=text) for text in texts)
    cuts = data.draw(st.lists(st.integers(0, len(written)), max_size=8).map(sorted))
    edges = [0, *cuts, len(written)]
    chunks = [written[start:end] for start, end in itertools.pairwise(edges)]
    assert _records(*chunks) == _records(written)
    assert [record["contentBlockDelta"]["text"] for record in _records(*chunks)] == texts


@given(text=st.text(max_size=30), data=st.data())
def test_a_changed_byte_is_noticed(text: str, data: st.DataObject) -> None:
    """The error contains the records before the changed byte."""
    first, second = event("contentBlockDelta", text="whole"), event("contentBlockDelta", text=text)
    position = data.draw(st.integers(0, len(second) - 1))
    flip = data.draw(st.integers(1, 255))
    broken = bytearray(second)
    broken[position] ^= flip
    parser = AwsEventStreamParser(_MAX)
    with pytest.raises(MalformedEventStream) as error:
        parser.feed(first + bytes(broken))
    assert [json.loads(record)["contentBlockDelta"]["text"] for record in error.value.payloads] == [
        "whole"
    ]


@given(st.binary(max_size=200))
def test_anything_else_is_malformed_or_incomplete(data: bytes) -> None:
    parser = AwsEventStreamParser(_MAX)
    found: list[bytes] = []
    try:
        found = parser.feed(data)
    except MalformedEventStream as error:
        found = error.payloads
    assert found == []


def test_a_wrong_length_is_not_waited_for() -> None:
    prelude = struct.pack(">II", 1 << 31, 0)
    checked = prelude + struct.pack(">I", zlib.crc32(prelude))
    with pytest.raises(MalformedEventStream, match="too large"):
        AwsEventStreamParser(_MAX).feed(checked)
    with pytest.raises(MalformedEventStream, match="beginning"):
        AwsEventStreamParser(_MAX).feed(prelude + b"\x00\x00\x00\x00")


@each(("length", "headers"), [(15, 0), (20, 5), (0, 0)])
def test_a_frame_that_is_shorter_than_its_parts(length: int, headers: int) -> None:
    prelude = struct.pack(">II", length, headers)
    data = prelude + struct.pack(">I", zlib.crc32(prelude))
    with pytest.raises(MalformedEventStream, match="shorter than its parts"):
        AwsEventStreamParser(_MAX).feed(data)


def test_the_largest_frame() -> None:
    exact = event("contentBlockDelta", text="x" * 1000)
    assert len(_records(exact, record_bytes_max=len(exact))) == 1
    with pytest.raises(MalformedEventStream, match="too large"):
        AwsEventStreamParser(len(exact) - 1).feed(exact[:12])


def test_a_payload_that_is_not_utf8() -> None:
    with pytest.raises(MalformedEventStream, match="not UTF-8"):
        AwsEventStreamParser(_MAX).feed(frame(b'{"a":"\xff"}', (":event-type", "metadata")))
