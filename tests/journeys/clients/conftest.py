"""Fixtures for the tests of clients: one gateway with a scripted upstream, and the installed clients."""

import asyncio
import platform
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.journeys.clients.environments import (
    NODE_PROJECT,
    NODE_PROJECTS,
    Node,
    NotInstalled,
    node_environment,
    python_environment,
)
from tests.journeys.clients.programs import AGENT, CommandLineClient, NodeClient, PythonClient
from tests.support.databases import own_database
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Creates a database for these tests alone, because they verify the whole ledger."""
    return own_database(shared_conninfo, "clients")


_AGENT_MODEL = {
    "id": AGENT,
    "context_length": 200_000,
    "max_output_length": 32_000,
    "supported_features": ["tools"],
}


@pytest.fixture(scope="package")
async def shared_scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir, conninfo, extensions={"messages": True}, more_models=[_AGENT_MODEL]
    ) as running:
        yield running


@pytest.fixture
async def replaying(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Runs a gateway that accepts what LiteLLM's SDK adds to answers that it sends back."""
    accepting = {"accept_provider_specific_fields": True}
    async with answering_gateway(
        data_dir, conninfo, conventions=accepting, more_models=[_AGENT_MODEL]
    ) as running:
        yield running


@pytest.fixture(scope="session")
async def node() -> NodeClient:
    return NodeClient(await _node_environment(NODE_PROJECT, "npm"))


@pytest.fixture(scope="session")
async def ai_sdk() -> NodeClient:
    return await node_client("ai_sdk")


@pytest.fixture(scope="session")
async def codex() -> CommandLineClient:
    installed = await _node_environment(NODE_PROJECTS["codex"], "codex")
    return CommandLineClient(installed, "@openai/codex/bin/codex.js")


@pytest.fixture(scope="session")
async def claude_code() -> CommandLineClient:
    installed = await _node_environment(NODE_PROJECTS["claude_code"], "claude_code")
    return CommandLineClient(installed, "@anthropic-ai/claude-code/cli-wrapper.cjs")


@pytest.fixture(scope="session")
async def opencode() -> CommandLineClient:
    installed = await _node_environment(NODE_PROJECTS["opencode"], "opencode")
    kind = "arm64" if platform.machine() == "aarch64" else "x64-baseline"
    return CommandLineClient(installed, f"opencode-linux-{kind}/bin/opencode")


@pytest.fixture(scope="session")
async def qwen() -> CommandLineClient:
    installed = await _node_environment(NODE_PROJECTS["qwen"], "qwen")
    return CommandLineClient(installed, "@qwen-code/qwen-code/cli-entry.js")


@pytest.fixture(scope="session")
async def java() -> PythonClient:
    return await python_client("java")


@pytest.fixture(scope="session")
async def agents() -> PythonClient:
    return await python_client("agents")


@pytest.fixture(scope="session")
async def oldest_anthropic() -> PythonClient:
    return await python_client("anthropic-0")


@pytest.fixture(scope="session", params=["anthropic-0", "anthropic-1"])
async def older_anthropic(request: pytest.FixtureRequest) -> PythonClient:
    return await python_client(request.param)


@pytest.fixture(scope="session")
async def google_genai() -> PythonClient:
    return await python_client("google-genai")


@pytest.fixture(scope="session")
async def botocore() -> PythonClient:
    return await python_client("botocore")


@pytest.fixture(scope="session")
async def framework(request: pytest.FixtureRequest) -> PythonClient:
    """Returns the framework whose lock file the test names."""
    return await python_client(request.param)


async def _node_environment(declared_in: Path, name: str) -> Node:
    # In a thread, because gateways of other tests run in this event loop.
    try:
        return await asyncio.to_thread(node_environment, declared_in, name)
    except NotInstalled as exc:
        pytest.fail(str(exc), pytrace=False)


async def node_client(name: str) -> NodeClient:
    return NodeClient(await _node_environment(NODE_PROJECTS[name], name), NODE_PROJECTS[name])


async def python_client(name: str) -> PythonClient:
    try:
        return PythonClient(await asyncio.to_thread(python_environment, name))
    except NotInstalled as exc:
        pytest.fail(str(exc), pytrace=False)
