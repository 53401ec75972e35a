"""Books in a database of their own: what is verified here, no other test has written to."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.billing.books import Books, open_books
from tests.cli.conftest import cold_program, compiled, program
from tests.cli.program import Program, write_config
from tests.databases import own_database
from tests.gateway import Gateway, Tenant, serving
from tollkeeper.settings import Settings

__all__ = ["cold_program", "compiled", "program"]


@pytest.fixture(scope="session")
def own_conninfo(conninfo: str) -> str:
    return own_database(conninfo, "billing")


@pytest.fixture(scope="session")
async def gateway(settings: Settings, own_conninfo: str) -> AsyncIterator[Gateway]:
    async with serving(settings, own_conninfo) as running:
        living = asyncio.create_task(_prove_life(running))
        yield running
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)


async def _prove_life(gateway: Gateway) -> None:
    """Or what a test has left held would be a dead process's by the time another one verifies."""
    while True:
        await gateway.services.lease.heartbeat()
        await asyncio.sleep(gateway.services.lease.interval_s)


@pytest.fixture
async def books(gateway: Gateway, tenant: Tenant) -> Books:
    """A fresh organization with a hundred dollars."""
    return await open_books(gateway, tenant)


@pytest.fixture(scope="session")
def operator(
    program: Program, own_conninfo: str, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Program:
    """The program over these books."""
    parts = conninfo_to_dict(own_conninfo)
    host, user = quote(str(parts["host"]), safe=""), quote(str(parts["user"]))
    url = f"postgresql://{user}@/billing?host={host}"
    return program.with_config(write_config(tmp_path_factory.mktemp("billing"), data_dir, url=url))
