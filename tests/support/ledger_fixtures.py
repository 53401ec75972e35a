"""Ledger processes on a database of their own, which is verified after every test that used it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import own_database
from tests.support.ledger import Process, differences, make_database, running_process
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
    await database.close()


@pytest.fixture
async def verified_books(ledger_database: Database) -> AsyncIterator[None]:
    """Whatever a test does, all ten invariants hold when it is over."""
    yield
    assert await differences(ledger_database) == []


@pytest.fixture
async def process(ledger_conninfo: str, verified_books: None) -> AsyncIterator[Process]:
    async with running_process(ledger_conninfo) as running:
        yield running


@pytest.fixture
async def other_process(ledger_conninfo: str, verified_books: None) -> AsyncIterator[Process]:
    """Another process on the same database: another identity, other connections."""
    async with running_process(ledger_conninfo) as running:
        yield running
