"""Tests that the committed OpenAPI document is the generated one, and that it is valid and complete."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs

from tollkeeper import __version__
from tollkeeper.faces.descriptions import OWN_PROPERTIES, PARAMETERS, PROPERTIES
from tollkeeper.faces.openapi import HeaderNames, document
from tollkeeper.faces.routes import ROUTES, routes_for
from tollkeeper.http.conventions import HttpConventions

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
            expected = status in ("402", "429", "503")
            assert ("Retry-After" in response["headers"]) == expected, path


def test_errors_below_the_endpoints_are_described_where_they_can_occur() -> None:
    readable = {path for path, methods in document()["paths"].items() if "get" in methods}
    for path, operation in _operations():
        assert {"408", "413", "431"} <= set(operation["responses"]), path
        assert ("426" in operation["responses"]) == (path not in readable), path


def test_every_answer_of_token_counting_has_the_id_that_messages_clients_read() -> None:
    for path, operation in _operations():
        for status, response in operation["responses"].items():
            found = response["headers"].get("request-id")
            if path == "/v1/messages/count_tokens":
                assert found == {**found, "required": True}, status
            else:
                assert found is None, path


def test_arrays_of_a_query_are_described_in_every_form() -> None:
    parameters = {
        parameter["name"]: parameter
        for parameter in document()["paths"]["/v1/organization/costs"]["get"]["parameters"]
    }
    for name in ("project_ids", "api_key_ids", "group_by"):
        for form in (name, f"{name}[]"):
            assert (parameters[form]["style"], parameters[form]["explode"]) == ("form", True)
    validator = jsonschema_rs.validator_for(parameters["group_by[]"]["schema"])
    for values in ([], ["line_item"], ["line_item,project_id"], ["line_item", "api_key_id"]):
        assert validator.is_valid(values), values
    for values in (["day"], ["line_item,day"], ["line_item,"], ["line_item"] * 4):
        assert not validator.is_valid(values), values


def test_headers_have_the_names_that_the_operator_chose() -> None:
    found = document(ROUTES, HeaderNames("x-acme-key", ("x-sticky", "x-glue"), "x-cost"))
    assert found["components"]["securitySchemes"]["customerHeaderKey"]["name"] == "x-acme-key"
    chat = found["paths"]["/v1/chat/completions"]["post"]
    assert [parameter["name"] for parameter in chat["parameters"]] == ["x-sticky", "x-glue"]
    assert "x-cost" in chat["responses"]["200"]["headers"]
    assert "x-cost" not in found["paths"]["/v1/organization/costs"]["get"]["responses"]["200"]
    unnamed = document(ROUTES, HeaderNames(session=()))
    assert unnamed["paths"]["/v1/chat/completions"]["post"]["parameters"] == []


def test_the_areas_are_listed_in_the_order_of_the_interface() -> None:
    tags = document()["tags"]
    assert [tag["name"] for tag in tags] == _AREAS
    used = {tag for _, operation in _operations() for tag in operation["tags"]}
    assert used == {tag["name"] for tag in tags if "description" not in tag}


_EVERY_ROUTE = (
    *ROUTES,
    *routes_for(
        HttpConventions(
            body_bytes_max=1,
            requests_bytes_max=1,
            customer_key_header="x-api-key",
            session_headers=(),
            model_listing=True,
            key_usage=True,
            messages=True,
            accept_provider_specific_fields=True,
        )
    ),
)
# Names that say what the property is.
_OBVIOUS = {"id", "name", "text", "title", "token", "url"}


def _properties() -> Iterator[tuple[str, str, dict[str, Any]]]:
    schemas = document(_EVERY_ROUTE)["components"]["schemas"]
    for schema, component in schemas.items():
        for name, found in component.get("properties", {}).items():
            yield schema, name, found


def test_every_property_that_is_not_obvious_is_described() -> None:
    for schema, name, found in _properties():
        is_constant = len(found.get("enum", ())) == 1
        assert "description" in found or is_constant or name in _OBVIOUS, f"{schema}.{name}"


def test_every_parameter_and_header_is_described() -> None:
    for path, operation in _operations():
        for parameter in operation["parameters"]:
            assert parameter["description"].endswith("."), (path, parameter["name"])
        for response in operation["responses"].values():
            assert all(header["description"] for header in response["headers"].values()), path


def test_every_description_is_of_a_property_and_differs_from_the_common_one() -> None:
    properties = {(schema, name) for schema, name, _ in _properties()}
    used = {name for schema, name in properties if name not in OWN_PROPERTIES.get(schema, {})}
    assert set(PROPERTIES) <= used
    for schema, own in OWN_PROPERTIES.items():
        for name, description in own.items():
            assert (schema, name) in properties
            assert description != PROPERTIES.get(name), f"{schema}.{name}"
    found = document(_EVERY_ROUTE)["paths"].values()
    parameters = {
        parameter["name"].removesuffix("[]")
        for operations in found
        for operation in operations.values()
        for parameter in operation["parameters"]
        if parameter["in"] != "header"
    }
    assert parameters == set(PARAMETERS)
