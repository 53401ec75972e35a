"""Tests unmodified opencode: it edits a file, over chat and over Messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.clients.programs import AGENT, ClientLogin, CommandLineClient
from tests.support.responses_answers import both, calls
from tests.support.scripted_gateway import COST, ScriptedGateway
from tests.support.upstream import Peer, Verb

# The first test installs the program. It has 185 MB, so the tests run only with --prove.
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("only_long")]


def _edits(file: Path) -> Verb:
    """Plays a model that reads a file, changes a word, and reports it. It also writes the session's title."""
    change = {"filePath": str(file), "oldString": "hello", "newString": "goodbye"}
    turns = (("read", {"filePath": str(file)}), ("edit", change))

    async def verb(peer: Peer) -> None:
        asked = peer.request.json
        done = sum(message["role"] == "tool" for message in asked["messages"])
        if not asked.get("tools"):
            await both({"content": "A greeting"})(peer)
        elif done < len(turns):
            name, arguments = turns[done]
            called = calls((f"call_{done}", name, json.dumps(arguments)))
            await both(called, finish="tool_calls")(peer)
        else:
            await both({"content": "It says goodbye now."})(peer)

    return verb


def _config(login: ClientLogin, package: str) -> dict[str, Any]:
    """Returns the documented settings, and settings that keep opencode from using the internet."""
    config: dict[str, Any] = json.loads(login.guide("opencode"))
    config["provider"]["gateway"]["npm"] = package
    return {**config, "autoupdate": False, "share": "disabled"}


@pytest.mark.parametrize(
    ("package", "operation"),
    [
        pytest.param("@ai-sdk/openai-compatible", "chat_create", id="chat"),
        pytest.param("@ai-sdk/anthropic", "message_create", id="messages"),
    ],
)
async def test_an_edit(
    opencode: CommandLineClient,
    scripted: ScriptedGateway,
    tmp_path: Path,
    package: str,
    operation: str,
) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    file = project / "greeting.txt"
    file.write_text("hello\n")
    login = ClientLogin(scripted.gateway, scripted.tenant, AGENT)
    (project / "opencode.json").write_text(json.dumps(_config(login, package)))
    scripted.upstream.play(_edits(file))
    before = len(scripted.upstream.requests)
    printed = await opencode.run(
        login,
        *("run", "Say goodbye instead of hello."),
        folder=project,
        home=home,
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_DEFAULT_PLUGINS="1",
        OPENCODE_DISABLE_LSP_DOWNLOAD="1",
    )
    assert "It says goodbye now." in printed
    assert file.read_text() == "goodbye\n"
    asked = [request.json for request in scripted.upstream.requests[before:]]
    # Three turns, and one request for the title of the session.
    assert [request["stream"] for request in asked] == [True] * 4
    assert (await scripted.balance())["settled"] == 4 * COST
    services = scripted.gateway.services
    await services.recorder.drain()
    await services.activity.drain()
    rows = await scripted.sql(
        "SELECT operation, status FROM activity WHERE organization_id = %s",
        scripted.tenant.organization_id,
    )
    assert rows == [(operation, 200)] * 4
