"""Tests other projects' clients with the real engine: the counted prompt tokens are those charged."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.clients.programs import ClientLogin, NodeClient, PythonClient
from tests.support.engine import engine_gateway
from tests.support.scripted_gateway import ScriptedGateway

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(900)]
MODEL = "local/small"
# In picousd per token.
PROMPT_PRICE, CACHED_PRICE, COMPLETION_PRICE = 20_000, 2_000, 80_000
PRICING = {
    "prompt": "0.00000002",
    "input_cache_read": "0.000000002",
    "completion": "0.00000008",
}


@pytest.fixture(scope="module")
async def local(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with engine_gateway(
        data_dir,
        conninfo,
        id=MODEL,
        max_output_length=64,
        # To count the tokens of tools, the model needs only to declare tools.
        supported_features=["tools"],
        pricing=PRICING,
    ) as made:
        yield made


async def test_stream_is_paid_as_it_was_counted(
    local: ScriptedGateway, node: NodeClient, oldest_anthropic: PythonClient
) -> None:
    scripted = await local.with_tenant()
    login = ClientLogin(scripted.gateway, scripted.tenant, MODEL)
    counted = await oldest_anthropic.run("count_tokens.py", login)
    told = await node.run("stream.mjs", login, "Hello")
    assert told["final"]
    assert told["heard"][-1] == told["final"]
    assert [usage["input_tokens"] for usage in told["usage"]] == [counted["beta"]] * 2
    assert all(1 <= usage["output_tokens"] <= 16 for usage in told["usage"])
    assert (await scripted.balance())["settled"] == sum(map(price, told["usage"]))


def price(usage: dict[str, Any]) -> int:
    cached = usage["input_tokens_details"]["cached_tokens"]
    prompt = (usage["input_tokens"] - cached) * PROMPT_PRICE + cached * CACHED_PRICE
    return int(prompt + usage["output_tokens"] * COMPLETION_PRICE)
