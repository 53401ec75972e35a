"""Sends requests that count tokens, and returns the requests that the upstream's tokenizer received."""

from typing import Any, Protocol

import httpx2

from tests.support.gateway import Gateway, Tenant, assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.upstream import Verb, answer

BARE = "example/bare"
USER = {"role": "user", "content": "Hello"}


class Customer(Protocol):
    """Describes objects with a gateway and a tenant."""

    @property
    def gateway(self) -> Gateway: ...

    @property
    def tenant(self) -> Tenant: ...


def counts(count: int) -> Verb:
    """Plays a tokenizer in the format of vLLM."""
    return answer({"count": count, "max_model_len": 4096, "tokens": []})


async def count(at: Customer, **fields: Any) -> httpx2.Response:
    headers = fields.pop("headers", at.tenant.as_customer)
    path = fields.pop("path", "/v1/messages/count_tokens")
    body = {"model": MODEL, "messages": [USER], **fields}
    return await at.gateway.client.post(path, json=body, headers=headers)


async def counted(scripted: ScriptedGateway, **fields: Any) -> dict[str, Any]:
    """Makes a count that succeeds, and returns the request body that the tokenizer received."""
    answered = await count(scripted, **fields)
    assert answered.status_code == 200, answered.text
    assert answered.json() == {"input_tokens": 42}
    return scripted.upstream.requests[-1].json


def assert_wrapped(
    answered: httpx2.Response, status: int, code: str, param: str | None = None
) -> None:
    """Checks the error envelope that Messages clients expect."""
    assert_error(answered, status, code, param)
    assert set(answered.json()) == {"type", "error"}
    assert answered.json()["type"] == "error"
    assert answered.headers["request-id"] == answered.headers["x-request-id"]
