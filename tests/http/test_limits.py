"""Tests the limits for sizes and times of requests, with clients that send slowly, wait or disconnect."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager

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
from tests.support.tables import each
from tollkeeper.setup.settings import Settings

_PATIENT_S = 60
_END = b"\r\n"
_BODY_MAX = 2048
_HEADER_MAX = 16384
_TIMEOUT_S = 0.4
_KEEP_ALIVE_S = 1
# The delay after a timeout that is allowed on a busy machine.
_SLACK_S = 5
# Longer than every timeout of the quick gateway.
_PATIENCE_S = 3


@pytest.fixture(scope="module")
async def quick(settings: Settings, conninfo: str) -> AsyncIterator[Gateway]:
    """Runs a gateway with short timeouts and small limits."""
    limits = settings.limits.model_copy(update={"body_bytes": _BODY_MAX})
    small = settings.model_copy(update={"limits": limits})
    with _waiting(_TIMEOUT_S, header_bytes_max=_HEADER_MAX):
        async with running_gateway(small, conninfo) as gateway:
            yield gateway


def _waiting(body_timeout_s: float, **limits: int) -> AbstractContextManager[None]:
    return constants(
        {
            "entry.descriptors.HttpLimits": {"header_timeout_s": _TIMEOUT_S, **limits},
            "entry.descriptors.KEEP_ALIVE_S": _KEEP_ALIVE_S,
            "setup.app.HttpConventions": {"body_timeout_s": body_timeout_s},
        }
    )


@pytest.fixture(scope="module")
async def acme(quick: Gateway) -> Tenant:
    return await quick.make_tenant()


def _creation(tenant: Tenant) -> bytes:
    """Returns the head of a new request that creates a policy, without its framing headers."""
    return CREATE_POLICY + json_headers(tenant, idempotency_key()["Idempotency-Key"])


async def _is_closed_on(connection: RawConnection, piece: bytes) -> bool:
    """Sends a piece every tenth of a timeout. Returns True when the server closes the connection, or False
    if it does not."""
    started = time.monotonic()
    while time.monotonic() - started < _PATIENCE_S:
        try:
            await connection.send(piece)
        except ConnectionError:
            return True
        await asyncio.sleep(_TIMEOUT_S / 10)
    return False


@asynccontextmanager
async def _dripping(connection: RawConnection, piece: bytes) -> AsyncIterator[None]:
    """Sends a piece every tenth of a timeout while the block runs."""
    task = asyncio.create_task(_is_closed_on(connection, piece))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_headers_that_drip(quick: Gateway, acme: Tenant) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(LIST_KEYS, admin_headers(acme))
        async with _dripping(connection, b"X-A: b\r\n"):
            (await connection.answer()).assert_error(408, "request_timeout")


async def test_headers_that_stop(quick: Gateway) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(LIST_KEYS)
        (await connection.answer()).assert_error(408, "request_timeout")
        assert await connection.rest() == b""


async def test_request_line_alone_is_not_http(quick: Gateway) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(b"GET /v1/organization/admin_api_keys\r\n")
        (await connection.answer()).assert_error(408, "request_timeout")


async def test_second_request_may_not_drip_either(quick: Gateway, acme: Tenant) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(LIST_KEYS, admin_headers(acme), _END)
        assert (await connection.answer()).status == 200
        await connection.send(LIST_KEYS)
        assert await _is_closed_on(connection, b"X-A: b\r\n")


async def test_empty_lines_before_the_first_request_are_bounded(quick: Gateway) -> None:
    async with raw_connection(quick) as connection:
        assert await _is_closed_on(connection, _END)


async def test_empty_lines_between_requests_are_bounded(quick: Gateway, acme: Tenant) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(LIST_KEYS, admin_headers(acme), _END)
        assert (await connection.answer()).status == 200
        assert await _is_closed_on(connection, _END)


async def test_silent_connection_is_closed(quick: Gateway) -> None:
    async with raw_connection(quick) as connection:
        assert await connection.is_closed_within(_TIMEOUT_S + _SLACK_S)


async def test_idle_connection_is_closed(quick: Gateway, acme: Tenant) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(LIST_KEYS, admin_headers(acme), _END)
        assert (await connection.answer()).status == 200
        assert await connection.is_closed_within(_KEEP_ALIVE_S + _SLACK_S)


async def test_body_that_never_comes(quick: Gateway, acme: Tenant) -> None:
    for sent in (b"", POLICY[:5]):
        async with raw_connection(quick) as connection:
            await connection.send(_creation(acme), b"Content-Length: 24\r\n\r\n", sent)
            (await connection.answer()).assert_error(408, "request_timeout")


async def test_body_that_drips(quick: Gateway, acme: Tenant) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(_creation(acme), b"Content-Length: 2000\r\n\r\n{")
        async with _dripping(connection, b" "):
            (await connection.answer()).assert_error(408, "request_timeout")


async def test_body_that_drips_after_the_answer(quick: Gateway) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(CREATE_POLICY, b"Host: x\r\nContent-Length: 2000\r\n\r\n")
        (await connection.answer()).assert_error(401, "invalid_api_key")
        assert await _is_closed_on(connection, b" ")


async def test_answer_before_the_body_leaves_no_doubt_about_the_connection(
    quick: Gateway, acme: Tenant
) -> None:
    """Tests that the answer closes the connection, or that the client can send the rest of its body and its
    next request on the connection."""
    async with raw_connection(quick) as connection:
        await connection.send(CREATE_POLICY, b"Host: x\r\nContent-Length: 2000\r\n\r\n")
        refused = await connection.answer()
        refused.assert_error(401, "invalid_api_key")
        if refused.headers.get("connection") != "close":
            await connection.send(b" " * 2000, LIST_KEYS, admin_headers(acme), _END)
            assert (await connection.answer()).status == 200


def _padded(size: int) -> bytes:
    return POLICY + b" " * (size - len(POLICY))


def _chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@each(("size", "status"), [(_BODY_MAX - 1, 200), (_BODY_MAX, 200), (_BODY_MAX + 1, 413)])
async def test_body_size(quick: Gateway, acme: Tenant, size: int, status: int) -> None:
    body = _padded(size)
    answers = [
        await ask(quick, _creation(acme), b"Content-Length: %d\r\n\r\n" % size, body),
        await ask(quick, _creation(acme), b"Transfer-Encoding: chunked\r\n\r\n", _chunked(body, 7)),
        await ask(
            quick, _creation(acme), b"Transfer-Encoding: chunked\r\n\r\n", _chunked(body, size)
        ),
    ]
    for answer in answers:
        if status == 413:
            answer.assert_error(413, "payload_too_large")
        else:
            assert answer.status == status


@each("declared", [_BODY_MAX + 1, 10**9, 10**12, 10**13, 2**63 - 1])
async def test_declared_size_is_refused_before_a_byte_is_read(
    quick: Gateway, acme: Tenant, declared: int
) -> None:
    head = b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % declared
    answer = await ask(quick, _creation(acme), head)
    answer.assert_error(413, "payload_too_large")


async def test_endless_chunks_are_refused_while_they_come(quick: Gateway, acme: Tenant) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(_creation(acme), b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"400\r\n" + b" " * 1024 + _END
        for _ in range(3):
            await connection.send(chunk)
        (await connection.answer()).assert_error(413, "payload_too_large")


async def test_size_limit_holds_where_no_body_is_taken(quick: Gateway, acme: Tenant) -> None:
    start = b"POST /v1/organization/projects/x/archive HTTP/1.1\r\n"
    head = admin_headers(acme) + b"Content-Length: %d\r\n\r\n" % (_BODY_MAX + 1)
    (await ask(quick, start, head)).assert_error(413, "payload_too_large")


async def test_chunk_extensions_are_ignored(quick: Gateway, acme: Tenant) -> None:
    body = b"18;name=value\r\n" + POLICY + b"\r\n0;last\r\n\r\n"
    answer = await ask(quick, _creation(acme), b"Transfer-Encoding: chunked\r\n\r\n", body)
    assert answer.status == 200


async def test_trailer_is_no_header(quick: Gateway, acme: Tenant) -> None:
    head = admin_headers(acme) + b"Content-Type: application/json\r\n"
    body = b"18\r\n" + POLICY + b"\r\n0\r\nIdempotency-Key: 12345678\r\n\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    answer = await ask(quick, CREATE_POLICY, head, chunked, body)
    answer.assert_error(400, "invalid_request")


async def test_trailers_are_bounded(quick: Gateway, acme: Tenant) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(_creation(acme), b"Transfer-Encoding: chunked\r\n\r\n")
        await connection.send(b"18\r\n", POLICY, b"\r\n0\r\n")
        assert await _is_closed_on(connection, b"X-A: " + b"a" * 4096 + _END)


async def test_continue_is_said_only_to_who_may_go_on(quick: Gateway, acme: Tenant) -> None:
    head = b"Content-Length: 24\r\nExpect: 100-continue\r\n\r\n"
    async with raw_connection(quick) as connection:
        await connection.send(_creation(acme), head)
        assert (await connection.answer()).status == 100
        await connection.send(POLICY)
        assert (await connection.answer()).status == 200
    stranger = await ask(quick, CREATE_POLICY, b"Host: x\r\n", head)
    stranger.assert_error(401, "invalid_api_key")
    wrong_type = admin_headers(acme) + b"Content-Type: text/plain\r\n"
    refused = await ask(quick, CREATE_POLICY, wrong_type, head)
    refused.assert_error(415, "unsupported_media_type")


_TOO_LARGE = {
    "one long header": b"X: " + b"a" * _HEADER_MAX + _END,
    "many headers": b"X: a\r\n" * 120,
    "many long headers": (b"X: " + b"a" * 1000 + _END) * 20,
    "long name": b"a" * _HEADER_MAX + b": x\r\n",
}


# The number of headers is checked only when they are complete. Their size is checked earlier.
_UNFINISHED = [(case, b"") for case in _TOO_LARGE if case != "many headers"]


@each(("case", "end"), [*((case, _END) for case in _TOO_LARGE), *_UNFINISHED])
async def test_headers_that_are_too_large(
    quick: Gateway, acme: Tenant, case: str, end: bytes
) -> None:
    async with raw_connection(quick) as connection:
        await connection.send(LIST_KEYS, admin_headers(acme), _TOO_LARGE[case], end)
        answer = await connection.answer()
        assert answer.status == 431
        assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
        assert await connection.rest() == b""


async def test_path_counts_as_header(quick: Gateway, acme: Tenant) -> None:
    start = b"GET /v1/organization/costs?x=" + b"a" * _HEADER_MAX + b" HTTP/1.1\r\n"
    assert (await ask(quick, start, admin_headers(acme), _END)).status == 431


_COUNT = b"POST /v1/messages/count_tokens HTTP/1.1\r\n"
_MALFORMED = {
    "no host": (400, _COUNT + _END),
    "a second host": (400, _COUNT + b"Host: x\r\nHost: y\r\n\r\n"),
    "a whole URL without a host": (
        400,
        b"POST http://gateway/v1/messages/count_tokens HTTP/1.1\r\n\r\n",
    ),
    "two lengths": (400, _COUNT + b"Host: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
    "headers too large": (431, _COUNT + _TOO_LARGE["one long header"]),
    "query too long": (431, _COUNT.replace(b" HTTP", b"?beta=" + b"a" * _HEADER_MAX + b" HTTP")),
    "headers that do not end": (408, _COUNT + b"Host: x\r\n"),
    "a WebSocket": (
        426,
        _COUNT.replace(b"POST", b"GET") + b"Host: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
    ),
    "a wrong method": (405, _COUNT.replace(b"POST", b"GET") + b"Host: x\r\n\r\n"),
}


@each("case", _MALFORMED)
async def test_every_error_of_token_counting_is_one_that_messages_clients_read(
    quick: Gateway, case: str
) -> None:
    """Also the errors that the server sends before a request has an endpoint."""
    status, request = _MALFORMED[case]
    answer = await ask(quick, request)
    assert answer.status == status
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


@each("case", _MALFORMED)
async def test_no_error_of_another_path_has_the_form_of_messages(quick: Gateway, case: str) -> None:
    request = _MALFORMED[case][1].replace(b"/v1/messages/count_tokens", b"/v1/responses")
    answer = await ask(quick, request)
    assert set(answer.json()) == {"error"}
    assert "request-id" not in answer.headers


async def test_words_of_headers_that_are_too_large(quick: Gateway, acme: Tenant) -> None:
    answer = await ask(quick, LIST_KEYS, admin_headers(acme), _TOO_LARGE["one long header"], _END)
    assert answer.json()["error"]["type"] != "api_error"
    assert answer.json()["error"]["code"] != "server_error"


async def test_headers_below_the_limit(quick: Gateway, acme: Tenant) -> None:
    long = b"X: " + b"a" * (_HEADER_MAX - 500) + _END
    assert (await ask(quick, LIST_KEYS, admin_headers(acme), long, _END)).status == 200
    many = b"X: a\r\n" * 90
    assert (await ask(quick, LIST_KEYS, admin_headers(acme), many, _END)).status == 200


@each(("size", "status"), [(_HEADER_MAX, 200), (_HEADER_MAX + 1, 431)])
async def test_request_line_and_headers_at_their_limit(
    quick: Gateway, acme: Tenant, size: int, status: int
) -> None:
    head = LIST_KEYS + admin_headers(acme) + b"X: \r\n\r\n"
    filled = head.replace(b"X: ", b"X: " + b"a" * (size - len(head)))
    assert len(filled) == size
    assert (await ask(quick, filled)).status == status
    # The same headers, in two reads.
    async with raw_connection(quick) as connection:
        await connection.send(filled[:1000])
        await asyncio.sleep(_TIMEOUT_S / 10)
        await connection.send(filled[1000:])
        assert (await connection.answer()).status == status


@each(("count", "status"), [(100, 200), (101, 431)])
@each("name", [b"x: y\r\n", b"x%d: y\r\n"], ids=["one name", "many names"])
async def test_number_of_headers_at_its_limit(
    quick: Gateway, acme: Tenant, name: bytes, count: int, status: int
) -> None:
    further = count - admin_headers(acme).count(_END)
    lines = b"".join(name.replace(b"%d", b"%d" % number) for number in range(further))
    assert (await ask(quick, LIST_KEYS, admin_headers(acme), lines, _END)).status == status


def _request_tasks() -> int:
    return sum("App._answer" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_caller_who_leaves_inside_the_body_leaves_no_task(
    gateway: Gateway, tenant: Tenant
) -> None:
    """Tests a gateway with long timeouts, so that the disconnect and not a timeout ends the task."""
    before = _request_tasks()
    for leave in (RawConnection.abort, RawConnection.end_of_input):
        async with raw_connection(gateway) as connection:
            await connection.send(_creation(tenant), b"Content-Length: 2000\r\n\r\n{")
            await _until(lambda: _request_tasks() > before)
            leave(connection)
        await _until(lambda: _request_tasks() <= before)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_SLACK_S):
        while not condition():  # noqa: ASYNC110 - no event signals the end of a task
            await asyncio.sleep(0.01)


@each("drip", [b"", b"x"], ids=["silent", "drips"])
async def test_a_body_that_arrives_too_slowly_is_not_waited_for(
    settings: Settings, conninfo: str, drip: bytes
) -> None:
    """Tests that the body is rejected long before its timeout of `_PATIENT_S` seconds."""
    async with AsyncExitStack() as stack:
        stack.enter_context(_waiting(_PATIENT_S))
        gateway = await stack.enter_async_context(running_gateway(settings, conninfo))
        tenant = await gateway.make_tenant()
        async with raw_connection(gateway) as connection:
            await connection.send(_creation(tenant), b"Content-Length: 2000\r\n\r\n", b"{")
            async with _dripping(connection, drip):
                (await connection.answer()).assert_error(408, "request_timeout")
