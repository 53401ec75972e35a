"""Tests that the open loop keeps its rate independently of the answers, and checks the form of refusals."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from bench.stress.open_loop import OpenLoop, percentile_ms
from bench.stress.vitals import slope_per_hour

from tests.support.stream_server import StreamServer
from tests.support.tables import each

_REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
_SERVED = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def _refusal(**changes: object) -> bytes:
    request_id = str(uuid4())
    names = ("code", "message", "type", "param", "doc_url")
    error = {**dict.fromkeys(names, "x"), "request_id": request_id, **changes}
    body = json.dumps({"error": error}).encode()
    retry = b"" if "no_retry" in changes else b"retry-after: 1\r\n"
    return (
        b"HTTP/1.1 503 Service Unavailable\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b"
        % (retry, request_id.encode(), len(body), body)
    )


@asynccontextmanager
async def _serving(answer: Callable[[int], bytes | None]) -> AsyncIterator[int]:
    """Starts a server that calls `answer` with each request's number; for None it does not answer."""
    count = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while await reader.readuntil(b"\r\n\r\n"):
            found, count = answer(count), count + 1
            if found is not None:
                writer.write(found)

    async with StreamServer(handle) as server:
        yield server.port


async def test_what_is_served_and_what_is_refused() -> None:
    async with _serving(lambda number: _refusal() if number % 4 == 3 else _SERVED) as port:
        open_loop = OpenLoop(port, connections_max=100)
        await open_loop.connect()
        found = await open_loop.run([_REQUEST], per_second=200, seconds=0.2)
        open_loop.close()
    assert (found.offered, found.not_sent, found.failures) == (40, 0, 0)
    assert len(found.served_s) == 30
    assert len(found.refused_s) == 10
    assert found.malformed == 0


@each("wrong", [{"no_retry": True}, {"more": 1}, {"request_id": "other"}])
async def test_a_refusal_that_is_none(wrong: dict[str, object]) -> None:
    async with _serving(lambda _: _refusal(**wrong)) as port:
        open_loop = OpenLoop(port, connections_max=10)
        await open_loop.connect()
        found = await open_loop.run([_REQUEST], per_second=50, seconds=0.1)
        open_loop.close()
    assert found.malformed == len(found.refused_s) == 5


async def test_requests_are_sent_while_others_wait() -> None:
    """The loop sends a request whenever a connection is free, even if the server has not answered
    the earlier requests."""
    asked = 0

    def answer(number: int) -> bytes | None:
        nonlocal asked
        asked = number + 1
        return None

    async with _serving(answer) as port:
        open_loop = OpenLoop(port, connections_max=30)
        await open_loop.connect()
        running = asyncio.create_task(open_loop.run([_REQUEST], per_second=400, seconds=0.1))
        async with asyncio.timeout(20):
            while asked < 30:  # noqa: ASYNC110 - the server sets no event
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_slopes() -> None:
    assert slope_per_hour([(0, 1.0), (10, 2.0), (20, 3.0)]) == pytest.approx(360)
    assert slope_per_hour([(0, 5.0), (10, 5.0)]) == 0
    assert slope_per_hour([(7, 5.0)]) == 0


def test_percentiles_in_milliseconds() -> None:
    assert percentile_ms([0.001 * number for number in range(1, 101)], 50) == pytest.approx(51)
    assert percentile_ms([], 99) == 0
