"""Tests OpenAI's unmodified Codex CLI with its default settings: it completes an edit of a file."""

import json
from pathlib import Path

import pytest

from tests.journeys.clients.programs import AGENT, ClientLogin, CommandLineClient
from tests.support.responses_answers import both, calls
from tests.support.scripted_gateway import COST, ScriptedGateway
from tests.support.upstream import USAGE, Peer, Verb

# The first test installs Codex.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Update File: greeting.txt
@@
-hello
+goodbye
*** End Patch
EOF
"""


def edits_a_file() -> Verb:
    """Plays a model that reads a file, changes it with a patch, and then reports the change."""
    turns = (
        ("exec_command", {"cmd": "cat greeting.txt"}),
        ("exec_command", {"cmd": PATCH}),
        ("exec_command", {"cmd": "cat greeting.txt"}),
    )

    async def verb(peer: Peer) -> None:
        messages = peer.request.json["messages"]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if len(results) < len(turns):
            name, arguments = turns[len(results)]
            called = calls((f"call_{len(results)}", name, json.dumps(arguments)))
            await both(called, finish="tool_calls")(peer)
        else:
            await both({"content": f"It says {results[-1].split()[-1]} now."})(peer)

    return verb


@pytest.fixture
def login(scripted: ScriptedGateway) -> ClientLogin:
    return ClientLogin(scripted.gateway, scripted.tenant, AGENT)


@pytest.fixture
def home(login: ClientLogin, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text(login.guide("Codex CLI"))
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "greeting.txt").write_text("hello\n")
    return project


@pytest.fixture
async def sandbox(
    codex: CommandLineClient, login: ClientLogin, project: Path, home: Path
) -> list[str]:
    """Returns Codex's sandbox options: it may write to the project, the default of a trusted folder. On
    a machine that forbids namespaces, it runs without a sandbox and offers the same tools."""
    try:
        await codex.run(login, "sandbox", "--", "true", folder=project, home=home)
    except AssertionError:
        return ["--sandbox", "danger-full-access", "--config", 'web_search="cached"']
    return ["--sandbox", "workspace-write"]


async def test_an_edit_with_default_settings(
    codex: CommandLineClient,
    scripted: ScriptedGateway,
    login: ClientLogin,
    sandbox: list[str],
    project: Path,
    home: Path,
) -> None:
    scripted.upstream.play(edits_a_file())
    before = len(scripted.upstream.requests)
    task = ("--skip-git-repo-check", "--json", "Say goodbye instead of hello.")
    printed = await codex.run(login, "exec", *sandbox, *task, folder=project, home=home)
    assert (project / "greeting.txt").read_text() == "goodbye\n"

    events = [json.loads(line) for line in printed.splitlines()]
    done = [event["item"] for event in events if event["type"] == "item.completed"]
    assert [item["type"] for item in done if item["type"] != "error"] == [
        *("command_execution", "file_change", "command_execution", "agent_message"),
    ]
    assert done[-1]["text"] == "It says goodbye now."
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["input_tokens"] == 4 * USAGE["prompt_tokens"]

    asked = [request.json for request in scripted.upstream.requests[before:]]
    assert [request["stream"] for request in asked] == [True] * 4
    for request in asked:
        names = {tool["function"]["name"] for tool in request["tools"]}
        # Codex's own functions, and the functions of its namespace.
        assert {"exec_command", "multi_agent_v1__spawn_agent"} <= names
        # Fields that ask this model for nothing are not sent to it.
        dropped = {"client_metadata", "web_search_options", "reasoning", "reasoning_effort"}
        assert not dropped & set(request)
    assert (await scripted.balance())["settled"] == 4 * COST


async def test_a_function_of_a_namespace_is_found(
    codex: CommandLineClient,
    scripted: ScriptedGateway,
    login: ClientLogin,
    sandbox: list[str],
    project: Path,
    home: Path,
) -> None:
    """Codex runs the function that the model calls by its flat name."""
    arguments = {"target": "nobody"}
    scripted.upstream.play(
        both(calls(("call_0", "multi_agent_v1__close_agent", json.dumps(arguments))), "tool_calls"),
        both({"content": "There is nobody."}),
    )
    task = ("--skip-git-repo-check", "--json", "Close the agent.")
    printed = await codex.run(login, "exec", *sandbox, *task, folder=project, home=home)
    assert json.loads(printed.splitlines()[-1])["type"] == "turn.completed"
    messages = scripted.upstream.requests[-1].json["messages"]
    assert messages[-2]["tool_calls"][0]["function"] == {
        "name": "multi_agent_v1__close_agent",
        "arguments": json.dumps(arguments),
    }
    # Codex found the tool: it complains about the id, not about an unknown tool.
    assert "invalid agent id" in messages[-1]["content"]


async def test_an_address_alone_loses_no_time_on_a_websocket(
    codex: CommandLineClient,
    scripted: ScriptedGateway,
    login: ClientLogin,
    sandbox: list[str],
    project: Path,
    tmp_path: Path,
) -> None:
    """With its built-in provider at another address, Codex tries a WebSocket first. The gateway refuses
    the WebSocket at once, and the task continues."""
    scripted.upstream.play(both({"content": "Hello."}))
    home = tmp_path / "other"
    (home / ".codex").mkdir(parents=True)
    address = json.dumps(f"{scripted.gateway.base_url}/v1")
    config = f'model = "{AGENT}"\nopenai_base_url = {address}\n'
    (home / ".codex" / "config.toml").write_text(config)
    key = json.dumps({"OPENAI_API_KEY": login.tenant.project_key})
    (home / ".codex" / "auth.json").write_text(key)
    task = ("--skip-git-repo-check", "--json", "Say hello.")
    printed = await codex.run(login, "exec", *sandbox, *task, folder=project, home=home)
    events = [json.loads(line) for line in printed.splitlines()]
    assert events[-1]["type"] == "turn.completed"
    complaints = [event for event in events if event["type"] == "error"]
    assert complaints == []
    assert (await scripted.balance())["settled"] == COST
