"""Runs a real embedded engine for tests, and sends requests to it directly."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.gateway import running_gateway
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.upstream import Upstream
from tests.support.upstream import chat as scripted_chat
from tollkeeper.setup.embedded.engine import EmbeddedEngine, EngineOptions
from tollkeeper.setup.embedded.engine_address import EngineAddress
from tollkeeper.setup.embedded.packaged_model import PACKAGED_MODEL
from tollkeeper.setup.settings import Settings
from tollkeeper.setup.settings.schema import EmbeddedSettings


def engine_options(**changes: Any) -> EngineOptions:
    """Returns the engine options of a gateway with default settings, with these changes."""
    declared = EmbeddedSettings().model_dump(exclude={"enabled"})
    context_length = PACKAGED_MODEL.context_length
    return EngineOptions(**{**declared, "context_length": context_length, **changes})


READY_WITHIN_S = 60.0
_ANSWER_WITHIN_S = 60.0
# Two slots load faster than four, and suffice for parallel calls.
SMALL = engine_options(parallel=2, context_length=1024)


@asynccontextmanager
async def running_engine(options: EngineOptions = SMALL) -> AsyncIterator[EmbeddedEngine]:
    """Starts an engine, waits until it is ready, and stops it at the end."""
    engine = EmbeddedEngine(options)
    await engine.start()
    try:
        assert await engine.wait_ready(READY_WITHIN_S), engine.status
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def engine_gateway(
    data_dir: Path, conninfo: str, **model: Any
) -> AsyncIterator[ScriptedGateway]:
    """Runs a gateway with one model on the real engine. The scripted upstream is never called."""
    declared = {
        "backend": "local",
        "upstream_model": PACKAGED_MODEL.upstream_model,
        "context_length": SMALL.context_length,
        **model,
    }
    settings = Settings.model_validate(
        {
            "database": {"data_dir": data_dir, "pool_size": 8},
            "backends": [{"name": "local", "kind": "embedded"}],
            "models": [declared],
        }
    )
    async with (
        Upstream(scripted_chat()) as uncalled,
        running_engine() as engine,
        running_gateway(settings, conninfo, engine=address_of(engine)) as gateway,
    ):
        tenant = await gateway.make_tenant()
        made = ScriptedGateway(gateway, uncalled, tenant, probe_tenant=tenant)
        await made.grant(10**12)
        yield made


def address_of(engine: EmbeddedEngine) -> EngineAddress:
    assert engine.address is not None
    return engine.address


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


async def ask(
    address: EngineAddress, path: str, body: object = None, *, api_key: str | None = None
) -> EngineAnswer:
    """Sends one request to the engine: GET if there is no body. `api_key` replaces the right key."""
    return await asyncio.to_thread(_ask, address, path, body, api_key)


def _ask(address: EngineAddress, path: str, body: object, api_key: str | None) -> EngineAnswer:
    parts = urlsplit(address.base_url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_ANSWER_WITHIN_S)
    key = address.api_key if api_key is None else api_key
    headers = {"Authorization": f"Bearer {key}", "Origin": "http://elsewhere.example"}
    try:
        if body is None:
            connection.request("GET", parts.path + path, headers=headers)
        else:
            connection.request("POST", parts.path + path, json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        return EngineAnswer(response.status, dict(response.getheaders()), text)
    finally:
        connection.close()


async def chat(address: EngineAddress, content: object, **fields: object) -> EngineAnswer:
    """Asks for a short answer to one user message, or to the given list of messages."""
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, **fields}
    return await ask(address, "/chat/completions", body)
