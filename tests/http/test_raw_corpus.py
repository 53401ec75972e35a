"""Tests the real server with the corpus of raw requests: whole, cut in two, and byte by byte."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.http.raw_corpus import CORPUS, Case
from tests.support.proof import Proof
from tests.support.tables import each
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.http.envelope import render_error
from tollkeeper.http.exchange import ClientDisconnected, Exchange
from tollkeeper.http.http_protocol import HttpLimits
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import bind

_PATIENCE_S = 20
_LIMITS = HttpLimits(
    header_timeout_s=_PATIENCE_S,
    header_bytes_max=16384,
    keep_alive_s=_PATIENCE_S,
    write_timeout_s=_PATIENCE_S,
    connections_max=100,
)
_LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_QUICK_CUTS = 3


class _Recorder:
    """An application that answers and records every request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, bytes]] = []

    async def __call__(self, exchange: Exchange) -> None:
        try:
            body = exchange.body
            if body is None:
                body = await exchange.receive_body(lambda size: None)
        except ClientDisconnected:
            return
        except TollkeeperError as error:
            rendered = render_error(error, "id")
            exchange.answer(rendered.status, rendered.headers, rendered.body)
            return
        self.seen.append((exchange.head.method, exchange.head.path, body))
        exchange.answer(200, b"content-length: 2\r\n", b"ok")


@asynccontextmanager
async def _serving(app: _Recorder) -> AsyncIterator[tuple[str, int]]:
    server = HttpServer(app, _LIMITS)
    listener = bind("127.0.0.1", 0, setting="test")
    address = listener.getsockname()[:2]
    await server.start(listener)
    try:
        yield address
    finally:
        await server.drain(0)


async def _exchange(address: tuple[str, int], *segments: bytes) -> bytes:
    """Sends the segments one by one and reads until the server closes."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(connection, address)
        # The server may refuse and close before everything is sent or read.
        with suppress(ConnectionError):
            for segment in segments:
                await loop.sock_sendall(connection, segment)
                # The server runs in this event loop. It reads the segment in these turns.
                for _ in range(5):
                    await asyncio.sleep(0)
        received = b""
        async with asyncio.timeout(_PATIENCE_S):
            with suppress(ConnectionError):
                while piece := await loop.sock_recv(connection, 65536):
                    received += piece
    return received


def _statuses(received: bytes) -> list[int]:
    """Returns the statuses of all answers. Checks that there are no bytes between or after the answers."""
    statuses = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        line, *headers = head.split(b"\r\n")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        fields = dict(header.split(b": ", 1) for header in headers)
        assert len(fields) == len(headers), "a header occurs twice"
        length = int(fields[b"content-length"])
        assert len(rest) >= length
        if int(status) != 200:
            assert fields[b"x-request-id"] in rest[:length]
        received = rest[length:]
        statuses.append(int(status))
    return statuses


async def _check(app: _Recorder, address: tuple[str, int], case: Case, *segments: bytes) -> None:
    app.seen.clear()
    last = [] if case.closes else [_LAST]
    statuses = _statuses(await _exchange(address, *segments, *last))
    assert statuses == [*case.statuses, *(200 for _ in last)], segments
    assert app.seen == [*case.seen, *(("GET", b"/last", b"") for _ in last)], segments


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
async def test_case(case: Case, proof: Proof) -> None:
    """Checks that each request gets one answer if it is sent whole, in two segments, and byte by byte."""
    app = _Recorder()
    places = range(1, len(case.raw))
    # A long request is cut only at some of its bytes.
    cuts = min(len(places), proof.size(quick=_QUICK_CUTS, long=500))
    async with _serving(app) as address:
        await _check(app, address, case, case.raw)
        for at in random.Random(case.name).sample(places, cuts):
            await _check(app, address, case, case.raw[:at], case.raw[at:])
        if len(case.raw) < 500:
            await _check(app, address, case, *(bytes([byte]) for byte in case.raw))
    proof.count("raw requests, cut", cuts)


@each("case", [case for case in CORPUS if not case.closes], ids=lambda case: case.name)
async def test_case_again(case: Case) -> None:
    """Checks that the same bytes get the same answer a second and a third time, because the server may
    recognize a head that it has parsed before."""
    app = _Recorder()
    thrice = Case(case.name, case.raw * 3, case.statuses * 3, case.seen * 3)
    async with _serving(app) as address:
        await _check(app, address, thrice, case.raw, case.raw, case.raw)


async def test_a_case_behind_a_case(proof: Proof) -> None:
    """Sends accepted cases in random order on one connection. Each is answered as if it were alone."""
    accepted = [case for case in CORPUS if not case.closes]
    app = _Recorder()
    rounds = proof.size(quick=20, long=2000)
    async with _serving(app) as address:
        for seed in range(rounds):
            chosen = random.Random(seed).choices(accepted, k=4)
            whole = Case(
                f"seed {seed}",
                b"".join(case.raw for case in chosen),
                tuple(status for case in chosen for status in case.statuses),
                tuple(seen for case in chosen for seen in case.seen),
            )
            at = random.Random(seed).randrange(1, len(whole.raw))
            await _check(app, address, whole, whole.raw[:at], whole.raw[at:])
    proof.count("sequences of raw requests", rounds)
