"""Tests an agent framework that uses Responses: its loop over functions, whole and streamed."""

import pytest

from tests.journeys.clients.programs import ClientLogin, PythonClient
from tests.support.responses_answers import look_then_tell
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_tools_over_several_turns(agents: PythonClient, scripted: ScriptedGateway) -> None:
    scripted.upstream.play(look_then_tell())
    before = len(scripted.upstream.requests)
    told = await agents.run("agent.py", ClientLogin(scripted.gateway, scripted.tenant, MODEL))
    kinds = ("function_call_arguments", "function_call_arguments", "output_text")
    assert told["whole"].pop("deltas") == []
    assert told["streamed"].pop("deltas") == [f"response.{kind}.delta" for kind in kinds]
    called = ["tool_call_item", "tool_call_output_item"]
    assert told["whole"] == {
        "places": ["room 0", "room 1"],
        "answer": "I saw a room 0 and a room 1.",
        "farewell": "I saw a room 0 and a room 1.",
        "items": [*called, *called, "message_output_item"],
        "usage": 30,
        "requests": 3,
    }
    assert told["streamed"] == told["whole"]
    asked = [request.json for request in scripted.upstream.requests[before:]]
    assert len(asked) == 8
    # The last request of each way contains the thanks and the whole conversation before it.
    for last in (asked[3], asked[7]):
        roles = [message["role"] for message in last["messages"]]
        assert roles == ["system", "user", *("assistant", "tool") * 2, "assistant", "user"]
        assert [tool["function"]["name"] for tool in last["tools"]] == ["look"]
    assert (await scripted.balance())["settled"] == len(asked) * COST
