"""Runs a real gateway as an operator does, with tenants that have credit."""

import asyncio
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psycopg

from bench.upstream import PACES
from tollkeeper.core.access import PROJECT_KEY_PERMISSIONS
from tollkeeper.database.migrations import migrate
from tollkeeper.setup import running_services
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.settings import load_settings

# Maps each model of the upstream to its name at the gateway.
MODELS = {model: f"bench/{model}" for model in PACES}
_CREDIT = 10**18
_CONFIG = """
[server]
port = 0
[operator]
port = 0
[database]
url = "{url}"
data_dir = "{data_dir}"
[limits]
requests_per_minute = 10000000
concurrency = 1000000
[[backends]]
name = "bench"
kind = "openai"
urls = ["http://127.0.0.1:{upstream}/v1"]
connections = 18000
idle_timeout_s = 3600
"""
_MODEL = """
[[models]]
id = "{id}"
backend = "bench"
upstream_model = "{upstream}"
context_length = 32768
max_output_length = 4096
supported_sampling_parameters = ["temperature"]
pricing = {{ prompt = "0.0000002", completion = "0.0000008" }}
"""


@dataclass(frozen=True)
class Tenant:
    organization_id: str
    key: str


@dataclass(frozen=True)
class Running:
    port: int
    pid: int
    database_pid: int
    start_s: float
    tenants: list[Tenant]
    conninfo: str
    operator_port: int
    config: Path
    database: EmbeddedPostgres


@cache
def _compiled(python: str | Path) -> dict[str, str]:
    """Compiles the gateway's modules, as an installer does, and returns the environment variables with which
    Python finds them. Without compiled modules, a start from a checkout may have to compile all of them."""
    folder = tempfile.mkdtemp(prefix="tkb-compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    variables = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
    imported = "import tollkeeper.entry.commands.serve, tollkeeper.entry.worker"
    subprocess.run([python, "-c", imported], env=os.environ | variables, check=True)
    return variables


@contextmanager
def tollkeeper(
    folder: Path,
    upstream_port: int,
    *,
    tenants: int,
    workers: int = 1,
    python: str | Path = sys.executable,
    fill: Callable[[str], None] | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[Running]:
    """Starts an embedded database and then the gateway. `fill` gets the database's address and fills the
    database before the gateway starts. `settings` are further settings, by the names of their environment
    variables."""
    if fill is not None:
        with EmbeddedPostgres(folder) as server:
            _configure_for_large_books(server.conninfo)
    with EmbeddedPostgres(folder) as server:
        migrate(server.conninfo)
        if fill is not None:
            fill(server.conninfo)
        socket_folder = folder.resolve() / "postgres"
        config = write_config(folder, upstream_port)
        made = asyncio.run(make_tenants(config, server.conninfo, tenants))
        database_pid = int((socket_folder / "postmaster.pid").read_text().splitlines()[0])
        compiled = _compiled(python)
        started = time.perf_counter()
        with (
            (folder / "gateway.log").open("wb") as log,
            subprocess.Popen(
                [
                    *(python, "-m", "tollkeeper", "serve", "--config", str(config)),
                    *("--workers", str(workers), "--json"),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | compiled | (settings or {}),
            ) as process,
        ):
            try:
                assert process.stdout is not None
                addresses = json.loads(process.stdout.readline())
                start_s = time.perf_counter() - started
                public, operator = (
                    int(addresses[name].rsplit(":", 1)[1]) for name in ("public", "operator")
                )
                yield Running(
                    public,
                    process.pid,
                    database_pid,
                    start_s,
                    made,
                    server.conninfo,
                    operator,
                    config,
                    server,
                )
            finally:
                process.terminate()
                process.wait(60)


def _configure_for_large_books(conninfo: str) -> None:
    """Configures the server for some gigabytes: the pages stay in memory, and checkpoints are rare, so
    PostgreSQL seldom writes whole pages to the log."""
    settings = ("shared_buffers = '1GB'", "checkpoint_timeout = '30min'", "max_wal_size = '8GB'")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for setting in settings:
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())


def wal_bytes(conninfo: str) -> int:
    """Returns the number of bytes that the database has written to its log since it was created."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])


def write_config(folder: Path, upstream_port: int) -> Path:
    """Writes the settings of a gateway that uses the database in this folder."""
    url = f"postgresql://postgres@/postgres?host={folder.resolve() / 'postgres'}"
    models = [_MODEL.format(id=name, upstream=model) for model, name in MODELS.items()]
    head = _CONFIG.format(url=url, data_dir=folder, upstream=upstream_port)
    config = folder / "tollkeeper.toml"
    config.write_text(head + "".join(models))
    return config


async def make_tenants(config: Path, conninfo: str, count: int) -> list[Tenant]:
    made = []
    async with running_services(load_settings(config), conninfo) as services:
        for number in range(count):
            organization = await services.organizations.organization_create(f"bench {number}")
            project = await services.projects.project_create(organization.id, "bench")
            _, key = await services.project_keys.project_key_create_by_operator(
                project.id, "bench", PROJECT_KEY_PERMISSIONS, None
            )
            await services.accounts.credit_grant(organization.id, _CREDIT, "bench")
            made.append(Tenant(str(organization.id), key))
    return made
