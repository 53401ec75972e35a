"""Tests which parts of HTTP the server rejects or ignores: Upgrade, Host, versions, targets, codings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from tests.http.raw_http import (
    CREATE_POLICY,
    LIST_KEYS,
    POLICY,
    RawConnection,
    admin_headers,
    ask,
    json_headers,
    raw_connection,
)
from tests.support.constants import constants
from tests.support.gateway import Gateway, Tenant, idempotency_key, running_gateway
from tests.support.raw_caller import raw_caller
from tests.support.scripted_gateway import chat_body, scripted_gateway
from tests.support.tables import each
from tests.support.upstream import Upstream, chat
from tollkeeper.faces.request import check_content_type
from tollkeeper.http.envelope import UnsupportedMediaType
from tollkeeper.setup.settings import Settings

_END = b"\r\n"
_UPGRADES = {
    "JDK": b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n",
    "curl": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "two": b"Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n",
}


@pytest.fixture(scope="module")
async def acme(gateway: Gateway) -> Tenant:
    return await gateway.make_tenant()


def _creation(tenant: Tenant) -> bytes:
    return CREATE_POLICY + json_headers(tenant, idempotency_key()["Idempotency-Key"])


@each("name", _UPGRADES)
@each("framing", ["length", "chunks"])
@each("cut", [True, False])
async def test_upgrade_is_ignored_and_the_body_is_a_body(
    gateway: Gateway, acme: Tenant, name: str, framing: str, *, cut: bool
) -> None:
    head = _creation(acme) + _UPGRADES[name]
    if framing == "length":
        head, body = head + b"Content-Length: 24\r\n\r\n", POLICY
    else:
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        body = b"18\r\n" + POLICY + b"\r\n0\r\n\r\n"
    async with raw_connection(gateway) as connection:
        if cut:
            await connection.send(head)
            await asyncio.sleep(0.05)
            await connection.send(body)
        else:
            await connection.send(head, body)
        answer = await connection.answer()
        assert answer.status == 200, answer.body
        # The connection still uses HTTP/1.1.
        await connection.send(LIST_KEYS, admin_headers(acme), _UPGRADES[name], _END)
        assert (await connection.answer()).status == 200


@each("name", _UPGRADES)
@each("cut", [True, False])
async def test_body_after_an_upgrade_is_never_a_request(
    gateway: Gateway, acme: Tenant, name: str, *, cut: bool
) -> None:
    smuggled = LIST_KEYS + admin_headers(acme) + _END
    head = _creation(acme) + _UPGRADES[name] + b"Content-Length: %d\r\n\r\n" % len(smuggled)
    async with raw_connection(gateway) as connection:
        await connection.send(head)
        if cut:
            await asyncio.sleep(0.05)
        await connection.send(smuggled)
        (await connection.answer()).assert_error(400, "invalid_request")
        await connection.send(b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await connection.rest()).count(b"HTTP/1.1 ") == 1, "of the last request"


_BAD_HOSTS = [
    *(b"a b", b"a@b", b"a/b", b"a?b", b"a#b", b"a\\b", b'a"b', b"<a>", b"a:b", b"a:1:2", b":x"),
    *(b"a:65536", b"a:99999", b"a:-1", b"a:+1", b"a:1x", b"a:000080", b"[::1", b"::1", b"[a b]"),
    *(b"[::1]x", b"[]", b"a,b c", b"user:pass@x", "é".encode(), b"x\ty"),
]


@each("host", _BAD_HOSTS)
async def test_bad_host(gateway: Gateway, acme: Tenant, host: bytes) -> None:
    lines = admin_headers(acme).replace(b"Host: x", b"Host: " + host)
    (await ask(gateway, LIST_KEYS, lines, _END)).assert_error(400, "invalid_request")


@each("host", [b"a", b"a.b:80", b"127.0.0.1:1", b"[::1]", b"[::ffff:1.2.3.4]:65535", b"a_b", b"a:"])
async def test_good_host(gateway: Gateway, acme: Tenant, host: bytes) -> None:
    lines = admin_headers(acme).replace(b"Host: x", b"Host: " + host + b" \t")
    assert (await ask(gateway, LIST_KEYS, lines, _END)).status == 200


@each("version", [b"2.0", b"0.9", b"1.2", b"9.9", b"1", b"01.1", b"1.10"])
async def test_other_versions(gateway: Gateway, acme: Tenant, version: bytes) -> None:
    start = LIST_KEYS.replace(b"HTTP/1.1", b"HTTP/" + version)
    async with raw_connection(gateway) as connection:
        await connection.send(start, admin_headers(acme), _END)
        (await connection.answer()).assert_error(400, "invalid_request")
        assert await connection.rest() == b""


@each(
    "coding",
    [
        *(b"gzip, chunked", b"gzip,chunked", b"chunked, chunked", b"deflate, chunked", b"gzip"),
        *(b"chunked;q=1", b"chunked,", b",chunked", b"x chunked", b'"chunked"'),
    ],
)
async def test_other_codings(gateway: Gateway, acme: Tenant, coding: bytes) -> None:
    async with raw_connection(gateway) as connection:
        await connection.send(_creation(acme), b"Transfer-Encoding: " + coding + b"\r\n\r\n")
        await connection.send(b"18\r\n", POLICY, b"\r\n0\r\n\r\n")
        (await connection.answer()).assert_error(400, "invalid_request")
        assert await connection.rest() == b""


@each("coding", [b"chunked", b"Chunked", b"chunked ", b"  chunked"])
async def test_chunked_as_it_may_be_written(gateway: Gateway, acme: Tenant, coding: bytes) -> None:
    head = b"Transfer-Encoding: " + coding + b"\r\n\r\n"
    answer = await ask(gateway, _creation(acme), head, b"18\r\n", POLICY, b"\r\n0\r\n\r\n")
    assert answer.status == 200


async def test_http10_has_no_transfer_coding(gateway: Gateway, acme: Tenant) -> None:
    head = _creation(acme).replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = await ask(gateway, head, b"18\r\n", POLICY, b"\r\n0\r\n\r\n")
    answer.assert_error(400, "invalid_request")


_BAD_TARGETS = [
    *(b"/v1/organization/costs#a", b"/v1/organization/admin_api_keys?a#b", b"/#", b"#", b"*"),
    *(b"ftp://x/v1", b"http:///v1", b"http://a@x/v1", b"http://a b/v1", b"http://x:y/v1"),
    *(b"https://x:99999/v1", b"x:443", b"?x", b"v1/models", b"http://x?y"),
]


@each("target", _BAD_TARGETS)
async def test_bad_target(gateway: Gateway, acme: Tenant, target: bytes) -> None:
    start = b"GET " + target + b" HTTP/1.1\r\n"
    (await ask(gateway, start, admin_headers(acme), _END)).assert_error(400, "invalid_request")


@each("start", [b"http://x", b"HTTP://x:80", b"https://[::1]:443", b"http://y"])
async def test_absolute_form(gateway: Gateway, acme: Tenant, start: bytes) -> None:
    line = LIST_KEYS.replace(b"/v1", start + b"/v1")
    assert (await ask(gateway, line, admin_headers(acme), _END)).status == 200
    # As in every request, the Host header is required.
    (await ask(gateway, line, b"Accept: */*\r\n\r\n")).assert_error(400, "invalid_request")


async def test_options_for_the_whole_server(gateway: Gateway) -> None:
    answer = await ask(gateway, b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.status == 204
    assert answer.headers["allow"] == "DELETE, GET, HEAD, PATCH, POST"
    assert UUID(answer.headers["x-request-id"]).version == 7
    assert "content-length" not in answer.headers


async def test_stream_to_an_http10_caller_has_no_chunks(data_dir: Path, conninfo: str) -> None:
    async with (
        Upstream(chat()) as upstream,
        scripted_gateway(data_dir, conninfo, upstream) as scripted,
        raw_caller(scripted) as modern,
        raw_connection(scripted.gateway) as connection,
    ):
        await modern.ask(stream=True)
        assert "transfer-encoding: chunked" in await modern.head()
        body = await scripted.gateway.client.post(
            "/v1/chat/completions",
            json=chat_body(stream=True),
            headers=scripted.tenant.as_customer,
        )
        content = body.request.content
        key = f"Authorization: Bearer {scripted.tenant.project_key}\r\n".encode()
        await connection.send(b"POST /v1/chat/completions HTTP/1.0\r\n", key)
        await connection.send(b"Content-Type: application/json\r\n")
        await connection.send(b"Content-Length: %d\r\n\r\n" % len(content), content)
        received = await connection.rest()
    head, _, rest = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_continue_is_not_said_to_an_http10_caller(gateway: Gateway, acme: Tenant) -> None:
    head = _creation(acme).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with raw_connection(gateway) as connection:
        await connection.send(head, b"Content-Length: 24\r\nExpect: 100-continue\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.send(POLICY)
        assert (await connection.answer()).status == 200


@each(
    "content_type",
    [
        b" " * 1_000_000 + b"x",
        b"application/json" + b" " * 1_000_000 + b"x",
        b"application/json;" + b" " * 1_000_000 + b"charset" + b" " * 1_000_000,
        b"application/json;charset=" + b" " * 1_000_000 + b"utf-8" + b" " * 1_000_000 + b"x",
        b"application/json" + b";" * 1_000_000 + b"x",
    ],
)
def test_content_type_is_read_in_linear_time(content_type: bytes) -> None:
    """Tests that the time is linear. If it were quadratic, this test would not end in time."""
    with pytest.raises(UnsupportedMediaType):
        check_content_type({b"content-type": (content_type,)})


@asynccontextmanager
async def _few_connections(settings: Settings, conninfo: str) -> AsyncIterator[Gateway]:
    with constants({"entry.descriptors.CONNECTIONS_MAX": 2}):
        async with running_gateway(settings, conninfo) as gateway:
            yield gateway


async def test_connections_are_bounded(settings: Settings, conninfo: str) -> None:
    async with _few_connections(settings, conninfo) as gateway:
        tenant = await gateway.make_tenant()

        async def works(connection: RawConnection) -> bool:
            await connection.send(LIST_KEYS, admin_headers(tenant), _END)
            return (await connection.answer()).status == 200

        async with raw_connection(gateway) as first, raw_connection(gateway) as second:
            assert await first.rest() == b""
            assert await works(second)
            async with raw_connection(gateway) as third, raw_connection(gateway) as fourth:
                # Connections without an authenticated request are closed first.
                assert await third.rest() == b""
                assert await works(second)
                assert await works(fourth)
                async with raw_connection(gateway) as fifth:
                    assert await second.rest() == b""
                    assert await works(fourth)
                    assert await works(fifth)


async def test_garbage_behind_a_request_does_not_spoil_its_answer(
    gateway: Gateway, acme: Tenant
) -> None:
    """Tests bytes that are not a request and follow a valid request in the same segment."""
    for garbage, answers in ((b"}{", 1), (b"\x00", 1), (b"GET / HTTP/7\r\n\r\n", 2)):
        async with raw_connection(gateway) as connection:
            await connection.send(LIST_KEYS, admin_headers(acme), _END, garbage)
            assert (await connection.answer()).status == 200
            rest = await connection.rest()
        assert rest.count(b"HTTP/1.1 400 ") == answers - 1
        assert rest.count(b"HTTP/1.1 ") == answers - 1
