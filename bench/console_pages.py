"""`python -m bench.console_pages`: how long the pages of the console take over many calls.

Fills a database with activity, serves the console over it, and asks for each page several times. CPU
time is that of the console's process and of the database together, so it means the same on a busy
machine.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import UUID

import httpx2
from psycopg.conninfo import conninfo_to_dict
from tests.support.console_site import TOKEN, serving_console
from tests.support.constants import constants
from tests.support.large_activity import (
    COST_MAX,
    DEAREST,
    MODELS,
    POLICY,
    LargeActivity,
    fill_activity,
)
from tests.support.ledger import LedgerTenant, another_project, make_tenant

from bench.processes import tree_cpu_s
from tollkeeper.database.migrations import migrate
from tollkeeper.policies import store as policies
from tollkeeper.policies.policy import Direction, Mode, Policy, PolicyState, Rule, Scope
from tollkeeper.setup import running_services
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.services import Services
from tollkeeper.setup.settings import Settings

_ORGANIZATIONS = 20
# Each project has one key.
_PROJECTS_EACH = 5
# The statement timeout while the database is filled, which takes minutes.
_FILL_S = 3600


@dataclass(frozen=True, slots=True)
class Took:
    """One page's median time, mean CPU times and size."""

    page: str
    wall_ms: float
    console_cpu_ms: float
    database_cpu_ms: float
    kilobytes: float


def main() -> None:
    options = _options()
    with _folder(options.data_dir) as folder, EmbeddedPostgres(folder) as server:
        migrate(server.conninfo)
        if not (folder / "filled").exists():
            asyncio.run(_fill(folder, server.conninfo, options))
            (folder / "filled").touch()
        took = asyncio.run(_measure(folder, server.conninfo, options.rounds))
    print(f"{options.calls} calls in {options.days} days, load {os.getloadavg()[0]:.1f}\n")
    print(table(took))


def table(pages: list[Took]) -> str:
    lines = ["| page | ms | CPU ms | of it database | kB |", "|---|---:|---:|---:|---:|"]
    for page in pages:
        cpu_ms = page.console_cpu_ms + page.database_cpu_ms
        lines.append(
            f"| {page.page} | {page.wall_ms:.0f} | {cpu_ms:.0f} | {page.database_cpu_ms:.0f} "
            f"| {page.kilobytes:.0f} |"
        )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data-dir", type=Path, help="is kept, and filled only once")
    return parser.parse_args()


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    kept.mkdir(parents=True, exist_ok=True)
    yield kept


def _settings(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "database": {"data_dir": folder},
            "backends": [
                {"name": name, "kind": "openai", "urls": ["http://127.0.0.1:9/v1"]}
                for name in ("first", "second")
            ],
            "models": [
                {
                    "id": model,
                    "backend": "first",
                    "upstream_model": model,
                    "context_length": 4096,
                    "max_output_length": 2048,
                    "pricing": {"prompt": "0.0000002", "completion": "0.0000008"},
                }
                for model in MODELS
            ],
        }
    )


@asynccontextmanager
async def _running(
    settings: Settings, conninfo: str, statement_timeout_s: float
) -> AsyncIterator[Services]:
    timeout = {"statement_timeout_s": statement_timeout_s}
    with constants({"setup.services.Database": timeout}):
        async with running_services(settings, conninfo) as services:
            yield services


async def _fill(folder: Path, conninfo: str, options: argparse.Namespace) -> None:
    async with _running(_settings(folder), conninfo, _FILL_S) as services:
        tenants: list[LedgerTenant] = []
        for _ in range(_ORGANIZATIONS):
            tenant = await make_tenant(services.database)
            more = [
                await another_project(services.database, tenant) for _ in range(_PROJECTS_EACH - 1)
            ]
            tenants += [tenant, *more]
        wanted = LargeActivity(options.calls, options.days, int(time.time()))
        async with services.database.autocommit() as connection:
            await fill_activity(connection, tenants, wanted)
        async with services.database.transaction() as connection:
            await policies.insert(connection, _policy(tenants[0]))
        await services.upkeep.keep_partitions()


