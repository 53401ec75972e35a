"""Provides ledger processes on a separate database, and verifies after each test what it wrote."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import own_database
from tests.support.ledger import (
    Process,
    created,
    differences,
    make_database,
    make_process,
    running_process,
)
from tollkeeper.database.database import Database


@pytest.fixture(scope="session")
def ledger_conninfo(shared_conninfo: str) -> str:
    """Creates a separate database, because the invariants are checked over all its rows."""
    return own_database(shared_conninfo, "ledger")


@pytest.fixture(scope="session")
async def ledger_database(ledger_conninfo: str) -> AsyncIterator[Database]:
    database = make_database(ledger_conninfo)
    await database.open()
    yield database
    assert await differences(database) == []
    await database.close()


@pytest.fixture
async def verified_books(ledger_database: Database) -> AsyncIterator[None]:
    """Checks after the test that all invariants hold for its organizations. After all tests, they are
    checked for all organizations."""
    created.clear()
    yield
    if created:
        assert await differences(ledger_database, *created) == []


@pytest.fixture
async def process(ledger_database: Database, verified_books: None) -> AsyncIterator[Process]:
    """Yields a new process on shared connections, whose statements earlier tests have prepared."""
    running = make_process(ledger_database)
    yield running
    await running.ledger.drain()


@pytest.fixture
async def other_process(ledger_conninfo: str, verified_books: None) -> AsyncIterator[Process]:
    """Yields another process on the same database, with its own id and its own connections."""
    async with running_process(ledger_conninfo) as running:
        yield running
