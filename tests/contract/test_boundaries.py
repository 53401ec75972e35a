"""Tests that the server and the OpenAPI document agree about the boundary values of the document's schemas.

The server must answer a forbidden value with 400. It must not answer an allowed value with a 400 whose
`param` is the value's place. Other errors are possible: a model may lack the option, or an id may not exist.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import jsonschema_rs
import pytest
from tests.contract.boundaries import body_candidates, boundary_values, header_values
from tests.support.gateway import idempotency_key
from tests.support.scripted_gateway import MODEL, ScriptedGateway, answering_gateway

DOCUMENT = json.loads((Path(__file__).parents[2] / "openapi.json").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    operation["operationId"]: (method, path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT_TOOL = {"type": "function", "function": {"name": "f"}}
TOOL = {"type": "function", "name": "f"}
ID = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Base:
    """A valid request of one operation."""

    body: dict[str, Any] | None = None
    query: dict[str, str] = field(default_factory=dict)
    path: dict[str, str] = field(default_factory=dict)
    # For a field: other fields that must be sent with it, although no schema says so.
    companions: dict[str, dict[str, Any]] = field(default_factory=dict)


BASES = {
    "chat_create": Base(
        {"model": MODEL, "messages": MESSAGES},
        companions={
            "stream_options": {"stream": True},
            "top_logprobs": {"logprobs": True},
            "tool_choice": {"tools": [CHAT_TOOL]},
            "function_call": {"functions": [{"name": "f"}]},
        },
    ),
    "response_create": Base(
        {"model": MODEL, "input": "Hello"},
        companions={"stream_options": {"stream": True}, "tool_choice": {"tools": [TOOL]}},
    ),
    "token_count": Base({"model": MODEL, "messages": MESSAGES}),
    "policy_create": Base({"name": "No secrets", "rule": "Is it secret?"}),
    "policy_edit": Base({"revision": 1}, path={"policy_id": "pol_none"}),
    "policy_pause": Base({"revision": 1}, path={"policy_id": "pol_none"}),
    "policy_show": Base(path={"policy_id": "pol_none"}),
    "effective_policy_list": Base(path={"project_id": ID}),
    "project_key_create": Base({"name": "key"}, path={"project_id": ID}),
    "project_archive": Base(path={"project_id": ID}),
    "admin_key_list": Base(),
    "admin_key_revoke": Base(path={"api_key_id": ID}),
    "cost_report": Base(query={"start_time": "0"}),
    "model_read": Base(path={"model": MODEL}),
}


# A cursor is refused unless the service itself wrote it, whatever its length.
OPAQUE = {("cost_report", "page")}


@pytest.fixture(scope="module")
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Starts a gateway whose model does not limit the values that the document allows."""
    model = {"max_output_length": 999_990, "context_length": 2_000_000}
    async with answering_gateway(data_dir, conninfo, model=model) as running:
        yield running


def test_every_operation_has_a_base() -> None:
    assert set(BASES) == set(OPERATIONS)


def _differs(answer: httpx2.Response, param: str, *, allowed: bool) -> bool:
    """Returns whether the server disagrees with the document about a value at this place."""
    assert answer.status_code < 500 or answer.status_code in (501, 503), answer.text
    refused = answer.status_code == 400
    if not allowed:
        return not refused
    return refused and answer.json()["error"]["param"] == param


@dataclass
class Sender:
    scripted: ScriptedGateway
    operation: str

    async def send(
        self,
        *,
        body: dict[str, Any] | None = None,
        query: dict[str, str] | None = None,
        path: dict[str, str] | None = None,
        headers: dict[str, bytes] | None = None,
    ) -> httpx2.Response:
        method, route, operation = OPERATIONS[self.operation]
        base, tenant = BASES[self.operation], self.scripted.tenant
        is_admin = "adminKey" in operation["security"][0]
        values = {**base.path, **(path or {})}
        for name, value in values.items():
            route = route.replace(f"{{{name}}}", quote(value, safe=""))
        sent: dict[str, Any] = {**idempotency_key(), **(headers or {})}
        sent |= tenant.as_admin if is_admin else tenant.as_customer
        content = base.body if body is None else body
        if content is not None:
            sent["content-type"] = "application/json"
        return await self.scripted.gateway.client.request(
            method,
            route,
            params={**base.query, **(query or {})},
            headers=sent,
            content=None if content is None else json.dumps(content),
        )


