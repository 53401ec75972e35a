"""Tests that a head is recognized if it differs only in the length from the last head of its connection or
of another open connection."""

import asyncio
import random
from itertools import pairwise

import pytest

from tests.http.raw_corpus import CORPUS
from tests.support.proof import Proof
from tests.support.request_receiver import RequestReceiver, content_of, parse_requests
from tests.support.tables import each
from tollkeeper.http.exchange import Exchange, RequestHead
from tollkeeper.http.http_exchange import HttpExchange
from tollkeeper.http.http_protocol import HttpLimits
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import bind
from tollkeeper.http.request_parser import RequestParser

_HEADER_BYTES_MAX = 1 << 20
_LENGTH = b"Content-Length: %b\r\n"
_PATIENCE_S = 20


def _post(length: bytes, body: bytes, *, more: bytes = b"", host: bytes = b"x") -> bytes:
    return b"POST /p?q HTTP/1.1\r\nHost: %b\r\n%b%b\r\n%b" % (
        host,
        _LENGTH % length,
        more,
        body,
    )


_FIRST = _post(b"3", b"abc")


def _behind(first: bytes, data: bytes) -> HttpExchange | None:
    """Returns the request that is recognized in `data` after the request `first`, or None. Checks that
    another connection recognizes the same request."""
    known: dict[tuple[bytes, bytes], RequestHead] = {}
    parser = RequestParser(RequestReceiver(), _HEADER_BYTES_MAX, known)
    start = 0
    while start < len(first):
        start += parser.feed(first, start)
    found = parser.parse_repeated(data)
    elsewhere = RequestParser(RequestReceiver(), _HEADER_BYTES_MAX, known).parse_known(data)
    if found is None or elsewhere is None:
        assert found is elsewhere
    else:
        assert found.head is elsewhere.head
        assert content_of(found) == content_of(elsewhere)
    return found


@each("body", [b"abc", b"", b"a" * 70_000, b"\r\n\r\n", _FIRST])
def test_only_the_length_may_differ(body: bytes) -> None:
    data = _post(b"%d" % len(body), body)
    found = _behind(_FIRST, data)
    assert found is not None
    (fed,), _ = parse_requests([data], _HEADER_BYTES_MAX)
    assert content_of(found) == content_of(fed)
    assert (found.body_bytes, found.keep_alive) == (fed.body_bytes, fed.keep_alive)


@each("cuts", [(0,), (1,), (1, 2), (0, 1, 2, 3, 4)])
def test_the_body_may_come_later(cuts: tuple[int, ...]) -> None:
    """Many SDKs send the head and the body one after the other."""
    body = b"\r\nGET"
    head = _post(b"%d" % len(body), b"")
    receiver = RequestReceiver()
    parser = RequestParser(receiver, _HEADER_BYTES_MAX, {})
    for piece in (_FIRST[:-3], _FIRST[-3:]):
        parser.feed(piece, 0)
    found = parser.parse_repeated(head + body[: cuts[0]])
    assert found is not None
    for start, end in pairwise((*cuts, len(body))):
        assert found.body is None
        assert parser.exchange is found
        assert parser.parse_repeated(_FIRST) is None
        assert parser.feed(b"x" + body[start:end], 1) == end - start
    assert found.body == body
    assert parser.exchange is None
    assert parser.parse_repeated(_FIRST) is not None
    # Bytes after the body in the same segment are not part of the body.
    again = parser.parse_repeated(head)
    assert again is not None
    assert parser.feed(body + _FIRST, 0) == len(body)
    assert again.body == body


def test_an_upgrade_is_ignored_again() -> None:
    first = _post(b"3", b"abc", more=b"Connection: Upgrade\r\nUpgrade: h2c\r\n")
    found = _behind(first, first)
    assert found is not None
    (fed,), _ = parse_requests([first], _HEADER_BYTES_MAX)
    assert content_of(found) == content_of(fed)


@each(
    "data",
    [
        pytest.param(_post(b"3", b"abcd"), id="more than one request"),
        pytest.param(_FIRST + _FIRST, id="two requests"),
        pytest.param(_FIRST[:30], id="a part of the head"),
        pytest.param(_post(b"+3", b"abc"), id="a sign"),
        pytest.param(_post(b"-3", b"abc"), id="a negative length"),
        pytest.param(_post(b"3 ", b"abc"), id="a blank behind it"),
        pytest.param(_post(b"0x3", b"abc"), id="another base"),
        pytest.param(_post(b"3_", b"abc"), id="an underscore"),
        pytest.param(_post("\uff13".encode(), b"abc"), id="a digit of another script"),
        pytest.param(_post(b"", b"abc"), id="no length"),
        pytest.param(_post(b"0" * 30 + b"3", b"abc"), id="many digits"),
        pytest.param(_post(b"3\r\nContent-Length: 4", b"abc"), id="two lengths"),
        pytest.param(_post(b"3, 3", b"abc"), id="a list of lengths"),
        pytest.param(_post(b"3", b"abc", more=b"X: y\r\n"), id="one more header"),
        pytest.param(_post(b"3", b"abc", host=b"y"), id="another host"),
        pytest.param(_FIRST.replace(b"Host", b"host"), id="another spelling"),
        pytest.param(_FIRST.replace(b"POST", b"PUT"), id="another method"),
        pytest.param(_FIRST.replace(b"\r\n\r\n", b"\n\n"), id="other ends of lines"),
    ],
)
def test_anything_else_is_parsed(data: bytes) -> None:
    assert _behind(_FIRST, _FIRST) is not None
    assert _behind(_FIRST, data) is None


