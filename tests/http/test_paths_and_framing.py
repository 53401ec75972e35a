"""Tests the HTTP layer below the endpoints: paths, methods, framing, content types and the error format."""

from uuid import RFC_4122, UUID

import pytest

from tests.http.raw_http import (
    CREATE_POLICY,
    LIST_KEYS,
    POLICY,
    admin_headers,
    ask,
    json_headers,
    raw_connection,
)
from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key
from tests.support.tables import each
from tollkeeper.core.runtime.request_ids import new_request_id_text
from tollkeeper.faces.endpoint import AnyEndpoint
from tollkeeper.faces.routes import ROUTES

_END = b"\r\n"


@pytest.fixture(scope="module")
async def acme(gateway: Gateway) -> Tenant:
    """Creates a tenant that the tests share."""
    return await gateway.make_tenant()


@each(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v2/organization/costs",
        "/V1/organization/costs",
        "/v1/organization/costs/",
        "//v1/organization/costs",
        "/v1//organization/costs",
        "/v1/./organization/costs",
        "/v1/x/../organization/costs",
        "/v1/organization/%63osts",
        "/v1/organization%2Fcosts",
        "/v1/organization/costs;x=1",
        "/v1/organization/policies/",
        "/v1/organization/policies//pause",
        "/healthz",
        "/metrics",
        "/docs",
        "/openapi.json",
        "/v1/organization/projects",
        "/v1/organization/usage/completions",
    ],
)
async def test_unknown_path(gateway: Gateway, acme: Tenant, path: str) -> None:
    start = f"GET {path} HTTP/1.1\r\n".encode()
    answer = await ask(gateway, start, admin_headers(acme), _END)
    answer.assert_error(404, "not_found")
    assert answer.json()["error"]["type"] == "not_found_error"


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


