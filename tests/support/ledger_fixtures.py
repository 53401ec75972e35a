"""Ledger processes on a database of their own. What a test wrote is verified after it."""

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
from tollkeeper.storage.database import Database


@pytest.fixture(scope="session")
def ledger_conninfo(shared_conninfo: str) -> str:
    """A database apart: the invariants are checked over all its rows, again and again."""
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
    """Whatever a test does, all ten invariants hold for its organizations when it is over. They are
    checked for all organizations when all tests are over."""
    created.clear()
    yield
    if created:
        assert await differences(ledger_database, *created) == []


@pytest.fixture
async def process(ledger_database: Database, verified_books: None) -> AsyncIterator[Process]:
    """A process of its own, on connections that have prepared their statements for earlier tests."""
    running = make_process(ledger_database)
    yield running
    await running.ledger.drain()


@pytest.fixture
async def other_process(ledger_conninfo: str, verified_books: None) -> AsyncIterator[Process]:
    """Another process on the same database: another identity, other connections."""
    async with running_process(ledger_conninfo) as running:
        yield running
