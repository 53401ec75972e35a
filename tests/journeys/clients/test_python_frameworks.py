"""Tests unmodified SDKs and agent frameworks for Python: each calls a tool until the model has seen
enough, and sends the history back as its own objects."""

import pytest

from tests.journeys.clients.programs import AGENT, ClientLogin, PythonClient
from tests.support.responses_answers import look_then_tell
from tests.support.scripted_gateway import COST, ScriptedGateway
from tests.support.upstream import USAGE

# The first test installs its framework.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEEN = "I saw a room 0 and a room 1."
CHAT = ("chat", "chat streamed")
BOTH = (*CHAT, "responses", "responses streamed")


@pytest.mark.parametrize(
    ("framework", "script", "ways", "questions"),
    [
        pytest.param("langchain", "langchain_tools.py", BOTH, 4, id="langchain"),
        pytest.param("llama-index", "llama_index_tools.py", CHAT, 6, id="llama-index"),
        pytest.param("pydantic-ai", "pydantic_ai_tools.py", BOTH, 4, id="pydantic-ai"),
    ],
    indirect=["framework"],
)
async def test_tools_over_several_turns(
    framework: PythonClient,
    scripted: ScriptedGateway,
    script: str,
    ways: tuple[str, ...],
    questions: int,
) -> None:
    await _check_tools(framework, scripted, script, ways, questions)


@pytest.mark.parametrize("framework", ["litellm"], indirect=True)
async def test_tools_over_several_turns_with_litellm(
    framework: PythonClient, replaying: ScriptedGateway
) -> None:
    await _check_tools(framework, replaying, "litellm_tools.py", CHAT, 4)


async def _check_tools(
    framework: PythonClient,
    scripted: ScriptedGateway,
    script: str,
    ways: tuple[str, ...],
    questions: int,
) -> None:
    scripted.upstream.play(look_then_tell())
    before = len(scripted.upstream.requests)
    told = await framework.run(script, ClientLogin(scripted.gateway, scripted.tenant, AGENT))
    expected = {"places": ["room 0", "room 1"], "text": SEEN, "farewell": SEEN}
    assert told == dict.fromkeys(ways, expected)
    asked = [request.json for request in scripted.upstream.requests[before:]]
    streamed = [request["stream"] for request in asked]
    assert streamed == [way.endswith("streamed") for way in ways for _ in range(questions)]
    assert (await scripted.balance())["settled"] == len(asked) * COST


@pytest.mark.parametrize("framework", ["langchain"], indirect=True)
async def test_the_guide_of_langchain(framework: PythonClient, scripted: ScriptedGateway) -> None:
    login = ClientLogin(scripted.gateway, scripted.tenant, AGENT)
    printed = await framework.run_text(login.guide("LangChain"), login)
    assert printed.splitlines() == [f"Hello {USAGE['total_tokens']}", "Hello"]
    sent = [request.json for request in scripted.upstream.requests[-2:]]
    assert [body["stream"] for body in sent] == [False, True]
    assert (await scripted.balance())["settled"] == 2 * COST
