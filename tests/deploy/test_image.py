"""Tests the built image of deploy/Dockerfile: its user, its files, its health check, and a call."""

import asyncio
import json
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.deploy.image_build import CannotBuild, Image, build_image
from tests.support.databases import own_database
from tests.support.machines import database_relay
from tests.support.proof import Proof
from tests.support.scripted_gateway import COST, MODEL, chat_body
from tests.support.upstream import Upstream, chat
from tollkeeper.core.money import usd_from_picousd

_CONFIG = "/etc/tollkeeper/tollkeeper.toml"
_PATIENCE_S = 60
_SETTINGS = """
[secrets]
master_key = "env:MASTER_KEY"
[embedded]
enabled = false
[[backends]]
name = "scripted"
kind = "openai"
urls = ["{url}"]
[[models]]
id = "{model}"
backend = "scripted"
upstream_model = "upstream-chat"
context_length = 4096
max_output_length = 2048
pricing = {{ prompt = "0.0000002", completion = "0.0000008" }}
"""


class Container:
    """Runs commands in the image, with a settings file and environment variables."""

    def __init__(self, image: Image, config: Path, environment: dict[str, str]) -> None:
        self._image = image
        self._volumes = {config: _CONFIG}
        self._environment = environment

    def line(self, *command: str) -> list[str]:
        return self._image.line(*command, volumes=self._volumes, environment=self._environment)

    async def run(self, *command: str) -> str:
        started = await asyncio.create_subprocess_exec(
            *self.line(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(started.communicate(), _PATIENCE_S)
        assert started.returncode == 0, (out + err).decode()
        return out.decode()

    async def tollkeeper(self, *arguments: str) -> dict[str, Any]:
        entry = self._image.config["Entrypoint"]
        shown = json.loads(await self.run(*entry, *arguments, "--json"))
        assert isinstance(shown, dict)
        return shown

    @asynccontextmanager
    async def serving(self, operator: str) -> AsyncIterator[None]:
        line = self.line(*self._image.config["Entrypoint"], *self._image.config["Cmd"])
        process = await asyncio.create_subprocess_exec(*line)
        try:
            await _until_healthy(operator)
            yield
        finally:
            _supervisor(process.pid).terminate()
            assert await asyncio.wait_for(process.wait(), _PATIENCE_S) == 0


def _supervisor(pid: int) -> psutil.Process:
    """Returns the program's first process below those of buildah. Parents come before their children."""
    below = psutil.Process(pid).children(recursive=True)
    return next(found for found in below if found.cmdline()[0].startswith("/opt/tollkeeper/"))


async def _until_healthy(operator: str) -> None:
    async with httpx2.AsyncClient() as client, asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                if (await client.get(f"{operator}/readyz")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@asynccontextmanager
async def _over_tcp(conninfo: str) -> AsyncIterator[str]:
    """Makes the tests' database available over TCP, because the image's user may not open its socket."""
    parts = conninfo_to_dict(conninfo)
    async with database_relay(conninfo) as relay:
        yield f"postgresql://{parts['user']}@127.0.0.1:{relay.port}/{parts['dbname']}"


@pytest.fixture(scope="module")
def image(only_long: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    try:
        yield build_image(folder)
    except CannotBuild as exc:
        pytest.skip(f"the image cannot be built here: {exc}")
    finally:
        # Each layer is a whole copy of the files. This is too much for tests' temporary folders.
        shutil.rmtree(folder)


async def test_the_image_serves_a_call(
    image: Image, shared_conninfo: str, tmp_path: Path, proof: Proof
) -> None:
    conninfo = own_database(shared_conninfo, "image")
    public, operator = _free_port(), _free_port()
    async with Upstream(chat()) as upstream, _over_tcp(conninfo) as url:
        config = tmp_path / "tollkeeper.toml"
        config.write_text(_SETTINGS.format(url=upstream.url, model=MODEL))
        environment = {
            "TOLLKEEPER_CONFIG": _CONFIG,
            "TOLLKEEPER_DATABASE__URL": url,
            "TOLLKEEPER_SERVER__PORT": str(public),
            "TOLLKEEPER_OPERATOR__PORT": str(operator),
            "MASTER_KEY": secrets.token_hex(32),
        }
        container = Container(image, config, environment)
        await container.tollkeeper("migrate")
        organization = (await container.tollkeeper("organization", "create", "Acme"))["id"]
        project = (await container.tollkeeper("project", "create", organization, "Shop"))["id"]
        await container.tollkeeper("credit", "grant", organization, "1")
        key = (await container.tollkeeper("project-key", "create", project, "Server"))["value"]
        async with container.serving(f"http://127.0.0.1:{operator}"):
            await container.run(*_health_check(image, operator))
            async with httpx2.AsyncClient(timeout=_PATIENCE_S) as client:
                answer = await client.post(
                    f"http://127.0.0.1:{public}/v1/chat/completions",
                    json=chat_body(),
                    headers={"Authorization": f"Bearer {key}"},
                )
            assert answer.status_code == 200, answer.text
        credit = await container.tollkeeper("credit", "show", organization)
    assert credit["settled"] == usd_from_picousd(COST)
    proof.count("calls through the image")


def _health_check(image: Image, operator: int) -> list[str]:
    """Returns the command of the image's health check, with the port of this test."""
    kind, *command = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return [argument.replace(":8081", f":{operator}") for argument in command]


async def test_its_user_owns_nothing_of_the_program(image: Image, tmp_path: Path) -> None:
    config = tmp_path / "empty.toml"
    config.touch()
    container = Container(image, config, {})
    assert (await container.run("id", "-u")).strip() == "10001" == image.config["User"]
    # `find` fails at folders that the user may not read. The user does not own these either.
    search = "find /opt /usr /etc -writable -not -type l 2>/dev/null || true"
    assert await container.run("sh", "-c", search) == ""
    # The user may write to its data folder.
    await container.run("sh", "-c", "test -w . && test -w /var/lib/tollkeeper")


async def test_nothing_is_compiled_at_each_start(image: Image, tmp_path: Path) -> None:
    """The image's user cannot store compiled files, so the image must contain them."""
    config = tmp_path / "empty.toml"
    config.touch()
    container = Container(image, config, {})
    listed = await container.run(
        "find", "/opt/tollkeeper/lib", "-name", "*.py*", "-path", "*tollkeeper/*"
    )
    sources = {name for name in listed.split() if name.endswith(".py")}
    compiled = [name for name in listed.split() if name.endswith(".pyc")]
    assert len(sources) > 300
    assert len(compiled) >= len(sources)
