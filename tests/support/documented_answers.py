"""Checks every answer of every gateway in this process against the gateway's OpenAPI document.

A test fails if one of its answers has a status, a header or a body that the document doesn't allow. The
answers are recorded where the server sends them, so it doesn't matter which client a test uses. They
are checked after the test, so that the check takes no time from a gateway under load.
"""

import json
import re
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jsonschema_rs
import pytest

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.faces.app import App
from tollkeeper.faces.openapi import HeaderNames, document
from tollkeeper.faces.routes import EXTENSION_ROUTES, ROUTES
from tollkeeper.http.envelope import render_error
from tollkeeper.http.http_exchange import HttpExchange
from tollkeeper.http.http_protocol import HttpConnection

_ROUTES = ROUTES + EXTENSION_ROUTES
# The limits of what is kept until the end of a test: further answers of one kind are not checked, and
# larger bodies only for their status and headers.
_LIKE_ANSWERS_MAX = 1000
_BODY_BYTES_MAX = 1 << 20
# Answers without a path, for `OPTIONS *` and for a client's probe.
_PATHLESS = frozenset({"*", "/"})
# Headers that belong to HTTP itself.
_HTTP_HEADERS = frozenset({"content-type", "content-length"})


class _Served(NamedTuple):
    operations: tuple[str, ...]
    names: HeaderNames


class Kind(NamedTuple):
    app: App
    method: str
    path: str
    status: int


class Answer(NamedTuple):
    headers: bytes
    # None if it is not checked, because it is large or a stream.
    body: bytes | None


_served: WeakKeyDictionary[App, _Served] = WeakKeyDictionary()
_seen: dict[Kind, list[Answer]] = {}


def _note(app: object, method: str, path: bytes, status: int, answer: Answer) -> None:
    if isinstance(app, App) and app in _served:
        alike = _seen.setdefault(Kind(app, method, path.decode("ascii"), status), [])
        if len(alike) < _LIKE_ANSWERS_MAX:
            alike.append(answer)


def pytest_configure() -> None:
    """Makes the server record its answers."""
    init, answer, start = App.__init__, HttpExchange.answer, HttpExchange.start
    refuse = HttpConnection._refuse

    def recorded_init(self: App, services: Any, conventions: Any, endpoints: Any) -> None:
        init(self, services, conventions, endpoints)
        names = HeaderNames(
            conventions.customer_key_header, conventions.session_headers, conventions.cost_header
        )
        # A test may serve a handler of its own, which has no public document.
        if {endpoint.handle for endpoint in endpoints} <= {route.handle for route in _ROUTES}:
            operations = tuple(endpoint.operation for endpoint in endpoints)
            _served[self] = _Served(operations, names)

    def recorded_answer(self: Any, status: int, headers: bytes, body: bytes) -> None:
        if not self.finished and not self._begun:
            found = Answer(headers, body if len(body) <= _BODY_BYTES_MAX else None)
            _note(self._link._state.app, self.head.method, self.head.path, status, found)
        answer(self, status, headers, body)

    def recorded_start(self: Any, status: int, headers: bytes) -> None:
        found = Answer(headers, None)
        _note(self._link._state.app, self.head.method, self.head.path, status, found)
        start(self, status, headers)

    def recorded_refuse(self: HttpConnection, error: TollkeeperError) -> None:
        path = self._refused_path()
        rendered = render_error(error, "id", self._state.error_style(path))
        found = Answer(rendered.headers, rendered.body)
        _note(self._state.app, "", path, rendered.status, found)
        refuse(self, error)

    App.__init__ = recorded_init  # type: ignore[method-assign]
    HttpExchange.answer = recorded_answer  # type: ignore[method-assign]
    HttpExchange.start = recorded_start  # type: ignore[method-assign]
    HttpConnection._refuse = recorded_refuse  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    try:
        result = yield
    finally:
        seen = dict(_seen)
        _seen.clear()
    faults = {fault for kind, answers in seen.items() for fault in faults_of(kind, answers)}
    assert not faults, "Not as documented:\n" + "\n".join(sorted(faults))
    return result


def faults_of(kind: Kind, answers: list[Answer]) -> Iterator[str]:
    """Yields what the document does not allow."""
    served = _served[kind.app]
    at_path = [
        route
        for route in _ROUTES
        if route.operation in served.operations and _pattern(route.path).fullmatch(kind.path)
    ]
    method = "GET" if kind.method == "HEAD" else kind.method
    found = [endpoint for endpoint in at_path if endpoint.method == method] or at_path
    name = f"{kind.method} {found[0].path if found else kind.path} {kind.status}"
    if not found and kind.path in _PATHLESS:
        return
    # The errors at an unknown path are the same as at any other one.
    operations = [endpoint.operation for endpoint in found] or ["model_read"]
    documents = [_responses(served)[operation] for operation in operations]
    allowed = [
        responses[str(kind.status)] for responses in documents if str(kind.status) in responses
    ]
    if not allowed:
        yield f"{name}: the status"
    for headers, body in answers if allowed else ():
        yield from (f"{name}: {fault}" for fault in _answer_faults(allowed[0], headers, body))


def _answer_faults(response: "_Response", raw_headers: bytes, body: bytes | None) -> Iterator[str]:
    lines = [line.partition(": ") for line in raw_headers.decode("latin-1").splitlines()]
    headers = {name: value for name, _, value in lines}
    for name, value in headers.items():
        validator = response.headers.get(name)
        if validator is not None:
            number = int(value) if value.isdecimal() else None
            if not (validator.is_valid(value) or validator.is_valid(number)):
                yield f"the header {name}: {value}"
        elif name not in _HTTP_HEADERS:
            yield f"the header {name}"
    yield from (f"no header {name}" for name in response.required - set(headers))
    content_type = headers.get("content-type", "").partition(";")[0]
    if content_type not in response.contents:
        yield f"the content type {content_type}"
    elif body is not None:
        error = next(response.contents[content_type].iter_errors(json.loads(body)), None)
        if error is not None:
            yield f"the body at {error.instance_path}: {error.message[:300]}"


class _Response(NamedTuple):
    headers: dict[str, Any]
    required: frozenset[str]
    contents: dict[str, Any]


@cache
def _responses(served: _Served) -> dict[str, dict[str, _Response]]:
    """Returns the responses of each operation, by status."""
    endpoints = [route for route in _ROUTES if route.operation in served.operations]
    described = document(endpoints, served.names)
    components = {"components": described["components"]}
    return {
        operation["operationId"]: {
            status: _response(response, components)
            for status, response in operation["responses"].items()
        }
        for operations in described["paths"].values()
        for operation in operations.values()
    }


def _response(response: dict[str, Any], components: dict[str, Any]) -> _Response:
    headers = {name.lower(): header for name, header in response["headers"].items()}
    return _Response(
        {name: jsonschema_rs.validator_for(header["schema"]) for name, header in headers.items()},
        frozenset(name for name, header in headers.items() if header["required"]),
        {
            kind: jsonschema_rs.validator_for({**content["schema"], **components})
            for kind, content in response["content"].items()
        },
    )


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{model\}", ".+", re.sub(r"\{(?!model)\w+\}", "[^/]+", path)))
