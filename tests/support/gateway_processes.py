"""Runs the real program as separate processes, with a scripted upstream in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.support.constants import constants_path
from tests.support.databases import data_dir_beside, database_url
from tests.support.gateway import Gateway
from tests.support.program import Program, Serving, serving
from tests.support.scripted_gateway import ScriptedGateway, scripted_settings
from tests.support.upstream import Upstream
from tollkeeper.setup import running_services
from tollkeeper.setup.services import Services

_SECTIONS = ("server", "operator", "ledger", "limits", "database", "judge")


@dataclass(frozen=True)
class InstalledProgram:
    """Contains a configured program on a running database, and services that read what it wrote."""

    program: Program
    upstream: Upstream
    services: Services

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[Serving, ScriptedGateway]]:
        """Starts the gateway in separate processes, and creates a tenant with credit."""
        with ExitStack() as stack:
            running = await asyncio.to_thread(stack.enter_context, serving(self.program))
            try:
                async with httpx2.AsyncClient(
                    base_url=running.public,
                    timeout=60,
                    limits=httpx2.Limits(max_connections=None),
                ) as client:
                    gateway = Gateway(running.public, self.services, client)
                    tenant = await gateway.make_tenant()
                    scripted = ScriptedGateway(gateway, self.upstream, tenant, probe_tenant=tenant)
                    await scripted.grant(10**13)
                    yield running, scripted
            finally:
                # Waits in another thread, because the upstream in this loop must still answer.
                await asyncio.to_thread(stack.close)


@asynccontextmanager
async def installed_program(
    folder: Path,
    data_dir: Path,
    conninfo: str,
    upstream: Upstream,
    environment: dict[str, str],
    *,
    changed_constants: Mapping[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[InstalledProgram]:
    """Writes the settings file. `changed_constants` replaces constants in the program's processes."""
    settings = scripted_settings(data_dir, upstream.url, **changes)
    dumped = settings.model_dump(mode="json")
    dumped["server"]["port"] = dumped["operator"]["port"] = 0
    dumped["database"]["url"] = database_url(conninfo)
    dumped["database"]["data_dir"] = str(data_dir_beside(data_dir, conninfo))
    config = folder / "tollkeeper.toml"
    tables = {name: [dumped[name]] for name in _SECTIONS if dumped[name] is not None}
    arrays = {name: dumped[name] for name in ("backends", "models")}
    config.write_text(
        "".join(_toml(f"[{name}]", found) for name, found in tables.items())
        + "".join(_toml(f"[[{name}]]", found) for name, found in arrays.items())
    )
    if changed_constants:
        environment = {**environment, "PYTHONPATH": constants_path(folder, changed_constants)}
    async with running_services(settings, conninfo) as services:
        yield InstalledProgram(Program(config, folder, environment), upstream, services)


def _toml(head: str, tables: list[dict[str, Any]]) -> str:
    lines = []
    for table in tables:
        lines.append(head)
        # TOML has no null: a setting without a value is left out.
        lines += [f"{name} = {_value(value)}" for name, value in table.items() if value is not None]
    return "\n".join([*lines, ""])


def _value(value: Any) -> str:
    """Writes a value as TOML, which equals JSON except for objects."""
    if isinstance(value, dict):
        inner = ", ".join(
            f"{json.dumps(name)} = {_value(found)}"
            for name, found in value.items()
            if found is not None
        )
        return f"{{ {inner} }}"
    return json.dumps(value)
