"""Tests aider, an agent that reads edits from the text of an answer and uses no tools."""

from pathlib import Path

import pytest

from tests.journeys.clients.conftest import python_client
from tests.journeys.clients.programs import AGENT, ClientLogin
from tests.support.responses_answers import both
from tests.support.scripted_gateway import COST, ScriptedGateway

# The first test installs aider.
pytestmark = pytest.mark.timeout(900)

# The format that aider requests from models that it does not know: the whole file.
ANSWER = """I change the greeting.

greeting.txt
```
goodbye
```
"""


@pytest.mark.slow
async def test_an_edit(scripted: ScriptedGateway, tmp_path: Path) -> None:
    """Runs only with --slow or --prove, because aider's environment is large."""
    aider = await python_client("aider")
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    file = project / "greeting.txt"
    file.write_text("hello\n")
    scripted.upstream.play(both({"content": ANSWER}))
    before = len(scripted.upstream.requests)
    printed = await aider.run_module(
        "aider",
        ClientLogin(scripted.gateway, scripted.tenant, AGENT),
        *("--model", f"openai/{AGENT}", "--yes-always", "--no-git", "--no-check-update"),
        *("--no-show-model-warnings", "--analytics-disable", "--no-pretty"),
        *("--message", "Say goodbye instead of hello.", "greeting.txt"),
        folder=project,
        home=home,
    )
    assert "Applied edit to greeting.txt" in printed
    assert file.read_text() == "goodbye\n"
    asked = [request.json for request in scripted.upstream.requests[before:]]
    assert [request["stream"] for request in asked] == [True]
    assert (await scripted.balance())["settled"] == COST
