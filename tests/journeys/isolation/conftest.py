"""Fixture for the tests of isolation between tenants: their own database."""

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Creates a database for these tests alone. They verify the whole ledger."""
    return own_database(shared_conninfo, "isolation")
