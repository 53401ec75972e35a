"""Tests the rules for the bodies of all endpoints with a body: content type, size, and valid JSON.

Other files test the same rules in detail on one of these endpoints.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.http.json_corpus import BAD_DOCUMENTS, BAD_VALUES
from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key, running_gateway
from tollkeeper.core.access import KeyKind
from tollkeeper.faces.endpoint import AnyEndpoint
from tollkeeper.faces.routes import ROUTES
from tollkeeper.http.envelope import ErrorStyle
from tollkeeper.setup.settings import Settings

_BODY_MAX = 2000
_WITH_BODY = [route for route in ROUTES if route.takes_body]
_OTHER_TYPES = (
    *("text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data"),
    *("application/json; charset=utf-16", "application/problem+json", "*/*", ""),
)

every_endpoint = pytest.mark.parametrize("endpoint", _WITH_BODY, ids=lambda route: route.operation)


@pytest.fixture(scope="module")
async def small(settings: Settings, conninfo: str) -> AsyncIterator[Gateway]:
    limits = settings.limits.model_copy(update={"body_bytes": _BODY_MAX})
    async with running_gateway(settings.model_copy(update={"limits": limits}), conninfo) as gateway:
        yield gateway


@pytest.fixture(scope="module")
async def acme(small: Gateway) -> Tenant:
    return await small.make_tenant()


async def _send(
    gateway: Gateway,
    tenant: Tenant,
    endpoint: AnyEndpoint,
    content: bytes,
    content_type: str | None = "application/json",
) -> httpx2.Response:
    key = tenant.as_admin if endpoint.key_kind is KeyKind.ADMIN else tenant.as_customer
    given = {} if content_type is None else {"Content-Type": content_type}
    path = endpoint.path.format(policy_id="pol_none", project_id=tenant.project_id)
    headers = {**key, **idempotency_key(), **given}
    return await gateway.client.request(endpoint.method, path, content=content, headers=headers)


def _assert_refused(
    answer: httpx2.Response, endpoint: AnyEndpoint, status: int, code: str, param: str | None = None
) -> None:
    assert_error(answer, status, code, param)
    envelope = {"error"} if endpoint.error_style is ErrorStyle.USUAL else {"type", "error"}
    assert set(answer.json()) == envelope


def test_there_are_seven() -> None:
    assert len(_WITH_BODY) == 7


@every_endpoint
async def test_any_other_content_type(small: Gateway, acme: Tenant, endpoint: AnyEndpoint) -> None:
    for content_type in (*_OTHER_TYPES, None):
        answer = await _send(small, acme, endpoint, b"{}", content_type)
        _assert_refused(answer, endpoint, 415, "unsupported_media_type")


@every_endpoint
async def test_size(small: Gateway, acme: Tenant, endpoint: AnyEndpoint) -> None:
    """Tests that a body at the size limit is decoded (its first field is missing), and a larger body is not."""
    answer = await _send(small, acme, endpoint, b"{}" + b" " * (_BODY_MAX - 2))
    first = _required(endpoint)
    _assert_refused(answer, endpoint, 400, "invalid_request", first)
    answer = await _send(small, acme, endpoint, b"{}" + b" " * (_BODY_MAX - 1))
    _assert_refused(answer, endpoint, 413, "payload_too_large")


def _required(endpoint: AnyEndpoint) -> str:
    return {"policy_edit": "revision", "policy_pause": "revision"}.get(
        endpoint.operation, "model" if endpoint.key_kind is KeyKind.PROJECT else "name"
    )


@every_endpoint
async def test_what_is_no_json_object(small: Gateway, acme: Tenant, endpoint: AnyEndpoint) -> None:
    bodies = [
        *(body for body in (*BAD_DOCUMENTS, *BAD_VALUES) if len(body) <= _BODY_MAX),
        b"[" * 1000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b"\xef\xbb\xbf{}",
        json.dumps({_required(endpoint): 1}).encode("utf-16"),
    ]
    answers = await asyncio.gather(*(_send(small, acme, endpoint, body) for body in bodies))
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.status_code == 400, (body[:100], answer.text)
        assert answer.json()["error"]["code"] == "invalid_request", body[:100]


@every_endpoint
async def test_two_of_one_name(small: Gateway, acme: Tenant, endpoint: AnyEndpoint) -> None:
    """Tests that a duplicate field is rejected, because parsers disagree about which value counts."""
    name = _required(endpoint)
    whole = {
        "model": "example/chat-small",
        "messages": [{"role": "user", "content": "a"}],
        "input": "a",
        "name": "n",
        "rule": "r?",
        "revision": 1,
    }
    fields = [field for field in whole if field in endpoint.body.__struct_fields__]
    body = {field: whole[field] for field in fields}
    if "revision" in body:
        body = {"revision": 1}
    written = json.dumps(body)[:-1] + f", {json.dumps(name)}: {json.dumps(whole[name])}}}"
    answer = await _send(small, acme, endpoint, written.encode())
    _assert_refused(answer, endpoint, 400, "invalid_request", name)
