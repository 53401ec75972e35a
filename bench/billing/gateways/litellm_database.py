"""Installs LiteLLM with its database client.

LiteLLM uses Prisma's client for Python, which is generated from a schema and starts Prisma's query
engine. LiteLLM's documentation recommends `prisma generate`, which downloads the engine from Prisma's
server. If this server cannot be reached, the client is generated with Prisma's npm package instead, and
`prisma/engine.cjs` runs the same version of the engine as WebAssembly.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psycopg
from tests.journeys.clients.environments import (
    NotInstalled,
    install_once,
    node_environment,
    python_environment,
)

from bench.peer_programs import PRISMA_PROJECT

_LOCKS = Path(__file__).parents[2] / "locks"
_ENGINE = PRISMA_PROJECT / "engine.cjs"
# The engine version that Prisma's client for Python expects.
_ENGINE_VERSION = "393aa359c9ad4a4bb28630fb5613f9c281cde053"
_GENERATE_WITHIN_S = 300


@dataclass(frozen=True)
class Installed:
    program: Path
    environment: dict[str, str]
    migrations: list[Path]
    engine: str


def install_litellm() -> Installed:
    python = python_environment("litellm", _LOCKS)
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    node = node_environment(PRISMA_PROJECT, "prisma")
    folder = node.project.with_name("prisma-client")
    schema, stand_in = folder / "schema.prisma", folder / "query-engine"
    # A separate package for the generated client: LiteLLM's environment has it without a schema.
    client = folder / "packages" / "prisma"
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "BILLING_PRISMA_PROJECT": str(node.project),
    }

    def install() -> None:
        client.mkdir(parents=True)
        declared = (packages / "litellm" / "proxy" / "schema.prisma").read_text()
        provider = 'provider = "prisma-client-py"'
        schema.write_text(declared.replace(provider, f'{provider}\n  output = "{client}"'))
        try:
            _run([python.with_name("prisma"), "generate", "--schema", schema], environment)
        except NotInstalled:
            shutil.rmtree(client)
            models = _run([node.program, _ENGINE, "dmmf", schema], environment)
            asked = json.dumps(_generation(schema, client, json.loads(models)))
            generating = environment | {"PRISMA_GENERATOR_INVOCATION": "1"}
            _run([python.with_name("prisma-client-py")], generating, asked + "\n")
            stand_in.write_text(f'#!/bin/sh\nexec "{node.program}" "{_ENGINE}" "$@"\n')
            stand_in.chmod(0o755)

    locks = [_LOCKS / "litellm.lock", PRISMA_PROJECT / "package-lock.json"]
    install_once(folder, locks, install)
    environment["PYTHONPATH"] = str(client.parent)
    engine = "Prisma's query engine"
    if stand_in.exists():
        environment["PRISMA_QUERY_ENGINE_BINARY"] = str(stand_in)
        engine += " as WebAssembly"
    migrations = (packages / "litellm_proxy_extras" / "migrations").glob("*/migration.sql")
    return Installed(python.with_name("litellm"), environment, sorted(migrations), engine)


def _generation(schema: Path, client: Path, models: object) -> dict[str, object]:
    """Return the message that `prisma generate` sends to the generator of Prisma's Python client."""
    source = {"name": "client", "provider": "postgresql", "activeProvider": "postgresql"}
    generator = {
        "name": "client",
        "provider": {"value": "prisma-client-py", "fromEnvVar": None},
        "output": {"value": str(client), "fromEnvVar": None},
        "config": {"recursive_type_depth": "-1"},
        "binaryTargets": [],
        "previewFeatures": [],
    }
    url = {"value": None, "fromEnvVar": "DATABASE_URL"}
    parameters = {
        "generator": generator,
        "otherGenerators": [],
        "schemaPath": str(schema),
        "datamodel": schema.read_text(),
        "datasources": [{**source, "sourceFilePath": str(schema), "url": url}],
        "dmmf": models,
        "version": _ENGINE_VERSION,
    }
    return {"jsonrpc": "2.0", "id": 1, "method": "generate", "params": parameters}


def _run(command: list[str | Path], environment: dict[str, str], sent: str | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment,
            input=sent,
            text=True,
            check=True,
            capture_output=True,
            timeout=_GENERATE_WITHIN_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        raise NotInstalled(f"{command[0]} failed: {exc.stderr!r}") from exc
    if '"error"' in done.stdout[:100]:
        raise NotInstalled(f"{command[0]} failed: {done.stdout[:1000]}")
    return done.stdout


def make_tables(conninfo: str, migrations: list[Path]) -> None:
    """Apply LiteLLM's own migrations, as its migration job does before the proxy starts."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for migration in migrations:
            connection.execute(migration.read_text())
