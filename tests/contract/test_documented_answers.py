"""Tests that the check of every answer finds what the OpenAPI document doesn't allow."""

import json
from typing import Any

from tests.support.documented_answers import Answer, Kind, faults_of
from tests.support.gateway import Gateway
from tests.support.tables import each

_ID = "01a1f577-adec-7aac-b59e-64ac5b04a682"
_ERROR: dict[str, Any] = {
    "error": {
        "code": "not_found",
        "message": "m",
        "type": "not_found_error",
        "param": None,
        "request_id": _ID,
        "doc_url": None,
    }
}
_HEADERS = {"content-type": "application/json", "content-length": "1", "x-request-id": _ID}
_COUNT = "/v1/messages/count_tokens"


def _faults(
    gateway: Gateway,
    *,
    method: str = "GET",
    path: str = "/v1/models/a/b",
    status: int = 404,
    headers: dict[str, str] | None = None,
    body: Any = _ERROR,
) -> list[str]:
    assert gateway.app is not None
    lines = {**_HEADERS, **(headers or {})}.items()
    raw = "".join(f"{name}: {value}\r\n" for name, value in lines if value).encode()
    return list(faults_of(Kind(gateway.app, method, path, status), [Answer(raw, _json(body))]))


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


@each(
    "answer",
    [
        {},
        {"method": "HEAD"},
        {"path": "/v1/unknown"},
        {"path": _COUNT, "headers": {"request-id": _ID}, "body": {"type": "error", **_ERROR}},
    ],
)
async def test_what_the_document_allows(gateway: Gateway, answer: dict[str, Any]) -> None:
    assert _faults(gateway, **answer) == []


@each(
    ("answer", "fault"),
    [
        ({"status": 418}, "the status"),
        ({"headers": {"x-secret": "1"}}, "the header x-secret"),
        ({"headers": {"x-request-id": ""}}, "no header x-request-id"),
        ({"status": 429, "headers": {"retry-after": "soon"}}, "the header retry-after: soon"),
        ({"headers": {"content-type": "text/html"}}, "the content type text/html"),
        ({"body": {}}, "the body at []"),
        ({"body": {"error": {**_ERROR["error"], "code": "gone"}}}, "the body at ['error', 'code']"),
        ({"path": "/v1/unknown", "body": {"detail": "Not Found"}}, "the body at []"),
        ({"path": _COUNT}, "no header request-id"),
        ({"path": _COUNT, "headers": {"request-id": _ID}}, "the body at []"),
    ],
)
async def test_what_it_does_not_allow(gateway: Gateway, answer: dict[str, Any], fault: str) -> None:
    assert any(f": {fault}" in found for found in _faults(gateway, **answer))
