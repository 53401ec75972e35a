"""Defines the database for the tests of providers."""

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Creates a separate database, because tests verify the whole ledger after their calls."""
    return own_database(shared_conninfo, "providers")
