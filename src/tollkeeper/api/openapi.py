"""Generates the OpenAPI 3.1 document from the route table and the wire types (the structs that
describe the JSON of requests and responses)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tollkeeper import __version__
from tollkeeper.api.http.endpoint import AnyEndpoint, HeaderParameter
from tollkeeper.api.http.envelope import ERROR_TABLE, ErrorStyle
from tollkeeper.api.http.request import PATH_ID_LENGTH_MAX
from tollkeeper.api.routes import ROUTES
from tollkeeper.api.wire.errors import ErrorEnvelope, MessagesErrorEnvelope
from tollkeeper.domain.access import KeyKind
from tollkeeper.domain.conventions import CUSTOMER_KEY_HEADER, REQUEST_ID_HEADER
from tollkeeper.domain.errors import RETRY_AFTER_S_MAX

# The areas (OpenAPI tags) of the interface, which is the specification of the gateway's API. The
# order is that of the interface.
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
# Areas without an endpoint in the public API. Operators use commands and the operator listener (the port
# for health checks and metrics) instead.
_OPERATOR_AREAS = frozenset({"Health", "Credits", "Organization", "Spending limits"})
_OPERATOR_AREA_DESCRIPTION = (
    "Administered by operators: the public API has no operation in this area."
)
_REF = "#/components/schemas/{name}"
# The error statuses that every endpoint has.
_COMMON_ERRORS = frozenset({400, 401, 403, 405, 500, 503})
# Additional error statuses of endpoints with a body. The body may arrive too slowly (408), be too
# large (413), or have another content type than JSON (415). The requests in progress of one key or
# organization may need too much memory (429).
_BODY_ERRORS = frozenset({408, 413, 415, 429})
# Additional error statuses of administration endpoints, whose request rate is limited.
_ADMINISTRATION_ERRORS = frozenset({429})
_RETRY_AFTER: dict[str, Any] = {
    "Retry-After": {
        "description": "Seconds after which a repeated request may succeed, if that is known.",
        "schema": {"type": "integer", "minimum": 1, "maximum": RETRY_AFTER_S_MAX},
    }
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
    408: "The body did not arrive in time.",
    409: "Revision, state or idempotency conflict.",
    413: "The body exceeds the size limit.",
    415: "The body is not application/json.",
    422: "The backend refused the request.",
    429: "Request rate or concurrency exceeded.",
    500: "Unexpected failure of the gateway.",
    501: "The backend does not implement the option.",
    502: "The backend request failed.",
    503: "A required service or configuration is unavailable.",
    504: "The inference deadline was exceeded.",
}


def document(endpoints: Sequence[AnyEndpoint] = ROUTES) -> dict[str, Any]:
    structs = _structs(endpoints)
    schemas, components = msgspec.json.schema_components(structs, ref_template=_REF)
    by_struct = dict(zip(structs, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operations = paths.setdefault(endpoint.path, {})
        operations[endpoint.method.lower()] = _operation(endpoint, by_struct)
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
        "components": {"schemas": components, "securitySchemes": _security_schemes()},
    }


def _structs(endpoints: Sequence[AnyEndpoint]) -> list[type]:
    """Returns all wire types that the document needs, without duplicates and in a stable order."""
    structs: dict[type, None] = {ErrorEnvelope: None, MessagesErrorEnvelope: None}
    for endpoint in endpoints:
        structs[endpoint.result] = None
        if endpoint.takes_body:
            structs[endpoint.body] = None
    return list(structs)


def _operation(endpoint: AnyEndpoint, schemas: dict[type, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.summary,
        "description": f"Needs the permission `{endpoint.permission}`.",
        "tags": [endpoint.tag],
        "security": _SECURITY[endpoint.key_kind],
        "parameters": [
            *_path_parameters(endpoint.path),
            *_query_parameters(endpoint.query),
            *(_header_parameter(header) for header in endpoint.headers),
        ],
        "responses": _responses(endpoint, schemas),
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
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query_parameters(query: type) -> list[dict[str, Any]]:
    if query is type(None):
        return []
    schema = msgspec.json.schema(query)
    definitions = schema["$defs"]
    definition = definitions[query.__name__]
    required = definition.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": _without_null(_inlined(property_schema, definitions)),
        }
        for name, property_schema in definition["properties"].items()
    ]


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
        return {key: _inlined(value, definitions) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_inlined(value, definitions) for value in schema]
    return schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Removes null from the schema of a query parameter with one type, because a query string
    cannot express null."""
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
    if header.examples:
        schema["examples"] = list(header.examples)
    return {
        "name": header.name,
        "in": "header",
        "required": header.required,
        "description": header.description,
        "schema": schema,
    }


def _responses(endpoint: AnyEndpoint, schemas: dict[type, Any]) -> dict[str, Any]:
    request_id = {
        REQUEST_ID_HEADER: {
            "description": "The gateway's id of this request.",
            "schema": {"type": "string", "format": "uuid"},
        }
    }
    success_headers: dict[str, Any] = dict(request_id)
    for header in endpoint.result_headers:
        success_headers[header.name] = {
            "description": header.description,
            "schema": header.schema,
        }
    content = {"application/json": {"schema": schemas[endpoint.result]}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {
        "200": {"description": "Success.", "headers": success_headers, "content": content}
    }
    is_usual = endpoint.error_style is ErrorStyle.USUAL
    envelope = schemas[ErrorEnvelope if is_usual else MessagesErrorEnvelope]
    statuses = _COMMON_ERRORS | endpoint.errors
    if endpoint.takes_body:
        statuses |= _BODY_ERRORS
    if endpoint.key_kind is KeyKind.ADMIN:
        statuses |= _ADMINISTRATION_ERRORS
    for status in sorted(statuses):
        responses[str(status)] = {
            "description": _STATUS_DESCRIPTIONS[status],
            "headers": request_id | _RETRY_AFTER if status in (429, 503) else request_id,
            "content": {"application/json": {"schema": _error_schema(envelope, status)}},
        }
    return responses


def _error_schema(envelope: dict[str, Any], status: int) -> dict[str, Any]:
    """Returns the schema of the error envelope, limited to the values of `type` and `code` that
    errors with this status can have."""
    rows = [row for row in ERROR_TABLE.values() if row.status == status]
    error = {
        "type": "object",
        "properties": {
            "type": {"enum": sorted({row.type for row in rows})},
            "code": {"enum": sorted({row.code for row in rows})},
        },
    }
    return {"allOf": [envelope, {"type": "object", "properties": {"error": error}}]}


def _security_schemes() -> dict[str, Any]:
    return {
        "customerKey": {
            "type": "http",
            "scheme": "bearer",
            "description": "A project's customer key.",
        },
        "customerHeaderKey": {
            "type": "apiKey",
            "in": "header",
            "name": CUSTOMER_KEY_HEADER,
            "description": "A project's customer key, raw.",
        },
        "adminKey": {
            "type": "http",
            "scheme": "bearer",
            "description": "An organization's Admin API key.",
        },
    }
