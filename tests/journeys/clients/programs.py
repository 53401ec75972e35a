"""Runs other projects' clients as separate programs. Most of them print one JSON text, which is decoded."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.journeys.clients.environments import NODE_PROJECT, Node
from tests.support.documents import ROOT, blocks_below
from tests.support.gateway import Gateway, Tenant

_PYTHON_SCRIPTS = Path(__file__).parent / "python"
_GUIDES = ROOT / "docs" / "clients.md"
# Time limit for each program, in seconds.
_ENDS_WITHIN_S = 240
# A model for agents, with tools and nothing else: no reasoning and no web search.
AGENT = "example/agent"


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """The gateway, key and model that a client uses. Each SDK reads them from its own variables."""

    gateway: Gateway
    tenant: Tenant
    model: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            # Inherit only PATH: this process's proxies and keys must not reach a client.
            "PATH": os.environ.get("PATH", ""),
            "OPENAI_BASE_URL": f"{self.gateway.base_url}/v1",
            "OPENAI_API_KEY": self.tenant.project_key,
            "ANTHROPIC_BASE_URL": self.gateway.base_url,
            "ANTHROPIC_API_KEY": self.tenant.project_key,
            "MODEL": self.model,
        }

    def guide(self, client: str) -> str:
        """Returns the settings in the documents for a client, with this gateway, key and model."""
        [block] = blocks_below(_GUIDES, client)
        text = block.text.replace("https://gateway.example.com", self.gateway.base_url)
        text = text.replace("PROJECT_KEY", self.tenant.project_key)
        return re.sub(r"(?<!_)MODEL\b", self.model, text)


@dataclass(frozen=True, slots=True)
class NodeClient:
    node: Node
    scripts: Path = NODE_PROJECT

    async def run(self, script: str, login: ClientLogin, *arguments: str) -> Any:
        """Runs a script from standard input, so that it finds the packages of the working folder."""
        command = [str(self.node.program), "--input-type=module", "-", *arguments]
        source = (self.scripts / script).read_bytes()
        return await _run(command, login.environment, source, folder=self.node.project)


@dataclass(frozen=True, slots=True)
class PythonClient:
    python: Path

    async def run_module(
        self, module: str, login: ClientLogin, *arguments: str, folder: Path, home: Path
    ) -> str:
        """Runs a module, and returns its output. The program keeps its files in `home`."""
        environment = {
            **login.environment,
            "HOME": str(home),
            "OPENAI_API_BASE": login.environment["OPENAI_BASE_URL"],
        }
        command = [str(self.python), "-P", "-m", module, *arguments]
        return (await _output_of(command, environment, folder=folder)).decode()

    async def run_text(self, source: str, login: ClientLogin) -> str:
        """Runs a program that is given as text, and returns its output."""
        command = [str(self.python), "-P", "-c", source]
        return (await _output_of(command, login.environment)).decode()

    async def run(self, script: str, login: ClientLogin, *arguments: str) -> Any:
        command = [str(self.python), "-P", str(_PYTHON_SCRIPTS / script), *arguments]
        return await _run(command, login.environment)


@dataclass(frozen=True, slots=True)
class CommandLineClient:
    """An agent that is started in a project's folder. It keeps its files in `home`."""

    node: Node
    # The path below `node_modules`, of a script (with a suffix) or an executable (without).
    script: str

    async def run(
        self, login: ClientLogin, *arguments: str, folder: Path, home: Path, **variables: str
    ) -> str:
        """Runs the agent, and returns its output."""
        script = self.node.project / "node_modules" / self.script
        interpreter = [str(self.node.program)] if script.suffix else []
        command = [*interpreter, str(script), *arguments]
        environment = {**login.environment, "HOME": str(home), **variables}
        return (await _output_of(command, environment, folder=folder)).decode()


async def _run(
    command: list[str],
    environment: Mapping[str, str],
    source: bytes = b"",
    folder: Path | None = None,
) -> Any:
    return json.loads(await _output_of(command, environment, source, folder))


async def _output_of(
    command: list[str],
    environment: Mapping[str, str],
    source: bytes = b"",
    folder: Path | None = None,
) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=folder,
    )
    try:
        async with asyncio.timeout(_ENDS_WITHIN_S):
            printed, complaint = await process.communicate(source)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (complaint + printed).decode()
    return printed
