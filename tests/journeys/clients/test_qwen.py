"""Tests qwen-code, an agent that uses chat: it completes an edit of a file."""

import json
from pathlib import Path

import pytest

from tests.journeys.clients.programs import AGENT, ClientLogin, CommandLineClient
from tests.support.responses_answers import both, calls
from tests.support.scripted_gateway import COST, ScriptedGateway
from tests.support.upstream import Peer, Verb

# The first test installs qwen-code.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def edits(file: Path) -> Verb:
    """Plays a model that reads a file, changes a word in it, and then reports the change."""
    change = {"file_path": str(file), "old_string": "hello", "new_string": "goodbye"}
    turns = (("read_file", {"file_path": str(file)}), ("edit", change))

    async def verb(peer: Peer) -> None:
        messages = peer.request.json["messages"]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if len(results) < len(turns):
            name, arguments = turns[len(results)]
            called = calls((f"call_{len(results)}", name, json.dumps(arguments)))
            await both(called, finish="tool_calls")(peer)
        else:
            await both({"content": "It says goodbye now."})(peer)

    return verb


async def test_an_edit(qwen: CommandLineClient, scripted: ScriptedGateway, tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    file = project / "greeting.txt"
    file.write_text("hello\n")
    scripted.upstream.play(edits(file))
    before = len(scripted.upstream.requests)
    printed = await qwen.run(
        ClientLogin(scripted.gateway, scripted.tenant, AGENT),
        *("--auth-type", "openai", "--model", AGENT, "--approval-mode", "auto-edit"),
        "Say goodbye instead of hello.",
        folder=project,
        home=home,
    )
    assert printed.strip() == "It says goodbye now."
    assert file.read_text() == "goodbye\n"
    asked = [request.json for request in scripted.upstream.requests[before:]]
    assert [request["stream"] for request in asked] == [True] * 3
    roles = [message["role"] for message in asked[-1]["messages"]]
    assert roles == ["system", "user", *("assistant", "tool") * 2]
    assert (await scripted.balance())["settled"] == 3 * COST
