"""Tests Vercel's AI SDK with its OpenAI provider: a loop over tools, over chat and over Responses."""

import pytest

from tests.journeys.clients.programs import AGENT, ClientLogin, NodeClient
from tests.support.responses_answers import look_then_tell
from tests.support.scripted_gateway import COST, ScriptedGateway

# The first test installs the SDK.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_tools_over_several_turns(ai_sdk: NodeClient, scripted: ScriptedGateway) -> None:
    scripted.upstream.play(look_then_tell())
    told = await ai_sdk.run("tools.mjs", ClientLogin(scripted.gateway, scripted.tenant, AGENT))
    seen = "I saw a room 0 and a room 1."
    expected = {
        "places": ["room 0", "room 1"],
        "text": seen,
        "steps": 3,
        "tokens": 30,
        "farewell": seen,
    }
    ways = ("responses", "responses streamed", "chat", "chat streamed")
    assert told == dict.fromkeys(ways, expected)
    last = scripted.upstream.requests[-1].json
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["user", *("assistant", "tool") * 2, "assistant", "user"]
    assert (await scripted.balance())["settled"] == 4 * 4 * COST
