"""Tests that the tests' fast HTTP client gives the same answers and errors as httpx2's own transport."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.support.http_client import http_client
from tests.support.stream_server import StreamServer
from tests.support.tables import each

_ANSWERS = {
    "with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nHello",
    "in chunks": b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nHel\r\n2\r\nlo\r\n0\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nHello",
    "after an interim answer": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 No\r\nContent-Length: 1\r\n\r\nx",
    "without a body": b"HTTP/1.1 204 No Content\r\n\r\n",
    "cut in its body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHello",
    "cut in its chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nHel\r\n",
    "cut in its headers": b"HTTP/1.1 200 OK\r\nContent-Le",
    "no answer": b"",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
}


async def _seen(client: httpx2.AsyncClient, method: str) -> object:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    try:
        answer = await client.request(method, "/x?y=%20", content=pieces())
    except httpx2.TransportError as error:
        return type(error)
    return answer.status_code, answer.headers.multi_items(), answer.content


@each("name", _ANSWERS)
async def test_an_answer_is_read_like_by_httpx2(name: str) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(_ANSWERS[name])
        await writer.drain()

    async with StreamServer(serve) as server:
        url = f"http://127.0.0.1:{server.port}"
        for method in ("POST", "HEAD"):
            async with http_client(url) as ours, httpx2.AsyncClient(base_url=url) as theirs:
                assert await _seen(ours, method) == await _seen(theirs, method), (name, method)
    assert received[0] == received[1]


async def test_a_connection_is_used_again_unless_its_answer_was_left() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_ANSWERS["with a length"])
            await writer.drain()

    async with (
        StreamServer(serve) as server,
        http_client(f"http://127.0.0.1:{server.port}") as client,
    ):
        for _ in range(3):
            assert (await client.get("/")).text == "Hello"
        assert server.connections == 1
        async with client.stream("GET", "/"):
            pass
        assert (await client.get("/")).text == "Hello"
        assert server.connections == 2


async def test_silence_and_closed_ports_are_the_errors_of_httpx2() -> None:
    async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with StreamServer(say_nothing) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with http_client(url, timeout=0.1) as client:
            with pytest.raises(httpx2.ReadTimeout):
                await client.get("/")
    async with http_client(url) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get("/")
