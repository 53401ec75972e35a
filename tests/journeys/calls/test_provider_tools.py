"""Tests tools that the model's provider runs: a request may use only tools that have a price."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, answering_gateway

ADVISOR = {"type": "openrouter:advisor", "model": "another/model"}
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
FEE = 30_000_000_000  # picousd
MODEL_SETTINGS: dict[str, Any] = {
    "supported_features": ["tools", "web_search"],
    "pricing": {"prompt": "0.0000002", "completion": "0.0000008", "web_search": "0.01"},
    "tool_prices": {"code_interpreter": "0.03"},
}


@pytest.fixture
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(data_dir, conninfo, model=MODEL_SETTINGS) as running:
        yield running


@pytest.mark.parametrize(
    "tool", [ADVISOR, {"type": "browser_search"}, {"googleSearch": {}}], ids=str
)
async def test_a_tool_without_a_price_is_refused_before_it_costs_anything(
    scripted: ScriptedGateway, tool: dict[str, Any]
) -> None:
    answer = await scripted.chat(tools=[{"type": "web_search"}, tool])
    assert_error(answer, 501, "not_implemented", "tools[1]")
    assert await scripted.traces() == (0, 0)


async def test_the_same_tool_is_refused_in_responses(scripted: ScriptedGateway) -> None:
    for tool, status in ((ADVISOR, 400), (INTERPRETER, 501), ({"type": "mcp"}, 501)):
        answer = await scripted.gateway.client.post(
            "/v1/responses",
            json={"model": MODEL, "input": "Hello", "tools": [tool]},
            headers=scripted.tenant.as_customer,
        )
        assert answer.status_code == status
    assert await scripted.traces() == (0, 0)


async def test_a_tool_with_a_price_is_charged_for_each_request(scripted: ScriptedGateway) -> None:
    answer = await scripted.chat(tools=[INTERPRETER])
    assert answer.status_code == 200, answer.text
    assert scripted.upstream.requests[-1].json["tools"] == [INTERPRETER]
    entry = await scripted.entry_of(answer)
    assert (entry.status, entry.cost, entry.overage) == ("settled", COST + FEE, 0)
    # The results of the tool become input, so the hold covers the whole context.
    assert entry.prompt_tokens_max == 4096
    rows = await scripted.sql(
        "SELECT price_request, request FROM reservations r JOIN resolutions d"
        " ON d.organization_id = r.organization_id AND d.reservation_id = r.id"
        " WHERE r.organization_id = %s",
        scripted.tenant.organization_id,
    )
    assert rows == [(FEE, FEE)]
