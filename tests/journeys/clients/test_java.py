"""Tests the JDK's HttpClient with its default settings."""

import pytest

from tests.journeys.clients.programs import AGENT, ClientLogin, PythonClient
from tests.support.responses_answers import look_then_tell
from tests.support.scripted_gateway import COST, ScriptedGateway

# The first test installs the JDK.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_tools_over_several_turns(java: PythonClient, scripted: ScriptedGateway) -> None:
    """The client's first request on a connection has a body and the header `Upgrade: h2c`."""
    scripted.upstream.play(look_then_tell())
    login = ClientLogin(scripted.gateway, scripted.tenant, AGENT)
    told = await java.run("java_http_client.py", login)
    expected = {"places": ["room 0", "room 1"], "text": "I saw a room 0 and a room 1."}
    for way in ("chat", "chat streamed"):
        assert told[way].pop("versions")
        assert told[way] == expected
    assert (await scripted.balance())["settled"] == 2 * 3 * COST
