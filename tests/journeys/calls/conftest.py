"""The database of the calls' journeys."""

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """After every call the whole ledger is verified: no other test may have touched it."""
    return own_database(shared_conninfo, "calls")
