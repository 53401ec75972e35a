"""Tests that every guide works if a reader pastes it from the beginning to the end: commands, Python, Node
and curl, against one gateway with a scripted model."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.journeys.clients.environments import node_environment
from tests.support.databases import data_dir_beside, database_url
from tests.support.documents import GUIDES, Block, blocks_of, shown
from tests.support.program import Program, model_entry, write_config
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway
from tollkeeper.core.access import ADMIN_PERMISSIONS, PROJECT_KEY_PERMISSIONS

# The first guide with JavaScript installs Node.
pytestmark = pytest.mark.timeout(900)

_MODEL = "tollkeeper/smollm2-135m-instruct"
_WITHIN_S = 120
# Names of objects in the guides. Each guide gets separate objects.
_NAMES = re.compile(r"\b(Acme|Demo|Search|search-\w+|No passwords)\b(?!-)")
_RUN_BY_US = ("curl", "export", "tollkeeper")


@pytest.fixture(scope="module")
async def running(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(data_dir, conninfo, more_models=[{"id": _MODEL}]) as scripted:
        yield scripted


@pytest.fixture(scope="module")
def command_line(
    conninfo: str,
    data_dir: Path,
    compiled: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Program:
    """Returns the command line program, which uses the database of the gateway."""
    url, data_dir = database_url(conninfo), data_dir_beside(data_dir, conninfo)
    config = write_config(
        *(tmp_path_factory.mktemp("guides"), data_dir),
        url=url,
        more=model_entry("example/chat-small"),
    )
    return Program(config, tmp_path_factory.mktemp("elsewhere"), compiled, warm=True)


@dataclass
class Reader:
    """A reader who pastes the blocks of one guide, one after the other."""

    running: ScriptedGateway
    program: Program
    own: str
    project_id: str
    project_key: str
    admin_key: str
    # The variables that the reader has exported.
    environment: dict[str, str]

    async def paste(self, block: Block) -> None:
        text = self._with_own_names(block.text)
        match block.language:
            case "python":
                # The program gets its own process, because it does not close its SDK client.
                assert (await self._run([sys.executable, "-"], source=text)).strip()
            case "js":
                node = await asyncio.to_thread(node_environment)
                line = [str(node.program), "--input-type=module", "-"]
                await self._run(line, source=text, folder=node.project)
            case "sh":
                own = Block(block.place, block.language, block.exemption, text)
                for command in own.commands:
                    await self._type(command, block.place)

    async def _type(self, command: str, place: str) -> None:
        name = command.partition(" ")[0]
        assert name in _RUN_BY_US, f"{place}: nothing here runs {name!r}; say why in the fence"
        if name == "export":
            variable = command.removeprefix("export ").partition("=")[0]
            self.environment[variable] = self._value_of(variable)
        elif name == "curl":
            if shutil.which("curl") is None:
                pytest.skip("curl is not installed")
            await self._run(["sh", "-c", f"{command} --silent --fail-with-body"])
        else:
            told = await asyncio.to_thread(self.program.run, *_words(command)[1:])
            assert told.code == 0, f"{place}: {command}\n{told.err}"

    def _value_of(self, variable: str) -> str:
        return {
            "OPENAI_BASE_URL": f"{self.running.gateway.base_url}/v1",
            "OPENAI_API_KEY": self.project_key,
            "ADMIN_KEY": self.admin_key,
            "PROJECT_ID": self.project_id,
        }[variable]

    def _with_own_names(self, text: str) -> str:
        text = text.replace("http://127.0.0.1:8080", self.running.gateway.base_url)
        text = text.replace('"tkp_…"', f'"{self.project_key}"')
        # The demo's organization is the reader's.
        return _NAMES.sub(lambda found: found[0].replace("Demo", "Acme") + self.own, text)

    async def _run(self, line: list[str], source: str = "", folder: Path | None = None) -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            line,
            input=source,
            cwd=folder,
            env=self.program.process_environment() | self.environment,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return str(done.stdout)


def _words(command: str) -> list[str]:
    return [word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", command)]


async def _new_reader(running: ScriptedGateway, program: Program, guide: Path) -> Reader:
    services = running.gateway.services
    own = f"-{guide.stem.lower()}"
    organization = await services.organizations.organization_create(f"Acme{own}")
    project = await services.projects.project_create(organization.id, f"Search{own}")
    _, admin_key = await services.admin_keys.admin_key_create(
        organization.id, "root", ADMIN_PERMISSIONS, None
    )
    _, project_key = await services.project_keys.project_key_create_by_operator(
        project.id, "own", PROJECT_KEY_PERMISSIONS, None
    )
    await services.accounts.credit_grant(organization.id, 10**13, "test")
    # This call gives the reports a cost to show.
    answer = await running.chat(headers={"Authorization": f"Bearer {project_key}"})
    assert answer.status_code == 200, answer.text
    return Reader(running, program, own, str(project.id), project_key, admin_key, {})


@pytest.mark.parametrize("guide", GUIDES, ids=shown)
async def test_a_guide_works(
    guide: Path,
    running: ScriptedGateway,
    command_line: Program,
) -> None:
    reader = await _new_reader(running, command_line, guide)
    for block in blocks_of(guide):
        if block.runs:
            await reader.paste(block)
