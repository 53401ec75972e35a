"""Tests the parsers of model servers' bytes with arbitrary input: they raise declared errors only, and cuts do
not change the result."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.proof import Proof
from tollkeeper.providers.transport.http1 import Connection, HttpFailure
from tollkeeper.providers.transport.sse import EventStreamParser, MalformedEventStream

_SSE_PARTS = st.sampled_from(
    [
        b"data",
        b":",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"a",
        b"event: x\n",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\xc3",
    ]
)


def _payloads(*segments: bytes) -> tuple[list[bytes], bool]:
    parser = EventStreamParser(64)
    found: list[bytes] = []
    try:
        for segment in segments:
            found += parser.feed(segment)
    except MalformedEventStream as error:
        return found + list(error.payloads), True
    return found, False


@given(parts=st.lists(_SSE_PARTS | st.binary(max_size=5), max_size=30), at=st.integers(0, 60))
def test_event_stream(parts: list[bytes], at: int) -> None:
    stream = b"".join(parts)
    whole, malformed = _payloads(stream)
    cut, malformed_cut = _payloads(stream[:at], stream[at:])
    if not malformed and not malformed_cut:
        assert cut == whole
    else:
        # A cut may reveal an error earlier, but never changes the payloads before the error.
        shorter, longer = sorted((cut, whole), key=len)
        assert longer[: len(shorter)] == shorter


_ANSWERS = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: x\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 404 No\r\ncontent-length: 1\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end",
    b"HTTP/1.0 200 OK\r\n\r\nold",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nother",
]
_INSERTED = [
    b"\r\n",
    b"\n",
    b"\x00",
    b"HTTP/1.1 200 OK\r\n",
    b"content-length: 9\r\n",
    b"0\r\n\r\n",
]


class _Transport(asyncio.Transport):
    """Ignores written data, and closes only if it is aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: object) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.closed = True


async def _read(*segments: bytes) -> tuple[int, bytes, bool]:
    """Returns the status, the body, and whether the answer was complete."""
    connection = Connection(lambda _: None, lambda _: None, idle_s=60)
    transport = _Transport()
    connection.connection_made(transport)
    answered = connection.send(b"", b"", deadline=asyncio.get_running_loop().time() + 60)
    for segment in segments:
        if not transport.closed:
            connection.data_received(segment)
    connection.connection_lost(None)
    status, body = 0, b""
    try:
        await answered
        status = connection.status
        while piece := await connection.read():
            body += piece
    except HttpFailure:
        return status, body, False
    finally:
        connection.abort()
    return status, body, True


def _mutated(seed: int) -> bytes:
    chance = random.Random(seed)
    raw = bytearray(chance.choice(_ANSWERS))
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(raw) + 1)
        if chance.random() < 0.5:
            raw[at:at] = chance.choice(_INSERTED)
        else:
            raw[at : at + 1] = bytes([chance.randrange(256)])
    return bytes(raw)


async def test_answers_over_http(proof: Proof) -> None:
    """Each answer is complete or fails. All complete results of the same bytes are equal."""
    answers = proof.size(quick=500, long=200_000)
    for seed in range(answers):
        raw = _mutated(seed)
        at = random.Random(seed).randrange(len(raw) + 1)
        whole = await _read(raw)
        for other in (await _read(raw[:at], raw[at:]), await _read(*(bytes([b]) for b in raw))):
            if whole[2] and other[2]:
                assert other == whole, seed
            else:
                # Bytes after a complete answer may arrive too late to make it fail.
                assert other[1].startswith(whole[1]) or whole[1].startswith(other[1]), seed
    proof.count("answers of model servers, mutated", answers)


async def test_data_before_the_first_request_ends_the_connection() -> None:
    lost: list[Connection] = []
    connection = Connection(lost.append, lambda _: None, idle_s=60)
    transport = _Transport()
    connection.connection_made(transport)
    connection.data_received(_ANSWERS[0])
    assert transport.closed
    assert not connection.finish()
    connection.connection_lost(None)
    assert lost == [connection]
