"""Tests that only a few requests begin in each turn of the event loop, and that their owners take turns."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.tables import each
from tollkeeper.core.runtime.fair_queue import FairTurns
from tollkeeper.http.arrivals import Arrivals
from tollkeeper.http.exchange import Exchange
from tollkeeper.http.http_protocol import HttpLimits
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import bind

_LIMITS = HttpLimits(
    header_timeout_s=20,
    header_bytes_max=16384,
    keep_alive_s=20,
    write_timeout_s=20,
    connections_max=1000,
)
_PER_TURN, _OF_ONE = 8, 4  # Requests in each turn of the event loop: of all owners, of one owner.
_PATIENCE_S = 20


class _Server:
    """A server that records each request, and the turn of the event loop in which its application is called."""

    def __init__(self, turns: FairTurns) -> None:
        self.turns = turns
        self.server = HttpServer(self._app, _LIMITS, arrivals=Arrivals(turns))
        self.began: list[str] = []
        self.began_in: Counter[int] = Counter()
        # The reads and the bytes of bodies in each turn of the event loop.
        self.reads_in: Counter[int] = Counter()
        self.bytes_in: Counter[int] = Counter()
        self._turn = 0
        self._sockets: list[socket.socket] = []
        self._ticking: asyncio.Handle | None = None

    async def _app(self, exchange: Exchange) -> None:
        name = exchange.head.path.decode()
        if name.startswith("/known"):
            exchange.recognise("known")
        self.began.append(name)
        self.began_in[self._turn] += 1
        if exchange.body is None:
            await exchange.receive_body(self._body_reader())
        exchange.answer(204, b"", b"")

    def _body_reader(self) -> Callable[[int], None]:
        received = 0

        def grow_to(size: int) -> None:
            nonlocal received
            self.reads_in[self._turn] += 1
            self.bytes_in[self._turn] += size - received
            received = size

        return grow_to

    def _tick(self) -> None:
        self._turn += 1
        self._ticking = asyncio.get_running_loop().call_soon(self._tick)

    async def connect(self, source: str = "127.0.0.1") -> socket.socket:
        one = socket.socket()
        self._sockets.append(one)
        one.setblocking(False)
        one.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", self.port))
        return one

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while len(self.began) < count:  # noqa: ASYNC110 - the application only counts
                await asyncio.sleep(0.001)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["_Server"]:
        listener = bind("127.0.0.1", 0, setting="test")
        self.port = listener.getsockname()[1]
        await self.server.start(listener)
        self._tick()
        try:
            yield self
        finally:
            assert self._ticking is not None
            self._ticking.cancel()
            for one in self._sockets:
                one.close()
            await self.server.drain(0)


def _request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()


def _chunked_request(path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"0\r\n\r\n"


_CROWD = 100
_FROM_ONE_ADDRESS = ["127.0.0.1"] * _CROWD
_FROM_MANY_ADDRESSES = [f"127.0.0.{number}" for number in range(2, 2 + _CROWD)]


async def _begun_before(server: _Server, path: str, one: socket.socket, crowd: list[str]) -> int:
    """Returns how many requests of a crowd at these addresses begin before a request that is sent last."""
    callers = [await server.connect(source) for source in crowd]
    begun = len(server.began)
    # All requests have arrived before the event loop reads any of them.
    for caller in callers:
        caller.send(_request("/crowd"))
    one.send(_request(path))
    await server.begun(begun + len(callers) + 1)
    return server.began.index(path) - begun


@each("crowd", [_FROM_ONE_ADDRESS, _FROM_MANY_ADDRESSES], ids=["one", "many"])
async def test_who_is_known_does_not_wait_behind_a_crowd(crowd: list[str]) -> None:
    async with _Server(FairTurns(_PER_TURN, _OF_ONE)).running() as server:
        known = await server.connect()
        known.send(_request("/known/1"))
        await server.begun(1)
        assert await _begun_before(server, "/known/2", known, crowd) <= _OF_ONE + 2
        assert max(server.began_in.values()) <= _PER_TURN


async def test_a_stranger_does_not_wait_behind_a_crowd_from_elsewhere() -> None:
    async with _Server(FairTurns(_PER_TURN, _OF_ONE)).running() as server:
        stranger = await server.connect("127.0.0.2")
        # Only requests that arrived before it, and those of one turn with both, begin first.
        before = await _begun_before(server, "/stranger", stranger, _FROM_ONE_ADDRESS)
        assert before <= _PER_TURN + 2


@each("is_chunked", [False, True])
async def test_requests_that_are_sent_ahead_wait_for_their_turns_too(is_chunked: bool) -> None:
    """Requests that arrive together with the end of a chunked body are parsed at once."""
    async with _Server(FairTurns(_PER_TURN, _OF_ONE)).running() as server:
        crowd = [await server.connect() for _ in range(20)]
        for number, one in enumerate(crowd):
            requests = [_request(f"/{number}/{request}") for request in range(10)]
            if is_chunked:
                requests[0] = _chunked_request(f"/{number}/0")
            one.send(b"".join(requests))
        await server.begun(200)
        assert max(server.began_in.values()) <= _PER_TURN
        for number in range(20):
            mine = [name for name in server.began if name.startswith(f"/{number}/")]
            assert mine == [f"/{number}/{request}" for request in range(10)]


async def test_bodies_in_many_parts_are_read_in_turns() -> None:
    async with _Server(FairTurns(_PER_TURN, _OF_ONE)).running() as server:
        crowd = [await server.connect() for _ in range(20)]
        for one in crowd:
            one.send(b"POST /known HTTP/1.1\r\nHost: here\r\nContent-Length: 200\r\n\r\n")
        await server.begun(20)
        for _ in range(200):
            for one in crowd:
                one.send(b"x")
            await asyncio.sleep(0)
        # The server reads each connection once before the connection waits for its turn.
        more = sum(max(0, reads - _OF_ONE) for reads in server.reads_in.values())
        assert more <= 2 * len(crowd)


async def test_only_a_few_chunks_are_parsed_in_one_turn() -> None:
    """Each chunk takes time, even if it has only one byte."""
    async with _Server(FairTurns(_PER_TURN, _OF_ONE)).running() as server:
        one = await server.connect()
        one.send(_chunked_request("/known").removesuffix(b"0\r\n\r\n"))
        await server.begun(1)
        chunks = 100_000
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.get_running_loop().sock_sendall(one, b"1\r\nx\r\n" * chunks)
            while server.bytes_in.total() < chunks:  # noqa: ASYNC110 - the application only counts
                await asyncio.sleep(0.001)
        assert max(server.bytes_in.values()) <= 2 * _OF_ONE * (16 << 10) / 6


async def test_who_leaves_while_it_waits_is_not_answered() -> None:
    turns = FairTurns(1)
    async with _Server(turns).running() as server:
        one = await _request_behind_many(server)
        one.close()
        await _all_had_their_turn(turns)
        assert server.began == []


async def test_a_server_that_stops_begins_nothing_that_waits() -> None:
    turns = FairTurns(1)
    async with _Server(turns).running() as server:
        await _request_behind_many(server)
        await server.server.drain(0)
        await _all_had_their_turn(turns)
        assert server.began == []


async def _request_behind_many(server: _Server) -> socket.socket:
    """Returns a connection whose request has arrived, and waits for its turn after other requests."""
    one = await server.connect()
    for _ in range(200):
        server.turns.wait(None, lambda: None)
    one.send(_request("/waiting"))
    for _ in range(20):
        await asyncio.sleep(0)
    return one


async def _all_had_their_turn(turns: FairTurns) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while turns:  # noqa: ASYNC110 - turns are counted
            await asyncio.sleep(0)
