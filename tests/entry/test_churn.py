"""Tests that connections which open and close at any moment leave no task, descriptor or memory behind."""

import asyncio
import gc
import random
import socket
import weakref
from contextlib import suppress

import psutil
import pytest

from tests.http.raw_corpus import CORPUS
from tests.support.proof import Proof
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.http.exchange import ClientDisconnected, Exchange
from tollkeeper.http.http_protocol import HttpLimits
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import bind

_PATIENCE_S = 20
_LIMITS = HttpLimits(
    header_timeout_s=1,
    header_bytes_max=16384,
    keep_alive_s=1,
    write_timeout_s=1,
    connections_max=1000,
)
_LARGE = b"POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n"
_TOGETHER = 20


async def _app(exchange: Exchange) -> None:
    """Answers a large request before its body has arrived, and other requests in many pieces."""
    if exchange.head.path == b"/large":
        exchange.answer(200, b"content-length: 2\r\n", b"ok")
        return
    with suppress(ClientDisconnected, TollkeeperError):
        if exchange.body is None:
            await exchange.receive_body(lambda size: None)
        exchange.start(200, b"")
        for _ in range(20):
            if exchange.paused:
                await exchange.resumed()
            exchange.write(b"x" * 100_000)
            await asyncio.sleep(0)
        exchange.end(b"")


async def _come_and_go(port: int, seed: int) -> None:
    chance = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = b"".join(chance.choice(CORPUS).raw for _ in range(2))
    if chance.random() < 0.3:
        raw = _LARGE + b"x" * chance.choice([10, 100_000, 400_000]) + raw
    at = chance.randrange(len(raw) + 1)
    with suppress(OSError):
        writer.write(raw[:at])
        await asyncio.sleep(chance.random() * 0.02)
        writer.write(raw[at:])
        if chance.random() < 0.5:
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.random() * 0.05):
                    await reader.read(100)
        if chance.random() < 0.3:
            writer.write_eof()
            await asyncio.sleep(chance.random() * 0.02)
        elif chance.random() < 0.5:
            writer.close()
    writer.transport.abort()


async def test_nothing_is_left(proof: Proof, caplog: pytest.LogCaptureFixture) -> None:
    server = HttpServer(_app, _LIMITS)
    listener = bind("127.0.0.1", 0, setting="test")
    port = listener.getsockname()[1]
    await server.start(listener)
    rounds = proof.size(quick=10, long=500)
    process = psutil.Process()
    descriptors, tasks = process.num_fds(), len(asyncio.all_tasks())
    for number in range(rounds):
        seeds = range(number * _TOGETHER, (number + 1) * _TOGETHER)
        await asyncio.gather(*(_come_and_go(port, seed) for seed in seeds))
    async with asyncio.timeout(_PATIENCE_S):
        while process.num_fds() > descriptors or len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await server.drain(0)
    assert not [record for record in caplog.records if record.name == "asyncio"]
    proof.count("connections that come and go", rounds * _TOGETHER)


async def test_a_connection_that_comes_while_the_server_stops_is_closed() -> None:
    server = HttpServer(_app, _LIMITS)
    listener = bind("127.0.0.1", 0, setting="test")
    await server.start(listener)
    with socket.create_connection(listener.getsockname()) as caller:
        caller.setblocking(False)
        # After these turns of the event loop, the connection is accepted, but not yet set up.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        server.stop_accepting()
        async with asyncio.timeout(_PATIENCE_S):
            assert await asyncio.get_running_loop().sock_recv(caller, 100) == b""
        await server.drain(0)


async def test_a_connection_that_ends_leaves_memory_without_a_garbage_collection() -> None:
    """Garbage collections are rare in a worker. Thousands of connections may end between two of them."""
    server = HttpServer(_app, _LIMITS)
    listener = bind("127.0.0.1", 0, setting="test")
    await server.start(listener)
    connections = server._state.connections
    gc.collect()
    gc.disable()
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        async with asyncio.timeout(_PATIENCE_S):
            while not connections:  # noqa: ASYNC110 - the server sets no event
                await asyncio.sleep(0)
            known = weakref.ref(next(iter(connections)))
            writer.write(b"GET / HTTP/1.1\r\nhost: here\r\n\r\nGET /")
            await asyncio.sleep(0.05)
            writer.transport.abort()
            while known() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        await server.drain(0)
