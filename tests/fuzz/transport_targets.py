"""Targets that read bytes of a connection: streams and answers of backends, requests and headers."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from zlib import crc32

from tests.fuzz.invariants import assert_linear, assert_prefix, pieces
from tests.support.request_receiver import content_of, parse_requests
from tollkeeper.core.access import KeyKind
from tollkeeper.core.errors import Unauthenticated
from tollkeeper.faces.request import check_content_type, presented_key
from tollkeeper.http.envelope import UnsupportedMediaType
from tollkeeper.providers.transport.aws_event_stream import AwsEventStreamParser
from tollkeeper.providers.transport.http1 import Connection, HttpFailure
from tollkeeper.providers.transport.sse import EventStreamParser, MalformedEventStream
from tollkeeper.tenants.keys import key_digest, key_kind, redact_key

_FRAME_BYTES_MAX = 64
_HEADER_BYTES_MAX = 4096
_CUTS = 8  # The number of bytes at the beginning of an input that say where the rest is cut.
_loop = asyncio.new_event_loop()


def event_stream(data: bytes) -> None:
    """Checks that server-sent events have the same payloads for every cut, none above the size limit."""
    stream = data[_CUTS:]
    whole = _check_cuts(EventStreamParser, stream, data[:_CUTS])
    assert all(len(payload) <= _FRAME_BYTES_MAX for payload in whole)
    assert_linear(lambda stream: _payloads(EventStreamParser, [stream]), stream)


def aws_event_stream(data: bytes) -> None:
    """Checks that AWS's frames give the same records for every cut. Random bytes have no valid checksum, so
    the input is also put into a valid frame. The input's first byte is the length of the headers."""
    stream, cuts = data[_CUTS:], data[:_CUTS]
    _check_cuts(AwsEventStreamParser, stream, cuts)
    _check_cuts(AwsEventStreamParser, _framed(stream) + stream, cuts)


def _framed(data: bytes) -> bytes:
    headers, payload = data[1 : 1 + data[0]] if data else b"", data[1 + data[0] :] if data else b""
    prelude = struct.pack(">II", len(headers) + len(payload) + 16, len(headers))
    frame = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return frame + struct.pack(">I", crc32(frame))


def _check_cuts(
    parser: Callable[[int], EventStreamParser | AwsEventStreamParser], stream: bytes, cuts: bytes
) -> list[bytes]:
    whole, malformed = _payloads(parser, [stream])
    cut, malformed_cut = _payloads(parser, pieces(stream, cuts))
    if malformed or malformed_cut:
        assert_prefix(whole, cut)
    else:
        assert whole == cut
    return whole


def _payloads(
    open_parser: Callable[[int], EventStreamParser | AwsEventStreamParser], segments: list[bytes]
) -> tuple[list[bytes], bool]:
    parser = open_parser(_FRAME_BYTES_MAX)
    found: list[bytes] = []
    try:
        for segment in segments:
            found += parser.feed(segment)
            assert len(parser._pending) <= _FRAME_BYTES_MAX + 1, "what is kept is bounded"
    except MalformedEventStream as error:
        return found + list(error.payloads), True
    return found, False


def http_answer(data: bytes) -> None:
    """Checks that a backend's answer raises only declared failures, and is the same for every cut."""
    answer = data[_CUTS:]
    whole = _loop.run_until_complete(_answer([answer]))
    cut = _loop.run_until_complete(_answer(pieces(answer, data[:_CUTS])))
    if whole[2] or cut[2]:
        # A cut may change when the failure is found, but not the data that is read before it.
        assert whole[0] is None or cut[0] is None or whole[0] == cut[0]
        assert_prefix(whole[1], cut[1])
    else:
        assert whole == cut


class _Transport(asyncio.Transport):
    """Ignores written data."""

    def write(self, data: object) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


async def _answer(segments: list[bytes]) -> tuple[object, bytes, bool]:
    """Returns the head, the body, and whether the exchange failed."""
    connection = Connection(lambda _: None, lambda _: None, idle_s=3600)
    connection.connection_made(_Transport())
    answered = connection.send(b"", b"", deadline=_loop.time() + 3600)
    for segment in segments:
        if segment:
            connection.data_received(segment)
    connection.connection_lost(None)
    head, body = None, b""
    try:
        await answered
        head = (connection.status, connection.headers)
        while piece := await connection.read():
            body += piece
    except HttpFailure:
        return head, body, True
    finally:
        connection.abort()
    return head, body, False


def request(data: bytes) -> None:
    """Checks that requests are the same for every cut, have bounded heads, and raise only declared errors."""
    raw = data[_CUTS:]
    whole, refused = _requests([raw])
    cut, refused_cut = _requests(pieces(raw, data[:_CUTS]))
    if refused or refused_cut:
        assert_prefix(whole[:-1], cut[:-1])
    else:
        assert whole == cut
    assert_linear(lambda raw: _requests([raw]), raw)


def _requests(segments: list[bytes]) -> tuple[list[object], bool]:
    exchanges, refused = parse_requests(segments, _HEADER_BYTES_MAX)
    for exchange in exchanges:
        head = sum(
            len(name) + len(value)
            for name, values in exchange.head.headers.items()
            for value in values
        )
        assert head <= _HEADER_BYTES_MAX
    return [content_of(exchange) for exchange in exchanges], refused


def content_type(data: bytes) -> None:
    """Checks that case and a trailing semicolon do not change whether a Content-Type is accepted."""
    plain = _is_accepted(data)
    assert _is_accepted(data.swapcase()) == plain or not data.isascii()
    assert _is_accepted(data + b" ;") == plain or b'"' in data
    assert_linear(_is_accepted, data)


def _is_accepted(value: bytes) -> bool:
    try:
        check_content_type({b"content-type": (value,)})
    except UnsupportedMediaType:
        return False
    return True


def key(data: bytes) -> None:
    """Checks that an API key in the headers is either read or refused with 401."""
    values = data.split(b"\n")
    headers = {b"authorization": tuple(values[:1]), b"x-api-key": tuple(values[1:])}
    for kind in KeyKind:
        with contextlib.suppress(Unauthenticated):
            presented = presented_key(headers, kind, b"x-api-key")
            assert len(key_digest(presented)) == 32
            assert len(redact_key(presented)) <= 11
            if key_kind(presented) is not None:
                assert len(presented) == 42
                # A key with one changed character is not valid.
                other = "a" if presented[10] != "a" else "b"
                assert key_kind(presented[:10] + other + presented[11:]) is None
