"""Provides the database for the tests of chat completions."""

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Returns a separate database, because these tests verify the whole ledger after every call."""
    return own_database(shared_conninfo, "chat")
