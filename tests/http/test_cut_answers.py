"""Tests that an answer that the server cuts at the end of a drain has exactly one response head."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.http.raw_http import LIST_KEYS, RawConnection, admin_headers, raw_connection
from tests.support.gateway import Gateway, Tenant
from tests.support.tables import each
from tollkeeper.entry.descriptors import http_limits
from tollkeeper.faces.app import App
from tollkeeper.faces.endpoint import Request, Streamed
from tollkeeper.faces.routes import ROUTES
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire.organization import AdminKeyList
from tollkeeper.http.envelope import render_error
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import address_of, bind
from tollkeeper.http.sse import KEEP_ALIVE, EventStream
from tollkeeper.setup.app import http_conventions
from tollkeeper.setup.settings import Settings

_LIST = next(route for route in ROUTES if route.operation == "admin_key_list")
_RECORD = b"data: 1\n\n"
_CUT = b"data: cut\n\n"
_END = b"0\r\n\r\n"
# More bytes than the sockets and the server's buffer can hold together.
_MUCH = 16 << 20


@dataclass
class Scripted:
    """A streamed answer that runs a test's script and then waits forever."""

    script: Callable[[EventStream], Awaitable[None]]
    broken: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, stream: EventStream) -> None:
        await self.script(stream)
        self.reached.set()
        await asyncio.Event().wait()

    def failure(self, error: Exception) -> bytes:
        if self.broken:
            raise RuntimeError("no record can be made")
        assert render_error(error, "id").status == 503
        return _CUT


@asynccontextmanager
async def _asking(
    gateway: Gateway, tenant: Tenant, settings: Settings, result: Scripted | None
) -> AsyncIterator[tuple[RawConnection, HttpServer]]:
    """Yields a connection that has requested the result, and the server that is about to send it. If
    `result` is None, the server sends a list with much data in its headers."""
    asked = asyncio.Event()

    async def handle(
        _services: ApiServices, request: Request[None, Any]
    ) -> AdminKeyList | Streamed:
        asked.set()
        if result is not None:
            return Streamed(result)
        request.further_headers = b"x-large: %b\r\n" % (b"x" * _MUCH)
        return AdminKeyList(object="list", data=[], first_id=None, last_id=None, has_more=False)

    endpoint = replace(_LIST, handle=handle)
    server = HttpServer(
        App(gateway.services, http_conventions(settings), [endpoint]), http_limits()
    )
    listener = bind("127.0.0.1", 0, setting="test")
    await server.start(listener)
    reached = replace(gateway, base_url=f"http://{address_of(listener)}")
    async with raw_connection(reached) as connection:
        await connection.send(LIST_KEYS, admin_headers(tenant), b"\r\n")
        try:
            await asked.wait()
            yield connection, server
        finally:
            await server.drain(0)


async def _write_one(stream: EventStream) -> None:
    await stream.write(_RECORD)


async def _keep_alive(stream: EventStream) -> None:
    """Imitates a silence that is so long that the stream starts with a comment."""
    stream.mark_held_back()
    stream.keep_alive()
    stream.keep_alive()


@each(
    ("script", "begin"), [(_write_one, _RECORD), (_keep_alive, KEEP_ALIVE)], ids=["wrote", "kept"]
)
async def test_a_started_stream_ends_with_its_error_record(
    gateway: Gateway,
    tenant: Tenant,
    settings: Settings,
    script: Callable[[EventStream], Awaitable[None]],
    begin: bytes,
) -> None:
    answer = Scripted(script)
    async with _asking(gateway, tenant, settings, answer) as (caller, server):
        await answer.reached.wait()
        await server.drain(0)
        received = await caller.rest()
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1" not in body
    pieces = [begin, _CUT]
    assert body == b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + _END


async def test_a_stream_that_has_not_started_is_refused_in_the_envelope(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    async def nothing(_stream: EventStream) -> None:
        pass

    answer = Scripted(nothing)
    async with _asking(gateway, tenant, settings, answer) as (caller, server):
        await answer.reached.wait()
        await server.drain(0)
        refused = await caller.answer()
        assert await caller.rest() == b""
    refused.assert_error(503, "service_unavailable")


@each("writes_on", [True, False])
async def test_a_stream_whose_reader_is_slow_is_closed_without_a_record(
    gateway: Gateway, tenant: Tenant, settings: Settings, writes_on: bool
) -> None:
    record = b"data: " + b"x" * _MUCH + b"\n\n"
    written = asyncio.Event()

    async def much(stream: EventStream) -> None:
        await stream.write(record)
        written.set()
        if writes_on:
            await stream.write(_RECORD)

    async with _asking(gateway, tenant, settings, Scripted(much)) as (caller, server):
        await written.wait()
        # The drain does not wait for the client, so it ends before the client reads.
        await server.drain(0)
        received = await caller.rest()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b"HTTP/1.1") == 1
    assert received.endswith(record + b"\r\n")


async def test_what_writes_on_after_the_cut_is_not_disturbed(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    """Tests that writes after the cut have no effect. A call continues in its own task until it is settled."""
    streams: list[EventStream] = []

    async def write_one(stream: EventStream) -> None:
        streams.append(stream)
        await stream.write(_RECORD)

    answer = Scripted(write_one)
    async with _asking(gateway, tenant, settings, answer) as (caller, server):
        await answer.reached.wait()
        await server.drain(0)
        await streams[0].write(_RECORD)
        streams[0].keep_alive()
        streams[0].keep_alive()
        received = await caller.rest()
    assert received.count(_RECORD) == 1
    assert received.endswith(_END)


async def test_a_stream_without_a_record_for_its_failure_is_closed(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    answer = Scripted(_write_one, broken=True)
    async with _asking(gateway, tenant, settings, answer) as (caller, server):
        await answer.reached.wait()
        await server.drain(0)
        received = await caller.rest()
    assert received.count(b"HTTP/1.1") == 1
    assert received.endswith(_RECORD + b"\r\n")


async def test_a_stream_that_fails_and_has_no_record_for_it_is_closed(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    async def fail(stream: EventStream) -> None:
        await stream.write(_RECORD)
        raise RuntimeError("in the middle")

    answer = Scripted(fail, broken=True)
    async with _asking(gateway, tenant, settings, answer) as (caller, _):
        received = await caller.rest()
    assert received.count(b"HTTP/1.1") == 1
    assert received.endswith(_RECORD + b"\r\n")


async def test_a_started_reply_is_closed(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    # The response head is so large that the body has to wait for the client to read.
    async with _asking(gateway, tenant, settings, None) as (caller, server):
        await server.drain(0)
        received = await caller.rest()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b"HTTP/1.1") == 1