@each("endpoint", ROUTES, ids=lambda route: route.operation)
async def test_wrong_method(gateway: Gateway, endpoint: AnyEndpoint) -> None:
    allowed = sorted(route.method for route in ROUTES if route.path == endpoint.path)
    allowed = sorted([*allowed, "HEAD"] if "GET" in allowed else allowed)
    path = endpoint.path.replace("{", "").replace("}", "")
    for method in _METHODS:
        if method not in allowed:
            answer = await gateway.client.request(method, path)
            assert_error(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == ", ".join(allowed)


async def test_head_is_a_get_without_its_body(gateway: Gateway, acme: Tenant) -> None:
    async with raw_connection(gateway) as connection:
        request = LIST_KEYS.replace(b"GET", b"HEAD") + admin_headers(acme) + _END
        await connection.send(request, LIST_KEYS, admin_headers(acme), _END)
        first = await connection.answer(to_head=True)
        assert first.status == 200
        assert UUID(first.headers["x-request-id"]).version == 7
        second = await connection.answer()
        assert second.status == 200
        assert first.headers["content-length"] == second.headers["content-length"]
        assert first.headers["content-type"] == second.headers["content-type"]


async def test_head_where_nothing_can_be_read(gateway: Gateway, acme: Tenant) -> None:
    async with raw_connection(gateway) as connection:
        refused = CREATE_POLICY.replace(b"POST", b"HEAD") + admin_headers(acme) + _END
        stranger = LIST_KEYS.replace(b"GET", b"HEAD") + b"Host: x\r\n\r\n"
        await connection.send(refused, stranger, LIST_KEYS, admin_headers(acme), _END)
        first = await connection.answer(to_head=True)
        assert (first.status, first.headers["allow"]) == (405, "POST")
        assert (await connection.answer(to_head=True)).status == 401
        assert (await connection.answer()).status == 200


# Ambiguous requests. They are rejected before an endpoint gets them, and the connection is closed.
_UNCLEAR_HEADERS = {
    "length and chunks": b"Content-Length: 24\r\nTransfer-Encoding: chunked\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 24\r\n",
    "two equal lengths": b"Content-Length: 24\r\nContent-Length: 24\r\n",
    "two lengths": b"Content-Length: 24\r\nContent-Length: 0\r\n",
    "list of lengths": b"Content-Length: 24, 24\r\n",
    "negative length": b"Content-Length: -1\r\n",
    "signed length": b"Content-Length: +24\r\n",
    "hexadecimal length": b"Content-Length: 0x18\r\n",
    "length of 10^30": b"Content-Length: 1" + b"0" * 30 + _END,
    "space before the colon": b"Content-Length : 24\r\n",
    "unknown coding": b"Transfer-Encoding: xchunked\r\n",
    "identity coding": b"Transfer-Encoding: identity\r\n",
    "chunked is not last": b"Transfer-Encoding: chunked, identity\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "folded header": b"X-A: b\r\n c\r\n",
    "bare CR": b"X-A: b\rc\r\n",
    "bare LF": b"X-A: b\nX-B: c\r\n",
    "NUL in a value": b"X-A: b\x00c\r\n",
    "NUL in a name": b"X\x00A: b\r\n",
    "space in a name": b"X A: b\r\n",
    "no colon": b"XA\r\n",
    "no name": b": b\r\n",
}


@each("case", _UNCLEAR_HEADERS)
async def test_unclear_framing(gateway: Gateway, acme: Tenant, case: str) -> None:
    async with raw_connection(gateway) as connection:
        await connection.send(
            CREATE_POLICY, json_headers(acme), _UNCLEAR_HEADERS[case], _END, POLICY
        )
        (await connection.answer()).assert_error(400, "invalid_request")
        assert await connection.rest() == b"", "one answer, and no second request was seen"


_UNCLEAR_STARTS = {
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "version 1.2": b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
    "version 3": b"GET / HTTP/3.0\r\nHost: x\r\n\r\n",
    "lower-case version": b"GET / http/1.1\r\nHost: x\r\n\r\n",
    "unknown method": b"FROB / HTTP/1.1\r\nHost: x\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no path": b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes in the path": "GET /v1/models/é HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "NUL in the path": b"GET /v1/models/\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "bare LF lines": b"GET / HTTP/1.1\nHost: x\n\n",
    "header before headers": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    "not HTTP": b"hello\r\n\r\n",
}


@each("case", _UNCLEAR_STARTS)
async def test_unclear_start(gateway: Gateway, case: str) -> None:
    async with raw_connection(gateway) as connection:
        await connection.send(_UNCLEAR_STARTS[case])
        (await connection.answer()).assert_error(400, "invalid_request")
        assert await connection.rest() == b""


_BAD_CHUNKS = {
    "no hexadecimal": b"zz\r\n",
    "negative": b"-2\r\n{}\r\n0\r\n\r\n",
    "too large": b"ffffffffffffffffff\r\n",
    "bare LF": b"18\n" + POLICY + b"\n0\n\n",
    "longer than it says": b"2\r\n" + POLICY + b"\r\n0\r\n\r\n",
}


@each("case", _BAD_CHUNKS)
async def test_bad_chunk(gateway: Gateway, acme: Tenant, case: str) -> None:
    async with raw_connection(gateway) as connection:
        chunked = b"Transfer-Encoding: chunked\r\n\r\n"
        await connection.send(CREATE_POLICY, json_headers(acme), chunked, _BAD_CHUNKS[case])
        (await connection.answer()).assert_error(400, "invalid_request")
        assert await connection.rest() == b""


async def test_bytes_after_the_body_are_no_second_request(gateway: Gateway, acme: Tenant) -> None:
    async with raw_connection(gateway) as connection:
        await connection.send(
            CREATE_POLICY, json_headers(acme), b"Content-Length: 23\r\n\r\n", POLICY, b"GET /"
        )
        answers = await connection.rest()
    assert answers.count(b"HTTP/1.1 ") == 1
    assert answers.startswith(b"HTTP/1.1 400 ")


@each(
    ("hosts", "version", "status"),
    [
        ([], b"1.1", 400),
        ([b"x"], b"1.1", 200),
        ([b"x", b"x"], b"1.1", 400),
        ([b"x", b"y"], b"1.1", 400),
        ([], b"1.0", 200),
        ([b"x", b"y"], b"1.0", 400),
        ([b"x/v1/health?"], b"1.1", 400),
    ],
)
async def test_host(
    gateway: Gateway, acme: Tenant, hosts: list[bytes], version: bytes, status: int
) -> None:
    lines = b"".join(b"Host: " + host + _END for host in hosts)
    key = f"Authorization: Bearer {acme.admin_key}\r\n\r\n".encode()
    answer = await ask(gateway, LIST_KEYS.replace(b"1.1", version), lines, key)
    assert answer.status == status
    if status == 400:
        answer.assert_error(400, "invalid_request")


@each("host", [b"x", b"x.example:8080", b"[::1]:80", b""])
async def test_host_decides_nothing_about_the_credential(gateway: Gateway, host: bytes) -> None:
    answer = await ask(gateway, LIST_KEYS, b"Host: " + host + b"\r\n\r\n")
    answer.assert_error(401, "invalid_api_key")


@each("host", [b"x/v1/models/a", b"x?", b"evil#@x"])
async def test_host_that_is_none_is_refused(gateway: Gateway, host: bytes) -> None:
    answer = await ask(gateway, LIST_KEYS, b"Host: " + host + b"\r\n\r\n")
    answer.assert_error(400, "invalid_request")


async def test_absolute_form_reaches_the_same_route(gateway: Gateway, acme: Tenant) -> None:
    start = LIST_KEYS.replace(b"/v1", b"http://elsewhere.example/v1")
    assert (await ask(gateway, start, admin_headers(acme), _END)).status == 200
    (await ask(gateway, start, b"Host: x\r\n\r\n")).assert_error(401, "invalid_api_key")


_CONTENT_TYPES = [
    (b"application/json", True),
    (b"Application/JSON", True),
    (b"application/json; charset=utf-8", True),
    (b"application/json;charset=UTF-8", True),
    (b'application/json; charset="utf-8"', True),
    (b"application/json; charset=utf8", True),
    (b"application/json;", True),
    (b"application/json; charset=utf-16", False),
    (b"application/json; charset=latin-1", False),
    (b"application/json; charset=", False),
    (b"application/jsonx", False),
    (b"application/json-patch+json", False),
    (b"application/ld+json", False),
    (b"text/json", False),
    (b"text/plain", False),
    (b"application/x-www-form-urlencoded", False),
    (b"multipart/form-data; boundary=x", False),
    (b"application/json, text/plain", False),
    (b"*/*", False),
    (b"", False),
]


@each(("content_type", "accepted"), _CONTENT_TYPES)
async def test_content_type(
    gateway: Gateway, acme: Tenant, content_type: bytes, *, accepted: bool
) -> None:
    headers = [
        (b"Authorization", f"Bearer {acme.admin_key}".encode()),
        (b"Idempotency-Key", idempotency_key()["Idempotency-Key"].encode()),
        (b"Content-Type", content_type),
    ]
    answer = await gateway.client.post("/v1/organization/policies", content=POLICY, headers=headers)
    if accepted:
        assert answer.status_code == 200, answer.text
    else:
        assert_error(answer, 415, "unsupported_media_type")


async def test_missing_and_repeated_content_type(gateway: Gateway, acme: Tenant) -> None:
    length = b"Content-Length: 24\r\n\r\n"
    for types in (b"", b"Content-Type: application/json\r\n" * 2):
        head = admin_headers(acme) + b"Idempotency-Key: 12345678\r\n" + types
        answer = await ask(gateway, CREATE_POLICY, head, length, POLICY)
        answer.assert_error(415, "unsupported_media_type")


@each("coding", [b"gzip", b"br", b"deflate", b"identity, gzip", b"x"])
async def test_encoded_body(gateway: Gateway, acme: Tenant, coding: bytes) -> None:
    head = json_headers(acme) + b"Content-Encoding: " + coding + _END
    answer = await ask(gateway, CREATE_POLICY, head, b"Content-Length: 24\r\n\r\n", POLICY)
    answer.assert_error(415, "unsupported_media_type")


async def test_identity_coding_is_no_coding(gateway: Gateway, tenant: Tenant) -> None:
    head = json_headers(tenant) + b"Content-Encoding: identity\r\n"
    answer = await ask(gateway, CREATE_POLICY, head, b"Content-Length: 24\r\n\r\n", POLICY)
    assert answer.status == 200


async def test_order_of_refusals(gateway: Gateway, acme: Tenant) -> None:
    """Tests that the key is checked first, then the permission, then the content type. A client without a
    key thus learns nothing about the other checks."""
    path = "/v1/organization/policies"
    body = {"content": b"<xml>", "headers": {"Content-Type": "text/xml"}}
    assert_error(await gateway.client.post(path, **body), 401, "invalid_api_key")  # type: ignore[arg-type]
    limited = await gateway.admin_key(acme, "policies:read")
    headers = {**limited, "Content-Type": "text/xml"}
    answer = await gateway.client.post(path, content=b"<xml>", headers=headers)
    assert_error(answer, 403, "permission_denied")
    headers = {**acme.as_admin, "Content-Type": "text/xml"}
    answer = await gateway.client.post(path, content=b"<xml>", headers=headers)
    assert_error(answer, 415, "unsupported_media_type")


async def test_query_of_a_route_that_takes_none_is_ignored(gateway: Gateway, acme: Tenant) -> None:
    path = f"/v1/organization/projects/{acme.project_id}/effective_policies?limit=1&x=%FF"
    answer = await gateway.client.get(path, headers=acme.as_admin)
    assert (answer.status_code, answer.json()) == (200, {"object": "list", "data": []})


def test_request_ids_are_never_the_same() -> None:
    """Tests more request ids than a worker needs in a second."""
    count = 100_000
    ids = {UUID(new_request_id_text()) for _ in range(count)}
    assert len(ids) == count
    assert {(one.version, one.variant) for one in ids} == {(7, RFC_4122)}


@each("given", ["11111111-1111-4111-8111-111111111111", "x", ""])
async def test_request_id_is_never_the_callers(gateway: Gateway, acme: Tenant, given: str) -> None:
    headers = {**acme.as_admin, "X-Request-ID": given}
    seen = set()
    for path in ("/v1/organization/admin_api_keys", "/v1/nothing"):
        answer = await gateway.client.get(path, headers=headers)
        request_id = answer.headers["x-request-id"]
        assert UUID(request_id).version == 7
        assert request_id != given
        seen.add(request_id)
    assert len(seen) == 2


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway, acme: Tenant) -> None:
    read = LIST_KEYS + admin_headers(acme) + _END
    lost = b"GET /nothing HTTP/1.1\r\n" + admin_headers(acme) + _END
    async with raw_connection(gateway) as connection:
        await connection.send(read, lost, read, lost, read)
        statuses = [(await connection.answer()).status for _ in range(5)]
    assert statuses == [200, 404, 200, 404, 200]


