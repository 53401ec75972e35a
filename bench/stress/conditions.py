"""Defines kinds of hostile clients. Each kind is a context in which the clients run. It yields their number
of connections."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from bench.figures import CHAT_PATH
from bench.gateway import MODELS, Running, Tenant
from bench.load import request_bytes
from bench.processes import cpu_s
from bench.stress.faulty_upstream import POURS
from bench.stress.open_loop import OpenLoop
from bench.stress.vitals import workers
from bench.upstream import BRIEF, PACED

Condition = Callable[[Running, Tenant], AbstractAsyncContextManager[int]]

_SLOW_READERS = 200
_FULL_WITHIN_S = 60
# Workers that use less CPU time in a second are idle.
_IDLE_CPU_S = 0.05
_SLOW_WRITERS = 500
_IDLE = 3000
# About two hundred connections a second.
_CHURNING, _CHURN_PAUSE_S = 16, 0.06
# The number of connections that are opened at once. It is small, so that the listener's queue does
# not affect the measurement.
_OPENED_AT_ONCE = 64
_JUNK, _JUNK_BEGINS_S = 800, 30
_RECEIVE_BUFFER = 4096


def chat(
    tenant: Tenant, words: str = "Hello.", *, model: str = BRIEF, stream: bool = True
) -> bytes:
    body = {
        "model": MODELS[model],
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 4096,
        "stream": stream,
    }
    headers = {"authorization": f"Bearer {tenant.key}"}
    return request_bytes(CHAT_PATH, headers, json.dumps(body).encode())


@asynccontextmanager
async def slow_readers(gateway: Running, tenant: Tenant) -> AsyncIterator[int]:
    """Requests streams with much data and does not read them."""
    async with _connected(gateway.port, _SLOW_READERS) as sockets:
        loop = asyncio.get_running_loop()
        for one in sockets:
            await loop.sock_sendall(one, chat(tenant, POURS))
        await _until_full(gateway)
        yield len(sockets)


async def _until_full(gateway: Running) -> None:
    """Waits until the workers are idle, because every buffer between the upstream and the clients is full."""
    processes = workers(gateway)
    for _ in range(_FULL_WITHIN_S):
        before = cpu_s(processes)
        await asyncio.sleep(1)
        if cpu_s(processes) - before < _IDLE_CPU_S:
            return


@asynccontextmanager
async def slow_writers(gateway: Running, tenant: Tenant) -> AsyncIterator[int]:
    """Sends a byte every half second. Half of the connections are in the headers, the others in the body."""
    async with _connected(gateway.port, _SLOW_WRITERS) as sockets:
        request = chat(tenant)
        body_at = request.index(b"\r\n\r\n") + 4

        async def drip(one: socket.socket, sent: int) -> None:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(OSError):
                await loop.sock_sendall(one, request[:sent])
                for at in range(sent, len(request) - 1):
                    await asyncio.sleep(0.5)
                    await loop.sock_sendall(one, request[at : at + 1])

        async with _going_on(
            drip(one, 10 if number % 2 else body_at) for number, one in enumerate(sockets)
        ):
            yield len(sockets)


@asynccontextmanager
async def idle_connections(gateway: Running, tenant: Tenant) -> AsyncIterator[int]:
    async with _connected(gateway.port, _IDLE) as sockets:
        yield len(sockets)


@asynccontextmanager
async def churn(gateway: Running, tenant: Tenant) -> AsyncIterator[int]:
    """Opens connections and closes them at once, in the middle of a request or in the middle of an answer."""
    request = chat(tenant)

    async def come_and_go() -> None:
        loop = asyncio.get_running_loop()
        while True:
            for sent in (0, len(request) // 2, len(request)):
                with contextlib.suppress(OSError):
                    one = await _connect(gateway.port)
                    with one:
                        await loop.sock_sendall(one, request[:sent])
                        if sent == len(request):
                            await loop.sock_recv(one, 100)
                await asyncio.sleep(_CHURN_PAUSE_S)

    async with _going_on(come_and_go() for _ in range(_CHURNING)):
        yield _CHURNING


def flood(per_second: float) -> Condition:
    """Returns a condition in which one organization sends calls at this rate."""

    @asynccontextmanager
    async def run(gateway: Running, tenant: Tenant) -> AsyncIterator[int]:
        open_loop = OpenLoop(gateway.port)
        await open_loop.connect()
        requests = [chat(tenant, model=PACED, stream=False)]
        async with _going_on([_flood_on(open_loop, requests, per_second)]):
            # The overload must exist when the block begins.
            await asyncio.sleep(2)
            yield open_loop.connections_max
        open_loop.close()

    return run


@asynccontextmanager
async def junk(gateway: Running, tenant: Tenant) -> AsyncIterator[int]:
    """Sends requests with an unknown key for an unknown path, as fast as the gateway rejects them."""
    program = (sys.executable, "-m", "bench.stress.junk", str(gateway.port), str(_JUNK))
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_JUNK_BEGINS_S):
            await process.stdout.readline()
        yield _JUNK
    finally:
        process.kill()
        await process.wait()


async def _flood_on(open_loop: OpenLoop, requests: list[bytes], per_second: float) -> None:
    while True:
        await open_loop.run(requests, per_second=per_second, seconds=60)


CONDITIONS: dict[str, Condition] = {
    "callers that do not read": slow_readers,
    "callers that send a byte now and then": slow_writers,
    "idle connections": idle_connections,
    "callers that come and go": churn,
}


@asynccontextmanager
async def _connected(port: int, count: int) -> AsyncIterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            more = min(_OPENED_AT_ONCE, count - len(sockets))
            sockets += await asyncio.gather(*(_connect(port) for _ in range(more)))
        yield sockets
    finally:
        for one in sockets:
            one.close()


async def _connect(port: int) -> socket.socket:
    one = socket.socket()
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    try:
        await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
    except OSError:
        one.close()
        raise
    return one


@asynccontextmanager
async def _going_on(steps: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(step) for step in steps]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
