"""Generates the OpenAPI 3.1 document from the route table and the wire types."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tollkeeper import __version__
from tollkeeper.core.access import KeyKind
from tollkeeper.core.conventions import (
    CUSTOMER_KEY_HEADER,
    MESSAGES_REQUEST_ID_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADERS,
)
from tollkeeper.core.errors import RETRY_AFTER_S_MAX
from tollkeeper.faces.descriptions import PARAMETERS, property_description
from tollkeeper.faces.endpoint import AnyEndpoint, HeaderParameter
from tollkeeper.faces.request import PATH_ID_LENGTH_MAX, SESSION_HEADER
from tollkeeper.faces.routes import ROUTES
from tollkeeper.http.envelope import ERROR_TABLE, POINTLESS_TO_RETRY, ErrorStyle
from tollkeeper.http.sse import STREAM_HEADERS
from tollkeeper.http.wire_errors import (
    ErrorEnvelope,
    MessagesErrorEnvelope,
    MessagesErrorEnvelopeWithId,
)

# OpenAPI tags, in the order of the interface.
_AREAS = (
    "Health",
    "Models",
    "Inference",
    "Credits",
    "Organization",
    "Projects",
    "Project keys",
    "Admin keys",
    "Spending limits",
    "Reports",
    "Policies",
)
# Without an endpoint in the public API: operators use commands and the operator listener.
_OPERATOR_AREAS = frozenset({"Health", "Credits", "Organization", "Spending limits"})
_OPERATOR_AREA_DESCRIPTION = (
    "Administered by operators: the public API has no operation in this area."
)
_REF = "#/components/schemas/{name}"
# Of every endpoint: headers or a body may be too slow (408), a body too large even where none is
# expected (413), headers too large (431), or an organization may need too much memory (429).
_COMMON_ERRORS = frozenset({400, 401, 403, 405, 408, 413, 429, 431, 500, 503})
# With a body, which may not be JSON.
_BODY_ERRORS = frozenset({415})
# Of paths without GET, with which clients ask for a WebSocket.
_UNREADABLE_ERRORS = frozenset({426})
_ENVELOPES: dict[ErrorStyle, type] = {
    ErrorStyle.USUAL: ErrorEnvelope,
    ErrorStyle.COUNTING: MessagesErrorEnvelope,
    ErrorStyle.MESSAGES: MessagesErrorEnvelopeWithId,
}
# A retry may succeed.
_RETRIED = frozenset({402, 429, 503})
# From here on, an error may come from a backend that has charged for the call.
_FIRST_OF_BACKENDS = 402
_REQUEST_ID = "The gateway's id of this request."
_MESSAGES_REQUEST_ID = "The same id, under the name that Messages clients read."
_RETRY_AFTER = "Seconds after which a repeated request may succeed, if that is known."
_SHOULD_RETRY = (
    "Tells SDKs not to repeat the request: it would fail again, or a call could be charged twice."
)
_COST = "The cost of the call in USD, if it is known. Streams don't have this header."
_STREAM_HEADER = "Only in streams: tells caches and proxies not to hold back the events."
_ARRAY_FORMS = (
    "For several values, repeat the parameter or separate the values by commas. The name can also "
    "be `{name}[]`."
)
_STATUS_HEADERS: dict[int, tuple[str, str, dict[str, Any]]] = {
    401: ("WWW-Authenticate", "The scheme of the credential.", {"const": "Bearer"}),
    405: ("Allow", "The methods that the path accepts.", {"type": "string"}),
    426: ("Upgrade", "The protocol to use instead.", {"const": "HTTP/1.1"}),
}
_SECURITY: dict[KeyKind, list[dict[str, list[str]]]] = {
    KeyKind.ADMIN: [{"adminKey": []}],
    KeyKind.PROJECT: [{"customerKey": []}, {"customerHeaderKey": []}],
}
_STATUS_DESCRIPTIONS = {
    400: "The request is not valid.",
    401: "The credential is missing or invalid.",
    402: "Available credit or spending cap cannot cover admission.",
    403: "The credential's scope or a policy denied the operation.",
    404: "Not found in the caller's organization.",
    405: "The path does not take this method.",
    408: "The headers or the body did not arrive in time.",
    409: "Revision, state or idempotency conflict.",
    413: "The body exceeds the size limit.",
    415: "The body is not application/json.",
    422: "The backend refused the request.",
    426: "A request for a WebSocket: send a POST request instead.",
    429: "Request rate or concurrency exceeded.",
    431: "The request line and headers exceed the size limit.",
    500: "Unexpected failure of the gateway.",
    501: "The backend does not implement the option.",
    502: "The backend request failed.",
    503: "A required service or configuration is unavailable.",
    504: "The inference deadline was exceeded.",
}


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """Of the headers that an operator can rename."""

    customer_key: str = CUSTOMER_KEY_HEADER
    session: tuple[str, ...] = SESSION_HEADERS
    cost: str = ""


def document(
    endpoints: Sequence[AnyEndpoint] = ROUTES, names: HeaderNames | None = None
) -> dict[str, Any]:
    names = names or HeaderNames()
    structs = _structs(endpoints)
    schemas, components = msgspec.json.schema_components(structs, ref_template=_REF)
    for schema, component in components.items():
        if "description" in component:
            component["description"] = " ".join(component["description"].split())
        _describe(schema, component.get("properties", {}))
    by_struct = dict(zip(structs, schemas, strict=True))
    readable = {endpoint.path for endpoint in endpoints if endpoint.method == "GET"}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operations = paths.setdefault(endpoint.path, {})
        operation = _operation(endpoint, by_struct, names)
        errors = _COMMON_ERRORS | endpoint.errors
        errors |= _BODY_ERRORS if endpoint.takes_body else frozenset()
        errors |= _UNREADABLE_ERRORS if endpoint.path not in readable else frozenset()
        operation["responses"] |= _error_responses(endpoint, errors, by_struct)
        operations[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Inference Gateway and Organization Administration API",
            "version": __version__,
        },
        "tags": [
            {"name": area, "description": _OPERATOR_AREA_DESCRIPTION}
            if area in _OPERATOR_AREAS
            else {"name": area}
            for area in _AREAS
        ],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _security_schemes(names)},
    }


def _structs(endpoints: Sequence[AnyEndpoint]) -> list[type]:
    structs: dict[type, None] = {ErrorEnvelope: None, MessagesErrorEnvelope: None}
    for endpoint in endpoints:
        structs[_ENVELOPES[endpoint.error_style]] = None
        structs[endpoint.result] = None
        if endpoint.takes_body:
            structs[endpoint.body] = None
    return list(structs)


def _describe(schema: str, properties: dict[str, dict[str, Any]]) -> None:
    for name, found in properties.items():
        description = property_description(schema, name)
        if description is not None:
            found["description"] = description


def _operation(
    endpoint: AnyEndpoint, schemas: dict[type, Any], names: HeaderNames
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.summary,
        "description": f"Needs the permission `{endpoint.permission}`.",
        "tags": [endpoint.tag],
        "security": _SECURITY[endpoint.key_kind],
        "parameters": [
            *_path_parameters(endpoint.path),
            *_query_parameters(endpoint.query),
            *(_header_parameter(header) for header in _request_headers(endpoint, names)),
        ],
        "responses": {"200": _success(endpoint, schemas, names)},
    }
    if endpoint.takes_body:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[endpoint.body]}},
        }
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    schema = {"type": "string", "minLength": 1, "maxLength": PATH_ID_LENGTH_MAX}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PARAMETERS[name],
            "schema": schema,
        }
        for name in names
    ]


def _query_parameters(query: type) -> list[dict[str, Any]]:
    if query is type(None):
        return []
    schema = msgspec.json.schema(query)
    definitions = schema["$defs"]
    definition = definitions[query.__name__]
    required = definition.get("required", [])
    parameters: list[dict[str, Any]] = []
    for name, property_schema in definition["properties"].items():
        schema = _without_null(_inlined(property_schema, definitions))
        parameter = {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": PARAMETERS[name],
            "schema": schema,
        }
        if schema.get("type") == "array":
            parameters += _array_parameters(parameter)
        else:
            parameters.append(parameter)
    return parameters


def _array_parameters(parameter: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An array's parameter can be repeated, hold several values with commas, and end with `[]`."""
    name, schema = parameter["name"], parameter["schema"]
    items = schema["items"]
    if "enum" in items:
        value = f"({'|'.join(items['enum'])})"
        joined = {"type": "string", "pattern": f"^{value}(,{value})+$"}
        schema = {**schema, "items": {"anyOf": [items, joined]}}
    form = {"style": "form", "explode": True, "schema": schema}
    description = f"{parameter['description']} {_ARRAY_FORMS.format(name=name)}"
    yield {**parameter, **form, "description": description}
    yield {**parameter, **form, "name": f"{name}[]", "description": f"The same as `{name}`."}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
        return {key: _inlined(value, definitions) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_inlined(value, definitions) for value in schema]
    return schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query string can't express null."""
    if schema.get("default", ...) is None:
        schema = {key: value for key, value in schema.items() if key != "default"}
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def _header_parameter(header: HeaderParameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if header.length_min:
        schema["minLength"] = header.length_min
    if header.length_max is not None:
        schema["maxLength"] = header.length_max
    if header.pattern is not None:
        schema["pattern"] = header.pattern
    if header.format is not None:
        schema["format"] = header.format
    if header.examples:
        schema["examples"] = list(header.examples)
    return {
        "name": header.name,
        "in": "header",
        "required": header.required,
        "description": header.description,
        "schema": schema,
    }


def _request_headers(endpoint: AnyEndpoint, names: HeaderNames) -> Iterator[HeaderParameter]:
    for header in endpoint.headers:
        if header is not SESSION_HEADER:
            yield header
        elif names.session:
            yield replace(header, name=names.session[0])
            for alias in names.session[1:]:
                yield replace(header, name=alias, description=f"The same as {names.session[0]}.")


def _success(endpoint: AnyEndpoint, schemas: dict[type, Any], names: HeaderNames) -> dict[str, Any]:
    headers = _id_headers(endpoint)
    for header in endpoint.result_headers:
        headers[header.name] = _header(header.description, header.schema, required=True)
    content = {"application/json": {"schema": schemas[endpoint.result]}}
    if endpoint.admitted and names.cost:
        headers[names.cost] = _header(_COST, {"type": "string"})
    if endpoint.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
        headers |= {
            name: _header(_STREAM_HEADER, {"type": "string", "const": value})
            for name, value in STREAM_HEADERS.items()
        }
    return {"description": "Success.", "headers": headers, "content": content}


def _error_responses(
    endpoint: AnyEndpoint, statuses: Collection[int], schemas: dict[type, Any]
) -> dict[str, Any]:
    envelope = schemas[_ENVELOPES[endpoint.error_style]]
    return {
        str(status): {
            "description": _STATUS_DESCRIPTIONS[status],
            "headers": _id_headers(endpoint) | _error_headers(endpoint, status),
            "content": {"application/json": {"schema": _error_schema(envelope, status)}},
        }
        for status in sorted(statuses)
    }


def _id_headers(endpoint: AnyEndpoint) -> dict[str, Any]:
    schema = {"type": "string", "format": "uuid"}
    headers = {REQUEST_ID_HEADER: _header(_REQUEST_ID, schema, required=True)}
    if endpoint.error_style is not ErrorStyle.USUAL:
        headers[MESSAGES_REQUEST_ID_HEADER] = _header(_MESSAGES_REQUEST_ID, schema, required=True)
    return headers


def _error_headers(endpoint: AnyEndpoint, status: int) -> dict[str, Any]:
    headers = {}
    if status in _RETRIED:
        schema = {"type": "integer", "minimum": 1, "maximum": RETRY_AFTER_S_MAX}
        headers["Retry-After"] = _header(_RETRY_AFTER, schema)
    # Once a call may have been charged, every error says that a retry could cost twice.
    if status in POINTLESS_TO_RETRY or (endpoint.admitted and status >= _FIRST_OF_BACKENDS):
        schema = {"type": "string", "const": "false"}
        headers["x-should-retry"] = _header(
            _SHOULD_RETRY, schema, required=status in POINTLESS_TO_RETRY
        )
    if status in _STATUS_HEADERS:
        name, description, schema = _STATUS_HEADERS[status]
        headers[name] = _header(description, schema, required=True)
    return headers


def _header(description: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"description": description, "required": required, "schema": schema}


def _error_schema(envelope: dict[str, Any], status: int) -> dict[str, Any]:
    """Only the `type` and `code` values that errors with this status can have."""
    rows = [row for row in ERROR_TABLE.values() if row.status == status]
    error = {
        "type": "object",
        "properties": {
            "type": {"enum": sorted({row.type for row in rows})},
            "code": {"enum": sorted({row.code for row in rows})},
        },
    }
    return {"allOf": [envelope, {"type": "object", "properties": {"error": error}}]}


def _security_schemes(names: HeaderNames) -> dict[str, Any]:
    return {
        "customerKey": {
            "type": "http",
            "scheme": "bearer",
            "description": "A project's customer key.",
        },
        "customerHeaderKey": {
            "type": "apiKey",
            "in": "header",
            "name": names.customer_key,
            "description": "A project's customer key, raw.",
        },
        "adminKey": {
            "type": "http",
            "scheme": "bearer",
            "description": "An organization's Admin API key.",
        },
    }