def _policy(owner: LedgerTenant) -> Policy:
    """Returns the policy whose verdicts the activity contains."""
    return Policy(
        id=POLICY,
        organization_id=owner.organization_id,
        name="Asked often",
        description="",
        state=PolicyState.DRAFT,
        revision=1,
        created_at=1_800_000_000,
        updated_at=1_800_000_000,
        draft=Rule("Is it so?", Direction.REQUEST, Mode.MONITORING, Scope.ORGANIZATION),
        base_version=0,
        published=None,
    )


async def _measure(folder: Path, conninfo: str, rounds: int) -> list[Took]:
    settings = _settings(folder)
    async with (
        _running(settings, conninfo, 60) as services,
        serving_console(settings, services) as address,
        httpx2.AsyncClient(base_url=address, timeout=60, follow_redirects=True) as client,
    ):
        await client.post("/sign-in", data={"token": TOKEN})
        server = _database_process(conninfo)
        pages = await _pages(services)
        return [await _took(client, server, page, path, rounds) for page, path in pages.items()]


async def _took(client: httpx2.AsyncClient, server: int, page: str, path: str, rounds: int) -> Took:
    walls: list[float] = []
    size = 0
    (await client.get(path)).raise_for_status()
    database_before, console_before = tree_cpu_s(server), time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        answer = await client.get(path)
        walls.append(time.perf_counter() - began)
        answer.raise_for_status()
        size = len(answer.content)
    console_ms = (time.process_time() - console_before) / rounds * 1000
    database_ms = (tree_cpu_s(server) - database_before) / rounds * 1000
    return Took(page, median(walls) * 1000, console_ms, database_ms, size / 1000)


def _database_process(conninfo: str) -> int:
    folder = Path(str(conninfo_to_dict(conninfo)["host"]))
    return int((folder / "postmaster.pid").read_text().splitlines()[0])


async def _pages(services: Services) -> dict[str, str]:
    (newest,) = await services.activity.activity_list(limit=1)
    organization, project = newest.organization_id, newest.project_id
    return {
        "overview, a day": "/?range=24h",
        "overview, 30 days": "/?range=30d",
        "activity, a day": "/activity?range=24h",
        "activity, 30 days": "/activity?range=30d",
        **_filtered(organization, newest.key_id),
        "one call": f"/activity/{newest.request_id}",
        "costs": f"/costs?organization={organization}&range=30d",
        "unsettled": "/unsettled",
        "organizations": "/organizations",
        "an organization": f"/organizations/{organization}",
        "projects": f"/projects?organization={organization}",
        "a project": f"/projects/{project}",
        "keys": f"/keys?organization={organization}",
        "policies": f"/policies?organization={organization}",
        "a policy, 30 days": f"/policies/{POLICY}?days=30",
        "models": "/models",
        "backends": "/backends",
        "settings": "/settings",
        "audit": "/audit",
    }


def _filtered(organization: UUID, key: UUID) -> dict[str, str]:
    filters = {
        "of an organization": f"organization={organization}",
        "of a key": f"organization={organization}&key={key}",
        "of a model": f"model={MODELS[0]}",
        "with errors": "status=error",
        "the dearest": f"cost={_usd(DEAREST)}",
        "dear ones": f"cost={_usd(COST_MAX - 1)}",
        "by cost": f"cost={_usd(COST_MAX // 2)}",
        "the dearest of an organization": f"organization={organization}&cost={_usd(DEAREST)}",
    }
    return {
        f"activity {name}, 30 days": f"/activity?range=30d&{query}"
        for name, query in filters.items()
    }


def _usd(picousd: int) -> str:
    return f"{picousd / 10**12:.12f}"


if __name__ == "__main__":
    main()
