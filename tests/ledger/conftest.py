"""A database for the tests of the ledger, whose invariants are checked after every test."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.ledger.world import Process, differences, make_database, running_process
from tollkeeper.storage.database import Database
from tollkeeper.storage.migrations import migrate


@pytest.fixture(scope="session")
def ledger_conninfo(conninfo: str) -> str:
    """A database of its own, because the invariants are checked over all its rows."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE ledger")
    apart = psycopg.conninfo.make_conninfo(conninfo, dbname="ledger")
    migrate(apart)
    return apart


@pytest.fixture(scope="session")
async def ledger_database(ledger_conninfo: str) -> AsyncIterator[Database]:
    database = make_database(ledger_conninfo)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def books(ledger_database: Database) -> AsyncIterator[None]:
    """Checks after the test that all ten invariants hold."""
    yield
    assert await differences(ledger_database) == []


@pytest.fixture
async def process(ledger_conninfo: str, books: None) -> AsyncIterator[Process]:
    async with running_process(ledger_conninfo) as running:
        yield running


@pytest.fixture
async def other_process(ledger_conninfo: str, books: None) -> AsyncIterator[Process]:
    """A second process on the same database, with its own identity and connections."""
    async with running_process(ledger_conninfo) as running:
        yield running