@each(
    "first",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="no body"),
        pytest.param(_post(b"3", b"abc", more=b"Expect: 100-continue\r\n"), id="Expect"),
        pytest.param(_post(b"3", b"abc", more=b"Connection: close\r\n"), id="the last request"),
        pytest.param(_post(b"3", b"abc", more=b"X: %b\r\n" % (b"y" * 5000)), id="a large head"),
        pytest.param(_FIRST.replace(b"HTTP/1.1", b"HTTP/1.0"), id="HTTP/1.0"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="chunks",
        ),
    ],
)
def test_such_heads_are_not_kept(first: bytes) -> None:
    assert _behind(first, first) is None


def test_a_connection_of_many_callers_keeps_no_heads() -> None:
    """On a connection from a proxy, the heads of many clients follow each other and always differ."""
    parser = RequestParser(RequestReceiver(), _HEADER_BYTES_MAX, {})

    def feed(data: bytes) -> None:
        start = 0
        while start < len(data):
            start += parser.feed(data, start)

    for number in range(8):
        feed(_post(b"3", b"abc", host=b"h%d" % number))
    assert parser.parse_repeated(_post(b"3", b"abc", host=b"h7")) is not None
    for number in range(20):
        feed(_post(b"3", b"abc", host=b"h%d" % number))
    assert parser.parse_repeated(_post(b"3", b"abc", host=b"h19")) is None


def test_a_head_within_a_request_is_none() -> None:
    """While a request is incomplete, bytes that equal a head are part of this request."""
    receiver = RequestReceiver()
    parser = RequestParser(receiver, _HEADER_BYTES_MAX, {})
    for piece in (_FIRST[:-3], b"abc", _post(b"%d" % (2 * len(_FIRST)), b"")):
        parser.feed(piece, 0)
    assert parser.parse_repeated(_FIRST) is None
    assert parser.parse_known(_FIRST) is None
    parser.feed(_FIRST, 0)
    parser.feed(_FIRST, 0)
    assert receiver.exchanges[-1].body == _FIRST * 2
    assert parser.parse_repeated(_FIRST) is not None
    parser.feed(_FIRST[:10], 0)
    assert parser.parse_repeated(_FIRST) is None
    assert parser.parse_known(_FIRST) is None


def test_a_head_that_begins_behind_chunks_is_kept_only_as_a_whole() -> None:
    """The end of a chunked body and the beginning of the next head arrive in one segment."""
    chunks = (
        b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    for cut in range(1, _FIRST.index(b"Content-Length")):
        rest = _FIRST[cut:]
        segments = [_FIRST, chunks[:20], chunks[20:] + _FIRST[:cut], rest, rest]
        fed = parse_requests(segments, _HEADER_BYTES_MAX)
        found = parse_requests(segments, _HEADER_BYTES_MAX, {})
        for exchanges, refused in (fed, found):
            assert [one.body for one in exchanges] == [b"abc"] * 3, cut
            assert refused, "the rest of a head is not a request"


def _answer(exchange: Exchange) -> None:
    exchange.answer(200, b"content-length: 2\r\n", b"ok")


async def test_a_head_is_known_while_a_connection_uses_it() -> None:
    server = HttpServer(_answer, HttpLimits(keep_alive_s=60, connections_max=100))
    listener = bind("127.0.0.1", 0, setting="test")
    await server.start(listener)
    state, writers = server._state, []
    try:
        async with asyncio.timeout(_PATIENCE_S):
            for _ in range(2):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writers.append(writer)
                writer.write(_FIRST)
                await reader.readuntil(b"ok")
                assert len(state.known_headers) == 1
            # The connections wait for the next request. Otherwise they would be closed after the time in
            # which headers must arrive.
            assert [one.is_receiving for one in state.connections] == [False, False]
            for left in (1, 0):
                writer = writers.pop()
                writer.close()
                await writer.wait_closed()
                while len(state.connections) > left:  # noqa: ASYNC110 - the server sets no event
                    await asyncio.sleep(0.01)
                assert len(state.known_headers) == left
    finally:
        await server.drain(0)


def _cut(segments: list[bytes], chance: random.Random) -> list[bytes]:
    """Cuts some of the segments in two."""
    cut = []
    for segment in segments:
        at = chance.randrange(len(segment) + 1)
        cut += [segment] if chance.random() < 0.3 else [segment[:at], segment[at:]]
    return [segment for segment in cut if segment]


def test_sequences_are_the_same_as_if_all_were_parsed(proof: Proof) -> None:
    rounds = proof.size(quick=500, long=100_000)
    recognised = [0, 0]
    for seed in range(rounds):
        chance = random.Random(seed)
        segments = [chance.choice(CORPUS).raw[:2000]]
        for _ in range(3):
            again = segments[-1]
            if chance.random() < 0.6 and again:
                at = chance.randrange(len(again))
                piece = chance.choice([b"", b"0", b"3", b"\r", b" "])
                again = again[:at] + piece + again[at + chance.randrange(3) :]
            segments.append(again)
        for pieces in (segments, _cut(segments, chance)):
            fed, fed_refused = parse_requests(pieces, _HEADER_BYTES_MAX)
            known: dict[tuple[bytes, bytes], RequestHead] = {}
            # The second connection also recognizes the heads of the first.
            for connection in range(2):
                heads = list(known.values())
                found, refused = parse_requests(pieces, _HEADER_BYTES_MAX, known)
                assert refused == fed_refused, seed
                assert [content_of(one) for one in found] == [content_of(one) for one in fed], seed
                heads += [one.head for one in found]
                recognised[connection] += len(set(map(id, heads))) < len(heads)
    assert all(recognised), "no head was recognised, so nothing is shown"
    proof.count("sequences of requests, some with the same head", rounds)
