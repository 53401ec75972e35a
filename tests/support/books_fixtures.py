"""Books in a database of their own: what is verified there, no other test has written to."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.books import Books, open_books
from tests.support.databases import own_database
from tests.support.gateway import Gateway, Tenant, running_gateway
from tollkeeper.settings import Settings


@pytest.fixture(scope="session")
def books_conninfo(shared_conninfo: str) -> str:
    return own_database(shared_conninfo, "books")


@pytest.fixture(scope="session")
async def books_gateway(settings: Settings, books_conninfo: str) -> AsyncIterator[Gateway]:
    async with running_gateway(settings, books_conninfo) as running:
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
async def books_tenant(books_gateway: Gateway) -> Tenant:
    """A fresh organization with one project, whose calls are written in the books."""
    return await books_gateway.make_tenant()


@pytest.fixture
async def books(books_gateway: Gateway, books_tenant: Tenant) -> Books:
    """A fresh organization with a hundred dollars."""
    return await open_books(books_gateway, books_tenant)
