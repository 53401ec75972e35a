"""Older majors of the Anthropic SDK: messages and counts. The newest is tried in tests/api/messages."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.journeys.clients.programs import ClientLogin, PythonClient
from tests.support.responses_answers import look_then_tell
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, scripted_gateway
from tests.support.token_counts import counts
from tests.support.upstream import USAGE, Upstream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
async def counting(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Its upstream has a tokenizer, which answers every count with 42."""
    async with (
        Upstream(counts(42)) as upstream,
        scripted_gateway(
            data_dir, conninfo, upstream, backend={"tokenize_path": "/tokenize"}
        ) as running,
    ):
        yield running


async def test_count_tokens(older_anthropic: PythonClient, counting: ScriptedGateway) -> None:
    login = ClientLogin(counting.gateway, counting.tenant, MODEL)
    told = await older_anthropic.run("count_tokens.py", login)
    assert told["counted"] == told["beta"] == 42
    asked = [request.json for request in counting.upstream.requests]
    assert [[message["role"] for message in one["messages"]] for one in asked] == [
        ["system", "user"],
        ["user"],
    ]
    assert asked[0]["tools"][0]["function"]["name"] == "look"
    seen = {
        name: (told[name]["kind"], told[name]["status"], told[name]["type"], told[name]["param"])
        for name in ("unknown", "empty", "stranger")
    }
    assert seen == {
        "unknown": ("NotFoundError", 404, "not_found_error", "model"),
        "empty": ("BadRequestError", 400, "invalid_request_error", "messages"),
        "stranger": ("AuthenticationError", 401, "authentication_error", None),
    }
    assert len({told[name]["request_id"] for name in seen}) == len(seen)
    assert await counting.entries() == []


async def test_messages(older_anthropic: PythonClient, scripted: ScriptedGateway) -> None:
    scripted.upstream.play(look_then_tell())
    login = ClientLogin(scripted.gateway, scripted.tenant, MODEL)
    told = await older_anthropic.run("messages.py", login)
    text = "I saw {'place': 'room 0'} and {'place': 'room 1'}."
    tokens = 3 * USAGE["completion_tokens"]
    looped = {"text": text, "stop_reason": "end_turn", "tokens": tokens}
    assert told["whole"] == told["streamed"] == looped
    assert told["unknown"] == {"kind": "NotFoundError", "status": 404, "param": "model"}
    assert told["too_long"] == {"kind": "BadRequestError", "status": 400, "param": "max_tokens"}
    assert (await scripted.balance())["settled"] == 6 * COST
