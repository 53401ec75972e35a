"""Provides books in a separate database, because tests verify all rows of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.books import Books, open_books
from tests.support.databases import own_database
from tests.support.gateway import Gateway, Tenant, running_gateway
from tollkeeper.setup.settings import Settings


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
    """Renews the lease. Otherwise a test's open holds would belong to a dead process when a later test
    verifies the ledger."""
    while True:
        await gateway.services.lease.heartbeat()
        await asyncio.sleep(gateway.services.lease.interval_s)


@pytest.fixture
async def books_tenant(books_gateway: Gateway) -> Tenant:
    """Creates an organization with one project, whose calls are written in these books."""
    return await books_gateway.make_tenant()


@pytest.fixture
async def books(books_gateway: Gateway, books_tenant: Tenant) -> Books:
    """Returns the ledger of a new organization with a credit of 100 USD."""
    return await open_books(books_gateway, books_tenant)
