"""Tests unmodified, headless Claude Code: it edits a file, over a chat backend and a Messages backend."""

import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.clients.programs import AGENT, ClientLogin, CommandLineClient
from tests.support.responses_answers import both, calls
from tests.support.scripted_gateway import COST, ScriptedGateway, scripted_gateway
from tests.support.upstream import USAGE, Peer, Upstream, Verb
from tests.support.upstream_messages import message, text_block, thinking_block, tool_block

# The first test installs the program. It has 240 MB, so the tests run only with --prove.
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("only_long")]

# In picousd per token.
_PROMPT_PRICE, _COMPLETION_PRICE, _READ_PRICE, _WRITE_PRICE = 200_000, 800_000, 20_000, 250_000
_USAGE = {
    "input_tokens": 12,
    "cache_read_input_tokens": 1000,
    "cache_creation_input_tokens": 100,
    "output_tokens": 5,
}
_MESSAGE_COST = 12 * _PROMPT_PRICE + 1000 * _READ_PRICE + 100 * _WRITE_PRICE + 5 * _COMPLETION_PRICE


def _steps(file: Path) -> list[tuple[str, dict[str, str]]]:
    path = str(file)
    return [
        ("Read", {"file_path": path}),
        ("Edit", {"file_path": path, "old_string": "hello", "new_string": "goodbye"}),
        ("Read", {"file_path": path}),
    ]


def _chat_model(file: Path) -> Verb:
    """Plays a model that reads a file, changes it, reads it again, and then reports the change."""
    steps = _steps(file)

    async def verb(peer: Peer) -> None:
        said = peer.request.json["messages"]
        done = sum(message["role"] == "tool" for message in said)
        if done < len(steps):
            name, arguments = steps[done]
            called = calls((f"call_{done}", name, json.dumps(arguments)))
            await both(called, finish="tool_calls")(peer)
        else:
            await both({"content": "It says goodbye now."})(peer)

    return verb


def _messages_model(file: Path) -> Verb:
    """Plays the same model with the Messages protocol. It checks that its thinking blocks are sent back."""
    steps = _steps(file)

    async def verb(peer: Peer) -> None:
        said = peer.request.json.get("messages", ())
        blocks = [block for turn in said for block in turn["content"] if isinstance(block, dict)]
        done = sum(block["type"] == "tool_result" for block in blocks)
        thoughts = [block for block in blocks if block["type"] == "thinking"]
        assert thoughts == [_thought(at) for at in range(done)]
        if done < len(steps):
            name, arguments = steps[done]
            called = tool_block(f"toolu_{done}", name, **arguments)
            answer = message(_thought(done), called, stop_reason="tool_use", usage=_USAGE)
        else:
            answer = message(text_block("It says goodbye now."), usage=_USAGE)
        await answer(peer)

    return verb


def _thought(at: int) -> dict[str, Any]:
    return thinking_block(f"Step {at}.", f"c2ln{at}")


@pytest.fixture
async def claude(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Starts a gateway with a Messages backend and a model that reasons."""
    async with (
        Upstream(message()) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            ordinary=message,
            extensions={"messages": True},
            backend={"protocol": "messages", "credential": "x-api-key"},
            model={
                "id": AGENT,
                "context_length": 200_000,
                "max_output_length": 32_000,
                "supported_features": ["tools", "reasoning"],
                "pricing": {
                    "prompt": "0.0000002",
                    "completion": "0.0000008",
                    "input_cache_read": "0.00000002",
                    "input_cache_write": "0.00000025",
                },
            },
        ) as running,
    ):
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    file = project / "greeting.txt"
    file.write_text("hello\n")
    return file


async def _run(
    claude_code: CommandLineClient, scripted: ScriptedGateway, file: Path, *arguments: str
) -> dict[str, Any]:
    """Runs Claude Code, and returns the result that it prints."""
    home = file.parents[1] / "home"
    home.mkdir()
    login = ClientLogin(scripted.gateway, scripted.tenant, AGENT)
    guide = login.guide("Claude Code")
    printed = await claude_code.run(
        login,
        *("--print", "--output-format", "json", "--permission-mode", "acceptEdits", *arguments),
        folder=file.parent,
        home=home,
        **{"ANTHROPIC_API_KEY": "", **dict(re.findall(r"export (\w+)=(.*)", guide))},
    )
    told: dict[str, Any] = json.loads(printed)
    return told


async def _assert_edited(
    claude_code: CommandLineClient,
    scripted: ScriptedGateway,
    file: Path,
    model: Callable[[Path], Verb],
    cost: int,
) -> dict[str, Any]:
    scripted.upstream.play(model(file))
    told = await _run(claude_code, scripted, file, "Say goodbye instead of hello.")
    assert (told["is_error"], told["result"]) == (False, "It says goodbye now."), told
    assert file.read_text() == "goodbye\n"  # noqa: ASYNC240 - the program has ended
    assert (await scripted.balance())["settled"] == 4 * cost
    entries = await scripted.entries()
    assert [(entry.status, entry.cost) for entry in entries] == [("settled", cost)] * 4
    services = scripted.gateway.services
    await services.recorder.drain()
    await services.activity.drain()
    rows = await scripted.sql(
        "SELECT operation, status, streamed FROM activity WHERE organization_id = %s",
        scripted.tenant.organization_id,
    )
    assert rows == [("message_create", 200, True)] * 4
    usage: dict[str, Any] = told["usage"]
    return usage


async def test_an_edit_over_a_chat_backend(
    claude_code: CommandLineClient, scripted: ScriptedGateway, file: Path
) -> None:
    usage = await _assert_edited(claude_code, scripted, file, _chat_model, COST)
    assert usage["input_tokens"] == 4 * USAGE["prompt_tokens"]
    assert usage["output_tokens"] == 4 * USAGE["completion_tokens"]


async def test_an_edit_over_a_messages_backend(
    claude_code: CommandLineClient, claude: ScriptedGateway, file: Path
) -> None:
    usage = await _assert_edited(claude_code, claude, file, _messages_model, _MESSAGE_COST)
    for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert usage[name] == 4 * _USAGE[name]
    sent = [request.json for request in claude.upstream.requests if "max_tokens" in request.json]
    assert {body["thinking"]["type"] for body in sent} == {"adaptive"}
    # Claude Code's cache marks reach the provider.
    assert all("cache_control" in json.dumps(body["system"]) for body in sent)


async def test_context(
    claude_code: CommandLineClient, scripted: ScriptedGateway, file: Path
) -> None:
    """The command /context counts tokens, which costs nothing."""
    told = await _run(claude_code, scripted, file, "/context")
    assert not told["is_error"]
    assert "Context Usage" in told["result"]
    assert await scripted.entries() == []
