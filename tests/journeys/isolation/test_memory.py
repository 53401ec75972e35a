"""Tests that requests and connections increase a worker's resident memory only up to its limits."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.gateway_processes import installed_program
from tests.support.program import Serving
from tests.support.scripted_gateway import ScriptedGateway, chat_body
from tests.support.upstream import Upstream, chat

pytestmark = pytest.mark.slow

_MIB = 1 << 20
_BODY = 8 * _MIB
_ROOM = 96 * _MIB
# The texts of the one request that is being decoded need up to four bytes for each character.
_DECODING = 4 * _BODY
_ORGANIZATIONS = 7
_REQUESTS = 4
_PATIENCE_S = 60
_ROUND_S = 0.2
_QUIET_ROUNDS = 10
# The number of connections without a request, and the most memory for each of them.
_SILENT = 1000
_SILENT_BYTES_MAX = 6 << 10
# The number of clients that read no answers, and the most memory for each of them.
_UNREAD = 200
_UNREAD_BYTES_MAX = 48 << 10


class _DeafUpstream(Upstream):
    """A backend that accepts connections and reads nothing."""

    async def __aenter__(self) -> Self:
        self._ended = asyncio.Event()
        return await super().__aenter__()

    async def __aexit__(self, *error: object) -> None:
        self._ended.set()
        await super().__aexit__(*error)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._ended.wait()


@asynccontextmanager
async def _serving(
    tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str], upstream: Upstream
) -> AsyncIterator[tuple[psutil.Process, Serving, ScriptedGateway]]:
    async with (
        upstream,
        installed_program(
            *(tmp_path, data_dir, conninfo, upstream, compiled),
            limits={"body_bytes": _BODY},
            changed_constants={
                "setup.app._REQUESTS_BYTES_MIN": _ROOM,
                "setup.app._MAXIMUM_BODIES_MIN": 1,
            },
            model={"context_length": 100_000_000},
            # No overage bound, because calls with such a long context could exceed any bound.
            ledger={"overage_bound_usd": ""},
        ) as installed,
        installed.serving() as (running, scripted),
    ):
        (worker,) = running.workers()
        yield worker, running, scripted


def _saying(content: str) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps(chat_body(messages=messages), ensure_ascii=False).encode()


_LONG = "x" * (_BODY - 1000)
_BODIES: dict[str, Callable[[], bytes]] = {
    "letters": lambda: _saying(_LONG),
    "letters and one symbol": lambda: _saying(_LONG + "\N{GRINNING FACE}"),
    "many messages": lambda: json.dumps(
        chat_body(messages=[{"role": "user", "content": "a"}] * 33_000), separators=(",", ":")
    ).encode(),
}


class _Callers:
    def __init__(self) -> None:
        self.refused = 0

    async def call(self, scripted: ScriptedGateway, body: bytes) -> None:
        """Sends a request, and counts its refusal. Keeps the connection open until it is cancelled."""
        address = urlsplit(scripted.gateway.base_url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
            f"Authorization: Bearer {scripted.tenant.project_key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            status = (await reader.readline()).split()[1]
            assert status in (b"429", b"503"), status
            self.refused += 1
            await asyncio.Event().wait()
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("kind", _BODIES)
async def test_requests_in_progress(
    tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str], kind: str
) -> None:
    """Several organizations send as many large bodies as they can, to a backend that reads none of them."""
    upstream = _DeafUpstream(chat())
    async with _serving(tmp_path, data_dir, conninfo, compiled, upstream) as (worker, _, scripted):
        tenants = [await scripted.with_tenant() for _ in range(_ORGANIZATIONS)]
        callers, body = _Callers(), _BODIES[kind]()
        before = peak = worker.memory_info().rss
        async with asyncio.TaskGroup() as calls, asyncio.timeout(_PATIENCE_S):
            tasks = [
                calls.create_task(callers.call(tenant, body))
                for tenant in tenants
                for _ in range(_REQUESTS)
            ]
            while callers.refused + upstream.open_connections < len(tasks):
                peak = max(peak, worker.memory_info().rss)
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
        assert upstream.connections >= 1
        assert callers.refused > 0
        assert peak - before <= _ROOM + _DECODING


@pytest.mark.smoke
async def test_silent_connections(
    tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str]
) -> None:
    upstream = Upstream(chat())
    async with _serving(tmp_path, data_dir, conninfo, compiled, upstream) as (worker, running, _):
        before = worker.memory_info().rss
        with ExitStack() as stack:
            await asyncio.to_thread(_connect, stack, running, _SILENT)
            await asyncio.sleep(_ROUND_S)
            grown = worker.memory_info().rss - before
        assert grown / _SILENT <= _SILENT_BYTES_MAX


async def test_clients_that_do_not_read(
    tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str]
) -> None:
    """The clients have no key, send requests without end, and read no answer."""
    upstream = Upstream(chat())
    request = b"GET /nothing HTTP/1.1\r\nhost: gateway\r\n\r\n"
    async with _serving(tmp_path, data_dir, conninfo, compiled, upstream) as (worker, running, _):
        with ExitStack() as stack:
            # The first clients make the worker load the code that all clients need.
            first = await asyncio.to_thread(_connect, stack, running, _UNREAD // 4)
            await asyncio.to_thread(_send_without_end, first, request * 1000)
            before = worker.memory_info().rss
            crowd = await asyncio.to_thread(_connect, stack, running, _UNREAD)
            await asyncio.to_thread(_send_without_end, crowd, request * 1000)
            grown = worker.memory_info().rss - before
        assert grown / _UNREAD <= _UNREAD_BYTES_MAX


def _connect(stack: ExitStack, running: Serving, number: int) -> list[socket.socket]:
    address = urlsplit(running.public)
    opened = []
    for at in range(number):
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.bind((f"127.0.1.{1 + at % 100}", 0))
        connection.connect((address.hostname, address.port))
        connection.setblocking(False)
        opened.append(connection)
    return opened


def _send_without_end(connections: list[socket.socket], data: bytes) -> None:
    """Sends the data repeatedly on each connection, until the server reads nothing more for a while."""
    sent_at = dict.fromkeys(connections, 0)
    quiet_rounds = 0
    while quiet_rounds < _QUIET_ROUNDS:
        quiet_rounds += 1
        for connection, at in sent_at.items():
            with suppress(BlockingIOError):
                sent_at[connection] = (at + connection.send(data[at:])) % len(data)
                quiet_rounds = 0
        time.sleep(_ROUND_S)
