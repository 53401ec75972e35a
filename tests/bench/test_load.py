"""Tests the upstream and the load generator of the measurements. An incomplete answer counts as a failure."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from bench.figures import WHOLE_ANSWER, Target, chat_requests, whole_stream
from bench.load import Whole, run_load
from bench.upstream import BRIEF, PACES, Upstream


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _requests(port: int, *, stream: bool) -> list[bytes]:
    return chat_requests(Target("upstream", port, 0, {BRIEF: BRIEF}, [{}]), BRIEF, stream=stream)


async def test_answers_and_streams(port: int) -> None:
    for stream, whole in ((False, WHOLE_ANSWER), (True, whole_stream(BRIEF))):
        asked = _requests(port, stream=stream)
        result = await run_load(port, asked, connections=2, count=6, whole=whole)
        assert (result.requests, result.failures, len(result.first_byte_s)) == (6, 0, 6)


async def test_an_answer_that_is_not_whole_has_failed(port: int) -> None:
    # One event more than the stream has: the pieces, the finish, the usage and the end mark.
    more = Whole(b"data:", PACES[BRIEF].pieces + 4)
    asked = _requests(port, stream=True)
    result = await run_load(port, asked, connections=1, count=2, whole=more)
    assert result.failure_message == "2 of 2 requests failed: 2 with status 200"
    result = await run_load(port, asked, connections=1, count=2, whole=Whole(b"[DONE]", 1))
    assert result.failures == 0


async def test_the_upstream_closes_on_http2_without_a_word(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
