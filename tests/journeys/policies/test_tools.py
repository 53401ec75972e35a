"""Policies read what tools say to the model, also inside of namespaces."""

from typing import Any

import pytest

from tests.support.judged_gateway import JudgedGateway, assert_denied
from tests.support.scripted_gateway import MODEL

FIND = {
    "type": "function",
    "name": "find",
    "description": "Finds a customer.",
    "parameters": {"type": "object"},
}


@pytest.mark.parametrize("part", ["nothing", "name", "description", "inner name", "parameters"])
async def test_namespaces_are_judged(judged: JudgedGateway, part: str) -> None:
    policy = await judged.enforce("bomb", direction="request")
    function: dict[str, Any] = dict(FIND)
    namespace: dict[str, Any] = {"type": "namespace", "name": "crm", "tools": [function]}
    match part:
        case "name" | "description":
            namespace[part] = "bomb"
        case "inner name":
            function["name"] = "bomb"
        case "parameters":
            function["parameters"] = {"properties": {"bomb": {}}}
    answer = await judged.scripted.gateway.client.post(
        "/v1/responses",
        json={"model": MODEL, "input": "Hello", "tools": [namespace]},
        headers=judged.scripted.tenant.as_customer,
    )
    if part == "nothing":
        assert answer.status_code == 200, answer.text
    else:
        assert_denied(answer, policy, "request")
