"""Tests that the committed OpenAPI document is the generated one, and that it is valid and complete."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs

from tollkeeper import __version__
from tollkeeper.api.openapi import document
from tollkeeper.api.routes import ROUTES

_COMMITTED = Path(__file__).parents[2] / "openapi.json"


def test_committed_document_is_current() -> None:
    committed = json.loads(_COMMITTED.read_text())
    assert committed == json.loads(json.dumps(document())), "run `make openapi`"


def test_version_and_security_schemes() -> None:
    found = document()
    assert found["openapi"].startswith("3.1")
    assert found["info"]["version"] == __version__ == "0.2.0"
    schemes = found["components"]["securitySchemes"]
    assert {"customerKey", "customerHeaderKey"} <= set(schemes)
    assert schemes["customerHeaderKey"] | {"description": ""} == {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "",
    }


def test_every_route_is_described() -> None:
    paths = document()["paths"]
    described = {
        (method.upper(), path) for path, operations in paths.items() for method in operations
    }
    assert described == {(endpoint.method, endpoint.path) for endpoint in ROUTES}


def test_every_schema_is_a_json_schema() -> None:
    for name, schema in document()["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid(schema), name


def test_every_error_body_is_the_envelope() -> None:
    for operations in document()["paths"].values():
        for operation in operations.values():
            errors = {code: body for code, body in operation["responses"].items() if code != "200"}
            assert {"400", "401", "403", "500", "503"} <= set(errors)
            for body in errors.values():
                schema = body["content"]["application/json"]["schema"]
                assert "ErrorEnvelope" in schema["allOf"][0]["$ref"]
                assert "X-Request-ID" in body["headers"]


# The errors that the document must describe. For endpoints other than chat, the interface gives
# only their number. For organization routes it is ten: chat's errors that can occur there.
_CHAT = {400, 401, 402, 403, 404, 409, 413, 415, 422, 429, 500, 501, 502, 503, 504}
_ORGANIZATION = {400, 401, 403, 404, 409, 413, 415, 429, 500, 503}
_AREAS = [
    *("Health", "Models", "Inference", "Credits", "Organization", "Projects", "Project keys"),
    *("Admin keys", "Spending limits", "Reports", "Policies"),
]


def _operations() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path, operation)
        for path, operations in document()["paths"].items()
        for operation in operations.values()
    ]


def test_every_error_that_an_endpoint_can_answer_is_described() -> None:
    for path, operation in _operations():
        described = {int(status) for status in operation["responses"]}
        if path in ("/v1/chat/completions", "/v1/responses"):
            assert described >= _CHAT, path
        elif path.startswith("/v1/organization/") and "requestBody" in operation:
            assert described >= _ORGANIZATION, path


def test_where_waiting_helps_the_time_is_described() -> None:
    for path, operation in _operations():
        for status, response in operation["responses"].items():
            assert ("Retry-After" in response["headers"]) == (status in ("429", "503")), path


def test_the_areas_are_listed_in_the_order_of_the_interface() -> None:
    tags = document()["tags"]
    assert [tag["name"] for tag in tags] == _AREAS
    used = {tag for _, operation in _operations() for tag in operation["tags"]}
    assert used == {tag["name"] for tag in tags if "description" not in tag}
