"""Token counting with older majors of the Anthropic SDK; the newest is tried in tests/api/messages."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.journeys.clients.programs import ClientLogin, PythonClient
from tests.support.scripted_gateway import MODEL, ScriptedGateway, scripted_gateway
from tests.support.token_counts import counts
from tests.support.upstream import Upstream

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
