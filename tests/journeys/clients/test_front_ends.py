"""Tests recorded requests of browser front ends, over a chat backend and over a Messages backend, and
the cost of each request."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_gateway import (
    COMPLETION_PRICE,
    COST,
    MODEL,
    PROMPT_PRICE,
    ScriptedGateway,
    read_stream,
    scripted_gateway,
)
from tests.support.upstream import Upstream, chat
from tests.support.upstream_messages import MESSAGES_USAGE, message

_RECORDED = Path(__file__).parent / "recorded"
_MESSAGE_COST = (
    MESSAGES_USAGE["input_tokens"] * PROMPT_PRICE
    + MESSAGES_USAGE["output_tokens"] * COMPLETION_PRICE
)


@dataclass(frozen=True)
class Serving:
    scripted: ScriptedGateway
    # The cost of an ordinary answer, in picousd.
    cost: int


@pytest.fixture(scope="module", params=["chat", "messages"])
async def shared_serving(
    request: pytest.FixtureRequest, data_dir: Path, conninfo: str
) -> AsyncIterator[Serving]:
    ordinary, cost = (chat, COST) if request.param == "chat" else (message, _MESSAGE_COST)
    async with (
        Upstream(ordinary()) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            ordinary=ordinary,
            backend={"protocol": request.param},
            extensions={"model_listing": True},
        ) as scripted,
    ):
        yield Serving(scripted, cost)


@pytest.mark.parametrize("front_end", ["librechat", "open_webui"])
async def test_requests_are_answered_and_charged(shared_serving: Serving, front_end: str) -> None:
    scripted = await shared_serving.scripted.with_tenant()
    client, headers = scripted.gateway.client, scripted.tenant.as_customer
    # Both front ends list the models, so that the user can choose a model.
    listed = (await client.get("/v1/models", headers=headers)).json()
    assert [model["id"] for model in listed["data"]] == [MODEL]
    recorded = json.loads((_RECORDED / f"{front_end}.json").read_text())["requests"]
    for sent in recorded:
        body: dict[str, Any] = {**sent["body"], "model": MODEL}
        answered = await client.post(sent["path"], json=body, headers=headers)
        assert answered.status_code == 200, answered.text
        if body["stream"]:
            stream = read_stream(answered.text)
            assert stream.done
            assert stream.chunks[-1]["usage"]["completion_tokens"] > 0
        entry = await scripted.entry_of(answered)
        assert (entry.status, entry.cost) == ("settled", shared_serving.cost)
    assert (await scripted.balance())["settled"] == len(recorded) * shared_serving.cost