async def test_many_requests_behind_chunks_are_answered(gateway: Gateway) -> None:
    """These requests arrive in one segment with a chunked body, so all of them are parsed at once."""
    chunks = b"POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    behind = 300
    async with raw_connection(gateway) as connection:
        await connection.send(chunks, b"GET / HTTP/1.1\r\nHost:\r\n\r\n" * behind)
        for _ in range(1 + behind):
            (await connection.answer()).assert_error(404, "not_found")


async def test_connection_is_kept_and_closed_as_asked(gateway: Gateway, acme: Tenant) -> None:
    async with raw_connection(gateway) as connection:
        for _ in range(3):
            await connection.send(LIST_KEYS, admin_headers(acme), _END)
            assert (await connection.answer()).status == 200
        last = LIST_KEYS + admin_headers(acme) + b"Connection: close\r\n\r\n"
        await connection.send(last, LIST_KEYS, admin_headers(acme), _END)
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await connection.rest() == b""


async def test_request_in_single_bytes(gateway: Gateway, tenant: Tenant) -> None:
    request = CREATE_POLICY + json_headers(tenant) + b"Content-Length: 24\r\n\r\n" + POLICY
    async with raw_connection(gateway) as connection:
        for byte in request:
            await connection.send(bytes([byte]))
        assert (await connection.answer()).status == 200


async def test_upgrade_is_not_taken(gateway: Gateway, acme: Tenant) -> None:
    for protocol in (b"h2c", b"websocket"):
        upgrade = b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
        assert (await ask(gateway, LIST_KEYS, admin_headers(acme), upgrade)).status == 200