def _names(place: str) -> list[str]:
    return [
        operation
        for operation, (_, _, described) in OPERATIONS.items()
        if any(parameter["in"] == place for parameter in described["parameters"])
    ]


def _parameters(operation: str, place: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (parameter["name"], parameter["schema"])
        for parameter in OPERATIONS[operation][2]["parameters"]
        if parameter["in"] == place
    ]


@pytest.mark.parametrize("operation", [name for name, base in BASES.items() if base.body])
async def test_bodies(scripted: ScriptedGateway, operation: str) -> None:
    content = OPERATIONS[operation][2]["requestBody"]["content"]["application/json"]
    whole = {**content["schema"], "components": {"schemas": SCHEMAS}}
    validator = jsonschema_rs.validator_for(whole)
    base, sender = BASES[operation], Sender(scripted, operation)
    assert base.body is not None
    differences, allowed_count, sent = [], 0, set()
    path: dict[str, str] = {}
    for candidate in body_candidates(content["schema"], SCHEMAS):
        body = candidate.within({**base.body, **base.companions.get(str(candidate.path[0]), {})})
        written = json.dumps(body, sort_keys=True)
        if written in sent:
            continue
        sent.add(written)
        allowed = validator.is_valid(body)
        allowed_count += allowed
        if "policy_id" in base.path:
            # Each request gets a new policy, because an edit changes the revision.
            policy = await scripted.gateway.make_policy(scripted.tenant)
            path = {"policy_id": policy["id"]}
        answer = await sender.send(body=body, path=path)
        if _differs(answer, candidate.param, allowed=allowed):
            differences.append((candidate.param, str(candidate.value)[:80], allowed, answer.text))
    assert not differences, "\n".join(str(difference)[:400] for difference in differences)
    assert 0 < allowed_count < len(sent), "there are values of both kinds"


@pytest.mark.parametrize("operation", _names("header"))
async def test_headers(scripted: ScriptedGateway, operation: str) -> None:
    differences, kinds = [], set()
    sender = Sender(scripted, operation)
    for name, schema in _parameters(operation, "header"):
        validator = jsonschema_rs.validator_for(schema, validate_formats=True)
        for value in dict.fromkeys(header_values(schema)):
            allowed = validator.is_valid(value)
            kinds.add(allowed)
            answer = await sender.send(headers={name: value.encode("latin-1")})
            if _differs(answer, name, allowed=allowed):
                differences.append((name, value[:80], allowed, answer.text))
    assert not differences, "\n".join(str(difference)[:400] for difference in differences)
    assert kinds == {True, False}


@pytest.mark.parametrize("operation", _names("query"))
async def test_queries(scripted: ScriptedGateway, operation: str) -> None:
    differences = []
    sender = Sender(scripted, operation)
    for name, schema in _parameters(operation, "query"):
        validator = jsonschema_rs.validator_for(schema)
        for value in [*boundary_values(schema), "stranger"]:
            if isinstance(value, list):
                value = [item for item in value if isinstance(item, str)]  # noqa: PLW2901
            shown = ",".join(value) if isinstance(value, list) else str(value)
            read: Any = value
            if schema.get("type") == "array":
                read = shown.split(",")
            allowed = validator.is_valid(read)
            answer = await sender.send(query={name: shown})
            if allowed and (operation, name) in OPAQUE:
                continue
            if _differs(answer, name, allowed=allowed):
                differences.append((name, shown[:80], allowed, answer.text))
    assert not differences, "\n".join(str(difference)[:400] for difference in differences)


@pytest.mark.parametrize("operation", _names("path"))
async def test_paths(scripted: ScriptedGateway, operation: str) -> None:
    differences = []
    sender = Sender(scripted, operation)
    for name, schema in _parameters(operation, "path"):
        validator = jsonschema_rs.validator_for(schema)
        for value in filter(None, boundary_values(schema)):
            answer = await sender.send(path={name: value})
            if _differs(answer, name, allowed=validator.is_valid(value)):
                differences.append((name, value[:80], validator.is_valid(value), answer.text))
    assert not differences, "\n".join(str(difference)[:400] for difference in differences)
